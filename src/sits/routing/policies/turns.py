"""Policies that look at nothing but whose turn it is."""

from __future__ import annotations

from collections.abc import Sequence

from sits.routing.policies.state import TargetState


class RoundRobin:
    """One after the other, weights or not."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next: int = 0

    def pick(self, states: Sequence[TargetState], weights: Sequence[float], draw: float, now: float) -> int:
        index = self._next % len(states)
        self._next = index + 1
        return index


class WeightedRoundRobin:
    """In turns by weight, spread evenly: nginx's smooth weighted round robin (nginx commit 52327e0, 2012)."""

    __slots__ = ("_credit",)

    def __init__(self) -> None:
        self._credit: list[float] = []

    def pick(self, states: Sequence[TargetState], weights: Sequence[float], draw: float, now: float) -> int:
        credit = self._credit
        if len(credit) != len(weights):
            credit = self._credit = [0.0] * len(weights)
        total = 0.0
        best = 0
        for index, weight in enumerate(weights):
            total += weight
            credit[index] += weight
            if credit[index] > credit[best]:
                best = index
        credit[best] -= total
        return best


class Drawn:
    """By chance, by weight."""

    __slots__ = ()

    def pick(self, states: Sequence[TargetState], weights: Sequence[float], draw: float, now: float) -> int:
        return by_weight(weights, draw)


def by_weight(weights: Sequence[float], draw: float) -> int:
    """The index under which `draw` falls."""
    at = draw * sum(weights)
    for index, weight in enumerate(weights):
        at -= weight
        if at < 0.0:
            return index
    return len(weights) - 1  # the sum was rounded up
