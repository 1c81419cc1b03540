"""The fields of many items turned on their side, so that a clause is one comparison of arrays.

A column is made when its field is first asked for, and grows with the items. Text is compared by its 64-bit hash, which can
collide: whoever uses a mask holds the few hits it gives against `where.meets` in the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sits.ports.vectors.base import Clause, Scalar
from sits.ports.vectors.where import COMPARE, meets

Mask = npt.NDArray[np.bool_]
Hashed = Callable[[str], int]

_MISSING, _TRUTH, _NUMBER, _TEXT = range(4)
_MOST_COLUMNS = 32
"""Fields with a column; a clause on one more is checked item by item."""


class Columns:
    """The columns of one list of fields, which only ever grows. May be used by several threads."""

    __slots__ = ("_columns", "_fields", "_hashed", "_lock")

    def __init__(self, fields: list[Mapping[str, Scalar]], hashed: Hashed = hash) -> None:
        self._fields = fields
        self._hashed = hashed
        self._columns: dict[str, _Column] = {}
        self._lock = threading.Lock()

    def mask(self, where: Sequence[Clause], size: int) -> Mask:
        """Which of the first `size` items meet every clause, but for collisions."""
        chosen = np.ones(size, dtype=np.bool_)
        for clause in where:
            chosen &= self._mask(clause, size)
        return chosen

    def exact_mask(self, where: Sequence[Clause], size: int) -> Mask:
        """The same without collisions, item by item."""
        return np.fromiter((meets(fields, where) for fields in self._fields[:size]), np.bool_, size)

    def _mask(self, clause: Clause, size: int) -> Mask:
        with self._lock:
            column = self._columns.get(clause.field)
            if column is None and len(self._columns) < _MOST_COLUMNS:
                column = self._columns[clause.field] = _Column(clause.field, self._hashed)
            if column is None:
                return self.exact_mask([clause], size)
            column.grow(self._fields, size)
            kinds, values = column.kinds[:size], column.values[:size]
        if clause.op in COMPARE:
            return self._ordered(clause, kinds, values)
        met = np.zeros(size, dtype=np.bool_)
        for wanted in clause.value if isinstance(clause.value, tuple) else (clause.value,):
            kind, value = _coded(wanted, self._hashed)
            met |= (kinds == kind) & (values == value)
        return np.logical_not(met) if clause.op == "ne" else met

    def _ordered(self, clause: Clause, kinds: npt.NDArray[np.int8], values: npt.NDArray[np.int64]) -> Mask:
        met: Mask
        if isinstance(clause.value, str):
            # Hashes have no order: the values themselves are compared, where there are any.
            texts: Mask = kinds == _TEXT
            places = np.flatnonzero(texts)
            texts[places] = [meets(self._fields[place], [clause]) for place in places.tolist()]
            met = texts
        else:
            assert isinstance(clause.value, int | float)
            # The bits of a hash may be those of a signalling NaN.
            with np.errstate(invalid="ignore"):
                met = COMPARE[clause.op](values.view(np.float64), float(clause.value)) & (kinds == _NUMBER)
        return met


class _Column:
    """One field: what kind each item's value is, and 64 bits of it: a double, a hash or a truth value."""

    __slots__ = ("field", "hashed", "kinds", "size", "values")

    def __init__(self, field: str, hashed: Hashed) -> None:
        self.field = field
        self.hashed = hashed
        self.size = 0
        self.kinds = np.zeros(0, dtype=np.int8)
        self.values = np.zeros(0, dtype=np.int64)

    def grow(self, fields: list[Mapping[str, Scalar]], size: int) -> None:
        if size <= self.size:
            return
        coded = [_coded(row.get(self.field), self.hashed) for row in fields[self.size : size]]
        if size > len(self.kinds):
            # Into new arrays: a search in another thread may be reading these.
            room = max(size, 2 * len(self.kinds), 64)
            self.kinds, self.values = _longer(self.kinds, room), _longer(self.values, room)
        self.kinds[self.size : size] = [kind for kind, _ in coded]
        self.values[self.size : size] = [value for _, value in coded]
        self.size = size


def _coded(value: Scalar | None, hashed: Hashed) -> tuple[int, int]:
    if value is None:
        return _MISSING, 0
    if isinstance(value, bool):
        return _TRUTH, int(value)
    if isinstance(value, str):
        return _TEXT, hashed(value)
    # + 0.0: there is a negative zero, which equals zero but has other bits.
    return _NUMBER, int(np.float64(value + 0.0).view(np.int64))


def _longer(array: npt.NDArray[Any], room: int) -> npt.NDArray[Any]:
    longer = np.zeros(room, dtype=array.dtype)
    longer[: len(array)] = array
    return longer
