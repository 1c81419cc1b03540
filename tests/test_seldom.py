"""What may be said so and so often."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.inner.seldom import Seldom


@pytest.mark.parametrize(
    ("burst", "times", "due"),
    [
        pytest.param(1, [0, 0, 9, 10, 10], [0, None, None, 2, None], id="one at once, then one each ten seconds"),
        pytest.param(3, [0, 0, 0, 0, 9, 10, 10], [0, 0, 0, None, None, 2, None], id="three at once, and one comes back"),
        pytest.param(3, [0, 0, 0, 0, 100, 100, 100, 100], [0, 0, 0, None, 1, 0, 0, None], id="three come back in time"),
        pytest.param(1, [1000, 0, 10], [0, None, 1], id="a clock that is set back keeps nobody quiet for longer"),
    ],
)
def test_who_says_the_next_one_knows_how_much_was_left_out(burst: int, times: list[float], due: list[int | None]) -> None:
    seldom = Seldom(10.0, burst)
    assert [seldom.due("a", now) for now in times] == due


def test_subjects_do_not_wait_for_each_other_and_the_quietest_goes_when_they_are_too_many() -> None:
    seldom = Seldom(10.0, most=2)
    assert [seldom.due(subject, 0.0) for subject in "abacab"] == [0, 0, None, 0, None, 0]
    assert len(seldom) == 2


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(st.floats(0, 30), max_size=60),
    burst=st.integers(1, 4),
)
def test_in_any_time_no_more_are_said_than_promised_and_nothing_is_lost_of_the_count(steps: list[float], burst: int) -> None:
    seldom, now, said, left_out = Seldom(10.0, burst), 0.0, 0, 0
    for step in steps:
        now += step
        due = seldom.due("a", now)
        if due is not None:
            said, left_out = said + 1, left_out + due
    assert said <= burst + now / 10.0 + 1e-6
    rest = seldom.due("a", now + 1e6)
    assert rest is not None
    assert said + left_out + rest == len(steps)
