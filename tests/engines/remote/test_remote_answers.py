"""What a connection makes of an answer, however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rig import Bench

from sits.engines.remote import AnswerLimits

SMALL = AnswerLimits(head_bytes=300, fields=8, body_bytes=100)
END = ("end",)


def broken(what: str) -> tuple[str, str, str]:
    return ("fail", "upstream_broken", f"http://model {what}")


def unreadable(why: str) -> tuple[str, str, str]:
    return broken(f"sent what is not an HTTP answer: {why}")


class Row(NamedTuple):
    wire: bytes
    events: list[tuple[Any, ...]]
    owner: str = "forget"
    """What becomes of the connection."""
    eof: bool = False
    method: bytes = b"POST"


def ok(*fields: tuple[bytes, bytes], status: int = 200) -> tuple[str, int, list[tuple[bytes, bytes]]]:
    return ("head", status, list(fields))


LENGTH_2 = (b"content-length", b"2")
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HI = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"

ROWS: dict[str, Row] = {
    "length": Row(HI + b"\r\nhi", [ok(LENGTH_2), ("data", b"hi"), END], "release"),
    "empty body": Row(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", [ok((b"content-length", b"0")), END], "release"),
    "chunks": Row(CHUNKED + b"2\r\nhi\r\n3\r\n, y\r\n0\r\n\r\n", [ok(), ("data", b"hi, y"), END], "release"),
    "chunk extension": Row(CHUNKED + b'2;a="b"\r\nhi\r\n0;z\r\n\r\n', [ok(), ("data", b"hi"), END], "release"),
    "upper-case coding": Row(
        CHUNKED.replace(b"chunked", b"Chunked") + b"2\r\nhi\r\n0\r\n\r\n", [ok(), ("data", b"hi"), END], "release"
    ),
    "trailers": Row(CHUNKED + b"2\r\nhi\r\n0\r\nX-Sum: 1\r\nX-B: 2\r\n\r\n", [ok(), ("data", b"hi"), END], "release"),
    "no body at all in chunks": Row(CHUNKED + b"0\r\n\r\n", [ok(), END], "release"),
    "until close": Row(b"HTTP/1.1 200 OK\r\nX: y\r\n\r\nhi", [ok((b"x", b"y")), ("data", b"hi"), END], eof=True),
    "until close, empty": Row(b"HTTP/1.1 200 OK\r\n\r\n", [ok(), END], eof=True),
    "until close, said so": Row(b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nhi", [ok(), ("data", b"hi"), END], eof=True),
    "connection: close": Row(HI + b"Connection: close\r\n\r\nhi", [ok(LENGTH_2), ("data", b"hi"), END]),
    "HTTP/1.0": Row(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", [ok(LENGTH_2), ("data", b"hi"), END]),
    "HTTP/1.0 kept alive": Row(
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nhi",
        [ok(LENGTH_2), ("data", b"hi"), END],
        "release",
    ),
    "204": Row(b"HTTP/1.1 204 No Content\r\n\r\n", [ok(status=204), END], "release"),
    "204 with a length": Row(b"HTTP/1.1 204 No\r\nContent-Length: 2\r\n\r\n", [ok(LENGTH_2, status=204), END], "release"),
    "304 with a length": Row(
        b"HTTP/1.1 304 No\r\nContent-Length: 999\r\n\r\n", [ok((b"content-length", b"999"), status=304), END], "release"
    ),
    "HEAD": Row(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n", [ok((b"content-length", b"999")), END], method=b"HEAD"),
    "HEAD with chunks named": Row(CHUNKED, [ok(), END], method=b"HEAD"),
    "100 and 103 first": Row(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + HI + b"\r\nhi",
        [ok(LENGTH_2), ("data", b"hi"), END],
        "release",
    ),
    "error status": Row(
        b"HTTP/1.1 503 Busy\r\nRetry-After: 2\r\nContent-Length: 2\r\n\r\nno",
        [ok((b"retry-after", b"2"), LENGTH_2, status=503), ("data", b"no"), END],
        "release",
    ),
    "no reason phrase": Row(b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi", [ok(LENGTH_2), ("data", b"hi"), END], "release"),
    "fields of UTF-8 and fields of nothing": Row(
        "HTTP/1.1 200 OK\r\nX-Name: 通义\r\nX-None:\r\nContent-Length: 2\r\n\r\nhi".encode(),
        [ok((b"x-name", "通义".encode()), (b"x-none", b""), LENGTH_2), ("data", b"hi"), END],
        "release",
    ),
    "hop-by-hop fields": Row(
        b"HTTP/1.1 200 OK\r\nConnection: X-Mine, Keep-Alive\r\nKeep-Alive: timeout=5\r\nX-Mine: 1\r\nProxy-Authenticate: x\r\n"
        b"Trailer: x\r\nUpgrade: h2c\r\nX-Ours: 2\r\nContent-Length: 2\r\n\r\nhi",
        [ok((b"x-ours", b"2"), LENGTH_2), ("data", b"hi"), END],
        "release",
    ),
    "bytes after the end": Row(HI + b"\r\nhiHTTP/1.1 200 OK\r\n", [ok(LENGTH_2), ("data", b"hi"), END]),
    "garbage after the end": Row(CHUNKED + b"2\r\nhi\r\n0\r\n\r\n\0\0", [ok(), ("data", b"hi"), END]),
    "bytes after the end of a closing one": Row(HI + b"Connection: close\r\n\r\nhi!", [ok(LENGTH_2), ("data", b"hi"), END]),
    # What is broken
    "closed before it answered": Row(b"", [broken("closed the connection before it answered")], eof=True),
    "closed within the head": Row(b"HTTP/1.1 200 O", [broken("closed the connection within the head of its answer")], eof=True),
    "closed after a 100": Row(
        b"HTTP/1.1 100 Continue\r\n\r\n", [broken("closed the connection within the head of its answer")], eof=True
    ),
    "closed within a length": Row(
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi",
        [ok((b"content-length", b"5")), ("data", b"hi"), broken("closed the connection after 2 bytes of the body of 5")],
        eof=True,
    ),
    "closed before the last chunk": Row(
        CHUNKED + b"2\r\nhi\r\n", [ok(), ("data", b"hi"), broken("closed the connection after 2 bytes of the body")], eof=True
    ),
    "closed within the trailers": Row(
        CHUNKED + b"0\r\nX: y", [ok(), broken("closed the connection after 0 bytes of the body")], eof=True
    ),
    "length and chunks": Row(
        HI + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        [unreadable("Transfer-Encoding can't be present with Content-Length")],
    ),
    "chunks and length": Row(
        CHUNKED[:-2] + b"Content-Length: 2\r\n\r\nhi", [unreadable("Content-Length can't be present with Transfer-Encoding")]
    ),
    "two lengths": Row(HI + b"Content-Length: 3\r\n\r\nhi", [unreadable("Duplicate Content-Length")]),
    "a length that is none": Row(
        b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nhi", [unreadable("Invalid character in Content-Length")]
    ),
    "a length beyond all": Row(
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", [unreadable("Content-Length overflow")]
    ),
    "a chunk size that is none": Row(
        CHUNKED + b"2\r\nhi\r\nzz\r\n", [ok(), ("data", b"hi"), unreadable("Invalid character in chunk size")]
    ),
    "a chunk size beyond all": Row(CHUNKED + b"fffffffffffffffff\r\n", [ok(), unreadable("Chunk size overflow")]),
    "gzip as a transfer coding": Row(
        CHUNKED.replace(b"chunked", b"gzip, chunked") + b"2\r\nhi\r\n0\r\n\r\n",
        [unreadable("a transfer coding other than chunked, or one in HTTP/1.0")],
    ),
    "chunked twice": Row(
        CHUNKED[:-2] + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        [unreadable("a transfer coding other than chunked, or one in HTTP/1.0")],
    ),
    "chunks in HTTP/1.0": Row(
        CHUNKED.replace(b"1.1", b"1.0") + b"0\r\n\r\n", [unreadable("a transfer coding other than chunked, or one in HTTP/1.0")]
    ),
    "a folded field": Row(HI + b"X: a\r\n b\r\n\r\nhi", [unreadable("Unexpected whitespace after header value")]),
    "a space before the colon": Row(HI + b"X : a\r\n\r\nhi", [unreadable("Invalid header token")]),
    "a NUL in a field": Row(HI + b"X: \0a\r\n\r\nhi", [unreadable("Invalid header value char")]),
    "101": Row(
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        [unreadable("status 101, which was not asked for")],
    ),
    "101 without an upgrade": Row(b"HTTP/1.1 101 Switching\r\n\r\n", [unreadable("status 101, which was not asked for")]),
    "status 000": Row(
        b"HTTP/1.1 000 X\r\nContent-Length: 2\r\n\r\nhi", [unreadable("status 0, which was not asked for")]
    ),
    "not HTTP": Row(b"SSH-2.0-OpenSSH_9.2\r\n", [unreadable("Expected HTTP/, RTSP/ or ICE/")]),
    # Limits (those of SMALL)
    "too many fields": Row(HI + b"a: b\r\n" * 8 + b"\r\nhi", [unreadable("more than 8 fields")]),
    "a body above the limit by its length": Row(
        b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n", [unreadable("a body of 101 bytes, where 100 is the most")]
    ),
    "a body at the limit": Row(CHUNKED + b"64\r\n" + b"x" * 100 + b"\r\n0\r\n\r\n", [ok(), ("data", b"x" * 100), END], "release"),
}  # fmt: skip


def outcome(row: Row, pieces: list[bytes]) -> tuple[list[tuple[Any, ...]], str]:
    bench = Bench(SMALL)
    log, call = bench.begin(row.method)
    bench.feed(*pieces, eof=row.eof)
    assert (call.reply, call.carrier) == (None, None)
    return log.events, bench.keeper.said[0]


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_an_answer_fed_whole(row: Row) -> None:
    assert outcome(row, [row.wire]) == (row.events, row.owner)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_an_answer_fed_byte_by_byte(row: Row) -> None:
    events, owner = outcome(row, [row.wire[i : i + 1] for i in range(len(row.wire))])
    assert events == row.events
    # Whatever follows the end arrives by itself here and finds the connection idle: the pool's affair.
    assert owner == row.owner or "after the end" in next(name for name, other in ROWS.items() if other is row)


@given(row=st.sampled_from(list(ROWS.values())), cuts=st.lists(st.integers(0, 300), max_size=8))
def test_cuts_never_change_what_an_answer_says(row: Row, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(row.wire)) for cut in cuts), len(row.wire)]
    assert outcome(row, [row.wire[a:b] for a, b in pairwise(edges)])[0] == row.events


@settings(max_examples=150)
@given(pieces=st.lists(st.binary(min_size=1, max_size=20), max_size=5), cuts=st.lists(st.integers(0, 400), max_size=10))
def test_any_chunked_body_comes_back_whole_however_it_is_cut(pieces: list[bytes], cuts: list[int]) -> None:
    wire = CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    body = b"".join(pieces)
    expected = [ok(), *([("data", body)] if body else []), END]
    row = Row(wire, expected)
    assert outcome(row, [wire[a:b] for a, b in pairwise(edges)]) == (expected, "release")


@settings(max_examples=200)
@given(wire=st.binary(max_size=80), at=st.integers(0, 60), cuts=st.lists(st.integers(0, 150), max_size=4))
def test_damage_is_told_once_and_the_same_however_it_is_cut(wire: bytes, at: int, cuts: list[int]) -> None:
    damaged = (CHUNKED + b"2\r\nhi\r\n0\r\n\r\n")[:at] + wire
    edges = [0, *sorted(min(cut, len(damaged)) for cut in cuts), len(damaged)]
    whole, _ = outcome(Row(damaged, [], eof=True), [damaged])
    cut, _ = outcome(Row(damaged, [], eof=True), [damaged[a:b] for a, b in pairwise(edges)])
    assert cut == whole
    assert [event[0] for event in whole].count("fail") + [event[0] for event in whole].count("end") == 1


@pytest.mark.parametrize(
    ("wire", "told"),
    [
        (b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 400, []),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 20, []),
        (CHUNKED + b"2;" + b"e" * 400, [ok()]),
        (CHUNKED + b"0\r\nx: " + b"t" * 400, [ok()]),
    ],
    ids=["a field", "provisional answers", "a chunk extension", "a trailer"],
)
def test_what_is_not_body_is_limited_even_if_it_never_ends(wire: bytes, told: list[tuple[Any, ...]]) -> None:
    bench = Bench(SMALL)
    log, _ = bench.begin()
    bench.feed(*[wire[i : i + 10] for i in range(0, len(wire), 10)])
    assert log.events == [*told, broken("sent more than 300 bytes of fields or framing")]
    assert bench.transport.aborted


def test_a_large_head_in_one_read_is_refused() -> None:
    bench = Bench(SMALL)
    log, _ = bench.begin()
    bench.feed(HI + b"x: " + b"y" * 300 + b"\r\n\r\nhi")
    assert log.events == [unreadable("more than 300 bytes of fields")]


def test_a_body_that_outgrows_the_limit_is_cut() -> None:
    bench = Bench(SMALL)
    log, _ = bench.begin()
    bench.feed(CHUNKED, b"40\r\n" + b"x" * 64 + b"\r\n", b"40\r\n" + b"x" * 64 + b"\r\n")
    assert log.events == [ok(), ("data", b"x" * 64), broken("sent a body of more than 100 bytes")]
    assert bench.transport.aborted


def test_one_read_is_one_piece() -> None:
    bench = Bench()
    pieces: list[bytes] = []
    log, _ = bench.begin()
    log.data = pieces.append  # type: ignore[method-assign]
    bench.feed(CHUNKED + b"1\r\na\r\n1\r\nb\r\n", b"1\r\nc\r\n")
    assert pieces == [b"ab", b"c"]


def test_a_reset_within_a_body_until_close_is_not_its_end() -> None:
    bench = Bench()
    log, _ = bench.begin()
    bench.feed(b"HTTP/1.1 200 OK\r\n\r\nhi")
    bench.connection.connection_lost(ConnectionResetError(104, "reset by peer"))
    said = "broke the connection ([Errno 104] reset by peer) after 2 bytes of the body"
    assert log.events == [ok(), ("data", b"hi"), broken(said)]


def test_bytes_on_an_idle_connection_end_it() -> None:
    bench = Bench()
    bench.feed(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    assert (bench.keeper.said, bench.transport.closing) == (["forget"], True)


def test_one_connection_carries_many_answers() -> None:
    bench = Bench()
    for body in (b"hi", b"yo"):
        log, _ = bench.begin()
        bench.feed(HI + b"\r\n" + body)
        assert log.events == [ok(LENGTH_2), ("data", body), END]
    assert bench.keeper.said == ["release", "release"]


@pytest.mark.parametrize(
    ("value", "hint"),
    [(b"timeout=5, max=100", 5.0), (b"max=3; timeout = 15", 15.0), (b'timeout="7"', 7.0), (b"nonsense", None)],
)
def test_the_servers_idle_limit_is_read(value: bytes, hint: float | None) -> None:
    bench = Bench()
    bench.begin()
    bench.feed(HI + b"Keep-Alive: " + value + b"\r\n\r\nhi")
    assert bench.connection.hint == hint
