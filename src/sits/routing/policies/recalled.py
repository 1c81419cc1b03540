"""A policy that is told what was seen: for those that keep a place, where a replay begins in the middle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sits.routing.policies.base import Policy
from sits.routing.policies.state import TargetState

KEEPING: frozenset[str] = frozenset(("round-robin", "weighted-round-robin", "dynamic-weights"))
"""Policies that look at what they did before, and not at the targets alone."""


class Recalled(Policy):
    """Sees what it was told, where the same targets take part with the same weights; else what the policy sees that it stands
    for."""

    def __init__(self, policy: Policy, names: Mapping[TargetState, str]) -> None:
        self._policy: Policy = policy
        self._names: Mapping[TargetState, str] = names
        self._weights: Sequence[tuple[str, float]] = ()
        self._seen: Sequence[float] = ()
        self.way = policy.way
        self.reads = policy.reads
        self.used: bool = False
        """What it was told last has been of use."""

    def told(self, weights: Sequence[tuple[str, float]], seen: Sequence[float]) -> None:
        """What the policy saw of these, to be seen once."""
        self._weights, self._seen, self.used = weights, seen, False

    def seen(
        self,
        states: Sequence[TargetState],
        weights: Sequence[float],
        draw: float,
        now: float,
        size: float = 0.0,
        warm: Sequence[float] = (),
    ) -> list[float]:
        told, seen = self._weights, self._seen
        self._weights, self._seen = (), ()
        names = self._names
        if len(told) == len(states) == len(seen) and all(
            names[state] == name and weight == given for state, weight, (name, given) in zip(states, weights, told, strict=True)
        ):
            self.used = True
            return list(seen)
        return self._policy.seen(states, weights, draw, now, size, warm)
