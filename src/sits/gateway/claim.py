"""One gateway at a time on a data folder: two would count, learn and book as one, without knowing of each other.

The claim is a lock on `run/gateway`, which the kernel lets go of when the last process that has it is gone, however it ended:
none is ever left over. Workers have it by being forked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import socket
from collections.abc import Iterator

from sits.inner.errors import Code, SitsError
from sits.ports.room import told

FILE = "gateway"
_NOTE = 512
"""Bytes that are read of what the holder has written about itself."""


@contextlib.contextmanager
def claimed(data: pathlib.Path, address: str) -> Iterator[None]:
    """Have the data folder, made when missing, for this gateway and its workers; `address` is told to others that want it.

    Raises:
        SitsError: `conflict`, another gateway has it, the message says which; `state_unavailable` or `internal_error`, it cannot
            be written, or locked.
    """
    path = data / "run" / FILE
    try:
        for folder in (data, path.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise told(error, path) from error
    try:
        _lock(fd, data, path)
        # A disk without room for the note has some for the lock, which is what counts.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"pid {os.getpid()} at {address} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(fd)


def _lock(fd: int, data: pathlib.Path, path: pathlib.Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        who = os.pread(fd, _NOTE, 0).decode("utf-8", "replace") or "one that has not said which"
        message = (
            f"the data folder {data} has a gateway already: {who}, or a worker that it left behind; "
            "end that one first, or give this one a folder of its own with --data"
        )
        raise SitsError(Code.CONFLICT, message) from error
    except OSError as error:
        raise told(error, path) from error
