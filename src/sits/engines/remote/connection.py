"""One connection to a target: bytes from the socket through the parser to a `Reply`, with no task in between.

The parser's callbacks only take notes; what they noted is delivered after it has returned, so that a receiver may cancel,
pause or send again from within `head`, `data` or `end`. One read is one `data` at the most: the chunks in it are joined.

llhttp is used as it is, strict. What it leaves to its caller is done here: HEAD, answers that last until the connection
closes, transfer codings other than chunked, HTTP/1.0 with chunks, bytes after the end, limits, 1xx and 101.
"""

from __future__ import annotations

import asyncio
import re
import select
from collections.abc import Callable
from typing import Protocol, cast

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from sits.engines.base import Headers, Reply
from sits.engines.remote.call import RemoteCall
from sits.inner.errors import Code, SitsError
from sits.inner.sweep import NEVER
from sits.inner.turn import Turn

SLICE = 256 * 1024
"""Bodies above this are handed to the transport in pieces, as it drains."""
STALE_AFTER = 1.0
"""Seconds of idleness after which the socket is asked (0.3 us) whether the server has closed it meanwhile."""
IDEMPOTENT = frozenset((b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"DELETE"))
"""RFC 9110 9.2.2."""

_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding upgrade".split()
)
_NOTED = _HOP | {b"content-length"}
_KEEP_ALIVE_TIMEOUT = re.compile(rb"timeout\s*=\s*\"?(\d{1,6})", re.IGNORECASE)


class AnswerLimits(msgspec.Struct, frozen=True):
    """What one answer may be; more is `upstream_broken`. And whether the server keeps its word about what follows."""

    head_bytes: int = 64 * 1024
    """Of the fields together, and of anything that is not body in a row (1xx, chunk extensions, trailers)."""
    fields: int = 256
    body_bytes: int = 256 * 1024 * 1024
    ends_with_stream: bool = False
    """The server announces keep-alive but closes after every streamed answer (llama.cpp, 60 us later): such a connection is
    not used again, since a POST that met the closing could not be told from one that was begun."""


class Owner(Protocol):
    """Whose connection it is."""

    def release(self, connection: Connection) -> None:
        """It has carried a call to its end and can carry another."""

    def forget(self, connection: Connection) -> None:
        """It can carry no more calls. Safe to repeat."""

    def resend(self, call: RemoteCall) -> None:
        """Carry the call again, on a fresh connection."""


class _Unfit(Exception):
    """Stops the parser: the answer is one that we do not take."""


class _Stop(Exception):
    """Stops the parser: the message is complete, whatever follows."""


class Connection(asyncio.Protocol):
    """Carries one call at a time. A member of the sweep from `attach` on: as busy or as idle, it has a deadline.

    A request on a reused connection that is closed before any byte of an answer (the server's idle limit passed as we wrote)
    is sent again once, on a fresh connection, if its method is idempotent. RFC 9110 9.2.2 forbids that for other methods
    unless they are known not to have been applied, and bytes handed to the kernel prove nothing: those fail with
    `upstream_broken`, and `Call.started` and `Call.reused` tell the owner what it needs to decide for itself.
    """

    __slots__ = (
        "_call", "_choked", "_clock", "_complete", "_fields", "_final", "_heard", "_hop", "_keep", "_length", "_limits",
        "_number", "_on_socket", "_origin", "_owner", "_parser", "_paused", "_pieces", "_read_for", "_reply", "_room",
        "_silent", "_status", "_told", "_transport", "_turn", "_unsent", "_until_close", "due", "hint", "idle_since",
        "lost", "on_body",
    )  # fmt: skip

    def __init__(
        self, owner: Owner, origin: str, limits: AnswerLimits, clock: Callable[[], float], turn: Turn | None = None
    ) -> None:
        self._turn = turn
        self._number = 0
        self._read_for = 0
        """The number of the call whose answer the pieces are that wait for the end of the turn."""
        self._owner = owner
        self._origin = origin
        self._limits = limits
        self._clock = clock
        self._pieces: list[bytes] = []
        # The parser calls list.append itself: 0.09 us a chunk, 0.11 through a method of ours.
        self.on_body = self._pieces.append
        self._call: RemoteCall | None = None
        self._reply: Reply | None = None
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._parser: HttpResponseParser = cast("HttpResponseParser", None)
        self._on_socket: select.poll | None = None
        self._unsent: memoryview | None = None
        self._choked = False
        self._paused = False
        self.due = NEVER
        self.hint: float | None = None
        """Seconds after which the server says it closes an idle connection (Keep-Alive: timeout=N)."""
        self.idle_since = 0.0
        self.lost = False
        self._reset()

    def _reset(self) -> None:
        self._number += 1
        self._status = 0
        self._fields: Headers = []
        self._final: Headers = []
        self._hop: Headers = []
        self._length: bytes | None = None
        self._until_close = False
        self._keep = False
        self._told = False
        self._heard = False
        self._complete = False
        self._silent = 0
        self._room = self._limits.body_bytes

    # What the pool asks of it

    def begin(self, call: RemoteCall, now: float) -> None:
        """Send the request of a call and bring its answer to the call's reply."""
        reply = call.reply
        assert reply is not None, "the call is not over"
        self._reset()
        self._call = call
        self._reply = reply
        call.carrier = self
        call.started = True
        due = now + call.deadlines.headers
        self.due = due if due < call.ends else call.ends
        if call.paused:
            self.pause()
        body = call.request.body
        if len(body) <= SLICE:
            # Joined, one write is one system call and one packet.
            self._transport.write(call.head + body)
            return
        self._transport.write(call.head)
        self._unsent = memoryview(body)
        self._send_more()

    def is_gone(self) -> bool:
        return self.lost or self._transport.is_closing()

    def usable(self, now: float) -> bool:
        """Whether an idle connection can carry a call: open, in time and, if it has been idle for long, without news."""
        if self._transport.is_closing() or self.due <= now:
            return False
        return now - self.idle_since < STALE_AFTER or not self._has_news()

    def _has_news(self) -> bool:
        """Whether the socket is readable: on an idle connection that is the server's close, or garbage."""
        if self._on_socket is None:
            self._on_socket = select.poll()
            self._on_socket.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(self._on_socket.poll(0))

    def retire(self) -> None:
        """Close it, idle as it is."""
        self._owner.forget(self)
        self._transport.close()

    def abandon(self) -> None:
        """Give up the call that it carries and close the socket at once."""
        self._detach()
        self._owner.forget(self)
        self._transport.abort()

    def pause(self) -> None:
        if self._call is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()
            self.due = self._call.ends

    def resume(self) -> None:
        call = self._call
        if call is not None and self._paused:
            self._paused = False
            wait = call.deadlines.idle if self._told else call.deadlines.headers
            self.due = min(self._clock() + wait, call.ends)
            self._transport.resume_reading()

    def expire(self, now: float) -> None:
        if self.due > now:
            return
        call = self._call
        if call is None:
            self.retire()
            return
        if now >= call.ends:
            which, allowed = "total", call.deadlines.allowed
        elif self._told:
            which, allowed = "idle", f"{call.deadlines.idle:g} s"
        else:
            which, allowed = "headers", f"{call.deadlines.headers:g} s"
        self._give_up(SitsError(Code.UPSTREAM_TIMEOUT, f"{self._origin}: the {which} deadline of {allowed} passed"))

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:  # nobody asked: a late 408, or garbage
            self.retire()
        elif self._turn is None or self._told:
            self.take(data)
        else:
            self._read_for = self._number
            self._turn.answer(self, data)

    def take(self, data: bytes) -> None:
        """Deal with what was read: at once when it belongs to a stream, at the end of the turn when an answer begins."""
        reply = self._reply
        if reply is None:  # the call was given up meanwhile, or ended with the piece before
            self.retire()
            return
        if self._turn is not None and self._read_for != self._number:
            # Read for a call that is over: nobody may take it for the answer to the one that is carried by now.
            self._give_up(self._broken("sent more than one answer to one request"))
            return
        if not self._status:
            self._heard = True
            self._silent += len(data)
        fault: HttpParserError | HttpParserUpgrade | None = None
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            fault = error
        if self._status:
            if not self._deliver(reply, len(data)):
                return
            if self._complete:
                self._finish(reply, reusable=self._keep and fault is None)
                return
        if fault is not None:
            self._give_up(self._broken(f"sent what is not an HTTP answer: {_reason(fault)}"))
        elif self._silent > self._limits.head_bytes:
            self._give_up(self._broken(f"sent more than {self._limits.head_bytes} bytes of fields or framing"))

    def _deliver(self, reply: Reply, size: int) -> bool:
        """Hand over what the parser noted; False when the receiver has given up or the body is too large."""
        call = self._call
        assert call is not None
        if not self._paused:
            due = self._clock() + call.deadlines.idle
            self.due = due if due < call.ends else call.ends
        if not self._told:
            self._told = True
            self._silent = 0
            if self._status >= 300:  # an early refusal: the rest of the body is not wanted (RFC 9112 9.5)
                self._keep = self._keep and self._unsent is None
                self._unsent = None
            reply.head(self._status, self._final)
            if self._reply is not reply:
                return False
        pieces = self._pieces
        if not pieces:
            self._silent += size
            return True
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._silent = 0
        self._room -= len(piece)
        if self._room < 0:
            self._give_up(self._broken(f"sent a body of more than {self._limits.body_bytes} bytes"))
            return False
        reply.data(piece)
        return self._reply is reply

    def eof_received(self) -> None:
        # TLS transports report only a proper close_notify here; a cut without one is `connection_lost` alone (RFC 9112 9.8).
        self._catch_up()
        reply = self._reply
        if reply is None:
            self._owner.forget(self)
        elif self._told and self._until_close:
            self._finish(reply, reusable=False)
        else:
            self._cut("closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self._catch_up()
        self.lost = True
        self._parser = cast("HttpResponseParser", None)  # it holds our methods: break the cycle
        if self._reply is None:
            self._owner.forget(self)
        elif exc is None or isinstance(exc, OSError):
            self._cut("closed the connection" if exc is None else f"broke the connection ({exc})")
        else:
            self.cut()  # The loop ends a connection whose receiver raised: that is no fault of the server's.

    def _catch_up(self) -> None:
        """What was read before the end comes before it."""
        if self._turn is not None:
            self._turn.run()

    def cut(self) -> None:
        if self._reply is not None:
            self._give_up(SitsError(Code.INTERNAL, "a defect of the gateway; its log has the details"))

    def pause_writing(self) -> None:
        self._choked = True

    def resume_writing(self) -> None:
        self._choked = False
        self._send_more()

    def _send_more(self) -> None:
        while self._unsent is not None and not self._choked:
            piece, rest = self._unsent[:SLICE], self._unsent[SLICE:]
            self._unsent = rest if len(rest) else None
            self._transport.write(piece)

    # What the parser calls

    def on_message_begin(self) -> None:
        if self._complete:
            raise _Stop

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in _NOTED:
            if name != b"content-length":
                self._hop.append((name, value))
                return
            self._length = value
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            if status < 100 or status == 101:
                raise _Unfit(f"status {status}, which was not asked for")
            self._fields = []
            self._hop = []
            self._length = None
            return
        self._check_size()
        call = self._call
        assert call is not None
        self._status = status
        self._final = self._fields
        self._fields = []  # trailers go here, and no further
        self._keep = self._parser.should_keep_alive()
        if self._hop:
            self._read_hop_fields()
        elif self._length is None:
            self._until_close = status not in (204, 304)
        if self._length is not None and int(self._length) > self._room and status != 304 and call.request.method != b"HEAD":
            self._status = 0
            raise _Unfit(f"a body of {int(self._length)} bytes, where {self._room} is the most")
        if call.request.method == b"HEAD":  # llhttp cannot know, and would wait for the body
            self._complete = True
            self._keep = False
            raise _Stop

    def on_message_complete(self) -> None:
        self._complete = self._status != 0

    def _check_size(self) -> None:
        if len(self._fields) + len(self._hop) > self._limits.fields:
            raise _Unfit(f"more than {self._limits.fields} fields")
        if self._silent > self._limits.head_bytes:
            size = sum(len(name) + len(value) + 4 for name, value in self._fields + self._hop)
            if size > self._limits.head_bytes:
                raise _Unfit(f"more than {self._limits.head_bytes} bytes of fields")

    def _read_hop_fields(self) -> None:
        """Framing and keep-alive from the fields that concern this connection alone."""
        codings = [value for name, value in self._hop if name == b"transfer-encoding"]
        if codings:
            # We sent no TE, so nothing but chunked may come; HTTP/1.0 has none at all (RFC 9112 6.1).
            if len(codings) > 1 or codings[0].lower() != b"chunked" or self._parser.get_http_version() != "1.1":
                self._status = 0
                raise _Unfit("a transfer coding other than chunked, or one in HTTP/1.0")
        elif self._length is None:
            self._until_close = self._status not in (204, 304)
        for name, value in self._hop:
            if name == b"keep-alive":
                found = _KEEP_ALIVE_TIMEOUT.search(value)
                self.hint = float(found[1]) if found else self.hint
            elif name == b"connection":
                named = {token.strip() for token in value.lower().split(b",")} - {b"close", b"keep-alive", b""}
                if named:
                    self._final = [field for field in self._final if field[0] not in named]

    # Ends

    def _detach(self) -> RemoteCall:
        call = self._call
        assert call is not None
        self._call = self._reply = None
        self._unsent = None
        call.carrier = None
        self._pieces.clear()
        return call

    def _finish(self, reply: Reply, reusable: bool) -> None:
        reusable = reusable and self._unsent is None and not self._transport.is_closing()
        if self._limits.ends_with_stream and self._length is None:
            reusable = False
        self._detach().reply = None
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        if reusable:
            self._owner.release(self)
        else:
            self._owner.forget(self)
            self._transport.abort()
        reply.end()

    def _give_up(self, error: SitsError) -> None:
        call = self._detach()
        self._owner.forget(self)
        self._transport.abort()
        call.fail(error)

    def _cut(self, what: str) -> None:
        """The connection is gone with the answer incomplete."""
        call = self._detach()
        self._owner.forget(self)
        self._transport.abort()
        if call.reused and not self._heard and not call.resent and call.request.method in IDEMPOTENT:
            call.resent = True
            call.reused = False
            self._owner.resend(call)
            return
        if self._told:
            received = self._limits.body_bytes - self._room
            where = f"after {received} bytes of the body" + (f" of {int(self._length)}" if self._length is not None else "")
        else:
            where = "within the head of its answer" if self._heard else "before it answered"
        call.fail(self._broken(f"{what} {where}"))

    def _broken(self, what: str) -> SitsError:
        return SitsError(Code.UPSTREAM_BROKEN, f"{self._origin} {what}")


def _reason(fault: HttpParserError | HttpParserUpgrade) -> str:
    cause = fault.__context__
    return str(cause) if isinstance(cause, _Unfit) else str(fault)
