"""Writing recorded traffic: a bounded queue and a thread that makes rows of it, so that a slow disk costs rows (they are counted,
and the file says so), never requests.

What the disk does not take waits in the queue, and is tried once a second; only when there is no room any more rows are left out.
A folder that somebody removed is made again, and a file that somebody removed is followed by the next one.

Each process writes a file of its own and holds a lock on it, so that no other one removes it for being old. Files are for their
owner alone (mode 0600). What was written is handed to the disk (fsync) when a file is full or the gateway ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sits.inner.stuck import Stuck, still
from sits.observe.record import Record
from sits.observe.redact import Redactor
from sits.observe.trace_row import Feedback, Gap, Head, Row, encode, head_of
from sits.observe.trace_sample import Sample
from sits.resilience.shadow.scrub import Scrubber, Unscrubbable
from sits.resources.snapshot import Snapshot

_log = logging.getLogger("sits.trace")

BATCH = 8
"""Rows made in one go; each is some 50 us for which the event loop waits, and each write lets it in."""
MOST_HEADS = 64
_ROW = b'{"line":"row"'
_KEY_FILE = ".key"
_KEY_BYTES = 32
RETRY_SECONDS = 1.0
"""How long nothing is tried for after the disk took nothing."""

Item = tuple[Sample, Record] | Feedback


class TraceFile:
    """A folder that traffic is recorded in, and the thread that does it."""

    def __init__(
        self,
        folder: Path,
        redactor: Redactor,
        *,
        share: float = 1.0,
        largest: int = 64 * 1024 * 1024,
        keep: int = 16,
        body_bytes: int = 16 * 1024,
        bodies: bool = True,
        capacity: int = 4096,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self.rows = 0
        """Written since the start."""
        self.bodies = bodies
        """Whether what was asked is written where a sample has it: it counts when the row is made, whatever was said before."""
        self._redactor = redactor
        self._share = share
        self._largest = largest
        self._keep = keep
        self._body_bytes = body_bytes
        self._capacity = capacity
        self._wall = wall
        self._queue: deque[Item] = deque()
        # Each is added to by one side only: the loop, and the thread that writes.
        self._left_out = 0
        self._lost = 0
        self._told = 0
        self._file: int | None = None
        self._path: Path | None = None
        self._size = 0
        self._number = 0
        self._headed: set[str] = set()
        self._heads: OrderedDict[str, bytes] = OrderedDict()
        self._last: Snapshot | None = None
        self._key = b""
        self._clock = clock
        self._trouble = ""
        """Why the disk takes nothing, since it does not."""
        self.stuck: Stuck | None = None
        """The same, for the status page."""
        self._gone = ""
        """What became of the last file, until there is another one."""
        self._lost_before = 0
        """What was missing when that began."""
        self._retry_at = -math.inf
        self._rest: tuple[int, ...] | None = None
        """Which file it was, and as of when, that was stopped in, as long as it may be gone on with."""
        self._fewer = False
        """Whether there may be more files than are to be kept."""
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        """Of that thread alone: another one may begin before it has ended."""
        self._writing = threading.Lock()

    def put(self, sample: Sample, record: Record) -> None:
        """Have a finished request recorded; neither may change any more. 0.2 us; left out when there is too much to do."""
        self._append((sample, record))

    def feedback(self, request_id: str, score: float, key: str | None) -> None:
        """How an answer to a key was, 0 to 1."""
        self._append(Feedback(request_id, score, self._wall(), key))

    def _append(self, item: Item) -> None:
        if len(self._queue) < self._capacity:
            self._queue.append(item)
        else:
            self._left_out += 1

    @property
    def missing(self) -> int:
        """Requests that were not written since the start: too many at once, or the disk took none."""
        return self._left_out + self._lost

    def start(self, every: float = 0.05) -> None:
        """Write what is queued every so many seconds, from a daemon thread. Call it after any fork."""
        if self._thread is None:
            self._stop = threading.Event()
            self._thread = threading.Thread(target=self._run, args=(every, self._stop), name="sits-trace", daemon=True)
            self._thread.start()

    def go_by(self, share: float, largest: int, keep: int, body_bytes: int, *, bodies: bool) -> None:
        """As if it had been made so, from the next row on; in the same file. What was not written while it was stopped is written
        without what was asked."""
        if self._thread is None:
            for item in self._queue:
                if not isinstance(item, Feedback):
                    item[0].body = None
        self._fewer = keep < self._keep
        self._share, self._largest, self._keep, self._body_bytes = share, largest, keep, body_bytes
        self.bodies = bodies

    def stop(self, patience: float = 5.0) -> None:
        """Write what is left and close the file, waiting at most `patience` seconds for a stuck disk. Started again, it goes on
        in that file, unless it is full or somebody has touched it."""
        self.stopping(patience)()

    def stopping(self, patience: float = 5.0) -> Callable[[], None]:
        """As `stop`, in two parts: it may be started again from here on, and what is returned may take its time elsewhere."""
        thread, self._thread = self._thread, None
        self._stop.set()
        return partial(self._end, thread, patience)

    def _end(self, thread: threading.Thread | None, patience: float) -> None:
        if thread is not None:
            thread.join(patience)
            if thread.is_alive():
                return
        if self._thread is not None:
            return  # Started again meanwhile: the file is that one's.
        self._retry_at = -math.inf
        self.flush()
        with self._writing:
            try:
                self._tell()
                if self._file is not None and self._size < self._largest:
                    self._rest = _identity(self._file)
                self._close()
            except OSError as error:
                self._fail(error)
            # Unless it was started again meanwhile; without trouble, what is in the queue has only just come.
            if self._trouble and self._thread is None:
                self._lost += sum(not isinstance(item, Feedback) for item in self._queue)
                self._queue.clear()
                _log.error("recording ends in trouble (%s): %s", self._trouble, self._lost_meanwhile())
                self._trouble, self.stuck = "", None

    def _tell(self) -> None:
        """Say what is missing at the end of the file."""
        untold = self.missing - self._told
        if untold and self._size:
            self._out([encode(Gap(untold, self._wall()))])
            self._told += untold

    def flush(self) -> None:
        """Write what is queued, from the calling thread. What the disk does not take stays there."""
        with self._writing:
            if self._clock() < self._retry_at:
                return
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
                try:
                    self._write(batch)
                except OSError as error:
                    self._queue.extendleft(reversed(batch))
                    self._fail(error)
                    return
                except Exception:  # The thread is to go on: what comes next may well be recorded.
                    self._lost += sum(not isinstance(item, Feedback) for item in batch)
                    self._headed = set()  # Nobody knows how far it came.
                    _log.exception("a defect while recording traffic: %d requests are not recorded", len(batch))
                    continue
                if self._trouble:
                    _log.info("traffic is recorded again, in %s: %s", self._path, self._lost_meanwhile())
                    self._trouble, self.stuck = "", None
                try:
                    if self._size >= self._largest:
                        self._close()
                except OSError as error:
                    self._fail(error)
                    return

    def _run(self, every: float, stop: threading.Event) -> None:
        while not stop.wait(every):
            self.flush()

    def _write(self, batch: list[Item]) -> None:
        """Raises OSError where the disk takes nothing: then nothing of the batch is written, and what cannot be has left it."""
        self._open()
        lines: list[bytes] = []
        for item in batch[:]:
            try:
                lines += self._lines(item)
            except Exception as error:  # Of whatever kind: the others are to be recorded.
                self._lost += not isinstance(item, Feedback)
                _log.warning("a request cannot be recorded: %s: %s", type(error).__name__, error)
                batch.remove(item)
        # What is missing came after what was queued; and a file begins with a head.
        untold = self.missing - self._told if self._headed and not self._queue else 0
        if untold:
            lines.append(encode(Gap(untold, self._wall())))
        self._out(lines)
        self._told += untold
        self.rows += sum(line.startswith(_ROW) for line in lines)

    def _lines(self, item: Item) -> list[bytes]:
        """What is to be written of it."""
        if isinstance(item, Feedback):
            if self._last is None:
                return []  # Of a request that was not recorded here.
            line = self._redactor.line(encode(item))
            head = self._head(self._last)
            return [head, line] if head else [line]
        sample, record = item
        row = self._redactor.line(encode(sample.row(record, self._key, self._body(sample.body))))
        self._last = sample.snapshot
        head = self._head(sample.snapshot)
        return [head, row] if head else [row]

    def _head(self, snapshot: Snapshot) -> bytes:
        """The head of a configuration, where this file has not got it yet."""
        if snapshot.hash in self._headed:
            return b""
        made = self._heads.get(snapshot.hash)
        if made is None:
            # Of a request that is older than the last change, as it was.
            said = snapshot.settings.trace
            share = said.share if said is not None else self._share
            made = self._heads[snapshot.hash] = self._redactor.line(encode(head_of(snapshot, self._wall(), share)))
            if len(self._heads) > MOST_HEADS:
                self._heads.popitem(last=False)
        self._headed.add(snapshot.hash)
        return made

    def _body(self, body: bytes | None) -> str | None:
        """What was asked, without what is personal and can be told by its form; None where that cannot be done."""
        if body is None or not self.bodies or len(body) > self._body_bytes:
            return None
        try:
            return Scrubber().json(body).decode()
        except (Unscrubbable, UnicodeDecodeError):
            return None

    def _out(self, lines: list[bytes]) -> None:
        """Raises OSError where the disk does not take all of it: then it has none of it."""
        assert self._file is not None
        data = b"".join([line + b"\n" for line in lines])
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size = os.fstat(self._file).st_size

    def _open(self) -> None:
        """Have a file to write to, in its place."""
        if self._file is not None and self._moved():
            self._gone = f"{self._path} is gone, and what was recorded in it; "
            self._close()
        if self._file is None and self._rest is not None:
            self._file, self._rest = self._reopened(self._rest), None
        if self._file is not None:
            if self._fewer:
                self._fewer = False
                self._remove_old()
            return
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._key = key_of(self.folder, self._key)
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self._wall()))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        while self._file is None:
            self._number += 1
            self._path = self.folder / f"trace-{stamp}-{os.getpid()}-{self._number:06d}.jsonl"
            try:
                self._file = os.open(self._path, flags, 0o600)
            except FileExistsError:
                continue  # Of this process, before its configuration changed.
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._size = 0
        self._headed = set()
        self._fewer = False
        if self._gone and not self._trouble:
            _log.warning("%straffic is recorded in %s", self._gone, self._path)
        self._gone = ""
        self._remove_old()

    def _reopened(self, rest: tuple[int, ...]) -> int | None:
        """The file that it was stopped in, to go on with; None where that cannot be, and another one is to be begun."""
        assert self._path is not None
        if self._size >= self._largest:
            return None
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None  # Whatever it is, it is told when the next one cannot be made.
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _identity(file) == rest:
                return file
        except OSError:
            pass  # Somebody else has it.
        os.close(file)
        return None

    def _moved(self) -> bool:
        """Whether the file is not where it was made any more: it was removed or moved, or its folder was."""
        assert self._file is not None
        assert self._path is not None
        own = os.fstat(self._file)
        try:
            there = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return True
        return (there.st_dev, there.st_ino) != (own.st_dev, own.st_ino)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                os.fsync(file)
            finally:
                os.close(file)

    def _fail(self, error: OSError) -> None:
        """The disk took nothing: leave the file, say so if that is news, and try again later."""
        if not self._trouble:
            self._lost_before, why = self.missing, error.strerror or error
            _log.error("%sthe disk does not take recorded traffic, it stays in memory: %s: %s", self._gone, self.folder, why)
        self._trouble = f"{self.folder}: {error.strerror or error}"
        why = f"the disk does not take recorded traffic, it stays in memory: {self._trouble}"
        self.stuck = still(self.stuck, why, self._wall())
        self._retry_at = self._clock() + RETRY_SECONDS
        self._rest = None
        if self._file is not None:
            empty, path = not self._size, self._path
            with contextlib.suppress(OSError):  # It is the same trouble.
                self._close()
            if empty and path is not None:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _lost_meanwhile(self) -> str:
        """In words."""
        lost = self.missing - self._lost_before
        return f"{lost or 'no'} request{'s were' if lost > 1 else ' was'} dropped meanwhile"

    def _remove_old(self) -> None:
        files = sorted(self.folder.glob("trace-*.jsonl"))
        for old in files[: max(0, len(files) - self._keep)]:
            try:
                if old != self._path and _unused(old):
                    old.unlink(missing_ok=True)
            except OSError as error:  # Of somebody else, say: what is recorded now has nothing to do with it.
                _log.warning("old traffic stays, more than is to be kept: %s: %s", old, error.strerror or error)


def key_of(folder: Path, own: bytes = b"") -> bytes:
    """The key of the hashes in a folder; where there is none it is made, or is `own`, which has hashed before. Who has it can
    tell whether a session was a certain one."""
    path = folder / _KEY_FILE
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        found = path.read_bytes()
        if len(found) == _KEY_BYTES:
            return found
        # Another process is about to write it, or was killed before it did: this one's hashes are its own.
        return own or secrets.token_bytes(_KEY_BYTES)
    made = own or secrets.token_bytes(_KEY_BYTES)
    try:
        os.write(file, made)
    except OSError:
        path.unlink(missing_ok=True)  # Else it would be the key of nobody for ever.
        raise
    finally:
        os.close(file)
    return made


def _identity(file: int) -> tuple[int, ...]:
    """Which file it is, and as of when: a number of a file may be given again."""
    found = os.fstat(file)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _unused(path: Path) -> bool:
    """Whether nobody writes this file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True


__all__ = ["Head", "Row", "TraceFile", "key_of"]
