"""Faults in the gateway's own client: none changes nothing, and each is what it says, told as the engine's contract wants."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest

from sits.chaos.client_faults import ClientFault, ClientFaults, FaultyEngine
from sits.chaos.clock import SkewedClock
from sits.chaos.load import message
from sits.chaos.server import NumberedServer
from sits.engines.base import Deadlines, Outgoing
from sits.engines.checks import CHECKS, MakeEngine, Recorder
from sits.engines.remote import RemoteEngine, parse_address
from sits.inner.errors import Code
from sits.inner.sweep import Sweep
from sits.resources.experiments import Load

LIMITS = Deadlines(connect=30.0, headers=30.0, first_token=30.0, idle=30.0, total=60.0)
SHORT = Deadlines(connect=30.0, headers=1.0, first_token=1.0, idle=1.0, total=60.0)
"""For attempts that are to end by a deadline."""
BODY = message(Load("a", tokens=30))


@contextlib.contextmanager
def engines(faults: ClientFaults) -> Iterator[MakeEngine]:
    """Makes engines with the faults around them, their deadlines kept, on the running loop."""
    loop, sweep = asyncio.get_running_loop(), Sweep()
    timer: list[asyncio.TimerHandle] = []

    def tick() -> None:
        sweep.run(time.monotonic())
        timer[:] = [loop.call_later(0.01, tick)]

    def make(url: str) -> FaultyEngine:
        engine = FaultyEngine(RemoteEngine(parse_address(url), sweep=sweep, loop=loop), faults, loop)
        engine.models = frozenset(("a",))
        return engine

    tick()
    try:
        yield make
    finally:
        timer[0].cancel()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_without_a_fault_it_is_an_engine_like_the_one_inside(check: Callable[[MakeEngine], Awaitable[None]]) -> None:
    async def story() -> None:
        with engines(ClientFaults(time.monotonic)) as make:
            await check(make)

    asyncio.run(story())


def play(fault: ClientFault, story: Callable[[NumberedServer, FaultyEngine], Awaitable[None]]) -> None:
    async def whole() -> None:
        faults = ClientFaults(time.monotonic, seed=3)
        faults.set([fault], 60.0)
        async with asyncio.timeout(60), NumberedServer("a") as server:
            with engines(faults) as make:
                engine = make(server.url)
                assert isinstance(engine, FaultyEngine)
                await story(server, engine)
                await engine.aclose()

    asyncio.run(whole())


def sent(engine: FaultyEngine, limits: Deadlines = LIMITS) -> Recorder:
    recorder = Recorder()
    fields = [(b"content-type", b"application/json"), (b"x-lost", b"1")]
    engine.send(Outgoing(b"POST", b"/v1/chat/completions", fields, BODY, b"x-fixed: 1\r\n"), recorder, limits)
    assert recorder.status is None, "nothing may be told before send has returned"
    assert recorder.error is None
    return recorder


@pytest.mark.parametrize(
    ("fault", "code", "most"),
    [
        (ClientFault("refuse", "a"), Code.UPSTREAM_UNREACHABLE, 0),
        (ClientFault("reset", "a"), Code.UPSTREAM_BROKEN, 0),
        (ClientFault("reset", "a", at_byte=700), Code.UPSTREAM_BROKEN, 700),
        (ClientFault("stall", "a"), Code.UPSTREAM_TIMEOUT, 0),
        (ClientFault("stall", "a", at_byte=700), Code.UPSTREAM_TIMEOUT, 700),
        (ClientFault("latency", "a", ms=50_000), Code.UPSTREAM_TIMEOUT, 0),
    ],
    ids=["refuse", "reset", "reset mid-stream", "stall", "stall mid-stream", "later than the deadline"],
)
def test_a_fault_that_ends_an_attempt_is_an_error_of_the_contract(fault: ClientFault, code: Code, most: int) -> None:
    async def story(server: NumberedServer, engine: FaultyEngine) -> None:
        recorder = sent(engine, SHORT if code is Code.UPSTREAM_TIMEOUT else LIMITS)
        error = await recorder.failed(code)
        assert "a fault was injected" in error.message
        assert len(recorder.body) == most
        assert recorder.out_of_turn == []

    play(fault, story)


def test_an_error_is_answered_without_the_server() -> None:
    async def story(server: NumberedServer, engine: FaultyEngine) -> None:
        recorder = await sent(engine).over()
        assert (recorder.status, dict(recorder.headers)[b"retry-after"], recorder.ended) == (429, b"7", True)
        assert msgspec.json.decode(recorder.body)["error"]["code"] == "injected"
        assert server.figures.requests == 0

    play(ClientFault("error", "a", status=429, headers={"Retry-After": "7"}), story)


def test_a_truncated_answer_ends_properly_and_too_early() -> None:
    async def story(server: NumberedServer, engine: FaultyEngine) -> None:
        recorder = await sent(engine).over()
        assert (recorder.ended, len(recorder.body), recorder.out_of_turn) == (True, 900, [])

    play(ClientFault("truncate", "a", at_byte=900), story)


def test_garbage_is_one_broken_event_between_two_whole_ones() -> None:
    async def story(server: NumberedServer, engine: FaultyEngine) -> None:
        recorder = await sent(engine).over()
        events = recorder.body.split(b"\n\n")
        broken = [event for event in events if event and not event.endswith((b"}", b"[DONE]"))]
        assert broken == [b'data: {"choices": [{"oh']
        assert events[-2] == b"data: [DONE]"

    play(ClientFault("garbage", "a", at_byte=500), story)


@pytest.mark.parametrize("side", ["answers", "requests"])
def test_lost_header_fields_are_not_there_and_the_others_are(side: Any) -> None:
    async def story(server: NumberedServer, engine: FaultyEngine) -> None:
        recorder = await sent(engine).over()
        came, went = dict(recorder.headers), server.heads[0]
        assert (b"content-type" in came, b"cache-control" in came) == (side == "requests", True)
        assert ("x-lost" in went, "x-fixed" in went, "content-length" in went) == (side == "answers", side == "answers", True)

    play(ClientFault("header_loss", "a", names=("Content-Type", "X-Lost", "x-fixed"), side=side), story)


def test_a_late_answer_is_late_and_whole() -> None:
    async def story(server: NumberedServer, engine: FaultyEngine) -> None:
        began = time.monotonic()
        recorder = await sent(engine).succeeded()
        assert time.monotonic() - began >= 0.1
        assert recorder.body.endswith(b"data: [DONE]\n\n")

    play(ClientFault("latency", "a", ms=120, jitter_ms=20), story)


def test_a_cancelled_attempt_hears_nothing_more_whatever_the_fault() -> None:
    async def story(server: NumberedServer, engine: FaultyEngine) -> None:
        recorder = Recorder()
        engine.send(Outgoing(b"POST", b"/v1/chat/completions", [], BODY), recorder, LIMITS).cancel()
        await sent(engine, SHORT).failed(Code.UPSTREAM_TIMEOUT)
        assert (recorder.status, recorder.error) == (None, None)

    play(ClientFault("stall", "a"), story)


def test_faults_end_by_themselves_and_are_drawn_by_their_seed() -> None:
    now = [0.0]
    faults = ClientFaults(lambda: now[0])

    def drawn(seed: int) -> list[bool]:
        faults.set([ClientFault("refuse", "a", probability=0.5)], 10.0, seed)
        return [faults.draw(frozenset(("a", "b"))) is not None for _ in range(40)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert 5 < sum(drawn(1)) < 35
    assert faults.draw(frozenset(("b",))) is None
    now[0] = 10.0
    assert not any(faults.draw(frozenset(("a",))) for _ in range(40))


def test_a_clock_is_off_for_so_long_and_no_longer() -> None:
    now = [100.0]
    clock = SkewedClock(lambda: 1000.0 + now[0], lambda: now[0])
    clock.skew(-900.0, 5.0)
    assert clock.now() == 200.0
    now[0] = 105.0
    assert clock.now() == 1105.0
