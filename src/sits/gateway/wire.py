"""The seam between a front (whatever speaks HTTP to clients) and the gateway.

A front hands over a complete `Request` and a `Wire` to answer on. Writing is a plain call, so a streamed chunk goes from the
upstream's socket to the client's without a task in between; a slow client is told by `Listener.on_pause`. Two fronts exist:
our own HTTP/1.1 protocol under uvicorn (the short way) and any ASGI server (the general way).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

from sits.engines.base import Headers

_LINE_END = re.compile(rb"[\r\n\0]")


def harmless(headers: Headers) -> Headers:
    """The same fields, with a space for whatever would end a line (RFC 9110 5.5): names of models, say, come from afar."""
    return [(_LINE_END.sub(b" ", name), _LINE_END.sub(b" ", value)) for name, value in headers]


def lines_of(headers: Headers) -> bytes:
    """The fields in wire form, each with its line end, harmless."""
    return b"".join([b"%b: %b\r\n" % field for field in harmless(headers)])


class Request:
    """One client request, body and all.

    `headers` has lower-case names; repeated fields are joined by ", " (RFC 9110 5.3). `path` is percent-decoded nowhere:
    it is the raw path without the query. Times are seconds of `time.perf_counter`.
    """

    __slots__ = ("body", "headers", "method", "path", "peer", "query", "received")

    def __init__(
        self, method: bytes, path: bytes, query: bytes, headers: dict[bytes, bytes], body: bytes, peer: str, received: float
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.body = body
        self.peer = peer
        self.received = received
        """When the first byte of the request arrived."""


class Listener(Protocol):
    """What the owner of an answer wants to hear from the client's side."""

    def on_gone(self) -> None:
        """The client closed or lost its connection before the answer was complete. Called once at the most."""

    def on_pause(self) -> None:
        """The client reads too slowly: stop producing."""

    def on_resume(self) -> None:
        """The client caught up."""


class Wire(Protocol):
    """One answer on its way to a client. Calls after the client has gone do nothing. Exactly one of `respond` and
    `open` is called, once; after `open` come any number of `write`s and then `close` or `abort`."""

    gone: bool
    listener: Listener | None
    """Set by the gateway right after it takes the request; may be set when `gone` is already true."""

    def respond(self, status: int, headers: Headers, body: bytes, lines: bytes = b"") -> None:
        """A whole answer; content-length is added here, as are date-less framing headers. `lines` are more fields, in wire form
        already and known to be harmless (`lines_of`)."""

    def open(self, status: int, headers: Headers, first: bytes = b"", lines: bytes = b"") -> None:
        """The head of a streamed answer and its first piece, which go in one write; the framing (chunked, or until close for
        HTTP/1.0) is the front's affair."""

    def write(self, piece: bytes) -> None:
        """A piece of the body; empty pieces are ignored."""

    def close(self, last: bytes = b"") -> None:
        """The streamed body is complete, with `last` as its last piece."""

    def abort(self) -> None:
        """Cut the connection without completing the body, so that the client can see that it is not whole."""


Handler = Callable[[Request, Wire], None]
"""Takes a request; must not block or raise. The answer may be given before it returns or later."""
