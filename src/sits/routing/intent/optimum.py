"""The optimum of multinomial logistic regression with a quadratic penalty, in the dual, by L-BFGS (Liu and Nocedal 1989).

Lengths and angles are those of the weights that coefficients stand for, so a step takes one product with the matrix of products:
that of its gradient. All else is sums of what is there: a direction is one of the gradient and of what is remembered, its
scores are the same sum of theirs, and so looking along it takes no product.

How far a step goes is found by Newton's steps within a bracket, until the approximate Wolfe conditions hold (Hager and Zhang
2005): what is left of the slope is a part of what it was, and the loss is not higher, but for rounding. The loss is convex, so
every step lowers it, and what is remembered bends upwards. There is no chance in it: the same examples give the same optimum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]
    Doubles = npt.NDArray[np.float64]

Floats = TypeVar("Floats", "npt.NDArray[np.float32]", "npt.NDArray[np.float64]")

FLAT = 1e-4
"""The length of a gradient, against that of the first one, at which its place is taken for the optimum. Of the twelve domains of
the labelled set no verdict of either stage is another than there, and probabilities are 0.0005 off on average at the most."""
STEPS = 150
"""Steps at the most. Heads of twelve domains take 100 to 150, of 300 domains 110 to 150."""
PAIRS = 10
"""Steps that are remembered, each with what it changed of the gradient; twice as many save one step in ten."""
FEWEST_PAIRS = 2
ROOM = 96 << 20
"""Bytes for them, where these suffice for the fewest: with 300 domains and 10,000 examples a step takes 48 MB."""
RIDGE = 1e-6
"""What products with itself are taken for larger, of their mean: as float32 has them, they may leave room for coefficients that
seem to have no length, or less than none, and would grow without end."""
LEFT = 0.2
"""The part of a slope that may be left where a step ends."""
TRIES = 20
"""Places that are looked at along a direction, at the most: Newton's steps need one to three."""
FARTHER = 4.0
"""How many times as far is looked at most where the loss goes down still."""
ROUNDED = 1e-7
"""What a loss may be off by, of itself, in float32."""


class _Place(msgspec.Struct, frozen=True):
    """Coefficients of examples, their product, and offsets of classes; or a direction, or a gradient."""

    duals: Matrix
    scores: Matrix
    bias: Matrix

    def dot(self, other: _Place) -> float:
        import numpy as np

        rows = np.einsum("ij,ij->i", self.duals, other.scores)
        return float(rows.sum(dtype=np.float64)) + float(self.bias.astype(np.float64) @ other.bias)

    def times(self, by: float) -> None:
        """Make it longer, in place: of 300 domains a matrix has 12 MB."""
        for part in (self.duals, self.scores, self.bias):
            part *= by

    def add(self, other: _Place) -> None:
        """Go on from it, in place."""
        for part, more in ((self.duals, other.duals), (self.scores, other.scores), (self.bias, other.bias)):
            part += more


class _Given(msgspec.Struct, frozen=True):
    """What is fitted, and by how much products with itself are taken for larger."""

    products: Matrix
    targets: Matrix
    penalty: float
    shares: Matrix
    ridge: float

    def slope(self, at: _Place, chances: Matrix) -> _Place:
        """The gradient at a place, where the probabilities are these; they are written over."""
        import numpy as np

        wrong = chances
        wrong -= self.targets
        wrong *= self.shares[:, None]
        bias = wrong.sum(axis=0, dtype=np.float64).astype(np.float32)
        # Of centred products what all have in common is nothing: it would only grow, and cost the rest its last digits.
        wrong -= self.shares[:, None] * bias
        wrong += np.float32(self.penalty) * at.duals
        scores = self.products @ wrong
        scores += np.float32(self.ridge) * wrong
        return _Place(wrong, scores, bias)


def minimise(products: Matrix, targets: Matrix, penalty: float, shares: Matrix) -> tuple[Matrix, Matrix]:
    """Coefficients of examples, whose `products` are centred, and offsets of classes. `targets` has the share of each class in
    each example, `shares` how much each counts, 1 in all."""
    import numpy as np

    given = _Given(products, targets, penalty, shares, RIDGE * float(products.diagonal().mean(dtype=np.float64)))
    shape = targets.shape
    at = _Place(np.zeros(shape, np.float32), np.zeros(shape, np.float32), np.zeros(shape[1], np.float32))
    slope, level = given.slope(at, softmax(at.scores)), float(np.log(shape[1]))
    remembered = _Remembered(shape)
    flat = FLAT * slope.dot(slope) ** 0.5
    for _ in range(STEPS):
        if slope.dot(slope) <= flat * flat:
            break
        found = _step(given, at, slope, level, remembered)
        if found is None:
            break
        slope, level = found
    return at.duals, at.bias


def _step(given: _Given, at: _Place, slope: _Place, level: float, remembered: _Remembered) -> tuple[_Place, float] | None:
    """Takes the place a step on; the gradient and the level there. None where rounding is all that is left: what should go down
    does not, or does not bend."""
    way = remembered.way(slope)
    down = slope.dot(way)
    if down >= 0.0:
        return None
    reached = _Along(given, at, way, down, level).far(1.0 if remembered.pairs else 0.0)
    if reached is None:
        return None
    way.times(reached.far)
    at.add(way)
    there = given.slope(at, reached.chances)
    return (there, reached.level) if remembered.add(way, slope, there) else None


def softmax(scores: Floats) -> Floats:
    """Probabilities of rows of scores."""
    import numpy as np

    lifted = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shared: Floats = lifted / lifted.sum(axis=-1, keepdims=True)
    return shared


class _Reached(msgspec.Struct, frozen=True):
    """How far it went, the probabilities there, and the mean of the logarithms of the sums that they are parts of."""

    far: float
    chances: Matrix
    level: float


class _Remembered:
    """The last steps and what they changed of the gradient, row by row, and the products of all these with each other: a
    direction is found from those numbers, and is then one sum of the rows (as Chen et al. 2014)."""

    __slots__ = ("_bias", "_duals", "_most", "_products", "_scores", "pairs")

    def __init__(self, shape: tuple[int, ...]) -> None:
        import numpy as np

        count, classes = shape
        self._most = min(PAIRS, max(FEWEST_PAIRS, ROOM // (16 * count * classes)))
        self._duals: Matrix = np.empty((2 * self._most, count * classes), np.float32)
        self._scores: Matrix = np.empty((2 * self._most, count * classes), np.float32)
        self._bias: Matrix = np.empty((2 * self._most, classes), np.float32)
        self._products: Doubles = np.zeros((2 * self._most, 2 * self._most))
        self.pairs = 0
        """That there have been."""

    def add(self, step: _Place, last: _Place, slope: _Place) -> bool:
        """Another step; false where by rounding the loss does not bend along it."""
        import numpy as np

        at = 2 * (self.pairs % self._most)
        self._duals[at], self._scores[at], self._bias[at] = step.duals.ravel(), step.scores.ravel(), step.bias
        np.subtract(slope.duals.ravel(), last.duals.ravel(), out=self._duals[at + 1])
        np.subtract(slope.scores.ravel(), last.scores.ravel(), out=self._scores[at + 1])
        np.subtract(slope.bias, last.bias, out=self._bias[at + 1])
        self.pairs += 1
        live, pair = 2 * min(self.pairs, self._most), slice(at, at + 2)
        found = self._duals[:live] @ self._scores[pair].T + self._bias[:live] @ self._bias[pair].T
        self._products[:live, pair] = found
        self._products[pair, :live] = found.T
        return bool(self._products[at, at + 1] > 0.0 and self._products[at + 1, at + 1] > 0.0)

    def way(self, slope: _Place) -> _Place:
        """Downhill, as far as the last steps say how it bends."""
        import numpy as np

        live = 2 * min(self.pairs, self._most)
        ends = (self._scores[:live] @ slope.duals.ravel() + self._bias[:live] @ slope.bias).astype(np.float64)
        rows, of_slope = self._sum(ends)
        parts = rows.astype(np.float32)
        way = _Place(np.float32(of_slope) * slope.duals, np.float32(of_slope) * slope.scores, np.float32(of_slope) * slope.bias)
        if live:
            for part, of in ((way.duals, self._duals), (way.scores, self._scores), (way.bias, self._bias)):
                part += (parts @ of[:live]).reshape(part.shape)
        return way

    def _sum(self, ends: Doubles) -> tuple[Doubles, float]:
        """How often the direction has each row, and the slope, whose products with the rows are `ends`: the two loops of
        Nocedal (1980), in these numbers."""
        import numpy as np

        rows, of_slope = np.zeros(len(ends)), -1.0
        steps = [2 * (at % self._most) for at in range(max(0, self.pairs - self._most), self.pairs)]
        bends = {at: float(self._products[at, at + 1]) for at in steps}
        taken = {}
        for at in reversed(steps):
            taken[at] = float(self._products[at, : len(ends)] @ rows + of_slope * ends[at]) / bends[at]
            rows[at + 1] -= taken[at]
        if steps:
            at = steps[-1]
            even = bends[at] / float(self._products[at + 1, at + 1])
            rows, of_slope = even * rows, even * of_slope
        for at in steps:
            given = float(self._products[at + 1, : len(ends)] @ rows + of_slope * ends[at + 1]) / bends[at]
            rows[at] += taken[at] - given
        return rows, of_slope


class _Along:
    """The loss along a direction, from a place with this `level` (as `_Reached` says), where it goes `down`."""

    __slots__ = ("_begun", "_bends", "_down", "_level", "_moved", "_shares", "_wanted")

    def __init__(self, given: _Given, at: _Place, way: _Place, down: float, level: float) -> None:
        import numpy as np

        self._begun, self._moved = at.scores + at.bias, way.scores + way.bias
        self._shares, self._down, self._level = given.shares.astype(np.float64), down, level
        # What of the slope is the same everywhere, and how the penalty bends.
        pulled = given.penalty * float(np.einsum("ij,ij->i", way.duals, at.scores).sum(dtype=np.float64))
        self._wanted = pulled - self._mean(np.einsum("ij,ij->i", given.targets, self._moved))
        self._bends = max(0.0, given.penalty * float(np.einsum("ij,ij->i", way.duals, way.scores).sum(dtype=np.float64)))

    def far(self, first: float) -> _Reached | None:
        """Where the approximate Wolfe conditions hold; None where rounding hides such a place."""
        low, high, far = 0.0, float("inf"), first
        for _ in range(TRIES):
            found, slope, bends, risen = self._look(far)
            fell = risen <= ROUNDED * abs(self._level)
            if far > 0.0 and fell and abs(slope) <= LEFT * -self._down:
                return found
            low, high = (far, high) if slope < 0.0 and fell else (low, far)
            # Where it hardly bends, as where all is sure, Newton's step is as good as endless.
            most = min(high, FARTHER * far) if far > 0.0 else high
            newton = far - slope / bends if bends > 0.0 else high
            far = newton if low < newton < most else (low + high) / 2.0 if high < float("inf") else FARTHER * max(far, 1.0)
        return None

    def _look(self, far: float) -> tuple[_Reached, float, float, float]:
        """A place; the slope there, how it bends, and by how much the loss is higher than at the beginning."""
        import numpy as np

        chances = np.float32(far) * self._moved
        chances += self._begun
        highest = chances.max(axis=1, keepdims=True)
        chances -= highest
        np.exp(chances, out=chances)
        whole = chances.sum(axis=1, keepdims=True)
        chances /= whole
        level = self._mean((highest + np.log(whole))[:, 0])
        means = np.einsum("ij,ij->i", chances, self._moved)
        slope = self._mean(means) + self._wanted + far * self._bends
        bends = self._mean(np.einsum("ij,ij,ij->i", chances, self._moved, self._moved) - means * means) + self._bends
        risen = level - self._level + far * self._wanted + far * far / 2.0 * self._bends
        return _Reached(far, chances, level), slope, bends, risen

    def _mean(self, rows: Matrix) -> float:
        return float(rows.astype(self._shares.dtype) @ self._shares)
