"""Decision records: kept, found, explained."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.inner.event import Usage
from sits.observe.anatomy import Anatomy
from sits.observe.explain import explain
from sits.observe.record import Attempt, Draw, Record, Ring, from_json, to_json


def record(name: str = "r-1", **more: object) -> Record:
    return Record(name, 1_700_000_000.25, "chat", **more)  # type: ignore[arg-type]


FULL = Record(
    request_id="r-1",
    time=1_700_000_000.25,
    operation="chat",
    trace_id="0af7651916cd43dd8448eb211c80319c",
    span_id="00f067aa0ba902b7",
    requested="聪明",
    key="team-a",
    route="smart",
    target="large",
    served="large-v2",
    stream=True,
    attempts=[
        Attempt("small", "upstream_unreachable", connect_ms=3.25, total_ms=3.5, why="connection refused"),
        Attempt("large", "ok", 200, 0.0, 20.0, 45.5, 300.125, True, 42),
    ],
    filtered=[("tiny", "cannot do tools")],
    draw=Draw((("small", 3.0), ("large", 1.0)), 0.25, "small"),
    version=7,
    snapshot="3f2a",
    usage=Usage(input=12, output=40, cached=8),
    finish="stop",
    status=200,
    anatomy=Anatomy(0.0002, 0.0, 0.0035, 0.0, 0.0455, 0.2545, 0.3037),
    skipped=1,
    bytes_in=400,
    bytes_out=9000,
)


def test_a_record_is_explained_as_a_tree() -> None:
    assert explain(FULL) == (
        "r-1  chat stream  200\n"
        "├─ asked for 聪明 by key team-a\n"
        "├─ arrived 2023-11-14T22:13:20.250Z, trace 0af7651916cd43dd8448eb211c80319c, span 00f067aa0ba902b7\n"
        "├─ configuration 7 (3f2a)\n"
        "├─ route smart\n"
        "│  ├─ left out tiny: cannot do tools\n"
        "│  └─ drew small with 1 of 4 (small 3, large 1)\n"
        "├─ 2 attempts\n"
        "│  ├─ small: upstream_unreachable, connect 3.25 ms, total 3.50 ms, 0 pieces - connection refused\n"
        "│  └─ large: ok, status 200, connect 0.00 ms, headers 20.00 ms, first 45.50 ms, total 300.12 ms, reused connection, "
        "42 pieces\n"
        "├─ answered by large as large-v2, finish stop; 400 bytes in, 9000 out\n"
        "│  ├─ tokens: 12 input, 8 cached, 40 output\n"
        "│  └─ 1 unreadable stream events left out\n"
        "└─ 303.70 ms\n"
        "   ├─ gateway          0.200 ms\n"
        "   ├─ retry            3.500 ms\n"
        "   ├─ first_token     45.500 ms\n"
        "   └─ decode         254.500 ms\n"
    )


def test_a_refused_request_is_explained_too_and_cannot_command_the_terminal() -> None:
    assert explain(record(requested="no\x1b[2J\u202esuch", status=404, code="model_not_found", bytes_in=9)) == (
        "r-1  chat  404 model_not_found\n"
        "├─ asked for no\\x1b[2J\\u202esuch by nobody in particular\n"
        "├─ arrived 2023-11-14T22:13:20.250Z, trace -, span -\n"
        "├─ configuration 0 (-)\n"
        "├─ route -\n"
        "├─ no attempt was made\n"
        "├─ nobody answered; 9 bytes in, 0 out\n"
        "└─ time not taken\n"
    )


@pytest.mark.parametrize("one", [FULL, record()], ids=["full", "bare"])
def test_a_record_survives_json(one: Record) -> None:
    assert from_json(to_json(one)) == one


def test_what_was_written_before_there_was_more_to_tell_is_read() -> None:
    old = b'{"request_id":"r-1","time":1700000000.25,"operation":"chat","draw":{"weights":[["a",1.0]],"number":0.5,"chosen":"a"}}'
    read = from_json(old)
    assert (read.passed, read.away, read.waived, read.split, read.behind) == ((), (), (), None, "")
    assert read.draw is not None
    assert read.draw.by == ""


def test_the_ring_finds_what_it_holds_and_forgets_the_oldest() -> None:
    ring = Ring(3)
    for number in range(5):
        ring.put(record(f"r-{number}"))
    assert [ring.get(f"r-{number}") is not None for number in range(5)] == [False, False, True, True, True]
    assert [kept.request_id for kept in ring] == ["r-4", "r-3", "r-2"]


def test_of_two_records_with_one_id_the_later_is_found_until_it_goes() -> None:
    ring = Ring(3)
    ring.put(record("same", status=200))
    ring.put(record("same", status=502))
    ring.put(record("a"))
    ring.put(record("b"))  # pushes the earlier one out
    found = ring.get("same")
    assert found is not None
    assert found.status == 502
    ring.put(record("c"))
    assert ring.get("same") is None


def test_a_ring_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Ring(0)


@settings(max_examples=150)
@given(st.integers(1, 5), st.lists(st.sampled_from("abcdef"), max_size=40))
def test_the_ring_is_the_tail_of_what_was_put(capacity: int, names: list[str]) -> None:
    ring = Ring(capacity)
    records = [record(name, status=place) for place, name in enumerate(names)]
    for one in records:
        ring.put(one)
    tail = records[-capacity:]
    assert list(ring) == tail[::-1]
    assert len(ring) == len(tail)
    newest = {one.request_id: one for one in tail}
    assert {name: ring.get(name) for name in "abcdef"} == {name: newest.get(name) for name in "abcdef"}
    assert set(ring._index) == set(newest)
