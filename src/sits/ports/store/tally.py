"""The arithmetic of counters, for the stores that count in Python; the servers' scripts say the same in their own words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sits.ports.store.base import Add, Added
from sits.ports.store.limits import ceiling


class Counter(NamedTuple):
    """A counter that is there. `expires` is in unix seconds, None for never."""

    total: int
    expires: float | None


def tally(adds: Sequence[Add], found: Sequence[Counter | None], now: float) -> tuple[Added, list[Counter | None]]:
    """What to answer, and the counters as they are then; `found` has those that had not expired at `now`."""
    totals = [0 if counter is None else counter.total for counter in found]
    for index, add in enumerate(adds):
        if add.amount > 0 and totals[index] + add.amount > ceiling(add):
            return Added(tuple(totals), index), list(found)
    after = [_added(add, counter, now) for add, counter in zip(adds, found, strict=True)]
    return Added(tuple(0 if counter is None else counter.total for counter in after)), after


def _added(add: Add, counter: Counter | None, now: float) -> Counter | None:
    if counter is None:
        if add.amount <= 0:
            return None
        counter = Counter(0, None if add.ttl is None else now + add.ttl)
    total = max(0, counter.total + add.amount)
    return None if total == 0 and counter.expires is None else counter._replace(total=total)
