"""An index in this process alone, exact and gone with it: the fake for tests, and the measure for the other adapters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sits.inner.errors import Code, SitsError
from sits.ports.vectors import rules
from sits.ports.vectors.base import Clause, Hit, Item, Vector
from sits.ports.vectors.opening import MOST_ITEMS, Opening, wrong_address
from sits.ports.vectors.where import meets, ranked

CONSISTENCY = {
    "upsert": "at once, an item whole",
    "search": "exact; sees every write before it",
    "get": "sees every write before it",
    "delete": "at once",
    "ids": "sees every write before it",
    "durability": "none: everything ends with the process",
    "outage": "none, but the one that a test plays",
}


class MemoryVectors:
    """Dicts. Set `away` and every call raises `state_unavailable`, as if a server had gone; unset it and all is there again."""

    name = "memory"

    def __init__(self, *, most: int = MOST_ITEMS) -> None:
        self.away = False
        self._most = most
        self._dimensions: dict[str, int] = {}
        self._partitions: dict[tuple[str, str], dict[str, Item]] = {}

    async def create(self, collection: str, dimension: int) -> None:
        self._here()
        has = self._dimensions.setdefault(rules.collection_name(collection), rules.dimension(dimension))
        if has != dimension:
            raise rules.other_dimension(collection, has, dimension)

    async def upsert(self, collection: str, partition: str, items: Sequence[Item]) -> None:
        ready = rules.items(items, self._dimension(collection))
        held = self._held(collection, partition)
        new = sum(key not in held for key, _, _ in ready)
        if new and self._count(collection) + new > self._most:
            raise rules.too_many(collection, self._most)
        if ready:
            held = self._partitions.setdefault((collection, partition), held)
        for key, vector, fields in ready:
            held[key] = Item(key, vector, rules.unpacked(fields))

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
        question = rules.unit(vector, self._dimension(collection))
        rules.hits(k), rules.clauses(where)
        found = [item for item in self._held(collection, partition).values() if meets(item.fields, where)]
        return ranked(((item.id, float(np.vecdot(item.vector, question)), item.fields) for item in found), k, floor)

    async def get(self, collection: str, partition: str, ids: Sequence[str]) -> list[Item | None]:
        self._dimension(collection)
        held = self._held(collection, partition)
        return [held.get(rules.text(key, "id")) for key in ids]

    async def delete(self, collection: str, partition: str, ids: Sequence[str]) -> None:
        self._dimension(collection)
        held = self._held(collection, partition)
        for key in ids:
            held.pop(rules.text(key, "id"), None)
        if not held:
            self._partitions.pop((collection, partition), None)

    async def ids(self, collection: str, partition: str, *, after: str = "", limit: int = 1000) -> list[str]:
        self._dimension(collection)
        rules.page(limit)
        return sorted(key for key in self._held(collection, partition) if key > after)[:limit]

    async def partitions(self, collection: str) -> list[str]:
        self._dimension(collection)
        return sorted(name for owner, name in self._partitions if owner == collection)

    async def count(self, collection: str, partition: str) -> int:
        self._dimension(collection)
        return len(self._held(collection, partition))

    async def drop(self, collection: str, partition: str | None = None) -> None:
        self._here()
        rules.collection_name(collection)
        gone = [key for key in self._partitions if key[0] == collection and partition in (None, key[1])]
        for key in gone:
            del self._partitions[key]
        if partition is None:
            self._dimensions.pop(collection, None)

    async def flush(self) -> None:
        self._here()

    async def aclose(self) -> None:
        return

    def _here(self) -> None:
        if self.away:
            raise SitsError(Code.STATE_UNAVAILABLE, "the vectors in memory are away")

    def _dimension(self, collection: str) -> int:
        self._here()
        dimension = self._dimensions.get(rules.collection_name(collection))
        if dimension is None:
            raise rules.no_collection(collection)
        return dimension

    def _held(self, collection: str, partition: str) -> dict[str, Item]:
        return self._partitions.get((collection, rules.text(partition, "partition")), {})

    def _count(self, collection: str) -> int:
        return sum(len(held) for (owner, _), held in self._partitions.items() if owner == collection)


async def open_memory(opening: Opening) -> MemoryVectors:
    """The opener of `memory`. Each call makes another index."""
    if opening.address != "memory":
        raise wrong_address(opening.address, "memory")
    return MemoryVectors(most=opening.most)
