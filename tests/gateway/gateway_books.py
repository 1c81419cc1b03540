"""What a gateway of the tests wrote of money and tokens: while it runs, and after it has ended."""

from __future__ import annotations

import contextlib
import pathlib
from typing import Any

from gateway_rig import Gateway

from sits.state.ledger import open_table
from sits.state.ledger.entry import COLUMNS, Entry
from sits.state.ledger.sql import Query


def entries(gateway: Gateway) -> list[Entry]:
    """What is written to the ledger from now on."""
    ledger = gateway.node.ledger
    assert ledger is not None
    written: list[Entry] = []
    real = ledger.write

    def write(entry: Entry) -> None:
        written.append(entry)
        real(entry)

    ledger.write = write  # type: ignore[method-assign]
    return written


def booked(folder: pathlib.Path, *columns: str) -> list[tuple[Any, ...]]:
    """Those columns of all that stands in the ledger of the gateway that ran in the folder, oldest first."""
    with contextlib.closing(open_table(folder / "data")) as table:
        return [tuple(row[COLUMNS.index(name)] for name in columns) for row in table.entries(Query()).rows]
