from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.dialects import jsonlines
from sits.dialects.jsonlines import LineDecoder, LineTooLong

from .cuts import CUTS, bytewise, cut


def read(pieces: list[bytes]) -> list[bytes]:
    decoder = LineDecoder()
    return [line for piece in pieces for line in decoder.feed(piece)] + decoder.close()


@pytest.mark.parametrize(
    ("wire", "lines"),
    [
        pytest.param(b'{"a":1}\n{"b":2}\n', [b'{"a":1}', b'{"b":2}'], id="two"),
        pytest.param(b'{"a":1}\r\n\r\n{"b":2}', [b'{"a":1}', b'{"b":2}'], id="CRLF, blank line, no last end"),
        pytest.param('{"中":"文"}\n'.encode(), ['{"中":"文"}'.encode()], id="Chinese"),
        pytest.param(b"", [], id="empty"),
        pytest.param(b"\n \n\t\n", [], id="blank only"),
    ],
)
def test_a_wire_gives_its_lines_whole_and_byte_by_byte(wire: bytes, lines: list[bytes]) -> None:
    assert read([wire]) == read(bytewise(wire)) == lines


@given(wire=st.lists(st.sampled_from([b"\n", b"\r\n", b"{}", b"a b", b" "]), max_size=20).map(b"".join), cuts=CUTS)
def test_cuts_never_change_lines(wire: bytes, cuts: list[int]) -> None:
    assert read(cut(wire, cuts)) == read([wire])


def test_only_the_last_line_waits_for_the_end() -> None:
    decoder = LineDecoder()
    assert decoder.feed(b'{"a":1}\n{"b"') == [b'{"a":1}']
    assert decoder.feed(b":2}") == []
    assert decoder.close() == [b'{"b":2}']
    assert decoder.close() == []


def test_forty_thousand_one_byte_pieces_take_well_under_a_second() -> None:
    start = time.process_time()
    assert read(bytewise(b"x" * 40_000)) == [b"x" * 40_000]
    assert time.process_time() - start < 1.0  # measured: 0.01 s


def test_a_line_without_an_end_is_refused_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonlines, "MAX_LINE", 100)
    decoder = LineDecoder()
    for _ in range(10):
        decoder.feed(b"0123456789")
    with pytest.raises(LineTooLong, match="100 bytes"):
        decoder.feed(b"0")
