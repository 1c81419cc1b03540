"""One answer on an HTTP/1.1 connection: head, framing, and the order of things. Bytes go to the transport in one write."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from sits.engines.base import Headers
from sits.gateway.wire import Listener, lines_of

if TYPE_CHECKING:
    from sits.gateway.http.protocol import HttpProtocol

_STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_STATUS[499] = b"HTTP/1.1 499 Client Closed Request\r\n"
_BODILESS = frozenset((204, 304))


def _checked(headers: Headers) -> bytes:
    fields = b"".join([b"%b: %b\r\n" % field for field in headers])
    # Looking for what does not belong there costs 0.1 us, cleaning each value 0.3 us.
    if fields.count(b"\n") != len(headers) or fields.count(b"\r") != len(headers) or b"\0" in fields:
        return lines_of(headers)
    return fields


def status_line(status: int) -> bytes:
    return _STATUS.get(status) or b"HTTP/1.1 %d Status\r\n" % status


class HttpWire:
    """A `Wire` over one connection. `keep` says whether the connection may serve another request afterwards."""

    __slots__ = ("_chunked", "_protocol", "_silent", "done", "gone", "keep", "listener", "opened")

    def __init__(self, protocol: HttpProtocol, *, keep: bool, silent: bool, chunked: bool) -> None:
        self._protocol = protocol
        self._silent = silent
        """The answer has a head only: the request was HEAD."""
        self._chunked = chunked
        """The client knows chunks: HTTP/1.1."""
        self.keep = keep
        self.gone = False
        self.opened = False
        self.done = False
        self.listener: Listener | None = None

    def respond(self, status: int, headers: Headers, body: bytes, lines: bytes = b"") -> None:
        if self.gone or self.opened or self.done:
            return
        head = self._head(status, headers, lines)
        if status in _BODILESS:
            self._protocol.put(b"%b\r\n" % head)
        elif self._silent:
            self._protocol.put(b"%bcontent-length: %d\r\n\r\n" % (head, len(body)))
        else:
            self._protocol.put(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
        self._finish()

    def open(self, status: int, headers: Headers, first: bytes = b"", lines: bytes = b"") -> None:
        if self.gone or self.opened or self.done:
            return
        self.opened = True
        if not self._chunked:
            self.keep = False
        head = self._head(status, headers, lines)
        piece = b"" if self._silent else self._framed(first)
        self._protocol.put(
            b"%btransfer-encoding: chunked\r\n\r\n%b" % (head, piece) if self._chunked else b"%b\r\n%b" % (head, piece)
        )

    def _framed(self, piece: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked and piece else piece

    def write(self, piece: bytes) -> None:
        if self.gone or self.done or self._silent or not piece:
            return
        if self._chunked:
            # One formatted write: 0.4 us for a piece of 200 bytes.
            self._protocol.put(b"%x\r\n%b\r\n" % (len(piece), piece))
        else:
            self._protocol.put(piece)

    def close(self, last: bytes = b"") -> None:
        if self.gone or self.done:
            return
        if not self._silent and (self._chunked or last):
            self._protocol.put(self._framed(last) + (b"0\r\n\r\n" if self._chunked else b""))
        self._finish()

    def abort(self) -> None:
        if not self.gone and not self.done:
            self.done = True
            self._protocol.cut()

    def lose(self) -> None:
        """The client has gone."""
        if not self.gone and not self.done:
            self.gone = True
            if self.listener is not None:
                self.listener.on_gone()

    def _head(self, status: int, headers: Headers, lines: bytes) -> bytes:
        front = self._protocol.front
        if front.draining:
            self.keep = False
        if headers:
            lines += _checked(headers)
        connection = (
            b"" if self.keep and self._chunked else b"connection: keep-alive\r\n" if self.keep else b"connection: close\r\n"
        )
        return b"%b%bdate: %b\r\n%b" % (status_line(status), lines, front.date(front.clock()), connection)

    def _finish(self) -> None:
        self.done = True
        self._protocol.answered(self)
