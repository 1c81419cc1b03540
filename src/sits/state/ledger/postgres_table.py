"""The ledger in PostgreSQL, shared by machines."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

from sits.inner.errors import Code, SitsError
from sits.state.ledger.entry import COLUMNS, REALS, TEXTS, Row
from sits.state.ledger.sql import ENTRIES, INDEXES, SEGMENTS, SqlTable, table_columns
from sits.state.ledger.table import Progress

TIMEOUT_SECONDS = 5.0
"""The longest that any call waits for the server."""
VERSION = 1
_LOCK = 0x51B5_1ED6
"""Taken while the schema is made, so that several machines may start at once; any number that nobody else uses."""
_TEXT = 'TEXT COLLATE "C"'
_SCHEMA = (
    f"CREATE TABLE IF NOT EXISTS {ENTRIES} ({table_columns(_TEXT, 'BIGINT', 'DOUBLE PRECISION')},"
    " PRIMARY KEY (segment, position))",
    f"CREATE TABLE IF NOT EXISTS {SEGMENTS} (segment {_TEXT} PRIMARY KEY, records BIGINT NOT NULL, finish BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS ledger_version (version BIGINT NOT NULL)",
    *INDEXES,
)
_ARRAYS = ", ".join(
    f"${number}::{'text' if name in TEXTS else 'float8' if name in REALS else 'int8'}[]" for number, name in enumerate(COLUMNS, 1)
)
_INSERT = f"INSERT INTO {ENTRIES} SELECT * FROM unnest({_ARRAYS}) ON CONFLICT DO NOTHING"  # noqa: S608
_NOTE = (
    f"INSERT INTO {SEGMENTS} AS s VALUES ($1, $2, $3) ON CONFLICT (segment) DO UPDATE "  # noqa: S608
    "SET records = greatest(s.records, excluded.records), finish = greatest(s.finish, excluded.finish)"
)
T = TypeVar("T")


class PostgresTable(SqlTable):
    """One connection, on a loop of its own that runs while a call waits. May be used by several threads, which take turns,
    though not by one whose own loop is running."""

    name = "postgresql"
    mark = "$"

    def __init__(self, address: str) -> None:
        """The tables in the database at `address` (`postgresql://...`), made with the first call when they are missing.

        Raises:
            SitsError: `unsupported`, the driver is not installed.
        """
        self._asyncpg = _driver()
        self._address = address
        self._lock = threading.Lock()
        self._runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        self._connection: Any = None
        self._away = (self._asyncpg.PostgresError, self._asyncpg.InterfaceError, OSError, TimeoutError)

    def rows(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        async def ask(connection: Any) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in await connection.fetch(sql, *values)]

        return self._run(ask)

    def add(self, rows: Sequence[Row], progress: Progress) -> int:
        async def insert(connection: Any) -> int:
            async with connection.transaction():
                done = "INSERT 0 0"
                if rows:
                    done = await connection.execute(_INSERT, *map(list, zip(*rows, strict=True)))
                await connection.execute(_NOTE, progress.segment, progress.records, progress.end)
            return int(done.rpartition(" ")[2])

        return self._run(insert)

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                with contextlib.suppress(*self._away):  # It is going away: so are we.
                    self._runner.run(connection.close(timeout=1.0))
            self._runner.close()

    def _run(self, work: Callable[[Any], Awaitable[T]]) -> T:
        with self._lock:
            try:
                return self._runner.run(self._bounded(work))
            except self._away as error:
                self._drop()
                why = str(error) or type(error).__name__
                raise SitsError(Code.STATE_UNAVAILABLE, f"the ledger in PostgreSQL: {why}") from error

    async def _bounded(self, work: Callable[[Any], Awaitable[T]]) -> T:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._asyncpg.connect(self._address)
                await self._prepare(self._connection)
            return await work(self._connection)

    async def _prepare(self, connection: Any) -> None:
        async with connection.transaction():
            await connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
            for statement in _SCHEMA:
                await connection.execute(statement)
            version = await connection.fetchval("SELECT max(version) FROM ledger_version")
            if version is None:
                await connection.execute(f"INSERT INTO ledger_version VALUES ({VERSION})")  # noqa: S608
            elif version > VERSION:
                message = f"the ledger has version {version}, this program knows {VERSION}: use a newer sits"
                raise SitsError(Code.STATE_UNAVAILABLE, message)

    def _drop(self) -> None:
        """Forget the connection: after an error its state is not known."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()


def _driver() -> ModuleType:
    try:
        import asyncpg
    except ImportError as error:
        message = "a ledger in PostgreSQL needs a driver: pip install 'sits[distributed]'"
        raise SitsError(Code.UNSUPPORTED, message) from error
    module: ModuleType = asyncpg
    return module
