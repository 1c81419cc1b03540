"""A semantic cache of several nodes whose answers and vectors are written through an outbox."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from sits.ports.store.memory import MemoryStore, Shelf
from sits.ports.vectors.memory import MemoryVectors
from sits.state.cache.answer import Answer
from sits.state.cache.eviction import Limit
from sits.state.cache.exact import ExactCache
from sits.state.cache.semantic import Query, SemanticCache, SharedAnswers, WordLlama
from sits.state.cache.semantic.cache import collection
from sits.state.cache.shared import SharedCache
from sits.state.cache.tinylfu import TinyLfu
from sits.state.outbox import Audit, Outbox, Terms, audit
from sits.state.outbox.semantic import OutboxWriter

EMBEDDER = WordLlama(128)
COLLECTION = collection(EMBEDDER)
ASKED = "Tell me how my password can be reset"
OTHERWISE = "How do I reset my password, please?"


class World:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.shelf = Shelf()
        self.vectors = MemoryVectors()
        self.nodes = 0

    def clock(self) -> float:
        return self.now

    def store(self) -> MemoryStore:
        return MemoryStore(self.clock, shelf=self.shelf)

    async def audit(self) -> Audit:
        return await audit(self.store(), self.vectors, COLLECTION, now=self.now)


class Node:
    """A process with a cache of its own, the shared one, and an outbox."""

    def __init__(self, world: World, terms: Terms | None = None) -> None:
        world.nodes += 1
        self.world = world
        own = ExactCache(TinyLfu(Limit(1 << 20, 1000)))
        loop = asyncio.get_running_loop()
        self.shared = SharedCache(own, world.store(), loop=loop, patience=5.0, clock=world.clock)
        clocks = {"wall": world.clock, "clock": world.clock}
        store = world.store()
        self.outbox = Outbox(store, world.vectors, COLLECTION, 128, owner=f"node-{world.nodes}", terms=terms, **clocks)
        self.cache = SemanticCache(
            embedder=EMBEDDER,
            vectors=world.vectors,
            answers=SharedAnswers(self.shared),
            writer=OutboxWriter(self.outbox, self.shared),
            clock=world.clock,
        )

    async def start(self) -> Node:
        await self.cache.start()
        await self.outbox.start(relay=False)
        return self

    async def keep(self, text: str, *, ttl: float = 3600.0, tags: tuple[str, ...] = ()) -> bool:
        now = self.world.now
        message = {"role": "assistant", "content": "the answer to " + text}
        body = msgspec.json.encode({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
        answer = Answer("chat", body, made=now, expires=now + ttl, tags=tags)
        return await self.cache.store(Query(text, partition="p"), answer, now, self.cache.moment)

    async def find(self, text: str) -> str | None:
        found = await self.cache.lookup(Query(text, partition="p"), self.world.now)
        return None if found is None else found.text


def run(story: Callable[[World], Awaitable[None]]) -> None:
    async def told() -> None:
        await story(World())

    asyncio.run(told())


def test_what_one_node_kept_another_finds_by_its_meaning_once_it_is_relayed() -> None:
    async def story(world: World) -> None:
        a, b = await Node(world).start(), await Node(world).start()
        assert await a.keep(ASKED)
        assert await b.find(OTHERWISE) is None
        assert await a.find(ASKED) == ASKED
        assert (await world.audit()).pending == 1
        assert await b.outbox.relay.turn() == 1
        assert await b.find(OTHERWISE) == ASKED
        assert (await world.audit()).sound

    run(story)


def test_a_node_that_dies_after_it_kept_an_answer_loses_neither_half() -> None:
    async def story(world: World) -> None:
        dying = await Node(world).start()
        assert await dying.keep(ASKED)
        world.now += dying.outbox.terms.lease
        other = await Node(world).start()
        await other.outbox.relay.turn()
        assert await other.find(OTHERWISE) == ASKED

    run(story)


def test_a_purged_answer_is_taken_away_with_its_vector_when_it_is_met() -> None:
    async def story(world: World) -> None:
        a, b = await Node(world).start(), await Node(world).start()
        await a.keep(ASKED, tags=("model:m",))
        await a.outbox.relay.turn()
        await a.cache.purge("model:m")
        assert await b.find(OTHERWISE) is None
        assert b.cache.tally.dangling == 1
        await a.outbox.relay.turn()
        told = await world.audit()
        assert (told.records, told.vectors, told.faults) == (0, 0, [])

    run(story)


def test_the_vectors_of_answers_that_have_expired_go_too() -> None:
    async def story(world: World) -> None:
        a = await Node(world).start()
        await a.keep(ASKED, ttl=60.0)
        await a.outbox.relay.turn()
        world.now += 60.0
        assert await a.find(OTHERWISE) is None
        while await a.outbox.relay.sweep():
            pass
        await a.outbox.relay.turn()
        assert await world.vectors.count(COLLECTION, "p") == 0

    run(story)


def test_while_too_much_waits_for_the_index_an_answer_is_not_kept() -> None:
    async def story(world: World) -> None:
        a = await Node(world, Terms(backlog=1)).start()
        assert await a.keep(ASKED)
        assert not await a.keep("How tall is the Eiffel tower?")
        assert not await a.keep("How old is Rome?", ttl=0.0)
        assert (await world.audit()).records == 1

    run(story)
