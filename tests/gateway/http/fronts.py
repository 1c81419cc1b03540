"""Every front on a real socket, each with the same handler behind it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn

from sits.gateway.asgi import AsgiApp
from sits.gateway.http.front import Front
from sits.gateway.http.protocol import HttpProtocol
from sits.gateway.wire import Request, Wire
from sits.inner.sweep import Sweep
from sits.resources.kinds import Limits

FRONTS: dict[str, Any] = {"own": HttpProtocol, "h11": "h11", "httptools": "httptools"}
"""The name of a front and what uvicorn calls it."""
PIECE = b"0123456789abcdef" * 1024


class Quiet(uvicorn.Server):
    """Leaves the signals to the test run."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


class Producer:
    """Answers by path; a `/flood` pushes pieces whenever it may, until it is told to stop."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.wires: list[Wire] = []
        self.heard: list[str] = []
        self.told = asyncio.Event()
        """Something was heard."""
        self.pushed = 0
        self.most = 1 << 62
        self._flowing = False

    def __call__(self, request: Request, wire: Wire) -> None:
        self.requests.append(request)
        self.wires.append(wire)
        wire.listener = self
        kind = [(b"content-type", b"text/plain")]
        if request.path == b"/whole":
            wire.respond(200, kind, request.method + b" " + request.query + b" " + request.body)
        elif request.path == b"/later":
            asyncio.get_running_loop().call_soon(wire.respond, 201, kind, request.body)
        elif request.path == b"/empty":
            wire.respond(204, [], b"")
        elif request.path == b"/stream":
            wire.open(200, kind)
            for piece in (b"one ", b"", "二 ".encode(), b"three"):
                wire.write(piece)
            wire.close()
        elif request.path == b"/cut":
            wire.open(200, kind)
            wire.write(b"half")
            asyncio.get_running_loop().call_soon(wire.abort)
        elif request.path == b"/broken":
            raise ZeroDivisionError
        elif request.path == b"/flood":
            wire.open(200, kind)
            self._flowing = True
            self._push()

    def _push(self) -> None:
        """Eight pieces a turn, as a model server would send them."""
        for _ in range(8):
            if self._flowing and self.pushed < self.most:
                self.pushed += len(PIECE)
                self.wires[-1].write(PIECE)
        if self.pushed >= self.most:
            self._flowing = False
            self.wires[-1].close()
        elif self._flowing:
            asyncio.get_running_loop().call_soon(self._push)

    def on_gone(self) -> None:
        self._flowing = False
        self._hear("gone")

    def on_pause(self) -> None:
        self._flowing = False
        self._hear("pause")

    def on_resume(self) -> None:
        self._hear("resume")
        self._flowing = True
        self._push()

    def _hear(self, what: str) -> None:
        self.heard.append(what)
        self.told.set()


def front_of(producer: Producer, limits: Limits | None = None) -> Front:
    return Front(producer, limits or Limits(body_bytes=100_000), Sweep())


@contextlib.asynccontextmanager
async def serving(kind: str, front: Front) -> AsyncIterator[int]:
    """That front on a free port of loopback."""
    sock = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        AsgiApp(front),
        http=FRONTS[kind],
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
    )
    server = Quiet(config)
    task = asyncio.create_task(server.serve([sock]))
    try:
        while not server.started:
            await asyncio.sleep(0.001)
            assert not task.done()
        yield sock.getsockname()[1]
    finally:
        server.force_exit = server.should_exit = True
        await task
        sock.close()
