from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rig import Clock, FakeTransport, Log

from sits.engines.base import Deadlines, Outgoing
from sits.engines.remote import AnswerLimits
from sits.engines.remote.call import RemoteCall
from sits.engines.remote.connection import Connection
from sits.engines.remote.pool import Pool, PoolLimits
from sits.inner.errors import Code, SitsError
from sits.inner.sweep import Sweep

HI = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
D = Deadlines(connect=5, headers=10, idle=5, total=30)


class Court:
    """A pool whose connections are made, fed and lost by the test."""

    def __init__(self, connections: int = 2, idle: int = 2, waiting: int = 3) -> None:
        self.clock = Clock()
        self.sweep = Sweep()
        self.dials: list[asyncio.Future[Connection]] = []
        self.made: list[tuple[Connection, FakeTransport]] = []
        self.calls: list[tuple[Log, RemoteCall]] = []
        limits = PoolLimits(connections, idle, idle_seconds=20, silent_seconds=4, waiting=waiting)
        self.pool = Pool("http://model", self._dial, limits, self.sweep, asyncio.get_running_loop(), self.clock)

    async def _dial(self) -> Connection:
        future: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self.dials.append(future)
        return await future

    async def settle(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    async def send(self) -> tuple[Log, RemoteCall]:
        log = Log()
        call = RemoteCall(self.pool, Outgoing(b"POST", b"/", [], b"{}"), log, D, b"", self.clock.now)
        self.calls.append((log, call))
        self.pool.carry(call, self.clock.now)
        await self.settle()
        return log, call

    def _pending(self) -> list[asyncio.Future[Connection]]:
        return [dial for dial in self.dials if not dial.done()]

    async def connect(self, which: int = 0) -> FakeTransport | None:
        pending = self._pending()
        if not pending:
            return None
        connection = Connection(self.pool, "http://model", AnswerLimits(), self.clock)
        transport = FakeTransport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        self.made.append((connection, transport))
        pending[which % len(pending)].set_result(connection)
        await self.settle()
        return transport

    async def refuse(self, which: int = 0) -> None:
        pending = self._pending()
        if pending:
            pending[which % len(pending)].set_exception(SitsError(Code.UPSTREAM_UNREACHABLE, "refused"))
        await self.settle()

    def _open(self) -> list[Connection]:
        return [connection for connection, transport in self.made if not transport.closing]

    async def answer(self, which: int = 0, wire: bytes = HI) -> None:
        if self._open():
            self._open()[which % len(self._open())].data_received(wire)
        await self.settle()

    async def lose(self, which: int = 0) -> None:
        if self._open():
            lost = self._open()[which % len(self._open())]
            next(transport for connection, transport in self.made if connection is lost).closing = True
            lost.connection_lost(None)
        await self.settle()

    async def cancel(self, which: int = 0) -> None:
        if self.calls:
            self.calls[which % len(self.calls)][1].cancel()
        await self.settle()

    async def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self.sweep.run(self.clock.now)
        await self.settle()


def story(tell: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        asyncio.run(tell())

    test.__name__ = tell.__name__
    return test


def ended(log: Log) -> str | None:
    return log.events[-1][0] if log.events else None


@story
async def test_the_connection_used_last_is_used_next() -> None:
    court = Court()
    await court.send()
    await court.send()
    first, second = await court.connect(), await court.connect()
    await court.answer(0)
    await court.answer(1)
    _, call = await court.send()
    assert first is not None
    assert second is not None
    assert (len(first.written), len(second.written)) == (1, 2)
    assert (call.reused, call.connect_time) == (True, 0.0)


@story
async def test_connect_time_is_that_of_the_connection_alone() -> None:
    court = Court(connections=1)
    await court.send()
    _, waited = await court.send()
    court.clock.now += 1
    await court.cancel(0)
    court.clock.now += 2
    await court.connect()
    assert (waited.connect_time, waited.reused, waited.started) == (2.0, False, True)


@story
async def test_who_waits_longest_is_carried_first() -> None:
    court = Court(connections=1)
    logs = [(await court.send())[0] for _ in range(4)]
    await court.connect()
    assert len(court.pool.waiting) == 3
    for done in range(1, 5):
        await court.answer()
        assert [ended(log) for log in logs] == ["end"] * done + [None] * (4 - done)
    assert court.pool.open == 1


@story
async def test_a_lost_connection_makes_room_for_who_waits() -> None:
    court = Court(connections=1)
    first, _ = await court.send()
    second, _ = await court.send()
    await court.connect()
    await court.lose()
    assert ended(first) == "fail"
    await court.connect()
    await court.answer()
    assert ended(second) == "end"


@story
async def test_a_refused_connection_makes_room_for_who_waits() -> None:
    court = Court(connections=1)
    first, call = await court.send()
    second, _ = await court.send()
    await court.refuse()
    assert first.events == [("fail", "upstream_unreachable", "refused")]
    assert call.started is False
    await court.connect()
    await court.answer()
    assert ended(second) == "end"


@story
async def test_a_full_queue_refuses_after_send_has_returned() -> None:
    court = Court(connections=1, waiting=1)
    await court.send()
    await court.send()
    log = Log()
    call = RemoteCall(court.pool, Outgoing(b"POST", b"/", [], b""), log, D, b"", court.clock.now)
    court.pool.carry(call, court.clock.now)
    assert log.events == []
    await court.settle()
    said = "http://model: all 1 connections are busy and 1 requests wait already"
    assert log.events == [("fail", "overloaded", said)]


@story
async def test_waiting_counts_into_the_connect_deadline() -> None:
    court = Court(connections=1)
    connecting, _ = await court.send()
    waiting, call = await court.send()
    await court.pass_time(4.9)
    assert (connecting.events, waiting.events) == ([], [])
    await court.pass_time(0.1)
    deadline = "http://model: the connect deadline of 5 s passed while"
    assert connecting.events == [("fail", "upstream_timeout", f"{deadline} connecting")]
    # The server had no part in it: our own limit kept this one waiting.
    assert waiting.events == [("fail", "overloaded", f"{deadline} waiting for one of 1 connections")]
    assert (call.started, court.pool.open, len(court.sweep)) == (False, 0, 0)


@story
async def test_an_idle_connection_goes_after_four_seconds_when_the_server_says_nothing() -> None:
    court = Court()
    await court.send()
    await court.connect()
    await court.answer()
    await court.pass_time(3.9)
    assert len(court.pool.idle) == 1
    await court.pass_time(0.1)
    assert (court.pool.idle, court.pool.open, len(court.sweep)) == ([], 0, 0)


@pytest.mark.parametrize(("hint", "kept"), [(15, 13.9), (3600, 19.9), (1, 0.0)])
def test_the_servers_own_idle_limit_is_kept_to_with_a_second_to_spare(hint: int, kept: float) -> None:
    async def tell() -> None:
        court = Court()
        await court.send()
        await court.connect()
        await court.answer(0, HI.replace(b"\r\n\r\n", b"\r\nkeep-alive: timeout=%d\r\n\r\n" % hint))
        await court.pass_time(kept)
        assert len(court.pool.idle) == (1 if kept else 0)
        await court.pass_time(0.2)
        assert court.pool.open == 0

    asyncio.run(tell())


@story
async def test_no_more_than_the_declared_number_stays_idle() -> None:
    court = Court(connections=3, idle=1)
    for _ in range(3):
        await court.send()
    for _ in range(3):
        await court.connect()
    for which in (0, 1, 1):
        await court.answer(which)
    assert (len(court.pool.idle), court.pool.open) == (1, 1)


@story
async def test_a_connection_that_is_closing_is_passed_over() -> None:
    court = Court()
    await court.send()
    transport = await court.connect()
    await court.answer()
    assert transport is not None
    transport.closing = True
    log, call = await court.send()
    await court.connect()
    assert (call.reused, call.started, ended(log)) == (False, True, None)


@story
async def test_a_connection_that_is_made_as_its_call_is_cancelled_serves_the_next() -> None:
    court = Court()
    log, call = await court.send()
    # Runs after the making is complete and before the pool hears of it.
    court.dials[0].add_done_callback(lambda _: call.cancel())
    await court.connect()
    assert (log.events, call.started, len(court.pool.idle), court.pool.open) == ([], False, 1, 1)
    _, next_call = await court.send()
    assert next_call.reused is True


@story
async def test_a_call_cancelled_before_its_task_has_begun_gives_its_place_back() -> None:
    court = Court(connections=1)
    call = RemoteCall(court.pool, Outgoing(b"POST", b"/", [], b""), Log(), D, b"", court.clock.now)
    court.pool.carry(call, court.clock.now)
    call.cancel()
    await court.settle()
    assert (court.dials, court.pool.open, len(court.sweep)) == ([], 0, 0)


@story
async def test_a_connection_that_is_gone_as_soon_as_it_is_made_is_broken() -> None:
    court = Court()
    log, call = await court.send()
    court.dials[0].add_done_callback(lambda _: court.made[0][0].connection_lost(None))
    await court.connect()
    assert log.events == [("fail", "upstream_broken", "http://model closed the connection as soon as it was made")]
    assert (call.started, court.pool.open, len(court.sweep)) == (False, 0, 0)


@story
async def test_a_closed_pool_carries_what_it_took_and_refuses_the_rest() -> None:
    court = Court(connections=1)
    running, _ = await court.send()
    waiting, _ = await court.send()
    await court.connect()
    court.pool.close()
    late, _ = await court.send()
    assert late.events == [("fail", "upstream_unreachable", "http://model is no longer in use by this gateway")]
    await court.answer()
    await court.answer()
    assert (ended(running), ended(waiting), court.pool.open, len(court.sweep)) == ("end", "end", 0, 0)


STEPS = {
    "send": lambda court, n: court.send(),
    "connect": lambda court, n: court.connect(n),
    "refuse": lambda court, n: court.refuse(n),
    "answer": lambda court, n: court.answer(n),
    "answer and close": lambda court, n: court.answer(n, HI.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")),
    "half an answer": lambda court, n: court.answer(n, HI[:-1]),
    "garbage": lambda court, n: court.answer(n, b"\0"),
    "lose": lambda court, n: court.lose(n),
    "cancel": lambda court, n: court.cancel(n),
    "time": lambda court, n: court.pass_time(n),
}


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 6)), max_size=40),
    closes=st.booleans(),
)
def test_nothing_leaks_whatever_happens(steps: list[tuple[str, int]], closes: bool) -> None:
    async def tell() -> None:
        court = Court()
        for name, number in steps:
            await STEPS[name](court, number)
            assert 0 <= len(court.pool.idle) <= court.pool.open <= 2
            assert len(court.pool.waiting) <= 3
            assert not (court.pool.waiting and court.pool.idle), "someone waits beside an idle connection"
        if closes:
            court.pool.close()
        for _ in range(12):
            await court.pass_time(31)
        assert (court.pool.open, court.pool.idle, len(court.pool.waiting), len(court.sweep)) == (0, [], 0, 0)
        for log, call in court.calls:
            assert (call.reply, call.carrier, call.task) == (None, None, None)
            assert [event[0] for event in log.events if event[0] in ("end", "fail")] in ([], ["end"], ["fail"])
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(tell())
