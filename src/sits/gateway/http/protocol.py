"""HTTP/1.1 for clients: bytes to requests, in order, within limits (RFC 9110, RFC 9112).

llhttp (by httptools) reads; what it lets pass and the RFCs do not is refused here. One packet may hold several requests:
they are queued and answered one after the other. A refusal is queued like a request, so that it never overtakes an answer;
after it the connection lingers, reading and dropping, so that a client that is still sending can read why it was refused.

A client that closes its side while its answer is pending counts as gone, as with most servers: half-closed clients cannot be
told from departed ones, and a model that answers nobody costs money.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, cast

import httptools

from sits.dialects import client
from sits.gateway.http.answer import HttpWire
from sits.gateway.http.front import FIELDS, FRAMING_BYTES, LINGER_IDLE_SECONDS, LINGER_SECONDS, STALL_SECONDS, TARGET_BYTES, Front
from sits.gateway.wire import Request
from sits.inner.errors import Code, SitsError
from sits.inner.sweep import NEVER
from sits.resources.kinds import Limits

_log = logging.getLogger("sits.http")

_HIGH_WATER = 64 * 1024
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class _Refused(Exception):
    """Stops the parser; the refusal itself is already queued."""


class HttpProtocol(asyncio.Protocol):
    """One client connection. Made by uvicorn as its `http` class; `config.loaded_app.front` is what it shares."""

    __slots__ = (
        "_answering", "_body", "_continue", "_deaf", "_dropping", "_fields", "_head_bytes", "_headers", "_in_body", "_in_head",
        "_limits", "_linger_end", "_parser", "_paused", "_peer", "_queue", "_reading_paused", "_received", "_size", "_state",
        "_target", "_transport", "_wire_bytes", "due", "front",
    )  # fmt: skip

    def __init__(
        self,
        config: Any,
        server_state: Any,
        app_state: dict[str, Any] | None = None,
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.front: Front = config.loaded_app.front
        self._state = server_state.connections
        self._transport: asyncio.Transport = None  # type: ignore[assignment] # set by connection_made, before anything else
        self._parser = httptools.HttpRequestParser(self)
        self._limits: Limits = self.front.limits
        self._peer = ""
        self._answering: HttpWire | None = None
        self._queue: deque[tuple[Request, HttpWire] | SitsError] = deque()
        self._received = 0.0
        self._head_bytes = 0
        self._wire_bytes = 0
        self._in_head = False
        self._in_body = False
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._fields = 0
        self._body: list[bytes] = []
        self._size = 0
        self._continue = False
        self._deaf = False
        """Something was refused: what follows is not read any more."""
        self._dropping = False
        self._linger_end = NEVER
        self._paused = False
        self._reading_paused = False
        self.due = NEVER

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        front = self.front
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_HIGH_WATER)
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) else ""
        self._state.add(self)
        front.connections.add(self)
        front.sweep.add(self)
        self.due = front.clock() + front.limits.keep_alive_seconds
        if len(front.connections) > front.limits.connections:
            self._refuse(SitsError(Code.OVERLOADED, "too many connections; try again", retry_after=1))
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        self.due = NEVER
        self.front.sweep.discard(self)
        self.front.connections.discard(self)
        self._state.discard(self)
        self._dropping = True
        self._queue.clear()
        answering, self._answering = self._answering, None
        if answering is not None:
            answering.lose()

    def eof_received(self) -> bool:
        if self._answering is not None:
            self._answering.lose()
        return False

    def data_received(self, data: bytes) -> None:
        now = self.front.clock()
        if self._dropping:
            self.due = min(self._linger_end, now + LINGER_IDLE_SECONDS)
            return
        if self._deaf:
            return
        if not self._in_head and not self._in_body:
            self._received = now
        try:
            self._feed(data)
        except _Refused:
            self._deaf = True
        if self._answering is None:
            self._next()
        if self._dropping or self._transport.is_closing():
            return
        if self._queue and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
        if self._answering is not None:
            return
        if self._in_head:
            self.due = self._received + self._limits.header_seconds
        elif self._in_body:
            self.due = now + self._limits.body_seconds

    def pause_writing(self) -> None:
        self._paused = True
        self.due = self.front.clock() + STALL_SECONDS
        if self._answering is not None and self._answering.listener is not None:
            self._answering.listener.on_pause()

    def resume_writing(self) -> None:
        self._paused = False
        if self._answering is None:
            self.due = self.front.clock() + self._limits.keep_alive_seconds
            return
        self.due = NEVER
        if self._answering.listener is not None:
            self._answering.listener.on_resume()

    # The parser

    def _feed(self, data: bytes) -> None:
        """Parse; what is wrong is queued as a refusal.

        Raises:
            _Refused: it was, and nothing after it is read.
        """
        while data:
            in_head, in_body = self._in_head, self._in_body
            try:
                self._parser.feed_data(data)
                rest = b""
            except httptools.HttpParserUpgrade as upgrade:
                # No protocol is switched to: what follows is another HTTP/1.1 request (RFC 9110 7.8).
                self._parser = httptools.HttpRequestParser(self)
                rest = data[upgrade.args[0] :]
            except httptools.HttpParserCallbackError as error:
                if isinstance(error.__context__, _Refused):
                    raise _Refused from None
                raise
            except httptools.HttpParserError as error:
                self._misread(data, error)
                raise _Refused from None
            # A field that never ends is kept by the parser, and chunk extensions and trailers count as no body.
            if in_head and self._in_head:
                self._head_bytes += len(data)
                if self._head_bytes > self._limits.header_bytes + TARGET_BYTES:
                    self._stop(self._too_long())
            elif in_body and self._in_body:
                self._wire_bytes += len(data)
                if self._wire_bytes > 16 * self._size + FRAMING_BYTES:
                    self._stop(SitsError(Code.INVALID_REQUEST, "the body is almost only chunk framing"))
            data = rest

    def _misread(self, data: bytes, error: Exception) -> None:
        said = str(error) or type(error).__name__
        if not self._in_head and data.startswith(b"PRI * HTTP/2"):
            self._refuse(SitsError(Code.INVALID_REQUEST, "this port speaks HTTP/1.1, not HTTP/2", status=505))
        elif "Invalid HTTP version" in said:
            self._refuse(SitsError(Code.INVALID_REQUEST, "only HTTP/1.0 and HTTP/1.1 are spoken here", status=505))
        elif said == "Data after `Connection: close`":
            return
        elif isinstance(error, httptools.HttpParserInvalidMethodError):
            self._refuse(SitsError(Code.METHOD_NOT_ALLOWED, "this is no method of HTTP", status=501))
        else:
            self._refuse(SitsError(Code.INVALID_REQUEST, f"this is not HTTP as RFC 9112 has it: {said}"))

    def on_message_begin(self) -> None:
        self._in_head = True
        self._target = b""
        self._headers = {}
        self._fields = 0
        self._body = []
        self._size = 0
        self._head_bytes = 0
        self._wire_bytes = 0
        self._limits = self.front.limits

    def on_url(self, url: bytes) -> None:
        self._target += url
        if len(self._target) > TARGET_BYTES:
            self._refuse(SitsError(Code.INVALID_REQUEST, f"the request target is longer than {TARGET_BYTES} bytes", status=414))
            raise _Refused

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # A trailer: it may not pass for a header (RFC 9110 6.5.1).
        headers = self._headers
        name = name.lower()
        self._fields += 1
        if name in headers:
            value = self._joined(name, value)
        headers[name] = value

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._in_body = True
        headers, limits = self._headers, self._limits
        size = sum(map(len, headers)) + sum(map(len, headers.values())) + 4 * self._fields
        if size > limits.header_bytes or self._fields > FIELDS:
            self._stop(self._too_long())
        old = self._parser.get_http_version() == "1.0"
        if b"host" not in headers and not old:
            self._stop(SitsError(Code.INVALID_REQUEST, "the Host field is missing (RFC 9112 3.2)"))
        length = headers.get(b"content-length")
        if length is not None and int(length) > limits.body_bytes:
            self._stop(self._too_large(int(length)))
        coding = headers.get(b"transfer-encoding")
        if coding is not None:
            if old:
                self._stop(SitsError(Code.INVALID_REQUEST, "HTTP/1.0 has no Transfer-Encoding (RFC 9112 6.1)"))
            if coding.strip().lower() != b"chunked":
                self._stop(SitsError(Code.UNSUPPORTED_MEDIA, "the only transfer coding that is read is chunked", status=501))
        if self._parser.get_method() == b"CONNECT":
            self._stop(SitsError(Code.METHOD_NOT_ALLOWED, "this is no proxy: CONNECT is not done", status=501))
        expect = headers.get(b"expect")
        if expect is not None:
            if expect.strip().lower() != b"100-continue":
                self._stop(SitsError(Code.INVALID_REQUEST, "the only expectation that is met is 100-continue", status=417))
            # A 100 must not overtake the answers before it (RFC 9110 10.1.1).
            if not old:
                self._continue = self._answering is not None or bool(self._queue)
                if not self._continue:
                    self._transport.write(_CONTINUE)

    def on_body(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limits.body_bytes:
            self._stop(self._too_large(None))
        self._body.append(piece)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._continue = False
        parser, body = self._parser, self._body
        method = parser.get_method()
        path, _, query = self._target.partition(b"?")
        if not path.startswith(b"/"):
            path = _origin_form(path)
        whole = body[0] if len(body) == 1 else b"".join(body)
        self._body = []
        request = Request(method, path, query, self._headers, whole, self._peer, self._received)
        chunked = parser.get_http_version() != "1.0"
        wire = HttpWire(self, keep=parser.should_keep_alive(), silent=method == b"HEAD", chunked=chunked)
        self._queue.append((request, wire))
        # What follows in the same packet arrived at this moment, not before.
        self._received = self.front.clock() if self._answering is not None or len(self._queue) > 1 else self._received

    def _joined(self, name: bytes, value: bytes) -> bytes:
        if name == b"host":
            self._stop(SitsError(Code.INVALID_REQUEST, "the Host field comes twice (RFC 9112 3.2)"))
        return self._headers[name] + (b"; " if name == b"cookie" else b", ") + value

    # Order

    def _stop(self, error: SitsError) -> None:
        self._refuse(error)
        raise _Refused

    def _refuse(self, error: SitsError) -> None:
        """Queue a refusal: it is told when everything before it is answered, and ends the connection."""
        self._in_head = self._in_body = False
        self._queue.append(error)

    def _next(self) -> None:
        """Take requests from the queue until one is not answered at once."""
        queue = self._queue
        while queue and self._answering is None and not self._dropping:
            item = queue.popleft()
            if isinstance(item, SitsError):
                self._turn_away(item)
                return
            request, wire = item
            self._answering = wire
            self.due = NEVER
            try:
                self.front.handler(request, wire)
            except Exception:
                _log.exception("the handler raised")
                wire.keep = False
                wire.respond(500, [(b"content-type", b"application/json")], self._body_of(SitsError(Code.INTERNAL, "a defect")))

    def answered(self, wire: HttpWire) -> None:
        """The answer is complete: go on with what is queued, or wait for more."""
        self._answering = None
        transport = self._transport
        if not wire.keep:
            self._dropping = True
            self._queue.clear()
            transport.close()
            return
        if self._queue:
            asyncio.get_running_loop().call_soon(self._go_on)
            return
        self._resume_reading()
        now = self.front.clock()
        if self._continue:
            self._continue = False
            transport.write(_CONTINUE)
        if self._in_head:
            self.due = now + self._limits.header_seconds
        elif self._in_body:
            self.due = now + self._limits.body_seconds
        else:
            self.due = now + (STALL_SECONDS if self._paused else self._limits.keep_alive_seconds)

    def _go_on(self) -> None:
        self._next()
        if self._answering is None and not self._queue:
            self._resume_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    def put(self, data: bytes) -> None:
        self._transport.write(data)

    def cut(self) -> None:
        self._answering = None
        self._transport.abort()

    # Ends

    def _turn_away(self, error: SitsError) -> None:
        """Say why, close our side, and read on without listening for a while."""
        body = self._body_of(error)
        wire = HttpWire(self, keep=False, silent=False, chunked=True)
        headers = [(b"content-type", b"application/json"), (b"x-sits-error", error.code.value.encode())]
        if error.retry_after is not None:
            headers.append((b"retry-after", b"%d" % error.retry_after))
        wire.linger(error.status, headers, body)
        self._dropping = True
        self._resume_reading()
        now = self.front.clock()
        self._linger_end = now + LINGER_SECONDS
        self.due = now + LINGER_IDLE_SECONDS
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _body_of(self, error: SitsError) -> bytes:
        dialect = client("messages") if self._target.startswith(b"/v1/messages") else client("chat")
        return dialect.error(error, "")

    def _too_large(self, length: int | None) -> SitsError:
        size = "the body" if length is None else f"the body of {length} bytes"
        return SitsError(Code.TOO_LARGE, f"{size} is larger than the {self._limits.body_bytes} bytes that are taken")

    def _too_long(self) -> SitsError:
        message = f"the header is larger than {self._limits.header_bytes} bytes or {FIELDS} fields"
        return SitsError(Code.HEADERS_TOO_LARGE, message)

    def shutdown(self) -> None:
        """The end has begun: an idle connection closes now, a busy one after its answer."""
        if self._answering is not None:
            self._answering.keep = False
        elif not self._in_head and not self._in_body and not self._queue:
            self._transport.close()

    def expire(self, now: float) -> None:
        """A deadline has passed: slow requests are told, idle, stalled and lingering connections just end."""
        self.due = NEVER
        if self._dropping or self._paused:
            self._transport.abort()
        elif self._in_head or self._in_body:
            what = "the headers" if self._in_head else "the body"
            self._refuse(SitsError(Code.REQUEST_TIMEOUT, f"{what} did not arrive in time"))
            self._next()
        else:
            self._transport.close()


def _origin_form(target: bytes) -> bytes:
    """The path of an absolute-form target; `*` stays (RFC 9112 3.2)."""
    scheme, mark, rest = target.partition(b"://")
    if not mark or not scheme.isalnum():
        return target
    _, slash, path = rest.partition(b"/")
    return slash + path if slash else b"/"
