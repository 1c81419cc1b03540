"""The ledger in a SQLite file of the data folder, for all workers of a machine."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sits.inner.errors import Code, SitsError
from sits.state.ledger.entry import COLUMNS, Row
from sits.state.ledger.sql import ENTRIES, INDEXES, SEGMENTS, SqlTable, table_columns
from sits.state.ledger.table import Progress

FILE = "ledger.db"
BUSY_SECONDS = 5.0
"""How long a transaction waits for another worker's; they take some milliseconds."""
PART = 64
BREATH_SECONDS = 0.0001
"""After each part of a batch the interpreter is let go of: one that is only ever given up for the microseconds of a step is taken
again before the thread that serves requests has woken up. Its wake-ups at p99 during a drain: 2 ms without this, 1 ms with it."""
_INSERT = f"INSERT INTO {ENTRIES} VALUES ({', '.join('?' * len(COLUMNS))}) ON CONFLICT DO NOTHING"  # noqa: S608
_NOTE = (
    f"INSERT INTO {SEGMENTS} VALUES (?, ?, ?) ON CONFLICT (segment) DO UPDATE "  # noqa: S608
    "SET records = max(records, excluded.records), finish = max(finish, excluded.finish)"
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # Rows lie in the order of their identity, which is the order of writing: adding is appending.
        f"CREATE TABLE {ENTRIES} ({table_columns('TEXT', 'INTEGER', 'REAL')}, PRIMARY KEY (segment, position))"
        " STRICT, WITHOUT ROWID",
        f"CREATE TABLE {SEGMENTS} (segment TEXT PRIMARY KEY, records INTEGER NOT NULL, finish INTEGER NOT NULL)"
        " STRICT, WITHOUT ROWID",
        *INDEXES,
    ),
)
"""Each takes the file from version N (its place) to N + 1. Released ones never change."""


class SqliteTable(SqlTable):
    """An open `ledger.db`. May be used by several threads, which take turns; not across a fork."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        """Open `folder/ledger.db`, made when missing (file 0600) and brought to the current version.

        Raises:
            SitsError: `state_unavailable`, the message says what is wrong with which file.
        """
        self.path = folder / FILE
        self._lock = threading.Lock()
        with self._told():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            with self._told():
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def rows(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._told():
            return self._connection.execute(sql, values).fetchall()

    def add(self, rows: Sequence[Row], progress: Progress) -> int:
        with self._told(), self._writing():
            new = 0
            for start in range(0, len(rows), PART):
                new += self._connection.executemany(_INSERT, rows[start : start + PART]).rowcount
                time.sleep(BREATH_SECONDS)
            self._connection.execute(_NOTE, (progress.segment, progress.records, progress.end))
        return new

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _prepare(self) -> None:
        self._enter_wal()
        # A segment is deleted once its rows are here: they must be on the disk by then.
        self._connection.execute("PRAGMA synchronous = FULL")
        if self._version() == len(MIGRATIONS):
            return
        with self._writing():
            version = self._version()
            if version > len(MIGRATIONS):
                message = f"{self.path} has version {version}, this program knows {len(MIGRATIONS)}: use a newer sits"
                raise SitsError(Code.STATE_UNAVAILABLE, message)
            for number, statements in enumerate(MIGRATIONS[version:], version + 1):
                for statement in statements:
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA user_version = {number}")

    def _version(self) -> int:
        version: int = self._connection.execute("PRAGMA user_version").fetchone()[0]
        return version

    def _enter_wal(self) -> None:
        """SQLite does not wait for others on this one switch, so workers that open a new file together try again."""
        give_up = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                    raise
                time.sleep(0.005)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    @contextmanager
    def _told(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                name = getattr(error, "sqlite_errorname", type(error).__name__)
                raise SitsError(Code.STATE_UNAVAILABLE, f"the ledger {self.path}: {error} ({name})") from error
            except OSError as error:
                raise SitsError(Code.STATE_UNAVAILABLE, f"the ledger {error.filename or self.path}: {error.strerror}") from error
