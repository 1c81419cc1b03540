"""What a target takes to read a prompt is learned, and counts when somebody is chosen."""

from __future__ import annotations

import random

import pytest

from sits.routing.policies import TargetState, Usual
from sits.routing.policies.load import FEW, LeastAdded, LeastExpected

BYTE = 20e-6
"""Seconds that a server of these tests reads at."""


def reader(*, forgets: float = 0.0, whole: bool = False, among: int = 1, size: float = 8000.0, seed: int = 1) -> TargetState:
    """After 400 requests of prompts of all sizes, of which some had been read before; `forgets` is the share of those bytes that
    it reads again, `among` how many are under way at the most: each of them has to wait for half of the others."""
    state, dice = TargetState(Usual()), random.Random(seed)
    for number in range(400):
        n = dice.randint(1, among)
        prompt = size * dice.lognormvariate(0.0, 0.7)
        warm = prompt * dice.choice((0.0, 0.0, 0.5, 0.9))
        cold = prompt - warm
        units = dice.randint(20, 200)
        reading = BYTE * (cold + forgets * warm)
        first = 0.05 + reading + dice.uniform(0.0, 0.3) * (n - 1)
        took = first + 0.02 * units
        state.outstanding = n
        now = number / 4.0
        if not whole:
            state.spoke(now, first, n, cold, warm)
        state.ended(now, took, n, True, 0.0 if whole else first, float(units), cold, warm)
    state.outstanding = 0
    return state


@pytest.mark.parametrize("whole", [False, True], ids=["streamed", "whole answers"])
@pytest.mark.parametrize("among", [1, 8], ids=["alone", "among others"])
def test_what_a_byte_takes_is_learned(whole: bool, among: int) -> None:
    state = reader(whole=whole, among=among)
    assert state.read == pytest.approx(BYTE, rel=0.25)
    assert state.again == pytest.approx(0.0, abs=0.15 * BYTE)


def test_a_server_that_remembers_nothing_is_found_out() -> None:
    state = reader(forgets=1.0)
    assert (state.read, state.again) == (pytest.approx(BYTE, rel=0.2), pytest.approx(BYTE, rel=0.2))


def test_a_rush_does_not_teach_that_a_server_forgets() -> None:
    """Of a server that was never seen but among 64, it is not known where the time goes: it is taken to remember."""
    state = reader(forgets=1.0, among=1)
    calm = state.again
    assert calm > 0.0
    rushed = TargetState(Usual())
    dice = random.Random(2)
    for number in range(2000):
        rushed.outstanding = 64
        rushed.spoke(number / 100.0, dice.uniform(0.0, 20.0), 64, 4000.0 * dice.random(), 4000.0 * dice.random())
    assert rushed.again == 0.0
    for number in range(200):
        state.outstanding = 64
        state.spoke(1000.0 + number / 100.0, dice.uniform(0.0, 20.0), 64, 4000.0 * dice.random(), 4000.0 * dice.random())
    assert state.again == pytest.approx(calm, rel=0.3), "what was seen in calm hours is not drowned by a rush"


def test_prompts_that_are_not_looked_at_teach_nothing() -> None:
    state = TargetState(Usual())
    for number in range(100):
        state.outstanding = 1
        state.spoke(float(number), 1.0, 1)
        state.ended(float(number), 2.0, 1, True, 1.0, 50.0)
    assert (state.read, state.again, state.reading) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("seed", range(5))
def test_all_numbers_stay_sane_whatever_comes(seed: int) -> None:
    dice = random.Random(seed)
    state = TargetState(Usual())
    for number in range(600):
        state.outstanding = dice.randint(1, 50)
        cold, warm = dice.choice([(0.0, 0.0), (0.0, 1e7), (1e7, 0.0), (300.0, 300.0), (dice.random() * 1e5, dice.random() * 1e5)])
        first = dice.choice([0.0, 1e-9, dice.random(), 60.0 * dice.random()])
        if first:
            state.spoke(number / 10.0, first, state.outstanding, cold, warm)
        state.ended(number / 10.0, first + dice.random(), state.outstanding, dice.random() < 0.9, first, 10.0, cold, warm)
        assert 0.0 <= state.again <= state.read < 1.0
        assert 0.0 <= state.reading < 1e8
        assert state.room >= 1.0
        assert state.quick >= 0.0
        cost = LeastAdded().cost(state, number / 10.0, cold, warm)
        assert 0.0 <= cost < 1e12


@pytest.mark.parametrize("policy", [LeastExpected(), LeastAdded()], ids=["least-expected", "least-added"])
def test_who_has_read_it_is_asked_until_waiting_there_costs_more_than_reading_it_again(policy: LeastExpected) -> None:
    states = (reader(seed=3), reader(seed=4))
    prompt = 40_000.0
    warm = (0.0, 39_000.0)
    now = 100.0
    asked = []
    for _ in range(40):
        index = policy.pick(states, (1.0, 1.0), 0.3, now, prompt, warm)
        states[index].started(now)
        asked.append(index)
    assert asked[0] == 1
    assert 0 in asked, "one popular prompt does not bury one server"
    assert policy.pick((reader(seed=3), reader(seed=4)), (1.0, 1.0), 0.3, now, 400.0, (0.0, 256.0)) in (0, 1)


def test_a_long_prompt_is_read_by_who_reads_quickly() -> None:
    slow, quick = reader(), reader()
    quick.read, quick.reading = slow.read / 20.0, slow.reading / 20.0
    slow.base -= 0.3  # It writes more quickly.
    policy = LeastAdded()
    assert policy.pick((slow, quick), (1.0, 1.0), 0.0, 100.0, 300.0, (0.0, 0.0)) == 0
    assert policy.pick((slow, quick), (1.0, 1.0), 0.0, 100.0, 60_000.0, (0.0, 0.0)) == 1


def test_of_many_targets_those_are_looked_at_who_have_read_it() -> None:
    states = tuple(reader() for _ in range(8 * FEW))
    warm = [0.0] * len(states)
    warm[77] = 30_000.0
    policy = LeastAdded()
    assert all(policy.pick(states, (1.0,) * len(states), step / 50.0, 100.0, 32_000.0, warm) == 77 for step in range(50))
