"""What sets and maps have in common: rows, each under the dot of the change that wrote it, and the context of all dots ever seen.

The join is that of causal CRDTs (Almeida et al. 2018), without tombstones: a row that only one side has is new when the other has
not seen its dot, and was taken away when it has. So what is removed is what was seen, and a concurrent write stays.

States and deltas are the same type. Made for up to some ten thousand rows: a join with a small delta copies the two tables and
then touches only what the delta is about (7 us at 1,000 rows, 76 us at 10,000; the join of two states of that size 3.3 ms).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

import msgspec

from sits.state.crdt.context import Context, Dot

K = TypeVar("K", bound=Hashable)
F = TypeVar("F")


class Kernel(msgspec.Struct, Generic[K, F], frozen=True, eq=False):
    """Immutable, though made of dicts: whoever holds one never writes to them."""

    rows: dict[Dot, tuple[K, F]]
    where: dict[K, frozenset[Dot]]
    """The dots of each key, never none: the index of `rows`."""
    context: Context

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kernel) and self.context == other.context and self.rows == other.rows

    __hash__ = None  # type: ignore[assignment]

    def put(self, key: K, fragment: F, node: str, over: Iterable[Dot]) -> Kernel[K, F]:
        """The delta of a row written by `node` in place of the rows `over`.

        Join it before the next one is made: two deltas of one node made from one state would have the same dot.
        """
        dot = self.context.next(node)
        return Kernel({dot: (key, fragment)}, {key: frozenset((dot,))}, Context.of((dot, *over)))

    def drop(self, over: Iterable[Dot]) -> Kernel[K, F]:
        """The delta that takes these rows away."""
        return Kernel({}, {}, Context.of(over))

    def merge(self, other: Kernel[K, F]) -> Kernel[K, F]:
        """The join; this very object when the other adds nothing."""
        gone = self._taken_by(other)
        new = [(dot, row) for dot, row in other.rows.items() if self._is_new(dot, row)]
        context = self.context.merge(other.context)
        if not gone and not new and context is self.context:
            return self
        rows, where = dict(self.rows), dict(self.where)
        for dot in gone:
            key = rows.pop(dot)[0]
            left = where[key] - {dot}
            if left:
                where[key] = left
            else:
                del where[key]
        for dot, row in new:
            rows[dot] = row
            where[row[0]] = where.get(row[0], frozenset()) | {dot}
        return Kernel(rows, where, context)

    def _is_new(self, dot: Dot, row: tuple[K, F]) -> bool:
        mine = self.rows.get(dot)
        if mine is None:
            return dot not in self.context
        # One dot is one change, unless an incarnation was used twice. Then both sides must still choose the same one.
        return mine != row and repr(row) > repr(mine)

    def _taken_by(self, other: Kernel[K, F]) -> list[Dot]:
        mine, theirs, context = self.rows, other.rows, other.context
        gone: list[Dot]
        if context.size <= len(mine):
            gone = [dot for dot in context.dots() if dot in mine and dot not in theirs]
        else:
            gone = [dot for dot in mine if dot not in theirs and dot in context]
        gone.extend(dot for dot, row in theirs.items() if dot in mine and self._is_new(dot, row))
        return gone


def kernel_of(rows: dict[Dot, tuple[K, F]], context: Context) -> Kernel[K, F]:
    """A kernel of these rows, with its index made."""
    where: dict[K, set[Dot]] = {}
    for dot, (key, _) in rows.items():
        where.setdefault(key, set()).add(dot)
    return Kernel(rows, {key: frozenset(dots) for key, dots in where.items()}, context)
