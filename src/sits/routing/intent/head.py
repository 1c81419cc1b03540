"""A linear head over embeddings: multinomial logistic regression with a quadratic penalty, fitted on the examples of domains.

It is fitted in the dual (one coefficient for each example and class), where embeddings of some thousand numbers cost no more than
short ones, by accelerated gradient steps (Nesterov 1983) of a fixed count: the same examples give the same head, to the bit.
Answering is one product of a vector and a matrix. Up to some ten thousand examples the matrix of their products fits in memory
(10,000: 800 MB, so there less is better); no index is needed, since no example is looked up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]
    Double = npt.NDArray[np.float64]

STEPS = 200
"""Steps of a fit; more change no choice on the labelled set."""
MOST_EXAMPLES = 10_000


class Head(msgspec.Struct, frozen=True):
    """Scores of classes, one column each."""

    weights: Matrix
    bias: Matrix

    def scores(self, vectors: Matrix) -> Matrix:
        """A row of scores (log-odds without a common offset) for each row, or one for a single vector."""
        scored: Matrix = vectors @ self.weights + self.bias
        return scored


def fit(vectors: Matrix, labels: npt.NDArray[np.intp], classes: int, penalty: float, steps: int = STEPS) -> Head:
    """The head that fits labelled vectors; `labels` are columns.

    Raises:
        ValueError: no examples, more than `MOST_EXAMPLES`, or a label that is no class.
    """
    import numpy as np

    count = len(vectors)
    if not 0 < count <= MOST_EXAMPLES:
        raise ValueError(f"a head is fitted on 1 to {MOST_EXAMPLES} examples, not {count}")
    if len(labels) != count or int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise ValueError(f"labels are one of 0 to {classes - 1} for each example")
    middle = vectors.mean(axis=0, dtype=np.float64)
    centred = vectors - middle
    scale = float(np.sqrt((centred**2).sum(axis=1).mean())) or 1.0
    centred /= scale
    duals, bias = _descend(centred @ centred.T, np.eye(classes)[labels], penalty, steps)
    weights = centred.T @ duals / scale
    return Head(weights.astype(np.float32), (bias - middle @ weights).astype(np.float32))


def _descend(products: Double, targets: Double, penalty: float, steps: int) -> tuple[Double, Double]:
    """Coefficients of examples, and offsets of classes."""
    import numpy as np

    count, classes = targets.shape
    # The softmax bends by at most 1/2 along any direction (Boehning 1992).
    step = 1.0 / (0.5 * _largest(products) / count + penalty + 1e-12)
    duals, bias = np.zeros((count, classes)), np.zeros(classes)
    last_duals, last_bias, pace = duals, bias, 1.0
    for _ in range(steps):
        faster = (1.0 + (1.0 + 4.0 * pace * pace) ** 0.5) / 2.0
        ahead, pace = (pace - 1.0) / faster, faster
        there, there_bias = duals + ahead * (duals - last_duals), bias + ahead * (bias - last_bias)
        last_duals, last_bias = duals, bias
        wrong = (softmax(products @ there + there_bias) - targets) / count
        duals = there - step * (wrong + penalty * there)
        bias = there_bias - wrong.sum(axis=0)
    return duals, bias


def _largest(products: Double) -> float:
    """The largest eigenvalue of a matrix of products, by 30 steps of the power method; no smaller than it, within 5 %."""
    import numpy as np

    vector = np.ones(len(products)) + np.arange(len(products)) / len(products)
    length = 0.0
    for _ in range(30):
        vector = products @ vector
        length = float(np.linalg.norm(vector))
        if length == 0.0:
            return 0.0
        vector /= length
    return 1.05 * length


def softmax(scores: Double) -> Double:
    """Probabilities of rows of scores."""
    import numpy as np

    lifted = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shared: Double = lifted / lifted.sum(axis=-1, keepdims=True)
    return shared
