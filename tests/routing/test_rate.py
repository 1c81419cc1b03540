"""Requests a second, over the last five."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sits.routing.rate import Rate


def test_a_steady_rate_is_found_and_forgotten() -> None:
    rate = Rate()
    seen = [rate.note(1000.0 + step / 20) for step in range(200)]
    assert abs(seen[-1] - 20.0) <= 2.0
    assert rate.per_second(1000.0 + 199 / 20 + 5.0) == 0.0


def test_a_burst_counts_with_the_request_that_it_comes_with() -> None:
    rate = Rate()
    assert [rate.note(7.0) for _ in range(10)] == [number / 5 for number in range(1, 11)]


@given(st.lists(st.floats(0, 3), max_size=60), st.floats(0, 1e6))
@settings(max_examples=100, deadline=None)
def test_it_is_what_counting_says_but_for_half_a_second(steps: list[float], start: float) -> None:
    rate, now, times = Rate(), start, []
    for step in steps:
        now += step
        times.append(now)
        found = rate.note(now) * 5.0
        surely = sum(now - one <= 4.5 - 1e-6 for one in times)
        perhaps = sum(now - one <= 5.0 + 1e-6 for one in times)
        assert surely - 1e-6 <= found <= perhaps + 1e-6
    assert rate.per_second(now + 5.01) == 0.0
