"""Moves alpha, beta and the bounds to where outcomes say that they should be.

Every outcome is an A/B test of all rules at once, since what was chosen was drawn with a known probability. Beside the rule in
force stand its neighbours, each with one number moved a little or more. For each neighbour the difference in reward is estimated
doubly robustly (Dudik, Langford and Li, "Doubly Robust Policy Evaluation and Learning", ICML 2011):

    d = q(other) - q(ours) + [chosen = other] (r - q(other)) / p(other) - [chosen = ours] (r - q(ours)) / p(ours)

where both name the same tier, d is 0. A neighbour whose mean difference is more than `SURE` standard errors above 0, over at
least `FEWEST` outcomes in which the two disagree, is put in force, and counting begins anew: one careful step at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import sqrt

import msgspec

from sits.routing.complexity.tiers import Formula, Tier, tier

SURE = 3.0
FEWEST = 50
STEPS = (0.05, 0.15)
"""How far a neighbour's number is from ours."""
EDGE = 0.02
"""Bounds stay this far from 0 and 1."""
APART = 0.05
"""And this far from each other."""
HEAVIEST = 0.8
"""The largest share that load may get."""


class Rule(msgspec.Struct, frozen=True):
    """The numbers that make a tier."""

    alpha: float = 0.4
    beta: float = 0.6
    low: float = 0.3
    high: float = 0.7
    formula: Formula = "relief"

    def tier(self, load: float, complexity: float) -> Tier:
        """The tier by this rule."""
        return tier(load, complexity, self.alpha, self.beta, (self.low, self.high), self.formula)

    def neighbours(self) -> Iterator[Rule]:
        """Rules with one number moved, within what makes sense."""
        whole = self.alpha + self.beta
        for step in STEPS:
            for sign in (step, -step):
                low, high, alpha = round(self.low + sign, 4), round(self.high + sign, 4), round(self.alpha + sign * whole, 4)
                if EDGE <= low <= self.high - APART:
                    yield msgspec.structs.replace(self, low=low)
                if self.low + APART <= high <= 1.0 - EDGE:
                    yield msgspec.structs.replace(self, high=high)
                if 0.0 <= alpha <= HEAVIEST * whole:
                    yield msgspec.structs.replace(self, alpha=alpha, beta=round(whole - alpha, 4))


class Rival(msgspec.Struct):
    """A neighbour and how it does against the rule in force; decayed sums."""

    rule: Rule
    differ: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def sure(self, count: float) -> float:
        """Standard errors of the mean difference above 0; 0 while there is too little."""
        if self.differ < FEWEST or self.squares <= 0.0:
            return 0.0
        mean = self.total / count
        variance = max(1e-12, self.squares / count - mean * mean)
        return mean / sqrt(variance / count)


class CalibrationState(msgspec.Struct, frozen=True):
    """What is kept of a calibration."""

    rule: Rule
    rivals: list[Rival]
    count: float
    moves: int


class Calibration:
    """The rule in force and its neighbours."""

    __slots__ = ("_count", "_keep", "_rivals", "moves", "rule")

    def __init__(self, rule: Rule, half_life: float = 4000.0) -> None:
        self._keep: float = 0.5 ** (1.0 / half_life)
        self.moves: int = 0
        """How often the rule was moved."""
        self.rule = rule
        self._rivals = [Rival(neighbour) for neighbour in rule.neighbours()]
        self._count: float = 0.0

    def learn(
        self,
        load: float,
        complexity: float,
        chosen: str,
        chances: Mapping[str, float],
        expected: Mapping[str, float],
        reward: float,
    ) -> bool:
        """Take in an outcome; whether the rule was moved. `chances` and `expected` are of each tier that could be chosen, and
        `expected` is from before this outcome was known."""
        keep = self._keep
        ours = self.rule.tier(load, complexity)
        self._count = self._count * keep + 1.0
        most, best = SURE, None
        for rival in self._rivals:
            rival.differ *= keep
            rival.total *= keep
            rival.squares *= keep
            other = rival.rule.tier(load, complexity)
            if other == ours or other not in chances or ours not in chances:
                continue
            difference = expected[other] - expected[ours]
            if chosen == other:
                difference += (reward - expected[other]) / chances[other]
            elif chosen == ours:
                difference -= (reward - expected[ours]) / chances[ours]
            rival.differ += 1.0
            rival.total += difference
            rival.squares += difference * difference
            if (sure := rival.sure(self._count)) > most:
                most, best = sure, rival
        if best is None:
            return False
        self.moves += 1
        self.rule = best.rule
        self._rivals = [Rival(neighbour) for neighbour in best.rule.neighbours()]
        self._count = 0.0
        return True

    def to_state(self) -> CalibrationState:
        return CalibrationState(self.rule, [msgspec.structs.replace(rival) for rival in self._rivals], self._count, self.moves)

    def from_state(self, state: CalibrationState) -> None:
        """Go on from what was kept.

        Raises:
            ValueError: it is not what a calibration keeps; nothing is changed then.
        """
        rule = state.rule
        if not (0.0 <= rule.low < rule.high <= 1.0 and rule.alpha >= 0.0 and rule.beta >= 0.0 and rule.alpha + rule.beta > 0.0):
            raise ValueError("the rule that is kept is none")
        if [rival.rule for rival in state.rivals] != list(rule.neighbours()) or not 0.0 <= state.count < 1e9:
            raise ValueError("the neighbours that are kept are not those of the rule")
        self.rule, self.moves, self._count = rule, state.moves, state.count
        self._rivals = [msgspec.structs.replace(rival) for rival in state.rivals]
