"""A store and an index in memory, under clocks that the test moves, and nodes on them that can die."""

from __future__ import annotations

import numpy as np

from sits.ports.store import Put
from sits.ports.store.memory import MemoryStore, Shelf
from sits.ports.vectors.base import Item, Vectors
from sits.ports.vectors.memory import MemoryVectors
from sits.state.outbox import Audit, Outbox, Terms, audit
from sits.state.outbox.faulty import Deaths, HookedVectors, MortalStore, nothing

COLLECTION = "notes"
DIMENSION = 2


class World:
    """What outlives its nodes."""

    def __init__(self, terms: Terms | None = None) -> None:
        self.now = 2_000_000_000.0
        self.shelf = Shelf()
        self.vectors = MemoryVectors()
        self.terms = terms or Terms()
        self.nodes = 0

    def clock(self) -> float:
        return self.now

    def store(self) -> MemoryStore:
        return MemoryStore(self.clock, shelf=self.shelf)

    async def node(
        self, *, vectors: Vectors | None = None, deaths: Deaths | None = None, store: MemoryStore | None = None
    ) -> Outbox:
        """Another process; with `deaths` it dies where they say, and the collection is there already."""
        self.nodes += 1
        store = store or self.store()
        outbox = Outbox(
            store if deaths is None else MortalStore(store, deaths),
            vectors or (self.vectors if deaths is None else HookedVectors(self.vectors, nothing, deaths)),
            COLLECTION,
            DIMENSION,
            owner=f"node-{self.nodes}",
            wall=self.clock,
            clock=self.clock,
            terms=self.terms,
        )
        if deaths is None:
            await outbox.start(relay=False)
        return outbox

    async def audit(self) -> Audit:
        return await audit(self.store(), self.vectors, COLLECTION, now=self.now, terms=self.terms)

    async def recover(self) -> None:
        """A new process starts after a death, once the lease of the dead one has run out."""
        self.now += self.terms.lease
        outbox = await self.node()
        while await outbox.relay.turn():
            pass

    async def seen(self) -> dict[str, tuple[str | None, str | None]]:
        """For each id: the text of its record, and that of its vector."""
        records = {row.key.removeprefix("note/"): row.value.decode() for row in await self.store().scan("note/")}
        ids = await self.vectors.ids(COLLECTION, "p")
        items = {item.id: str(item.fields["text"]) for item in await self.vectors.get(COLLECTION, "p", ids) if item is not None}
        return {id: (records.get(id), items.get(id)) for id in sorted({*records, *items})}


def item(id: str, text: str) -> Item:
    """Another direction for another text."""
    angle = sum(text.encode()) / 10
    return Item(id, np.array([np.cos(angle), np.sin(angle)], dtype=np.float32), {"text": text})


async def write(outbox: Outbox, id: str, text: str, ttl: float | None = None) -> None:
    await outbox.write("p", item(id, text), Put(f"note/{id}", text.encode(), ttl=ttl))
