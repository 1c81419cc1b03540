"""The queryable end of the ledger: what a table of entries can do, and what is asked of it.

Two adapters: `sqlite_table` (a file in the data folder) and `postgres_table` (shared by machines). Both are synchronous: they are
called by the thread that drains, by commands, and by the admin API from a worker thread, never while a request waits.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Sequence
from typing import Literal, Protocol, get_args

import msgspec

from sits.inner.errors import Code, SitsError
from sits.state.ledger.entry import Row
from sits.state.ledger.stretch import Stretch

Dimension = Literal["key", "team", "route", "requested", "model", "provider", "operation", "outcome", "day"]
DIMENSIONS: tuple[str, ...] = get_args(Dimension)
"""What sums can be grouped by; a day is a day of UTC."""
Cursor = tuple[int, str, int]
"""Where a page ended: time in microseconds, segment, number of the record in it."""


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
    """Times that a model was asked: none for a request that was refused before, or answered without one."""
    errors: int
    """Entries whose outcome was not `ok`."""
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
    latency_us: int
    """Microseconds that the attempts took, one after the other."""


class Progress(msgspec.Struct, frozen=True):
    """How far a segment has been taken in: how many records, up to which byte; 0 and 0 for one that is not known."""

    records: int = 0
    end: int = 0


class Uneven(msgspec.Struct, frozen=True):
    """A segment of which the table does not hold as many entries as were drained from it and not forgotten since."""

    segment: str
    drained: int
    held: int


class Repaired(msgspec.Struct, frozen=True):
    """What making sums again from the entries has changed."""

    entries: int = 0
    """That could be read, and were counted again."""
    astray: int = 0
    """Sums that named a party that is not there, removed."""
    sums: int = 0
    """Sums, of a party in an hour, that were not those of the entries."""
    parties: int = 0
    """Parties that were put back."""
    stretches: int = 0
    """Groups of entries whose own count was wrong."""
    unreadable: int = 0
    """Entries that cannot be read: what they came to was taken from their group's own count where there is one."""

    @property
    def changed(self) -> bool:
        return bool(self.astray or self.sums or self.parties or self.stretches)


class LedgerTable(Protocol):
    """Where entries can be asked for. Any call may raise `state_unavailable`, after a bounded wait; the next one tries anew."""

    name: str

    def add(self, stretches: Sequence[Stretch]) -> Progress:
        """Take in successive stretches of one segment, in one durable transaction; says how far the segment is now taken in.

        Safe to repeat: what is there already stays as it is. When a stretch is there in part nothing is taken in; cut it anew,
        from the progress on.
        """
        ...

    def progress(self, segment: str) -> Progress:
        """How far a segment has been taken in."""
        ...

    def forget(self, before: float, most: int = 64) -> bool:
        """Remove what was before the hour of `before` (unix seconds), some of it with each call; False when nothing is left."""
        ...

    def forgotten(self) -> int:
        """The moment, in microseconds, before which nothing is known any more."""
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
        """The rows of the records of a segment with numbers from `first` to `last`."""
        ...

    def uneven(self) -> list[Uneven]:
        """Segments of which more or fewer entries are held than were drained; none when the table is sound."""
        ...

    def flaws(self) -> list[str]:
        """What contradicts itself in what is stored, found by reading all of it; none when the table is sound."""
        ...

    def astray(self) -> int:
        """How many sums are nobody's: cheaper than `flaws`, and enough to know that sums cannot be believed."""
        ...

    def prove(self) -> None:
        """Mend it when sums are nobody's, and say so in the log; the first entry is not added before. Safe to repeat."""
        ...

    def repair(self) -> Repaired:
        """Make all that is kept beside the entries again, from them, in one durable transaction. Safe to repeat."""
        ...

    def close(self) -> None:
        """Let go of it. Safe to repeat."""
        ...


def fresh(stretches: Sequence[Stretch], held: Progress) -> list[Stretch]:
    """Those that are to be added to a table that holds so much; none when one of them is there in part."""
    if any(one.start < held.end < one.finish for one in stretches):
        return []
    return [one for one in stretches if one.start >= held.end]


def check_sums(by: Sequence[str], after: Sequence[str] | None) -> None:
    """Raises `invalid_request` for what is no dimension, or a group that does not fit them."""
    for name in by:
        if name not in DIMENSIONS:
            raise SitsError(Code.INVALID_REQUEST, f"{name!r} is no dimension: {', '.join(DIMENSIONS)}", param="by")
    if after is not None and len(after) != len(by):
        raise SitsError(Code.INVALID_REQUEST, f"the page after {after!r} needs {len(by)} values", param="after")


def day_text(number: int) -> str:
    """A day since 1970 as it is shown."""
    return time.strftime("%Y-%m-%d", time.gmtime(number * 86_400))


def day_number(day: str) -> int:
    """The reverse; raises `invalid_request` for what is no day."""
    try:
        moment = time.strptime(day, "%Y-%m-%d")
    except ValueError as error:
        raise SitsError(Code.INVALID_REQUEST, f"{day!r} is no day such as 2026-11-29", param="after") from error
    return calendar.timegm(moment) // 86_400
