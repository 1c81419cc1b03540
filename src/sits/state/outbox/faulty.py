"""Stores and indexes that fail when told: for tests of an outbox, and of what stands on one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from sits.inner.errors import Code, SitsError
from sits.ports.store import Add, Added, Change, Entry, Store
from sits.ports.vectors.base import Clause, Hit, Item, Vector, Vectors

T = TypeVar("T")


class Dead(BaseException):
    """The end of a process, played: no error of anybody, and nothing may catch it."""


class Deaths:
    """Counts the calls of a store and an index together, and dies at one of them: before it, or after it without an answer."""

    def __init__(self, *, at: int | None = None, after: bool = False) -> None:
        """`at`: the call, from 0; never when None."""
        self.calls = 0
        self.names: list[str] = []
        self._at = at
        self._after = after
        self._is_dead = False

    async def through(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        if self._is_dead:
            raise Dead(name)
        self._is_dead = here = self.calls == self._at
        self.calls += 1
        self.names.append(name)
        if here and not self._after:
            raise Dead(name)
        answer = await work()
        if here:
            raise Dead(name)
        return answer


class MortalStore:
    """A store through which each call may be the last."""

    def __init__(self, store: Store, deaths: Deaths) -> None:
        self.name = store.name
        self._store = store
        self._deaths = deaths

    async def get(self, key: str) -> Entry | None:
        return await self._deaths.through("get", lambda: self._store.get(key))

    async def get_many(self, keys: Sequence[str]) -> list[Entry | None]:
        return await self._deaths.through("get_many", lambda: self._store.get_many(keys))

    async def commit(self, changes: Sequence[Change]) -> int:
        return await self._deaths.through("commit", lambda: self._store.commit(changes))

    async def scan(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[Entry]:
        return await self._deaths.through("scan", lambda: self._store.scan(prefix, after=after, limit=limit))

    async def add(self, adds: Sequence[Add]) -> Added:
        return await self._deaths.through("add", lambda: self._store.add(adds))

    async def aclose(self) -> None:
        await self._store.aclose()


Hook = Callable[[str, Sequence[str]], Awaitable[None]]
"""Called before a call to the index, with its name and the ids; may raise, wait, or do something in between."""


class HookedVectors:
    """An index with something that happens before each call: the ids that it concerns are told."""

    def __init__(self, vectors: Vectors, hook: Hook, deaths: Deaths | None = None) -> None:
        self.name = vectors.name
        self._vectors = vectors
        self._hook = hook
        self._deaths = deaths or Deaths()

    async def create(self, collection: str, dimension: int) -> None:
        await self._do("create", (), lambda: self._vectors.create(collection, dimension))

    async def upsert(self, collection: str, partition: str, items: Sequence[Item]) -> None:
        await self._do("upsert", [item.id for item in items], lambda: self._vectors.upsert(collection, partition, items))

    async def search(
        self,
        collection: str,
        partition: str,
        vector: Vector,
        *,
        k: int,
        floor: float = -1.0,
        where: Sequence[Clause] = (),
    ) -> list[Hit]:
        return await self._do(
            "search", (), lambda: self._vectors.search(collection, partition, vector, k=k, floor=floor, where=where)
        )

    async def get(self, collection: str, partition: str, ids: Sequence[str]) -> list[Item | None]:
        return await self._do("get", ids, lambda: self._vectors.get(collection, partition, ids))

    async def delete(self, collection: str, partition: str, ids: Sequence[str]) -> None:
        await self._do("delete", ids, lambda: self._vectors.delete(collection, partition, ids))

    async def ids(self, collection: str, partition: str, *, after: str = "", limit: int = 1000) -> list[str]:
        return await self._do("ids", (), lambda: self._vectors.ids(collection, partition, after=after, limit=limit))

    async def partitions(self, collection: str) -> list[str]:
        return await self._do("partitions", (), lambda: self._vectors.partitions(collection))

    async def count(self, collection: str, partition: str) -> int:
        return await self._do("count", (), lambda: self._vectors.count(collection, partition))

    async def drop(self, collection: str, partition: str | None = None) -> None:
        await self._do("drop", (), lambda: self._vectors.drop(collection, partition))

    async def flush(self) -> None:
        await self._do("flush", (), self._vectors.flush)

    async def aclose(self) -> None:
        await self._vectors.aclose()

    async def _do(self, name: str, ids: Sequence[str], work: Callable[[], Awaitable[T]]) -> T:
        async def hooked() -> T:
            await self._hook(name, ids)
            return await work()

        return await self._deaths.through(f"vectors.{name}", hooked)


def refusing(code: Code, *prefixes: str) -> Hook:
    """A hook for an index that takes no item whose id begins so."""

    async def hook(name: str, ids: Sequence[str]) -> None:
        bad = [id for id in ids if id.startswith(prefixes)]
        if name == "upsert" and bad:
            raise SitsError(code, f"the index takes no item {bad[0]!r}")

    return hook


async def nothing(name: str, ids: Sequence[str]) -> None:
    """A hook that does nothing."""
