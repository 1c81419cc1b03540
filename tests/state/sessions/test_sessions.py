"""What clients and nodes may count on, with time that stands still."""

from __future__ import annotations

import asyncio
import json

import pytest
from sessions_kit import RULES, TENANT, World, refusal, story

from sits.ports.store.memory import Away
from sits.state.sessions import ContextDelta, Gap, RuleRow, Terms
from sits.state.sessions.terms import LARGEST_CONTEXT, LARGEST_DELTA, MOST_PATHS


@story("a")
async def test_a_change_that_is_repeated_changes_nothing_and_gets_the_same_answer(world: World) -> None:
    first = await world.kept("a", 1, "一", said=b"[1]")
    again = await world.kept("a", 1, "一", said=b"[1]")
    await world.kept("a", 2, "二", said=b"[2]")
    later = await world.kept("a", 1, "一", said=b"[1]")
    assert (first.version, first.repeated) == (1, False)
    assert [(one.version, one.clock, one.repeated) for one in (again, later)] == [(1, first.clock, True)] * 2
    assert await world.context("a") == {"said": b"[1,2]"}
    assert await refusal(world.say("a", 3, "一", said=b"[3]")) == ("conflict", "id")


@story("a", "b")
async def test_without_an_id_the_content_is_one(world: World) -> None:
    await world.kept("a", 1, said=b"[1]")
    assert (await world.kept("b", 1, said=b"[1]")).repeated
    assert not (await world.kept("b", 2, said=b"[1]")).repeated
    assert await world.context("a") == {"said": b"[1,1]"}


@story("a", "b")
async def test_what_builds_on_versions_that_are_not_here_is_told_which_are_missing(world: World) -> None:
    await world.kept("a", 1, said=b"[1]")
    assert await world.say("b", 4, said=b"[4]") == Gap(world.session_id, 1, (2, 3), "ahead")
    beyond = {"a": 1, "甲": 2}
    assert await world.say("b", 2, said=b"[4]", clock=beyond) == Gap(world.session_id, 1, (2, 2), "ahead")
    assert (await world.at("b").catchup(world.session_id, 0, TENANT)).deltas[0].updates == {"said": b"[1]"}
    assert (await world.kept("b", 2, said=b"[2]")).clock.counts == (("a", 1), ("b", 1))


@story("a", "b")
async def test_two_that_build_on_the_same_version_are_a_fork_with_a_record_whoever_they_are(world: World) -> None:
    await world.kept("a", 1, "base", note=b"0")
    await world.kept("a", 2, "one", note=b"1", said=b'["one"]', plan=b"A")
    other = await world.kept("a", 2, "two", note=b"2", said=b'["two"]', plan=b"B")
    third = await world.kept("b", 2, "three", apart=b"3")
    assert other.conflict is not None
    assert [(one.path, one.outcome, one.lost) for one in other.conflict.paths] == [
        ("note", "ours", b"1"),
        ("said", "both", None),
        ("plan", "rejected", b"B"),
    ]
    assert third.conflict is not None
    assert (other.version, third.version, third.conflict.paths) == (3, 4, ())
    assert await world.at("b").conflicts(world.session_id, TENANT) == [other.conflict, third.conflict]
    assert [one.open for one in (other.conflict, third.conflict)] == [True, False]
    assert await world.context("b") == {"note": b"2", "said": b'["one","two"]', "plan": b"A", "apart": b"3"}
    again = await world.kept("b", 2, "two", note=b"2", said=b'["two"]', plan=b"B")
    assert (again.version, again.conflict, again.repeated) == (3, other.conflict, True)
    assert (await world.audit()).faults == []


@story("a", "b")
async def test_the_clock_of_an_answer_says_more_than_its_version(world: World) -> None:
    await world.kept("a", 1, "one", note=b"1")
    seen = await world.kept("b", 2, "two", note=b"2")
    await world.kept("a", 3, "three", other=b"3")
    kept = await world.kept("a", 3, "four", note=b"4", clock=dict(seen.clock.counts))
    assert kept.conflict is not None
    assert kept.conflict.paths == ()


@story("a", "b")
async def test_a_session_is_there_for_its_tenant_only(world: World) -> None:
    session_id, a = world.session_id, world.at("a")
    for call in (
        a.read(session_id, "other"),
        a.read(session_id, "other", fresh=True),
        a.commit(ContextDelta(session_id, 1, {"x": b""}), "other"),
        world.at("b").commit(ContextDelta(session_id, 1, {"x": b""}), "other"),
        a.catchup(session_id, 0, "other"),
        a.conflicts(session_id, "other"),
        a.remove(session_id, "other"),
        a.read("sess_none", TENANT),
        a.read("../x", TENANT),
    ):
        assert await refusal(call) == ("not_found", "session_id")
    assert (await a.read(session_id, None)).tenant == TENANT


@story("a")
async def test_what_no_session_can_take_is_refused_and_changes_nothing(world: World) -> None:
    a, session_id = world.at("a"), world.session_id
    half = b"x" * (LARGEST_DELTA - 10)
    refused = [
        (world.say("a", 0, x=b""), ("invalid_request", "version")),
        (world.say("a", 1), ("invalid_request", "updates")),
        (world.say("a", 1, "i" * 201, x=b""), ("invalid_request", "id")),
        (a.commit(ContextDelta(session_id, 1, {"": b""}), TENANT), ("invalid_request", "updates")),
        (a.commit(ContextDelta(session_id, 1, {"\ud800": b""}), TENANT), ("invalid_request", "updates")),
        (world.say("a", 1, x=b"", clock={"a": 0}), ("invalid_request", "clock")),
        (world.say("a", 1, said=b"1"), ("invalid_request", "updates.said")),
        (world.say("a", 1, x=b"x" * (LARGEST_DELTA + 1)), ("request_too_large", "updates")),
        (world.say("a", 1, plan=b"x" * 65537), ("request_too_large", "updates.plan")),
        (
            a.commit(ContextDelta(session_id, 1, {f"p{n}": b"" for n in range(MOST_PATHS // 4 + 1)}), TENANT),
            ("request_too_large", "updates"),
        ),
        (a.create(TENANT, ttl=0.0), ("invalid_request", "ttl")),
        (a.create(TENANT, rules=[RuleRow("x", "max")] * 65), ("invalid_request", "rules")),
        (a.create(TENANT, session_id=session_id), ("conflict", f"session/h/{session_id}")),
    ]
    for call, why in refused:
        assert await refusal(call) == why
    assert 2 * len(half) > LARGEST_CONTEXT
    await world.kept("a", 1, x=half)
    assert await refusal(world.say("a", 2, y=half)) == ("request_too_large", "updates")
    assert (await world.kept("a", 2, x=None)).version == 2
    assert (await world.audit()).faults == []


# Memory, announcements, leases


@story("a", "b")
async def test_an_announcement_makes_the_memory_of_others_look_again(world: World) -> None:
    assert await world.context("b") == {}
    await world.kept("a", 1, note="新".encode())
    assert await world.context("b", fresh=False) == {}
    await world.network.quiet()
    assert await world.context("b", fresh=False) == {"note": "新".encode()}


@story("a", "b")
async def test_a_lost_announcement_is_staleness_with_a_bound(world: World) -> None:
    assert await world.context("b") == {}
    world.network.cut("a")
    await world.kept("a", 1, note=b"1")
    await world.network.quiet()
    assert await world.context("b", fresh=False) == {}
    world.network.advance(world.terms.stale)
    assert await world.context("b", fresh=False) == {"note": b"1"}
    await world.kept("a", 2, note=b"2")
    assert await world.context("b") == {"note": b"2"}
    await world.kept("a", 3, note=b"3")
    assert (await world.kept("b", 4, note=b"4")).conflict is None


@story("a", "b", "c")
async def test_the_lease_of_a_dead_node_passes_and_its_late_write_is_refused_by_its_fence_or_merged(world: World) -> None:
    session_id = world.session_id
    mine = await world.at("a").claim(session_id)
    assert await refusal(world.at("b").claim(session_id)) == ("conflict", "a")
    await world.kept("b", 1, "visitor", note=b"b")
    assert (await world.at("b").read(session_id, TENANT)).owner == "a"
    await world.context("a")
    world.network.advance(world.terms.lease)
    assert (await world.at("c").read(session_id, TENANT)).owner == ""
    theirs = await world.at("b").claim(session_id)
    assert theirs.fence > mine.fence
    await world.kept("b", 2, "taken", note=b"b2")
    assert await refusal(world.say("a", 2, "late", note=b"a", fence=mine.fence)) == ("conflict", "fence")
    merged = await world.kept("a", 2, "late", note=b"a")
    assert merged.conflict is not None
    assert (await world.at("c").read(session_id, TENANT, fresh=True)).owner == "b"
    world.network.advance(world.terms.lease)
    await world.kept("c", 4, note=b"c")
    view = await world.at("a").read(session_id, TENANT, fresh=True)
    assert (view.owner, view.fence > theirs.fence) == ("c", True)
    await world.at("c").release(session_id)
    assert (await world.at("a").claim(session_id)).fence > view.fence


@story("a", "b")
async def test_many_at_once_all_find_their_place(world: World) -> None:
    answers = await asyncio.gather(*(world.kept("ab"[n % 2], 1, f"{n}", said=b"[%d]" % n) for n in range(30)))
    assert sorted(answer.version for answer in answers) == list(range(1, 31))
    assert sorted(json.loads((await world.context("a"))["said"])) == list(range(30))
    assert ((await world.audit()).faults, (await world.audit()).forks) == ([], 29)


# The store away


@story("a", "b")
async def test_changes_wait_in_order_while_the_store_is_away_and_their_node_reads_them(world: World) -> None:
    await world.kept("a", 1, "zero", said=b"[0]")
    world.nodes["a"].store.away = Away.BEFORE
    first = await world.kept("a", 2, "one", said=b"[1]")
    second = await world.kept("a", 3, "two", said=b"[2]")
    again = await world.kept("a", 2, "one", said=b"[1]")
    assert [(one.version, one.state) for one in (first, second, again)] == [(2, "pending"), (3, "pending"), (2, "pending")]
    assert (again.repeated, again.clock) == (True, first.clock)
    assert await world.say("a", 9, said=b"[9]") == Gap(world.session_id, 3, (4, 8), "ahead")
    view = await world.at("a").read(world.session_id, TENANT)
    assert (view.state, view.context, view.version) == ("pending", {"said": b"[0,1,2]"}, 3)
    assert (await refusal(world.at("a").read(world.session_id, TENANT, fresh=True)))[0] == "state_unavailable"
    await world.kept("b", 2, "other", said=b"[3]")
    world.nodes["a"].store.away = None
    world.network.advance(world.terms.retry)
    third = await world.kept("a", 4, "three", said=b"[4]", clock=dict(second.clock.counts))
    assert (third.version, third.state, third.conflict is not None) == (5, "synced", True)
    assert await world.context("b") == {"said": b"[0,3,1,2,4]"}
    assert (await world.audit("a")).faults == []
    assert (await world.kept("b", 2, "one", said=b"[1]")).repeated


@story("a", "b")
async def test_a_change_that_waits_here_and_is_sent_through_another_node_as_well_is_one_change(world: World) -> None:
    world.nodes["a"].store.away = Away.BEFORE
    one = await world.kept("a", 1, "one", note=b"1")
    two = await world.kept("a", 2, "two", note=b"2", said=b"[2]")
    assert (two.state, two.conflict) == ("pending", None)
    world.network.advance(world.terms.retry)
    assert (await world.kept("b", 1, "one", note=b"1")).clock.counts == (("b", 1),)
    world.nodes["a"].store.away = None
    assert await world.at("a").sync() == 0
    assert await world.context("b") == {"note": b"2", "said": b"[2]"}
    assert await world.at("b").conflicts(world.session_id, TENANT) == []
    # What a client was told of the first one, a:1, is nobody else's dot: it has not seen the second one by it.
    late = await world.kept("a", 3, "late", note=b"3", clock=dict(one.clock.counts))
    assert late.conflict is not None
    assert (late.clock.counts, (await world.audit("a")).faults) == ((("a", 3), ("b", 1)), [])


@story("a", "b")
async def test_the_place_of_a_change_that_waited_and_was_not_needed_is_given_to_no_other(world: World) -> None:
    world.nodes["a"].store.away = Away.BEFORE
    one = await world.kept("a", 1, "one", note=b"1")
    await world.kept("b", 1, "one", note=b"1")
    await world.nodes["a"].die()
    await world.nodes["a"].start()
    assert await world.at("a").sync() == 0
    assert (await world.kept("a", 2, "two", note=b"2")).clock.counts == (("a", 2), ("b", 1))
    late = await world.kept("b", 2, "late", note=b"3", clock=dict(one.clock.counts))
    assert late.conflict is not None


@story("a")
async def test_a_change_whose_answer_was_lost_happens_once(world: World) -> None:
    world.nodes["a"].store.away = Away.AFTER
    assert (await world.kept("a", 1, "one", said=b"[1]")).state == "pending"
    world.nodes["a"].store.away = None
    assert "is in the store" in str((await world.audit("a")).notes)
    world.network.advance(world.terms.retry)
    assert await world.at("a").sync() == 0
    assert await world.context("a") == {"said": b"[1]"}


@story("a", terms=Terms(offline="refuse"))
async def test_where_the_terms_say_so_changes_are_refused_instead(world: World) -> None:
    world.nodes["a"].store.away = Away.BEFORE
    assert (await refusal(world.say("a", 1, note=b"1")))[0] == "state_unavailable"
    assert world.at("a").pending.count == 0


@story("a", "b", terms=Terms(most_pending=2))
async def test_no_change_waits_that_could_not_be_kept_to(world: World) -> None:
    claim = await world.at("a").claim(world.session_id)
    for name in "ab":
        world.nodes[name].store.away = Away.BEFORE
    assert (await refusal(world.say("b", 1, note=b"1")))[0] == "state_unavailable"
    assert (await refusal(world.say("a", 1, note=b"1", fence=claim.fence)))[0] == "state_unavailable"
    await world.kept("a", 1, note=b"1")
    await world.kept("a", 2, note=b"2")
    assert (await refusal(world.say("a", 3, note=b"3")))[0] == "overloaded"
    assert (await refusal(world.at("a").create(TENANT)))[0] == "state_unavailable"


@story("a", "b")
async def test_what_waits_outlives_its_node_and_what_cannot_be_brought_in_is_explained(world: World) -> None:
    world.nodes["a"].store.away = Away.BEFORE
    await world.kept("a", 1, "one", note=b"1")
    await world.nodes["a"].die()
    await world.at("b").remove(world.session_id, TENANT)
    await world.nodes["a"].start()
    assert world.at("a").pending.count == 1
    assert await world.at("a").sync() == 0
    found = await world.audit("a")
    assert (found.faults, found.pending, found.given_up) == ([], 0, 1)
    assert "'one' was given up: not_found" in str(found.notes)


@story("a", "b")
async def test_what_a_node_that_is_gone_left_in_the_data_folder_is_brought_in_by_another(world: World) -> None:
    world.nodes["a"].store.away = Away.BEFORE
    await world.kept("a", 1, "one", note=b"1")
    await world.nodes["a"].die()
    await world.nodes["b"].die()
    world.nodes["b"].disk = world.nodes["a"].disk
    await world.nodes["b"].start()
    await world.at("b").sweep()
    assert await world.context("b") == {}
    world.network.advance(61.0)
    await world.at("b").sweep()
    view = await world.at("b").read(world.session_id, TENANT, fresh=True)
    assert (view.context, view.clock.counts) == ({"note": b"1"}, (("a", 1),))
    assert (await world.audit("b")).pending == 0


# History


SHORT = Terms(snapshot_every=4, recent=2, most_kept=20)


@story("a", "b", terms=SHORT)
async def test_history_is_shortened_behind_a_snapshot_and_late_ones_are_told(world: World) -> None:
    for number in range(1, 11):
        await world.kept("a", number, said=b"[%d]" % number)
    view = await world.at("b").read(world.session_id, TENANT)
    assert (view.version, view.context["said"]) == (10, b"[1,2,3,4,5,6,7,8,9,10]")
    assert await world.say("b", 4, said=b"[0]") == Gap(world.session_id, 10, (4, 10), "forgotten")
    found = await world.at("b").catchup(world.session_id, 3, TENANT)
    assert found.snapshot is not None
    assert (found.snapshot.version, [delta.version for delta in found.deltas], found.more) == (8, [9, 10], False)
    assert [delta.version for delta in (await world.at("b").catchup(world.session_id, 6, TENANT)).deltas] == [7, 8, 9, 10]
    assert (await world.audit()).faults == []
    assert (await world.audit()).deltas == 4


@story("a", terms=SHORT)
async def test_a_named_reader_holds_back_what_it_has_not_read_within_a_bound(world: World) -> None:
    await world.at("a").catchup(world.session_id, 0, TENANT, reader="r")
    for number in range(1, 13):
        await world.kept("a", number, said=b"[%d]" % number)
    found = await world.at("a").catchup(world.session_id, 0, TENANT, reader="r")
    assert (found.snapshot, [delta.version for delta in found.deltas]) == (None, list(range(1, 13)))
    for number in range(13, 33):
        await world.kept("a", number, said=b"[]")
    found = await world.at("a").catchup(world.session_id, 0, TENANT)
    assert found.snapshot is not None
    assert (await world.audit()).deltas == 20
    await world.at("a").catchup(world.session_id, 32, TENANT, reader="r")
    for number in range(33, 37):
        await world.kept("a", number, said=b"[]")
    assert (await world.audit()).deltas == 4
    assert await refusal(world.at("a").catchup(world.session_id, 0, TENANT, reader="a/b")) == ("not_found", "session_id")


@story("a", terms=Terms(snapshot_every=4, recent=0, remembered=100.0))
async def test_the_trace_of_a_removal_goes_when_nobody_can_come_before_it_any_more(world: World) -> None:
    await world.kept("a", 1, x=b"1")
    await world.kept("a", 2, x=None)
    world.network.advance(101.0)
    for version in (3, 4):
        await world.kept("a", version, y=b"%d" % version)
    await world.context("a")
    assert list(world.at("a").memory.get(world.session_id).local.context.held) == ["y"]  # type: ignore[union-attr]
    assert (await world.kept("a", 5, x=b"5")).version == 5
    assert (await world.audit()).faults == []


@story("a", "b")
async def test_what_is_removed_and_forgotten_is_nowhere(world: World) -> None:
    await world.kept("a", 1, secret="机密".encode(), note=b"1")
    await world.kept("a", 2, secret=None)
    assert any("机密".encode() in entry.value for entry in await world.nodes["a"].store.scan("session/"))
    await world.at("a").compact(world.session_id, forget=True)
    assert not any("机密".encode() in entry.value for entry in await world.nodes["a"].store.scan("session/"))
    assert await world.context("b") == {"note": b"1"}
    assert (await world.kept("b", 3, note=b"3")).conflict is None
    assert (await world.audit()).faults == []


@story("a", "b")
async def test_a_session_that_is_removed_or_not_changed_for_long_is_gone_with_all_its_parts(world: World) -> None:
    store, session_id = world.nodes["a"].store, world.session_id
    await world.kept("a", 1, "x", note=b"1")
    await world.kept("b", 1, "y", note=b"2")
    assert await world.context("b") == {"note": b"2"}
    await world.at("a").remove(session_id, TENANT)
    assert await store.scan("session/") == []
    await world.network.quiet()
    assert await refusal(world.at("b").read(session_id, TENANT)) == ("not_found", "session_id")
    assert await refusal(world.say("a", 1, note=b"1")) == ("not_found", "session_id")
    again = await world.at("a").create(TENANT, session_id=session_id, rules=RULES, ttl=10.0)
    assert (await world.kept("b", 1, "x", note=b"3")).repeated is False
    assert again.version == 0
    world.network.advance(10.0)
    assert await refusal(world.at("b").read(session_id, TENANT)) == ("not_found", "session_id")
    await world.at("a").sweep()
    assert await store.scan("session/") == []


@story("a", terms=Terms(cached=2))
async def test_memory_has_a_cap(world: World) -> None:
    a = world.at("a")
    made = [await a.create(TENANT) for _ in range(5)]
    assert len(a.memory) == 2
    assert [(await a.read(one.session_id, TENANT)).version for one in made] == [0] * 5
    assert (len(a.memory), a.memory.bytes) == (2, 0)


def test_a_bus_that_is_away_at_the_start_is_heard_later() -> None:
    async def told() -> None:
        world = World("a", "b")
        world.network.cut("b")
        await world.nodes["a"].start()
        await world.nodes["b"].start()
        made = await world.at("a").create(TENANT)
        assert (await world.at("b").read(made.session_id, TENANT)).version == 0
        await world.end()

    asyncio.run(told())


@pytest.mark.parametrize("step", range(4))
def test_a_removal_that_was_cut_off_is_finished_by_the_sweep(step: int) -> None:
    @story("a")
    async def told(world: World) -> None:
        node = world.nodes["a"]
        await world.kept("a", 1, "x", note=b"1")
        await world.kept("a", 1, "y", note=b"2")
        real, left = node.store.commit, step

        async def failing(changes: object) -> int:
            nonlocal left
            left -= 1
            if left < 0:
                node.store.away = Away.BEFORE
            return await real(changes)  # type: ignore[arg-type]

        node.store.commit = failing  # type: ignore[method-assign, assignment]
        assert (await refusal(world.at("a").remove(world.session_id, TENANT)))[0] == "state_unavailable"
        node.store.commit, node.store.away = real, None  # type: ignore[method-assign]
        assert (await world.audit()).faults == []
        if step:
            assert await refusal(world.at("a").read(world.session_id, TENANT, fresh=True)) == ("not_found", "session_id")
            await world.at("a").sweep()
            assert await node.store.scan("session/") == []

    told()
