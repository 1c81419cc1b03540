"""Embeddings spread out, so that the nearest examples are near in what tells examples apart.

The embeddings of a model share one large part, and differ most along a few directions, which most texts have something of
(Mu and Viswanath 2018, All-but-the-Top). Which examples are nearest is decided by these then. So what is shared is taken off, and
directions in which examples differ by more than on average are made shorter. A head needs none of that: it weighs directions
itself, and was right less often on embeddings that were spread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]

POWER = 0.25
"""A direction of which examples have n times as much variance as of others is divided by n to this. Chosen by cross-validation on
the labelled set, as all of `votes`."""


class Spread(msgspec.Struct, frozen=True):
    """What embeddings are spread by; made from examples."""

    mean: Matrix
    along: Matrix
    """Directions that are made shorter, a column each."""
    off: Matrix
    """The share of each that goes."""

    def out(self, embeddings: Matrix) -> Matrix:
        """Embeddings spread out, of length 1."""
        import numpy as np

        less = embeddings - self.mean
        less -= ((less @ self.along) * self.off) @ self.along.T
        found: Matrix = (less / np.maximum(np.linalg.norm(less, axis=1, keepdims=True), 1e-12)).astype(np.float32)
        return found


def spread(embeddings: Matrix) -> Spread:
    """By what these are spread, and others of the same model. By their mean alone where no direction stands out."""
    import numpy as np

    mean = embeddings.mean(axis=0, dtype=np.float64).astype(np.float32)
    less = embeddings - mean
    variances, along = np.linalg.eigh((less.T @ less).astype(np.float64) / len(embeddings))
    # A little more than the mean: where all are alike, what is left is how far a product is from exact.
    wide = variances > 1.0001 * variances.mean() + 1e-12
    off = 1.0 - (variances.mean() / variances[wide]) ** POWER
    return Spread(mean, np.ascontiguousarray(along[:, wide], dtype=np.float32), off.astype(np.float32))
