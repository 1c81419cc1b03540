"""What a head sees of texts: embeddings, and beside them words, of which a text has few of many. The two are kept apart, so that
5,000 texts of 16,384 words take 4 MB, not 330."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from sits.routing.intent import words

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]
    Numbers = npt.NDArray[np.int64]

BLOCK = 1024
"""Words whose products are made at one go."""


class Seen(msgspec.Struct, frozen=True):
    """Rows of `dense` numbers; and of words, in the order of the rows, the row, the column and the value of each."""

    dense: Matrix
    rows: Numbers
    columns: Numbers
    values: Matrix

    def __len__(self) -> int:
        return len(self.dense)

    def products(self) -> Matrix:
        """The product of every row with every other."""
        import numpy as np

        found: Matrix = self.dense @ self.dense.T
        names, spots, often = np.unique(self.columns, return_inverse=True, return_counts=True)
        # A word of one row alone is in no product but that of the row with itself.
        alone = often[spots] == 1
        found[np.arange(len(self)), np.arange(len(self))] += self._sums(alone, self.values**2)
        order = np.cumsum(often > 1) - 1
        for begin in range(0, int((often > 1).sum()), BLOCK):
            here = ~alone & (order[spots] >= begin) & (order[spots] < begin + BLOCK)
            block = np.zeros((len(self), min(BLOCK, len(names) - begin)), dtype=np.float32)
            block[self.rows[here], order[spots[here]] - begin] = self.values[here]
            found += block @ block.T
        return found

    def weighed(self, by: Matrix) -> Matrix:
        """The sum of the rows by weights, of each column of `by`: a column of as many numbers as a row has."""
        import numpy as np

        found = np.zeros((self.dense.shape[1] + words.SIZE, by.shape[1]), dtype=np.float64)
        found[: self.dense.shape[1]] = self.dense.T @ by
        for at in range(by.shape[1]):
            spread = self.values * by[self.rows, at]
            found[self.dense.shape[1] :, at] = np.bincount(self.columns, spread, words.SIZE)
        return found.astype(np.float32)

    def times(self, weights: Matrix) -> Matrix:
        """The product of each row with each column of `weights`, which has as many numbers as a row."""
        import numpy as np

        size = self.dense.shape[1]
        found: Matrix = self.dense @ weights[:size]
        for at in range(weights.shape[1]):
            spread = self.values * weights[size + self.columns, at]
            found[:, at] += np.bincount(self.rows, spread, len(self)).astype(np.float32)
        return found

    def scaled(self, dense: Matrix | None, by: Matrix | float) -> Seen:
        """All of it `by` a factor, or each row by its own, behind the columns `dense` if they are given."""
        import numpy as np

        factors: Matrix = np.broadcast_to(np.asarray(by, dtype=np.float32), (len(self),))
        own: Matrix = factors[:, None] * self.dense
        beside = own if dense is None else np.hstack([dense, own])
        return Seen(beside, self.rows, self.columns, factors[self.rows] * self.values)

    def only(self, kept: npt.NDArray[np.bool_]) -> Seen:
        """The rows that are kept."""
        import numpy as np

        places = np.cumsum(kept) - 1
        words_kept = kept[self.rows]
        return Seen(self.dense[kept], places[self.rows[words_kept]], self.columns[words_kept], self.values[words_kept])

    def _sums(self, of: npt.NDArray[np.bool_], values: Matrix) -> Matrix:
        import numpy as np

        return np.bincount(self.rows[of], values[of], len(self)).astype(np.float32)


def see(texts: Sequence[str], dense: Matrix) -> Seen:
    """Texts with what is known of them in numbers."""
    import numpy as np

    found = [words.spots(text) for text in texts]
    rows = np.repeat(np.arange(len(found)), [len(one) for one in found])
    columns = np.array([at for one in found for at in one], dtype=np.int64)
    values = np.array([value for one in found for value in one.values()], dtype=np.float32)
    return Seen(dense, rows, columns, values)
