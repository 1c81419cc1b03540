"""When a route's answer is late: a percentile of how long the first content took of late."""

from __future__ import annotations

KEPT = 256
EVERY = 32
"""Answers after which the percentile is worked out anew: sorting 256 figures takes 8 us."""
LEAST = 20


class Lateness:
    """The 95th percentile of the last answers; None while there are too few."""

    __slots__ = ("_next", "_seconds", "_since", "p95")

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._next = 0
        self._since = 0
        self.p95: float | None = None

    def note(self, seconds: float) -> None:
        """First content came after so many seconds."""
        if len(self._seconds) < KEPT:
            self._seconds.append(seconds)
        else:
            self._seconds[self._next] = seconds
            self._next = (self._next + 1) % KEPT
        self._since += 1
        if self._since >= EVERY or (self.p95 is None and len(self._seconds) >= LEAST):
            self._since = 0
            if len(self._seconds) >= LEAST:
                self.p95 = sorted(self._seconds)[min(len(self._seconds) - 1, int(len(self._seconds) * 0.95))]
