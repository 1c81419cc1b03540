"""HTTP/1.1 for clients: bytes to requests, in order, within limits (RFC 9110, RFC 9112).

llhttp (by httptools) reads; what it lets pass and the RFCs do not is refused here. One packet may hold several requests:
they are queued and answered one after the other. A refusal is queued like a request, so that it never overtakes an answer;
after it the connection lingers, reading and dropping, so that a client that is still sending can read why it was refused
(RFC 9112 9.6). The parser's callbacks know three states: in a head, in a body, in neither.

A client that closes its side while its answer is pending counts as gone, as with most servers: half-closed clients cannot be
told from departed ones, and a model that answers nobody costs money.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, NoReturn, cast

import httptools

from sits.gateway.http.answer import HttpWire
from sits.gateway.http.front import (
    FIELDS,
    FRAMING_BYTES,
    LINGER_BYTES,
    LINGER_IDLE_SECONDS,
    LINGER_SECONDS,
    PIPELINED_BYTES,
    PIPELINED_COST,
    STALL_SECONDS,
    TARGET_BYTES,
    TOLD,
    Front,
)
from sits.gateway.http.head import examine, origin_form, too_large, too_long
from sits.gateway.http.refusal import defected, refusal
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
        "_answering", "_body", "_continue", "_deaf", "_dropped", "_dropping", "_fields", "_framing", "_head_bytes", "_headers",
        "_in_body", "_in_head", "_limits", "_linger_end", "_old", "_parser", "_paused", "_peer", "_queue", "_reading_paused",
        "_received", "_size", "_state", "_target", "_transport", "_turning", "_unsent", "_upgrading", "due", "front",
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
        self._parser: Any = httptools.HttpRequestParser(self)
        self._limits: Limits = self.front.limits
        self._peer = ""
        self._answering: HttpWire | None = None
        self._queue: deque[tuple[Request, HttpWire] | SitsError] = deque()
        self._received = 0.0
        self._head_bytes = 0
        self._framing = 0
        self._in_head = False
        self._in_body = False
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._fields = 0
        self._body: bytes | bytearray = b""
        self._size = 0
        self._old = False
        """The request under way is HTTP/1.0."""
        self._upgrading = False
        self._continue = False
        self._turning = False
        self._deaf = False
        """Something was refused: what follows is not read any more."""
        self._dropping = False
        """The last answer is given: what comes is read, if at all, to be thrown away."""
        self._linger_end = NEVER
        self._dropped = 0
        self._paused = False
        self._unsent = 0
        """What the client had still to take when that was last looked at, and what was added since."""
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
        above = len(front.connections) - front.limits.connections
        if above > TOLD:
            self.cut()
        elif above > 0:
            self._refuse(SitsError(Code.OVERLOADED, "too many connections; try again", retry_after=1))
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        self._catch_up()
        self.due = NEVER
        self.front.sweep.discard(self)
        self.front.connections.discard(self)
        self._state.discard(self)
        self._dropping = True
        self._queue.clear()
        answering, self._answering = self._answering, None
        if answering is not None:
            answering.lose()
        # The parser holds our methods: apart, both are freed at once, not by the collector.
        self._parser = None

    def _catch_up(self) -> None:
        """What was read before the end comes before it."""
        if self.front.turn is not None:
            self.front.turn.run()

    def eof_received(self) -> bool:
        self._catch_up()
        if self._answering is not None:
            self._answering.lose()
        if not self._dropping:
            # The transport closes itself once it is empty, which a client that does not read can put off for ever.
            self._dropping = True
            self._watch_unsent(self.front.clock())
        return False

    def data_received(self, data: bytes) -> None:
        turn = self.front.turn
        if turn is None:
            self.take(data)
        else:
            turn.ask(self, data)

    def take(self, data: bytes) -> None:
        """Deal with what was read; at the end of the turn."""
        now = self.front.clock()
        if self._dropping:
            self._dropped += len(data)
            if self._dropped > LINGER_BYTES:
                self._transport.abort()
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
        self._look_ahead(now)

    def _look_ahead(self, now: float) -> None:
        """What is here is dealt with: may more come, and by when?"""
        if self._dropping:
            return
        if self._queue and not self._reading_paused and self._waiting() > PIPELINED_BYTES:
            self._reading_paused = True
            self._transport.pause_reading()
        if self._answering is None and not self._paused:
            if self._in_head:
                self.due = self._received + self._limits.header_seconds
            elif self._in_body:
                self.due = now + self._limits.body_seconds
                if self._continue:
                    self._go_ahead()

    def pause_writing(self) -> None:
        self._paused = True
        if self._dropping:
            return
        self._watch_unsent(self.front.clock())
        if self._answering is not None and self._answering.listener is not None:
            self._answering.listener.on_pause()

    def resume_writing(self) -> None:
        self._paused = False
        if self._dropping:
            return
        if self._answering is None:
            self._await_more(self.front.clock())
            self._next()
            return
        self.due = NEVER
        if self._answering.listener is not None:
            self._answering.listener.on_resume()

    def _waiting(self) -> int:
        """What the queue holds, in bytes or so."""
        return sum(PIPELINED_COST + len(item[0].body) for item in self._queue if not isinstance(item, SitsError))

    # The parser

    def _feed(self, data: bytes) -> None:
        """Parse; what is wrong is queued as a refusal.

        Raises:
            _Refused: it was, and nothing after it is read.
        """
        while data:
            in_head, in_body, size = self._in_head, self._in_body, self._size
            try:
                self._parser.feed_data(data)
                rest = b""
            except httptools.HttpParserUpgrade as upgrade:
                rest = data[upgrade.args[0] :]
                self._stay()
            except httptools.HttpParserCallbackError as error:
                if isinstance(error.__context__, _Refused):
                    raise _Refused from None
                raise
            except httptools.HttpParserError as error:
                self._misread(error)
                raise _Refused from None
            # A field that never ends is kept by the parser, and chunk extensions and trailers count as no body.
            if in_head and self._in_head:
                self._head_bytes += len(data)
                if self._head_bytes > self._limits.header_bytes + TARGET_BYTES:
                    self._stop(too_long(self._limits))
            elif in_body and self._in_body and self._size == size:
                self._framing += len(data)
                if self._framing > FRAMING_BYTES:
                    self._stop(SitsError(Code.INVALID_REQUEST, f"more than {FRAMING_BYTES} bytes of chunk framing in a row"))
            data = rest

    def _stay(self) -> None:
        """No protocol is switched to (RFC 9110 7.8), but the parser has stopped after the head: a fresh one goes on.

        If the request has a body, as the ones of Java's HttpClient have, the fresh one is told so by a head of our own, of
        which the callbacks take no notice.
        """
        asked = self._parser
        self._parser = httptools.HttpRequestParser(self)
        if not self._upgrading:
            return
        self._upgrading = False
        length = self._headers.get(b"content-length")
        self._parser.feed_data(
            b"%b / HTTP/%b\r\nconnection: %b\r\n%b\r\n\r\n"
            % (
                asked.get_method(),
                b"1.0" if self._old else b"1.1",
                b"keep-alive" if asked.should_keep_alive() else b"close",
                b"transfer-encoding: chunked" if length is None else b"content-length: " + length,
            )
        )

    def _misread(self, error: Exception) -> None:
        said = str(error) or type(error).__name__
        if said == "Data after `Connection: close`":
            return
        if "PRI/Upgrade" in said:
            self._refuse(SitsError(Code.INVALID_REQUEST, "this port speaks HTTP/1.1, not HTTP/2", status=505))
        elif "Invalid HTTP version" in said:
            self._refuse(SitsError(Code.INVALID_REQUEST, "only HTTP/1.0 and HTTP/1.1 are spoken here", status=505))
        else:
            self._refuse(SitsError(Code.INVALID_REQUEST, f"this is not HTTP as RFC 9112 has it: {said}"))

    def on_message_begin(self) -> None:
        if self._in_body:
            return  # The head of our own that `_stay` feeds.
        self._in_head = True
        self._target = b""
        self._headers = {}
        self._fields = 0
        self._body = b""
        self._size = 0
        self._head_bytes = 0
        self._framing = 0
        self._limits = self.front.limits

    def on_url(self, url: bytes) -> None:
        if not self._in_head:
            return
        self._target += url
        if len(self._target) > TARGET_BYTES:
            self._stop(SitsError(Code.INVALID_REQUEST, f"the request target is longer than {TARGET_BYTES} bytes", status=414))

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # A trailer: it may not pass for a header (RFC 9110 6.5.1).
        headers = self._headers
        name = name.lower()
        value = value.rstrip(b" \t")  # llhttp leaves it, and it belongs to no value (RFC 9112 5.1)
        self._fields += 1
        if name in headers:
            value = self._joined(name, value)
        headers[name] = value

    def on_headers_complete(self) -> None:
        if not self._in_head:
            return
        parser, headers = self._parser, self._headers
        try:
            self._old, has_body, self._continue = examine(
                headers, self._fields, parser.get_http_version(), parser.get_method(), self._limits
            )
        except SitsError as error:
            self._stop(error)
        if has_body and b"upgrade" in headers:
            self._upgrading = parser.should_upgrade()
        self._in_head = False
        self._in_body = True

    def on_body(self, piece: bytes) -> None:
        self._size += len(piece)
        self._framing = 0
        self._continue = False
        if self._size > self._limits.body_bytes:
            self._stop(too_large(self._limits))
        body = self._body
        if not body:
            self._body = piece
        elif isinstance(body, bytearray):
            body += piece
        else:
            # Not a list of pieces: a body in chunks of two bytes would take twenty times its size.
            self._body = bytearray(body)
            self._body += piece

    def on_message_complete(self) -> None:
        if self._upgrading:
            return  # Its body is still to come; see `_stay`.
        self._in_body = False
        self._continue = False
        parser, body = self._parser, self._body
        method = parser.get_method()
        path, _, query = self._target.partition(b"?")
        if not path.startswith(b"/"):
            path = origin_form(path)
        whole = bytes(body)
        self._body = b""
        request = Request(method, path, query, self._headers, whole, self._peer, self._received)
        wire = HttpWire(self, keep=parser.should_keep_alive(), silent=method == b"HEAD", chunked=not self._old)
        self._queue.append((request, wire))
        # What follows in the same packet arrived at this moment, not before.
        self._received = self.front.clock() if self._answering is not None or len(self._queue) > 1 else self._received

    def _joined(self, name: bytes, value: bytes) -> bytes:
        if name == b"host":
            self._stop(SitsError(Code.INVALID_REQUEST, "the Host field comes twice (RFC 9112 3.2)"))
        if self._fields > FIELDS:
            self._stop(too_long(self._limits))
        return self._headers[name] + (b"; " if name == b"cookie" else b", ") + value

    # Order

    def _stop(self, error: SitsError) -> NoReturn:
        self._refuse(error)
        raise _Refused

    def _refuse(self, error: SitsError) -> None:
        """Queue a refusal: it is told when everything before it is answered, and ends the connection."""
        self._in_head = self._in_body = self._continue = False
        self._body = b""
        self._queue.append(error)

    def _next(self) -> None:
        """Take requests from the queue until one is not answered at once, or the client does not take its answers: one that
        only asks would fill the memory otherwise."""
        queue = self._queue
        self._turning = True
        while queue and self._answering is None and not self._paused and not self._dropping:
            item = queue.popleft()
            if isinstance(item, SitsError):
                self._turn_away(item)
                break
            request, wire = item
            self._answering = wire
            self.due = NEVER
            try:
                self.front.handler(request, wire)
            except Exception:
                self._make_good(request, wire)
        self._turning = False
        if not queue:
            self._resume_reading()

    def _make_good(self, request: Request, wire: HttpWire) -> None:
        """The handler has failed: say so where nothing is said yet, and cut what is half said."""
        wire.keep = False
        request_id = self.front.request_id(request.headers)
        _log.exception("the handler raised", extra={"request_id": request_id})
        if wire.opened:
            wire.abort()
        else:
            wire.respond(*defected(request.path, request_id))

    def answered(self, wire: HttpWire) -> None:
        """The answer is complete: go on with what is queued, or wait for more."""
        self._answering = None
        if not wire.keep:
            # Bytes that nobody reads turn the end into a reset, and that can take the answer with it (RFC 9112 9.6).
            if self._queue or self._deaf or self._in_head or self._in_body:
                self._linger()
            else:
                self._close()
        elif self._queue:
            if not self._turning:
                asyncio.get_running_loop().call_soon(self._next)
        else:
            self._await_more(self.front.clock())

    def _await_more(self, now: float) -> None:
        """Nothing is to be answered: so long may the client take for what comes next."""
        self._resume_reading()
        if self._continue:
            self._go_ahead()
        if self._paused:
            return  # The deadline for what is unread goes on.
        if self._in_head:
            self.due = now + self._limits.header_seconds
        elif self._in_body:
            self.due = now + self._limits.body_seconds
        else:
            self.due = now + self._limits.keep_alive_seconds

    def _go_ahead(self) -> None:
        """The body is wanted. Not said before everything asked earlier is answered, and not once the body has begun
        (RFC 9110 10.1.1)."""
        self._continue = False
        self._transport.write(_CONTINUE)

    def _resume_reading(self) -> None:
        if self._reading_paused and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    def put(self, data: bytes) -> None:
        if self._paused:
            self._unsent += len(data)
        self._transport.write(data)

    # Ends

    def cut(self) -> None:
        self._answering = None
        self._dropping = True
        self._transport.abort()

    def _close(self) -> None:
        """End the connection once everything is sent; a client that does not take it is cut later."""
        self._dropping = True
        self._watch_unsent(self.front.clock())
        self._transport.close()

    def _linger(self) -> None:
        """Close our side, and read on without listening for a while."""
        self._dropping = True
        self._queue.clear()
        self._resume_reading()
        now = self.front.clock()
        self._linger_end = now + LINGER_SECONDS
        self.due = now + LINGER_IDLE_SECONDS
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _turn_away(self, error: SitsError) -> None:
        """Say why, as the last answer of this connection."""
        self._deaf = True
        wire = HttpWire(self, keep=False, silent=self._parser.get_method() == b"HEAD", chunked=True)
        wire.respond(error.status, *refusal(error, self._target, self.front.request_id(self._headers)))

    def shutdown(self) -> None:
        """The end has begun: an idle connection closes now, a busy one after its answer."""
        if self._answering is not None:
            self._answering.keep = False
        elif not self._in_head and not self._in_body and not self._queue and not self._dropping:
            self._close()

    def _watch_unsent(self, now: float) -> None:
        """From now on the client may not stand still for long."""
        self._unsent = self._transport.get_write_buffer_size()
        self.due = min(self._linger_end, now + STALL_SECONDS)

    def expire(self, now: float) -> None:
        """A deadline has passed: slow requests are told, idle ones just end, stalled and lingering ones are cut."""
        self.due = NEVER
        if self._dropping or self._paused:
            if now < self._linger_end and 0 < self._transport.get_write_buffer_size() < self._unsent:
                self._watch_unsent(now)
            else:
                self._transport.abort()
        elif self._in_head or self._in_body:
            what = "the headers" if self._in_head else "the body"
            self._refuse(SitsError(Code.REQUEST_TIMEOUT, f"{what} did not arrive in time"))
            self._next()
        else:
            self._close()
