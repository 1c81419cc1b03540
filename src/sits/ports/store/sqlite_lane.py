"""One thread that owns one connection to a SQLite file: reads as they come, writes in groups that share one fsync.

Group commit (DeWitt et al., "Implementation techniques for main memory database systems", 1984): while one transaction is being
synced to the disk, the writes that arrive wait together and are the next transaction. Nobody is answered before its group is on
the disk, so a caller that has an answer has lost nothing to a kill -9 or a power cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from sits.inner.errors import Code, SitsError
from sits.ports.own_file import own_file

_T = TypeVar("_T")

_GROUP = 256
"""Writes that one transaction takes; at 32 writers a group is seldom larger than 32."""
_WAITING = 10_000
"""Calls that may wait for the thread."""
_AGAIN_SECONDS = 0.0005
"""How long to wait before asking again for a lock that another process has. SQLite's own busy handler sleeps up to 100 ms."""

SCHEMA = 1
_MAKE = """
CREATE TABLE entries (key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, expires REAL) STRICT;
CREATE INDEX entries_expires ON entries (expires) WHERE expires IS NOT NULL;
CREATE TABLE counters (key BLOB PRIMARY KEY, total INTEGER NOT NULL, expires REAL) STRICT;
CREATE INDEX counters_expires ON counters (expires) WHERE expires IS NOT NULL;
CREATE TABLE newest (version INTEGER NOT NULL) STRICT;
INSERT INTO newest VALUES (0);
"""


class _Job(Generic[_T]):
    """One call, on its way to the thread and back."""

    __slots__ = ("dropped", "error", "future", "result", "work", "writes")

    def __init__(self, work: Callable[[sqlite3.Connection], _T], *, writes: bool, future: asyncio.Future[_T]) -> None:
        self.work = work
        self.writes = writes
        self.future = future
        self.dropped = False
        self.result: Any = None
        self.error: SitsError | None = None

    def do(self, connection: sqlite3.Connection) -> None:
        self.error = None
        try:
            self.result = self.work(connection)
        except SitsError as error:
            self.error = error

    def deliver(self) -> None:
        """In the loop: hand the answer over, unless nobody waits any more."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class Lane:
    """The thread. Belongs to the loop that is running when it is made; ended by `aclose`."""

    def __init__(self, path: Path, *, seconds: float) -> None:
        """Start it; the file is opened, and made when missing (0600), by the first call that needs it."""
        self.path = path
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._ended = self._loop.create_future()
        self._closing = False
        self._connection: sqlite3.Connection | None = None
        threading.Thread(target=self._run, name=f"store {path.name}", daemon=True).start()

    async def read(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """What `work` returns, on the state that the last transaction left."""
        return await self._ask(work, writes=False)

    async def write(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """What `work` returns, once what it wrote is on the disk. It must raise `SitsError` before it writes, or not at all."""
        return await self._ask(work, writes=True)

    async def aclose(self) -> None:
        """Finish what waits, close the file, end the thread. Safe to repeat."""
        if not self._closing:
            self._closing = True
            self._jobs.put(None)
        await asyncio.shield(self._ended)

    async def _ask(self, work: Callable[[sqlite3.Connection], _T], *, writes: bool) -> _T:
        if self._closing:
            raise self._unavailable("it is closed")
        if self._jobs.qsize() >= _WAITING:
            raise self._unavailable(f"{_WAITING} calls wait for it")
        job = _Job(work, writes=writes, future=self._loop.create_future())
        self._jobs.put(job)
        try:
            async with asyncio.timeout(self._seconds):
                answer: _T = await job.future
                return answer
        except TimeoutError:
            raise self._unavailable(f"no answer within {self._seconds:g} s") from None
        finally:
            job.dropped = True  # what has not begun is not begun any more

    # From here on: in the thread.

    def _run(self) -> None:
        ending = False
        while not ending:
            jobs, ending = self._waiting()
            self._serve([job for job in jobs if not job.writes], self._read)
            self._serve([job for job in jobs if job.writes], self._write)
        if self._connection is not None:
            self._connection.close()
        self._in_loop(self._end_told)

    def _end_told(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _waiting(self) -> tuple[list[_Job[Any]], bool]:
        """All that waits, at least one call; and whether that was all for ever."""
        job = self._jobs.get()
        jobs: list[_Job[Any]] = []
        while job is not None:
            if not job.dropped:
                jobs.append(job)
            if len(jobs) >= _GROUP:
                return jobs, False
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return jobs, False
        return jobs, True

    def _serve(self, jobs: list[_Job[Any]], how: Callable[[sqlite3.Connection, list[_Job[Any]]], None]) -> None:
        if not jobs:
            return
        try:
            how(self._open(), jobs)
        except Exception as error:  # whatever it was: the callers must hear of it, and the thread must go on
            for job in jobs:
                job.error = self._told(error)
        self._in_loop(partial(_deliver, jobs))

    def _read(self, connection: sqlite3.Connection, jobs: list[_Job[Any]]) -> None:
        def read() -> None:
            connection.execute("BEGIN")
            try:
                for job in jobs:
                    job.do(connection)
            finally:
                _end(connection, "ROLLBACK")

        self._patiently(read)

    def _write(self, connection: sqlite3.Connection, jobs: list[_Job[Any]]) -> None:
        _end(connection, "ROLLBACK")  # One that could not even be rolled back would stand in the way for ever.
        self._patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
        try:
            for job in jobs:
                job.do(connection)
            connection.execute("COMMIT")
        except BaseException:
            _end(connection, "ROLLBACK")
            raise

    def _patiently(self, do: Callable[[], object]) -> None:
        """Try again while another process has the lock, as long as a call may take."""
        give_up = time.monotonic() + self._seconds
        while True:
            try:
                do()
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                    raise
                time.sleep(_AGAIN_SECONDS)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            own_file(self.path)
            connection = sqlite3.connect(self.path, timeout=0.0, isolation_level=None)
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        self._patiently(lambda: connection.execute("PRAGMA journal_mode = WAL"))
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        found: list[int] = []
        self._patiently(lambda: found.append(_version(connection)))  # the first to read may find another one recovering the log
        if found == [SCHEMA]:
            return
        self._patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
        try:
            # Asked again under the lock: another process may have just done it.
            version = _version(connection)
            if version > SCHEMA:
                raise sqlite3.DatabaseError(f"made by a newer sits (version {version}, this one knows {SCHEMA})")
            if version < SCHEMA:
                for statement in _MAKE.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {SCHEMA}")
            connection.execute("COMMIT")
        except BaseException:
            _end(connection, "ROLLBACK")
            raise

    def _in_loop(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(call)

    def _told(self, error: Exception) -> SitsError:
        known = isinstance(error, (sqlite3.Error, OSError))
        told = self._unavailable(_reason(error)) if known else SitsError(Code.INTERNAL, f"store sqlite: {error!r}")
        told.__cause__ = error
        return told

    def _unavailable(self, why: str) -> SitsError:
        return SitsError(Code.STATE_UNAVAILABLE, f"store sqlite at {self.path}: {why}")


def _deliver(jobs: list[_Job[Any]]) -> None:
    for job in jobs:
        job.deliver()


def _end(connection: sqlite3.Connection, how: str) -> None:
    if connection.in_transaction:
        connection.execute(how)


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    if name.startswith("SQLITE_BUSY"):
        return f"another process holds it ({name})"
    return f"{error} ({name})"
