"""Whether the targets of a rule are as it wants them, by a clock of our own."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sits.resources.choosing import While
from sits.routing.rule_watch import FEWEST, LOADS_SECONDS, MOST, SECONDS, RuleWatch

QUICK = While(p99_below_ms=1200.0)
LOADS = While(adapter_loads_above=0.9995)


def test_until_something_is_known_it_holds() -> None:
    watch = RuleWatch(While(p99_below_ms=1200.0, adapter_loads_above=0.9995))
    assert (watch.holds(0.0), watch.failing) == (True, "")
    for _ in range(FEWEST - 1):
        watch.note(9.0, 0.0)
    assert watch.holds(1.0)


def test_it_falls_back_at_once_and_tries_again_when_the_window_has_passed() -> None:
    watch = RuleWatch(QUICK)
    for _ in range(100):
        watch.note(0.5, 1.0)
    assert watch.takes(1.0)
    for _ in range(2):
        watch.note(1.2, 1.0)
    assert not watch.takes(1.0)
    assert watch.failing == "p99 is 1200 ms, not below 1200 ms"
    assert not watch.takes(0.9 + SECONDS)
    assert watch.takes(1.2 + SECONDS)
    assert watch.failing == ""


def test_of_a_hundred_answers_one_may_be_late_and_two_may_not() -> None:
    for late, holds in ((1, True), (2, False)):
        watch = RuleWatch(QUICK)
        for number in range(100):
            watch.note(5.0 if number < late else 0.1, 0.0)
        assert watch.holds(1.0) is holds


@given(st.lists(st.sampled_from([0.1, 1.1, 1.2, 3.0]), min_size=FEWEST, max_size=300))
@settings(max_examples=100, deadline=None)
def test_it_holds_just_when_99_of_100_are_in_time(took: list[float]) -> None:
    watch = RuleWatch(QUICK)
    for one in took:
        watch.note(one, 0.0)
    in_time = sum(one < 1.2 for one in took)
    assert watch.holds(1.0) is (in_time * 100 >= 99 * len(took))


def tripped(conditions: While = QUICK) -> RuleWatch:
    watch = RuleWatch(conditions)
    for _ in range(FEWEST):
        watch.note(9.0, 0.0)
    assert not watch.holds(0.0)
    return watch


def test_a_few_try_first_and_all_follow_when_these_went_well() -> None:
    watch, now = tripped(), 61.0
    assert [watch.takes(now) for _ in range(FEWEST + 5)] == [True] * FEWEST + [False] * 5
    assert not watch.holds(now + 1.0)
    for _ in range(FEWEST - 1):
        watch.note(0.1, now + 2.0)
    assert not watch.takes(now + 2.0)
    watch.note(0.1, now + 2.0)
    assert all(watch.takes(now + 2.0) for _ in range(100))


def test_when_those_that_try_are_late_again_nobody_follows_for_another_window() -> None:
    watch, now = tripped(), 61.0
    assert watch.takes(now)
    for _ in range(FEWEST):
        watch.note(3.0, now + 3.0)
    assert not watch.takes(now + 3.0)
    assert not watch.takes(now + 3.0 + SECONDS)
    assert watch.takes(now + 3.5 + SECONDS)


def test_when_nothing_is_heard_of_those_that_try_others_try_in_the_end() -> None:
    watch, now = tripped(), 61.0
    for _ in range(FEWEST):
        assert watch.takes(now)
    assert not watch.takes(now + SECONDS - 0.1)
    assert watch.takes(now + SECONDS)


def test_looking_uses_up_no_try() -> None:
    watch = tripped()
    assert all(watch.holds(61.0) for _ in range(100))


def test_adapter_loads_are_a_share_of_the_last_ten_minutes() -> None:
    watch = RuleWatch(LOADS)
    for _ in range(MOST):
        watch.note_load(True, 0.0)
    watch.note_load(False, 1.0)
    assert watch.holds(1.0), "1 of 2048 is less than 0.05 %"
    watch.note_load(False, 1.0)
    assert not watch.holds(1.0)
    assert watch.failing == "99.90% of adapter loads went well, not above 99.95%"
    assert not watch.holds(1.0 + LOADS_SECONDS)
    assert watch.holds(1.3 + LOADS_SECONDS)


def test_exactly_the_share_is_not_above_it() -> None:
    watch = RuleWatch(While(adapter_loads_above=0.5))
    watch.note_load(True, 0.0)
    watch.note_load(False, 0.0)
    assert not watch.holds(0.0)


def test_it_keeps_so_many_and_no_more() -> None:
    watch = RuleWatch(QUICK)
    for number in range(3 * MOST):
        watch.note(0.1, number / 1000)
        watch.note_load(True, number / 1000)
    assert (len(watch._took), len(watch._loads)) == (MOST, MOST)


def test_what_was_settled_stays() -> None:
    watch = RuleWatch(QUICK)
    watch.settle(failing=True)
    watch.note(0.1, 0.0)
    assert (watch.takes(100.0), watch.failing) == (False, "as it was recorded")
    watch.settle(failing=False)
    for _ in range(100):
        watch.note(9.0, 0.0)
    assert (watch.takes(200.0), watch.failing) == (True, "")
