"""Which process runs a model: one small file for each, shared by every worker of every gateway on a data folder.

The child that serves a model holds a POSIX record lock on its lease for as long as it lives, so whether it lives is a question to
the kernel, which no crash or reused process id can answer wrongly. The content says where it listens; the file's
modification time is when it was last busy. Only children write leases, and nobody deletes one that may be held.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path

import msgspec

# struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")


class Lease(msgspec.Struct, frozen=True):
    address: str
    """`http://127.0.0.1:PORT`."""
    key: str
    """What it wants as a bearer token."""
    pid: int
    needs: int
    """Bytes that it was estimated to take."""
    name: str
    left: bool = False
    """It ended because nobody used it, with no request in hand."""


def holder(path: Path) -> int | None:
    """The process that holds the lease, or None when nobody does."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        asked = fcntl.fcntl(file, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(file)
    kind, _, _, _, pid = _FLOCK.unpack(asked)
    return None if kind == fcntl.F_UNLCK else int(pid)


def read(path: Path) -> Lease | None:
    """What the lease says, whether it is held or not; None when it says nothing readable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Lease)
    except (OSError, msgspec.DecodeError):
        return None


def living(path: Path) -> Lease | None:
    """The lease of a model that is ready now."""
    pid = holder(path)
    found = read(path) if pid is not None else None
    return found if found is not None and found.pid == pid and not found.left else None


class Held:
    """The child's side: takes the lease on creation and holds it until the process ends.

    Raises:
        BlockingIOError: another process holds it.
    """

    __slots__ = ("_file",)

    def __init__(self, path: Path) -> None:
        # Never closed: closing any descriptor of the file would give a POSIX lock up.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(self._file, 0)

    def write(self, lease: Lease) -> None:
        data = msgspec.json.encode(lease)
        os.pwrite(self._file, data, 0)
        os.ftruncate(self._file, len(data))

    def touch(self) -> None:
        """Note that the model is busy now."""
        os.utime(self._file)


def idle_since(path: Path) -> float:
    """When the model was last seen busy, in seconds since the epoch."""
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0
