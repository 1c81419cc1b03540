"""Clusters of limiters, one for each kind, on a clock that the test holds."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sits.ports.store.memory import MemoryStore, Shelf
from sits.ports.store.sqlite import SqliteStore
from sits.state.limits.base import Limiter
from sits.state.limits.checks import NOON
from sits.state.limits.counted import CountedLimits
from sits.state.limits.mapped import MappedLines
from sits.state.limits.memory import Board, MemoryLines
from sits.state.limits.shared import LEASE_SECONDS, SharedLimits


class MemoryCluster:
    def __init__(self) -> None:
        self.now = NOON
        self.board = Board()
        self.limiters: dict[int, Limiter] = {}

    def join(self) -> CountedLimits:
        return CountedLimits("memory", MemoryLines(self.board))

    async def kill(self, limiter: Limiter) -> None:
        assert isinstance(limiter, CountedLimits)
        lines = limiter._lines
        assert isinstance(lines, MemoryLines)
        lines.die()

    async def aclose(self) -> None:
        pass


class MappedCluster:
    def __init__(self, slots: int = 256) -> None:
        self.now = NOON
        self.slots = slots
        self._folder = tempfile.TemporaryDirectory()
        self._open: list[MappedLines] = []

    def join(self) -> CountedLimits:
        lines = MappedLines(Path(self._folder.name), slots=self.slots)
        self._open.append(lines)
        return CountedLimits("mapped", lines)

    async def kill(self, limiter: Limiter) -> None:
        assert isinstance(limiter, CountedLimits)
        assert isinstance(limiter._lines, MappedLines)
        limiter._lines._abandon()

    async def aclose(self) -> None:
        for lines in self._open:
            lines.close()
        self._folder.cleanup()


class SharedCluster:
    def __init__(self) -> None:
        self.now = NOON
        self.shelf = Shelf()
        self.stores: list[MemoryStore] = []
        self.limiters: list[SharedLimits] = []

    def join(self) -> SharedLimits:
        self.stores.append(MemoryStore(lambda: self.now, shelf=self.shelf))
        self.limiters.append(SharedLimits(self.stores[-1]))
        return self.limiters[-1]

    async def kill(self, limiter: Limiter) -> None:
        """It shows itself no more, while the others do, until its lease is over."""
        over = self.now + LEASE_SECONDS + 0.1
        self.limiters = [other for other in self.limiters if other is not limiter]
        while self.now < over - LEASE_SECONDS / 2:
            self.now += LEASE_SECONDS / 3 + 0.1
            for other in self.limiters:
                await other.sweep(self.now)
        self.now = over

    async def aclose(self) -> None:
        pass


class SqliteCluster(SharedCluster):
    """Gateways on one machine's SQLite store."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._open: list[SqliteStore] = []

    def join(self) -> SharedLimits:
        store = SqliteStore(Path(self._folder.name) / "store.db", wall=lambda: self.now)
        self._open.append(store)
        self.limiters.append(SharedLimits(store))
        return self.limiters[-1]

    async def aclose(self) -> None:
        for store in self._open:
            await store.aclose()
        self._folder.cleanup()


CLUSTERS = {"memory": MemoryCluster, "mapped": MappedCluster, "shared": SharedCluster, "shared by SQLite": SqliteCluster}
