"""What goes when a cache is full: the contract, and the two classical ways that ours is held against.

A way of eviction knows keys, their weights in bytes and when they were asked for; it holds no values and no clock. Every call is
O(1), spread over the calls, except that `LruK` keeps a heap.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from typing import Protocol

import msgspec


class Limit(msgspec.Struct, frozen=True):
    """What a cache may hold: neither is ever passed, not for a moment between two calls."""

    bytes: int
    entries: int


class Eviction(Protocol):
    """Chooses what goes. Keys are digests of 16 bytes or more."""

    limit: Limit
    weight: int
    """Bytes held."""

    def touch(self, key: bytes, now: float) -> bool:
        """`key` was asked for; whether it is held. To be called for misses as well: they are what admission learns from."""
        ...

    def add(self, key: bytes, weight: int, now: float) -> list[bytes]:
        """Take in `key`, or give it another weight; returns the keys that had to go for it, `key` itself when it is not let
        in."""
        ...

    def remove(self, key: bytes) -> None:
        """Forget `key`; one that is not held is no error."""
        ...

    def __contains__(self, key: bytes) -> bool: ...

    def __len__(self) -> int: ...


class Lru:
    """The one that was not asked for the longest goes."""

    __slots__ = ("_held", "limit", "weight")

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.weight = 0
        self._held: OrderedDict[bytes, int] = OrderedDict()

    def __contains__(self, key: bytes) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)

    def touch(self, key: bytes, now: float) -> bool:
        if key not in self._held:
            return False
        self._held.move_to_end(key)
        return True

    def add(self, key: bytes, weight: int, now: float) -> list[bytes]:
        self.remove(key)
        if weight > self.limit.bytes:
            return [key]
        gone = []
        while self._held and (len(self._held) >= self.limit.entries or self.weight + weight > self.limit.bytes):
            victim, freed = self._held.popitem(last=False)
            self.weight -= freed
            gone.append(victim)
        self._held[key] = weight
        self.weight += weight
        return gone

    def remove(self, key: bytes) -> None:
        self.weight -= self._held.pop(key, 0)


class _Seen:
    """When a key was asked for: last, and the time before. `live` is its newest row in the heap."""

    __slots__ = ("before", "last", "live", "weight")

    def __init__(self, last: float) -> None:
        self.last = last
        self.before = NEVER
        self.weight = -1
        """-1 while it is not held: only remembered."""
        self.live = 0


NEVER = float("-inf")


class LruK:
    """LRU-K for K = 2 (O'Neil, O'Neil and Weikum 1993): the one whose last but one request is the longest ago goes.

    A key asked for once has no such time and goes first, so a scan displaces only what else was asked for once. Times of keys
    that have gone are remembered for as many keys as the cache may hold (the paper's Retained Information Period, by number).
    Requests within `correlated` seconds of each other count as one.
    """

    __slots__ = ("_correlated", "_count", "_ghosts", "_heap", "_held", "limit", "weight")

    def __init__(self, limit: Limit, correlated: float = 0.0) -> None:
        self.limit = limit
        self.weight = 0
        self._correlated = correlated
        self._held: dict[bytes, _Seen] = {}
        self._ghosts: OrderedDict[bytes, _Seen] = OrderedDict()
        self._heap: list[tuple[float, float, int, bytes]] = []
        self._count = 0

    def __contains__(self, key: bytes) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)

    def touch(self, key: bytes, now: float) -> bool:
        seen = self._held.get(key)
        if seen is None:
            self._remember(key, now)
            return False
        self._refer(seen, now)
        self._push(key, seen)
        return True

    def add(self, key: bytes, weight: int, now: float) -> list[bytes]:
        self.remove(key)
        if weight > self.limit.bytes:
            return [key]
        seen = self._ghosts.pop(key, None) or _Seen(now)
        gone = []
        while self._held and (len(self._held) >= self.limit.entries or self.weight + weight > self.limit.bytes):
            gone.append(self._evict())
        seen.weight = weight
        self._held[key] = seen
        self.weight += weight
        self._push(key, seen)
        return gone

    def remove(self, key: bytes) -> None:
        seen = self._held.pop(key, None)
        if seen is not None:
            self.weight -= seen.weight
            seen.weight = -1
            self._keep(key, seen)

    def _refer(self, seen: _Seen, now: float) -> None:
        if now - seen.last > self._correlated:
            seen.before = seen.last
        seen.last = now

    def _remember(self, key: bytes, now: float) -> None:
        seen = self._ghosts.get(key)
        if seen is None:
            self._keep(key, _Seen(now))
        else:
            self._refer(seen, now)
            self._ghosts.move_to_end(key)

    def _keep(self, key: bytes, seen: _Seen) -> None:
        self._ghosts[key] = seen
        if len(self._ghosts) > self.limit.entries:
            self._ghosts.popitem(last=False)

    def _push(self, key: bytes, seen: _Seen) -> None:
        self._count += 1
        seen.live = self._count
        heappush(self._heap, (seen.before, seen.last, self._count, key))
        if len(self._heap) > 64 + 4 * len(self._held):
            held = self._held
            self._heap = [row for row in self._heap if row[3] in held and held[row[3]].live == row[2]]
            heapify(self._heap)

    def _evict(self) -> bytes:
        while True:
            _, _, number, key = heappop(self._heap)
            seen = self._held.get(key)
            if seen is not None and seen.live == number:
                self.remove(key)
                return key
