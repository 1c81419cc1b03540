"""The gateway as a plain ASGI 3 application, for servers other than our own protocol: HTTP/2 and HTTP/3 by hypercorn, tests.

The handler pushes; ASGI pulls. An `AsgiWire` queues what is pushed and the application's own coroutine sends it, with the
server's back-pressure turned into `on_pause` and `on_resume`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from sits.engines.base import Headers
from sits.gateway.http.front import Front
from sits.gateway.http.head import too_large
from sits.gateway.http.refusal import defected, refusal
from sits.gateway.wire import Handler, Listener, Request, harmless
from sits.inner.errors import SitsError

_log = logging.getLogger("sits.http")

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
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close"})  # before it is accepted: an HTTP 403

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
        front = self.front
        received = front.clock()
        headers = _joined(scope["headers"])
        wire = AsgiWire(silent=scope["method"] == "HEAD")
        path = (scope.get("raw_path") or scope["path"].encode()).partition(b"?")[0]
        try:
            body = await self._body(receive, headers.get(b"content-length", b""))
        except SitsError as error:
            wire.respond(error.status, *refusal(error, path, front.request_id(headers)))
            with contextlib.suppress(OSError):
                await wire.pump(send)
            return
        if body is None:
            return  # gone before it had asked
        peer = scope.get("client")
        method, query = scope["method"].encode(), scope.get("query_string", b"")
        request = Request(method, path, query, headers, body, peer[0] if peer else "", received)
        watch = asyncio.get_running_loop().create_task(_watch(receive, wire))
        try:
            self._handle(request, wire)
            with contextlib.suppress(OSError):  # the client has gone; `lose` below tells
                await wire.pump(send)
        finally:
            watch.cancel()
            wire.lose()
        if wire.aborted:
            raise ConnectionAbortedError("the answer was cut short on purpose")

    def _handle(self, request: Request, wire: AsgiWire) -> None:
        try:
            self.front.handler(request, wire)
        except Exception:
            request_id = self.front.request_id(request.headers)
            _log.exception("the handler raised", extra={"request_id": request_id})
            if wire.opened:
                wire.abort()
            else:
                wire.respond(*defected(request.path, request_id))

    async def _body(self, receive: Receive, length: bytes) -> bytes | None:
        """The whole body; None when the client has gone.

        Raises:
            SitsError: it is, or is said to be, over the limit; the rest of it is not read.
        """
        limits = self.front.limits
        if length.isdigit() and len(length) < 20 and int(length) > limits.body_bytes:
            raise too_large(limits, int(length))
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > limits.body_bytes:
                raise too_large(limits)
            if not message.get("more_body"):
                return bytes(body)


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
        self.opened = False
        self.aborted = False
        self._more = asyncio.Event()

    def respond(self, status: int, headers: Headers, body: bytes, lines: bytes = b"") -> None:
        if self.opened or self._done:
            return
        headers = [*headers, *_fields(lines)]
        fields = [*headers, (b"content-length", b"%d" % len(body))] if status not in (204, 304) else headers
        self._start(status, fields)
        self._push({"type": "http.response.body", "body": b"" if self._silent else body}, len(body))
        self._finish()

    def open(self, status: int, headers: Headers, first: bytes = b"", lines: bytes = b"") -> None:
        if self.opened or self._done:
            return
        self.opened = True
        self._start(status, [*headers, *_fields(lines)])
        self.write(first)

    def write(self, piece: bytes) -> None:
        if piece and not self._silent and not self._done:
            self._push({"type": "http.response.body", "body": piece, "more_body": True}, len(piece))

    def close(self, last: bytes = b"") -> None:
        if not self._done:
            body = b"" if self._silent else last
            self._push({"type": "http.response.body", "body": body}, len(body))
            self._finish()

    def abort(self) -> None:
        if not self._done:
            self.aborted = True
            self._finish()

    def lose(self) -> None:
        """The client has gone, or what it asked for is sent."""
        if not self.gone:
            self.gone = True
            self._more.set()
            if not self._done and self.listener is not None:
                self.listener.on_gone()

    async def pump(self, send: Send) -> None:
        """Send what is pushed until the answer is complete, aborted, or the client gone."""
        while not self.gone:
            while self._messages and not self.gone and not self.aborted:
                message = self._messages.popleft()
                self._size -= len(message.get("body", b""))
                await send(message)
                if self._paused and self._size < HIGH_WATER // 2:
                    self._paused = False
                    if self.listener is not None:
                        self.listener.on_resume()
            if self.aborted:
                return
            if self._done and not self._messages:
                return
            self._more.clear()
            await self._more.wait()

    def _start(self, status: int, headers: Headers) -> None:
        self._push({"type": "http.response.start", "status": status, "headers": harmless(headers)}, 0)

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


def _fields(lines: bytes) -> Headers:
    """Lines of `lines_of` taken apart again."""
    out = []
    for line in lines.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b": ")
        out.append((name, value))
    return out


def _joined(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Repeated fields joined (RFC 9110 5.3)."""
    out: dict[bytes, bytes] = {}
    for name, value in headers:
        name = name.lower()
        out[name] = out[name] + (b"; " if name == b"cookie" else b", ") + value if name in out else value
    return out
