"""What all client connections of one listener share: limits, clock, deadlines, the handler, whether the end has begun."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Protocol

from sits.gateway.wire import Handler
from sits.inner.sweep import Sweep
from sits.inner.turn import Turn
from sits.observe.trace import Bits, request_id
from sits.resources.kinds import Limits

LINGER_SECONDS = 30.0
"""How long a refused client may go on sending what nobody reads, so that it comes to read why (RFC 9112 9.6)."""
LINGER_IDLE_SECONDS = 5.0
LINGER_BYTES = 512 * 1024 * 1024
"""How much of it."""
STALL_SECONDS = 60.0
"""How long a client may take nothing of its answer before it is cut. One that takes some, however slowly, is not."""
TOLD = 256
"""How many connections above the limit are told so, and linger; the ones above that are cut, or the limit would be none."""
FIELDS = 256
"""The most header fields of one request."""
FRAMING_BYTES = 64 * 1024
"""Chunk sizes, extensions and trailers in a row, without a byte of the body among them."""
TARGET_BYTES = 8192
"""The longest request target (RFC 9112 3 asks for 8000 at least)."""
PIPELINED_BYTES = 64 * 1024
"""Requests waiting for the answer before them, from which on no more is read. Some are held rather than none, because a
connection that is not read does not tell either that its client has gone."""
PIPELINED_COST = 1024
"""What a waiting request counts for besides its body."""


class Closing(Protocol):
    """A connection that can be told that the end has begun."""

    def shutdown(self) -> None: ...


class Front:
    """Shared by every connection. `limits` may be replaced at any time and holds for requests that begin afterwards."""

    __slots__ = ("_bits", "_date", "_date_due", "clock", "connections", "draining", "handler", "limits", "sweep", "turn", "wall")

    def __init__(
        self,
        handler: Handler,
        limits: Limits,
        sweep: Sweep,
        *,
        clock: Callable[[], float] = time.perf_counter,
        wall: Callable[[], float] = time.time,
        bits: Bits | None = None,
        turn: Turn | None = None,
    ) -> None:
        self.turn = turn
        self.handler = handler
        self.limits = limits
        self.sweep = sweep
        self.clock = clock
        self.wall = wall
        self._bits = bits or random.Random().getrandbits  # noqa: S311 - ids, no secrets
        self.draining = False
        self.connections: set[Closing] = set()
        self._date = b""
        self._date_due = 0.0

    def date(self, now: float) -> bytes:
        """The value of the Date field (RFC 9110 6.6.1), made once a second."""
        if now >= self._date_due:
            wall = self.wall()
            self._date = formatdate(wall, usegmt=True).encode()
            self._date_due = now + 1.0 - wall % 1.0
        return self._date

    def request_id(self, headers: dict[bytes, bytes]) -> str:
        """For an answer that no gateway gives."""
        return request_id(headers.get(b"x-request-id"), self.wall(), self._bits)

    def drain(self) -> None:
        """From now on every answer ends its connection, and idle connections end at once."""
        self.draining = True
        for connection in list(self.connections):
            connection.shutdown()
