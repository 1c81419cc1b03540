"""One file of the journal: made at its full size, mapped into memory, written from front to back, read by whoever finds it.

    head (64 bytes) | length, CRC-32 | payload | length, CRC-32 | payload | ... | zeros

A record is there once its bytes are in the mapping: the page cache belongs to the kernel, so a kill -9 takes nothing of it.
The CRC is seeded with the file's name; a record that a crash cut in two does not pass and ends the file.

Who lives is told by `flock`: a writer holds its files locked and the kernel lets go of them when it dies, however it dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from pathlib import Path
from struct import Struct
from typing import Literal
from zlib import crc32

import msgspec

from sits.ports.room import told

MAGIC = b"SITSJNL1"
HEAD = 64
FRAME = Struct("<II")
SUFFIX = ".seg"
UNBORN = ".new"
DAMAGED = ".damaged"


class Scan(msgspec.Struct, frozen=True):
    """What was read: (position, payload) of each good record, where to go on, and how it ended."""

    records: list[tuple[int, bytes]]
    end: int
    state: Literal["clean", "torn", "damaged"]
    """`torn`: a crash cut the last record; `damaged`: there is something behind a place that cannot be read."""
    skipped: int = 0
    """Records in the middle that did not pass their CRC."""


def scan(data: bytes, seed: int, start: int = HEAD) -> Scan:
    """The records of a segment's bytes from `start` on."""
    records: list[tuple[int, bytes]] = []
    at, skipped, end = start, 0, len(data)
    while True:
        payload = _payload(data, at, end, seed)
        if payload:
            records.append((at, payload))
            at += FRAME.size + len(payload)
            continue
        after = resume(data, at, end, seed)
        if after is None:
            return Scan(records, at, _ending(data, at, _after(data, at, end)), skipped)
        skipped += 1
        at = after


def resume(data: bytes | mmap.mmap, at: int, end: int, seed: int) -> int | None:
    """Where it goes on behind a record at `at` that does not pass, in the bytes before `end`; None when nothing good is there."""
    after = _after(data, at, end)
    return after if after != at and _payload(data, after, end, seed) else None


def seed_of(name: str) -> int:
    return crc32(name.encode())


class Segment:
    """A segment that this process writes. `at` is where the next record goes; `drained` up to where the table has it."""

    __slots__ = ("at", "capacity", "drained", "fd", "map", "name", "path", "records", "seed", "synced")

    def __init__(self, folder: Path, name: str, capacity: int) -> None:
        """Make the file, with its room on the disk reserved.

        It gets its real name only when it is locked, so nobody ever sees one that looks abandoned.

        Raises:
            OSError: there is no room, or no permission.
        """
        self.name = name
        self.path = folder / (name + SUFFIX)
        self.capacity = capacity
        self.seed = seed_of(name)
        self.at = self.drained = HEAD
        self.synced = 0
        self.records = 0
        unborn = folder / (name + UNBORN)
        self.fd = os.open(unborn, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Writing to a hole of a mapped file on a full disk is a SIGBUS, so the room is taken now.
            os.posix_fallocate(self.fd, 0, capacity)
            self.map = mmap.mmap(self.fd, capacity)
            self.map[: len(MAGIC)] = MAGIC
            os.rename(unborn, self.path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unborn)
            os.close(self.fd)
            raise

    def put(self, payload: bytes) -> bool:
        """Append a record; False when there is no room for it."""
        end = self.at + FRAME.size + len(payload)
        if end > self.capacity:
            return False
        self.map[self.at : end] = FRAME.pack(len(payload), crc32(payload, self.seed)) + payload
        self.at = end
        return True

    def sync(self) -> None:
        """Bring what is written to the disk. Linux's fdatasync takes the dirty pages of mappings along, and unlike
        `mmap.flush` it lets other threads run meanwhile."""
        at = self.at
        if at != self.synced:
            os.fdatasync(self.fd)
            self.synced = at

    def shed(self) -> None:
        """Let go of the memory of what the table has; the file keeps it, and whoever reads it again gets it from there."""
        drained = self.drained // mmap.PAGESIZE * mmap.PAGESIZE
        if drained:
            self.map.madvise(mmap.MADV_DONTNEED, 0, drained)

    def leave(self) -> None:
        """Unmap and unlock the file where it lies: for whoever drains it later."""
        self.map.close()
        os.close(self.fd)

    def remove(self) -> None:
        """The table has all of it: take the file away."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self.leave()


class Orphan:
    """A segment whose writer is gone, held by us: nobody else drains it meanwhile."""

    __slots__ = ("_fd", "data", "name", "path", "seed")

    def __init__(self, path: Path, fd: int, data: bytes) -> None:
        self.path = path
        self.name = path.stem
        self.seed = seed_of(self.name)
        self.data = data
        self._fd = fd

    def remove(self) -> None:
        """The table has all of it: take the file away."""
        os.unlink(self.path)
        self.leave()

    def set_aside(self) -> None:
        """Keep the file, under a name that is not drained again, for a person to look at."""
        os.rename(self.path, self.path.with_suffix(DAMAGED))
        self.leave()

    def leave(self) -> None:
        os.close(self._fd)


def adopt(path: Path) -> Orphan | None:
    """Take over a segment without an owner; None when its writer lives, another is draining it, or it is gone.

    Raises:
        SitsError: `state_unavailable` or `internal_error`, the file cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise told(error, path) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink:
            return Orphan(path, fd, path.read_bytes())
    except BlockingIOError:
        pass  # Somebody's; that is the answer.
    except OSError as error:
        os.close(fd)
        raise told(error, path) from error
    os.close(fd)
    return None


def _payload(data: bytes | mmap.mmap, at: int, end: int, seed: int) -> bytes:
    """The record at `at`, empty when there is none that passes."""
    if at + FRAME.size > end:
        return b""
    length, crc = FRAME.unpack_from(data, at)
    start = at + FRAME.size
    if not length or start + length > end:
        return b""
    payload = data[start : start + length]
    return payload if crc32(payload, seed) == crc else b""


def _after(data: bytes | mmap.mmap, at: int, end: int) -> int:
    """Where the record after the one at `at` would be; `at` itself when its length cannot be."""
    if at + FRAME.size > end:
        return at
    after = at + FRAME.size + int(FRAME.unpack_from(data, at)[0])
    return after if after <= end and after > at + FRAME.size else at


def _ending(data: bytes, at: int, after: int) -> Literal["clean", "torn", "damaged"]:
    if not data[at:].strip(b"\0"):
        return "clean"
    # A torn record ends where its frame says; one whose frame is not complete has nothing behind that.
    return "damaged" if data[max(after, at + FRAME.size) :].strip(b"\0") else "torn"
