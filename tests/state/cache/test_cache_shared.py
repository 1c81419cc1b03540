"""The cache of all nodes: two of them on one store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from sits.gateway.drive import Drive
from sits.inner.errors import Code, SitsError
from sits.inner.event import Usage
from sits.ports.store import LARGEST_VALUE, Entry, Put, Store, open_store
from sits.ports.store.memory import Away, MemoryStore, Shelf
from sits.state.cache.answer import Answer
from sits.state.cache.eviction import Limit
from sits.state.cache.exact import ExactCache
from sits.state.cache.rules import FRESH, Wish
from sits.state.cache.shared import ANSWERS, MOST_WRITES, PURGE, PURGES, SharedCache, SharedTally
from sits.state.cache.tinylfu import TinyLfu

NOW = 1000.0


def mark(name: object) -> bytes:
    return blake3(str(name).encode()).digest()


def made(text: str = "巴黎", *tags: str, ttl: float = 100.0) -> Answer:
    return Answer("chat", text.encode(), NOW, NOW + ttl, "m-1", tags, Usage(input=3, output=2), "stop")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class SlowStore(MemoryStore):
    """One that answers when it is let."""

    def __init__(self, shelf: Shelf) -> None:
        super().__init__(lambda: NOW, shelf=shelf)
        self.gate = asyncio.Event()
        self.asked = 0
        self.reached = asyncio.Event()

    async def get_many(self, keys: Sequence[str]) -> list[Entry | None]:
        self.asked += 1
        self.reached.set()
        await self.gate.wait()
        return await super().get_many(keys)


def node(store: Store, clock: Clock | None = None, patience: float = 5.0) -> SharedCache:
    own = ExactCache(TinyLfu(Limit(2**24, 1000)))
    loop = asyncio.get_running_loop()
    return SharedCache(own, store, loop=loop, patience=patience, rest=1.0, clock=clock or Clock())


Story = Callable[[Callable[[], Awaitable[Store]]], Coroutine[Any, Any, None]]


@pytest.fixture(params=["memory", "sqlite"])
def tell(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Story], None]:
    """Runs a story whose nodes open the same store, each on its own."""

    def run(story: Story) -> None:
        async def whole() -> None:
            shelf, stores = Shelf(), []

            async def opened() -> Store:
                memory = request.param == "memory"
                store = (
                    MemoryStore(lambda: NOW, shelf=shelf) if memory else await open_store("sqlite", tmp_path, wall=lambda: NOW)
                )
                stores.append(store)
                return store

            try:
                await story(opened)
            finally:
                for store in stores:
                    await store.aclose()

        asyncio.run(whole())

    return run


def test_what_one_node_was_answered_another_need_not_ask(tell: Callable[[Story], None]) -> None:
    async def story(opened: Callable[[], Awaitable[Store]]) -> None:
        one, two = node(await opened()), node(await opened())
        assert one.store(mark(1), made(), NOW, one.moment)
        await one.settle()
        assert two.lookup(mark(1), NOW) is None
        assert await two.fetch(mark(1), NOW) == made()
        assert two.lookup(mark(1), NOW) == made()
        assert await two.fetch(mark(2), NOW) is None
        assert (one.tally, two.tally) == (SharedTally(stored=1), SharedTally(hits=1, misses=1))

    tell(story)


def test_no_node_gets_a_purged_answer_from_the_store_once_the_purge_has_returned(tell: Callable[[Story], None]) -> None:
    async def story(opened: Callable[[], Awaitable[Store]]) -> None:
        one, two, three = node(await opened()), node(await opened()), node(await opened())
        for number, tags in enumerate([("model:a", "tenant:x"), ("model:a", "tenant:y"), ("model:b", "tenant:x")]):
            one.store(mark(number), made("x", *tags), NOW, one.moment)
        await one.settle()
        assert await two.fetch(mark(0), NOW) is not None
        assert await one.purge("model:a", "tenant:x") == 1
        assert [await three.fetch(mark(number), NOW) is not None for number in range(3)] == [False, True, True]

        assert two.lookup(mark(0), NOW) is not None  # Its own cache has not heard of it yet ...
        await two.refresh()
        assert two.lookup(mark(0), NOW) is None  # ... and now it has.
        assert await two.fetch(mark(0), NOW) is None

        assert await one.purge() == 2
        assert [await three.fetch(mark(number), NOW) for number in range(3)] == [None, None, None]

    tell(story)


def test_a_soft_purge_makes_answers_stale_on_all_nodes_from_its_moment_on(tell: Callable[[Story], None]) -> None:
    async def story(opened: Callable[[], Awaitable[Store]]) -> None:
        one, two, three = node(await opened()), node(await opened()), node(await opened())
        kept = Answer("chat", b"x", NOW, NOW + 150, tags=("model:a",), stale=50.0)
        softened = Answer("chat", b"x", NOW, NOW + 60, tags=("model:a",), stale=50.0)
        for number, answer in enumerate([kept, made("x", "model:a"), made("x", "model:b")]):
            one.store(mark(number), answer, NOW, one.moment)
        await one.settle()
        assert await two.fetch(mark(0), NOW) == kept
        assert await one.soften(NOW + 10, "model:a") == 2
        assert [await three.fetch(mark(number), NOW + 20) for number in range(3)] == [softened, None, made("x", "model:b")]
        assert await three.fetch(mark(0), NOW + 20, FRESH) is None
        await two.refresh()
        assert two.lookup(mark(0), NOW + 20) == one.lookup(mark(0), NOW + 20) == softened

        one.store(mark(0), kept, NOW + 20, one.moment)  # It was asked for since.
        await one.settle()
        assert await three.fetch(mark(0), NOW + 20, FRESH) == kept
        await one.purge("model:a")
        assert await three.fetch(mark(0), NOW + 20) is None

    tell(story)


def test_an_answer_asked_for_before_a_purge_and_stored_after_it_is_given_to_nobody(tell: Callable[[Story], None]) -> None:
    async def story(opened: Callable[[], Awaitable[Store]]) -> None:
        one, two = node(await opened()), node(await opened())
        since = one.moment
        await two.purge("model:a")
        one.store(mark(1), made("old", "model:a"), NOW, since)
        await one.settle()
        assert await two.fetch(mark(1), NOW) is None
        await one.refresh()
        one.store(mark(1), made("new", "model:a"), NOW, one.moment)
        await one.settle()
        assert await two.fetch(mark(1), NOW) == made("new", "model:a")

    tell(story)


def test_a_node_that_starts_late_knows_of_every_purge_that_counts(tell: Callable[[Story], None]) -> None:
    async def story(opened: Callable[[], Awaitable[Store]]) -> None:
        one = node(await opened())
        one.store(mark(1), made("x", "model:a"), NOW, one.moment)
        await one.settle()
        for number in range(30):
            await one.purge(f"source:{number}")
        await one.purge("model:a")
        one.store(mark(2), made("y", "model:a"), NOW, one.moment)
        await one.settle()
        late = node(await opened())
        assert [await late.fetch(mark(number), NOW) for number in (1, 2)] == [None, made("y", "model:a")]

    tell(story)


@pytest.mark.parametrize(
    ("wish", "now"),
    [(Wish(read=False), NOW), (Wish(max_age=10), NOW + 20), (Wish(min_fresh=90), NOW + 20), (Wish(), NOW + 100)],
    ids=["no-cache", "max-age", "min-fresh", "stale"],
)
def test_what_the_store_has_is_held_against_the_same_wishes_and_the_same_clock(wish: Wish, now: float) -> None:
    async def story() -> None:
        shelf = Shelf()
        one, two = node(MemoryStore(lambda: NOW, shelf=shelf)), node(MemoryStore(lambda: NOW, shelf=shelf))
        one.store(mark(1), made(), NOW, one.moment)
        await one.settle()
        assert await two.fetch(mark(1), now, wish) is None
        assert len(two.own) == 0

    asyncio.run(story())


def test_a_store_that_is_away_is_asked_once_and_then_left_alone_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        store, clock = MemoryStore(lambda: NOW), Clock()
        cache = node(store, clock)
        store.away = Away.BEFORE
        for number in range(5):
            assert await cache.fetch(mark(number), NOW) is None
        assert cache.tally == SharedTally(misses=5, failures=1, skipped=4)
        assert cache.store(mark(1), made(), NOW, cache.moment)
        assert cache.tally.unwritten == 1
        assert cache.lookup(mark(1), NOW) == made()
        await cache.refresh()

        store.away, clock.now = None, 1.0
        cache.store(mark(2), made(), NOW, cache.moment)
        await cache.settle()
        assert await cache.fetch(mark(2), NOW) == made()

    with caplog.at_level(logging.WARNING, "sits.cache"):
        asyncio.run(story())
    assert [record.getMessage() for record in caplog.records] == [
        "the shared cache is left alone for 1 s: store memory: an outage is played"
    ]


def test_an_outage_while_an_answer_is_written_costs_that_answer_and_nothing_else() -> None:
    async def story() -> None:
        store = MemoryStore(lambda: NOW)
        cache = node(store)
        store.away = Away.BEFORE
        assert cache.store(mark(1), made(), NOW, cache.moment)
        await cache.settle()
        assert (cache.tally.unwritten, cache.tally.failures, cache.resting) == (1, 1, True)

    asyncio.run(story())


def test_a_purge_that_the_store_does_not_take_is_an_error_to_who_asked_and_is_done_here_all_the_same() -> None:
    async def story() -> None:
        store = MemoryStore(lambda: NOW)
        cache = node(store)
        cache.store(mark(1), made("x", "model:a"), NOW, cache.moment)
        await cache.settle()
        store.away = Away.BEFORE
        with pytest.raises(SitsError) as caught:
            await cache.purge("model:a")
        assert caught.value.code is Code.STATE_UNAVAILABLE
        assert cache.lookup(mark(1), NOW) is None

    asyncio.run(story())


def test_nobody_waits_longer_for_the_store_than_its_patience() -> None:
    async def story() -> None:
        store = SlowStore(Shelf())
        cache = node(store, patience=0.01)
        assert await cache.fetch(mark(1), NOW) is None
        assert await cache.fetch(mark(1), NOW) is None
        assert store.asked == 1
        assert cache.tally == SharedTally(misses=2, failures=1, skipped=1)
        await cache.settle()

    asyncio.run(story())


def test_one_that_stops_waiting_ends_its_question_to_the_store() -> None:
    async def story() -> None:
        store = SlowStore(Shelf())
        cache = node(store)
        waiting = asyncio.ensure_future(cache.fetch(mark(1), NOW))
        await store.reached.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await cache.settle()
        assert not cache.resting

    asyncio.run(story())


def test_an_exchange_without_a_task_of_its_own_can_wait_for_the_store(tmp_path: Path) -> None:
    async def story() -> None:
        store = await open_store("sqlite", tmp_path, wall=lambda: NOW)
        one, two = node(store), node(store)
        one.store(mark(1), made(), NOW, one.moment)
        await one.settle()
        found: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()

        async def exchange() -> None:
            found.set_result(await two.fetch(mark(1), NOW))

        Drive(exchange())
        assert await found == made()
        await store.aclose()

    asyncio.run(story())


@pytest.mark.parametrize("value", [b"", b"nonsense", b"\x92\x01\xc0"], ids=["empty", "nonsense", "another form"])
def test_what_another_version_wrote_is_a_miss(value: bytes) -> None:
    async def story() -> None:
        store = MemoryStore(lambda: NOW)
        await store.commit([Put(ANSWERS + mark(1).hex(), value)])
        cache = node(store)
        assert await cache.fetch(mark(1), NOW) is None
        assert cache.tally == SharedTally(misses=1, unreadable=1)
        assert not cache.resting

    asyncio.run(story())


def test_a_purge_that_a_later_version_wrote_is_taken_to_mean_everything() -> None:
    async def story() -> None:
        store = MemoryStore(lambda: NOW)
        cache = node(store)
        cache.store(mark(1), made("x", "model:a"), NOW, cache.moment)
        await cache.settle()
        await store.commit([Put(PURGE + "later", b"\xc1"), Put(PURGES, b"")])
        assert await cache.fetch(mark(1), NOW) is None
        assert len(cache.own) == 0

    asyncio.run(story())


def test_what_is_too_large_for_the_store_or_too_much_at_once_stays_here() -> None:
    async def story() -> None:
        store = MemoryStore(lambda: NOW)
        cache = node(store)
        assert cache.store(mark(0), made("x" * LARGEST_VALUE), NOW, cache.moment)
        for number in range(1, MOST_WRITES + 11):
            assert cache.store(mark(number), made(), NOW, cache.moment)
        await cache.settle()
        assert (cache.tally.stored, cache.tally.unwritten) == (MOST_WRITES, 11)

    asyncio.run(story())


def test_closing_ends_what_is_under_way() -> None:
    async def story() -> None:
        store = SlowStore(Shelf())
        cache = node(store)
        waiting = asyncio.ensure_future(cache.fetch(mark(1), NOW))
        await store.reached.wait()
        await cache.aclose()
        assert await waiting is None
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(story())
