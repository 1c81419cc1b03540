"""The numbers of a target that are taken at a choice: by them every policy picks as it did."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.routing.plugins.untouched import OF_STATE
from sits.routing.policies import POLICIES, BoundedHash, Policy, TargetState
from sits.routing.policies.checks import states_of
from sits.routing.policies.recalled import KEEPING, Recalled
from sits.routing.policies.snapshot import IDLE, NUMBERS, give, lay, take

NAMES = [*POLICIES, "hash"]


def policy(name: str, states: tuple[TargetState, ...]) -> Policy:
    if name == "hash":
        return BoundedHash({state: str(index) for index, state in enumerate(states)})
    return POLICIES[name]()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.sampled_from([1, 2, 3, 7, 40]), elsewhere=st.integers(0, 9))
def test_every_policy_picks_the_same_from_states_that_were_taken_written_and_given_back(
    name: str, seed: int, size: int, elsewhere: int
) -> None:
    states = states_of(size, seed)
    states[0].told(elsewhere, 1, 0.97)
    written = msgspec.json.encode([take(state) for state in states])
    restored = tuple(give(values) for values in msgspec.json.decode(written, type=list[tuple[float, ...]]))
    one, other = policy(name, states), policy(name, restored)
    dice = random.Random(seed)
    weights = [dice.choice([1.0, 2.0, 5.0]) for _ in states]
    for step in range(20):
        draw, now = dice.random(), 55.0 + step
        assert one.seen(states, weights, draw, now) == other.seen(restored, weights, draw, now)


def test_what_is_taken_is_every_public_number_of_a_state() -> None:
    # As plugins see it: a compiled class has no `__slots__`.
    assert set(NUMBERS) == {*OF_STATE} - {"usual", "name", "journal"}


def test_a_state_that_is_laid_out_again_is_as_it_was() -> None:
    state = states_of(2, 3)[0]
    taken = take(state)
    lay(state, IDLE)
    assert take(state) == take(TargetState())
    lay(state, taken)
    assert take(state) == taken


def test_too_few_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="14 numbers, not 2"):
        give([1.0, 2.0])


@pytest.mark.parametrize("name", sorted(KEEPING))
def test_a_policy_that_keeps_a_place_sees_what_it_was_told_once_and_of_these_only(name: str) -> None:
    states = states_of(3, 1)
    names = {state: f"m{index}" for index, state in enumerate(states)}
    one = Recalled(policy(name, states), names)
    told = [("m0", 1.0), ("m1", 1.0), ("m2", 1.0)]
    one.told(told, [3.0, 1.0, 2.0])
    assert one.seen(states, [1.0, 1.0, 1.0], 0.0, 60.0) == [3.0, 1.0, 2.0]
    assert one.used
    assert one.seen(states, [1.0, 1.0, 1.0], 0.0, 60.0) != [3.0, 1.0, 2.0]
    one.told(told, [3.0, 1.0, 2.0])
    assert len(one.seen(states[:2], [1.0, 1.0], 0.0, 61.0)) == 2
    assert not one.used
    one.told(told, [3.0, 1.0, 2.0])
    assert one.seen(states, [1.0, 2.0, 1.0], 0.0, 62.0) != [3.0, 1.0, 2.0]
