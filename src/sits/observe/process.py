"""What this process takes of the machine, from /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec


class ProcessFigures(msgspec.Struct, frozen=True):
    """`cpu_seconds` is user and system time together; `start_time` is in unix seconds."""

    resident_bytes: int
    cpu_seconds: float
    open_fds: int
    start_time: float


def read_process() -> ProcessFigures:
    """The figures of now, about 35 us: for a scrape, not for a request."""
    times = os.times()
    stat = Path("/proc/self/stat").read_bytes()
    # The second field is the command in brackets and may hold anything, so fields are counted after the last bracket;
    # there, start time in ticks since boot is the 20th (proc_pid_stat(5) numbers it 22).
    ticks = int(stat[stat.rindex(b")") + 2 :].split()[19])
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    return ProcessFigures(
        resident_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
        cpu_seconds=times.user + times.system,
        open_fds=len(os.listdir("/proc/self/fd")) - 1,  # less the one that lists
        start_time=round(boot + ticks / os.sysconf("SC_CLK_TCK"), 2),
    )
