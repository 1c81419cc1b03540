"""The reference formula for dynamic weights: by latency and rate, made anew every 200 ms, evened out when traffic surges."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10

from sits.routing.policies.base import Policy
from sits.routing.policies.state import TargetState

REFRESH = 0.2
_SURGE = 2.0
"""So many times the usual rate is a surge."""
_USUAL = 0.02
"""What 200 ms weigh in the usual rate: it follows within 10 s."""


def formula(latency_ms: float, per_second: float) -> float:
    """0.6 * clamp(1 / log10(latency_ms + 1), 0.1, 1) + 0.4 * min(5, QPS / 1e6 * 0.8)."""
    logarithm = log10(latency_ms + 1.0)
    quick = 1.0 if logarithm <= 1.0 else max(0.1, 1.0 / logarithm)
    return 0.6 * quick + 0.4 * min(5.0, per_second / 1e6 * 0.8)


class DynamicWeights(Policy):
    """Drawn by the formula's weights times the declared ones.

    Decay on surge: while the route's rate is more than twice the usual one, the weights move halfway to their mean at each
    refresh, for what they know is of calmer times and a heavy one would be hit hardest. (To make all weights smaller alike would
    change no share.)

    Requests of one route need not all have the same targets. The rate is that of all of them, and the formula's weights are of
    each target by itself, so whoever they are among, they last from one refresh to the next.
    """

    way = "share"

    def __init__(self) -> None:
        self._shares: list[float] = []
        self._of: list[TargetState] = []
        """Whose shares these are."""
        self._raw: dict[TargetState, float] = {}
        """By the formula, as of the last refresh."""
        self._seen: dict[TargetState, int] = {}
        self._at: float = -1e9
        self._picked: int = 0
        self._usual: float = 0.0
        self._spread: float = 1.0

    def seen(
        self,
        states: Sequence[TargetState],
        weights: Sequence[float],
        draw: float,
        now: float,
        size: float = 0.0,
        warm: Sequence[float] = (),
    ) -> list[float]:
        if now - self._at >= REFRESH:
            self._refresh(states, now)
            self._share(states, weights)
        elif self._of != list(states):
            self._share(states, weights)
        self._picked += 1
        return self._shares

    def _refresh(self, states: Sequence[TargetState], now: float) -> None:
        span = min(max(now - self._at, REFRESH), 60.0)
        rate = self._picked / span
        surge = self._usual > 0.0 and rate > _SURGE * self._usual
        self._spread = self._spread * 0.5 if surge else min(1.0, self._spread + 0.1)
        self._usual += (rate - self._usual) * (_USUAL if self._usual > 0.0 else 1.0)
        for state in states:
            if state not in self._seen:
                self._seen[state] = state.seen
        for state, before in self._seen.items():
            self._raw[state] = formula(state.total * 1000.0, (state.seen - before) / span)
        self._seen = {state: state.seen for state in self._seen}
        self._at, self._picked = now, 0

    def _share(self, states: Sequence[TargetState], weights: Sequence[float]) -> None:
        for state in states:
            if state not in self._raw:
                self._raw[state] = formula(state.total * 1000.0, 0.0)
                self._seen[state] = state.seen
        raw = [self._raw[state] for state in states]
        mean = sum(raw) / len(raw)
        spread = self._spread
        self._shares = [(mean + (one - mean) * spread) * weight for one, weight in zip(raw, weights, strict=True)]
        self._of = list(states)
