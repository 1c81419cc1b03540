from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.dialects import sse
from sits.dialects.sse import EventCutter, EventDecoder, EventTooLong, ServerEvent

from .cuts import CUTS, bytewise, cut

LINES = st.lists(
    st.sampled_from(
        [b"\r", b"\n", b"\r\n", b"data: a", b"data:b", b"data", b": note", b"event: x", b"id: 1", "data: 中文".encode()]
    ),
    max_size=16,
).map(b"".join)


@pytest.mark.parametrize(
    ("wire", "events"),
    [
        pytest.param(b"data: a\n\n", [("message", b"a")], id="one"),
        pytest.param(b"data:a\n\n", [("message", b"a")], id="no space"),
        pytest.param(b"data:  a\n\n", [("message", b" a")], id="only one space is left out"),
        pytest.param(b"data: a\ndata: b\n\n", [("message", b"a\nb")], id="two data lines"),
        pytest.param(b"event: x\ndata: a\n\ndata: b\n\n", [("x", b"a"), ("message", b"b")], id="type is for one event"),
        pytest.param(
            b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [("message", b"a"), ("message", b"b"), ("message", b"c")], id="ends"
        ),
        pytest.param(b": ping\n\ndata: a\n\n", [("message", b"a")], id="comment"),
        pytest.param(b"event: x\n\n", [], id="no data, no event"),
        pytest.param(b"data\n\n", [("message", b"")], id="empty data is an event"),
        pytest.param(b"id: 3\nretry: 5\nfoo: bar\ndata: a\n\n", [("message", b"a")], id="other fields"),
        pytest.param(b"data: a", [], id="incomplete"),
        pytest.param(b"data: a\n", [], id="no blank line"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n", [("message", b"a")], id="byte order mark"),
        pytest.param("event: 事\ndata: 件\n\n".encode(), [("事", "件".encode())], id="Chinese"),
    ],
)
def test_a_wire_gives_its_events_whole_and_byte_by_byte(wire: bytes, events: list[tuple[str, bytes]]) -> None:
    expected = [ServerEvent(*event) for event in events]
    assert EventDecoder().feed(wire) == expected
    decoder = EventDecoder()
    assert [event for piece in bytewise(wire) for event in decoder.feed(piece)] == expected


@given(wire=LINES, cuts=CUTS)
def test_cuts_never_change_events(wire: bytes, cuts: list[int]) -> None:
    decoder = EventDecoder()
    assert [event for piece in cut(wire + b"!", cuts) for event in decoder.feed(piece)] == EventDecoder().feed(wire + b"!")


@given(wire=LINES, cuts=CUTS)
def test_the_cutter_keeps_every_byte_and_finds_the_decoders_events(wire: bytes, cuts: list[int]) -> None:
    wire += b"!"
    cutter = EventCutter()
    blocks = [block for piece in cut(wire, cuts) for block in cutter.feed(piece)]
    assert b"".join(blocks) + cutter.pending == wire
    assert [event for block in blocks if (event := sse.parse(block)) is not None] == EventDecoder().feed(wire)


@pytest.mark.parametrize("reader", [EventDecoder, EventCutter])
@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(b"data: " + b"x" * 39_992 + b"\n\n", id="one long event"),
        pytest.param(b"data: {}\n\n" * 4000, id="many short events"),
        pytest.param(b"\r" * 40_000, id="CR only"),
    ],
)
def test_forty_thousand_one_byte_pieces_take_well_under_a_second(reader: type[EventDecoder | EventCutter], wire: bytes) -> None:
    start = time.process_time()
    decoder = reader()
    for piece in bytewise(wire):
        decoder.feed(piece)
    assert time.process_time() - start < 1.0  # measured: 0.03 to 0.05 s


@pytest.mark.parametrize("reader", [EventDecoder, EventCutter])
def test_a_large_piece_of_lone_carriage_returns_stays_linear(reader: type[EventDecoder | EventCutter]) -> None:
    start = time.process_time()
    reader().feed(b"a\r" * 131_072)
    assert time.process_time() - start < 1.0  # measured: 0.04 s


@pytest.mark.parametrize("reader", [EventDecoder, EventCutter])
def test_a_stream_without_an_event_end_is_refused_at_the_limit(
    reader: type[EventDecoder | EventCutter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT", 1000)
    decoder = reader()
    decoder.feed(b"data: 0123456789\n" * 40)
    with pytest.raises(EventTooLong, match="1000 bytes"):
        decoder.feed(b"data: 0123456789\n" * 80)


@given(data=st.binary(max_size=50).filter(lambda data: b"\n" not in data and b"\r" not in data), named=st.booleans())
def test_what_is_encoded_is_decoded(data: bytes, named: bool) -> None:
    wire = sse.encode(data, "message_start" if named else None)
    assert EventDecoder().feed(wire) == [ServerEvent("message_start" if named else "message", data)] == [sse.parse(wire)]
