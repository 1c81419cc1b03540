"""The fake: everything in this process, under a clock that the test holds, with outages on demand.

It is the reference that the other adapters are compared with, so it is written to be read. Several `MemoryStore`s on one `Shelf`
are several nodes on one store.
"""

from __future__ import annotations

import enum
import heapq
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from sits.inner.errors import Code, SitsError
from sits.ports.store import limits
from sits.ports.store.base import LARGEST_PAGE, Add, Added, Change, Delete, Entry, Put
from sits.ports.store.opening import Opening
from sits.ports.store.tally import Counter, tally

CONSISTENCY = {
    "get": "linearizable within the process",
    "get_many": "all keys at one moment",
    "commit": "all or nothing, linearizable within the process; every commit has a higher version",
    "scan": "a page is one moment; what is there all the while is in exactly one page",
    "add": "all counters or none, linearizable within the process",
    "durability": "none: everything ends with the process",
    "outage": "none, but those that a test plays",
}

CAP = 100_000
"""Entries that a shelf holds, and counters."""

_V = TypeVar("_V", Entry, Counter)


class Away(enum.Enum):
    """An outage to play: the call fails, and it has or has not happened."""

    BEFORE = "before"
    """Nothing happens."""
    AFTER = "after"
    """It happens, and the answer is lost."""


class _Drawer(Generic[_V]):
    """Things under keys that may expire, at most `cap` of them."""

    __slots__ = ("_cap", "_deadlines", "held")

    def __init__(self, cap: int) -> None:
        self.held: dict[str, _V] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._cap = cap

    def live(self, key: str, now: float) -> _V | None:
        thing = self.held.get(key)
        return None if thing is None or (thing.expires is not None and thing.expires <= now) else thing

    def has_room(self, keys: Sequence[str]) -> bool:
        return len(self.held) + sum(key not in self.held for key in keys) <= self._cap

    def put(self, key: str, thing: _V) -> None:
        before = self.held.get(key)
        self.held[key] = thing
        if thing.expires is None or (before is not None and before.expires == thing.expires):
            return
        heapq.heappush(self._deadlines, (thing.expires, key))
        if len(self._deadlines) > 64 + 2 * len(self.held):  # a deadline that is moved again and again leaves many rows
            self._deadlines = [(kept.expires, key) for key, kept in self.held.items() if kept.expires is not None]
            heapq.heapify(self._deadlines)

    def sweep(self, now: float, most: int) -> list[str]:
        """Take away up to `most` expired things; a row that a moved deadline left behind counts as work too."""
        gone = []
        while self._deadlines and self._deadlines[0][0] <= now and most > 0:
            deadline, key = heapq.heappop(self._deadlines)
            thing = self.held.get(key)
            if thing is not None and thing.expires == deadline:
                del self.held[key]
                gone.append(key)
            most -= 1
        return gone


class Shelf:
    """What is kept, and the rules. Every call is one step; a key is what `limits` has let through."""

    def __init__(self, *, cap: int = CAP) -> None:
        self._entries: _Drawer[Entry] = _Drawer(cap)
        self._counters: _Drawer[Counter] = _Drawer(cap)
        self._order: list[str] = []  # code points order as their UTF-8 does
        self._version = 0

    def __len__(self) -> int:
        """Entries and counters that take space."""
        return len(self._entries.held) + len(self._counters.held)

    def get(self, key: str, now: float) -> Entry | None:
        return self._entries.live(key, now)

    def commit(self, changes: Sequence[Change], now: float) -> int:
        for change in changes:
            found = self._entries.live(change.key, now)
            version = 0 if found is None else found.version
            if change.expect is not None and change.expect != version:
                raise limits.conflict(change.key, change.expect, version)
        self._sweep(now, len(changes))
        if not self._entries.has_room([change.key for change in changes if isinstance(change, Put)]):
            raise _unavailable("it is full")
        self._version += bool(changes)
        for change in changes:
            if isinstance(change, Delete):
                if self._entries.held.pop(change.key, None) is not None:
                    del self._order[bisect_left(self._order, change.key)]
                continue
            if change.key not in self._entries.held:
                insort(self._order, change.key)
            expires = None if change.ttl is None else now + change.ttl
            self._entries.put(change.key, Entry(change.key, change.value, self._version, expires))
        return self._version

    def scan(self, prefix: str, after: str, limit: int, now: float) -> list[Entry]:
        page: list[Entry] = []
        start = bisect_right(self._order, after) if after >= prefix else bisect_left(self._order, prefix)
        size = 0
        for index in range(start, len(self._order)):
            key = self._order[index]
            if not key.startswith(prefix) or len(page) == limit or size >= LARGEST_PAGE:
                break
            entry = self._entries.live(key, now)
            if entry is not None:
                page.append(entry)
                size += len(entry.value)
        return page

    def add(self, adds: Sequence[Add], now: float) -> Added:
        self._counters.sweep(now, 16 + 2 * len(adds))
        answer, after = tally(adds, [self._counters.live(add.key, now) for add in adds], now)
        if answer.refused is not None:
            return answer
        if not self._counters.has_room([add.key for add, counter in zip(adds, after, strict=True) if counter is not None]):
            raise _unavailable("it is full")
        for add, counter in zip(adds, after, strict=True):
            if counter is None:
                self._counters.held.pop(add.key, None)
            else:
                self._counters.put(add.key, counter)
        return answer

    def _sweep(self, now: float, changes: int) -> None:
        for key in self._entries.sweep(now, 16 + 2 * changes):
            del self._order[bisect_left(self._order, key)]


class MemoryStore:
    """A node on a `Shelf`. Set `away` to play an outage, None to end it."""

    name = "memory"

    def __init__(self, wall: Callable[[], float] = time.time, *, shelf: Shelf | None = None) -> None:
        self.shelf = Shelf() if shelf is None else shelf
        self.away: Away | None = None
        self._wall = wall
        self._closed = False

    async def get(self, key: str) -> Entry | None:
        limits.encoded(key)
        self._reach()
        return self.shelf.get(key, self._wall())

    async def get_many(self, keys: Sequence[str]) -> list[Entry | None]:
        limits.encoded_keys(keys)
        self._reach()
        now = self._wall()
        return [self.shelf.get(key, now) for key in keys]

    async def commit(self, changes: Sequence[Change]) -> int:
        limits.check_changes(changes)
        self._reach()
        version = self.shelf.commit(changes, self._wall())
        self._answer()
        return version

    async def scan(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[Entry]:
        limits.bounds(prefix, after)
        most = limits.check_limit(limit)
        self._reach()
        return self.shelf.scan(prefix, after, most, self._wall())

    async def add(self, adds: Sequence[Add]) -> Added:
        limits.check_adds(adds)
        self._reach()
        answer = self.shelf.add(adds, self._wall())
        self._answer()
        return answer

    async def aclose(self) -> None:
        self._closed = True

    def _reach(self) -> None:
        if self._closed:
            raise _unavailable("it is closed")
        if self.away is Away.BEFORE:
            raise _unavailable("an outage is played")

    def _answer(self) -> None:
        if self.away is Away.AFTER:
            raise _unavailable("an outage is played, and the answer is lost")


def _unavailable(why: str) -> SitsError:
    return SitsError(Code.STATE_UNAVAILABLE, f"store memory: {why}")


async def open_memory(opening: Opening) -> MemoryStore:
    """A store that ends with the process."""
    return MemoryStore(opening.wall or time.time, shelf=Shelf(cap=opening.cap))
