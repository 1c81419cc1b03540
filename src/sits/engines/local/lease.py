"""Which process runs a model: one small file for each, shared by every worker of every gateway on a data folder.

The child that serves a model holds a POSIX record lock on its lease for as long as it lives, so whether it lives is a question to
the kernel, which no crash or reused process id can answer wrongly. The content says where it listens; the file's
modification time is when it was last busy. Only children write leases, and nobody deletes one that may be held.

Beside each lease lies its gate. Whoever has requests in the model's hands holds the gate shared, and the child shuts it for
itself alone before it falls asleep or leaves, so that it never does so under a request that was sent a moment ago. It is a lock
of the kernel too, and goes with whoever holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path
from typing import Literal

import msgspec

_READS = 3
"""A lease that is read while it is written may be half of either; what stays unreadable is none."""
# struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")


class Lease(msgspec.Struct, frozen=True):
    address: str
    """`http://127.0.0.1:PORT`."""
    key: str
    """What it wants as a bearer token."""
    pid: int
    needs: int
    """Bytes that it takes: as estimated, but those that were measured while it is asleep."""
    name: str
    left: bool = False
    """It ended because nobody used it, with no request in hand."""
    state: Literal["hot", "falling", "asleep"] = "hot"
    """Asleep, it holds what it needs to be hot again within milliseconds, and must be woken before it is asked."""
    full: int = 0
    """Bytes that it was estimated to take when hot."""


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
    for _ in range(_READS):
        try:
            data = path.read_bytes()
            return msgspec.json.decode(data, type=Lease)
        except OSError:
            return None
        except msgspec.DecodeError:
            if not data:
                return None
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

    __slots__ = ("_file", "_length")

    def __init__(self, path: Path) -> None:
        # Never closed: closing any descriptor of the file would give a POSIX lock up.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(self._file, 0)
        self._length = 0

    def write(self, lease: Lease) -> None:
        data = msgspec.json.encode(lease)
        # Spaces over what a longer one leaves: cut off after the write, it could be read in between.
        os.pwrite(self._file, data.ljust(self._length), 0)
        self._length = max(self._length, len(data))

    def touch(self) -> None:
        """Note that the model is busy now."""
        os.utime(self._file)


class Gate:
    """The child's side of the gate beside its lease."""

    __slots__ = ("_file",)

    def __init__(self, lease: Path) -> None:
        self._file = os.open(_gate(lease), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def shut(self) -> bool:
        """Let nobody in; False when somebody is."""
        return _locked(self._file, fcntl.LOCK_EX)

    def open(self) -> None:
        """Let them in again."""
        fcntl.flock(self._file, fcntl.LOCK_UN)


def enter(lease: Path) -> int | None:
    """Go in by the gate beside a lease; closing what is returned goes out again. None when it is shut."""
    file = os.open(_gate(lease), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if _locked(file, fcntl.LOCK_SH):
        return file
    os.close(file)
    return None


def _gate(lease: Path) -> Path:
    return lease.with_suffix(".gate")


def _locked(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def idle_since(path: Path) -> float:
    """When the model was last seen busy, in seconds since the epoch."""
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0
