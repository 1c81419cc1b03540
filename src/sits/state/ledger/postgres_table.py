"""The ledger in PostgreSQL, shared by machines."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

from sits.inner.errors import Code, SitsError
from sits.state.ledger.entry import COLUMNS
from sits.state.ledger.sql import ENTRIES, INDEXES, SEGMENTS, SqlTable, table_columns
from sits.state.ledger.stretch import Stretch
from sits.state.ledger.table import Progress, Repaired, fresh
from sits.state.ledger.tally import HOUR

TIMEOUT_SECONDS = 5.0
"""The longest that any call waits for the server."""
VERSION = 1
_LOCK = 0x51B5_1ED6
"""Taken while the schema is made, so that several machines may start at once; any number that nobody else uses."""
_TEXT = 'TEXT COLLATE "C"'
_SCHEMA = (
    f"CREATE TABLE IF NOT EXISTS {ENTRIES} ({table_columns(_TEXT, 'BIGINT', 'DOUBLE PRECISION')},"
    " PRIMARY KEY (segment, position))",
    f"CREATE TABLE IF NOT EXISTS {SEGMENTS} (segment {_TEXT} PRIMARY KEY, taken BIGINT NOT NULL, held BIGINT NOT NULL,"
    " finish BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS ledger_version (version BIGINT NOT NULL, forgotten BIGINT NOT NULL)",
    *INDEXES,
)
_HELD = f"SELECT taken, finish FROM {SEGMENTS} WHERE segment = $1"  # noqa: S608
_NOTE = f"UPDATE {SEGMENTS} SET taken = $2, held = held + $3, finish = $4 WHERE segment = $1"  # noqa: S608
_FORGET = (
    f"WITH gone AS (DELETE FROM {ENTRIES} WHERE (segment, position) IN "  # noqa: S608
    f"(SELECT segment, position FROM {ENTRIES} WHERE time < $1 ORDER BY time LIMIT $2) RETURNING segment), "
    "counted AS (SELECT segment, count(*) AS entries FROM gone GROUP BY segment), "
    f"noted AS (UPDATE {SEGMENTS} AS s SET held = s.held - counted.entries FROM counted WHERE s.segment = counted.segment) "
    "SELECT count(*) FROM gone"
)
_ROWS_FORGOTTEN = 64
"""How many rows go where a table of stretches lets go of one."""
T = TypeVar("T")


class PostgresTable(SqlTable):
    """One connection, on a loop of its own that runs while a call waits. May be used by several threads, which take turns,
    though not by one whose own loop is running."""

    name = "postgresql"

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

    def add(self, stretches: Sequence[Stretch]) -> Progress:
        segment = stretches[0].segment

        async def insert(connection: Any) -> Progress:
            async with connection.transaction():
                await connection.execute(f"INSERT INTO {SEGMENTS} VALUES ($1, 0, 0, 0) ON CONFLICT DO NOTHING", segment)  # noqa: S608
                held = Progress(*await connection.fetchrow(f"{_HELD} FOR UPDATE", segment))
                new = fresh(stretches, held)
                if not new:
                    return held
                rows = [row for one in new for row in one.rows()]
                await connection.copy_records_to_table(ENTRIES, records=rows, columns=COLUMNS)
                after = Progress(new[-1].number + len(new[-1].uses) - 1, new[-1].finish)
                await connection.execute(_NOTE, segment, after.records, len(rows), after.end)
                return after

        return self._run(insert)

    def progress(self, segment: str) -> Progress:
        return next((Progress(*row) for row in self.rows(_HELD, (segment,))), Progress())

    def forget(self, before: float, most: int = 64) -> bool:
        bound = round(before * 1e6) // HOUR * HOUR
        self.rows("UPDATE ledger_version SET forgotten = $1 WHERE forgotten < $1", (bound,))
        ((gone,),) = self.rows(_FORGET, (bound, most * _ROWS_FORGOTTEN))
        return bool(gone)

    def forgotten(self) -> int:
        ((moment,),) = self.rows("SELECT max(forgotten) FROM ledger_version", ())
        return int(moment)

    def astray(self) -> int:
        return 0

    def prove(self) -> None:
        """Sums are made of the entries whenever somebody asks: there is nothing that could be wrong."""

    def repair(self) -> Repaired:
        return Repaired()

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
                connection = await self._asyncpg.connect(self._address)
                try:
                    await self._prepare(connection)
                except BaseException:
                    connection.terminate()
                    raise
                self._connection = connection
            return await work(self._connection)

    async def _prepare(self, connection: Any) -> None:
        async with connection.transaction():
            await connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
            for statement in _SCHEMA:
                await connection.execute(statement)
            version = await connection.fetchval("SELECT max(version) FROM ledger_version")
            if version is None:
                await connection.execute(f"INSERT INTO ledger_version VALUES ({VERSION}, 0)")  # noqa: S608
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
