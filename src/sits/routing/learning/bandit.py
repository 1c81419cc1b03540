"""A contextual bandit: whom to choose, by what came of earlier choices.

SquareCB (Foster and Rakhlin, "Beyond UCB: Optimal and Efficient Contextual Bandits with Regression Oracles", ICML 2020) with
inverse gap weighting (Abe and Long 1999): a choice that is expected to do worse by `gap` gets 1 / (arms + gamma * gap), the best
one the rest.
Three things are ours:

- what would be chosen without learning (`usual`) counts as the best one until another is surely better, so that little is lost
  where it was right from the start;
- every choice has at least `floor`, and all but the best one together at most `explored`;
- outcomes are forgotten by half-life, so that a change is followed.

Pure and deterministic: the random number is passed in. The probabilities that come with a choice are those it was drawn by.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import msgspec

from sits.routing.learning.oracle import Oracle, OracleState

MOST_ARMS = 64
"""Arms that are remembered; the one that was not chosen for the longest goes first."""
SURE = 2.0
"""Standard errors by which another arm must be better than the usual one."""
GAMMA = 12.0
"""Scales the weight of gaps: gamma = GAMMA * sqrt(arms * outcomes)."""
VARIANCE = 0.1
"""Of rewards around their expectation, before it is known."""


class Choice(msgspec.Struct, frozen=True, gc=False):
    """What was chosen, and by what chance."""

    arm: str
    propensity: float
    propensities: tuple[float, ...]
    """Of all arms that could be chosen, in their order; the sum is 1."""
    best: str
    """The arm that is thought best."""


class BanditState(msgspec.Struct, frozen=True):
    """What is kept of a bandit; at most `MOST_ARMS` arms."""

    arms: dict[str, OracleState]
    step: int
    count: float
    errors: float


class Bandit:
    """Chooses among arms by name. One for each route."""

    __slots__ = ("_arms", "_blank", "_count", "_errors", "_explored", "_floor", "_keep", "_size", "step")

    def __init__(self, size: int, floor: float = 0.02, explored: float = 0.1, half_life: float = 4000.0) -> None:
        if not 0.0 < floor <= 0.5 or not 0.0 < explored <= 0.5 or half_life <= 0.0:
            raise ValueError("floor and explored are above 0 and at most 0.5, a half-life is above 0")
        self._size = size
        self._floor: float = floor
        self._explored: float = explored
        self._keep: float = 0.5 ** (1.0 / half_life)
        self._arms: dict[str, Oracle] = {}
        self._blank = Oracle(size)
        self._count: float = 0.0
        self._errors: float = 0.0
        self.step: int = 0
        """Outcomes that were learned from."""

    def __len__(self) -> int:
        return len(self._arms)

    def expected(self, context: Sequence[float], arm: str) -> float:
        """The reward that is expected of an arm."""
        return self._oracle(arm).expected(context)

    def choose(self, context: Sequence[float], arms: Sequence[str], draw: float, usual: int = 0) -> Choice:
        """One of `arms`; `draw` is uniform in [0, 1), `usual` the index of what would be chosen without learning.

        Where floors alone would pass `explored`, floors win: whoever may be chosen has at least that.
        """
        size = len(arms)
        if size == 1:
            return Choice(arms[0], 1.0, (1.0,), arms[0])
        expected = [self._oracle(arm).expected(context) for arm in arms]
        best = self._best(context, arms, expected, usual)
        gamma = GAMMA * sqrt(size * self._count)
        ahead = expected[best]
        weighted = [1.0 / (size + gamma * max(0.0, ahead - value)) for value in expected]
        return drawn(arms, best, weighted, self._floor, self._explored, draw)

    def learn(self, context: Sequence[float], arm: str, propensity: float, reward: float) -> None:
        """Take in what came of a choice; `reward` is 0 to 1.

        The regression takes every outcome as it is: its estimates are per arm, so how often an arm is chosen does not bend them.

        Raises:
            ValueError: a number is out of range.
        """
        if not 0.0 < propensity <= 1.0 or not 0.0 <= reward <= 1.0 or len(context) != self._size:
            raise ValueError("a propensity is in (0, 1], a reward in [0, 1], and a context has its size")
        self.step += 1
        keep = self._keep
        # Taken from the end and put back there, an arm is young: the first of the table is the oldest.
        oracle = self._arms.pop(arm, None) or Oracle(self._size, self.step)
        error = reward - oracle.expected(context)
        self._count = self._count * keep + 1.0
        self._errors = self._errors * keep + error * error
        oracle.learn(context, reward, self.step, keep)
        while len(self._arms) >= MOST_ARMS:
            del self._arms[next(iter(self._arms))]
        self._arms[arm] = oracle
        if self.step % 256 == 0:
            # An arm that has no outcomes any more becomes unsure, too.
            for other in self._arms.values():
                other.fade(self.step, keep)

    def to_state(self) -> BanditState:
        return BanditState({arm: oracle.to_state() for arm, oracle in self._arms.items()}, self.step, self._count, self._errors)

    def from_state(self, state: BanditState) -> None:
        """Go on from what was kept.

        Raises:
            ValueError: it does not fit this bandit; nothing is changed then.
        """
        if len(state.arms) > MOST_ARMS or not 0.0 <= state.count < 1e9 or not 0.0 <= state.errors < 1e9 or state.step < 0:
            raise ValueError("what is kept is not that of a bandit")
        self._arms = {arm: Oracle.from_state(held, self._size) for arm, held in state.arms.items()}
        self.step, self._count, self._errors = state.step, state.count, state.errors

    def _oracle(self, arm: str) -> Oracle:
        found = self._arms.get(arm)
        return found if found is not None else self._blank

    def _best(self, context: Sequence[float], arms: Sequence[str], expected: Sequence[float], usual: int) -> int:
        best, most = usual, 0.0
        variance = (VARIANCE * 10.0 + self._errors) / (10.0 + self._count)
        doubt = -1.0
        for at, value in enumerate(expected):
            if value <= expected[usual] or at == usual:
                continue
            if doubt < 0.0:
                doubt = self._oracle(arms[usual]).doubt(context)
            surely = value - expected[usual] - SURE * sqrt(variance * (doubt + self._oracle(arms[at]).doubt(context)))
            if surely > most:
                best, most = at, surely
        return best


def drawn(arms: Sequence[str], best: int, weighted: Sequence[float], floor: float, explored: float, draw: float) -> Choice:
    """A choice by these chances of all but the best, brought between `floor` each and `explored` together."""
    size = len(arms)
    floor = min(floor, 1.0 / size)
    others = sum(weighted) - weighted[best]
    room = max(0.0, explored - (size - 1) * floor)
    above = [max(0.0, value - floor) for value in weighted]
    total = sum(above) - above[best]
    scale = min(1.0, room / total) if total > 0.0 and others > 0.0 else 0.0
    chances = [floor + scale * value for value in above]
    chances[best] = 0.0
    chances[best] = 1.0 - sum(chances)
    left = draw
    chosen = best
    for at, chance in enumerate(chances):
        if left < chance:
            chosen = at
            break
        left -= chance
    return Choice(arms[chosen], chances[chosen], tuple(chances), arms[best])
