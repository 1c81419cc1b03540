"""What a target's state learns from what it is told."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.routing.policies import TargetState, Usual
from sits.routing.policies.fit import Roomiest, Tightest


@given(steps=st.lists(st.sampled_from(["start", "good", "bad", "left"]), max_size=100))
@settings(max_examples=60, deadline=None)
def test_who_is_under_way_is_who_started_and_has_not_ended(steps: list[str]) -> None:
    state = TargetState()
    under_way: list[int] = []
    for now, step in enumerate(steps):
        if step == "start":
            under_way.append(state.started(float(now)))
        elif under_way:
            among = under_way.pop()
            if step == "left":
                state.left(float(now))
            else:
                state.ended(float(now), 0.5, among, step == "good")
        assert state.outstanding == len(under_way)
        assert state.base >= 0.0
        assert state.slope > 0.0
        assert 0.0 <= state.errors <= 1.0
        assert math.isfinite(state.base + state.slope)


def learned(base: float, slope: float, units: float, most: int, seed: int = 1) -> TargetState:
    """After 400 requests of a server that takes base + slope * n seconds for `units`, of answers of all lengths."""
    state, dice = TargetState(), random.Random(seed)
    for number in range(400):
        n, long = dice.randint(1, most), dice.choice((0.2, 0.5, 1.0, 2.0, 4.0))
        state.outstanding = n
        state.ended(number / 20.0, long * (base + slope * n), n, True, 0.0, long * units)
    return state


@pytest.mark.parametrize(
    ("base", "slope", "most"),
    [(1.0, 0.1, 10), (0.2, 0.2, 6), (5.0, 0.5, 30)],
    ids=["a little for each", "as much for each as at all", "many"],
)
def test_the_line_is_found_whatever_the_lengths_of_the_answers(base: float, slope: float, most: int) -> None:
    state = learned(base, slope, 100.0, most)
    usual = state.usual.units / 100.0
    for n in (1, most):
        assert state.base + state.slope * n == pytest.approx(usual * (base + slope * n), rel=0.1)


def test_a_target_seen_at_one_load_only_is_believed_to_slow_down_a_quarter() -> None:
    state = TargetState()
    for number in range(100):
        state.outstanding = 4
        state.ended(number / 10.0, 2.0, 4, True)
    assert (state.base, state.slope) == pytest.approx((1.5, 0.125))


def served(slots: int, rounds: int, most: int) -> TargetState:
    """A server with so many slots, told by first contents: those beyond wait their part of a service of 1 s."""
    state, dice, now = TargetState(), random.Random(2), 0.0
    for _ in range(rounds):
        n = dice.randint(1, most)
        now += 0.05
        wait = max(0, n - slots) / slots
        state.outstanding = n
        state.spoke(now, 0.01 + wait, n)
        state.ended(now, 1.01 + wait, n, True, 0.01 + wait, 100.0)
    return state


@pytest.mark.parametrize("slots", [4, 16, 32])
def test_the_room_is_found_from_late_first_contents(slots: int) -> None:
    assert served(slots, 600, slots * 3 // 2).room == pytest.approx(slots, rel=0.15)


@pytest.mark.parametrize("slots", [4, 16])
def test_a_line_that_lasts_is_not_taken_for_the_usual_time_and_more_room(slots: int) -> None:
    state = served(slots, 600, slots * 3 // 2)
    state.outstanding = 3 * slots
    for number in range(4000):
        state.spoke(30.0 + number / 100.0, 2.01, 3 * slots)
        state.ended(30.0 + number / 100.0, 3.01, 3 * slots, True, 2.01, 100.0)
        state.outstanding = 3 * slots
    assert state.quick < 0.1
    assert state.room == pytest.approx(slots, rel=0.15)


def test_room_that_was_never_filled_is_as_much_as_was_seen_and_one() -> None:
    assert served(1000, 100, 10).room == 11.0


def test_without_first_contents_there_is_no_end_of_room() -> None:
    state = TargetState()
    state.ended(1.0, 1.0, state.started(0.0), True)
    assert state.room == 1e9


def test_old_answers_are_forgotten() -> None:
    state = TargetState()
    for number in range(100):
        state.ended(number / 10.0, 1.0, state.started(0.0), True)
    for number in range(5):
        state.ended(120.0 + number / 10.0, 4.0, state.started(0.0), True)
    assert state.base + state.slope == pytest.approx(4.0, rel=0.05)


def test_the_peak_goes_up_at_once_and_down_slowly() -> None:
    state = TargetState()
    state.ended(0.0, 1.0, state.started(0.0), True)
    state.ended(1.0, 9.0, state.started(0.0), True)
    assert state.peak == 9.0
    state.ended(2.0, 1.0, state.started(0.0), True)
    assert state.peak == pytest.approx(1.0 + 8.0 * math.exp(-0.1))


def test_a_failure_says_nothing_of_the_latency_and_makes_the_target_dear() -> None:
    state = TargetState()
    for number in range(20):
        state.ended(number / 10.0, 1.0, state.started(0.0), True)
    total, cost = state.total, state.base + state.slope
    state.ended(2.0, 0.001, state.started(0.0), False)
    assert state.total == total
    assert state.base + state.slope > 1.3 * cost


def test_errors_are_forgotten_once_answers_come() -> None:
    state = TargetState()
    for number in range(10):
        state.ended(float(number), 0.1, state.started(0.0), False)
    assert state.errors > 0.5
    for number in range(300):
        state.ended(10.0 + number / 10.0, 0.1, state.started(0.0), True)
    assert state.errors == 0.0


def test_targets_that_are_compared_share_the_length_of_answers() -> None:
    usual = Usual()
    quick, slow = TargetState(usual), TargetState(usual)
    for number in range(50):
        quick.ended(number / 10.0, 1.0, quick.started(0.0), True, 0.0, 10.0)
        slow.ended(number / 10.0, 2.0, slow.started(0.0), True, 0.0, 200.0)
    assert quick.base + quick.slope > 5.0 * (slow.base + slow.slope), "0.1 s for a unit and 0.01 s"


# Placing


@given(
    nodes=st.lists(st.integers(1, 16), min_size=1, max_size=12),
    asked=st.lists(st.tuples(st.booleans(), st.integers(1, 16)), max_size=60),
)
@settings(max_examples=60, deadline=None)
def test_what_is_held_fits_and_comes_back(nodes: list[int], asked: list[tuple[bool, int]]) -> None:
    for kind in (Tightest, Roomiest):
        fit, held = kind(nodes), []
        for take, amount in asked:
            if take:
                before = list(fit.free)
                node = fit.take(amount)
                assert (node < 0) == (max(before) < amount), "it is placed whenever it fits anywhere"
                if node >= 0:
                    held.append((node, amount))
            elif held:
                fit.give(*held.pop(amount % len(held)))
            used = [sum(amount for node, amount in held if node == index) for index in range(len(nodes))]
            assert [room + more for room, more in zip(fit.free, used, strict=True)] == nodes
            assert min(fit.free) >= 0


def test_the_tightest_fit_keeps_a_node_whole_and_the_roomiest_does_not() -> None:
    tight, plain = Tightest([8, 8]), Roomiest([8, 8])
    assert [tight.take(2) for _ in range(4)] == [0, 0, 0, 0]
    assert tight.take(8) == 1
    assert [plain.take(2) for _ in range(4)] == [0, 1, 0, 1]
    assert plain.take(8) == -1


@pytest.mark.parametrize(("every", "most"), [(1000, 101.0), (5, 400.0)], ids=["once", "one of five, for ever"])
def test_a_server_that_says_what_it_wants_of_the_length_of_its_answers_does_not_say_it_for_all(every: int, most: float) -> None:
    usual = Usual()
    honest, liar = TargetState(usual), TargetState(usual)
    for number in range(1, 5000):
        if number % every == 0:
            liar.ended(number / 10.0, 1.0, liar.started(0.0), True, 0.1, 1e9)
        else:
            honest.ended(number / 10.0, 1.0, honest.started(0.0), True, 0.1, 100.0)
        assert usual.units < most


def test_a_first_answer_of_absurd_length_is_forgotten() -> None:
    state = TargetState()
    for number in range(5000):
        state.ended(number / 10.0, 1.0, state.started(0.0), True, 0.1, 1e9 if number == 0 else 100.0)
    assert state.usual.units == pytest.approx(100.0, rel=0.1)
