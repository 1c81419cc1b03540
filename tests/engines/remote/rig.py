"""What the tests of the remote engine share: an engine whose sweep runs, and one loop of each kind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import uvloop

from sits.engines.base import Deadlines, Headers, Outgoing
from sits.engines.remote import AnswerLimits, RemoteEngine, parse_address
from sits.engines.remote.call import RemoteCall
from sits.engines.remote.connection import Connection
from sits.inner.errors import SitsError
from sits.inner.sweep import Sweep

_ENGINES: list[RemoteEngine] = []


def run(story: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop, as the service does, and see that no connection of an engine and no task is left.

    (uvloop hangs in `close` when a transport is open and warnings are errors.)
    """
    uvloop.run(_watched(story))


def run_on_asyncio(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(_watched(story))


async def _watched(story: Coroutine[Any, Any, None]) -> None:
    try:
        await story
    finally:
        for engine in _ENGINES:
            await engine.aclose()
        async with asyncio.timeout(60):
            while any(engine.connections for engine in _ENGINES):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        _ENGINES.clear()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for _ in range(3):  # transports that were aborted just now
            await asyncio.sleep(0)


def ticking() -> Sweep:
    """A sweep that runs every 10 ms for as long as the loop does."""
    sweep = Sweep()
    loop = asyncio.get_running_loop()

    def tick() -> None:
        sweep.run(time.monotonic())
        loop.call_later(0.01, tick)

    tick()
    return sweep


def remote(url: str, sweep: Sweep | None = None, **options: Any) -> RemoteEngine:
    engine = RemoteEngine(
        parse_address(url), loop=asyncio.get_running_loop(), sweep=ticking() if sweep is None else sweep, **options
    )
    _ENGINES.append(engine)
    return engine


class FakeTransport:
    """Where a connection writes in tests without a socket."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.reading = True
        self.closing = False
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Keeper:
    """The owner of a connection under test; remembers what it was asked to do."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.resent: list[RemoteCall] = []

    def release(self, connection: Connection) -> None:
        self.said.append("release")

    def forget(self, connection: Connection) -> None:
        self.said.append("forget")

    def resend(self, call: RemoteCall) -> None:
        self.said.append("resend")
        self.resent.append(call)

    def withdraw(self, call: RemoteCall) -> None: ...

    def overdue(self, call: RemoteCall, now: float) -> None: ...


class Bench:
    """One connection with everything around it replaced by something that remembers."""

    def __init__(self, limits: AnswerLimits | None = None) -> None:
        self.clock = Clock()
        self.keeper = Keeper()
        self.transport = FakeTransport()
        self.connection = Connection(self.keeper, "http://model", limits or AnswerLimits(), self.clock)
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def begin(
        self, method: bytes = b"POST", body: bytes = b"{}", deadlines: Deadlines | None = None, reused: bool = False
    ) -> tuple[Log, RemoteCall]:
        log = Log()
        request = Outgoing(method, b"/v1/x", [], body)
        call = RemoteCall(self.keeper, request, log, deadlines or Deadlines(), b"HEAD\r\n\r\n", self.clock.now)
        call.reused = reused
        self.connection.begin(call, self.clock.now)
        return log, call

    def feed(self, *pieces: bytes, eof: bool = False) -> None:
        """Deliver pieces as a transport would: nothing any more once it is aborted."""
        for piece in pieces:
            if piece and not self.transport.closing:
                self.connection.data_received(piece)
        if eof and not self.transport.closing:
            self.connection.eof_received()


class Log:
    """A `Reply` as a list, adjoining data joined."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def head(self, status: int, headers: Headers) -> None:
        self.events.append(("head", status, list(headers)))

    def data(self, piece: bytes) -> None:
        if self.events[-1][0] == "data":
            piece = self.events.pop()[1] + piece
        self.events.append(("data", piece))

    def end(self) -> None:
        self.events.append(("end",))

    def fail(self, error: SitsError) -> None:
        self.events.append(("fail", error.code.value, error.message))
