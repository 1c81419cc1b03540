"""Nothing is left of a run, however it ends: no process that the tests started, and no file of theirs.

A small process waits for the end of the run, of which it learns by a pipe that closes, also when the run is killed. Whoever the
tests start inherits a word in its environment, by which it is found then, and the folder that is `TMPDIR` to it. What a test that
failed had in its own folder stays, as pytest has it, unless the run was killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

MARK = "TESTS_RUN"
"""Names the run in the environment of whatever it starts."""
ROUNDS = 100


def guarded() -> Callable[[], None]:
    """Have this process guarded, and give what ends that. In a process that a guarded one has started there is nothing to do."""
    if MARK in os.environ:
        return lambda: None
    # Kept from before: the folders of the tests themselves lie where pytest looks for them.
    here, folder = tempfile.gettempdir(), tempfile.mkdtemp(prefix="tests-")
    # Servers that run as somebody else go through it.
    Path(folder).chmod(0o711)
    word = uuid.uuid4().hex
    command = [sys.executable, "-IS", __file__, f"{MARK}={word}", here, folder]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    os.environ.update({MARK: word, "TMPDIR": folder})

    def over() -> None:
        watcher.communicate(b"over")

    return over


def main(mark: str, here: str, folder: str) -> None:
    """Wait for the end of the parent, then end and delete what is left of it."""
    parent = os.getppid()
    # A process that forked may hold the other end, too.
    while not select.select([0], [], [], 1.0)[0] and os.getppid() == parent:
        pass
    killed = not (select.select([0], [], [], 0)[0] and os.read(0, 4))
    for _ in range(ROUNDS):
        left = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _bears(pid, mark.encode())]
        for pid in left:
            _end(pid)
        if not left:
            break
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)
    for lock in Path(here).glob("pytest-of-*/pytest-*/.lock") if killed else ():
        if lock.read_text() == str(parent):
            shutil.rmtree(lock.parent, ignore_errors=True)
            (lock.parents[1] / "pytest-current").unlink(missing_ok=True)


def _bears(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # It has ended, or is somebody else's.
        return False


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
