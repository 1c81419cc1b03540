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
COMMON = 8
"""A word that is in more than one of so many rows is multiplied with all of them; of others only what is there is. The products
of 6,300 examples took 0.8 s, and 7.2 s by matrices alone."""


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

        count = len(self)
        found: Matrix = self.dense @ self.dense.T
        order = np.argsort(self.columns, kind="stable")
        rows, values = self.rows[order], self.values[order]
        begins = np.flatnonzero(np.diff(self.columns[order], prepend=-1))
        lengths = np.diff(begins, append=len(order))
        often = COMMON * lengths > count
        # A word of few rows is in few products; of those of one row, in that of the row with itself.
        alone = begins[(lengths == 1) & ~often]
        found[np.arange(count), np.arange(count)] += np.bincount(rows[alone], values[alone] ** 2, count).astype(np.float32)
        for begin, length in zip(begins[(lengths > 1) & ~often].tolist(), lengths[(lengths > 1) & ~often].tolist(), strict=True):
            here, value = rows[begin : begin + length], values[begin : begin + length]
            found[here[:, None], here] += value[:, None] * value
        common = np.flatnonzero(often)
        for first in range(0, len(common), BLOCK):
            some = common[first : first + BLOCK]
            block = np.zeros((count, len(some)), dtype=np.float32)
            for at, (begin, length) in enumerate(zip(begins[some].tolist(), lengths[some].tolist(), strict=True)):
                block[rows[begin : begin + length], at] = values[begin : begin + length]
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


def see(texts: Sequence[str], dense: Matrix) -> Seen:
    """Texts with what is known of them in numbers."""
    import numpy as np

    found = [words.spots(text) for text in texts]
    rows = np.repeat(np.arange(len(found)), [len(one) for one in found])
    columns = np.array([at for one in found for at in one], dtype=np.int64)
    values = np.array([value for one in found for value in one.values()], dtype=np.float32)
    return Seen(dense, rows, columns, values)
