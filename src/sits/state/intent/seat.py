"""Embeddings of any model, laid where those of the built-in one lie, so that what is said in cosines means the same.

How near an example must be to count, how sharp votes are and how much words weigh beside an embedding were all chosen by
multilingual-e5-small, whose embeddings share one large part and differ by little. Another model's differ by more, or by less. So
what all of its embeddings share is taken off, and a number that is the same for all is put beside the rest: the more of it, the
nearer all are to each other. How much is set by the background, whose texts are the same for every model.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from sits.routing.intent import script
from sits.routing.intent.levels import offsets

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]
    Labels = npt.NDArray[np.intp]

SPREAD = 0.0306
"""The standard deviation of the cosines of two texts of the background, what is of their language taken off, by
multilingual-e5-small."""
HALVINGS = 12
FEWEST = 2
"""Texts from which a mean and a spread say something."""


class Seat(msgspec.Struct, frozen=True):
    """Where the embeddings of one model are laid; made from its background."""

    mean: Matrix
    """What they share."""
    share: float
    """Of their own in what is made of them; the rest is the same for all."""

    def place(self, rows: Matrix) -> Matrix:
        """Embeddings with one number more, of length 1."""
        import numpy as np

        found = np.empty((len(rows), rows.shape[1] + 1), dtype=np.float32)
        found[:, :-1] = math.sqrt(self.share) * centred(rows, self.mean)
        found[:, -1] = math.sqrt(1.0 - self.share)
        return found


def seat(rows: Matrix, spoken: Labels) -> Seat:
    """Where a model's embeddings are laid, by those of the background and the script of each text."""
    import numpy as np

    if len(rows) < FEWEST:
        return Seat(np.zeros(rows.shape[1], dtype=np.float32), 1.0)
    mean = shared(rows, spoken)
    own = centred(rows, mean)
    taken = offsets(own, spoken)
    less: Matrix = own if taken is None else (own - taken[spoken]).astype(np.float32)
    return Seat(mean, _share(less @ less.T))


def _share(products: Matrix) -> float:
    """The share with which cosines spread as they are to, by the products of what is each text's own."""
    import numpy as np

    pairs = np.triu_indices(len(products), 1)

    def spread(share: float) -> float:
        mixed = share * products + (1.0 - share)
        lengths = np.sqrt(np.maximum(np.diagonal(mixed), 1e-12))
        return float((mixed / lengths[:, None] / lengths[None, :])[pairs].std())

    low, high = 0.0, 1.0
    if spread(high) <= SPREAD:
        return high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if spread(middle) < SPREAD else (low, middle)
    return high


def shared(rows: Matrix, spoken: Labels) -> Matrix:
    """What embeddings have in common, each script counting as much as another."""
    import numpy as np

    parts = [rows[spoken == one] for one in range(script.COUNT)]
    means = np.stack([part.mean(axis=0, dtype=np.float64) for part in parts if len(part)])
    found: Matrix = means.mean(axis=0).astype(np.float32)
    return found


def centred(rows: Matrix, mean: Matrix) -> Matrix:
    """Embeddings without what they share, of length 1."""
    import numpy as np

    less = rows - mean
    found: Matrix = (less / np.maximum(np.linalg.norm(less, axis=1, keepdims=True), 1e-12)).astype(np.float32)
    return found
