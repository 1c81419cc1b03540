"""Processes that share the limits of a folder.

`limits_worker.py admit FOLDER ATTEMPTS`: says `ready`, waits for a line, asks that often, prints how often it was let in.
`limits_worker.py nursery`: reads lines `[folder, acks, spin]`, forks a worker that goes on for ever, kills it with SIGKILL
after so many acknowledged rounds and a moment more, and prints how many it had acknowledged.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from sits.state.limits.base import Limit, Reservation
from sits.state.limits.mapped import mapped_limits

T = TypeVar("T")
NOW = 1_764_417_600.0
SLOTS = 64
ROUNDS = Limit("rounds", 10**12, "forever")
TOKENS = Limit("tokens", 10**12, "forever")
FEW = Limit("few", 12_000, "forever")
MANY = Limit("many", 10**6, "forever")


def drive(call: Coroutine[Any, Any, T]) -> T:
    """Run what never waits."""
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waited")


def admit(folder: Path, attempts: int) -> None:
    limits = mapped_limits(folder, slots=SLOTS)
    print("ready", flush=True)
    sys.stdin.readline()
    admitted = 0
    for number in range(attempts):
        answer = drive(limits.reserve((MANY, FEW), (2, 1), now=NOW, ttl=60.0))
        if not isinstance(answer, Reservation):
            continue
        if number % 3:
            drive(limits.settle(answer, (1, 1), now=NOW))
            admitted += 1
        else:
            drive(limits.release(answer, now=NOW))
    drive(limits.aclose())
    print(admitted)


def go_round(folder: Path, acks: int) -> None:
    limits = mapped_limits(folder, slots=SLOTS)
    while True:
        answer = drive(limits.reserve((ROUNDS, TOKENS), (1, 5), now=NOW, ttl=60.0))
        assert isinstance(answer, Reservation)
        drive(limits.settle(answer, (1, 3), now=NOW))
        os.write(acks, b".")


def kill_one(folder: Path, acks: int, spin: int) -> int:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            go_round(folder, writing)
        finally:
            os._exit(1)
    os.close(writing)
    count = 0
    while count < acks:
        count += len(os.read(reading, min(4096, acks - count)))
    for _ in range(spin):
        os.getpid()
    os.kill(pid, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    while piece := os.read(reading, 65536):
        count += len(piece)
    os.close(reading)
    return count


def main(words: list[str]) -> None:
    if words[0] == "admit":
        admit(Path(words[1]), int(words[2]))
        return
    for line in sys.stdin:
        folder, acks, spin = json.loads(line)
        print(kill_one(Path(folder), acks, spin), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
