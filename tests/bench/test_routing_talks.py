"""Conversations in the simulator: what is read, what is remembered, and that it is repeated by its seed."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest

from sits.bench import Plan, routing, routing_talks_real
from sits.bench.page import render
from sits.bench.routing_pool import OURS, RR, WLC, once
from sits.bench.routing_talking import POOL, RIVALS, TALK, TRAFFIC, TalkWorld, capacities, usual
from sits.bench.routing_talks import CHUNK, CacheAware, Talking, Talks, Turn, turns
from sits.bench.routing_world import Backend, Seen, Traffic
from sits.routing.policies import POLICIES, TargetState

READS, WRITES = 1000.0, 50.0
"""Tokens a second of the servers of these tests."""


def server(slots: int = 8, memory: int = 1_000_000) -> Backend:
    return Backend("one", slots, READS, WRITES, 0.0, memory)


def alone(trace: list[Turn], backend: Backend) -> tuple[Seen, Talking]:
    world = Talking([backend], [POLICIES["round-robin"]()], [1.0], (), 1)
    return world.run(trace), world


def turn(at: float, prompt: int, answer: int = 50, talk: int = 1, told: int = 100) -> Turn:
    return Turn(at, prompt, answer, 1.0, 0, talk, told, prompt)


# One server


def test_a_prompt_is_read_and_then_the_answer_written() -> None:
    seen, world = alone([turn(0.0, 2000)], server())
    assert seen.mean == pytest.approx(2.0 + 1.0)
    assert seen.first_p99 == pytest.approx(2.0)
    assert world.read == 2000


def test_what_was_read_and_written_before_is_not_read_again() -> None:
    seen, world = alone([turn(0.0, 2000), turn(10.0, 2500)], server())
    assert world.read == 2000 + (2500 - 2050)
    assert seen.mean == pytest.approx((3.0 + 1.45) / 2)


def test_only_the_instructions_are_shared_between_conversations() -> None:
    _, world = alone([turn(0.0, 2000, talk=1), turn(10.0, 2000, talk=2)], server())
    assert world.read == 2000 + 1900


def test_prompts_are_read_one_after_the_other() -> None:
    seen, _ = alone([turn(0.0, 1000, talk=1, told=1), turn(0.0, 1000, talk=2, told=1)], server())
    # The second is read while the answer of the first is written, a chunk in each step: both are slower for it.
    assert seen.first_p99 == pytest.approx(1.0 + 0.999 * (CHUNK / READS + 1 / WRITES) / (CHUNK / READS), rel=1e-3)


def test_reading_holds_up_who_writes() -> None:
    writing = turn(0.0, 2, answer=100, talk=1, told=1)
    calm, _ = alone([writing], server())
    seen, _ = alone([writing, turn(0.5, 2000, answer=1, talk=2, told=1)], server())
    assert calm.p99 == pytest.approx(2.0, abs=0.01)
    assert seen.p99 > 3.9, "a step with a chunk takes 2 s"


def test_memory_that_is_full_forgets_what_was_not_used_for_longest() -> None:
    trace = [turn(10.0 * number, 1000, talk=talk, told=1) for number, talk in enumerate((1, 2, 3, 1))]
    assert alone(trace, server(memory=10_000))[1].read == 3 * 1000 - 2 + 1
    assert alone(trace, server(memory=2_200))[1].read == 4 * 1000 - 3


def test_further_requests_wait_for_a_slot() -> None:
    seen, _ = alone([turn(0.0, 1, answer=50, talk=talk, told=1) for talk in range(4)], server(slots=1))
    assert seen.p99 == pytest.approx(4.0, abs=0.01)


# Traces


def test_a_turn_begins_with_all_that_was_said() -> None:
    made = turns(TRAFFIC[0], TALK, 20.0, 60.0, 1)
    by_talk: dict[int, list[Turn]] = {}
    for one in made:
        by_talk.setdefault(one.talk, []).append(one)
    assert len(made) / 60.0 == pytest.approx(20.0, rel=0.25)
    for talk in by_talk.values():
        assert len({(one.application, one.instructions) for one in talk}) == 1
        for before, after in pairwise(talk):
            assert after.prompt == before.prompt + before.answer + after.new
            assert after.prompt <= TALK.longest
    assert [one.at for one in made] == sorted(one.at for one in made)


def test_capacity_is_what_all_could_do_that_read_nothing_twice() -> None:
    new, answer = usual()
    one = server(slots=4)
    assert capacities([one]) == [pytest.approx(1.0 / (new / READS + answer / (4 * WRITES)))]
    assert sum(capacities(POOL)) == TalkWorld(POOL, TRAFFIC[0]).capacity


@pytest.mark.parametrize("name", RIVALS)
def test_a_run_is_repeated_by_its_seed(name: str) -> None:
    world = TalkWorld(POOL, TRAFFIC[2], seconds=60.0, gateways=2)
    first = once(RIVALS[name], world, 8.0, 5)
    assert first == once(RIVALS[name], world, 8.0, 5)
    assert first.offered > 200
    assert sum(first.shares) == pytest.approx(1.0)


def test_conversations_stay_where_they_have_been_read() -> None:
    """And are read about once: the rest is what memories lost and what load moved."""
    trace = turns(Traffic("steady"), Talks(), 12.0, 100.0, 2)
    weights = [1.0] * len(POOL)
    read = {}
    for name in ("round-robin", "least-connections", "least-added"):
        world = Talking(POOL, [POLICIES[name]()], weights, (), 1)
        world.run(trace)
        read[name] = world.read / world.new
    assert read["least-added"] < 0.75 * min(read["round-robin"], read["least-connections"])


def test_cache_aware_is_as_its_documentation_says() -> None:
    policy = CacheAware()
    states = tuple(TargetState() for _ in range(3))
    assert policy.pick(states, (1.0,) * 3, 0.0, 0.0, 1000.0, (0.0, 400.0, 301.0)) == 1
    for _ in range(5):
        states[0].started(0.0)
        states[2].started(0.0)
    assert policy.pick(states, (1.0,) * 3, 0.0, 0.0, 1000.0, (300.0, 0.0, 0.0)) == 1, "too little for a match: the idlest"
    for _ in range(60):
        states[0].started(0.0)
    assert policy.pick(states, (1.0,) * 3, 0.0, 0.0, 1000.0, (900.0, 0.0, 0.0)) == 1, "loads are too far apart"


# The bench


def test_a_quick_run_is_whole() -> None:
    outcome = routing.run(Plan(lambda text: None, Path("unused"), quick=True, only=("talks",)))
    held = [figure.name for figure in outcome.figures if figure.bound is not None]
    rivals = ("round_robin", "weighted_least_connections")
    assert held == [f"routing_talks_{what}_vs_{who}" for who in rivals for what in ("mean", "peak")]
    assert all(figure.value is not None for figure in outcome.figures)
    files = render(outcome.page, outcome.figures)
    assert sorted(files) == ["routing.md", "routing/front-talks.svg"]
    lines = ET.fromstring(files["routing/front-talks.svg"]).findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == len([RR, WLC, OURS])


def test_turns_for_real_models_begin_with_the_turns_before() -> None:
    made = routing_talks_real.talks(60.0, 3)
    assert made == routing_talks_real.talks(60.0, 3)
    by_talk: dict[int, list[routing_talks_real.Turn]] = {}
    for one in made:
        by_talk.setdefault(one.talk, []).append(one)
    assert max(len(talk) for talk in by_talk.values()) == routing_talks_real.TURNS
    for talk in by_talk.values():
        for before, after in pairwise(talk):
            assert after.messages[: len(before.messages)] == before.messages
            assert [one["role"] for one in after.messages[-2:]] == ["assistant", "user"]


def test_what_is_said_of_real_models_is_what_was_seen() -> None:
    dice = random.Random(1)
    told = [
        routing_talks_real.Told(name, 60, 0, mean, 3.0 * mean, 0.5 * mean, dice.random())
        for name, mean in (("round-robin", 4.0), ("least-connections", 3.0), ("sticky conversations", 1.1), (OURS, 1.0))
    ]
    figures, section = routing_talks_real.figures(told)
    found = {figure.name: (figure.value, figure.ok) for figure in figures}
    assert found["routing_real_talks_mean_vs_round_robin"] == (4.0, None)
    assert found["routing_real_talks_mean_vs_weighted_least_connections"] == (3.0, None)
    assert found["routing_real_talks_mean_vs_sticky"] == (pytest.approx(1.1), None)
    assert found["routing_real_talks_failed"] == (0, True)
    assert section.title == "Conversations with real models"
