"""What every policy must keep, for tests of our own and of whoever writes one: `for check in CHECKS: check(new)`."""

from __future__ import annotations

import random
from collections.abc import Callable

from sits.routing.policies.base import Policy
from sits.routing.policies.state import TargetState, Usual

New = Callable[[tuple[TargetState, ...]], Policy]
"""Makes a policy for a route with these targets."""


def states_of(size: int, seed: int) -> tuple[TargetState, ...]:
    """Targets with some past: under way, ended, failed."""
    dice = random.Random(seed)  # noqa: S311 - no secrets
    usual = Usual()
    states = tuple(TargetState(usual) for _ in range(size))
    for _ in range(size * 8):
        state, at = dice.choice(states), dice.uniform(0.0, 50.0)
        among = state.started(at)
        if dice.random() < 0.7:
            state.spoke(at + 0.1, 0.1, among)
            state.ended(at + 1.0, dice.uniform(0.2, 3.0), among, dice.random() < 0.9, 0.1, dice.randint(1, 500))
    return states


_FACTS = (
    *("outstanding", "elsewhere", "kv", "first", "total", "quick", "room", "peak", "errors"),
    *("base", "slope", "heard", "noted", "seen"),
)


def _facts(states: tuple[TargetState, ...]) -> list[dict[str, float]]:
    return [{name: getattr(state, name) for name in _FACTS} for state in states]


def picks_one_of_them(new: New) -> None:
    """Whatever the draw: an index, of one or of many."""
    for size in (1, 2, 3, 17, 200):
        states = states_of(size, size)
        policy = new(states)
        for step in range(50):
            draw = (step / 50.0, 0.0, 1.0 - 2**-53)[step % 3]
            index = policy.pick(states, (1.0,) * size, draw, 60.0 + step)
            assert type(index) is int, f"{index!r} is no index"
            assert 0 <= index < size, f"{index} of {size}"


def picks_the_same_again(new: New) -> None:
    """The same past, draws and times give the same picks: a decision can be made again."""
    runs = []
    for _ in range(2):
        states = states_of(6, 3)
        policy = new(states)
        dice = random.Random(4)  # noqa: S311 - no secrets
        picked = []
        for step in range(200):
            index = policy.pick(states, (1.0, 2.0, 3.0, 1.0, 1.0, 5.0), dice.random(), 60.0 + step / 10.0)
            states[index].started(60.0 + step / 10.0)
            picked.append(index)
        runs.append(picked)
    assert runs[0] == runs[1]


def looks_and_does_not_touch(new: New) -> None:
    """Choosing changes nothing of a target: that it is asked is noted by whoever asks."""
    states = states_of(9, 5)
    before = _facts(states)
    policy = new(states)
    for step in range(20):
        policy.pick(states, (1.0,) * 9, step / 20.0, 60.0 + step)
    assert _facts(states) == before


def lives_with_fewer_and_more(new: New) -> None:
    """Targets are left out and come back between two picks."""
    states = states_of(8, 6)
    policy = new(states)
    for size in (8, 3, 1, 5, 8):
        assert 0 <= policy.pick(states[:size], (1.0,) * size, 0.99, 60.0) < size


def lives_with_new_targets(new: New) -> None:
    """Nothing is known of anybody at first; nobody is asked for ever while another has never been."""
    usual = Usual()
    states = tuple(TargetState(usual) for _ in range(4))
    policy = new(states)
    dice = random.Random(8)  # noqa: S311 - no secrets
    asked = set()
    for step in range(400):
        now = step / 10.0
        index = policy.pick(states, (1.0,) * 4, dice.random(), now)
        asked.add(index)
        states[index].ended(now, 0.05, states[index].started(now), True)
    assert asked == {0, 1, 2, 3}


CHECKS: tuple[Callable[[New], None], ...] = (
    picks_one_of_them,
    picks_the_same_again,
    looks_and_does_not_touch,
    lives_with_fewer_and_more,
    lives_with_new_targets,
)
