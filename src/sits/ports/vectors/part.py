"""One partition in memory: the exact search over a matrix, and who may look at it while it changes.

`Part` belongs to the loop, which alone changes it. A `View` is what one search sees: it stays as it is while the part goes on,
so a long search may run in a thread. That works because rows are only ever added: an item that is replaced gets a new row and
its old one is marked dead, and when a quarter of the rows are dead the living ones move into new arrays.

Rows lie in the order of their sequence numbers, which rise with every write, so a number is found by bisection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sits.ports.vectors import rules
from sits.ports.vectors.base import Clause, Hit, Scalar, Vector
from sits.ports.vectors.columns import Columns, Hashed, Mask
from sits.ports.vectors.where import DECIMALS, meets, ranked

Rows = npt.NDArray[np.intp]

_FIRST_ROOM = 64
_FEWEST_DEAD = 256
"""Dead rows that are not worth a move."""
_A_TIE = 10.0**-DECIMALS
"""Scores that differ by less may be equal as hits are rounded."""


class Part:
    """The items of one partition, as of the write `seen`."""

    __slots__ = (
        "_alive",
        "_columns",
        "_dead",
        "_fields",
        "_hashed",
        "_ids",
        "_matrix",
        "_place",
        "_seqs",
        "_size",
        "dimension",
        "seen",
    )

    def __init__(self, dimension: int, hashed: Hashed = hash) -> None:
        self.dimension = dimension
        self._hashed = hashed
        self.seen = 0
        self._start(_FIRST_ROOM)

    def _start(self, room: int) -> None:
        self._matrix = np.empty((room, self.dimension), dtype=np.float32)
        self._seqs = np.empty(room, dtype=np.int64)
        self._alive = np.zeros(room, dtype=np.bool_)
        self._ids: list[str] = []
        self._fields: list[Mapping[str, Scalar]] = []
        self._columns = Columns(self._fields, self._hashed)
        self._place: dict[str, int] = {}
        self._size = 0
        self._dead = 0

    def __len__(self) -> int:
        return len(self._place)

    @property
    def memory(self) -> int:
        """Bytes held, roughly: the matrix, and 300 bytes an item for its id, fields and places."""
        return self._matrix.nbytes + 300 * len(self._seqs)

    def newer(self, seq: int) -> int:
        """Rows that were written after `seq`."""
        return self._size - int(np.searchsorted(self._seqs[: self._size], seq, side="right"))

    def put(self, seq: int, key: str, vector: bytes | Vector, fields: bytes) -> None:
        """Put an item in, over the one of its id. `seq` is higher than all before."""
        self._bury(key)
        if self._size == len(self._seqs):
            self._make_room()
        row = self._size
        self._matrix[row] = np.frombuffer(vector, dtype=np.float32) if isinstance(vector, bytes) else vector
        self._seqs[row] = seq
        self._alive[row] = True
        self._ids.append(key)
        self._fields.append(rules.unpacked(fields))
        self._place[key] = row
        self._size += 1
        self.seen = seq

    def take(self, seq: int, key: str) -> None:
        """Take an item away."""
        self._bury(key)
        self.seen = seq

    def view(self) -> View:
        """The part as it is now."""
        size = self._size
        alive = self._alive[:size].copy() if self._dead else None
        return View(self._matrix[:size], self._seqs[:size], self._ids, self._fields, self._columns, alive)

    def _bury(self, key: str) -> None:
        row = self._place.pop(key, None)
        if row is not None:
            self._alive[row] = False
            self._dead += 1

    def _make_room(self) -> None:
        """Twice the room, or the same without the dead, always in new arrays: views hold the old ones."""
        matrix, seqs, size = self._matrix, self._seqs, self._size
        if self._dead < max(_FEWEST_DEAD, size // 4):
            self._matrix = np.empty((2 * size, self.dimension), dtype=np.float32)
            self._matrix[:size] = matrix
            self._seqs = np.concatenate([seqs, np.empty(size, dtype=np.int64)])
            self._alive = np.concatenate([self._alive, np.zeros(size, dtype=np.bool_)])
            return
        living = np.flatnonzero(self._alive[:size])
        ids, fields = self._ids, self._fields
        self._start(max(_FIRST_ROOM, size))
        self._size = count = len(living)
        self._matrix[:count] = matrix[living]
        self._seqs[:count] = seqs[living]
        self._alive[:count] = True
        self._ids.extend(ids[row] for row in living.tolist())
        self._fields.extend(fields[row] for row in living.tolist())
        self._place = {key: row for row, key in enumerate(self._ids)}


class View:
    """A part at one moment, for one search, in any thread."""

    __slots__ = ("_alive", "_columns", "_fields", "_ids", "matrix", "seqs")

    def __init__(
        self,
        matrix: Vector,
        seqs: npt.NDArray[np.int64],
        ids: list[str],
        fields: list[Mapping[str, Scalar]],
        columns: Columns,
        alive: Mask | None,
    ) -> None:
        self.matrix = matrix
        self.seqs = seqs
        self._ids = ids
        self._fields = fields
        self._columns = columns
        self._alive = alive

    def __len__(self) -> int:
        return len(self.seqs)

    def living(self) -> npt.NDArray[np.int64]:
        """The sequence numbers of the items that are there."""
        return self.seqs if self._alive is None else self.seqs[self._alive]

    def mask(self, where: Sequence[Clause]) -> Mask | None:
        """Which rows are there and meet the clauses; None for all. May hold rows that collide with one that does."""
        if not where:
            return self._alive
        mask = self._columns.mask(where, len(self))
        return mask if self._alive is None else mask & self._alive

    def search(self, question: Vector, k: int, floor: float, where: Sequence[Clause] = ()) -> list[Hit]:
        """The exact answer."""
        return self.search_masked(question, k, floor, where, self.mask(where))

    def search_masked(self, question: Vector, k: int, floor: float, where: Sequence[Clause], mask: Mask | None) -> list[Hit]:
        """The exact answer over the rows of a mask that `mask(where)` gave."""
        hits = self.hits(question, k, floor, None if mask is None else np.flatnonzero(mask))
        if all(meets(hit.fields, where) for hit in hits):
            return hits
        exact = self._columns.exact_mask(where, len(self))
        return self.hits(question, k, floor, np.flatnonzero(exact if self._alive is None else exact & self._alive))

    def hits(self, question: Vector, k: int, floor: float, rows: Rows | None) -> list[Hit]:
        """The best `k` of some rows, or of all."""
        if rows is None or 4 * len(rows) > len(self):
            # Copying rows out costs more than the products that it would save.
            scores = np.vecdot(self.matrix, question)
            scores = scores if rows is None else scores[rows]
        else:
            scores = np.vecdot(self.matrix[rows], question)
        good = np.flatnonzero(scores >= floor - _A_TIE)
        if len(good) > k:
            found = scores[good]
            bar = np.partition(found, len(found) - k)[len(found) - k]
            good = good[found >= bar - _A_TIE]
        at = good if rows is None else rows[good]
        ids, fields = self._ids, self._fields
        triples = zip(at.tolist(), scores[good].tolist(), strict=True)
        return ranked(((ids[row], score, fields[row]) for row, score in triples), k, floor)

    def rows(self, seqs: npt.NDArray[np.int64]) -> Rows:
        """The rows of those sequence numbers that are here."""
        at = np.searchsorted(self.seqs, seqs)
        inside = at < len(self)
        at, seqs = at[inside], seqs[inside]
        return np.asarray(at[self.seqs[at] == seqs], dtype=np.intp)
