"""Forks writers, kills them with SIGKILL at a moment that it is told, and looks at what they left: for `sits bench crash`.

One process imports everything once; a writer, and a look at what it left, are forks of it, so both begin with nothing but what
lies in the folder. It reads a request a line on its standard input and answers with a line.
"""

from __future__ import annotations

import importlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

PARTS: dict[str, str] = {
    "ledger": "sits.bench.crash_ledger:LedgerPart",
    "registrations": "sits.bench.crash_registrations:RegistrationsPart",
    "outbox": "sits.bench.crash_pairs:OutboxPart",
    "naive": "sits.bench.crash_pairs:NaivePart",
}
"""What can be killed -> the import path of its `Part`."""
_DEAF_SECONDS = 60.0
"""After which a writer that says nothing has failed."""


class Story(msgspec.Struct, frozen=True):
    """The lives of a folder: each number is how many steps a writer had acknowledged when it was killed."""

    place: str
    seed: int
    lives: tuple[int, ...] = ()

    @property
    def folder(self) -> Path:
        return Path(self.place)

    @property
    def acknowledged(self) -> int:
        return sum(self.lives)


class Found(msgspec.Struct, frozen=True):
    """What a look after a kill came to. All but `unexplained` and `due` are counted after recovery."""

    lost: int = 0
    """Acknowledged steps whose effect is not there."""
    doubled: int = 0
    """Effects that are there twice."""
    apart: int = 0
    """Ids of which record and vector do not agree."""
    unexplained: int = 0
    """Ids that were apart before recovery without anything that says so."""
    due: int = 0
    """Records that had to be taken back when the kill came, since their vectors were refused."""
    kept: int = 0
    """Of these, still there."""
    notes: tuple[str, ...] = ()


class Part(Protocol):
    """What is killed."""

    def write(self, story: Story, say: Callable[[], None]) -> None:
        """Call `say` once when ready, then take steps for ever and call it after each, when it would be acknowledged."""
        ...

    def look(self, story: Story) -> Found:
        """Recover as a new process would, and compare what is there with what was acknowledged."""
        ...


class Kill(msgspec.Struct, frozen=True, tag=True):
    """Let a writer run, and kill it so many seconds after it was ready, or after the fork. Answer: what it acknowledged."""

    part: str
    story: Story
    seconds: float
    from_fork: bool


class Look(msgspec.Struct, frozen=True, tag=True):
    """Answer: a `Found`."""

    part: str
    story: Story


class Failed(Exception):
    """A writer or a look ended by itself; the message has its trace."""


class Nursery:
    """The process; use it in a `with`. For one thread."""

    def __enter__(self) -> Nursery:
        command = [sys.executable, "-m", "sits.bench.crash_nursery"]
        # A fork takes only the thread along that forks: no others are wanted.
        env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)  # noqa: S603
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)

    def kill(self, part: str, story: Story, *, seconds: float, from_fork: bool) -> int:
        """How many steps a writer had acknowledged when it was killed."""
        return msgspec.json.decode(self._ask(Kill(part, story, seconds, from_fork)), type=int)

    def look(self, part: str, story: Story) -> Found:
        return msgspec.json.decode(self._ask(Look(part, story)), type=Found)

    def _ask(self, request: Kill | Look) -> bytes:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(msgspec.json.encode(request) + b"\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise Failed("the nursery has ended; its last words are above")
        return line


# In the process.


def part_of(name: str) -> Part:
    module, _, attribute = PARTS[name].partition(":")
    part: Part = getattr(importlib.import_module(module), attribute)()
    return part


def kill(request: Kill) -> int:
    """Fork a writer and kill it; what it had acknowledged."""
    part = part_of(request.part)
    pid, reading = _fork(lambda writing: part.write(request.story, lambda: _say(writing)))
    try:
        if not request.from_fork:
            _hear(reading)
        time.sleep(request.seconds)
    finally:
        os.kill(pid, signal.SIGKILL)
    told = _all(reading)
    status = os.waitpid(pid, 0)[1]
    if os.WTERMSIG(status) != signal.SIGKILL:
        raise Failed(f"the writer ended by itself: {status}")
    # The first word says that it is ready; it was read above, unless nobody waited for it.
    return max(0, len(told) - 1) if request.from_fork else len(told)


def look(request: Look) -> Found:
    """Look from a new process."""
    part = part_of(request.part)
    pid, reading = _fork(lambda writing: _write(writing, msgspec.json.encode(part.look(request.story))))
    answer = _all(reading)
    os.waitpid(pid, 0)
    if not answer:
        raise Failed("the look ended by itself")
    return msgspec.json.decode(answer, type=Found)


def main() -> None:
    # What goes wrong on purpose need not be said.
    logging.disable()
    for name in PARTS:
        part_of(name)
    requests = msgspec.json.Decoder(Kill | Look)
    for line in sys.stdin.buffer:
        request = requests.decode(line)
        answer = kill(request) if isinstance(request, Kill) else look(request)
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


def _fork(work: Callable[[int], None]) -> tuple[int, int]:
    """A child that does it, given the writing end of a pipe; its id and the reading end."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    os.close(reading)
    code = 1
    try:
        work(writing)
        code = 0
    except BaseException:  # It must not go on as if it were its parent.
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)


def _say(writing: int) -> None:
    os.write(writing, b".")


def _write(writing: int, data: bytes) -> None:
    while data:
        data = data[os.write(writing, data) :]


def _hear(reading: int) -> None:
    """Wait for the first word."""
    if not select.select([reading], [], [], _DEAF_SECONDS)[0] or not os.read(reading, 1):
        raise Failed("the writer never was ready")


def _all(reading: int) -> bytes:
    pieces = []
    while piece := os.read(reading, 65536):
        pieces.append(piece)
    os.close(reading)
    return b"".join(pieces)


if __name__ == "__main__":
    main()
