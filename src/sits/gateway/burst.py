"""Pieces that come faster than anybody can tell apart are sent together.

A write to a socket costs more than all we do to a piece: 11 of 33 us of a paced stream's chunk. The first piece after a pause
goes at once; one that follows within `CLOSE` seconds waits, with all that come after it, for `HOLD` seconds at most. A stream
of 50 events that a fast server sends in one go becomes a few writes rather than 50; a model's tokens, which come 5 ms apart and
more, are never held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sits.gateway.wire import Wire

CLOSE = 0.0005
"""Seconds."""
HOLD = 0.001
"""Seconds."""
ENOUGH = 16 * 1024
"""Bytes that are not held any longer."""


class Burst:
    """What stands between the pieces of one streamed answer and its wire."""

    __slots__ = ("_clock", "_held", "_last", "_loop", "_size", "_timer", "_wire")

    def __init__(self, wire: Wire, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], last: float = 0.0) -> None:
        """`last` is when the piece before the first one was sent, on `clock`."""
        self._wire = wire
        self._loop = loop
        self._clock = clock
        self._last = last
        self._held: list[bytes] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    def write(self, piece: bytes) -> None:
        """Send a piece, now or together with its successors."""
        now = self._clock()
        soon = now - self._last < CLOSE
        self._last = now
        if not soon and not self._held:
            self._wire.write(piece)
            return
        self._held.append(piece)
        self._size += len(piece)
        if self._size >= ENOUGH:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(HOLD, self.flush)

    def take(self) -> bytes:
        """What is held, for whoever sends it now; leaves no timer behind."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, []
        self._size = 0
        return held[0] if len(held) == 1 else b"".join(held)

    def flush(self) -> None:
        """Send what is held."""
        if self._held:
            self._wire.write(self.take())
