"""The items of the embedded index on disk: one SQLite file that every process of the machine reads and writes.

Every write gives its entry a new sequence number, higher than all before; a deletion is an entry without a vector. So a process
that has seen the entries up to one number asks for those above it, and is where the file is. Deletions are forgotten when there
are many: then `forgotten` is the number up to which that happened, and who has seen less begins anew.

Each commit is in the file when it returns and outlives the process; `flush` makes it outlive the machine.
"""

from __future__ import annotations

import pathlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from sits.inner.errors import Code, SitsError
from sits.ports.own_file import own_file
from sits.ports.room import told
from sits.ports.sqlite_file import advice, enter_wal, file_version, one_moment, transaction
from sits.ports.vectors import rules
from sits.ports.vectors.base import Vector

FILE = "items.db"
_VERSION = 1
_SCHEMA = """
    CREATE TABLE collections (name TEXT PRIMARY KEY, dimension INTEGER NOT NULL, held INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE partitions (
        number INTEGER PRIMARY KEY AUTOINCREMENT, collection TEXT NOT NULL, name TEXT NOT NULL,
        held INTEGER NOT NULL, dead INTEGER NOT NULL, forgotten INTEGER NOT NULL, UNIQUE (collection, name)
    ) STRICT;
    CREATE TABLE entries (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, partition INTEGER NOT NULL, id TEXT NOT NULL, vector BLOB, fields BLOB,
        UNIQUE (partition, id)
    ) STRICT;
    CREATE INDEX entries_in_order ON entries (partition, seq);
"""
_DEAD_KEPT = 1000
"""Deletions of a partition that are always remembered; beyond them as many as it has items."""

Entry = tuple[int, str, bytes | None, bytes | None]
"""Sequence number, id, and vector and fields of an item, or neither of one that was deleted."""


class Head(NamedTuple):
    """A partition in the file. `number` is never used again, None when there is nothing under this name."""

    dimension: int
    number: int | None = None
    held: int = 0
    forgotten: int = 0


class Rows:
    """One connection. For one thread at a time; not across a fork."""

    def __init__(self, folder: pathlib.Path, *, wait: float) -> None:
        """Open the file, made when missing. `wait` is how long a call may wait for other processes, in seconds.

        Raises:
            SitsError: `state_unavailable`, the message says what is wrong with which file and what to do.
        """
        self.path = folder / FILE
        self._wait = wait
        with self._told():
            if not folder.exists():
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            own_file(self.path)
            self._connection = sqlite3.connect(self.path, timeout=wait, isolation_level=None, check_same_thread=False)
        try:
            with self._told():
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Safe to repeat."""
        self._connection.close()

    # Reading

    def version(self) -> int:
        """Another number whenever another connection has written. 2 us."""
        with self._told():
            version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
            return version

    def news(self, collection: str, partition: str, number: int | None, seen: int, most: int) -> tuple[Head, list[Entry]]:
        """The head of a partition, and its first `most` entries after `seen`, both of one moment.

        From the beginning, when it is not `number` any more or deletions after `seen` are forgotten.
        """
        with self._told(), one_moment(self._connection):
            head = self._head(collection, partition)
            if head.number is None:
                return head, []
            after = seen if head.number == number and seen >= head.forgotten else 0
            query = "SELECT seq, id, vector, fields FROM entries WHERE partition = ? AND seq > ? ORDER BY seq LIMIT ?"
            return head, self._connection.execute(query, (head.number, after, most)).fetchall()

    def get(self, collection: str, partition: str, ids: Sequence[str]) -> list[tuple[bytes, bytes] | None]:
        """Vector and fields of each id."""
        with self._told(), one_moment(self._connection):
            number = self._head(collection, partition).number
            query = "SELECT vector, fields FROM entries WHERE partition = ? AND id = ? AND vector IS NOT NULL"
            return [self._connection.execute(query, (number, key)).fetchone() for key in ids]

    def ids(self, collection: str, partition: str, after: str, limit: int) -> list[str]:
        with self._told(), one_moment(self._connection):
            number = self._head(collection, partition).number
            query = "SELECT id FROM entries WHERE partition = ? AND id > ? AND vector IS NOT NULL ORDER BY id LIMIT ?"
            return [key for (key,) in self._connection.execute(query, (number, after, limit))]

    def partitions(self, collection: str) -> list[str]:
        with self._told(), one_moment(self._connection):
            self._dimension(collection)
            query = "SELECT name FROM partitions WHERE collection = ? ORDER BY name"
            return [name for (name,) in self._connection.execute(query, (collection,))]

    def count(self, collection: str, partition: str) -> int:
        with self._told(), one_moment(self._connection):
            return self._head(collection, partition).held

    def dimension(self, collection: str) -> int:
        with self._told():
            return self._dimension(collection)

    def numbers(self) -> set[int]:
        """The numbers of all partitions."""
        with self._told():
            return {number for (number,) in self._connection.execute("SELECT number FROM partitions")}

    # Writing

    def create(self, collection: str, dimension: int) -> None:
        with self._told(), transaction(self._connection):
            self._connection.execute("INSERT OR IGNORE INTO collections VALUES (?, ?, 0)", (collection, dimension))
            has = self._dimension(collection)
            if has != dimension:
                raise rules.other_dimension(collection, has, dimension)

    def upsert(self, collection: str, partition: str, items: Sequence[tuple[str, Vector, bytes]], most: int) -> None:
        """Put items in, all or none."""
        with self._told(), transaction(self._connection):
            self._dimension(collection)
            if not items:
                return
            make = "INSERT OR IGNORE INTO partitions (collection, name, held, dead, forgotten) VALUES (?, ?, 0, 0, 0)"
            self._connection.execute(make, (collection, partition))
            number = self._head(collection, partition).number
            assert number is not None
            held = dead = 0
            for key, vector, fields in items:
                there = self._there(number, key)
                held += there is not True
                dead -= there is False
                put = "INSERT OR REPLACE INTO entries (partition, id, vector, fields) VALUES (?, ?, ?, ?)"
                self._connection.execute(put, (number, key, vector.tobytes(), fields))
            if self._settle(collection, number, held, dead) > most and held:
                raise rules.too_many(collection, most)

    def delete(self, collection: str, partition: str, ids: Sequence[str]) -> None:
        with self._told(), transaction(self._connection):
            number = self._head(collection, partition).number
            if number is None:
                return
            gone = 0
            for key in ids:
                if self._there(number, key):
                    gone += 1
                    self._connection.execute("INSERT OR REPLACE INTO entries (partition, id) VALUES (?, ?)", (number, key))
            if gone:
                self._settle(collection, number, -gone, gone)

    def drop(self, collection: str, partition: str | None) -> list[int]:
        """Take away a partition or all; returns the numbers that are no more."""
        with self._told(), transaction(self._connection):
            query = "SELECT number, held FROM partitions WHERE collection = ? AND (name = ? OR ?)"
            found = self._connection.execute(query, (collection, partition, partition is None)).fetchall()
            for number, held in found:
                self._forget(collection, number, held)
            if partition is None:
                self._connection.execute("DELETE FROM collections WHERE name = ?", (collection,))
            return [number for number, _ in found]

    def flush(self) -> None:
        """Bring what was committed to the disk. Others may write meanwhile."""
        with self._told():
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    # Below

    def _dimension(self, collection: str) -> int:
        row = self._connection.execute("SELECT dimension FROM collections WHERE name = ?", (collection,)).fetchone()
        if row is None:
            raise rules.no_collection(collection)
        dimension: int = row[0]
        return dimension

    def _head(self, collection: str, partition: str) -> Head:
        dimension = self._dimension(collection)
        query = "SELECT number, held, forgotten FROM partitions WHERE collection = ? AND name = ?"
        row = self._connection.execute(query, (collection, partition)).fetchone()
        return Head(dimension) if row is None else Head(dimension, *row)

    def _there(self, number: int, key: str) -> bool | None:
        """True for an item, False for one that was deleted, None for nothing."""
        query = "SELECT vector IS NOT NULL FROM entries WHERE partition = ? AND id = ?"
        row = self._connection.execute(query, (number, key)).fetchone()
        return None if row is None else bool(row[0])

    def _settle(self, collection: str, number: int, held: int, dead: int) -> int:
        """Bring the counts up to date, forget what may be; returns the items of the collection."""
        update = "UPDATE partitions SET held = held + ?, dead = dead + ? WHERE number = ? RETURNING held, dead"
        now, buried = self._connection.execute(update, (held, dead, number)).fetchall()[0]
        update = "UPDATE collections SET held = held + ? WHERE name = ? RETURNING held"
        total: int = self._connection.execute(update, (held, collection)).fetchall()[0][0]
        if now == 0:
            self._forget(collection, number, 0)
        elif buried > max(_DEAD_KEPT, now):
            newest = "SELECT max(seq) FROM entries WHERE partition = ? AND vector IS NULL"
            (last,) = self._connection.execute(newest, (number,)).fetchone()
            self._connection.execute("DELETE FROM entries WHERE partition = ? AND vector IS NULL", (number,))
            self._connection.execute("UPDATE partitions SET dead = 0, forgotten = ? WHERE number = ?", (last, number))
        return total

    def _forget(self, collection: str, number: int, held: int) -> None:
        """Take a partition away with all that is in it."""
        self._connection.execute("DELETE FROM entries WHERE partition = ?", (number,))
        self._connection.execute("DELETE FROM partitions WHERE number = ?", (number,))
        self._connection.execute("UPDATE collections SET held = held - ? WHERE name = ?", (held, collection))

    def _prepare(self) -> None:
        enter_wal(self._connection, self._wait)
        # NORMAL: a commit outlives the process; the log is synced when it is checkpointed.
        self._connection.execute("PRAGMA synchronous = NORMAL")
        if file_version(self._connection) == _VERSION:
            return
        with transaction(self._connection):
            version = file_version(self._connection)
            if version > _VERSION:
                message = f"{self.path} has version {version}, this program knows {_VERSION}: use a newer sits"
                raise SitsError(Code.STATE_UNAVAILABLE, message)
            if version < _VERSION:
                for statement in _SCHEMA.split(";"):
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA user_version = {_VERSION}")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """The errors of SQLite and the system in words of ours."""
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", type(error).__name__)
            raise SitsError(Code.STATE_UNAVAILABLE, f"{self.path}: {error} ({name}); {advice(name)}") from error
        except OSError as error:
            raise SitsError(Code.STATE_UNAVAILABLE, told(error, self.path).message) from error
