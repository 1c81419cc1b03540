"""What runs a request: the contract between the failover core and anything that can answer.

An engine pushes: it calls a `Reply` as bytes arrive, from the event loop's thread, and never awaits the receiver.
Back-pressure is `Call.pause` / `Call.resume`. That keeps a streamed chunk at one call from the socket to the client
with no task to wake in between.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from sits.inner.errors import SitsError

Headers = list[tuple[bytes, bytes]]
"""Header fields in order, names in lower case."""


class Deadlines(msgspec.Struct, frozen=True):
    """Seconds for each part of an attempt; `total` runs from `Engine.send` and stands over all the others."""

    connect: float = 5.0
    headers: float = 120.0
    first_token: float = 120.0
    idle: float = 60.0
    total: float = 600.0
    declared: float = 0.0
    """What was declared, where `total` is what is left of it; 0.0 where it is all of it."""
    by: str = ""
    """Whose `total` it is, where it is not the model's own alone."""

    @property
    def allowed(self) -> str:
        """The total deadline as it was declared, and by whom."""
        return f"{self.declared or self.total:g} s{f' ({self.by})' if self.by else ''}"


class Outgoing(msgspec.Struct):
    """A request as it goes to an engine: everything but the address.

    `path` is absolute ("/v1/chat/completions"), `headers` are complete except for host, content-length and connection,
    which the engine writes. They are made afresh for every attempt from an allow-list.
    """

    method: bytes
    path: bytes
    headers: Headers
    body: bytes
    fixed: bytes = b""
    """Further fields, those that never change for a target, made once by `field_lines`."""


def field_lines(headers: Headers) -> bytes:
    """Header fields in wire form, each with its line end.

    Raises:
        ValueError: a field has a line break or a NUL in it; the message names it, never its value.
    """
    for name, value in headers:
        if any(byte in name + value for byte in b"\r\n\0"):
            raise ValueError(f"the request field {name.decode('latin-1')!r} has a line break or a NUL in its name or value")
    return b"".join(b"%b: %b\r\n" % field for field in headers)


class Reply(Protocol):
    """Receives one answer: `head`, then `data` any number of times, then `end` or `fail`, exactly one of them.

    `fail` may come at any time before `end`. After `Call.cancel` nothing more is called. None of these may raise.
    """

    def head(self, status: int, headers: Headers) -> None:
        """The final status (never 1xx) and the response's header fields, hop-by-hop ones left out."""

    def data(self, piece: bytes) -> None:
        """A piece of the body, transfer coding removed; never empty."""

    def end(self) -> None:
        """The body is complete by the framing that the server declared."""

    def fail(self, error: SitsError) -> None:
        """No (complete) answer will come. Codes: upstream_unreachable, upstream_broken, upstream_timeout, model_*."""


class Call(Protocol):
    """One attempt under way, as its owner holds it."""

    @property
    def connect_time(self) -> float:
        """Seconds spent on making a connection; 0.0 when a pooled one was used."""

    @property
    def reused(self) -> bool:
        """Whether a pooled connection carried it."""

    @property
    def started(self) -> bool:
        """Whether any byte of the request may have reached the server: False means that a retry is provably safe."""

    def cancel(self) -> None:
        """Give the attempt up and close what carries it, at once. Safe to repeat; the reply hears nothing more."""

    def pause(self) -> None:
        """Stop reading from the server (the client is slow). Safe to repeat."""

    def resume(self) -> None:
        """Undo `pause`."""


class Engine(Protocol):
    """Sends requests to one target. Made by a snapshot, shared by every request on that target."""

    def send(self, request: Outgoing, reply: Reply, deadlines: Deadlines) -> Call:
        """Start the request; never blocks, never raises: whatever goes wrong is told to `reply.fail`."""

    async def probe(self, path: str | None, deadlines: Deadlines) -> None:
        """Ask the target whether it is well.

        Raises:
            SitsError: it is not; the message says what was asked and what came back.
        """

    async def aclose(self) -> None:
        """Close idle connections now and busy ones when they are done; later `send`s fail."""
