"""What is refused: with which status, in which words, and never with half of it passed on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from front_rig import HEAD, WALL, Clock, Line, answer, bytewise, cut, inside_loop, say
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.gateway.http.front import FRAMING_BYTES, TARGET_BYTES, Front
from sits.gateway.wire import Request, Wire
from sits.inner.sweep import Sweep
from sits.resources.kinds import Limits

CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"
SMALL = Limits(body_bytes=64, header_bytes=1024)

REFUSED: dict[str, tuple[int, bytes]] = {
    # Framing (RFC 9112 6): whatever two readers could read in two ways.
    "Content-Length and Transfer-Encoding": (400, HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "Transfer-Encoding and Content-Length": (400, HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
    "two lengths that differ": (400, HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"),
    "two lengths that agree": (400, HEAD + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
    "a list of lengths": (400, HEAD + b"Content-Length: 5, 5\r\n\r\nhello"),
    "a length with a sign": (400, HEAD + b"Content-Length: +5\r\n\r\nhello"),
    "a negative length": (400, HEAD + b"Content-Length: -5\r\n\r\nhello"),
    "a hexadecimal length": (400, HEAD + b"Content-Length: 0x5\r\n\r\nhello"),
    "an empty length": (400, HEAD + b"Content-Length:\r\n\r\nhello"),
    "a length beyond 64 bits": (400, HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n"),
    "Transfer-Encoding on HTTP/1.0": (
        400,
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ),
    "a coding before chunked": (501, HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "chunked twice": (400, HEAD + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
    "chunked is not last": (400, HEAD + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n"),
    "an unknown coding": (501, HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    "a coding with a vertical tab": (400, HEAD + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n"),
    "an empty coding": (400, HEAD + b"Transfer-Encoding:\r\n\r\n"),
    "a chunk size with 0x": (400, CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n"),
    "a negative chunk size": (400, CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n"),
    "an empty chunk size": (400, CHUNKED + b"\r\nhello\r\n0\r\n\r\n"),
    "a chunk size beyond 64 bits": (400, CHUNKED + b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n"),
    "a chunk longer than its size": (400, CHUNKED + b"4\r\nhello\r\n0\r\n\r\n"),
    "chunk lines with bare LF": (400, CHUNKED + b"5\nhello\n0\n\n"),
    # Fields (RFC 9112 5).
    "an obsolete fold": (400, HEAD + b"X: a\r\n b\r\n\r\n"),
    "a space before the colon": (400, HEAD + b"X : a\r\n\r\n"),
    "a field without a name": (400, HEAD + b": a\r\n\r\n"),
    "a field without a colon": (400, HEAD + b"X\r\n\r\n"),
    "a name that is not ASCII": (400, HEAD + "名: a\r\n\r\n".encode()),
    "NUL in a value": (400, HEAD + b"X: a\x00b\r\n\r\n"),
    "CR in a value": (400, HEAD + b"X: a\rb\r\n\r\n"),
    "bare LF after a value": (400, HEAD + b"X: a\nY: b\r\n\r\n"),
    "bare LF after the request line": (400, b"GET / HTTP/1.1\nHost: h\r\n\r\n"),
    "a space before the first field": (400, b"GET / HTTP/1.1\r\n Host: h\r\n\r\n"),
    # Host (RFC 9112 3.2).
    "no Host": (400, b"GET / HTTP/1.1\r\n\r\n"),
    "two Hosts": (400, HEAD + b"Host: h\r\n\r\n"),
    "a Host with a path": (400, b"GET / HTTP/1.1\r\nHost: h/x\r\n\r\n"),
    "a Host with a space": (400, b"GET / HTTP/1.1\r\nHost: h x\r\n\r\n"),
    "a Host with a user": (400, b"GET / HTTP/1.1\r\nHost: u@h\r\n\r\n"),
    # Request line (RFC 9112 3).
    "CONNECT": (501, b"CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n"),
    "HTTP/2": (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"),
    "HTTP/2.0 on a request": (505, b"GET / HTTP/2.0\r\nHost: h\r\n\r\n"),
    "HTTP/1.2": (505, b"GET / HTTP/1.2\r\nHost: h\r\n\r\n"),
    "HTTP/3.0": (505, b"GET / HTTP/3.0\r\nHost: h\r\n\r\n"),
    "HTTP/0.9": (400, b"GET /\r\n\r\n"),
    "a TLS client hello": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "an unknown method": (400, b"BREW / HTTP/1.1\r\nHost: h\r\n\r\n"),
    "a method in lower case": (400, b"get / HTTP/1.1\r\nHost: h\r\n\r\n"),
    "a target that is not ASCII": (400, "GET /你 HTTP/1.1\r\nHost: h\r\n\r\n".encode()),
    "a target that is no path": (400, b"GET foo HTTP/1.1\r\nHost: h\r\n\r\n"),
    "NUL in the target": (400, b"GET /\x00 HTTP/1.1\r\nHost: h\r\n\r\n"),
    "a response": (400, b"HTTP/1.1 200 OK\r\n\r\n"),
    # Limits.
    "a long target": (414, b"GET /" + b"a" * TARGET_BYTES + b" HTTP/1.1\r\nHost: h\r\n\r\n"),
    "a large field": (431, HEAD + b"X: " + b"a" * 1024 + b"\r\n\r\n"),
    "a field that never ends": (431, HEAD + b"X: " + b"a" * 400_000),
    "a field name that never ends": (431, HEAD + b"x" * 400_000),
    "many fields": (431, HEAD + b"".join(b"X%d:\r\n" % i for i in range(300)) + b"\r\n"),
    "one field many times": (431, HEAD + b"X:\r\n" * 300 + b"\r\n"),
    "a large length": (413, HEAD + b"Content-Length: 65\r\n\r\n"),
    "large chunks": (413, CHUNKED + b"28\r\n" + b"a" * 40 + b"\r\n28\r\n" + b"a" * 40 + b"\r\n0\r\n\r\n"),
    "one large chunk": (413, CHUNKED + b"fffff\r\n" + b"a" * 100),
    "an extension that never ends": (400, CHUNKED + b"1;" + b"x" * (FRAMING_BYTES + 300_000)),
    "trailers that never end": (400, CHUNKED + b"1\r\na\r\n0\r\n" + b"X: y\r\n" * 80_000),
    "a trailer that never ends": (400, CHUNKED + b"1\r\na\r\n0\r\nX: " + b"y" * 400_000),
}


@pytest.mark.parametrize("size", [1, 1000], ids=["bytewise", "in thousands"])
@pytest.mark.parametrize(("status", "wire"), REFUSED.values(), ids=REFUSED)
@inside_loop
async def test_it_is_refused_once_and_nothing_after_it_is_a_request(status: int, wire: bytes, size: int) -> None:
    line = Line(limits=SMALL)
    line.feed(*(wire[i : i + size] for i in range(0, len(wire), size)), SMUGGLED, SMUGGLED)
    assert (line.statuses, line.held, line.ended) == ([status], [], "eof")


@pytest.mark.parametrize(("status", "wire"), REFUSED.values(), ids=REFUSED)
@inside_loop
async def test_in_one_packet_with_a_request_before_it_it_is_refused_in_turn(status: int, wire: bytes) -> None:
    line = Line(lambda request, wire: say(wire, request.path), limits=SMALL)
    before = b"GET /before HTTP/1.1\r\nHost: h\r\n\r\n"
    packet = before + wire
    # A packet is 256 KiB at the most.
    line.feed(*(packet[i : i + 262_144] for i in range(0, len(packet), 262_144)), SMUGGLED)
    first = answer(b"/before")
    assert line.sent.startswith(first)
    assert (line.statuses, line.ended) == ([200, status], "eof")


@settings(max_examples=50, deadline=None)
@given(name=st.sampled_from(sorted(REFUSED)), cuts=st.lists(st.integers(0, 10_000), max_size=10))
def test_cuts_never_save_what_is_refused(name: str, cuts: list[int]) -> None:
    @inside_loop
    async def story() -> None:
        status, wire = REFUSED[name]
        line = Line(limits=SMALL).feed(*cut(wire, cuts))
        if line.sent:  # what grows without end is found out some packets later
            assert (line.status, line.held) == (status, [])
        else:
            assert "never end" in name

    story()


@pytest.mark.parametrize("feeding", ["whole", "bytewise"])
@inside_loop
async def test_a_refusal_has_exactly_these_bytes(feeding: str) -> None:
    wire = b"GET /v1/chat/completions HTTP/1.1\r\nX-Request-Id: my-own\r\n\r\n"
    line = Line().feed(*([wire] if feeding == "whole" else bytewise(wire)))
    body = (
        b'{"error":{"message":"the Host field is missing (RFC 9112 3.2)","type":"invalid_request_error","param":null,'
        b'"code":"invalid_request","sits_code":"invalid_request","request_id":"my-own"}}'
    )
    assert line.sent == (
        b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nx-request-id: my-own\r\nx-sits-error: invalid_request\r\n"
        b"date: Sun, 06 Nov 1994 08:49:37 GMT\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    )


@inside_loop
async def test_under_v1_messages_a_refusal_is_in_the_words_of_anthropic() -> None:
    line = Line(limits=SMALL).feed(b"POST /v1/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n")
    body = json.loads(line.sent.partition(b"\r\n\r\n")[2])
    assert (body["type"], body["error"]["type"]) == ("error", "request_too_large")
    assert b"x-sits-error: request_too_large\r\n" in line.sent
    assert body["request_id"].encode() in line.sent


@inside_loop
async def test_a_refused_head_request_gets_no_body() -> None:
    line = Line().feed(b"HEAD / HTTP/1.1\r\n\r\n")
    assert (line.status, line.sent.endswith(b"\r\n\r\n")) == (400, True)


@inside_loop
async def test_the_next_request_after_an_ignored_upgrade_is_read_as_one() -> None:
    upgrade = b"POST /first HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    body = b"GET /inside HTTP/1.1\r\nHost: h\r\n\r\n"
    line = Line(lambda request, wire: say(wire, request.path + b" " + request.body))
    for head, framed in (
        (upgrade + b"Content-Length: %d\r\n\r\n" % len(body), body),
        (upgrade + b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)),
    ):
        line.feed(head + framed + SMUGGLED)
    assert line.sent == (answer(b"/first " + body) + answer(b"/smuggled ")) * 2


@inside_loop
async def test_an_upgrade_with_connection_close_still_closes() -> None:
    wire = b"POST / HTTP/1.1\r\nHost: h\r\nConnection: close, Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nhi"
    line = Line(lambda request, wire: say(wire, request.body)).feed(wire)
    assert (line.sent, line.ended) == (answer(b"hi", b"200 OK", b"connection: close"), "close")


# Connections and handlers


@inside_loop
async def test_above_the_cap_a_connection_is_told_to_come_again() -> None:
    clock = Clock()
    front = Front(lambda request, wire: say(wire, b""), Limits(connections=2), Sweep(), clock=clock, wall=lambda: WALL)
    lines = [Line(front=front) for _ in range(3)]
    assert [line.statuses for line in lines] == [[], [], [503]]
    assert b"retry-after: 1\r\n" in lines[2].sent
    assert b"x-sits-error: overloaded\r\n" in lines[2].sent
    lines[2].protocol.connection_lost(None)
    lines[0].protocol.connection_lost(None)
    assert Line(front=front).sent == b""


def broken(request: Request, wire: Wire) -> None:
    if request.path == b"/late":
        wire.open(200, [])
    raise ZeroDivisionError


@inside_loop
async def test_a_handler_that_raises_is_a_500_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    line = Line(broken).feed(HEAD + b"\r\n")
    assert (line.status, line.ended) == (500, "close")
    assert b"x-sits-error: internal_error\r\n" in line.sent
    assert "ZeroDivisionError" in caplog.text
    (stack,) = [one for one in caplog.records if one.exc_info]
    id = stack.request_id  # type: ignore[attr-defined]
    assert f"x-request-id: {id}\r\n".encode() in line.sent
    assert f'its log has the details under request id {id}"'.encode() in line.sent
    again: Any = Line(broken, front=line.front).feed(HEAD + b"\r\n")
    assert again.status == 500, "and the process lives"


@inside_loop
async def test_a_handler_that_raises_in_mid_answer_cuts_it(caplog: pytest.LogCaptureFixture) -> None:
    line = Line(broken).feed(b"GET /late HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (line.status, line.ended) == (200, "abort")
    assert "ZeroDivisionError" in caplog.text
