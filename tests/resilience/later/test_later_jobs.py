"""A request that was taken on is answered, once, for whoever asked, whatever happens to the process that took it on."""

from __future__ import annotations

import asyncio

import pytest
from later_world import KEEP, Node, World, failed, made, run, wanted

from sits.inner.errors import Code, SitsError
from sits.ports.store.memory import Away
from sits.resilience.later import (
    CALLS,
    LANE,
    LARGEST_ANSWER,
    LARGEST_REQUEST,
    LEASE_SECONDS,
    MOST,
    MOST_OF_ONE,
    TRIES,
    Made,
    Pending,
)

HOOK = "https://hooks.example.com/sits"


@run
async def test_an_answer_is_pending_until_it_is_there_and_then_it_waits_for_an_hour() -> None:
    world, go = World(), asyncio.Event()
    node = Node(world, "a", go, made("好"))
    id = await node.later.accept(wanted("问"))
    await world.settle()
    assert (await node.later.find(id, "alice"), len(node.later)) == (Pending(id), 1)
    go.set()
    await world.advance(KEEP / 2)
    assert (await node.later.find(id, "alice"), len(node.later), node.asked) == (made("好"), 0, ["问".encode()])
    await world.advance(KEEP / 2 + 1)
    assert (await node.later.find(id, "alice"), await node.store.scan("later/")) == (None, [])


@run
async def test_nobody_finds_what_another_key_asked_for() -> None:
    world, go = World(), asyncio.Event()
    node = Node(world, "a", go, made())
    mine, nobodys = await node.later.accept(wanted()), await node.later.accept(wanted(key=None))
    for _ in range(2):
        found = [[await node.later.find(id, key) is not None for key in ("alice", "bob", None, "")] for id in (mine, nobodys)]
        assert found == [[True, False, False, False], [False, False, True, False]]
        go.set()
        await world.settle()
    for id in ("", "../open/x", "short", "x" * 65, "id of a job with spaces", "no-such-job-at-all"):
        assert await node.later.find(id, "alice") is None


TRIED = [
    ("a fault of the request is final", [failed(400, "invalid_request")], 1, "invalid_request"),
    ("a broken target is asked again", [failed(502, "upstream_error"), made()], 2, ""),
    ("but not for ever", [failed(502, "upstream_error")], TRIES, "upstream_error"),
    ("too much of it is waited for", [failed(429, "upstream_rate_limited", 30.0), made()], 2, ""),
    ("no room yet is no try", [*[failed(503, "overloaded")] * 9, made()], 10, ""),
    ("nor is a quota that is used up", [*[failed(429, "rate_limited", 90.0)] * 5, failed(500, "x"), made()], 7, ""),
]


@pytest.mark.parametrize(("answers", "asked", "code"), [row[1:] for row in TRIED], ids=[row[0] for row in TRIED])
@run
async def test_what_another_time_may_help_is_tried_again(answers: list[Made], asked: int, code: str) -> None:
    world = World()
    node = Node(world, "a", *answers)
    id = await node.later.accept(wanted())
    await world.advance(1000)
    found = await node.later.find(id, "alice")
    assert isinstance(found, Made)
    assert (len(node.asked), found.code, found.good) == (asked, code, not code)
    assert (node.later.tally.made, node.later.tally.failed) == (int(not code), int(bool(code)))


@run
async def test_what_is_never_made_in_its_time_is_gone() -> None:
    world = World()
    node = Node(world, "a", failed(503, "overloaded"))
    id = await node.later.accept(wanted())
    await world.advance(KEEP + 120)
    assert (await node.later.find(id, "alice"), len(node.later), node.later.tally.lost) == (None, 0, 1)


@run
async def test_a_route_is_not_asked_for_everything_at_once_and_does_not_hold_up_another() -> None:
    world, go = World(), asyncio.Event()
    node = Node(world, "a", *[go] * LANE, made())
    for number in range(20):
        await node.later.accept(wanted(str(number)))
    other = await node.later.accept(wanted("other", route="s"))
    await world.settle()
    assert (node.most, node.asked[-1]) == (LANE + 1, b"other")
    assert await node.later.find(other, "alice") == made()
    go.set()
    await world.settle()
    assert (len(node.later), sorted(node.asked), node.most) == (0, sorted([*(b"%d" % n for n in range(20)), b"other"]), LANE + 1)


@run
async def test_the_queue_has_an_end_for_each_key_and_for_all() -> None:
    world, never = World(), asyncio.Event()
    node = Node(world, "a", never)
    for number in range(MOST):
        await node.later.accept(wanted(key=f"key-{number % (MOST // MOST_OF_ONE)}"))
    for job in (wanted(key="key-0"), wanted(key="other"), wanted("q" * (LARGEST_REQUEST + 1), key="x")):
        with pytest.raises(SitsError) as refused:
            await node.later.accept(job)
        assert (refused.value.code, refused.value.retry_after) == (Code.OVERLOADED, 5)
    assert (len(node.later), node.later.tally.refused) == (MOST, 3)


@run
async def test_a_key_that_asks_for_much_leaves_room_for_the_others() -> None:
    world, never = World(), asyncio.Event()
    node = Node(world, "a", never)
    for _ in range(MOST_OF_ONE):
        await node.later.accept(wanted(key="greedy"))
    with pytest.raises(SitsError):
        await node.later.accept(wanted(key="greedy"))
    await node.later.accept(wanted(key="modest"))


@run
async def test_an_answer_that_is_too_large_to_keep_is_an_error_that_says_so() -> None:
    world = World()
    node = Node(world, "a", Made(200, b"text/plain", b"x" * (LARGEST_ANSWER + 1)))
    id = await node.later.accept(wanted())
    await world.settle()
    found = await node.later.find(id, "alice")
    assert isinstance(found, Made)
    assert (found.status, found.code, found.good) == (413, "request_too_large", False)


# Death


@run
async def test_what_a_killed_process_has_left_is_done_by_another_and_by_one_only() -> None:
    world, never = World(), asyncio.Event()
    first = Node(world, "a", never)
    ids = [await first.later.accept(wanted(str(n), callback=HOOK)) for n in range(5)]
    await world.settle()
    first.die()
    others = [Node(world, name, made(name)) for name in "bc"]
    for other in others:
        await other.later.start()
    await world.advance(LEASE_SECONDS - 1)
    assert [other.asked for other in others] == [[], []], "it may live still"
    await world.advance(LEASE_SECONDS)
    found = [await others[0].later.find(id, "alice") for id in ids]
    assert all(isinstance(one, Made) and one.good for one in found)
    assert sorted(question for other in others for question in other.asked) == [b"%d" % n for n in range(5)]
    assert sorted(id for other in others for _, id, _ in other.called) == sorted(ids)
    assert sum(other.later.tally.adopted for other in others) == 5


@run
async def test_a_process_that_only_slept_does_not_overwrite_what_was_made_meanwhile() -> None:
    world, go = World(), asyncio.Event()
    slow = Node(world, "a", go, made("old"))
    id = await slow.later.accept(wanted(callback=HOOK))
    await world.settle()
    quick = Node(world, "b", made("new"))
    await world.advance(LEASE_SECONDS + 1)
    await quick.later.start()
    await world.settle()
    go.set()
    await world.settle()
    assert await slow.later.find(id, "alice") == made("new")
    assert (len(quick.called), len(slow.called), slow.later.tally.lost) == (1, 0, 1)


@run
async def test_a_process_that_lives_keeps_its_jobs_however_long_they_take() -> None:
    world, go = World(), asyncio.Event()
    one, other = Node(world, "a", go, made()), Node(world, "b")
    await one.later.start()
    await other.later.start()
    id = await one.later.accept(wanted())
    await world.advance(20 * LEASE_SECONDS)
    go.set()
    await world.settle()
    assert (await other.later.find(id, "alice"), other.asked, len(one.asked)) == (made(), [], 1)


@run
async def test_a_process_that_ends_leaves_what_it_has_to_others_at_once() -> None:
    world, never = World(), asyncio.Event()
    one, other = Node(world, "a", never), Node(world, "b", made("b"))
    id = await one.later.accept(wanted())
    await world.settle()
    await one.later.aclose()
    await one.later.aclose()
    with pytest.raises(SitsError) as refused:
        await one.later.accept(wanted())
    assert refused.value.code is Code.DRAINING
    await other.later.start()
    await world.settle()
    assert await other.later.find(id, "alice") == made("b")


# The store goes away


@run
async def test_a_request_that_the_store_did_not_take_is_not_promised() -> None:
    world = World()
    node = Node(world, "a")
    await node.later.start()
    for away in (Away.BEFORE, Away.AFTER):
        node.store.away = away
        with pytest.raises(SitsError) as refused:
            await node.later.accept(wanted())
        assert (refused.value.code, len(node.later)) == (Code.STATE_UNAVAILABLE, 0)
        node.store.away = None
        await world.advance(2 * LEASE_SECONDS)
        assert node.asked == [], "also when it is in the store all the same: nobody has its id"
    assert await node.store.scan("later/") == []


@pytest.mark.parametrize("callback", [None, HOOK], ids=["asked for", "called"])
@pytest.mark.parametrize("away", list(Away), ids=[one.value for one in Away])
@run
async def test_an_answer_outlasts_an_outage_and_is_kept_once(away: Away, callback: str | None) -> None:
    world, go = World(), asyncio.Event()
    node = Node(world, "a", go, made())
    await node.later.start()
    id = await node.later.accept(wanted(callback=callback))
    await world.settle()
    node.store.away = away
    go.set()
    await world.advance(LEASE_SECONDS / 2)
    node.store.away = None
    await world.advance(120)
    assert (await node.later.find(id, "alice"), len(node.later), len(node.asked)) == (made(), 0, 1)
    assert [id for _, id, _ in node.called] == ([id] if callback else [])
    assert node.later.tally.lost == 0


# Callbacks


@run
async def test_an_answer_is_sent_to_whoever_wants_to_be_called_until_it_is_taken() -> None:
    world = World()
    node = Node(world, "a", failed(400, "invalid_request"), taken=(False, False, True))
    id = await node.later.accept(wanted(callback=HOOK))
    await world.settle()
    assert node.called == [(HOOK, id, 400)]
    await world.advance(1)
    await world.advance(1)
    assert len(node.called) == 2
    await world.advance(1)
    assert (node.called, node.later.tally.called, len(node.later)) == ([(HOOK, id, 400)] * 3, 1, 0)
    await world.advance(KEEP / 2)
    assert len(node.called) == 3


@run
async def test_a_callback_is_given_up_in_the_end_and_the_answer_stays() -> None:
    world = World()
    node = Node(world, "a", made(), taken=(False,))
    id = await node.later.accept(wanted(callback=HOOK))
    await world.advance(KEEP / 2)
    assert (len(node.called), node.later.tally.uncalled, len(node.later)) == (CALLS, 1, 0)
    assert await node.later.find(id, "alice") == made()


@run
async def test_who_dies_while_calling_is_followed_by_another_who_calls_and_does_not_ask() -> None:
    world = World()
    first = Node(world, "a", made("a"), taken=(False,))
    id = await first.later.accept(wanted(callback=HOOK))
    await world.settle()
    first.die()
    second = Node(world, "b", made("b"))
    await second.later.start()
    await world.advance(2 * LEASE_SECONDS)
    assert (second.called, second.asked) == ([(HOOK, id, 200)], [])
    assert await second.later.find(id, "alice") == made("a")
