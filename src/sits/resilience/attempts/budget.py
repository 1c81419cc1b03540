"""How much more than its requests a route may ask of its models: a share of the live ones, so that retries do not become a storm.

As Finagle's retry budget and Envoy's: what is allowed grows with what is asked, so an outage of everything costs the models a
fifth more, not three times as much.
"""

from __future__ import annotations

SECONDS = 10
"""What is looked at: the last so many whole seconds and the one that runs."""


class ShareBudget:
    """Counts requests and what was spent on top of them, a second at a time. `now` is in seconds of one clock."""

    __slots__ = ("_floor", "_requests", "_second", "_share", "_spent")

    def __init__(self, share: float, floor: float) -> None:
        """`share` of the requests of the last ten seconds, and `floor` a second in any case."""
        self._share = share
        self._floor = floor * SECONDS
        self._requests = [0] * SECONDS
        self._spent = [0] * SECONDS
        self._second = 0

    def request(self, now: float) -> None:
        """A live request."""
        self._requests[self._at(now)] += 1

    def take(self, now: float) -> bool:
        """Whether one more may be asked; it is spent, then."""
        place = self._at(now)
        if sum(self._spent) + 1 > self._share * sum(self._requests) + self._floor:
            return False
        self._spent[place] += 1
        return True

    def _at(self, now: float) -> int:
        second = int(now)
        passed = second - self._second
        if passed > 0:
            for back in range(min(passed, SECONDS)):
                place = (second - back) % SECONDS
                self._requests[place] = self._spent[place] = 0
            self._second = second
        return second % SECONDS
