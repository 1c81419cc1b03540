"""The questions to a ledger table that keeps each entry in a row, in SQL for PostgreSQL. Texts are compared by their bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from sits.state.ledger.entry import COLUMNS, OPTIONAL, REALS, TEXTS, Row
from sits.state.ledger.table import Cursor, Dimension, Page, Query, Sums, Uneven, check_sums, day_number, day_text

ENTRIES = "ledger_entries"
SEGMENTS = "ledger_segments"
MICROSECONDS_A_DAY = 86_400_000_000
INDEXES = (
    f"CREATE INDEX IF NOT EXISTS ledger_by_time ON {ENTRIES} (time, segment, position)",
    f"CREATE INDEX IF NOT EXISTS ledger_by_key ON {ENTRIES} (key, time)",
)
_COLUMNS = ", ".join(COLUMNS)
_FILTERS = tuple(field for field in Query.__struct_fields__ if field not in ("since", "until"))
_COUNTED = (
    "sum(final)",
    "sum(CASE WHEN attempt = 0 OR model = '' THEN 0 ELSE 1 END)",
    "sum(CASE WHEN outcome = 'ok' THEN 0 ELSE 1 END)",
    "sum(input_tokens)",
    "sum(output_tokens)",
    "sum(cached_tokens)",
    "sum(reasoning_tokens)",
    "sum(cost)",
    "sum(estimated)",
    "sum(CASE WHEN cost IS NULL THEN 1 ELSE 0 END)",
    "sum(CAST(trunc(latency_ms * 1000) AS BIGINT))",
)
_FIGURES = ", ".join(f"CAST(coalesce({figure}, 0) AS BIGINT)" for figure in _COUNTED)


def table_columns(text: str, integer: str, real: str) -> str:
    """The columns of the table of entries, by the names that a database has for its types."""

    def column(name: str) -> str:
        kind = text if name in TEXTS else real if name in REALS else integer
        return f"{name} {kind}" if name in OPTIONAL else f"{name} {kind} NOT NULL"

    return ", ".join(column(name) for name in COLUMNS)


class SqlTable(ABC):
    """The reading half of a table of rows, over one method that runs a question."""

    @abstractmethod
    def rows(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """All rows of a question."""

    def entries(self, query: Query, *, after: Cursor | None = None, limit: int = 1000) -> Page:
        given = _Values()
        where = _meant(query, given)
        if after is not None:
            where.append(f"(time, segment, position) > ({', '.join(map(given.add, after))})")
        sql = f"SELECT {_COLUMNS} FROM {ENTRIES}{_where(where)} ORDER BY time, segment, position LIMIT {given.add(limit)}"  # noqa: S608
        rows: list[Row] = self.rows(sql, given.values)
        if len(rows) < limit:
            return Page(rows, None)
        segment, position, moment = rows[-1][:3]
        return Page(rows, (int(moment or 0), str(segment), int(position or 0)))

    def sums(
        self, query: Query, by: Sequence[Dimension] = (), *, after: Sequence[str] | None = None, limit: int = 1000
    ) -> list[Sums]:
        check_sums(by, after)
        given = _Values()
        where = _meant(query, given)
        groups = [_group(name) for name in by]
        if after:
            values = [given.add(day_number(value) if name == "day" else value) for name, value in zip(by, after, strict=True)]
            where.append(f"({', '.join(groups)}) > ({', '.join(values)})")
        grouped = ", ".join(groups)
        sql = f"SELECT {', '.join((*groups, _FIGURES))} FROM {ENTRIES}{_where(where)}"  # noqa: S608
        if groups:
            sql += f" GROUP BY {grouped} ORDER BY {grouped} LIMIT {given.add(limit)}"
        return [
            Sums(
                tuple(day_text(value) if name == "day" else value for name, value in zip(by, row, strict=False)), *row[len(by) :]
            )
            for row in self.rows(sql, given.values)
        ]

    def of_segment(self, segment: str, first: int, last: int) -> list[Row]:
        sql = f"SELECT {_COLUMNS} FROM {ENTRIES} WHERE segment = $1 AND position BETWEEN $2 AND $3 ORDER BY position"  # noqa: S608
        rows: list[Row] = self.rows(sql, (segment, first, last))
        return rows

    def uneven(self) -> list[Uneven]:
        sql = (
            f"SELECT segment, CAST(sum(drained) AS BIGINT), CAST(sum(held) AS BIGINT) FROM ("  # noqa: S608
            f"SELECT segment, held AS drained, 0 AS held FROM {SEGMENTS} UNION ALL "
            f"SELECT segment, 0, count(*) FROM {ENTRIES} GROUP BY segment) AS both_sides "
            "GROUP BY segment HAVING sum(drained) <> sum(held) ORDER BY segment"
        )
        return [Uneven(*row) for row in self.rows(sql, ())]

    def flaws(self) -> list[str]:
        """Rows under a key of the database contradict nothing."""
        return []


class _Values:
    """The parameters of a question as they come up."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def add(self, value: Any) -> str:
        self.values.append(value)
        return f"${len(self.values)}"


def _meant(query: Query, given: _Values) -> list[str]:
    where = [f"{name} = {given.add(value)}" for name in _FILTERS if (value := getattr(query, name)) is not None]
    if query.since is not None:
        where.append(f"time >= {given.add(round(query.since * 1e6))}")
    if query.until is not None:
        where.append(f"time < {given.add(round(query.until * 1e6))}")
    return where


def _where(conditions: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _group(name: str) -> str:
    return f"time / {MICROSECONDS_A_DAY}" if name == "day" else name
