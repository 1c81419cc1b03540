"""What outcome is expected of each target for a request, by ridge regression on what was known beforehand; no numpy is needed.

Fitted in folds: what is expected of a row comes from the others, so that the errors of the fit do not correlate with the outcome
(cross-fitting: Chernozhukov and others, "Double/debiased machine learning", 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

FOLDS = 5
_RIDGE = 1e-3


class Regression:
    """A line for each target. Features are the same in number for all; a constant is added to them."""

    def __init__(self, size: int, folds: int = FOLDS) -> None:
        self._size = size + 1
        self._folds = folds
        self._sums: dict[tuple[str, int], _Sums] = {}
        self._fits: dict[tuple[str, int], list[float] | None] = {}
        self._count = 0
        self._total = 0.0

    def add(self, action: str, features: Sequence[float], outcome: float, fold: int) -> None:
        """A row that was observed."""
        sums = self._sums.get((action, fold))
        if sums is None:
            sums = self._sums[action, fold] = _Sums(self._size)
        sums.add((1.0, *features), outcome)
        self._count += 1
        self._total += outcome

    def expected(self, action: str, features: Sequence[float], fold: int) -> float:
        """For a row of this fold, by the rows of the others; the mean of all where nothing was seen of the target there."""
        key = (action, fold)
        if key not in self._fits:
            self._fits[key] = self._fit(action, fold)
        fit = self._fits[key]
        if fit is None:
            return self._total / self._count if self._count else 0.0
        return fit[0] + sum(weight * feature for weight, feature in zip(fit[1:], features, strict=True))

    def _fit(self, action: str, fold: int) -> list[float] | None:
        total = _Sums(self._size)
        for other in range(self._folds):
            sums = self._sums.get((action, other))
            if other != fold and sums is not None:
                total.join(sums)
        return total.solved() if total.count else None


class _Sums:
    """The normal equations of one target."""

    __slots__ = ("count", "moments", "products")

    def __init__(self, size: int) -> None:
        self.count = 0
        self.products = [[0.0] * size for _ in range(size)]
        self.moments = [0.0] * size

    def add(self, row: Sequence[float], outcome: float) -> None:
        self.count += 1
        for index, one in enumerate(row):
            self.moments[index] += one * outcome
            products = self.products[index]
            for place in range(index + 1):
                products[place] += one * row[place]

    def join(self, other: _Sums) -> None:
        self.count += other.count
        for index, products in enumerate(other.products):
            self.moments[index] += other.moments[index]
            for place in range(index + 1):
                self.products[index][place] += products[place]

    def solved(self) -> list[float]:
        """By Cholesky. Each feature is held back by its own size, the constant is not."""
        size = len(self.moments)
        factor = [[0.0] * size for _ in range(size)]
        for row in range(size):
            for column in range(row + 1):
                value = self.products[row][column]
                if row == column:
                    value += (_RIDGE * value + 1e-9) if row else 1e-9
                value -= sum(factor[row][k] * factor[column][k] for k in range(column))
                factor[row][column] = sqrt(max(value, 1e-12)) if row == column else value / factor[column][column]
        first: list[float] = []
        for row in range(size):
            first.append((self.moments[row] - sum(factor[row][k] * first[k] for k in range(row))) / factor[row][row])
        found = [0.0] * size
        for row in range(size - 1, -1, -1):
            found[row] = (first[row] - sum(factor[k][row] * found[k] for k in range(row + 1, size))) / factor[row][row]
        return found
