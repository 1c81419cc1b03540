"""Recorded traffic: what is in it, what never is, and how it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.inner.event import Usage
from sits.observe.anatomy import Anatomy
from sits.observe.record import Attempt, Draw, Record, Scored
from sits.observe.trace_row import (
    Asked,
    Bad,
    Feedback,
    Gap,
    Outcome,
    Row,
    TraceError,
    Weighing,
    encode,
    head_of,
    outcome,
    read,
    snapshot_of,
)
from sits.resources.keys import Key, KeySpec
from sits.resources.kinds import Backend as B
from sits.resources.kinds import Metadata, Model, ModelSpec, Route, RouteSpec
from sits.resources.snapshot import Snapshot, compile
from sits.routing.policies.snapshot import IDLE


def configuration() -> Snapshot:
    headers = {"x-org": "plain-secret-value", "x-key": "env:OTHER_KEY"}
    spec = ModelSpec("openai", "http://h:1", api_key="env:UPSTREAM_KEY", headers=headers, input_schema={"type": "object"})
    key = Key(Metadata("k"), KeySpec("a" * 64))
    return compile([Model(Metadata("m"), spec), Route(Metadata("r"), RouteSpec([B("m")])), key], 7)


def row(name: str = "r-1", **more: object) -> Row:
    record = Record(name, 1.7e9, "chat", requested="聪明", route="r", snapshot="s", **more)  # type: ignore[arg-type]
    return Row(record, Asked("chat", 0.25, 12.5, ("chat",)), ("a", "b"), {"a": IDLE})


FULL = Row(
    Record(
        "r-2",
        1.7e9,
        "chat",
        route="r",
        target="b",
        attempts=[Attempt("a", "upstream_broken"), Attempt("b", "ok", 200, first_ms=20.0, total_ms=90.0)],
        draw=Draw((("a", 1.0), ("b", 1.0)), 0.25, "a", "scores", (), (Scored("load", 2.0, (10.0, 20.0)),), (10.0, 20.0)),
        snapshot="s",
        usage=Usage(input=12, output=40),
        status=200,
        anatomy=Anatomy(0.001, 0.0, 0.0, 0.0, 0.02, 0.09, 0.125),
    ),
    Asked("chat", 0.25, 12.5, ("chat", "tools"), known=True, session="ab12", domain="法律", headers={"x-tier": "金"}),
    ("a", "b"),
    {"a": IDLE, "b": tuple(float(number) for number in range(14))},
    ("c",),
    ("busy",),
    {"base": 0.25, "heavy": 0.75},
    Weighing(("a", "b", "c"), (Scored("load", 2.0, (10.0, 20.0, 30.0)),), (("c", "cost"),), ("zone",)),
    0.0025,
    '{"messages":[]}',
)


def written(folder: Path, *lines: bytes) -> Path:
    file = folder / "t.jsonl"
    file.write_bytes(b"".join(lines))
    return file


HEAD = encode(head_of(configuration(), 1.7e9, 0.5)) + b"\n"


@pytest.mark.parametrize("line", [FULL, row(), Feedback("r-1", 0.5, 2.0), Gap(4, 1.0)], ids=["full", "bare", "feedback", "gap"])
def test_a_line_is_read_as_it_was_written(tmp_path: Path, line: Row | Feedback | Gap) -> None:
    assert list(read(written(tmp_path, HEAD, encode(line), b"\n")))[1:] == [line]


def test_the_configuration_in_the_head_can_be_used_alone_and_holds_no_secret() -> None:
    head = head_of(configuration(), 1.7e9)
    text = encode(head).decode()
    assert head.snapshot == configuration().hash
    assert "plain-secret-value" not in text
    assert "a" * 64 not in text
    assert "env:UPSTREAM_KEY" in text
    again = snapshot_of(head)
    assert (set(again.models), set(again.routes), dict(again.keys)) == ({"m"}, {"r"}, {})
    assert again.models["m"].spec.headers == {"x-org": "[redacted]", "x-key": "env:OTHER_KEY"}
    assert head_of(again, 1.7e9).resources == head.resources


@pytest.mark.parametrize(
    ("text", "word"),
    [
        pytest.param(b"not json\n", "no head", id="something else"),
        pytest.param(encode(row()) + b"\n", "no head", id="a row first"),
        pytest.param(b'{"line":"head","format":"other","version":1}\n', "no head", id="another format"),
        pytest.param(b'{"line":"head","format":"sits-trace","version":9}\n', "version 9; this SITS reads version 1", id="newer"),
    ],
)
def test_what_is_no_trace_of_this_version_is_refused(tmp_path: Path, text: bytes, word: str) -> None:
    with pytest.raises(TraceError, match=word):
        list(read(written(tmp_path, text)))


def test_a_later_head_of_another_version_is_refused_too(tmp_path: Path) -> None:
    file = written(tmp_path, HEAD, encode(row()), b"\n", b'{"line":"head","format":"sits-trace","version":2}\n')
    with pytest.raises(TraceError, match="version 2"):
        list(read(file))


def test_a_trace_that_is_not_there_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is not there"):
        list(read(tmp_path / "none"))
    with pytest.raises(TraceError, match=r"no \*\.jsonl"):
        list(read(tmp_path))


def test_broken_lines_are_told_by_number_and_the_others_are_read(tmp_path: Path) -> None:
    file = written(tmp_path, HEAD, b"{oops\n", encode(row("a")), b"\n", b'{"line":"what"}\n', encode(row("b")), b"\n")
    found = list(read(file))[1:]
    assert [line.record.request_id for line in found if isinstance(line, Row)] == ["a", "b"]
    assert [(line.number, line.cut) for line in found if isinstance(line, Bad)] == [(2, False), (4, False)]


@settings(max_examples=40)
@given(st.integers(1, len(encode(FULL)) - 1))
def test_a_last_line_that_was_cut_off_costs_itself_alone(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    file = written(tmp_path_factory.mktemp("cut"), HEAD, encode(row("a")), b"\n", encode(FULL)[:cut])
    *before, last = read(file)
    assert isinstance(before[-1], Row)
    assert last == Bad(str(file), 3, "it has no end", cut=True)


def test_what_came_of_a_request() -> None:
    assert outcome(FULL) == Outcome(True, "", 125.0, 20.0, 12, 40, 0.0025, "a")
    assert outcome(row(status=502, code="upstream_broken")) == Outcome(False, "upstream_broken")
    assert not outcome(row(status=200, rung="cache")).ok


DAMAGE: dict[str, Any] = {
    "a state of no numbers": ("states", "a", []),
    "a state of too few": ("states", "a", [0.0] * 13),
    "a number of a state that is none": ("states", "a", [*IDLE[:2], 1e308, *IDLE[3:]]),
    "no room at all": ("states", "a", [*IDLE[:6], 0.0, *IDLE[7:]]),
    "heard of long after": ("states", "a", [*IDLE[:11], 1e12, *IDLE[12:]]),
    "noted long after": ("states", "a", [*IDLE[:12], 1e12, *IDLE[13:]]),
    "a draw that is none": ("asked", "draw", 1.0),
    "a time that is none": ("asked", "now", 1e308),
    "a negative size": ("asked", "size", -5),
    "a size beyond all": ("asked", "size", 10**30),
    "tokens beyond all": ("asked", "tokens", 10**400),
    "a chance beyond 1": ("learned", "base", 1.5),
    "what it cost, beyond all": ("dollars", 1e300),
    "a score that gave too few": ("weighing", "parts", 0, "given", [1.0]),
    "tokens that nobody has": ("record", "usage", "output", -1),
    "a time that no answer takes": ("record", "anatomy", "total", 1e300),
    "a time before the answer": ("record", "attempts", 1, "first_ms", -1e30),
    "bytes beyond all": ("record", "bytes_in", 10**30),
    "a day that never was": ("record", "time", -1.0),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_row_of_what_no_gateway_writes_is_a_line_that_cannot_be_read(tmp_path: Path, damage: tuple[Any, ...]) -> None:
    *path, last, value = damage
    made = json.loads(encode(FULL))
    at = made
    for step in path:
        at = at[step]
    at[last] = value
    *_, good, bad, behind = read(
        written(tmp_path, HEAD, encode(FULL), b"\n", json.dumps(made).encode(), b"\n", encode(FULL), b"\n")
    )
    assert (good, behind) == (FULL, FULL)
    assert isinstance(bad, Bad)
    assert (bad.number, bad.cut) == (3, False)
    assert 10 < len(bad.why) < 200


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b'{"line":"row","x":' + b"[" * 50_000, id="nested without end"),
        pytest.param(b'{"line":"gap","missing":' + b"9" * 4000 + b',"time":1.0}', id="more missing than there can be"),
        pytest.param(b'{"line":"feedback","request_id":"r","score":1e300,"time":1.0}', id="a score that is none"),
    ],
)
def test_a_line_of_what_cannot_be_is_told_and_the_others_are_read(tmp_path: Path, line: bytes) -> None:
    found = list(read(written(tmp_path, HEAD, line, b"\n", encode(FULL), b"\n")))[1:]
    assert [(one.number, one.cut) if isinstance(one, Bad) else one for one in found] == [(2, False), FULL]


def test_a_head_that_is_nested_without_end_or_of_no_traffic_is_none(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no head"):
        list(read(written(tmp_path, HEAD.replace(b'"format"', b'"deep":' + b"[" * 50_000 + b',"format"', 1))))
    nothing = HEAD.replace(b'"share":0.5', b'"share":0')
    assert isinstance(next(read(written(tmp_path, nothing))), Bad)
