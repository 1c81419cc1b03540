"""Forks writers of a ledger and kills them with SIGKILL: at the acknowledged entry and after the moment that it is told.

Reads a line `[folder, writers, acks, spin]`, answers with a line of the numbers of entries that each writer had acknowledged.
A writer acknowledges an entry, by a byte in a pipe, when `write` has returned: that is when a gateway would let go of the end of
the answer. It drains all the while, so the kill comes in the midst of that as well.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from pathlib import Path

from sits.state.ledger import Entry, Ledger, open_table

SEGMENT = 8192
MOST = 5000


def write_on(data: Path, writer: int, acks: int) -> None:
    ledger = Ledger(data, open_table(data), segment_bytes=SEGMENT, segments=1000, tick_seconds=0.001)
    ledger.start()
    for number in range(1, MOST + 1):
        ledger.write(
            Entry(
                "ok",
                200,
                number,
                True,
                False,
                False,
                f"key-{writer}",
                "队",
                "r",
                "r",
                "m",
                "p",
                "u",
                "chat",
                float(number),
                f"写手-{writer}",
                cost=number,
            )
        )
        os.write(acks, b".")
    signal.pause()


def spawn(data: Path, writer: int) -> tuple[int, int]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            write_on(data, writer, writing)
        finally:
            os._exit(1)
    os.close(writing)
    return pid, reading


def kill_all(data: Path, writers: int, acks: int, spin: int) -> list[int]:
    running = [spawn(data, writer) for writer in range(writers)]
    counts = dict.fromkeys((reading for _, reading in running), 0)
    while max(counts.values()) < acks:
        for reading in select.select(list(counts), [], [])[0]:
            counts[reading] += len(os.read(reading, 4096))
    for _ in range(spin):
        os.getpid()
    for pid, _ in running:
        os.kill(pid, signal.SIGKILL)
    for pid, reading in running:
        status = os.waitpid(pid, 0)[1]
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        while piece := os.read(reading, 65536):
            counts[reading] += len(piece)
        os.close(reading)
    return list(counts.values())


def main() -> None:
    for line in sys.stdin:
        folder, writers, acks, spin = json.loads(line)
        print(json.dumps(kill_all(Path(folder), writers, acks, spin)), flush=True)


if __name__ == "__main__":
    main()
