"""What a process and all its children have used, read from /proc."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")
"""Seconds; 10 ms on Linux, so a measurement of 5 s or more is good to 0.2 %."""


class Memory(msgspec.Struct, frozen=True):
    """MiB over the whole tree. Pages that processes share count once for each, so several workers look larger than they are."""

    rss: float
    peak: float


def tree(root: int) -> list[int]:
    """`root` and every live descendant of it; empty when it has gone."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(int(entry))
            if fields is not None:
                children.setdefault(int(fields[1]), []).append(int(entry))
    if _stat(root) is None:
        return []
    found, front = [root], [root]
    while front:
        front = [child for parent in front for child in children.get(parent, ())]
        found += front
    return found


def cpu_seconds(root: int) -> float:
    """User and system time of the tree since it began, children that it has waited for included.

    A live child is counted by its own figures and a dead one by its parent's, so none is counted twice.
    """
    ticks = 0
    for pid in tree(root):
        fields = _stat(pid)
        if fields is not None:
            ticks += sum(int(field) for field in fields[11:15])
    return ticks * _TICK


def memory(root: int) -> Memory:
    """What the tree holds in memory now, and the sum of each process's own peak."""
    rss = peak = 0
    for pid in tree(root):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for line in status.splitlines():
            if line.startswith("VmRSS:"):
                rss += int(line.split()[1])
            elif line.startswith("VmHWM:"):
                peak += int(line.split()[1])
    return Memory(rss / 1024, peak / 1024)


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third (state) on, or None when the process has gone.

    The second field is the program's name in brackets, and may itself hold spaces and brackets: proc(5).
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()
