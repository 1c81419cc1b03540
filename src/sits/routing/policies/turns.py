"""Policies that look at nothing but whose turn it is."""

from __future__ import annotations

from collections.abc import Sequence

from sits.routing.policies.base import Policy, by_share
from sits.routing.policies.state import TargetState

by_weight = by_share


_MOST_SETS = 64
"""Sets of targets whose turns are kept: what some requests need, not all targets can do."""


class RoundRobin(Policy):
    """One after the other, weights or not."""

    def __init__(self) -> None:
        self._next: dict[tuple[TargetState, ...], int] = {}
        """By the targets that were chosen from."""

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
        key, count = tuple(states), len(states)
        turn = self._next.get(key, -1)
        if turn < 0:
            turn = 0
            if len(self._next) >= _MOST_SETS:
                self._next.clear()
        self._next[key] = (turn + 1) % count
        return [float((index - turn) % count) for index in range(count)]


class WeightedRoundRobin(Policy):
    """In turns by weight, spread evenly: nginx's smooth weighted round robin (nginx commit 52327e0, 2012)."""

    def __init__(self) -> None:
        self._credits: dict[tuple[TargetState, ...], list[float]] = {}
        """By the targets that were chosen from."""

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
        key = tuple(states)
        credit = self._credits.get(key)
        if credit is None:
            if len(self._credits) >= _MOST_SETS:
                self._credits.clear()
            credit = self._credits[key] = [0.0] * len(key)
        total = 0.0
        best = 0
        for index, weight in enumerate(weights):
            total += weight
            credit[index] += weight
            if credit[index] > credit[best]:
                best = index
        costs = [-one for one in credit]
        costs[best] -= 1e-9 * total
        credit[best] -= total
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
