"""The questions to the ledger in SQLite: answered from the sums where they say it, from the stretches where not."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from sits.state.ledger.entry import Names, Row, Use, micros, row_from, rows_of
from sits.state.ledger.sqlite_repair import ASTRAY, Recount
from sits.state.ledger.stretch import opened_names, opened_records, uses_of
from sits.state.ledger.table import Cursor, Dimension, Page, Query, Sums, Uneven, check_sums, day_number, day_text
from sits.state.ledger.tally import DAY, FIGURES, HOUR, NOTHING, PARTY, count_in, figures, tally

END = 1 << 62
"""A moment behind all others."""
_TRAITS = tuple(name for name in Query.__struct_fields__ if name in Names.__struct_fields__)
_IN_PARTY = frozenset(PARTY)
_SUMMED = ", ".join(f"sum({name})" for name in FIGURES)
_PARTS = "SELECT DISTINCT stretch FROM ledger_spans WHERE hour >= ? AND hour <= ? AND last >= ? AND first < ?"
_UNEVEN = (
    "SELECT segment, sum(drained), sum(held) FROM (SELECT segment, held AS drained, 0 AS held FROM ledger_segments UNION ALL "
    "SELECT segment, 0, sum(count) FROM ledger_stretches GROUP BY segment) "
    "GROUP BY segment HAVING sum(drained) <> sum(held) ORDER BY segment"
)
Group = tuple[str | int, ...]
Found = tuple[int, str, int, Names, Use]
"""An entry that is meant: time, segment, number, and what it is."""


class Reader:
    """One state of the file, for as long as its caller keeps the transaction open."""

    def __init__(self, connection: sqlite3.Connection, pause: Callable[[], None]) -> None:
        """`pause` is called after each stretch that was looked into."""
        self._connection = connection
        self._ask = connection.execute
        self._pause = pause
        self.forgotten: int = self._ask("SELECT forgotten FROM ledger_state").fetchone()[0]

    def sums(self, query: Query, by: Sequence[Dimension], after: Sequence[str] | None, limit: int) -> list[Sums]:
        check_sums(by, after)
        bound = None if after is None else tuple(day_number(v) if n == "day" else v for n, v in zip(by, after, strict=True))
        totals: dict[Group, list[int]] = {} if by else {(): list(NOTHING)}
        since, until = self._window(query)
        lower, upper = -(-since // HOUR), until // HOUR
        # A client's own text is not in the sums, nor is what only one request has.
        if query.request_id is None and query.requested is None and "requested" not in by and lower < upper:
            self._sum_hours(totals, query, by, lower, upper)
            windows = [(since, lower * HOUR), (upper * HOUR, until)]
        else:
            windows = [(since, until)]
        for start, end in windows:
            if start < end:
                self._sum_stretches(totals, query, by, start, end)
        groups = sorted(group for group in totals if not bound or group > bound)[: limit if by else 1]
        return [Sums(tuple(day_text(v) if isinstance(v, int) else v for v in group), *totals[group]) for group in groups]

    def entries(self, query: Query, after: Cursor | None, limit: int) -> Page:
        since, until = self._window(query)
        if after is not None:
            since = max(since, after[0])
        found: list[Found] = []
        hour = self._hour(since // HOUR)
        while hour is not None and hour * HOUR < until and len(found) < limit:
            start, end = max(since, hour * HOUR), min(until, (hour + 1) * HOUR)
            found += self._of_hour(query, hour, start, end, after, limit - len(found))
            hour = self._hour(hour + 1)
        rows = [row_from(segment, number, names, use) for _, segment, number, names, use in found]
        return Page(rows, found[-1][:3] if len(rows) == limit else None)

    def of_segment(self, segment: str, first: int, last: int) -> list[Row]:
        sql = (
            "SELECT number, names, records FROM ledger_stretches "
            "WHERE segment = ? AND number <= ? AND number + count > ? ORDER BY number"
        )
        rows: list[Row] = []
        for number, names, records in self._ask(sql, (segment, last, first)):
            rows += rows_of(segment, number, opened_names(names)[0], uses_of(opened_records(records)))
        return [row for row in rows if first <= int(row[1] or 0) <= last]

    def uneven(self) -> list[Uneven]:
        return [Uneven(*row) for row in self._ask(_UNEVEN)]

    def flaws(self) -> list[str]:
        return Recount(self._connection, self._pause).told(self._connection, self.forgotten // HOUR)

    def astray(self) -> int:
        ((count,),) = self._ask(ASTRAY)
        return int(count)

    def _window(self, query: Query) -> tuple[int, int]:
        since = 0 if query.since is None else micros(query.since)
        until = END if query.until is None else micros(query.until)
        return max(since, self.forgotten), min(until, END)

    def _sum_hours(self, totals: dict[Group, list[int]], query: Query, by: Sequence[Dimension], lower: int, upper: int) -> None:
        groups = [f"hour / {DAY // HOUR}" if name == "day" else name for name in by]
        given = {name: value for name in _TRAITS if name in _IN_PARTY and (value := getattr(query, name)) is not None}
        where = "".join(f" AND {name} = ?" for name in given)
        sql = (
            f"SELECT {', '.join([*groups, _SUMMED])} FROM ledger_sums JOIN ledger_parties ON id = party "  # noqa: S608
            f"WHERE hour >= ? AND hour < ?{where} GROUP BY {', '.join(groups) or 'NULL'}"
        )
        for row in self._ask(sql, (lower, upper, *given.values())):
            count_in(totals, row[: len(by)], row[len(by) :])

    def _sum_stretches(self, totals: dict[Group, list[int]], query: Query, by: Sequence[Dimension], start: int, end: int) -> None:
        for stretch in self._ids(start, end):
            first, last, sealed = self._ask("SELECT first, last, names FROM ledger_stretches WHERE id = ?", (stretch,)).fetchone()
            names, tallies = opened_names(sealed)
            meant = [_is_meant(one, query) for one in names]
            if not any(meant):
                continue
            if start <= first and last < end and query.request_id is None and ("day" not in by or first // DAY == last // DAY):
                for one, counted, wanted in zip(names, tallies, meant, strict=True):
                    if wanted:
                        count_in(totals, _group(one, by, first), figures(one, counted))
            else:
                self._sum_part(totals, query, by, names, list(self._uses(stretch, query, meant, start, end)))
            self._pause()

    def _sum_part(
        self,
        totals: dict[Group, list[int]],
        query: Query,
        by: Sequence[Dimension],
        names: list[Names],
        found: list[tuple[int, int, Use]],
    ) -> None:
        parts: dict[tuple[int, int], list[Use]] = {}
        for moment, _, use in found:
            parts.setdefault((use.names, moment // DAY if "day" in by else 0), []).append(use)
        for (at, day), uses in parts.items():
            count_in(totals, _group(names[at], by, day * DAY), figures(names[at], tally(uses)))

    def _of_hour(self, query: Query, hour: int, start: int, end: int, after: Cursor | None, limit: int) -> list[Found]:
        """The entries meant of a part of an hour, at most `limit`, in order. Stretches overlap: a row is ready when none that may
        have an earlier one is left."""
        sql = "SELECT first, stretch FROM ledger_spans WHERE hour = ? AND last >= ? AND first < ? ORDER BY first, stretch"
        ready: list[Found] = []
        waiting: list[Found] = []
        for first, stretch in self._ask(sql, (hour, start, end)).fetchall():
            edge = bisect_left(waiting, (first,))
            ready += waiting[:edge]
            del waiting[:edge]
            if len(ready) >= limit:
                return ready[:limit]
            waiting += self._found(query, stretch, start, end, after)
            waiting.sort()
        return (ready + waiting)[:limit]

    def _found(self, query: Query, stretch: int, start: int, end: int, after: Cursor | None) -> Iterator[Found]:
        segment, number, sealed = self._ask(
            "SELECT segment, number, names FROM ledger_stretches WHERE id = ?", (stretch,)
        ).fetchone()
        names = opened_names(sealed)[0]
        meant = [_is_meant(one, query) for one in names]
        if not any(meant):
            return
        for moment, at, use in self._uses(stretch, query, meant, start, end):
            if after is None or (moment, segment, number + at) > after:
                yield moment, segment, number + at, names[use.names], use
        self._pause()

    def _uses(self, stretch: int, query: Query, meant: list[bool], start: int, end: int) -> Iterator[tuple[int, int, Use]]:
        """Those of a stretch that are meant: time, place in the stretch, and what it is."""
        records = opened_records(self._ask("SELECT records FROM ledger_stretches WHERE id = ?", (stretch,)).fetchone()[0])
        wanted = query.request_id
        # Looking for its bytes spares decoding all of the others. One that had a NUL is shown with another sign for it.
        if wanted is not None and "\ufffd" not in wanted and wanted.encode() not in records:
            return
        for at, use in enumerate(uses_of(records)):
            moment = micros(use.time)
            asked = wanted is None or use.request_id.replace("\0", "\ufffd") == wanted
            if asked and meant[use.names] and start <= moment < end:
                yield moment, at, use

    def _ids(self, start: int, end: int) -> list[int]:
        return [row[0] for row in self._ask(_PARTS, (start // HOUR, (end - 1) // HOUR, start, end))]

    def _hour(self, least: int) -> int | None:
        """The first hour from `least` on that has entries."""
        hour: int | None = self._ask("SELECT min(hour) FROM ledger_spans WHERE hour >= ?", (least,)).fetchone()[0]
        return hour


def _is_meant(names: Names, query: Query) -> bool:
    return all((value := getattr(query, name)) is None or getattr(names, name) == value for name in _TRAITS)


def _group(names: Names, by: Sequence[Dimension], moment: int) -> Group:
    return tuple(moment // DAY if name == "day" else getattr(names, name) for name in by)
