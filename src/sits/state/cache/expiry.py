"""Which keys go stale when: so that what nobody asks for any more is found without looking through everything."""

from __future__ import annotations

from heapq import heappop, heappush

GRAIN = 8.0
"""Seconds that share a bucket. Whoever looks something up compares the exact time; this only says when space is given back."""


class Expiry:
    """Keys in buckets by their time. Adding and discarding is O(1), but for the first key of a bucket."""

    __slots__ = ("_buckets", "_order")

    def __init__(self) -> None:
        self._buckets: dict[int, set[bytes]] = {}
        self._order: list[int] = []

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, key: bytes, at: float) -> None:
        number = int(at // GRAIN)
        held = self._buckets.get(number)
        if held is None:
            self._buckets[number] = {key}
            heappush(self._order, number)
        else:
            held.add(key)

    def discard(self, key: bytes, at: float) -> None:
        """`at` is what the key was added with."""
        held = self._buckets.get(int(at // GRAIN))
        if held is not None:
            held.discard(key)

    def due(self, now: float, limit: int) -> list[bytes]:
        """At most `limit` keys whose time has passed; they are not here any more."""
        found: list[bytes] = []
        last = int(now // GRAIN)
        while self._order and self._order[0] < last:
            held = self._buckets[self._order[0]]
            while held:
                if len(found) == limit:
                    return found
                found.append(held.pop())
            del self._buckets[heappop(self._order)]
        return found
