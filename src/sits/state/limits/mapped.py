"""Lines in a file that all workers of a machine map into memory: limits are exact over `--workers N`, without a server.

    head (a page) | redo (a page) | slots: key, window's end, spent, reserved, and each worker's part of reserved

- One at a time: `flock` on the file, 0.7 us, which the kernel lets go of when its holder dies, however that is.
- A change of several lines is written to the redo page first, with a CRC, then made, then struck out: who comes after one that
  died in between makes it whole. What a kill -9 interrupts has happened or has not.
- A worker proves that it lives by holding a lock on a file of its own; what a dead one had reserved is its column.

A power failure may take the last moments with it, as the file is not forced to the disk; the ledger has the true figures.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from struct import Struct
from zlib import crc32

from sits.inner.errors import Code, SitsError
from sits.ports.room import told
from sits.state.limits.counted import Change, CountedLimits, Line

FOLDER = "limits"
FILE = "table"
SLOTS = 16_384
"""Limits that there is room for: 8 MiB. A slot is used again when its window has ended."""
WORKERS = 32
PATIENCE_SECONDS = 0.25
"""How long a worker waits for another one's turn, which takes microseconds: then that one is stopped, in a debugger say."""
_PROBES = 64
"""Slots in which a key may lie, from the one that its hash names on."""
_MAGIC = b"SITSLIM1"
_HEAD = Struct("<8sII")
_DIRTY = 64
"""Where the head has a byte for each worker: whether its column may hold anything."""
_REDO = 4096
_REDO_HEAD = Struct("<IIQ")
_REDO_BODY = _REDO + _REDO_HEAD.size
_REDO_LINE = Struct("<qqqq")
_FIRST = 8192
_SLOT = 512
_KEY_ROOM = 214
_FIGURES_AT = 216
_SPENT = 224
_RESERVED = 232
_END = Struct("<d")
_PAIR = Struct("<qq")
_PARTS_AT = 256
_PART = Struct("<q")
_NONE = bytes(4)
_SPINS = 200


class MappedLines:
    """One worker's view of the file in `folder`. For one thread; open it after the fork."""

    def __init__(self, folder: Path, *, slots: int = SLOTS) -> None:
        """Open or make the file, and take a worker's column of it.

        Raises:
            SitsError: `internal_error`, with what is wrong with which file; `state_unavailable`, there is no room, or another
                worker does not let go.
        """
        self.path = folder / FILE
        self._folder = folder
        self._slots = slots
        self._places: dict[str, tuple[int, bytes]] = {}
        self._size = _FIRST + slots * _SLOT
        self._worker_fd = self._me = -1
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise told(error, self.path, wanted=self._size) from error
        try:
            self._take()
            try:
                self._map = self._mapped()
                self._me = self._joined()
            finally:
                self.leave()
        except BaseException as error:
            os.close(self._fd)
            if isinstance(error, OSError):
                raise told(error, self.path, wanted=self._size) from error
            raise
        # End, spent, reserved, and over the parts of the others, our own.
        self._line = Struct(f"<dqq{_PARTS_AT + 8 * self._me - _FIGURES_AT - 24}xq").unpack_from

    def enter(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._take()
        if self._map[_REDO : _REDO + 4] != _NONE:
            self._redo()

    def leave(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def read(self, name: str, now: float) -> Line:
        known = self._places.get(name)
        if known is not None:
            place, key = known
            # Another worker may have given the slot to another key meanwhile.
            if self._map[place : place + len(key)] == key:
                return (place, *self._line(self._map, place + _FIGURES_AT))
        place = self._found(name, now)
        return (place, *self._line(self._map, place + _FIGURES_AT))

    def open(self, place: int, ends: float) -> None:
        # Whoever dies in the midst leaves a window that is over, as it was.
        self._map[place + _PARTS_AT : place + _SLOT] = bytes(_SLOT - _PARTS_AT)
        _PAIR.pack_into(self._map, place + _SPENT, 0, 0)
        _END.pack_into(self._map, place + _FIGURES_AT, ends)

    def write(self, changes: Sequence[Change]) -> None:
        self._write(self._me, changes)

    def reclaim(self) -> int:
        """Columns whose workers are gone, emptied."""
        if not self._dirty():
            return 0
        self.enter()
        try:
            return self._buried()
        finally:
            self.leave()

    def close(self) -> None:
        """Leave the column clean behind. Safe to repeat."""
        if self._worker_fd < 0:
            return
        self.enter()
        try:
            self._empty(self._me)
        finally:
            self.leave()
        self._abandon()

    def _abandon(self) -> None:
        """What the kernel does when we die."""
        self._map.close()
        os.close(self._fd)
        os.close(self._worker_fd)
        self._worker_fd = -1

    def _take(self) -> None:
        """Wait for our turn."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        tries = 0
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            tries += 1
            if tries < _SPINS:
                os.sched_yield()
            elif time.monotonic() > give_up:
                raise SitsError(Code.STATE_UNAVAILABLE, f"{self.path}: another worker holds it and does not go on", retry_after=1)
            else:
                time.sleep(0.0005)

    # The file, under its lock.

    def _mapped(self) -> mmap.mmap:
        size = os.fstat(self._fd).st_size
        if size not in (0, self._size):
            raise SitsError(Code.INTERNAL, f"{self.path} is not as large as this program makes it: delete it while nothing runs")
        # Writing to a hole of a mapped file on a full disk is a SIGBUS, so the room is taken now.
        try:
            os.posix_fallocate(self._fd, 0, self._size)
        except OSError:
            os.ftruncate(self._fd, size)  # Some file systems keep what they could give, and its size would be wrong for ever.
            raise
        mapped = mmap.mmap(self._fd, self._size)
        head = _HEAD.pack(_MAGIC, self._slots, WORKERS)
        if not mapped[: len(head)].strip(b"\0"):
            mapped[: len(head)] = head
        if mapped[: len(head)] != head:
            mapped.close()
            raise SitsError(Code.INTERNAL, f"{self.path} is of another version: delete it while nothing runs")
        return mapped

    def _joined(self) -> int:
        """A column of our own, emptied of what the one before us left."""
        if self._map[_REDO : _REDO + 4] != _NONE:
            self._redo()
        me, alone = -1, True
        for worker in range(WORKERS):
            fd = self._claimed(worker)
            if fd is None:
                alone = False
            elif me < 0:
                me, self._worker_fd = worker, fd
            else:
                os.close(fd)
        if me < 0:
            raise SitsError(Code.INTERNAL, f"{self.path}: there is room for {WORKERS} workers")
        if alone:
            # Nobody holds anything. After a power failure the file may say otherwise, in ways that no column explains.
            self._calm()
        self._buried()
        self._empty(me)
        self._map[_DIRTY + me] = 1
        return me

    def _claimed(self, worker: int) -> int | None:
        """The lock of a worker's column, None while it lives."""
        path = self._folder / f"worker-{worker}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def _dirty(self) -> list[int]:
        """Workers other than us whose columns may hold something."""
        flags = self._map[_DIRTY : _DIRTY + WORKERS]
        return [worker for worker, flag in enumerate(flags) if flag and worker != self._me]

    def _buried(self) -> int:
        count = 0
        for worker in self._dirty():
            fd = self._claimed(worker)
            if fd is None:
                continue
            self._empty(worker)
            os.close(fd)
            count += 1
        return count

    def _empty(self, worker: int) -> None:
        """Give back all that a worker has reserved."""
        for slot, part in enumerate(self._column(_PARTS_AT + 8 * worker)):
            if part:
                place = _FIRST + slot * _SLOT
                spent, reserved = _PAIR.unpack_from(self._map, place + _SPENT)
                self._write(worker, [(place, spent, max(0, reserved - part), 0)])
        self._map[_DIRTY + worker] = 0

    def _calm(self) -> None:
        for slot, amount in enumerate(self._column(_RESERVED)):
            place = _FIRST + slot * _SLOT
            if amount:
                _PART.pack_into(self._map, place + _RESERVED, 0)
                self._map[place + _PARTS_AT : place + _SLOT] = bytes(_SLOT - _PARTS_AT)
        self._map[_DIRTY : _DIRTY + WORKERS] = bytes(WORKERS)

    def _column(self, at: int) -> list[int]:
        """The number at that place of every slot."""
        with memoryview(self._map) as raw, raw[_FIRST:].cast("q") as numbers:
            column: list[int] = numbers[at // 8 :: _SLOT // 8].tolist()
        # The look has brought in every page, nearly all of them of slots that nobody uses. The file keeps what is let go of.
        self._map.madvise(mmap.MADV_DONTNEED)
        return column

    def _write(self, worker: int, changes: Sequence[Change]) -> None:
        mapped = self._map
        body = b"".join([_REDO_LINE.pack(*change) for change in changes])
        mapped[_REDO : _REDO_BODY + len(body)] = _REDO_HEAD.pack(len(body), crc32(body, worker), worker) + body
        self._make(worker, changes)
        mapped[_REDO : _REDO + 4] = _NONE

    def _make(self, worker: int, changes: Iterable[Change]) -> None:
        part_at = _PARTS_AT + 8 * worker
        for place, spent, reserved, mine in changes:
            _PAIR.pack_into(self._map, place + _SPENT, spent, reserved)
            _PART.pack_into(self._map, place + part_at, mine)

    def _redo(self) -> None:
        """Somebody died while writing: make the change whole, unless not even its note is."""
        length, crc, worker = _REDO_HEAD.unpack_from(self._map, _REDO)
        body = self._map[_REDO_BODY : _REDO_BODY + length] if length <= _FIRST - _REDO_BODY else b""
        if body and crc32(body, worker) == crc and worker < WORKERS:
            self._make(worker, _REDO_LINE.iter_unpack(body))
        self._map[_REDO : _REDO + 4] = _NONE

    def _found(self, name: str, now: float) -> int:
        key = _key(name)
        start = crc32(key) % self._slots
        free = -1
        for step in range(min(_PROBES, self._slots)):
            place = _FIRST + (start + step) % self._slots * _SLOT
            if self._map[place : place + len(key)] == key:
                return self._noted(name, place, key)
            # All probes are looked at: an empty slot may be one that somebody died over, before the key's own.
            if free < 0 and (self._map[place : place + 2] == _NONE[:2] or self._over(place, now)):
                free = place
        if free < 0:
            raise SitsError(Code.OVERLOADED, f"{self.path}: no room for the limit {name}", retry_after=60)
        # The length comes last: without it the slot is empty, whenever we die.
        self._map[free : free + 2] = _NONE[:2]
        self._map[free + _FIGURES_AT : free + _SLOT] = bytes(_SLOT - _FIGURES_AT)
        self._map[free + 2 : free + len(key)] = key[2:]
        self._map[free : free + 2] = key[:2]
        return self._noted(name, free, key)

    def _over(self, place: int, now: float) -> bool:
        ends: float = _END.unpack_from(self._map, place + _FIGURES_AT)[0]
        return ends <= now

    def _noted(self, name: str, place: int, key: bytes) -> int:
        if len(self._places) >= self._slots:
            self._places.clear()
        self._places[name] = (place, key)
        return place


def _key(name: str) -> bytes:
    """Two bytes of length, then the name, or a digest of one that is too long for a slot."""
    data = name.encode("utf-8", "surrogatepass")
    if len(data) > _KEY_ROOM:
        data = b"\0" + hashlib.blake2b(data, digest_size=32).digest()
    return len(data).to_bytes(2, "little") + data


def mapped_limits(data: Path, *, slots: int = SLOTS) -> CountedLimits:
    """The limits that all workers on a data folder share."""
    return CountedLimits("mapped", MappedLines(data / FOLDER, slots=slots))
