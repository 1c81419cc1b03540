"""Bytes to requests, and answers to bytes: however the bytes are cut, and in the order in which they came."""

from __future__ import annotations

from typing import Any

import pytest
from front_rig import CONTINUE, DATE, HEAD, FakeTransport, Line, answer, bytewise, cut, echo, inside_loop, say, settle, shown
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.gateway.http.front import PIPELINED_BYTES

H = (b"host", b"h")
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
CASES: dict[str, tuple[bytes, tuple[bytes, bytes, bytes, list[tuple[bytes, bytes]], bytes]]] = {
    "no body": (HEAD + b"\r\n", (b"POST", b"/a", b"b=c", [H], b"")),
    "Content-Length": (
        HEAD + b"Content-Length: 5\r\n\r\nhello",
        (b"POST", b"/a", b"b=c", [H, (b"content-length", b"5")], b"hello"),
    ),
    "zeros before the length": (
        HEAD + b"Content-Length: " + b"0" * 5000 + b"5\r\n\r\nhello",
        (b"POST", b"/a", b"b=c", [H, (b"content-length", b"5")], b"hello"),
    ),
    "Chinese in the body": (
        HEAD + b"Content-Length: 6\r\n\r\n" + "你好".encode(),
        (b"POST", b"/a", b"b=c", [H, (b"content-length", b"6")], "你好".encode()),
    ),
    "chunks": (
        HEAD + CHUNKED + b"3\r\nhel\r\n02\r\nlo\r\n0\r\n\r\n",
        (b"POST", b"/a", b"b=c", [H, (b"transfer-encoding", b"chunked")], b"hello"),
    ),
    "chunks with extensions": (
        HEAD + CHUNKED + b'5;a=b;c="d"\r\nhello\r\n0;x\r\n\r\n',
        (b"POST", b"/a", b"b=c", [H, (b"transfer-encoding", b"chunked")], b"hello"),
    ),
    "trailers are no headers": (
        HEAD + CHUNKED + b"5\r\nhello\r\n0\r\nAuthorization: Bearer x\r\nHost: evil\r\n\r\n",
        (b"POST", b"/a", b"b=c", [H, (b"transfer-encoding", b"chunked")], b"hello"),
    ),
    "repeated fields are joined": (
        HEAD + b"Accept: a\r\nAccept: b\r\nCookie: c=1\r\nCookie: d=2\r\n\r\n",
        (b"POST", b"/a", b"b=c", [(b"accept", b"a, b"), (b"cookie", b"c=1; d=2"), H], b""),
    ),
    "space around a value": (HEAD + b"X: \t y z \t\r\n\r\n", (b"POST", b"/a", b"b=c", [H, (b"x", b"y z")], b"")),
    "bytes above ASCII in a value": (HEAD + b"X: \x80\xff\r\n\r\n", (b"POST", b"/a", b"b=c", [H, (b"x", b"\x80\xff")], b"")),
    "an empty value": (HEAD + b"X:\r\n\r\n", (b"POST", b"/a", b"b=c", [H, (b"x", b"")], b"")),
    "lines before the request": (b"\r\n\r\n" + HEAD + b"\r\n", (b"POST", b"/a", b"b=c", [H], b"")),
    "absolute form": (
        b"GET http://u.example:1/a/b?c=%20 HTTP/1.1\r\nHost: h\r\n\r\n",
        (b"GET", b"/a/b", b"c=%20", [H], b""),
    ),
    "absolute form without a path": (b"GET http://u.example?q HTTP/1.1\r\nHost: h\r\n\r\n", (b"GET", b"/", b"q", [H], b"")),
    "OPTIONS *": (b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", (b"OPTIONS", b"*", b"", [H], b"")),
    "an empty Host": (b"GET / HTTP/1.1\r\nHost:\r\n\r\n", (b"GET", b"/", b"", [(b"host", b"")], b"")),
    "an IPv6 Host": (b"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", (b"GET", b"/", b"", [(b"host", b"[::1]:80")], b"")),
    "an Upgrade without a body": (
        b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        (b"GET", b"/", b"", [(b"connection", b"Upgrade"), H, (b"upgrade", b"websocket")], b""),
    ),
    # As Java's HttpClient sends each first request.
    "an Upgrade with a body": (
        b"POST / HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nHost: h\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\nhello",
        (
            b"POST",
            b"/",
            b"",
            [(b"connection", b"Upgrade, HTTP2-Settings"), (b"content-length", b"5"), H, (b"upgrade", b"h2c")],
            b"hello",
        ),
    ),
    "an Upgrade with chunks": (
        b"POST / HTTP/1.1\r\nConnection: Upgrade\r\nHost: h\r\nUpgrade: h2c\r\n" + CHUNKED + b"5\r\nhello\r\n0\r\n\r\n",
        (
            b"POST",
            b"/",
            b"",
            [(b"connection", b"Upgrade"), H, (b"transfer-encoding", b"chunked"), (b"upgrade", b"h2c")],
            b"hello",
        ),
    ),
}
ALL = b"".join(wire for wire, _ in CASES.values())


@pytest.mark.parametrize("feeding", ["whole", "bytewise", "in twos"])
@pytest.mark.parametrize(("wire", "wanted"), CASES.values(), ids=CASES)
@inside_loop
async def test_a_request_is_read_as_the_rfcs_say(wire: bytes, wanted: Any, feeding: str) -> None:
    line = Line(echo)
    pieces = {"whole": [wire], "bytewise": bytewise(wire), "in twos": [wire[i : i + 2] for i in range(0, len(wire), 2)]}
    line.feed(*pieces[feeding])
    method, path, query, headers, body = wanted
    assert (line.sent, line.ended) == (answer(b" ".join([method, path, query, repr(sorted(headers)).encode(), body])), "")


@settings(max_examples=100, deadline=None)
@given(cuts=st.lists(st.integers(0, len(ALL)), max_size=30))
def test_cuts_change_neither_requests_nor_answers(cuts: list[int]) -> None:
    @inside_loop
    async def story() -> None:
        line = Line(echo).feed(*cut(ALL, cuts))
        wanted = [answer(b" ".join([m, p, q, repr(sorted(h)).encode(), b])) for _, (m, p, q, h, b) in CASES.values()]
        assert (line.sent, line.ended) == (b"".join(wanted), "")

    story()


@inside_loop
async def test_a_request_knows_its_peer_and_when_its_first_byte_came() -> None:
    line = Line().feed(HEAD)
    line.clock.now += 3.0
    line.feed(b"\r\n")
    request, _ = line.held[0]
    assert (request.peer, request.received) == ("192.0.2.7", 1000.0)


# Order


@inside_loop
async def test_pipelined_requests_are_answered_in_order_and_one_at_a_time() -> None:
    line = Line().feed(b"".join(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % i for i in range(5)))
    for i in range(5):
        assert [request.path for request, _ in line.held] == [b"/%d" % j for j in range(i + 1)]
        say(line.held[i][1], b"%d" % i)
        await settle()
    assert (line.sent, line.ended) == (b"".join(answer(b"%d" % i) for i in range(5)), "")


@inside_loop
async def test_a_pipelined_stream_is_not_mixed_with_the_answer_after_it() -> None:
    line = Line().feed((HEAD + b"\r\n") * 2)
    _, first = line.held[0]
    first.open(200, [])
    first.write(b"one")
    first.write(b"")
    first.write("二".encode())
    await settle()
    assert len(line.held) == 1
    first.close()
    await settle()
    say(line.held[1][1], b"next")
    head = b"HTTP/1.1 200 OK\r\ndate: %b\r\ntransfer-encoding: chunked\r\n\r\n" % DATE
    assert line.sent == head + b"3\r\none\r\n3\r\n" + "二".encode() + b"\r\n0\r\n\r\n" + answer(b"next")


@inside_loop
async def test_a_refusal_waits_for_the_answers_before_it_and_ends_the_connection() -> None:
    line = Line().feed(HEAD + b"\r\n" + b"GET /x HTTP/1.1\r\n\r\n" + HEAD + b"\r\n")
    assert line.sent == b""
    say(line.held[0][1], b"first")
    await settle()
    assert line.sent.startswith(answer(b"first") + b"HTTP/1.1 400 Bad Request\r\n")
    assert (len(line.held), line.ended, line.status) == (1, "eof", 400)


@inside_loop
async def test_a_sync_answer_before_a_refusal_in_one_packet_comes_first() -> None:
    line = Line(echo).feed(HEAD + b"\r\n" + b"\x16\x03\x01")
    assert line.sent.startswith(b"HTTP/1.1 200 OK\r\n")
    assert (line.status, line.ended) == (400, "eof")


@inside_loop
async def test_reading_pauses_when_much_is_queued_and_goes_on_when_it_is_not() -> None:
    line = Line()
    body = b"x" * (PIPELINED_BYTES // 4)
    request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    for _ in range(4):
        line.feed(request)
    assert line.transport.reading, "one is answered, three wait"
    line.feed(request)
    assert not line.transport.reading
    for i in range(5):
        say(line.held[i][1], b"")
        await settle()
    assert line.transport.reading
    line.feed(request)
    assert len(line.held) == 6


@inside_loop
async def test_while_the_last_queued_request_is_answered_the_connection_is_read() -> None:
    line = Line().feed((HEAD + b"\r\n") * 100)
    assert not line.transport.reading
    for i in range(99):
        say(line.held[i][1], b"")
        await settle()
    assert line.transport.reading, "or nobody would hear that the client has gone"
    line.protocol.connection_lost(None)
    assert line.held[99][1].listener.heard == ["gone"]


@inside_loop
async def test_after_connection_close_nothing_more_is_read() -> None:
    line = Line(echo).feed(HEAD + b"Connection: close\r\n\r\n" + HEAD + b"\r\n")
    assert line.sent.count(b"HTTP/1.1 200 OK") == 1
    assert b"connection: close\r\n" in line.sent
    assert line.ended == "eof", "lingering, as a reset could take the answer with it"


# Expect: 100-continue

EXPECT = HEAD + b"Expect: 100-Continue\r\nContent-Length: 5\r\n\r\n"


@inside_loop
async def test_100_is_sent_once_the_head_is_accepted_and_the_final_answer_after_the_body() -> None:
    line = Line().feed(EXPECT)
    assert (line.sent, line.held) == (CONTINUE, [])
    line.feed(b"he", b"llo")
    say(line.held[0][1], b"ok")
    assert line.sent == CONTINUE + answer(b"ok")


@inside_loop
async def test_100_comes_for_chunks_too_and_bytewise_once() -> None:
    line = Line().feed(*bytewise(HEAD + b"Expect: 100-continue\r\n" + CHUNKED))
    assert line.sent == CONTINUE
    line.feed(*bytewise(b"5\r\nhello\r\n0\r\n\r\n"))
    assert line.sent == CONTINUE
    assert line.held[0][0].body == b"hello"


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(EXPECT + b"h", id="the body has begun"),
        pytest.param(EXPECT + b"hello", id="the body is here"),
        pytest.param(HEAD + b"Expect: 100-continue\r\n\r\n", id="there is no body"),
        pytest.param(EXPECT.replace(b"HTTP/1.1", b"HTTP/1.0"), id="HTTP/1.0 does not know it"),
    ],
)
@inside_loop
async def test_no_100_where_it_would_be_wrong(wire: bytes) -> None:
    assert Line().feed(wire).sent == b""


@inside_loop
async def test_100_never_overtakes_an_answer() -> None:
    line = Line().feed(HEAD + b"\r\n" + EXPECT)
    assert line.sent == b""
    say(line.held[0][1], b"first")
    await settle()
    assert line.sent == answer(b"first") + CONTINUE
    line.feed(b"hello")
    say(line.held[1][1], b"second")
    assert line.sent == answer(b"first") + CONTINUE + answer(b"second")


@inside_loop
async def test_100_comes_after_two_answers_that_were_given_at_once() -> None:
    line = Line(echo).feed((HEAD + b"\r\n") * 2 + EXPECT)
    assert line.sent == answer(b" ".join(shown_head())) * 2 + CONTINUE


def shown_head() -> list[bytes]:
    return [b"POST", b"/a", b"b=c", repr([H]).encode(), b""]


@inside_loop
async def test_an_expected_body_that_is_too_large_is_refused_without_100() -> None:
    line = Line().feed(HEAD + b"Expect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n")
    assert (CONTINUE in line.sent, line.status, line.ended, line.held) == (False, 413, "eof", [])


@inside_loop
async def test_another_expectation_is_417() -> None:
    line = Line().feed(HEAD + b"Expect: 200-ok\r\nContent-Length: 5\r\n\r\n")
    assert (line.status, line.ended, line.held) == (417, "eof", [])


# Answers


@pytest.mark.parametrize("feeding", ["whole", "stream"])
@inside_loop
async def test_head_has_the_fields_and_no_body(feeding: str) -> None:
    line = Line().feed(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n")
    _, wire = line.held[0]
    if feeding == "whole":
        say(wire, b"hello")
        assert line.sent == answer(b"hello").removesuffix(b"hello")
    else:
        wire.open(200, [])
        wire.write(b"hello")
        wire.close()
        assert line.sent == b"HTTP/1.1 200 OK\r\ndate: %b\r\ntransfer-encoding: chunked\r\n\r\n" % DATE
    line.feed(HEAD + b"\r\n")
    assert len(line.held) == 2


@pytest.mark.parametrize("status", [204, 304])
@inside_loop
async def test_answers_that_have_no_body_say_no_length(status: int) -> None:
    line = Line().feed(HEAD + b"\r\n")
    line.held[0][1].respond(status, [], b"")
    phrase = {204: b"No Content", 304: b"Not Modified"}[status]
    assert line.sent == b"HTTP/1.1 %d %b\r\ndate: %b\r\n\r\n" % (status, phrase, DATE)


OLD = b"GET / HTTP/1.0\r\n"


@inside_loop
async def test_http_1_0_needs_no_host_and_closes() -> None:
    line = Line().feed(OLD + b"\r\n")
    say(line.held[0][1], b"ok")
    assert (line.sent, line.ended) == (answer(b"ok", b"200 OK", b"connection: close"), "close")


@inside_loop
async def test_http_1_0_is_kept_when_it_asks() -> None:
    line = Line().feed(OLD + b"Connection: keep-alive\r\n\r\n")
    say(line.held[0][1], b"ok")
    assert (line.sent, line.ended) == (answer(b"ok", b"200 OK", b"connection: keep-alive"), "")
    line.feed(OLD + b"\r\n")
    assert len(line.held) == 2


@inside_loop
async def test_a_stream_for_http_1_0_ends_with_the_connection() -> None:
    line = Line().feed(OLD + b"Connection: keep-alive\r\n\r\n")
    _, wire = line.held[0]
    wire.open(200, [])
    wire.write(b"one")
    wire.write(b"two")
    wire.close()
    assert (line.sent, line.ended) == (
        b"HTTP/1.1 200 OK\r\ndate: %b\r\nconnection: close\r\n\r\nonetwo" % DATE,
        "close",
    )


@inside_loop
async def test_an_aborted_stream_is_cut_without_its_last_chunk() -> None:
    line = Line().feed(HEAD + b"\r\n" + HEAD + b"\r\n")
    _, wire = line.held[0]
    wire.open(200, [])
    wire.write(b"half")
    wire.abort()
    await settle()
    assert (line.sent.endswith(b"4\r\nhalf\r\n"), line.ended, len(line.held)) == (True, "abort", 1)
    assert wire.listener.heard == []


@inside_loop
async def test_only_the_first_answer_counts() -> None:
    line = Line().feed(HEAD + b"\r\n")
    _, wire = line.held[0]
    say(wire, b"first")
    say(wire, b"second")
    wire.open(200, [])
    wire.write(b"x")
    wire.close()
    wire.abort()
    assert (line.sent, line.ended) == (answer(b"first"), "")


@inside_loop
async def test_the_date_changes_with_the_second() -> None:
    wall = [784111777.25]
    line = Line(echo)
    line.front.wall = lambda: wall[0]
    for step, wanted in ((0.0, 37), (0.7, 37), (0.06, 38), (0.9, 38), (0.2, 39)):
        wall[0] += step
        line.clock.now += step
        line.feed(HEAD + b"\r\n")
        assert line.transport.writes[-1].split(b"date: ")[1][:29] == DATE.replace(b"37", b"%d" % wanted)


def test_the_fake_transport_refuses_what_a_real_one_would() -> None:
    transport = FakeTransport()
    transport.write_eof()
    with pytest.raises(AssertionError):
        transport.write(b"x")
    assert shown(_request()) == (b"GET", b"/", b"", b"[]", b"")


def _request() -> Any:
    from sits.gateway.wire import Request

    return Request(b"GET", b"/", b"", {}, b"", "", 0.0)
