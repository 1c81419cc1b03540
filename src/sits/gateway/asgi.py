"""The gateway as a plain ASGI 3 application, for servers other than our own protocol: HTTP/2 and HTTP/3 by hypercorn, tests.

The handler pushes; ASGI pulls. An `AsgiWire` queues what is pushed and the application's own coroutine sends it, with the
server's back-pressure turned into `on_pause` and `on_resume`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from sits.dialects import client
from sits.engines.base import Headers
from sits.gateway.http.front import Front
from sits.gateway.wire import Handler, Listener, Request
from sits.inner.errors import Code, SitsError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Hook = Callable[[], Awaitable[None]]

HIGH_WATER = 64 * 1024
"""Bytes pushed and not yet taken by the server from which on the producer is paused."""


class AsgiApp:
    """The application; our own protocol finds the short way by `front`."""

    def __init__(self, front: Front, startup: Hook | None = None, shutdown: Hook | None = None) -> None:
        self.front = front
        self._startup = startup
        self._shutdown = shutdown

    @property
    def handle(self) -> Handler:
        return self.front.handler

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        for hook, name in ((self._startup, "startup"), (self._shutdown, "shutdown")):
            await receive()
            try:
                if hook is not None:
                    await hook()
            except Exception as error:
                await send({"type": f"lifespan.{name}.failed", "message": str(error)})
                raise
            await send({"type": f"lifespan.{name}.complete"})

    async def _http(self, scope: Message, receive: Receive, send: Send) -> None:
        received = time.perf_counter()
        wire = AsgiWire(silent=scope["method"] == "HEAD")
        body = await self._body(receive)
        if body is None:
            return  # gone before it had asked
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        if len(body) > self.front.limits.body_bytes:
            error = SitsError(Code.TOO_LARGE, f"the body is larger than the {self.front.limits.body_bytes} bytes that are taken")
            dialect = client("messages") if path.startswith(b"/v1/messages") else client("chat")
            fields = [(b"content-type", b"application/json"), (b"x-sits-error", error.code.value.encode())]
            wire.respond(error.status, fields, dialect.error(error, ""))
            await wire.pump(send)
            return
        peer = scope.get("client")
        request = Request(
            scope["method"].encode(),
            path.partition(b"?")[0],
            scope.get("query_string", b""),
            _joined(scope["headers"]),
            body,
            peer[0] if peer else "",
            received,
        )
        watch = asyncio.get_running_loop().create_task(_watch(receive, wire))
        try:
            self.front.handler(request, wire)
            await wire.pump(send)
        finally:
            watch.cancel()
            wire.lose()

    async def _body(self, receive: Receive) -> bytes | None:
        """The whole body; as soon as it is over the limit, that much of it; None when the client has gone."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            piece = message.get("body", b"")
            parts.append(piece)
            size += len(piece)
            if not message.get("more_body") or size > self.front.limits.body_bytes:
                return b"".join(parts)


class AsgiWire:
    """A `Wire` whose pushes are sent by `pump`."""

    def __init__(self, *, silent: bool) -> None:
        self.gone = False
        self.listener: Listener | None = None
        self._silent = silent
        self._messages: deque[Message] = deque()
        self._size = 0
        self._paused = False
        self._done = False
        self._abort = False
        self._more = asyncio.Event()

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        fields = [*headers, (b"content-length", b"%d" % len(body))] if status not in (204, 304) else headers
        self._start(status, fields)
        self._push({"type": "http.response.body", "body": b"" if self._silent else body}, len(body))
        self._finish()

    def open(self, status: int, headers: Headers) -> None:
        self._start(status, headers)

    def write(self, piece: bytes) -> None:
        if piece and not self._silent and not self._done:
            self._push({"type": "http.response.body", "body": piece, "more_body": True}, len(piece))

    def close(self) -> None:
        if not self._done:
            self._push({"type": "http.response.body", "body": b""}, 0)
            self._finish()

    def abort(self) -> None:
        self._abort = True
        self._finish()

    def lose(self) -> None:
        """The client has gone, or what it asked for is sent."""
        if not self.gone:
            self.gone = True
            self._more.set()
            if not self._done and self.listener is not None:
                self.listener.on_gone()

    async def pump(self, send: Send) -> None:
        """Send what is pushed until the answer is complete or the client gone.

        Raises:
            ConnectionAbortedError: the answer was aborted; the server then cuts the connection.
        """
        while not self.gone:
            while self._messages and not self.gone:
                message = self._messages.popleft()
                self._size -= len(message.get("body", b""))
                await send(message)
                if self._paused and self._size < HIGH_WATER // 2:
                    self._paused = False
                    if self.listener is not None:
                        self.listener.on_resume()
            if self._abort:
                raise ConnectionAbortedError("the answer was cut short on purpose")
            if self._done and not self._messages:
                return
            self._more.clear()
            await self._more.wait()

    def _start(self, status: int, headers: Headers) -> None:
        self._push({"type": "http.response.start", "status": status, "headers": list(headers)}, 0)

    def _push(self, message: Message, size: int) -> None:
        if self.gone:
            return
        self._messages.append(message)
        self._size += size if message.get("body") else 0
        self._more.set()
        if not self._paused and self._size > HIGH_WATER:
            self._paused = True
            if self.listener is not None:
                self.listener.on_pause()

    def _finish(self) -> None:
        self._done = True
        self._more.set()


async def _watch(receive: Receive, wire: AsgiWire) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
    wire.lose()


def _joined(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Repeated fields joined (RFC 9110 5.3)."""
    out: dict[bytes, bytes] = {}
    for name, value in headers:
        name = name.lower()
        out[name] = out[name] + (b"; " if name == b"cookie" else b", ") + value if name in out else value
    return out
