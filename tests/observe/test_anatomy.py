"""The parts of an exchange's time add up, whatever happened in it."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.observe.anatomy import Anatomy, Marks, anatomy, server_timing

WHOLE = Marks(
    received=10.0, admitted=11.0, first_sent=13.0, sent=16.0, connected=20.0, headers=22.0, first_token=25.0, last=31.0, done=38.0
)

CASES = {
    "everything happened": (WHOLE, Anatomy(9.0, 1.0, 3.0, 4.0, 5.0, 6.0, 28.0)),
    "refused before admission": (Marks(10.0, done=12.0), Anatomy(queue=2.0, total=2.0)),
    "refused after admission": (Marks(10.0, admitted=11.0, done=14.0), Anatomy(gateway=3.0, queue=1.0, total=4.0)),
    "one attempt": (
        Marks(10.0, admitted=10.0, sent=11.0, connected=12.0, first_token=14.0, last=17.0, done=18.0),
        Anatomy(gateway=2.0, connect=1.0, first_token=2.0, decode=3.0, total=8.0),
    ),
    "never connected": (Marks(10.0, admitted=10.0, sent=11.0, done=16.0), Anatomy(gateway=1.0, connect=5.0, total=6.0)),
    "silent after the connection": (
        Marks(10.0, admitted=10.0, sent=11.0, connected=12.0, done=20.0),
        Anatomy(gateway=1.0, connect=1.0, first_token=8.0, total=10.0),
    ),
    "a prompt that was read in pieces": (
        msgspec.structs.replace(WHOLE, aside=1.5),
        Anatomy(7.5, 1.0, 3.0, 4.0, 5.0, 6.0, 28.0, 1.5),
    ),
    "a prompt of which nobody could read the pieces": (
        Marks(10.0, admitted=11.0, done=14.0, aside=2.5),
        Anatomy(gateway=0.5, queue=1.0, total=4.0, aside=2.5),
    ),
    "cut in the middle of the stream": (
        Marks(10.0, admitted=10.0, sent=10.0, connected=10.0, first_token=12.0, last=15.0, done=16.0),
        Anatomy(gateway=1.0, first_token=2.0, decode=3.0, total=6.0),
    ),
}


@pytest.mark.parametrize(("marks", "parts"), CASES.values(), ids=CASES.keys())
def test_each_second_is_charged_to_whom_it_was_spent_on(marks: Marks, parts: Anatomy) -> None:
    assert anatomy(marks, 99.0) == parts


def test_while_it_runs_the_parts_reach_up_to_now() -> None:
    marks = Marks(10.0, admitted=11.0, sent=12.0, connected=13.0, first_token=15.0)
    assert anatomy(marks, 15.0) == Anatomy(gateway=1.0, queue=1.0, connect=1.0, first_token=2.0, total=5.0)


moment = st.none() | st.floats(0, 1e6)


@settings(max_examples=200)
@given(st.floats(0, 1e6), moment, moment, moment, moment, moment, moment, moment, moment, st.floats(0, 1e6), st.floats(0, 1e6))
def test_the_parts_always_add_up_to_the_total(
    received: float,
    admitted: float | None,
    first_sent: float | None,
    sent: float | None,
    connected: float | None,
    headers: float | None,
    first_token: float | None,
    last: float | None,
    done: float | None,
    now: float,
    aside: float,
) -> None:
    marks = Marks(received, admitted, first_sent, sent, connected, headers, first_token, last, done, aside)
    found = msgspec.structs.asdict(anatomy(marks, now))
    total, parts = found.pop("total"), found.values()
    assert all(part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(total, abs=1e-6)
    assert total == max(0.0, (now if done is None else done) - received)


def test_the_header_is_valid_server_timing_in_milliseconds() -> None:
    value = server_timing(Anatomy(0.00012, 0.0, 0.0, 0.0031, 0.2, 1.5, 1.70322)).decode()
    more = server_timing(Anatomy(0.00012, total=1.5, aside=1.2)).decode()
    assert more.endswith(", total;dur=1500.00, aside;dur=1200.00")
    # RFC 9110 tokens, Server-Timing's metric syntax.
    assert re.fullmatch(r"[a-z_]+;dur=\d+\.\d\d(, [a-z_]+;dur=\d+\.\d\d)*", value)
    assert value == (
        "gateway;dur=0.12, queue;dur=0.00, retry;dur=0.00, connect;dur=3.10, "
        "first_token;dur=200.00, decode;dur=1500.00, total;dur=1703.22"
    )
