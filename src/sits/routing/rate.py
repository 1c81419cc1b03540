"""How many requests a second, over the last five."""

from __future__ import annotations

BUCKETS = 10
BUCKET = 0.5
"""Seconds of one."""


class Rate:
    """A count in ten buckets of half a second. `now` is seconds of the monotonic clock and never goes back."""

    __slots__ = ("_at", "_counts", "_sum")

    def __init__(self) -> None:
        self._counts: list[int] = [0] * BUCKETS
        self._at: int = -1
        self._sum: int = 0

    def note(self, now: float) -> float:
        """One more; the rate with it."""
        self._turn(int(now / BUCKET))
        self._counts[self._at % BUCKETS] += 1
        self._sum += 1
        return self._sum / (BUCKETS * BUCKET)

    def per_second(self, now: float) -> float:
        """The rate at this moment."""
        self._turn(int(now / BUCKET))
        return self._sum / (BUCKETS * BUCKET)

    def _turn(self, at: int) -> None:
        passed = at - self._at
        if passed <= 0:
            return
        if passed >= BUCKETS or self._at < 0:
            self._counts = [0] * BUCKETS
            self._sum = 0
        else:
            for step in range(self._at + 1, at + 1):
                self._sum -= self._counts[step % BUCKETS]
                self._counts[step % BUCKETS] = 0
        self._at = at
