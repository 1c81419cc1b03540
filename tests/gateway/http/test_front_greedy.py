"""Clients that ask and do not read, read slowly, or are sent what was never meant to be a header."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import pytest
from front_rig import DATE, HEAD, Line, answer, inside_loop, say, settle
from fronts import FRONTS, Producer, front_of, serving
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.gateway.http import protocol
from sits.gateway.http.front import LINGER_BYTES, STALL_SECONDS, TOLD, Front
from sits.gateway.wire import Request, Wire
from sits.inner.sweep import Sweep
from sits.resources.kinds import Limits

SECONDS = 20.0
MIB = 1024 * 1024
ASK = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


# Asking without reading


@inside_loop
async def test_while_answers_are_not_taken_the_next_requests_wait() -> None:
    line = Line(lambda request, wire: say(wire, request.path))
    line.protocol.pause_writing()
    line.feed(b"GET /1 HTTP/1.1\r\nHost: h\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\n\r\n", b"GET /3 HTTP/1.1\r\nHost: h\r\n\r\n")
    assert line.sent == b""
    line.protocol.resume_writing()
    assert (line.sent, line.ended) == (answer(b"/1") + answer(b"/2") + answer(b"/3"), "")
    assert line.after(STALL_SECONDS + 1).ended == "", "it is an ordinary idle connection again"


@inside_loop
async def test_a_pause_in_the_middle_of_the_queue_stops_it_there() -> None:
    def handler(request: Request, wire: Wire) -> None:
        say(wire, request.path)
        if request.path == b"/1":
            line.protocol.pause_writing()

    line = Line(handler)
    line.feed(b"GET /1 HTTP/1.1\r\nHost: h\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\n\r\nGET /3 HTTP/1.1\r\n\r\n")
    await settle()
    assert line.sent == answer(b"/1")
    line.protocol.resume_writing()
    assert line.sent.startswith(answer(b"/1") + answer(b"/2") + b"HTTP/1.1 400 ")


@inside_loop
async def test_asking_on_does_not_put_off_the_end_of_a_client_that_does_not_read() -> None:
    line = Line(lambda request, wire: say(wire, b"x"))
    line.protocol.pause_writing()
    for _ in range(int(STALL_SECONDS) - 1):
        line.after(1.0).feed(HEAD + b"\r\n")
        assert line.ended == ""
    assert line.after(1.0).ended == "abort"


def rss() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@inside_loop
async def test_a_client_that_only_asks_does_not_fill_the_memory() -> None:
    answered = 0
    large = b"x" * 100_000

    def handler(request: Request, wire: Wire) -> None:
        nonlocal answered
        answered += 1
        wire.respond(200, [], large)

    front = front_of(Producer())
    front.handler = handler
    async with serving("own", front) as port, asyncio.timeout(SECONDS):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setblocking(False)
        before, sent, refused = rss(), 0, 0
        while refused < 50:
            try:
                sent += sock.send(ASK * 500)
                refused = 0
            except BlockingIOError:
                refused += 1
            await asyncio.sleep(0.001)
        sock.close()
    # All of it would be 100 kB for each of the more than 1,000 requests sent; what the kernel holds is a few MiB.
    assert sent > 1000 * len(ASK)
    assert answered < 400
    assert rss() - before < 40 * MIB


# Reading slowly


def closing(line: Line) -> None:
    say(line.held[0][1], b"x")


def pausing(line: Line) -> None:
    line.protocol.pause_writing()


def hanging_up(line: Line) -> None:
    line.held[0][1].open(200, [])
    line.protocol.eof_received()


ENDS: dict[str, tuple[bytes, Callable[[Line], None]]] = {
    "while it is answered": (HEAD + b"\r\n", pausing),
    "after the last answer": (HEAD + b"Connection: close\r\n\r\n", closing),
    "after it has said that it will send no more": (HEAD + b"\r\n", hanging_up),
}


@pytest.mark.parametrize(("request_", "act"), ENDS.values(), ids=ENDS)
@inside_loop
async def test_a_client_that_takes_a_little_is_not_cut_and_one_that_takes_nothing_is(
    request_: bytes, act: Callable[[Line], None]
) -> None:
    line = Line().feed(request_)
    line.transport.unsent = 10_000_000
    act(line)
    for _ in range(5):
        line.transport.unsent -= 1000
        assert line.after(STALL_SECONDS + 1).ended in ("", "close")
    assert line.after(STALL_SECONDS + 1).ended == "abort"


@inside_loop
async def test_what_is_added_while_it_reads_does_not_hide_that_it_reads() -> None:
    line = Line().feed(HEAD + b"\r\n")
    _, wire = line.held[0]
    wire.open(200, [])
    line.transport.unsent = 70_000
    line.protocol.pause_writing()
    wire.write(b"x" * 50_000)
    line.transport.unsent += 50_000 - 1000
    assert line.after(STALL_SECONDS + 1).ended == ""
    assert line.after(STALL_SECONDS + 1).ended == "abort"


@inside_loop
async def test_on_a_socket_a_slow_steady_reader_gets_all_of_a_large_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "STALL_SECONDS", 1.0)
    large, step, now = b"y" * (8 * MIB), 0.02, 0.0
    front = front_of(Producer())
    front.clock = lambda: now  # goes on as the loop turns: a pause of this process is nobody's stall
    front.handler = lambda request, wire: wire.respond(200, [], large)

    async def tick() -> None:
        nonlocal now
        while True:
            now += step
            front.sweep.run(now)
            await asyncio.sleep(step)

    async with serving("own", front) as port, asyncio.timeout(SECONDS):
        ticking = asyncio.create_task(tick())
        loop = asyncio.get_running_loop()
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setblocking(False)
        await loop.sock_sendall(sock, ASK)
        got = 0
        while got < len(large):
            piece = await loop.sock_recv(sock, 64 * 1024)
            assert piece, f"cut after {got} bytes"
            got += len(piece)
            await asyncio.sleep(step)
        assert now > 2 * 1.0, "or it was not slow"
        sock.close()
        ticking.cancel()


@inside_loop
async def test_lingering_ends_by_bytes_too() -> None:
    line = Line().feed(b"GET / HTTP/1.1\r\n\r\n")
    assert line.ended == "eof"
    block = bytes(MIB)
    line.feed(*[block] * (LINGER_BYTES // MIB))
    assert line.ended == "eof"
    assert line.feed(b"x").ended == "abort"


@inside_loop
async def test_far_above_the_limit_connections_are_cut_without_a_word() -> None:
    front = Front(lambda request, wire: say(wire, b""), Limits(connections=2), Sweep())
    lines = [Line(front=front) for _ in range(2 + TOLD + 2)]
    told = [(b" 503 " in line.sent, line.ended) for line in lines]
    assert told == [(False, "")] * 2 + [(True, "eof")] * TOLD + [(False, "abort")] * 2


# Fields


@inside_loop
async def test_what_would_end_a_line_cannot_begin_a_field_of_its_own() -> None:
    def handler(request: Request, wire: Wire) -> None:
        wire.respond(200, [(b"x-a\r\nb", b"c\r\nset-cookie: d=e\n\r\n<html>\x00"), (b"x-f", "模型".encode())], b"ok")

    line = Line(handler).feed(HEAD + b"\r\n")
    fields = b"x-a  b: c  set-cookie: d=e   <html> \r\nx-f: " + "模型".encode()
    assert line.sent == b"HTTP/1.1 200 OK\r\n%b\r\ndate: %b\r\ncontent-length: 2\r\n\r\nok" % (fields, DATE)


@settings(max_examples=100, deadline=None)
@given(fields=st.lists(st.tuples(st.binary(min_size=1, max_size=8), st.binary(max_size=20)), max_size=5))
def test_a_head_has_as_many_lines_as_fields_whatever_they_are(fields: list[tuple[bytes, bytes]]) -> None:
    @inside_loop
    async def story() -> None:
        line = Line(lambda request, wire: wire.respond(200, fields, b"")).feed(HEAD + b"\r\n")
        assert line.sent.count(b"\n") == line.sent.count(b"\r") == line.sent.count(b"\r\n") == len(fields) + 4
        assert b"\x00" not in line.sent

    story()


@pytest.mark.parametrize("kind", FRONTS)
@inside_loop
async def test_no_front_lets_a_value_become_a_field(kind: str) -> None:
    front = front_of(Producer())
    front.handler = lambda request, wire: wire.respond(200, [(b"x-sits-served", b"m\r\nset-cookie: a=b")], b"ok")
    async with serving(kind, front) as port, asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        said = await reader.read(-1)
        writer.close()
    assert said.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"x-sits-served: m  set-cookie: a=b\r\n" in said
