"""Policies that look at nothing but whose turn it is."""

from __future__ import annotations

from collections.abc import Sequence

from sits.routing.policies.base import Policy, by_share
from sits.routing.policies.state import TargetState

by_weight = by_share


class RoundRobin(Policy):
    """One after the other, weights or not."""

    def __init__(self) -> None:
        self._next: int = 0

    def seen(
        self,
        states: Sequence[TargetState],
        weights: Sequence[float],
        draw: float,
        now: float,
        size: float = 0.0,
        warm: Sequence[float] = (),
    ) -> list[float]:
        """How many turns each has to wait."""
        count = len(states)
        turn = self._next % count
        self._next = turn + 1
        return [float((index - turn) % count) for index in range(count)]


class WeightedRoundRobin(Policy):
    """In turns by weight, spread evenly: nginx's smooth weighted round robin (nginx commit 52327e0, 2012)."""

    def __init__(self) -> None:
        self._credit: dict[TargetState, float] = {}

    def seen(
        self,
        states: Sequence[TargetState],
        weights: Sequence[float],
        draw: float,
        now: float,
        size: float = 0.0,
        warm: Sequence[float] = (),
    ) -> list[float]:
        """What each has not had of its turns, as a cost; of equals the first one comes first."""
        credit = self._credit
        total = 0.0
        best = 0
        for index, weight in enumerate(weights):
            total += weight
            credit[states[index]] = credit.get(states[index], 0.0) + weight
            if credit[states[index]] > credit[states[best]]:
                best = index
        costs = [-credit[state] for state in states]
        costs[best] -= 1e-9 * total
        credit[states[best]] -= total
        return costs


class Drawn(Policy):
    """By chance, by weight."""

    way = "share"

    def seen(
        self,
        states: Sequence[TargetState],
        weights: Sequence[float],
        draw: float,
        now: float,
        size: float = 0.0,
        warm: Sequence[float] = (),
    ) -> list[float]:
        return list(weights)
