"""What must survive a restart: one SQLite file in the data folder, opened by every worker.

Synchronous and small, for the admin path: call it from a worker thread, never while a request waits. Each write is one
transaction that is on the disk (`synchronous=FULL`) when the call returns, so what was confirmed outlives a kill -9.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sits.inner.errors import Code, SitsError
from sits.ports.own_file import own_file
from sits.ports.room import told
from sits.ports.sqlite_file import advice, enter_wal, file_version, transaction

FILE = "sits.db"
_BUSY_SECONDS = 10.0
"""How long one process waits for another one's transaction; ours take a few milliseconds."""

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE registrations (name TEXT PRIMARY KEY, body TEXT NOT NULL, made_by TEXT NOT NULL, made_at REAL NOT NULL) STRICT;
    CREATE TABLE stored_keys (name TEXT PRIMARY KEY, body TEXT NOT NULL, made_by TEXT NOT NULL, made_at REAL NOT NULL) STRICT;
    """,
)
"""Each takes the file from version N (its place) to N + 1. Released ones never change; statements end with a semicolon."""


class Database:
    """An open data folder. May be shared by the threads of a process, and the file by processes; not across a fork."""

    def __init__(self, folder: Path) -> None:
        """Open `folder/sits.db`, made when missing (folder 0700, file 0600) and brought to the current version.

        Raises:
            SitsError: `state_unavailable`, the message says what is wrong with which file and what to do.
        """
        self.path = folder / FILE
        self._lock = threading.RLock()
        with self._told():
            own_file(self.path)
            # check_same_thread: worker threads take turns under the lock.
            self._connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            with self._told():
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the file. Safe to repeat; nothing else may be called after it."""
        with self._lock:
            self._connection.close()

    def changes(self) -> tuple[int, int]:
        """A token that differs from an earlier one when anything was written since, by this process or another. 4 us."""
        with self._told():
            row = self._connection.execute("PRAGMA data_version").fetchone()
            return row[0], self._connection.total_changes

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self._told():
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One durable transaction: all of the block, or nothing of it when it raises."""
        with self._told(), transaction(self._connection):
            yield self._connection

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Under the lock, with the errors of SQLite and the system in words of ours."""
        with self._lock:
            try:
                yield
            except (sqlite3.ProgrammingError, sqlite3.IntegrityError) as error:
                raise SitsError(Code.INTERNAL, f"{self.path}: {error}") from error
            except sqlite3.Error as error:
                name = getattr(error, "sqlite_errorname", type(error).__name__)
                raise SitsError(Code.STATE_UNAVAILABLE, f"{self.path}: {error} ({name}); {advice(name)}") from error
            except OSError as error:
                raise told(error, self.path) from error

    def _prepare(self) -> None:
        self._connection.execute("PRAGMA foreign_keys = ON")
        enter_wal(self._connection, _BUSY_SECONDS)
        self._connection.execute("PRAGMA synchronous = FULL")
        if file_version(self._connection) == len(MIGRATIONS):
            return
        with self.writing():
            # Asked again under the lock: another worker may have just done it.
            version = file_version(self._connection)
            if version > len(MIGRATIONS):
                message = f"{self.path} has version {version}, this program knows {len(MIGRATIONS)}: use a newer sits"
                raise SitsError(Code.STATE_UNAVAILABLE, message)
            for number, script in enumerate(MIGRATIONS[version:], version + 1):
                for statement in script.split(";"):
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA user_version = {number}")
