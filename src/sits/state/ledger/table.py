"""The queryable end of the ledger: what a table of entries can do, and what is asked of it.

Two adapters: `sqlite_table` (a file in the data folder) and `postgres_table` (shared by machines). Both are synchronous: they are
called by the thread that drains, by commands, and by the admin API from a worker thread, never while a request waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, get_args

import msgspec

from sits.state.ledger.entry import Entry, Row

Dimension = Literal["key", "team", "route", "requested", "model", "provider", "operation", "outcome", "day"]
DIMENSIONS: tuple[str, ...] = get_args(Dimension)
"""What sums can be grouped by; a day is a day of UTC."""
Cursor = tuple[int, str, int]
"""Where a page ended: time in microseconds, segment, position."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries are meant: those of the time from `since` to before `until` (unix seconds), with these values where given."""

    since: float | None = None
    until: float | None = None
    key: str | None = None
    team: str | None = None
    route: str | None = None
    requested: str | None = None
    model: str | None = None
    provider: str | None = None
    operation: str | None = None
    outcome: str | None = None
    request_id: str | None = None


class Line(msgspec.Struct, frozen=True):
    """An entry with its identity, which is the place in the journal where it was first written."""

    segment: str
    position: int
    entry: Entry


class Page(msgspec.Struct, frozen=True):
    """Entries, oldest first; ask again with `after=next` for more, None when that was all."""

    rows: list[Row]
    next: Cursor | None


class Sums(msgspec.Struct, frozen=True):
    """What the entries of one group come to. Unknown figures count as nothing in the sums, and in `unpriced`."""

    group: tuple[str, ...]
    """The values of the dimensions asked for, in that order."""
    requests: int
    attempts: int
    errors: int
    """Attempts whose outcome was not `ok`."""
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cost: int
    """Nano-dollars."""
    estimated: int
    """Attempts of whose tokens some are our own count."""
    unpriced: int
    """Attempts that have a price but whose use is not known."""


class Progress(msgspec.Struct, frozen=True):
    """How far a segment has been drained once a batch is in: how many records, up to which byte."""

    segment: str
    records: int
    end: int


class Uneven(msgspec.Struct, frozen=True):
    """A segment of which the table does not hold as many entries as were drained from it."""

    segment: str
    drained: int
    held: int


class LedgerTable(Protocol):
    """Where entries can be asked for. Any call may raise `state_unavailable`, after a bounded wait; the next one tries anew."""

    name: str

    def add(self, rows: Sequence[Row], progress: Progress) -> int:
        """Take in rows of one segment and note how far it has been drained, in one durable transaction.

        Safe to repeat: rows that are there already stay as they are. Returns how many were new.
        """
        ...

    def entries(self, query: Query, *, after: Cursor | None = None, limit: int = 1000) -> Page:
        """A page of the entries meant, in the order of their time."""
        ...

    def sums(
        self, query: Query, by: Sequence[Dimension] = (), *, after: Sequence[str] | None = None, limit: int = 1000
    ) -> list[Sums]:
        """The entries meant, summed up by group, in the order of the groups; the next page is asked for with the last group."""
        ...

    def of_segment(self, segment: str, first: int, last: int) -> list[Row]:
        """The rows of a segment with positions from `first` to `last`."""
        ...

    def uneven(self) -> list[Uneven]:
        """Segments of which more or fewer entries are held than were drained; none when the table is sound."""
        ...

    def close(self) -> None:
        """Let go of it. Safe to repeat."""
        ...
