"""A clock that is wrong to order."""

from __future__ import annotations

from collections.abc import Callable


class SkewedClock:
    """The time of day, and how far it is off, until when."""

    __slots__ = ("_clock", "_monotonic", "seconds", "until")

    def __init__(self, clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self.seconds = 0.0
        self.until = 0.0

    def now(self) -> float:
        if self.seconds and self._monotonic() >= self.until:
            self.seconds = 0.0
        return self._clock() + self.seconds

    def skew(self, seconds: float, lasting: float) -> None:
        """Be off by so many seconds for so long."""
        self.seconds = seconds
        self.until = self._monotonic() + lasting
