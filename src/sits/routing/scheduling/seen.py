"""What is learned from finished requests beside load: what they cost, and how long nearly all of them take.

One object of each for a gateway, told by whoever bills and whoever times; a note costs less than a microsecond. Targets come and
go, so both forget the one that was heard of least recently once there are too many.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

MOST_TARGETS = 4096
LATEST = 100
"""Answers of which the 95th percentile is told: six slow ones among so many are told of."""
ENOUGH = 20
"""Answers from which it is told at all: of fewer, the slowest one would be it."""
FRESH = 30.0
"""Seconds for which it is believed after the last one: who is left out for being slow is tried again."""
OLD = ENOUGH * FRESH
"""Seconds after which an answer counts no more. Answers that are never more than `FRESH` apart are `ENOUGH` in that time."""
_NEWS = 1.0 / 64.0
"""What one more request weighs in the mean cost."""


class CostSeen:
    """Dollars a request, recent mean by target."""

    __slots__ = ("_means",)

    def __init__(self) -> None:
        self._means: dict[str, float] = {}

    def note(self, target: str, dollars: float) -> None:
        """A request to this target has been billed."""
        mean = self._means.pop(target, -1.0)  # put at the end again, so that the first one is the one to forget
        if mean < 0.0:
            mean = dollars
            if len(self._means) >= MOST_TARGETS:
                del self._means[next(iter(self._means))]
        self._means[target] = mean + (dollars - mean) * _NEWS

    def mean(self, target: str) -> float:
        """Below 0 where nothing is known."""
        return self._means.get(target, -1.0)


class _Answers:
    __slots__ = ("before", "last", "ordered", "times", "told", "took")

    def __init__(self) -> None:
        self.took: deque[float] = deque()
        """Seconds, in the order in which they came; at most `LATEST`."""
        self.times: deque[float] = deque()
        """When they came."""
        self.ordered: list[float] = []
        """The same seconds, the shortest first."""
        self.told: float = 0.0
        self.before: float = 0.0
        """What was told before the last silence; 0 where nothing was."""
        self.last: float = 0.0


class LatencySeen:
    """Seconds in which 95 of 100 answers are complete, by target.

    Exactly that: the nearest rank among the last `LATEST` answers, of those that came in the last `OLD` seconds before the newest
    and after the last silence of more than `FRESH` seconds. So what was before is forgotten after so many, whatever it was. The
    answers are kept, 10 kB a target at the most: a sketch (Masson et al., DDSketch, VLDB 2019) would take less, and be wrong by
    some percent just where somebody has set a bound.

    A silence is how it looks from here when somebody is left out for being slow. Whoever answers after one begins anew, and is
    told of from the first answer on: by the slowest of these, but by no more than before. So one quick answer brings back who is
    quick again, a slow one leaves out who is not, and nobody is left out for one slow answer who was thought quick.
    """

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[str, _Answers] = {}

    def note(self, target: str, seconds: float, now: float) -> None:
        """A good answer of this target was complete after so long. 0.5 us."""
        one = self._found.pop(target, None)
        if one is None:
            one = _Answers()
            if len(self._found) >= MOST_TARGETS:
                del self._found[next(iter(self._found))]
        self._found[target] = one
        took, times, ordered = one.took, one.times, one.ordered
        silent = now - one.last
        one.last = now
        if silent > FRESH:
            one.before = one.told if silent <= OLD else 0.0
            took.clear()
            times.clear()
            ordered.clear()
        while times and (len(times) >= LATEST or now - times[0] > OLD):
            times.popleft()
            del ordered[bisect_left(ordered, took.popleft())]
        times.append(now)
        took.append(seconds)
        insort(ordered, seconds)
        count = len(ordered)
        told = ordered[(95 * count + 99) // 100 - 1]
        if count < ENOUGH and told > one.before:
            told = one.before
        one.told = told

    def p95(self, target: str, now: float) -> float:
        """0 where too little has been seen, or too long ago."""
        one = self._found.get(target)
        if one is None or now - one.last > FRESH:
            return 0.0
        return one.told
