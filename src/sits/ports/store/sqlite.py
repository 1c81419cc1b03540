"""The embedded store: one SQLite file, shared by the processes of a machine."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from sits.ports.store import limits
from sits.ports.store.base import LARGEST_PAGE, Add, Added, Change, Delete, Entry
from sits.ports.store.opening import Opening, wrong_address
from sits.ports.store.sqlite_lane import Lane
from sits.ports.store.tally import Counter, tally

CONSISTENCY = {
    "get": "linearizable over the processes of the machine",
    "get_many": "all keys at one moment",
    "commit": "all or nothing, one writer at a time over the processes of the machine; every commit has a higher version",
    "scan": "a page is one moment; what is there all the while is in exactly one page",
    "add": "all counters or none, exact over the processes of the machine",
    "durability": "on the disk when it returns (synchronous=FULL): outlives a kill and a loss of power"
    "; the folder is on a local disk",
    "outage": "a full disk, or a file that others hold for too long: state_unavailable within the timeout",
}

FILE = "store.db"

_GET = "SELECT key, value, version, expires FROM entries WHERE key = ? AND (expires IS NULL OR expires > ?)"
_VERSION = "SELECT version FROM entries WHERE key = ? AND (expires IS NULL OR expires > ?)"
_PUT = """
INSERT INTO entries VALUES (?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version, expires = excluded.expires
"""
_SCAN = """
SELECT key, value, version, expires FROM entries
WHERE key >= ? AND key < ? AND (expires IS NULL OR expires > ?) ORDER BY key LIMIT ?
"""
_COUNTER = "SELECT total, expires FROM counters WHERE key = ? AND (expires IS NULL OR expires > ?)"
_COUNT = (
    "INSERT INTO counters VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET total = excluded.total, expires = excluded.expires"
)
_SWEEP = {
    table: f"DELETE FROM {table} WHERE key IN (SELECT key FROM {table} WHERE expires <= ? ORDER BY expires LIMIT ?)"  # noqa: S608
    for table in ("entries", "counters")
}


class SqliteStore:
    """A store in a file. What `commit` and `add` have answered is on the disk (`synchronous=FULL`)."""

    name = "sqlite"

    def __init__(self, path: Path, *, wall: Callable[[], float] = time.time, timeout: float = 2.0) -> None:
        self._lane = Lane(path, seconds=timeout)
        self._wall = wall

    async def get(self, key: str) -> Entry | None:
        name = limits.encoded(key)
        return await self._lane.read(lambda connection: _get(connection, name, self._wall()))

    async def get_many(self, keys: Sequence[str]) -> list[Entry | None]:
        names = limits.encoded_keys(keys)

        def read(connection: sqlite3.Connection) -> list[Entry | None]:
            now = self._wall()
            return [_get(connection, name, now) for name in names]

        return await self._lane.read(read)

    async def commit(self, changes: Sequence[Change]) -> int:
        names = limits.check_changes(changes)
        if not changes:
            return await self._lane.read(_newest)
        return await self._lane.write(lambda connection: _commit(connection, changes, names, self._wall()))

    async def scan(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[Entry]:
        start, end = limits.bounds(prefix, after)
        most = limits.check_limit(limit)

        def read(connection: sqlite3.Connection) -> list[Entry]:
            page, size = [], 0
            for row in connection.execute(_SCAN, (start, end, self._wall(), most)):
                page.append(_entry(row))
                size += len(row[1])
                if size >= LARGEST_PAGE:
                    break
            return page

        return await self._lane.read(read)

    async def add(self, adds: Sequence[Add]) -> Added:
        names = limits.check_adds(adds)
        return await self._lane.write(lambda connection: _add(connection, adds, names, self._wall()))

    async def aclose(self) -> None:
        await self._lane.aclose()


def _get(connection: sqlite3.Connection, name: bytes, now: float) -> Entry | None:
    row = connection.execute(_GET, (name, now)).fetchone()
    return None if row is None else _entry(row)


def _entry(row: tuple[Any, ...]) -> Entry:
    return Entry(row[0].decode(), row[1], row[2], row[3])


def _newest(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("SELECT version FROM newest").fetchone()[0]
    return version


def _commit(connection: sqlite3.Connection, changes: Sequence[Change], names: Sequence[bytes], now: float) -> int:
    for change, name in zip(changes, names, strict=True):
        if change.expect is None:
            continue
        row = connection.execute(_VERSION, (name, now)).fetchone()
        found = 0 if row is None else row[0]
        if found != change.expect:
            raise limits.conflict(change.key, change.expect, found)
    version = _newest(connection) + 1
    connection.execute("UPDATE newest SET version = ?", (version,))
    for change, name in zip(changes, names, strict=True):
        if isinstance(change, Delete):
            connection.execute("DELETE FROM entries WHERE key = ?", (name,))
        else:
            connection.execute(_PUT, (name, change.value, version, None if change.ttl is None else now + change.ttl))
    connection.execute(_SWEEP["entries"], (now, 16 + 2 * len(changes)))
    return version


def _add(connection: sqlite3.Connection, adds: Sequence[Add], names: Sequence[bytes], now: float) -> Added:
    rows = [connection.execute(_COUNTER, (name, now)).fetchone() for name in names]
    found = [None if row is None else Counter(*row) for row in rows]
    answer, after = tally(adds, found, now)
    for name, before, counter in zip(names, found, after, strict=True):
        if counter == before:
            continue
        if counter is None:
            connection.execute("DELETE FROM counters WHERE key = ?", (name,))
        else:
            connection.execute(_COUNT, (name, counter.total, counter.expires))
    connection.execute(_SWEEP["counters"], (now, 16 + 2 * len(adds)))
    return answer


async def open_sqlite(opening: Opening) -> SqliteStore:
    """A store in `store.db` of the data folder, or in the file that the address names.

    Raises:
        SitsError: `invalid_request`, the address has more than a path.
    """
    _, _, place = opening.address.partition("://")
    if (place and not place.startswith("/")) or place.endswith("/"):
        raise wrong_address(opening.address, "sqlite, or sqlite:///path/of/a/file")
    path = Path(unquote(place)) if place else opening.data / FILE
    store = SqliteStore(path, wall=opening.wall or time.time, timeout=opening.timeout)
    try:
        await store.commit(())  # a file that cannot be used is said at once: no outage of a server, it has to be mended
    except BaseException:
        await store.aclose()
        raise
    return store
