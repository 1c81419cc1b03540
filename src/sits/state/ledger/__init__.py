"""The ledger: what every attempt used and cost, append-only, crash-safe, written off the hot path.

    table = open_table(data, settings.ledger)        # SQLite in the data folder, or PostgreSQL
    ledger = Ledger(data, table); ledger.start()
    ledger.write(Entry(...))                         # before the end of the answer is handed over
    await asyncio.to_thread(ledger.close)

A gateway whose other state is in Redis keeps its ledger per machine, in SQLite: Redis is no place for books. To have the
books of several machines in one place, give an address of PostgreSQL.
"""

from __future__ import annotations

from pathlib import Path

from sits.inner.errors import Code, SitsError
from sits.state.ledger.entry import Entry
from sits.state.ledger.ledger import Figures, Ledger
from sits.state.ledger.price import Price, price_of
from sits.state.ledger.table import LedgerTable, Query

__all__ = ["Entry", "Figures", "Ledger", "LedgerTable", "Price", "Query", "open_table", "price_of"]


def open_table(data: Path, address: str = "sqlite") -> LedgerTable:
    """The table that `address` names: `sqlite`, in the data folder, or `postgresql://user@host/database`.

    Raises:
        SitsError: `invalid_request`, no such kind of table; `unsupported`, its driver is not installed; `state_unavailable`,
            the file cannot be used. A server that is away is no error here: the journal waits for it.
    """
    if address == "sqlite":
        from sits.state.ledger.sqlite_table import SqliteTable

        return SqliteTable(data)
    if address.startswith(("postgresql://", "postgres://")):
        from sits.state.ledger.postgres_table import PostgresTable

        return PostgresTable(address)
    raise SitsError(Code.INVALID_REQUEST, f"{address.partition(':')[0]!r} is no kind of ledger: sqlite, or postgresql://...")
