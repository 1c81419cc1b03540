"""The life of a connection: deadlines on a clock that we move, clients that go, back-pressure, and the end."""

from __future__ import annotations

import gc

import pytest
from front_rig import CONTINUE, HEAD, Line, answer, echo, inside_loop, say, settle

from sits.gateway.http.front import LINGER_IDLE_SECONDS, LINGER_SECONDS, STALL_SECONDS
from sits.gateway.http.protocol import HttpProtocol
from sits.resources.kinds import Limits

LIMITS = Limits(header_seconds=10.0, body_seconds=20.0, keep_alive_seconds=75.0, body_bytes=100)
REFUSED = b"GET / HTTP/1.1\r\n\r\n"


# Slow clients


@inside_loop
async def test_slow_headers_are_408_counted_from_their_first_byte() -> None:
    line = Line(limits=LIMITS).feed(b"GET /")
    for _ in range(9):
        line.after(1.0).feed(b"x")
    assert line.sent == b""
    line.after(1.0)
    assert (line.status, line.ended) == (408, "eof")
    assert b"x-sits-error: request_timeout\r\n" in line.sent


@inside_loop
async def test_a_slow_body_is_408_counted_from_its_last_piece() -> None:
    line = Line(limits=LIMITS).feed(HEAD + b"Content-Length: 50\r\n\r\n")
    for _ in range(5):
        line.after(19.0).feed(b"x")
    assert line.sent == b""
    line.after(20.0)
    assert (line.status, line.ended, line.held) == (408, "eof", [])


@inside_loop
async def test_a_client_that_never_sends_the_body_it_was_told_to_is_408() -> None:
    line = Line(limits=LIMITS).feed(HEAD + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n").after(20.0)
    assert line.sent.startswith(CONTINUE + b"HTTP/1.1 408 ")


@pytest.mark.parametrize("before", [b"", HEAD + b"\r\n", b"\r\n"], ids=["new", "used", "after an empty line"])
@inside_loop
async def test_an_idle_connection_closes_without_a_word(before: bytes) -> None:
    line = Line(echo, LIMITS).feed(before)
    said = line.sent
    assert line.after(74.9).ended == ""
    assert (line.after(0.2).ended, line.sent) == ("close", said)


@inside_loop
async def test_a_model_may_take_its_time() -> None:
    line = Line(limits=LIMITS).feed(HEAD + b"\r\n").after(10_000.0)
    assert line.ended == ""
    say(line.held[0][1], b"at last")
    assert line.sent == answer(b"at last")
    assert line.after(74.9).ended == ""


@inside_loop
async def test_a_half_sent_request_behind_a_slow_answer_gets_its_time_from_then_on() -> None:
    line = Line(limits=LIMITS).feed(HEAD + b"\r\n" + HEAD).after(1000.0)
    say(line.held[0][1], b"")
    assert line.after(9.9).ended == ""
    assert (line.after(0.2).status, line.ended) == (408, "eof")


@inside_loop
async def test_a_refused_client_lingers_while_it_sends_and_not_for_ever() -> None:
    line = Line(limits=LIMITS).feed(REFUSED)
    assert line.ended == "eof"
    for _ in range(int(LINGER_SECONDS / 4)):
        line.after(4.0).feed(b"x" * 1000)
        assert line.ended == "eof"
    line.after(4.0)
    assert line.ended == "abort"


@inside_loop
async def test_a_refused_client_that_falls_silent_is_cut_sooner() -> None:
    line = Line().feed(REFUSED)
    assert line.after(LINGER_IDLE_SECONDS - 0.1).ended == "eof"
    assert line.after(0.2).ended == "abort"


# Clients that do not read


@inside_loop
async def test_pause_and_resume_reach_whoever_answers() -> None:
    line = Line().feed(HEAD + b"\r\n")
    _, wire = line.held[0]
    wire.open(200, [])
    line.protocol.pause_writing()
    line.protocol.resume_writing()
    assert wire.listener.heard == ["pause", "resume"]
    assert line.after(10_000.0).ended == ""


@inside_loop
async def test_a_client_that_reads_nothing_is_cut() -> None:
    line = Line().feed(HEAD + b"\r\n")
    _, wire = line.held[0]
    wire.open(200, [])
    line.protocol.pause_writing()
    assert line.after(STALL_SECONDS - 0.1).ended == ""
    assert line.after(0.2).ended == "abort"
    line.protocol.connection_lost(None)
    assert wire.listener.heard == ["pause", "gone"]


@inside_loop
async def test_a_client_that_does_not_take_its_last_answer_is_cut() -> None:
    line = Line().feed(HEAD + b"Connection: close\r\n\r\n")
    say(line.held[0][1], b"x" * 100)
    assert line.after(STALL_SECONDS - 0.1).ended == "close"
    assert line.after(0.2).ended == "abort"


@inside_loop
async def test_a_client_that_does_not_take_a_whole_answer_is_cut_even_if_it_sends_more() -> None:
    line = Line().feed(HEAD + b"\r\n")
    line.protocol.pause_writing()
    say(line.held[0][1], b"x")
    line.after(STALL_SECONDS - 0.1).feed(b"POST / ")
    assert line.ended == ""
    assert line.after(0.2).ended == "abort"


@inside_loop
async def test_pausing_does_not_stretch_the_lingering() -> None:
    line = Line().feed(REFUSED)
    line.protocol.pause_writing()
    line.protocol.resume_writing()
    assert line.after(LINGER_IDLE_SECONDS + 0.1).ended == "abort"


@inside_loop
async def test_a_client_that_has_ended_its_side_and_takes_nothing_is_cut() -> None:
    line = Line().feed(HEAD + b"\r\n")
    say(line.held[0][1], b"x")
    line.transport.unsent = 1000
    line.protocol.eof_received()
    assert line.after(STALL_SECONDS - 0.1).ended == ""
    assert line.after(0.2).ended == "abort"


# Clients that go


@pytest.mark.parametrize("way", ["eof", "reset", "eof and then lost"])
@inside_loop
async def test_a_client_that_goes_is_told_once_and_at_once(way: str) -> None:
    line = Line().feed(HEAD + b"\r\n" + HEAD + b"\r\n")
    _, wire = line.held[0]
    wire.open(200, [])
    if way != "reset":
        assert line.protocol.eof_received() is False, "the transport then closes itself"
        assert (wire.listener.heard, wire.gone) == (["gone"], True)
    if way != "eof":
        line.protocol.connection_lost(ConnectionResetError() if way == "reset" else None)
    assert (wire.listener.heard, wire.gone) == (["gone"], True)
    said = line.sent
    wire.write(b"x")
    wire.close()
    wire.abort()
    await settle()
    assert (line.sent, len(line.held)) == (said, 1)


@inside_loop
async def test_a_client_that_goes_after_its_answer_is_no_news() -> None:
    line = Line().feed(HEAD + b"\r\n")
    _, wire = line.held[0]
    say(wire, b"")
    line.protocol.eof_received()
    line.protocol.connection_lost(None)
    assert (wire.listener.heard, wire.gone) == ([], False)


@inside_loop
async def test_a_lost_connection_leaves_nothing_behind() -> None:
    line = Line(echo).feed(HEAD + b"Content-Length: 99\r\n\r\nhalf")
    assert (len(line.front.connections), len(line.front.sweep), len(line.state.connections)) == (1, 1, 1)
    line.protocol.connection_lost(None)
    assert (len(line.front.connections), len(line.front.sweep), len(line.state.connections)) == (0, 0, 0)
    gc.collect()
    gc.disable()
    try:
        before = living()
        del line
        assert living() == before - 1, "freed without the collector"
    finally:
        gc.enable()


def living() -> int:
    return sum(type(one) is HttpProtocol for one in gc.get_objects())


# The end


@inside_loop
async def test_draining_closes_idle_connections_at_once() -> None:
    line = Line(echo).feed(HEAD + b"\r\n")
    line.front.drain()
    assert line.ended == "close"


@pytest.mark.parametrize("begun", [False, True], ids=["not begun", "begun"])
@inside_loop
async def test_draining_lets_an_answer_finish_and_then_closes(begun: bool) -> None:
    line = Line().feed(HEAD + b"\r\n")
    _, wire = line.held[0]
    if begun:
        wire.open(200, [])
        wire.write(b"half")
    line.front.drain()
    assert line.ended == ""
    if begun:
        wire.write(b"rest")
        wire.close()
        assert line.sent.endswith(b"4\r\nhalf\r\n4\r\nrest\r\n0\r\n\r\n")
    else:
        say(wire, b"ok")
        assert line.sent == answer(b"ok", b"200 OK", b"connection: close")
    assert line.ended == "close"


@inside_loop
async def test_draining_serves_a_request_that_has_begun() -> None:
    line = Line(lambda request, wire: say(wire, request.body)).feed(HEAD + b"Content-Length: 2\r\n\r\nh")
    line.front.drain()
    assert line.ended == ""
    line.feed(b"i")
    assert (line.sent, line.ended) == (answer(b"hi", b"200 OK", b"connection: close"), "close")


@inside_loop
async def test_draining_leaves_a_lingering_connection_to_its_own_end() -> None:
    line = Line().feed(REFUSED)
    line.front.drain()
    assert line.ended == "eof"


@inside_loop
async def test_new_limits_hold_for_the_requests_that_begin_afterwards() -> None:
    line = Line(echo, LIMITS).feed(HEAD + b"Content-Length: 50\r\n\r\n")
    line.front.limits = Limits(body_bytes=10)
    line.feed(b"x" * 50)
    assert line.status == 200
    line.feed(HEAD + b"Content-Length: 50\r\n\r\n")
    assert line.status == 413
