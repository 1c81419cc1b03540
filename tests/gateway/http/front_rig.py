"""One connection of our own protocol without a socket: bytes in, bytes out, and a clock that stands still until it is set."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import uvloop

from sits.gateway.http.front import Front
from sits.gateway.http.protocol import HttpProtocol
from sits.gateway.wire import Handler, Request, Wire
from sits.inner.sweep import Sweep
from sits.resources.kinds import Limits

WALL = 784111777.0
DATE = b"Sun, 06 Nov 1994 08:49:37 GMT"
"""The example of RFC 9110 5.6.7."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
HEAD = b"POST /a?b=c HTTP/1.1\r\nHost: h\r\n"


def inside_loop(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on a loop of its own, of the kind that the service runs on."""

    @functools.wraps(story)
    def test(*args: Any, **kwargs: Any) -> None:
        uvloop.run(story(*args, **kwargs))

    return test


async def settle() -> None:
    """Let everything happen that was put off to the next turn of the loop."""
    for _ in range(20):
        await asyncio.sleep(0)


async def until(met: Callable[[], Any], seconds: float = 20.0) -> None:
    """Look again and again until it is so."""
    async with asyncio.timeout(seconds):
        while not met():  # noqa: ASYNC110 - what is looked at sends no event
            await asyncio.sleep(0.001)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeTransport:
    """What a protocol does to its transport, and what became of it."""

    def __init__(self) -> None:
        self.sent = b""
        self.writes: list[bytes] = []
        self.reading = True
        self.ended = ""
        """How our side ended: `eof`, `close` or `abort`; the last one counts."""
        self.unsent = 0
        """What the client has not taken yet."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.7", 4711) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def write(self, data: bytes) -> None:
        assert not self.ended, f"written after {self.ended}: {data!r}"
        self.writes.append(data)
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.ended in ("close", "abort")

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = "eof"

    def close(self) -> None:
        self.ended = "close"

    def abort(self) -> None:
        self.ended = "abort"

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True


class Ears:
    """A listener that remembers what it heard."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_gone(self) -> None:
        self.heard.append("gone")

    def on_pause(self) -> None:
        self.heard.append("pause")

    def on_resume(self) -> None:
        self.heard.append("resume")


def echo(request: Request, wire: Wire) -> None:
    """Answers at once with the request as it was understood."""
    wire.respond(200, [(b"content-type", b"text/plain")], b" ".join(shown(request)))


def shown(request: Request) -> Sequence[bytes]:
    return request.method, request.path, request.query, repr(sorted(request.headers.items())).encode(), request.body


def answer(body: bytes, status: bytes = b"200 OK", *more: bytes) -> bytes:
    """The exact bytes of a whole answer of `say` or `echo`."""
    fields = b"".join(b"%b\r\n" % one for one in more)
    head = b"HTTP/1.1 %b\r\ncontent-type: text/plain\r\ndate: %b\r\n%bcontent-length: %d\r\n\r\n"
    return head % (status, DATE, fields, len(body)) + body


def say(wire: Wire, body: bytes) -> None:
    wire.respond(200, [(b"content-type", b"text/plain")], body)


class Line:
    """A client connection. Without a handler, requests are held in `held` with the wires to answer them on."""

    def __init__(self, handler: Handler | None = None, limits: Limits | None = None, front: Front | None = None) -> None:
        self.held: list[tuple[Request, Any]] = []
        self.clock = Clock()
        if front is None:
            front = Front(
                handler or self._hold, limits or Limits(), Sweep(), clock=self.clock, wall=lambda: WALL, bits=lambda n: 1
            )
        self.front = front
        self.state: Any = SimpleNamespace(connections=set())
        config = SimpleNamespace(loaded_app=SimpleNamespace(front=front))
        self.protocol = HttpProtocol(config, self.state)
        self.transport = FakeTransport()
        self.protocol.connection_made(self.transport)  # type: ignore[arg-type]

    def _hold(self, request: Request, wire: Wire) -> None:
        ears = Ears()
        wire.listener = ears
        self.held.append((request, wire))

    def feed(self, *pieces: bytes) -> Line:
        for piece in pieces:
            if self.transport.reading and self.transport.ended in ("", "eof"):
                self.protocol.data_received(piece)
        return self

    @property
    def sent(self) -> bytes:
        return self.transport.sent

    @property
    def ended(self) -> str:
        return self.transport.ended

    @property
    def status(self) -> int:
        """Of the last answer."""
        return self.statuses[-1]

    @property
    def statuses(self) -> list[int]:
        return [int(one) for one in re.findall(rb"HTTP/1\.1 (\d{3}) \w", self.sent)]

    def after(self, seconds: float) -> Line:
        """Let the clock go on, and look for what is due."""
        self.clock.now += seconds
        self.front.sweep.run(self.clock.now)
        return self


def bytewise(wire: bytes) -> list[bytes]:
    return [wire[i : i + 1] for i in range(len(wire))]


def cut(wire: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(min(one, len(wire)) for one in cuts), len(wire)]
    return [piece for a, b in pairwise(edges) if (piece := wire[a:b])]
