"""Shares, places, rates, alarms and the queue of differences, under a clock that the test holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.resilience.shadow.compare import Comparison
from sits.resilience.shadow.shadows import MOST_REVIEWS, MOST_REVIEWS_IN_ALL, VOLUME, WINDOW_SECONDS, Lane, Review, Shadows, cut
from sits.resilience.share import SLICES, Alarm, Share
from sits.resources.reliability import ShadowSpec

SAME, OTHER = Comparison(False, (), 0.0), Comparison(False, ("finish",), 0.0)


def lane(**spec: float) -> Lane:
    found = Shadows().draw("r", ShadowSpec("new", share=1.0, **spec), "v2", 0.0)
    assert found is not None
    return found


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 300), st.booleans()), max_size=60), st.floats(0, 400))
def test_a_share_counts_what_is_not_older_than_its_window(counted: list[tuple[float, bool]], later: float) -> None:
    share, width = Share(100.0), 100.0 / SLICES
    now = 0.0
    for ahead, marked in sorted(counted):
        share.count(marked, now := ahead)
    now += later
    share.look(now)
    fresh = [marked for at, marked in sorted(counted) if int(at / width) > int(now / width) - SLICES]
    assert (share.total, share.marked) == (len(fresh), sum(fresh))


def test_an_alarm_sounds_once_for_each_episode() -> None:
    share, alarm, heard = Share(100.0), Alarm(0.1, 10), []
    story = [(False, 9), (True, 1), (True, 3), (False, 70), (True, 20)]
    for marked, times in story:
        for _ in range(times):
            share.count(marked, 1.0)
            heard.append(alarm.judge(share))
    # 1 of 10 is the limit and no more; 2 of 11 is above it; 4 of 80 is half of it, so it is over; 9 of 88 begins the next.
    assert [place for place, sounded in enumerate(heard, 1) if sounded] == [11, 88]
    assert (alarm.on, alarm.sounded) == (True, 2)


def test_an_alarm_ends_when_nothing_is_known_any_more() -> None:
    one = lane(alarm=0.01)
    for _ in range(VOLUME):
        one.judge(OTHER, 0.0)
    assert (one.alarmed(1.0), one.compared(1.0)) == (True, (VOLUME, VOLUME))
    assert (one.alarmed(WINDOW_SECONDS + 1), one.compared(WINDOW_SECONDS + 1), one.alarms) == (False, (0, 0), 1)


def test_nothing_is_concluded_of_a_few() -> None:
    one = lane(alarm=0.005)
    found = [one.judge(OTHER, 0.0) for _ in range(VOLUME)]
    assert found == [(True, False)] * (VOLUME - 1) + [(True, True)]
    assert [one.judge(SAME, 0.0), one.judge(OTHER, 0.0)] == [(False, False), (True, False)]


@pytest.mark.parametrize(("number", "drawn"), [(0.0, True), (0.049, True), (0.05, False), (0.99, False)])
def test_a_share_of_the_requests_is_drawn(number: float, drawn: bool) -> None:
    shadows = Shadows()
    assert (shadows.draw("r", ShadowSpec("new"), "v", number) is not None) is drawn
    known = shadows.lane("r")
    assert known is not None
    assert known.tally.drawn == drawn


def test_a_share_of_nothing_draws_nothing() -> None:
    assert Shadows().draw("r", ShadowSpec("new", share=0.0), "v", 0.0) is None


def test_so_many_are_under_way_and_no_more() -> None:
    one = lane(concurrent=2)
    assert [one.enter(), one.enter(), one.enter()] == [True, True, False]
    one.leave()
    assert (one.enter(), one.under_way, one.tally.asked) == (True, 2, 3)


def test_a_declaration_that_is_read_again_goes_on_and_one_that_changed_begins_anew() -> None:
    shadows = Shadows()
    first = shadows.draw("r", ShadowSpec("new", share=1.0), "v1", 0.0)
    assert shadows.draw("r", ShadowSpec("new", share=1.0), "v1", 0.0) is first
    assert shadows.draw("r", ShadowSpec("new", share=1.0), "v2", 0.0) is not first
    assert shadows.draw("r", ShadowSpec("other", share=1.0), "v2", 0.0) is not first


def test_what_a_switch_asks_is_answered_over_all_routes_of_the_model() -> None:
    shadows, spec = Shadows(), ShadowSpec("new", share=1.0, alarm=0.5)
    for route, comparisons in (("a", [SAME, OTHER]), ("b", [SAME] * 3), ("c", [])):
        one = shadows.draw(route, spec, "v", 0.0)
        assert one is not None
        for comparison in comparisons:
            one.judge(comparison, 5.0)
    other = shadows.draw("d", ShadowSpec("older", share=1.0), "v", 0.0)
    assert other is not None
    for _ in range(VOLUME):
        other.judge(OTHER, 5.0)
    assert [shadows.compared(model, 5.0) for model in ("new", "older", "none")] == [(5, 1), (VOLUME, VOLUME), (0, 0)]
    assert [shadows.alarmed(model, 5.0) for model in ("new", "older", "none")] == [False, True, False]
    shadows.retain(["a"])
    assert ([one.route for one in shadows], shadows.compared("new", 5.0)) == (["a"], (2, 1))


def test_the_queue_of_differences_has_an_end_for_each_route_and_for_all() -> None:
    shadows, spec = Shadows(), ShadowSpec("new", share=1.0)
    review = Review(1.0, "id", "old", ("finish",), 0.5, "a", "b")
    for route in range(12):
        one = shadows.draw(f"r{route}", spec, "v", 0.0)
        assert one is not None
        for _ in range(MOST_REVIEWS + 5):
            shadows.keep(one, review)
    held = [len(one.reviews) for one in shadows]
    assert sum(held) == MOST_REVIEWS_IN_ALL
    assert MOST_REVIEWS // 2 < min(held) <= max(held) <= MOST_REVIEWS, "nobody is driven out"


def test_a_long_text_is_cut() -> None:
    assert (cut("短"), len(cut("长" * 5000))) == ("短", 4006)
