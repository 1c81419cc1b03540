"""Hybrid clocks: stamps follow cause and effect, whatever the wall clocks do, and drift is bounded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.inner.errors import Code, SitsError
from sits.state.clocks import HybridClock, Stamp
from sits.state.clocks.hybrid import LARGEST_COUNT


def test_a_stamp_is_wall_time_in_milliseconds_when_nothing_else_is_known() -> None:
    clock = HybridClock("a")
    assert (clock.last, clock.tick(1.5), clock.last) == (None, Stamp(1500, 0, "a"), Stamp(1500, 0, "a"))


def test_stamps_rise_while_the_wall_clock_stands_or_jumps_back() -> None:
    clock = HybridClock("a")
    stamps = [clock.tick(wall) for wall in (2.0, 2.0, 1.0, 2.001)]
    assert stamps == [Stamp(2000, 0, "a"), Stamp(2000, 1, "a"), Stamp(2000, 2, "a"), Stamp(2001, 0, "a")]


def test_what_follows_a_stamp_is_later_also_where_the_wall_clock_is_behind() -> None:
    clock = HybridClock("b")
    clock.receive(Stamp(5000, 7, "a"), 1.0)
    assert clock.tick(1.0) == Stamp(5000, 8, "b")


def test_a_stamp_that_is_not_later_teaches_nothing() -> None:
    clock = HybridClock("b")
    before = clock.tick(9.0)
    clock.receive(Stamp(5000, 7, "a"), 9.0)
    assert clock.last == before


def test_a_stamp_too_far_in_the_future_is_refused_until_its_time_has_come() -> None:
    clock = HybridClock("b", drift=10.0)
    ahead = Stamp(21_001, 0, "a")
    with pytest.raises(SitsError) as refused:
        clock.receive(ahead, 11.0)
    assert (refused.value.code, refused.value.message) == (
        Code.INVALID_REQUEST,
        "the stamp of node 'a' is 10.001 s ahead of us, more than 10 s: check the clocks",
    )
    assert clock.last is None
    clock.receive(ahead, 11.001)
    assert clock.tick(11.001) > ahead


def test_a_successor_goes_on_after_the_last_stamp() -> None:
    first = HybridClock("a~1")
    last = [first.tick(7.0) for _ in range(3)][-1]
    assert HybridClock("a~2", last=first.last).tick(1.0) > last


def test_its_own_snapshot_is_not_checked_for_drift() -> None:
    clock = HybridClock("a", drift=1.0)
    clock.resume(Stamp(100_000, 0, "a"))
    assert clock.tick(1.0) == Stamp(100_000, 1, "a")


def test_a_full_count_borrows_a_millisecond() -> None:
    clock = HybridClock("a", last=Stamp(1000, LARGEST_COUNT, "a"))
    assert clock.tick(1.0) == Stamp(1001, 0, "a")


def test_stamps_are_in_total_order() -> None:
    stamps = [Stamp(2, 0, "a"), Stamp(1, 1, "a"), Stamp(1, 0, "b"), Stamp(1, 0, "a")]
    assert sorted(stamps) == stamps[::-1]


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-300, 300), st.one_of(st.none(), st.integers(0, 2))), max_size=30))
def test_later_in_cause_is_later_in_order(steps: list[tuple[int, int, int | None]]) -> None:
    """Three nodes whose walls jump as they like; each step is an event, perhaps after hearing the last stamp of another."""
    clocks = [HybridClock(name, drift=60.0) for name in "abc"]
    walls = [1000.0, 1000.0, 1000.0]
    latest: list[Stamp | None] = [None, None, None]
    made: list[Stamp] = []
    for node, jump, heard in steps:
        walls[node] = max(1000.0, min(1050.0, walls[node] + jump / 10))
        seen = [latest[node]]
        if heard is not None and (stamp := latest[heard]) is not None:
            clocks[node].receive(stamp, walls[node])
            seen.append(stamp)
        new = clocks[node].tick(walls[node])
        assert all(new > before for before in seen if before is not None)
        assert new.wall - walls[node] * 1000 <= 60_000
        latest[node] = new
        made.append(new)
    assert len(set(made)) == len(made)
