"""What a request says of itself: its class and its deadline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.inner.errors import Code, SitsError
from sits.resilience.qos.classes import NAMES, P0, P1, P2, number, priority_of
from sits.resilience.qos.deadline import LONGEST, onward, remaining, timeout_seconds
from sits.resources.reliability import Priority


@pytest.mark.parametrize(
    ("header", "key", "route", "priority"),
    [
        pytest.param(None, None, "P1", P1, id="nobody else says: the route"),
        pytest.param(None, "P0", "P1", P0, id="the key's, if it has one"),
        pytest.param(None, "P2", "P0", P2, id="the key's, also where it is lower"),
        pytest.param(b"P2", "P0", "P1", P2, id="a client may ask for less"),
        pytest.param(b"P1", "P0", "P2", P1, id="for less than its key's, not its route's"),
        pytest.param(b"P0", "P1", "P0", P1, id="but not for more than its key's"),
        pytest.param(b"P0", None, "P1", P1, id="nor for more than its route's, if its key says nothing"),
        pytest.param(b" p2 ", None, "P1", P2, id="small letters and spaces are fine"),
    ],
)
def test_the_class_of_a_request(header: bytes | None, key: Priority | None, route: Priority, priority: int) -> None:
    assert priority_of(header, key, route) == priority


@pytest.mark.parametrize("header", [b"", b"P3", b"0", b"high", "优先".encode(), b"P0, P1"])
def test_a_class_that_is_none_is_refused_by_the_name_of_its_header(header: bytes) -> None:
    with pytest.raises(SitsError) as caught:
        priority_of(header, None, "P1")
    assert (caught.value.code, caught.value.param) == (Code.INVALID_REQUEST, "x-sits-priority")


def test_a_name_and_its_number_belong_together() -> None:
    assert [number(name) for name in NAMES] == [P0, P1, P2]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"2", 2.0), (b"2.5", 2.5), (b".5", 0.5), (b"2.", 2.0), (b"2.5s", 2.5), (b"2 s", 2.0), (b"800ms", 0.8), (b" 30 ", 30.0)],
)
def test_a_timeout_is_in_seconds_unless_it_says_milliseconds(value: bytes, seconds: float) -> None:
    assert timeout_seconds(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value", [b"", b"0", b"0.0", b"-1", b"nan", b"inf", b"1e3", b"5m", b"1,5", b"soon", b"2 5", b"\xff", b"2\n3"]
)
def test_a_timeout_that_is_no_time_is_refused_by_the_name_of_its_header(value: bytes) -> None:
    with pytest.raises(SitsError) as caught:
        timeout_seconds(value)
    assert (caught.value.code, caught.value.param) == (Code.INVALID_REQUEST, "x-request-timeout")


def test_no_request_has_more_than_a_day() -> None:
    assert timeout_seconds(b"999999999") == LONGEST


@given(st.binary(max_size=12))
def test_whatever_a_client_sends_is_a_time_or_a_refusal(value: bytes) -> None:
    try:
        seconds, code = timeout_seconds(value), None
    except SitsError as error:
        seconds, code = 1.0, error.code
    assert 0.0 < seconds <= LONGEST
    assert code in (None, Code.INVALID_REQUEST)


@given(st.floats(0.0011, 80_000.0), st.floats(0.0, 1e6))
def test_what_is_sent_on_is_what_is_left(left: float, now: float) -> None:
    assert timeout_seconds(onward(now + left, now)) == pytest.approx(left, abs=0.0011)


def test_a_deadline_that_has_passed_leaves_nothing_and_is_still_sent_as_a_time() -> None:
    assert remaining(5.0, 6.0) == 0.0
    assert remaining(6.0, 5.0) == 1.0
    assert onward(5.0, 6.0) == b"0.001"
