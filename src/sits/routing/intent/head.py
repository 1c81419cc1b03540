"""A linear head over embeddings and words: multinomial logistic regression with a quadratic penalty, fitted on examples.

It is fitted in the dual (one coefficient for each example and class), where long vectors cost no more than short ones, to the
optimum (`optimum`): the same examples give the same head, to the bit. Answering is one product of a vector and a matrix. Up to
some ten thousand examples the matrix of their products fits in memory (10,000: 400 MB, and fitting holds it twice); no index is
needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from sits.routing.intent.optimum import minimise
from sits.routing.intent.seen import Seen

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]
    Labels = npt.NDArray[np.intp]

MOST_EXAMPLES = 10_000


class Head(msgspec.Struct, frozen=True):
    """Scores of classes, one column each."""

    weights: Matrix
    bias: Matrix

    def scores(self, seen: Seen) -> Matrix:
        """A row of scores (log-odds without a common offset) for each row."""
        return seen.times(self.weights) + self.bias


class _Solved(msgspec.Struct, frozen=True):
    """A coefficient of each example and class, for its product with what is scored, and offsets."""

    duals: Matrix
    bias: Matrix


def fit(seen: Seen, targets: Matrix, penalty: float, products: Matrix, weights: Matrix | None = None) -> Head:
    """The head that fits examples, whose products are `products`; `targets` has the share of each class in each of them, and
    `weights` how much each counts, all alike when not given.

    Raises:
        ValueError: no examples, more than `MOST_EXAMPLES`, or not as many targets.
    """
    found = _solve(products, targets, penalty, weights)
    return Head(seen.weighed(found.duals), found.bias)


def out_of_fold(
    products: Matrix,
    targets: Matrix,
    penalty: float,
    fold: Labels,
    weights: Matrix | None = None,
    heard: Callable[[], None] = lambda: None,
) -> Matrix:
    """Scores of each example by a head that is fitted without its fold. `heard` is called with each that is fitted.

    Raises:
        ValueError: as `fit`; there is one fold only.
    """
    import numpy as np

    scores: Matrix = np.zeros_like(targets)
    for one in np.unique(fold):
        out = fold == one
        weighing = None if weights is None else weights[~out]
        found = _solve(products[np.ix_(~out, ~out)], targets[~out], penalty, weighing)
        scores[out] = products[np.ix_(out, ~out)] @ found.duals + found.bias
        heard()
    return scores


def ones(labels: Labels, classes: int) -> Matrix:
    """Targets for labels, which are columns.

    Raises:
        ValueError: a label that is no class.
    """
    import numpy as np

    if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise ValueError(f"labels are one of 0 to {classes - 1} for each example")
    found: Matrix = np.eye(classes, dtype=np.float32)[labels]
    return found


def _solve(products: Matrix, targets: Matrix, penalty: float, weights: Matrix | None) -> _Solved:
    import numpy as np

    count = len(products)
    if not 0 < count <= MOST_EXAMPLES:
        raise ValueError(f"a head is fitted on 1 to {MOST_EXAMPLES} examples, not {count}")
    if len(targets) != count:
        raise ValueError(f"{count} examples have {len(targets)} targets")
    even = np.ones(count, np.float32) if weights is None else weights
    shares = (even / even.sum(dtype=np.float64)).astype(np.float32)
    means = products @ shares
    whole = float(means.astype(np.float64) @ shares)
    # Of vectors less their mean, without a copy of the vectors, which may be longer.
    centred = products - (means[:, None] - whole / 2)
    centred -= means[None, :] - whole / 2
    scale = float(centred.diagonal().astype(np.float64) @ shares)
    # Where all examples are alike, what is left is how far a product is from exact.
    scale = scale if scale > 1e-6 * whole else 1.0
    centred /= scale
    duals, bias = minimise(centred, targets, penalty, shares)
    # What is scored is not centred: the mean goes into the coefficients, and its scores off the offsets.
    duals = (duals - shares[:, None] * duals.sum(axis=0)) / scale
    return _Solved(duals, (bias - means @ duals).astype(np.float32))
