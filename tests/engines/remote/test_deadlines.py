"""Deadlines and flow on one connection, in virtual time."""

from __future__ import annotations

import pytest
from rig import Bench

from sits.engines.base import Deadlines
from sits.inner.sweep import NEVER, Sweep

CHUNKS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
HI = b"2\r\nhi\r\n"
D = Deadlines(connect=1, headers=10, idle=5, total=30)


def swept(bench: Bench) -> Sweep:
    sweep = Sweep()
    sweep.add(bench.connection)
    return sweep


def advance(bench: Bench, sweep: Sweep, seconds: float) -> None:
    bench.clock.now += seconds
    sweep.run(bench.clock.now)


def test_the_headers_deadline_names_itself_and_its_seconds() -> None:
    bench = Bench()
    sweep = swept(bench)
    log, _ = bench.begin(deadlines=D)
    advance(bench, sweep, 9.99)
    assert log.events == []
    advance(bench, sweep, 0.01)
    assert log.events == [("fail", "upstream_timeout", "http://model: the headers deadline of 10 s passed")]
    assert (bench.transport.aborted, bench.keeper.said) == (True, ["forget"])


def test_provisional_answers_do_not_move_the_headers_deadline() -> None:
    bench = Bench()
    sweep = swept(bench)
    log, _ = bench.begin(deadlines=D)
    advance(bench, sweep, 9)
    bench.feed(b"HTTP/1.1 100 Continue\r\n\r\n")
    advance(bench, sweep, 1)
    assert log.events == [("fail", "upstream_timeout", "http://model: the headers deadline of 10 s passed")]


def test_the_idle_deadline_starts_again_with_each_piece() -> None:
    bench = Bench()
    sweep = swept(bench)
    log, _ = bench.begin(deadlines=D)
    bench.feed(CHUNKS)
    for _ in range(3):
        advance(bench, sweep, 4.9)
        bench.feed(HI)
    advance(bench, sweep, 5)
    assert log.events[1:] == [
        ("data", b"hihihi"),
        ("fail", "upstream_timeout", "http://model: the idle deadline of 5 s passed"),
    ]


def test_the_total_deadline_stands_over_a_stream_that_flows() -> None:
    bench = Bench()
    sweep = swept(bench)
    log, _ = bench.begin(deadlines=D)
    bench.feed(CHUNKS)
    for _ in range(7):
        advance(bench, sweep, 4)
        bench.feed(HI)
    assert log.events[-1] == ("data", b"hi" * 7)
    advance(bench, sweep, 2)
    assert log.events[-1] == ("fail", "upstream_timeout", "http://model: the total deadline of 30 s passed")


def test_a_paused_call_has_only_the_total_deadline() -> None:
    bench = Bench()
    sweep = swept(bench)
    log, call = bench.begin(deadlines=D)
    bench.feed(CHUNKS)
    call.pause()
    call.pause()
    assert bench.transport.reading is False
    advance(bench, sweep, 20)
    call.resume()
    assert bench.transport.reading is True
    advance(bench, sweep, 4.9)
    assert log.events[1:] == []
    advance(bench, sweep, 0.1)
    assert log.events[1:] == [("fail", "upstream_timeout", "http://model: the idle deadline of 5 s passed")]
    call.resume()


def test_a_pause_that_lasts_ends_by_the_total_deadline() -> None:
    bench = Bench()
    sweep = swept(bench)
    log, call = bench.begin(deadlines=D)
    bench.feed(CHUNKS)
    call.pause()
    advance(bench, sweep, 30)
    assert log.events[1:] == [("fail", "upstream_timeout", "http://model: the total deadline of 30 s passed")]


def test_what_one_read_brought_is_delivered_in_spite_of_a_pause_and_the_connection_reads_on() -> None:
    bench = Bench()
    log, call = bench.begin(deadlines=D)
    told = log.head
    log.head = lambda status, headers: (told(status, headers), call.pause())[0]  # type: ignore[method-assign]
    bench.feed(CHUNKS + HI + b"0\r\n\r\n")
    assert log.events[1:] == [("data", b"hi"), ("end",)]
    assert (bench.transport.reading, bench.keeper.said) == (True, ["release"])


def test_a_call_paused_before_it_is_carried_is_paused_from_the_start() -> None:
    bench = Bench()
    _, call = bench.begin(deadlines=D)
    bench.feed(CHUNKS + b"0\r\n\r\n")
    call.pause()  # over: must not touch the connection
    assert bench.transport.reading is True


@pytest.mark.parametrize("when", ["head", "data"])
def test_a_receiver_may_cancel_from_within(when: str) -> None:
    bench = Bench()
    log, call = bench.begin(deadlines=D)
    if when == "head":
        log.head = lambda status, headers: call.cancel()  # type: ignore[method-assign]
    else:
        log.data = lambda piece: call.cancel()  # type: ignore[method-assign]
    bench.feed(CHUNKS + HI + b"0\r\n\r\n")
    assert [event[0] for event in log.events] == ([] if when == "head" else ["head"])
    assert (bench.transport.aborted, bench.keeper.said) == (True, ["forget"])


def test_an_idle_connection_ends_when_its_time_is_up() -> None:
    bench = Bench()
    sweep = swept(bench)
    assert bench.connection.due == NEVER
    bench.connection.due = bench.clock.now + 4
    advance(bench, sweep, 3.9)
    assert bench.transport.closing is False
    advance(bench, sweep, 0.1)
    assert (bench.transport.closing, bench.keeper.said) == (True, ["forget"])


# Large requests


def test_a_small_request_is_one_write() -> None:
    bench = Bench()
    bench.begin(body=b"x" * 256 * 1024)
    assert bench.transport.written == [b"HEAD\r\n\r\n" + b"x" * 256 * 1024]


def choking(bench: Bench) -> None:
    """The transport's buffer is full after each write, as a real one's is with pieces this large."""
    write = bench.transport.write

    def choked(data: bytes) -> None:
        write(data)
        bench.connection.pause_writing()

    bench.transport.write = choked  # type: ignore[method-assign]


def test_a_large_body_follows_the_transport() -> None:
    bench = Bench()
    choking(bench)
    body = bytes(range(256)) * 2500
    bench.begin(body=body)
    sizes = [len(bench.transport.written)]
    while len(bench.transport.written) < 4:
        bench.connection.resume_writing()
        sizes.append(len(bench.transport.written))
    assert sizes == [1, 2, 3, 4]
    assert b"".join(bench.transport.written) == b"HEAD\r\n\r\n" + body
    bench.connection.resume_writing()
    assert len(bench.transport.written) == 4


def test_an_early_refusal_stops_the_upload_and_ends_the_connection() -> None:
    bench = Bench()
    choking(bench)
    log, _ = bench.begin(body=b"x" * 1_000_000)
    bench.feed(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n")
    written = len(bench.transport.written)
    bench.connection.resume_writing()
    assert len(bench.transport.written) == written
    bench.feed(b"no")
    assert log.events == [("head", 413, [(b"content-length", b"2")]), ("data", b"no"), ("end",)]
    assert bench.keeper.said == ["forget"]


def test_an_answer_that_ends_before_the_upload_does_ends_the_connection() -> None:
    bench = Bench()
    choking(bench)
    log, _ = bench.begin(body=b"x" * 1_000_000)
    bench.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
    assert log.events[-1] == ("end",)
    assert bench.keeper.said == ["forget"]


# Sending again


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS"])
def test_an_idempotent_request_that_met_a_closing_connection_goes_again(method: bytes) -> None:
    bench = Bench()
    log, call = bench.begin(method, reused=True)
    bench.feed(eof=True)
    assert (log.events, bench.keeper.said, bench.keeper.resent) == ([], ["forget", "resend"], [call])
    assert (call.reused, call.started) == (False, True)


@pytest.mark.parametrize(
    ("method", "reused", "answered", "said"),
    [
        (b"POST", True, b"", "before it answered"),
        (b"PATCH", True, b"", "before it answered"),
        (b"GET", False, b"", "before it answered"),
        (b"GET", True, b"H", "within the head of its answer"),
        (b"GET", True, b"HTTP/1.1 100 Continue\r\n\r\n", "within the head of its answer"),
    ],
)
def test_what_may_have_been_processed_does_not_go_again(method: bytes, reused: bool, answered: bytes, said: str) -> None:
    bench = Bench()
    log, call = bench.begin(method, reused=reused)
    bench.feed(answered, eof=True)
    assert log.events == [("fail", "upstream_broken", f"http://model closed the connection {said}")]
    assert (bench.keeper.resent, call.started) == ([], True)


def test_a_request_goes_again_once_only() -> None:
    bench = Bench()
    log, call = bench.begin(b"GET", reused=True)
    call.resent = True
    bench.connection.connection_lost(ConnectionResetError(104, "reset by peer"))
    assert log.events == [
        ("fail", "upstream_broken", "http://model broke the connection ([Errno 104] reset by peer) before it answered")
    ]
