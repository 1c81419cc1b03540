"""What an outbox must do over every store and every index, as checks.

    for check in CHECKS:
        await check(make, "a_new_collection")

`make` opens the same store and index again each time, as another process would.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np

from sits.inner.errors import Code
from sits.ports.store import Delete, Put, Store
from sits.ports.vectors.base import Item, Vector, Vectors
from sits.state.outbox.audit import Audit, audit
from sits.state.outbox.faulty import HookedVectors, refusing
from sits.state.outbox.outbox import Outbox
from sits.state.outbox.repair import repair
from sits.state.outbox.terms import Terms

MakePair = Callable[[], Awaitable[tuple[Store, Vectors]]]
Check = Callable[[MakePair, str], Awaitable[None]]

DIMENSION = 4
SECONDS = 20.0
"""How long something may take that takes milliseconds on an idle machine."""
TERMS = Terms(lease=0.5, tick=0.02, rest=0.02, sweep_page=3, batch=4)
"""Small pages, so that a check goes over their edges."""


class Node:
    """An outbox as one process has it."""

    def __init__(self, store: Store, vectors: Vectors, collection: str, owner: str) -> None:
        self.store = store
        self.vectors = vectors
        self.collection = collection
        self.outbox = Outbox(store, vectors, collection, DIMENSION, owner=owner, terms=TERMS)

    async def write(self, id: str, text: str = "text", *, partition: str = "p", ttl: float | None = None) -> None:
        item = Item(id, toward(id + text), {"text": text})
        await self.outbox.write(partition, item, Put(self.record(id, partition), text.encode(), ttl=ttl))

    async def settle(self) -> None:
        assert await self.outbox.settle(seconds=SECONDS) == 0

    async def audit(self) -> Audit:
        return await audit(self.store, self.vectors, self.collection, now=time.time(), page=3)

    async def found(self, id: str, text: str = "text", *, partition: str = "p") -> list[str]:
        hits = await self.vectors.search(self.collection, partition, toward(id + text), k=10, floor=0.99)
        return [hit.id for hit in hits]

    async def both(self, id: str, *, partition: str = "p") -> tuple[str | None, str | None]:
        """The text of the record, and that of the vector."""
        record = await self.store.get(self.record(id, partition))
        (item,) = await self.vectors.get(self.collection, partition, [id])
        return None if record is None else record.value.decode(), None if item is None else str(item.fields["text"])

    def record(self, id: str, partition: str = "p") -> str:
        return f"records/{self.collection}/{partition}/{id}"


def toward(text: str) -> Vector:
    """A direction for a text; two texts have two."""
    dice = np.random.default_rng(list(text.encode()))
    return dice.standard_normal(DIMENSION).astype(np.float32)


@asynccontextmanager
async def node(make: MakePair, collection: str, owner: str, *, relay: bool = True) -> AsyncIterator[Node]:
    store, vectors = await make()
    one = Node(store, vectors, collection, owner)
    try:
        await one.outbox.start(relay=relay)
        yield one
    finally:
        await one.outbox.aclose()
        await vectors.aclose()
        await store.aclose()


def kinds(found: Audit) -> list[tuple[str, str]]:
    return sorted((fault.kind, fault.id) for fault in found.faults)


async def a_written_record_is_found_by_its_vector(make: MakePair, collection: str) -> None:
    """In every partition, under any text."""
    async with node(make, collection, "a") as a:
        for id in ("一", "二", "three", "four", "five"):
            await a.write(id)
            await a.write(id, partition="租户")
        await a.settle()
        assert await a.found("二") == ["二"]
        assert await a.found("二", partition="租户") == ["二"]
        told = await a.audit()
        assert (told.faults, told.records, told.vectors, told.waiting) == ([], 10, 10, 0)


async def the_index_ends_with_what_was_written_last(make: MakePair, collection: str) -> None:
    """Written over, removed, written again."""
    async with node(make, collection, "a") as a:
        for number in range(6):
            await a.write("one", f"text {number}")
            await a.write("two", f"text {number}")
            await a.outbox.remove("p", "two")
        await a.write("three")
        await a.outbox.remove("p", "three")
        await a.write("three", "again")
        await a.settle()
        assert await a.both("one") == ("text 5", "text 5")
        assert await a.both("two") == (None, None)
        assert await a.both("three") == ("again", "again")
        assert (await a.audit()).sound


async def what_a_dead_node_left_is_relayed_by_the_next(make: MakePair, collection: str) -> None:
    """The first only writes, and holds the lease when it goes without a word."""
    async with node(make, collection, "a", relay=False) as a:
        assert await a.outbox.relay.turn() == 0
        await a.write("one")
        await a.outbox.remove("p", "two")
        told = await a.audit()
        assert (told.faults, told.pending, told.waiting, told.vectors) == ([], 1, 2, 0)
        async with node(make, collection, "b") as b:
            await b.settle()
            assert await b.both("one") == ("text", "text")
            assert b.outbox.tally.upserted == 1


async def while_one_relays_the_others_leave_it_to_it(make: MakePair, collection: str) -> None:
    """And when it ends in order, the next does not wait for its lease."""
    async with node(make, collection, "a", relay=False) as a, node(make, collection, "b", relay=False) as b:
        assert await a.outbox.relay.turn() == 0
        await b.write("one")
        assert await b.outbox.relay.turn() == 0
        assert await a.outbox.relay.turn() == 1
        await a.outbox.relay.release()
        await a.write("two")
        assert await b.outbox.relay.turn() == 1
        assert (a.outbox.tally.upserted, b.outbox.tally.upserted) == (1, 1)
        assert (await a.audit()).sound


async def a_repair_mends_both_directions(make: MakePair, collection: str) -> None:
    """Whatever somebody did behind the outbox's back."""
    async with node(make, collection, "a", relay=False) as a:
        for id in ("good", "missing", "different", "halved", "other"):
            await a.write(id)
        await a.settle()
        await a.vectors.delete(collection, "p", ["missing"])
        await a.vectors.upsert(collection, "p", [Item("different", toward("another"), {"text": "another"})])
        await a.vectors.upsert(collection, "q", [Item("orphan", toward("orphan"), {"text": "orphan"})])
        await a.vectors.upsert(collection, "q", [Item("old", toward("old"), {"text": "old", "expires": 1.0})])
        await a.store.commit([Delete(a.record("halved"))])
        told = await a.audit()
        assert kinds(told) == [("different", "different"), ("halved", "halved"), ("missing", "missing"), ("orphan", "orphan")]
        assert (told.records, told.vectors, told.expired) == (5, 6, 1)
        done = await repair(a.outbox, now=time.time(), seconds=SECONDS)
        assert (done.restored, done.removed, done.dropped, done.left) == (2, 2, 1, 0)
        told = await a.audit()
        assert (told.faults, told.records, told.vectors, told.expired) == ([], 4, 4, 0)
        assert await a.both("different") == ("text", "text")
        assert await a.both("halved") == (None, None)


async def an_index_that_was_lost_is_filled_again(make: MakePair, collection: str) -> None:
    """From the store alone."""
    async with node(make, collection, "a") as a:
        for number in range(7):
            await a.write(f"id-{number}", partition=f"p{number % 2}")
        await a.settle()
        await a.vectors.drop(collection)
        assert len((await a.audit()).faults) == 7
        done = await repair(a.outbox, now=time.time(), seconds=SECONDS)
        # The sweep of the relay may have found one before.
        assert (done.restored + done.pending, done.left) == (7, 0)
        assert (await a.audit()).sound
        assert await a.found("id-4", partition="p0") == ["id-4"]


async def a_record_whose_vector_is_refused_is_undone(make: MakePair, collection: str) -> None:
    """With the vector that an earlier version of it had; and it is on record."""
    async with node(make, collection, "a") as a:
        await a.write("bad")
        await a.write("good")
        await a.settle()
        # The same store and index, through one that has begun to refuse.
        hooked = HookedVectors(a.vectors, refusing(Code.INVALID_REQUEST, "bad"))
        await a.outbox.aclose()
        b = Node(a.store, hooked, collection, "b")
        await b.outbox.start()
        await b.write("bad", "worse")
        await b.write("good", "better")
        await b.settle()
        await b.outbox.aclose()
        assert await a.both("bad") == (None, None)
        assert await a.both("good") == ("better", "better")
        told = await a.audit()
        assert (told.faults, told.undone) == ([], 1)
        undone = told.undoings[0]
        assert (undone.record, undone.id) == (a.record("bad"), "bad")
        assert undone.reason == "invalid_request: the index takes no item 'bad'"


CHECKS: tuple[Check, ...] = (
    a_written_record_is_found_by_its_vector,
    the_index_ends_with_what_was_written_last,
    what_a_dead_node_left_is_relayed_by_the_next,
    while_one_relays_the_others_leave_it_to_it,
    a_repair_mends_both_directions,
    an_index_that_was_lost_is_filled_again,
    a_record_whose_vector_is_refused_is_undone,
)
