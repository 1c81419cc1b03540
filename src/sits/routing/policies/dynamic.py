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
    """

    way = "share"

    def __init__(self) -> None:
        self._shares: list[float] = []
        self._of: list[TargetState] = []
        """Whose shares these are: requests of one route need not all have the same targets."""
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
        if now - self._at >= REFRESH or self._of != list(states):
            self._refresh(states, weights, now)
        self._picked += 1
        return self._shares

    def _refresh(self, states: Sequence[TargetState], weights: Sequence[float], now: float) -> None:
        span = min(max(now - self._at, REFRESH), 60.0)
        rate = self._picked / span
        surge = self._usual > 0.0 and rate > _SURGE * self._usual
        self._spread = self._spread * 0.5 if surge else min(1.0, self._spread + 0.1)
        self._usual += (rate - self._usual) * (_USUAL if self._usual > 0.0 else 1.0)
        raw = [formula(state.total * 1000.0, (state.seen - self._seen.get(state, state.seen)) / span) for state in states]
        mean = sum(raw) / len(raw)
        spread = self._spread
        self._shares = [(mean + (one - mean) * spread) * weight for one, weight in zip(raw, weights, strict=True)]
        self._seen.update({state: state.seen for state in states})
        self._of = list(states)
        self._at, self._picked = now, 0
