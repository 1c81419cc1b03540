"""What the relay does when things go wrong that kill nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from outbox_rig import COLLECTION, World, item, write

from sits.inner.errors import Code, SitsError
from sits.ports.store import Put
from sits.ports.store.memory import Away
from sits.ports.vectors import Item
from sits.state.outbox import Audit, Outbox, Terms, repair
from sits.state.outbox.faulty import HookedVectors, refusing


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def told() -> None:
        await story()

    asyncio.run(told())


def faults(told: Audit) -> list[tuple[str, str, str]]:
    return [(fault.kind, fault.id, fault.message) for fault in told.faults]


def test_a_node_that_stood_still_past_its_lease_leaves_nothing_apart() -> None:
    async def story() -> None:
        world = World()

        async def stand_still(name: str, ids: Sequence[str]) -> None:
            if name == "upsert" and world.nodes == 1:
                # The first node has read "old" and is about to write it; all of this happens before it goes on.
                world.now += world.terms.lease
                other = await world.node()
                await write(other, "one", "new")
                assert await other.relay.turn() == 1

        slow = await world.node(vectors=HookedVectors(world.vectors, stand_still))
        await write(slow, "one", "old")
        assert await slow.relay.turn() == 0
        assert await world.seen() == {"one": ("new", "old")}
        assert (await world.audit()).pending == 1
        assert slow.tally.doubted == 1
        await world.recover()
        assert await world.seen() == {"one": ("new", "new")}

    run(story)


def test_a_change_that_comes_while_its_id_is_relayed_is_relayed_after() -> None:
    async def story() -> None:
        world = World()
        writer = await world.node()
        done = []

        async def in_between(name: str, ids: Sequence[str]) -> None:
            if name == "upsert" and not done:
                done.append(name)
                await write(writer, "one", "new")

        relaying = await world.node(vectors=HookedVectors(world.vectors, in_between))
        await write(relaying, "one", "old")
        assert await relaying.relay.turn() == 0
        assert await world.seen() == {"one": ("new", "old")}
        assert await relaying.relay.turn() == 1
        assert await world.seen() == {"one": ("new", "new")}

    run(story)


def test_a_lost_answer_of_the_store_changes_nothing() -> None:
    async def story() -> None:
        world = World()
        store = world.store()
        outbox = await world.node(store=store)
        await write(outbox, "one", "a")
        store.away = Away.AFTER
        with pytest.raises(SitsError) as refused:
            await outbox.relay.turn()
        assert refused.value.code is Code.STATE_UNAVAILABLE
        with pytest.raises(SitsError):
            await write(outbox, "one", "b")
        store.away = None
        assert await outbox.relay.turn() == 1
        assert await world.seen() == {"one": ("b", "b")}

    run(story)


def test_with_too_much_waiting_writes_are_refused_and_removals_taken() -> None:
    async def story() -> None:
        world = World(Terms(backlog=3))
        outbox = await world.node()
        world.vectors.away = True
        for number in range(3):
            await write(outbox, f"id-{number}", "a")
        with pytest.raises(SitsError) as refused:
            await write(outbox, "id-3", "a")
        assert (refused.value.code, refused.value.retry_after) == (Code.OVERLOADED, 1.0)
        assert refused.value.message == "3 changes wait for the index memory already"
        await outbox.remove("p", "id-0")
        world.vectors.away = False
        assert await outbox.relay.turn() == 3
        world.now += 1.0
        await write(outbox, "id-3", "a")
        await outbox.relay.turn()
        assert await world.seen() == dict.fromkeys(("id-1", "id-2", "id-3"), ("a", "a"))
        assert outbox.tally.refused == 1

    run(story)


def test_a_write_may_wait_for_room() -> None:
    async def story() -> None:
        world = World(Terms(backlog=1, full="wait", patience=5.0))
        outbox = await world.node()
        await write(outbox, "one", "a")
        waiting = asyncio.create_task(write(outbox, "two", "a"))
        await asyncio.sleep(0)
        assert not waiting.done()
        await outbox.relay.turn()
        world.now += 1.0
        await waiting
        world.now += 1.0
        waiting = asyncio.create_task(write(outbox, "three", "a"))
        await asyncio.sleep(0)
        world.now += 5.0
        with pytest.raises(SitsError, match="wait for the index"):
            await waiting

    run(story)


def test_an_entry_that_always_fails_is_parked_and_holds_nobody_up() -> None:
    async def story() -> None:
        world = World(Terms(tries=3, old=1000.0))
        outbox = await world.node(vectors=HookedVectors(world.vectors, refusing(Code.INTERNAL, "bad")))
        await write(outbox, "bad", "a")
        await write(outbox, "good", "a")
        for _ in range(3):
            await outbox.relay.turn()
            world.now += 10.0
        assert await world.seen() == {"bad": ("a", None), "good": ("a", "a")}
        told = await world.audit()
        assert faults(told) == [("parked", "bad", "internal_error: the index takes no item 'bad'")]
        assert (told.waiting, told.parked, told.pending, told.oldest) == (1, 1, 1, 0.0)
        assert outbox.tally.parked == 1
        assert await outbox.settle(seconds=0.0) == 0
        # An index that takes it, and somebody who has looked.
        mended = await world.node()
        await outbox.relay.release()
        done = await repair(mended, now=world.now)
        assert (done.retried, done.left) == (1, 0)
        assert await world.seen() == {"bad": ("a", "a"), "good": ("a", "a")}
        assert (await world.audit()).sound

    run(story)


@pytest.mark.parametrize("how", ["removed", "expired", "written"])
def test_a_parked_entry_is_over_when_its_id_is(how: str) -> None:
    async def story() -> None:
        world = World(Terms(tries=1))
        outbox = await world.node(vectors=HookedVectors(world.vectors, refusing(Code.INTERNAL, "bad")))
        await write(outbox, "bad", "a", ttl=100.0)
        await outbox.relay.turn()
        assert (await world.audit()).parked == 1
        if how == "removed":
            await outbox.remove("p", "bad")
        elif how == "expired":
            world.now += 100.0
        else:
            await outbox.relay.release()
            outbox = await world.node()
            await write(outbox, "bad", "b")
        await outbox.relay.turn()
        told = await world.audit()
        assert (told.faults, told.waiting) == ([], 0)
        assert await world.seen() == ({"bad": ("b", "b")} if how == "written" else {})

    run(story)


def test_an_entry_that_is_refused_for_good_may_be_parked_instead_of_undone() -> None:
    async def story() -> None:
        world = World(Terms(refused="park"))
        outbox = await world.node(vectors=HookedVectors(world.vectors, refusing(Code.TOO_LARGE, "bad")))
        await write(outbox, "bad", "a")
        await outbox.relay.turn()
        assert faults(await world.audit()) == [("parked", "bad", "request_too_large: the index takes no item 'bad'")]
        assert await world.seen() == {"bad": ("a", None)}

    run(story)


def test_the_sweep_takes_away_what_has_expired_and_mends_what_is_apart() -> None:
    async def story() -> None:
        world = World(Terms(sweep_page=2))
        outbox = await world.node()
        for number in range(5):
            await write(outbox, f"brief-{number}", "a", ttl=60.0)
        await write(outbox, "lasting", "a")
        await outbox.relay.turn()
        (kept,) = await world.vectors.get(COLLECTION, "p", ["brief-0"])
        assert kept is not None
        assert kept.fields == {"text": "a", "expires": world.now + 60.0}
        await world.vectors.delete(COLLECTION, "p", ["lasting"])
        world.now += 60.0
        told = await world.audit()
        assert (told.expired, faults(told)) == (5, [("missing", "lasting", "")])
        # One page of records, three of vectors, and the end of the round; on each page most was apart.
        assert [await outbox.relay.sweep() for _ in range(5)] == [True, True, True, True, False]
        await outbox.relay.turn()
        assert await world.seen() == {"lasting": ("a", "a")}
        assert outbox.tally.healed == 6
        assert (await world.audit()).sound

    run(story)


def test_a_reader_has_what_it_found_apart_looked_at() -> None:
    async def story() -> None:
        world = World()
        outbox = await world.node()
        await world.vectors.upsert(COLLECTION, "p", [item("lonely", "a")])
        assert faults(await world.audit()) == [("orphan", "lonely", "")]
        await outbox.heal("p", ["lonely", "lonely", "nobody"])
        assert await outbox.relay.turn() == 2
        assert await world.seen() == {}

    run(story)


def test_an_intent_that_waits_for_too_long_is_a_fault_and_says_why() -> None:
    async def story() -> None:
        world = World(Terms(old=60.0))
        outbox = await world.node(vectors=HookedVectors(world.vectors, refusing(Code.CONFLICT, "one")))
        await write(outbox, "one", "a")
        await outbox.relay.turn()
        world.now += 61.0
        told = await world.audit()
        assert faults(told) == [("old", "one", "for 61 s: conflict: the index takes no item 'one'")]
        assert told.oldest == 61.0

    run(story)


def test_what_may_not_be_is_refused_before_anything_is_written() -> None:
    async def story() -> None:
        world = World()
        outbox = await world.node()
        good = item("x", "a")
        wrong = [
            ("", good),
            ("p", item("", "a")),
            ("p", item("x" * 257, "a")),
            ("p", Item("x", good.vector[:1])),
            ("p", Item("x", 0 * good.vector)),
            ("p", Item("x", good.vector, {"text": "a" * 9000})),
        ]
        for partition, one in wrong:
            with pytest.raises(SitsError) as refused:
                await outbox.write(partition, one, Put("note/x", b""))
            assert refused.value.code is Code.INVALID_REQUEST
        assert await world.store().scan("note/") == await world.store().scan("outbox/t/") == []
        await outbox.write("p", item("x", "a"), Put("note/x", b"a", expect=0))
        with pytest.raises(SitsError) as conflict:
            await outbox.write("p", item("x", "b"), Put("note/x", b"b", expect=0))
        assert conflict.value.code is Code.CONFLICT
        await outbox.relay.turn()
        assert await world.seen() == {"x": ("a", "a")}

    run(story)


def test_rows_of_a_later_version_are_left_alone_and_shown() -> None:
    async def story() -> None:
        world = World()
        outbox = await world.node()
        await world.store().commit([Put(f"outbox/w/{COLLECTION}/00", b"\xc1"), Put(f"outbox/t/{COLLECTION}/01", b"\xc1")])
        await write(outbox, "one", "a")
        assert await outbox.relay.turn() == 1
        while await outbox.relay.sweep():
            pass
        assert faults(await world.audit()) == [
            ("unreadable", f"outbox/t/{COLLECTION}/01", ""),
            ("unreadable", f"outbox/w/{COLLECTION}/00", ""),
        ]

    run(story)


def test_the_task_outlives_an_outage_of_the_index() -> None:
    async def story() -> None:
        world = World()
        outbox = Outbox(world.store(), world.vectors, COLLECTION, 2, owner="task", terms=Terms(rest=0.001, tick=0.001))
        await outbox.start()
        world.vectors.away = True
        await write(outbox, "one", "a")
        async with asyncio.timeout(60):
            while not outbox.relay.trouble:  # noqa: ASYNC110 - the task tells nobody
                await asyncio.sleep(0)
        assert outbox.relay.trouble == "the vectors in memory are away"
        world.vectors.away = False
        assert await outbox.settle(seconds=10.0) == 0
        assert await world.seen() == {"one": ("a", "a")}
        await outbox.aclose()
        await outbox.aclose()
        assert await world.store().scan("outbox/lease/") == []

    run(story)
