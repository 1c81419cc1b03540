"""Placing requests that hold memory: on which node there is room for this one, such that there is room for the next one too.

Both have `take` and `give`. `Tightest` is the one to use; `Roomiest` is what a plain scorer does, kept to be compared with.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence


class Tightest:
    """The node on which least is left (best fit), found by a search in a sorted list: about a microsecond for a thousand.

    Small requests fill the holes, so that whole nodes stay free for the large ones.
    """

    __slots__ = ("_free", "_sorted")

    def __init__(self, free: Sequence[int]) -> None:
        self._free: list[int] = list(free)
        self._sorted: list[tuple[int, int]] = sorted((room, index) for index, room in enumerate(free))

    @property
    def free(self) -> Sequence[int]:
        """What each node has left."""
        return self._free

    def take(self, need: int) -> int:
        """Hold `need` on a node; its index, or -1 where it fits on none."""
        place = bisect_left(self._sorted, (need, -1))
        if place == len(self._sorted):
            return -1
        room, index = self._sorted.pop(place)
        self._free[index] = room - need
        insort(self._sorted, (room - need, index))
        return index

    def give(self, index: int, amount: int) -> None:
        """Free what was held."""
        room = self._free[index]
        self._sorted.pop(bisect_left(self._sorted, (room, index)))
        self._free[index] = room + amount
        insort(self._sorted, (room + amount, index))


class Roomiest:
    """The node with the largest share free, of all that are looked at: Kubernetes' `LeastAllocated` score."""

    __slots__ = ("_all", "_free")

    def __init__(self, free: Sequence[int]) -> None:
        self._all: list[int] = list(free)
        self._free: list[int] = list(free)

    @property
    def free(self) -> Sequence[int]:
        """What each node has left."""
        return self._free

    def take(self, need: int) -> int:
        """Hold `need` on a node; its index, or -1 where it fits on none."""
        best, most = -1, -1.0
        whole = self._all
        for index, room in enumerate(self._free):
            if room >= need and room / whole[index] > most:
                best, most = index, room / whole[index]
        if best >= 0:
            self._free[best] -= need
        return best

    def give(self, index: int, amount: int) -> None:
        """Free what was held."""
        self._free[index] += amount
