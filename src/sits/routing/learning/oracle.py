"""What reward is expected of one choice, and how surely: least squares that forgets.

Ridge regression in the information form: A = sum of decayed x x', b = sum of decayed x r; the estimate solves (A + ridge I) w = b
- by Cholesky, since it is small. Forgetting multiplies A and b, so what was not seen for long becomes unsure again, and the ridge
keeps it from becoming anything. No numpy: six numbers a row are quicker without.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import msgspec

RIDGE = 1.0
"""Counts like one outcome of `PRIOR` in every direction."""
PRIOR = 0.5
"""The reward that is expected before anything is known."""


class OracleState(msgspec.Struct, frozen=True):
    """What is kept of an oracle."""

    information: list[list[float]]
    moments: list[float]
    step: int


class Oracle:
    """Estimates for one choice. Rewards are 0 to 1; features of any size, the same each time."""

    __slots__ = ("_factor", "_information", "_moments", "_size", "_step", "_weights")

    def __init__(self, size: int, step: int = 0) -> None:
        self._size = size
        self._information: list[list[float]] = [[0.0] * (row + 1) for row in range(size)]
        self._moments: list[float] = [0.0] * size
        self._step: int = step
        self._factor: list[list[float]] = []
        self._weights: list[float] = []
        self._solve()

    def expected(self, features: Sequence[float]) -> float:
        """The reward that is expected, 0 to 1."""
        value = PRIOR
        for weight, feature in zip(self._weights, features, strict=True):
            value += weight * feature
        return 0.0 if value < 0.0 else 1.0 if value > 1.0 else value

    def doubt(self, features: Sequence[float]) -> float:
        """x' (A + ridge I)^-1 x: the variance of the estimate, in units of one outcome's."""
        total = 0.0
        solved: list[float] = []
        for row, feature in zip(self._factor, features, strict=True):
            value = feature
            for held, done in zip(row, solved, strict=False):
                value -= held * done
            value /= row[-1]
            solved.append(value)
            total += value * value
        return total

    def learn(self, features: Sequence[float], reward: float, step: int, keep: float) -> None:
        """Take one outcome in; `keep` is what is left of one after a step."""
        self._fade(step, keep)
        for at, feature in enumerate(features):
            if feature:
                row = self._information[at]
                for other in range(at + 1):
                    row[other] += feature * features[other]
                self._moments[at] += feature * (reward - PRIOR)
        self._solve()

    def fade(self, step: int, keep: float) -> None:
        """Forget up to this step."""
        self._fade(step, keep)
        self._solve()

    def to_state(self) -> OracleState:
        return OracleState([list(row) for row in self._information], list(self._moments), self._step)

    @classmethod
    def from_state(cls, state: OracleState, size: int) -> Oracle:
        """The oracle again.

        Raises:
            ValueError: it was of another size, or holds numbers that no outcomes lead to.
        """
        if [len(row) for row in state.information] != list(range(1, size + 1)) or len(state.moments) != size:
            raise ValueError(f"what is kept is not of {size} features")
        if any(not abs(value) < 1e12 for row in (*state.information, state.moments) for value in row):
            raise ValueError("what is kept holds a number that is none")
        oracle = cls(size, state.step)
        oracle._information = [list(row) for row in state.information]
        oracle._moments = list(state.moments)
        oracle._solve()
        return oracle

    def _fade(self, step: int, keep: float) -> None:
        gone = keep ** max(0, step - self._step)
        self._step = max(step, self._step)
        if gone < 1.0:
            self._information = [[value * gone for value in row] for row in self._information]
            self._moments = [value * gone for value in self._moments]

    def _solve(self) -> None:
        """Cholesky of A + ridge I, and the weights by two substitutions."""
        factor: list[list[float]] = []
        for at, row in enumerate(self._information):
            made: list[float] = []
            for other in range(at):
                value = row[other]
                for one, two in zip(made, factor[other], strict=False):
                    value -= one * two
                made.append(value / factor[other][other])
            rest = row[at] + RIDGE - sum([value * value for value in made])
            if rest <= 0.0:
                raise ValueError("the information is not that of any outcomes")
            made.append(sqrt(rest))
            factor.append(made)
        weights = list(self._moments)
        for at, row in enumerate(factor):
            for other in range(at):
                weights[at] -= row[other] * weights[other]
            weights[at] /= row[at]
        for at in range(self._size - 1, -1, -1):
            for other in range(at + 1, self._size):
                weights[at] -= factor[other][at] * weights[other]
            weights[at] /= factor[at][at]
        self._factor, self._weights = factor, weights
