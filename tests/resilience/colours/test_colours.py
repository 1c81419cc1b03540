"""Colours: checked once, passed on as given, known to metrics by name only, and missed when a hop drops them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.inner.errors import Code, SitsError
from sits.resilience import colours
from sits.resilience.colours import (
    ECHO_SECONDS,
    ECHO_VOLUME,
    MOST_KNOWN,
    MOST_NAMED,
    PLAIN,
    Palette,
    Passing,
    Tint,
    echoed,
    read,
    tint,
    unwrap,
    wrap,
)

GREEN = (b"x-traffic-color", b"green")
EIGHT = (b"x-experiment-id", b"exp-8")
READ = [
    ("nothing", {}, Tint()),
    ("a colour", dict([GREEN]), Tint("green", "", (GREEN,), b"x-traffic-color: green\r\n")),
    ("an experiment", dict([EIGHT]), Tint("stable", "exp-8", (EIGHT,), b"x-experiment-id: exp-8\r\n")),
    (
        "both",
        dict([EIGHT, GREEN]),
        Tint("green", "exp-8", (GREEN, EIGHT), b"x-traffic-color: green\r\nx-experiment-id: exp-8\r\n"),
    ),
    (
        "stable, said",
        {b"x-traffic-color": b"stable"},
        Tint("stable", "", ((b"x-traffic-color", b"stable"),), b"x-traffic-color: stable\r\n"),
    ),
    (
        "the longest",
        {GREEN[0]: b"a" * 64},
        Tint("a" * 64, "", ((GREEN[0], b"a" * 64),), b"x-traffic-color: %b\r\n" % (b"a" * 64)),
    ),
]


@pytest.mark.parametrize(("headers", "expected"), [row[1:] for row in READ], ids=[row[0] for row in READ])
def test_what_a_request_says_is_read(headers: dict[bytes, bytes], expected: Tint) -> None:
    found = read(headers)
    assert (found, read(dict(headers)) is found, found.plain) == (expected, True, not headers)


NOTED = [(PLAIN, {}), (tint("green"), {"colour": "green"}), (tint("", "e"), {"experiment": "e"}),
         (tint("green", "e"), {"colour": "green", "experiment": "e"}), (tint("stable"), {})]  # fmt: skip


@pytest.mark.parametrize(("found", "expected"), NOTED)
def test_records_say_what_is_not_usual(found: Tint, expected: dict[str, str]) -> None:
    assert found.noted() == expected


@pytest.mark.parametrize("name", [GREEN[0], EIGHT[0]], ids=["colour", "experiment"])
@pytest.mark.parametrize("value", [b"", b"a" * 65, b"a b", b"a,b", "红".encode(), b"a\r\nx: y", b"a/b", b"a\n"])
def test_what_is_no_short_token_is_refused_by_name(name: bytes, value: bytes) -> None:
    with pytest.raises(SitsError) as refused:
        read({name: value})
    error = refused.value
    assert (error.code, error.status, error.param) == (Code.INVALID_REQUEST, 400, name.decode())


def test_a_colour_that_is_required_and_missing_is_refused_also_for_an_experiment() -> None:
    for headers in ({}, dict([EIGHT])):
        with pytest.raises(SitsError) as refused:
            read(headers, required=True)
        assert (refused.value.code, refused.value.param) == (Code.INVALID_REQUEST, "x-traffic-color")
    assert read(dict([GREEN]), required=True).colour == "green"


def test_values_that_clients_make_up_do_not_fill_the_memory() -> None:
    for number in range(MOST_KNOWN + 10):
        assert read({GREEN[0]: b"c%d" % number}).colour == f"c{number}"
    assert len(colours._known) <= MOST_KNOWN


def test_metrics_know_the_colours_that_the_configuration_names() -> None:
    palette = Palette(["green", "blue"])
    assert [palette.label(one) for one in ("stable", "green", "blue", "made-up")] == ["stable", "green", "blue", "_other"]
    many = Palette(f"c{number:03}" for number in range(200))
    assert len({many.label(f"c{number:03}") for number in range(200)}) == MOST_NAMED


TOKEN = st.text("abcXYZ019._-", max_size=12)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40), TOKEN, TOKEN)
def test_what_is_wrapped_comes_out_with_its_tint(payload: bytes, colour: str, experiment: str) -> None:
    given_tint = tint(colour, experiment)
    assert unwrap(wrap(payload, given_tint)) == (payload, given_tint)


def test_a_plain_message_stays_as_it_is_and_a_torn_one_is_refused() -> None:
    assert wrap(b'{"a":1}', PLAIN) == b'{"a":1}'
    with pytest.raises(SitsError) as refused:
        unwrap(wrap(b"x", tint("green"))[:-1])
    assert refused.value.code is Code.INVALID_REQUEST


def test_what_was_kept_and_is_no_token_any_more_is_plain() -> None:
    assert (tint("a b", "é"), tint()) == (PLAIN, PLAIN)


ECHOES = [
    ("nothing of it", [(b"content-type", b"x")], None),
    ("the same", [EIGHT, GREEN], True),
    ("half of it", [GREEN], False),
    ("another", [EIGHT, (GREEN[0], b"red")], False),
]


@pytest.mark.parametrize(("headers", "expected"), [row[1:] for row in ECHOES], ids=[row[0] for row in ECHOES])
def test_an_answer_says_the_tint_back_or_does_not(headers: list[tuple[bytes, bytes]], expected: bool | None) -> None:
    assert echoed(headers, tint("green", "exp-8")) is expected


def test_a_hop_that_never_echoes_has_no_passing_rate() -> None:
    passing = Passing()
    assert not any(passing.heard("t", None, 0.0) for _ in range(100))
    assert passing.hops["t"].passing(0.0) is None


def test_a_hop_that_echoes_and_loses_some_sounds_once() -> None:
    passing = Passing()
    heard = [passing.heard("t", place % 10 != 0 or None, 1.0) for place in range(1, 61)]
    assert [place for place, sounded in enumerate(heard, 1) if sounded] == [ECHO_VOLUME]
    assert passing.hops["t"].passing(1.0) == pytest.approx(0.9)
    assert passing.hops["t"].passing(1.0 + 2 * ECHO_SECONDS) is None
    passing.retain([])
    assert passing.hops == {}
