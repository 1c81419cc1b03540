"""A process dies before or after any call that it makes to store or index, in recovery too: the two agree in the end, and what
was acknowledged is there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outbox_rig import World, write

from sits.state.outbox.faulty import Dead, Deaths
from sits.state.outbox.terms import Terms

IDS = ("一", "two", "three")
TERMS = Terms(batch=2, sweep_page=2)


class Step(NamedTuple):
    """Write a text under an id, remove it (None), or let the relay have a round (no id)."""

    id: str | None
    text: str | None = None


writes = st.builds(Step, st.sampled_from(IDS), st.sampled_from(["a", "b", "c"]))
removals = st.builds(Step, st.sampled_from(IDS), st.none())
steps = st.lists(st.one_of(writes, writes, removals, st.just(Step(None))), min_size=1, max_size=10)


async def _take(world: World, deaths: Deaths, script: Sequence[Step]) -> tuple[dict[str, str | None], Step | None]:
    """What was acknowledged of each id, and the step in which the process died."""
    outbox = await world.node(deaths=deaths)
    acknowledged: dict[str, str | None] = {}
    for step in script:
        try:
            if step.id is None:
                await outbox.relay.turn()
                await outbox.relay.sweep()
                continue
            if step.text is None:
                await outbox.remove("p", step.id)
            else:
                await write(outbox, step.id, step.text)
        except Dead:
            return acknowledged, step
        acknowledged[step.id] = step.text
    return acknowledged, None


def _possible(acknowledged: dict[str, str | None], dying: Step | None) -> list[dict[str, str]]:
    """What may be there: what was acknowledged, with or without the step that was under way."""
    worlds = [acknowledged] if dying is None or dying.id is None else [acknowledged, {**acknowledged, dying.id: dying.text}]
    return [{id: text for id, text in sorted(one.items()) if text is not None} for one in worlds]


async def _story(script: Sequence[Step], at: int, after: bool, recoveries: Sequence[tuple[int, bool]]) -> None:
    world = World(TERMS)
    await world.node()  # the collection is made
    acknowledged, dying = await _take(world, Deaths(at=at, after=after), script)
    assert (await world.audit()).faults == [], "what is apart is pending at every moment"
    for where, late in recoveries:
        world.now += TERMS.lease
        outbox = await world.node(deaths=Deaths(at=where, after=late))
        try:
            while await outbox.relay.turn() or await outbox.relay.sweep():
                pass
        except Dead:
            assert (await world.audit()).faults == []
    await world.recover()
    told = await world.audit()
    assert (told.faults, told.waiting, told.pending) == ([], 0, 0)
    seen = await world.seen()
    assert all(record == vector for record, vector in seen.values()), seen
    assert {id: record for id, (record, _) in seen.items()} in _possible(acknowledged, dying)


@settings(max_examples=100, deadline=None)
@given(
    script=steps,
    at=st.integers(0, 40),
    after=st.booleans(),
    recoveries=st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=3),
)
def test_whatever_a_process_does_when_it_dies_record_and_vector_agree_after_recovery(
    script: list[Step], at: int, after: bool, recoveries: list[tuple[int, bool]]
) -> None:
    asyncio.run(_story(script, at, after, recoveries))


SCRIPT = (Step("一", "a"), Step("two", "a"), Step(None), Step("一", "b"), Step("two"), Step("three", "c"), Step(None), Step(None))


def _calls() -> list[str]:
    """The names of all calls that the script makes when nobody dies."""

    async def whole() -> list[str]:
        world, deaths = World(TERMS), Deaths()
        await world.node()
        await _take(world, deaths, SCRIPT)
        return deaths.names

    return asyncio.run(whole())


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("at", "name"), list(enumerate(_calls())), ids=str)
def test_a_death_at_each_call_of_a_script_leaves_nothing_apart(at: int, name: str, after: bool) -> None:
    asyncio.run(_story(SCRIPT, at, after, [(3, True)]))


def test_the_script_makes_every_kind_of_call() -> None:
    assert {"commit", "scan", "vectors.upsert", "vectors.delete", "vectors.flush", "vectors.get", "vectors.ids"} <= set(_calls())
