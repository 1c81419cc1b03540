"""Hot, warm, cold: how much a service is wanted, and the pool that it belongs in for that.

Hot: more than `hot_qps` requests a second while its vector is not older than `renew_seconds` (it is renewed hourly, so an old one
means that nobody knows any more what the service is for). It stays hot down to `keep` of that rate.

Cold: for `cold_seconds` no query came nearer than `cold_cosine`, though somebody asked, and next to nobody asked for it by name.
The first query that comes nearer, and the first busy minute, end that.

Pure: `now` is seconds of any one clock. Counters are read from time to time, nothing is done for a request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

Grade = Literal["hot", "warm", "cold"]
POOLS: Mapping[str, str] = {"hot": "accelerator", "warm": "default", "cold": "cpu-low-priority"}
"""Grade -> the label of the pool that a service of it belongs in."""
SLOTS = 24
"""Parts of `cold_seconds` that are kept: hours, of a day."""
SEEN = 0.8
"""Of the window, how much must have been watched before a service is hot: the first second of a start is no rate yet."""
SAMPLES = 64
"""Readings of a counter within the window, at the most."""


class Rules(msgspec.Struct, frozen=True):
    """When a service is hot or cold."""

    hot_qps: float = 500.0
    renew_seconds: float = 3600.0
    keep: float = 0.8
    cold_cosine: float = 0.3
    cold_seconds: float = 86400.0
    quiet_per_hour: float = 60.0
    """Requests in an hour, on average, below which nobody asks for it by name."""
    window_seconds: float = 10.0
    """Over which requests a second are counted."""


class Change(msgspec.Struct, frozen=True):
    """A service that was graded anew."""

    name: str
    before: Grade
    after: Grade
    why: str


class Standing(msgspec.Struct, frozen=True):
    """What a grade was made of."""

    grade: Grade
    pool: str
    qps: float
    renewed_ago: float | None
    """Seconds; None while it has no vector."""
    best_cosine: float | None
    """Of the queries of the last day; None while there were none."""


class _Slot(msgspec.Struct):
    number: int
    best: float = -1.0
    requests: float = 0.0


class _Row:
    __slots__ = ("grade", "readings", "renewed", "since", "slots")

    def __init__(self, since: float) -> None:
        self.since = since
        self.grade: Grade = "warm"
        self.renewed: float | None = None
        self.readings: deque[tuple[float, float]] = deque(maxlen=SAMPLES)
        self.slots: deque[_Slot] = deque(maxlen=SLOTS + 1)


class Grades:
    """The grades of all services."""

    __slots__ = ("_queries", "_rows", "rules")

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._rows: dict[str, _Row] = {}
        self._queries: deque[_Slot] = deque(maxlen=SLOTS + 1)

    def declare(self, names: Iterable[str], now: float) -> None:
        """These are the services; those that are new begin warm, those that are gone are forgotten."""
        wanted = dict.fromkeys(names)
        self._rows = {name: self._rows.get(name) or _Row(now) for name in wanted}

    def counted(self, name: str, total: float, now: float) -> None:
        """So many requests came for a service since it is counted. A counter that went back began anew."""
        row = self._rows.get(name)
        if row is None:
            return
        if row.readings:
            last = row.readings[-1][1]
            if total < last:
                row.readings.clear()
            self._slot(row.slots, now).requests += total - last if total >= last else total
        row.readings.append((now, total))

    def renewed(self, name: str, now: float) -> None:
        """Its vector was made anew, or seen to be what its card says."""
        row = self._rows.get(name)
        if row is not None:
            row.renewed = now

    def asked(self, cosines: Mapping[str, float], now: float) -> None:
        """A query came, so near to these services."""
        self._slot(self._queries, now).requests += 1
        for name, cosine in cosines.items():
            row = self._rows.get(name)
            if row is not None:
                slot = self._slot(row.slots, now)
                slot.best = max(slot.best, cosine)

    def tick(self, now: float) -> list[Change]:
        """Grade all of them anew; what changed."""
        changes = []
        for name, row in self._rows.items():
            after, why = self._graded(row, now)
            if after != row.grade:
                changes.append(Change(name, row.grade, after, why))
                row.grade = after
        return changes

    def grade(self, name: str) -> Grade:
        """Of a service; one that is not known is warm."""
        row = self._rows.get(name)
        return row.grade if row is not None else "warm"

    def standing(self, name: str, now: float) -> Standing | None:
        """How a service stands; None for one that is not known."""
        row = self._rows.get(name)
        if row is None:
            return None
        best = self._best(row, now)
        ago = None if row.renewed is None else now - row.renewed
        return Standing(row.grade, POOLS[row.grade], self._qps(row, now), ago, best if best > -1 else None)

    def _graded(self, row: _Row, now: float) -> tuple[Grade, str]:
        rules, qps = self.rules, self._qps(row, now)
        least = rules.hot_qps * (rules.keep if row.grade == "hot" else 1.0)
        fresh = row.renewed is not None and now - row.renewed <= rules.renew_seconds
        if qps > least and fresh and (row.grade == "hot" or self._watched(row, now) >= SEEN * rules.window_seconds):
            return "hot", f"{qps:.0f} requests a second"
        if qps > least and row.grade == "hot":
            return "warm", f"its vector was not renewed for {rules.renew_seconds:g} s"
        best = self._best(row, now)
        looked = any(slot.requests for slot in self._recent(self._queries, now))
        if now - row.since >= rules.cold_seconds and looked and best < rules.cold_cosine and self._quiet(row, now):
            nearest = "no query came near" if best <= -1 else f"the nearest query had {best:.2f}"
            return "cold", f"{nearest} in {rules.cold_seconds / 3600:g} h"
        if row.grade == "cold":
            return "warm", self._warmed(row, best, looked, now)
        return "warm", f"{qps:.0f} requests a second"

    def _warmed(self, row: _Row, best: float, looked: bool, now: float) -> str:
        """Why one that was cold is so no more."""
        if best >= self.rules.cold_cosine:
            return f"a query with {best:.2f} came"
        if not self._quiet(row, now):
            return "it is asked for again"
        return "it is not known any more to be cold" + (
            "" if looked else f": no query at all in {self.rules.cold_seconds / 3600:g} h"
        )

    def _qps(self, row: _Row, now: float) -> float:
        readings, rules = row.readings, self.rules
        while len(readings) > 2 and now - readings[0][0] > rules.window_seconds:
            readings.popleft()
        if len(readings) < 2:
            return 0.0
        seconds = self._watched(row, now)
        return (readings[-1][1] - readings[0][1]) / seconds if seconds > 0.0 else 0.0

    def _watched(self, row: _Row, now: float) -> float:
        """Seconds since the oldest reading; not above 0 where a clock stands still or goes back, which is no rate."""
        return now - row.readings[0][0] if row.readings else 0.0

    def _quiet(self, row: _Row, now: float) -> bool:
        requests = sum(slot.requests for slot in self._recent(row.slots, now))
        return requests < self.rules.quiet_per_hour * self.rules.cold_seconds / 3600

    def _best(self, row: _Row, now: float) -> float:
        return max((slot.best for slot in self._recent(row.slots, now)), default=-1.0)

    def _slot(self, slots: deque[_Slot], now: float) -> _Slot:
        number = self._number(now)
        if not slots or slots[-1].number != number:
            slots.append(_Slot(number))
        return slots[-1]

    def _recent(self, slots: deque[_Slot], now: float) -> list[_Slot]:
        """Those of the last `cold_seconds`, and of the begun part before: never less than was promised."""
        oldest = self._number(now) - SLOTS
        return [slot for slot in slots if slot.number >= oldest]

    def _number(self, now: float) -> int:
        return int(now // (self.rules.cold_seconds / SLOTS))
