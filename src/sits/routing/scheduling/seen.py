"""What is learned from finished requests beside load: what they cost, and how long nearly all of them take.

One object of each for a gateway, told by whoever bills and whoever times; a note costs less than a microsecond. Targets come and
go, so both forget the one that was heard of least recently once there are too many.
"""

from __future__ import annotations

MOST_TARGETS = 4096
ENOUGH = 20
"""Answers from which their 95th percentile is told at all."""
FRESH = 30.0
"""Seconds for which it is believed after the last one: who is left out for being slow is tried again."""
_NEWS = 1.0 / 64.0
"""What one more request weighs in the mean cost."""
_STEP = 0.05
"""How far, as an exponent of e, one more answer moves the percentile."""


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


class _Quantile:
    __slots__ = ("at", "count", "value")

    def __init__(self) -> None:
        self.value: float = 0.0
        self.count: int = 0
        self.at: float = 0.0


class LatencySeen:
    """Seconds in which 95 of 100 answers are complete, by target.

    By stochastic approximation (Robbins and Monro, Annals of Mathematical Statistics 1951) on the logarithm: an answer that takes
    longer moves the figure up by 95 parts, one that does not moves it down by 5. Nothing is kept of single answers.
    """

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[str, _Quantile] = {}

    def note(self, target: str, seconds: float, now: float) -> None:
        """A good answer of this target was complete after so long."""
        one = self._found.pop(target, None)
        if one is None:
            one = _Quantile()
            if len(self._found) >= MOST_TARGETS:
                del self._found[next(iter(self._found))]
        self._found[target] = one
        one.at = now
        one.count += 1
        step = 1.0 / one.count
        if step < _STEP:
            step = _STEP
        if one.count == 1:
            one.value = seconds
        elif seconds > one.value:
            # No further than to what was seen.
            moved = one.value * (1.0 + 0.95 * step)
            one.value = moved if moved < seconds else seconds
        else:
            moved = one.value * (1.0 - 0.05 * step)
            one.value = moved if moved > seconds else seconds

    def p95(self, target: str, now: float) -> float:
        """0 where too little has been seen, or too long ago."""
        one = self._found.get(target)
        if one is None or one.count < ENOUGH or now - one.at > FRESH:
            return 0.0
        return one.value
