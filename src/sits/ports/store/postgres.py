"""The store on PostgreSQL 11 or later: every call is one statement, so one transaction and one round trip.

What outlives a crash of the server is the server's `synchronous_commit`: on (its default) loses nothing that was answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from sits.inner.errors import Code, SitsError
from sits.ports.server_address import shown
from sits.ports.store import limits
from sits.ports.store.base import LARGEST_PAGE, Add, Added, Change, Entry, Put
from sits.ports.store.links import Links
from sits.ports.store.opening import Opening, parts, wrong_address
from sits.ports.store.postgres_layout import LAYOUT, statements

CONSISTENCY = {
    "get": "linearizable: by the one server that takes writes",
    "get_many": "all keys at one moment (one statement)",
    "commit": "all or nothing (one statement), linearizable; every commit has a higher version",
    "scan": "a page is one moment; what is there all the while is in exactly one page",
    "add": "all counters or none (one statement), exact over all gateways",
    "durability": "the server's synchronous_commit: on, its default, loses nothing that was answered",
    "outage": "calls raise state_unavailable within the timeout, the first one after it works; a fail-over loses nothing where "
    "the replica is synchronous",
}

_SIZE = 10
"""Connections; PostgreSQL has a process for each, and 100 of them unless told otherwise."""
_WANTED = "postgresql://[user:password@]host:port/database"
_ELSEWHERE = ("08", "57P", "25006")
"""SQLSTATEs after which this server is not the one to talk to: lost, shutting down or starting, read-only after a fail-over."""
_NOT_MADE = (asyncpg.UndefinedTableError, asyncpg.UndefinedFunctionError, asyncpg.InvalidSchemaNameError)


class _Dialer:
    """How to have a connection to PostgreSQL, with our tables behind it."""

    def __init__(self, opening: Opening, sql: dict[str, str], what: str) -> None:
        self._opening = opening
        self._sql = sql
        self._what = what
        self._prepared = False

    async def dial(self) -> asyncpg.Connection:
        # The server gives up when we do: a call that was abandoned must not hold a lock for longer.
        patience = {"statement_timeout": str(max(1, round(self._opening.timeout * 1000)))}
        link = await asyncpg.connect(
            self._opening.address,
            server_settings={"application_name": "sits", "default_transaction_isolation": "read committed", **patience},
        )
        try:
            if not self._prepared:
                await self._prepare(link)
        except BaseException:
            link.terminate()
            raise
        return link

    async def is_open(self, link: asyncpg.Connection) -> bool:
        return not link.is_closed()

    def hang_up(self, link: asyncpg.Connection) -> None:
        link.terminate()

    def explain(self, error: BaseException) -> tuple[str, bool] | None:
        if isinstance(error, _NOT_MADE):
            self._prepared = False  # the database was put back to before our time: the next connection makes the tables again
            return str(error), False
        if isinstance(error, asyncpg.PostgresError):
            return str(error), not (error.sqlstate or "").startswith(_ELSEWHERE)
        if isinstance(error, (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, EOFError)):
            return str(error) or type(error).__name__, False
        return None

    async def _prepare(self, link: asyncpg.Connection) -> None:
        try:
            version = await link.fetchval(self._sql["version"])
        except _NOT_MADE:
            version = None
        if version is None:
            await link.execute(self._sql["make"])
        elif version > LAYOUT:
            message = f"{self._what}: its tables were made by a newer sits (layout {version}, this one knows {LAYOUT})"
            raise SitsError(Code.STATE_UNAVAILABLE, message)
        self._prepared = True


class PostgresStore:
    """A store in a schema of a PostgreSQL database, made by the first call. The namespace is the name of the schema."""

    name = "postgresql"

    def __init__(self, opening: Opening) -> None:
        what = f"store postgresql at {shown(opening.address)}"
        self._sql = statements(opening.namespace)
        self._links = Links(_Dialer(opening, self._sql, what), what=what, size=_SIZE, seconds=opening.timeout)
        self._wall = opening.wall

    async def get(self, key: str) -> Entry | None:
        return (await self.get_many([key]))[0]

    async def get_many(self, keys: Sequence[str]) -> list[Entry | None]:
        names = limits.encoded_keys(keys)
        if not names:
            return []
        rows = await self._rows("get", self._now(), names, repeatable=True)
        found = {row[0]: row for row in rows}
        return [_entry(found[name]) if name in found else None for name in names]

    async def commit(self, changes: Sequence[Change]) -> int:
        names = limits.check_changes(changes)
        if not changes:
            newest: int = (await self._rows("newest", repeatable=True))[0][0]
            return newest
        values = [change.value if isinstance(change, Put) else None for change in changes]
        ttls = [change.ttl if isinstance(change, Put) else None for change in changes]
        expects = [change.expect for change in changes]
        rows = await self._rows("commit", self._now(), names, values, ttls, expects, repeatable=False)
        version, refused, found = rows[0]
        if refused is not None:
            change = changes[refused]
            raise limits.conflict(change.key, change.expect or 0, found)
        return int(version)

    async def scan(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[Entry]:
        start, end = limits.bounds(prefix, after)
        most = limits.check_limit(limit)
        rows = await self._rows("scan", self._now(), start, end, most, LARGEST_PAGE, repeatable=True)
        return [_entry(row) for row in rows]

    async def add(self, adds: Sequence[Add]) -> Added:
        names = limits.check_adds(adds)
        if not adds:
            return Added(())
        amounts = [add.amount for add in adds]
        ceilings = [limits.ceiling(add) for add in adds]
        ttls = [add.ttl for add in adds]
        rows = await self._rows("add", self._now(), names, amounts, ceilings, ttls, repeatable=False)
        totals, refused = rows[0]
        return Added(tuple(totals), refused)

    async def aclose(self) -> None:
        self._links.close()

    def _now(self) -> float | None:
        return None if self._wall is None else self._wall()

    async def _rows(self, statement: str, *values: Any, repeatable: bool) -> list[Any]:
        async def fetch(link: asyncpg.Connection) -> list[Any]:
            rows: list[Any] = await link.fetch(self._sql[statement], *values)
            return rows

        return await self._links.call(fetch, repeatable=repeatable)


def _entry(row: Any) -> Entry:
    return Entry(row[0].decode(), row[1], row[2], row[3])


async def open_postgres(opening: Opening) -> PostgresStore:
    """A store in the database that the address names; nothing is sent yet.

    Raises:
        SitsError: `invalid_request`, the address is not one of a PostgreSQL database.
    """
    split = parts(opening, _WANTED)
    if len(split.path) < 2 or "/" in split.path[1:]:
        raise wrong_address(opening.address, _WANTED)
    return PostgresStore(opening)
