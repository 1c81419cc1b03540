"""A worker that dies is started again soon, and one that keeps dying does not spin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.gateway.workers import MOST_SECONDS, RESTART_SECONDS, pause_of


@pytest.mark.parametrize(
    ("short", "lived", "pause"),
    [
        pytest.param(0, 3600.0, 0.0, id="it lived long"),
        pytest.param(1, 0.25, 0.75, id="it died at once"),
        pytest.param(1, 5.0, 0.0, id="it died after a while"),
        pytest.param(2, 0.5, 1.5, id="again"),
        pytest.param(4, 0.0, 8.0, id="and again"),
        pytest.param(5, 0.0, 16.0, id="as long as it ever waits"),
        pytest.param(10_000, 0.0, 16.0, id="for ever"),
        pytest.param(3, -2.0, 4.0, id="killed while it waited"),
    ],
)
def test_the_pause_grows_while_it_dies_soon(short: int, lived: float, pause: float) -> None:
    assert pause_of(short, lived) == pause


@given(short=st.integers(0, 10**6), lived=st.floats(-100.0, 1e6))
def test_there_is_a_second_between_two_starts_and_never_more_than_the_most(short: int, lived: float) -> None:
    pause = pause_of(short, lived)
    assert 0.0 <= pause <= MOST_SECONDS
    assert max(0.0, lived) + pause >= RESTART_SECONDS
