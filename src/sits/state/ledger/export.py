"""The ledger as a file for other programs: CSV, JSON lines or Parquet, page by page, never all of it in memory."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, BinaryIO, Literal, get_args

import msgspec

from sits.inner.errors import Code, SitsError
from sits.state.ledger.entry import COLUMNS, FLAGS, REALS, TEXTS, Row
from sits.state.ledger.table import LedgerTable, Query

Format = Literal["csv", "jsonl", "parquet"]
FORMATS: tuple[str, ...] = get_args(Format)
PAGE = 5000
"""Rows asked for at once; also the size of a Parquet row group."""
FIELDS: tuple[str, ...] = tuple({"cost": "cost_nano_usd", "time": "time_us"}.get(name, name) for name in COLUMNS)
"""What the columns are called outside, with the unit where it could be misread."""
_FLAGS = tuple(COLUMNS.index(name) for name in sorted(FLAGS))


def export(table: LedgerTable, query: Query, format: Format, out: BinaryIO, *, page: int = PAGE) -> int:
    """Write the entries meant to `out`, oldest first; returns how many. `out` stays open.

    Raises:
        SitsError: `state_unavailable`; `unsupported`, Parquet needs a package that is not installed.
    """
    return _WRITERS[format](_pages(table, query, page), out)


def _pages(table: LedgerTable, query: Query, size: int) -> Iterator[list[Row]]:
    """Each page is a question of its own: no transaction stays open while somebody reads slowly."""
    after = None
    while True:
        page = table.entries(query, after=after, limit=size)
        if page.rows:
            yield [_told(row) for row in page.rows]
        after = page.next
        if after is None:
            return


def _told(row: Row) -> Row:
    """The row with its flags as true and false."""
    values = list(row)
    for at in _FLAGS:
        values[at] = bool(values[at])
    return tuple(values)


def _csv(pages: Iterator[list[Row]], out: BinaryIO) -> int:
    """RFC 4180, in UTF-8; an empty field is 'not known', flags are 1 and 0."""
    text = io.TextIOWrapper(out, encoding="utf-8", newline="", write_through=False)
    try:
        writer = csv.writer(text)
        writer.writerow(FIELDS)
        count = 0
        for rows in pages:
            writer.writerows([int(value) if isinstance(value, bool) else value for value in row] for row in rows)
            count += len(rows)
        return count
    finally:
        text.flush()
        text.detach()


def _jsonl(pages: Iterator[list[Row]], out: BinaryIO) -> int:
    encode = msgspec.json.Encoder().encode
    count = 0
    for rows in pages:
        out.write(b"".join(encode(dict(zip(FIELDS, row, strict=True))) + b"\n" for row in rows))
        count += len(rows)
    return count


def _parquet(pages: Iterator[list[Row]], out: BinaryIO) -> int:
    arrow, parquet = _arrow()
    schema = arrow.schema([arrow.field(field, _type(arrow, name)) for field, name in zip(FIELDS, COLUMNS, strict=True)])
    count = 0
    with parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        for rows in pages:
            columns: list[Any] = [list(column) for column in zip(*rows, strict=True)]
            arrays = [arrow.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_batch(arrow.record_batch(arrays, schema=schema))
            count += len(rows)
    return count


def _type(arrow: Any, name: str) -> Any:
    if name == "time":
        return arrow.timestamp("us", tz="UTC")
    if name in FLAGS:
        return arrow.bool_()
    return arrow.string() if name in TEXTS else arrow.float64() if name in REALS else arrow.int64()


def _arrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise SitsError(Code.UNSUPPORTED, "Parquet needs a package: pip install 'sits[parquet]'") from error
    return pyarrow, pyarrow.parquet


_WRITERS: dict[str, Callable[[Iterator[list[Row]], BinaryIO], int]] = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet}
