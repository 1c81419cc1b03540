"""One direction of a proxied connection: bytes on their way from one socket to the other, at once, late, slowly or held back."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable

WAITING = 256 * 1024
"""Bytes that may wait in one direction before its source is not read from any more."""
PIECES = 20
"""Pieces a second that a slow direction passes on."""


class Flow:
    """From `source` to `sink`, in order, whatever the delays. `done` is called when the end has been passed on."""

    __slots__ = (
        "_choked",
        "_done",
        "_due",
        "_ended",
        "_held",
        "_loop",
        "_paused",
        "_queue",
        "_size",
        "_timer",
        "passed",
        "sink",
        "source",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, done: Callable[[], None]) -> None:
        self._loop = loop
        self._done = done
        self._queue: collections.deque[tuple[float, bytes]] = collections.deque()
        self._size = 0
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._held = self._choked = self._paused = self._ended = False
        self.passed = 0
        """Bytes given to the sink."""
        self.source: asyncio.Transport | None = None
        self.sink: asyncio.Transport | None = None

    @property
    def finished(self) -> bool:
        """Whether everything, and its end, has been passed on."""
        return self._ended and not self._queue

    def push(self, piece: bytes, delay: float = 0.0, rate: float | None = None) -> None:
        """Pass a piece on `delay` seconds from now, and no faster than `rate` bytes a second."""
        if not piece:
            return
        if not self._queue and not self._held and delay <= 0 and rate is None:
            self._write(piece)
            return
        size = len(piece) if rate is None else max(1, int(rate / PIECES))
        for start in range(0, len(piece), size):
            part = piece[start : start + size]
            self._due = max(self._due, self._loop.time() + delay)
            if rate is not None:
                self._due += len(part) / rate
            self._queue.append((self._due, part))
        self._size += len(piece)
        self._regulate()
        self._flush()

    def finish(self) -> None:
        """Nothing more comes: the sink is told when all is passed on."""
        if not self._ended:
            self._ended = True
            self._flush()

    def hold(self) -> None:
        """Pass nothing on, and read no more than fits."""
        self._held = True
        self._regulate()

    def release(self) -> None:
        """Undo `hold`, and pass on at once what is late or slow."""
        self._held = False
        self._due = 0.0
        self._queue = collections.deque((0.0, piece) for _, piece in self._queue)
        self._flush()

    def choke(self, choked: bool) -> None:
        """The sink cannot take more, or can again."""
        self._choked = choked
        self._regulate()
        if not choked:
            self._flush()

    def stop(self) -> None:
        """Forget what waits; safe to repeat."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._queue.clear()
        self._size = 0
        self._ended = True

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._loop.time()
        while self._queue and not self._held and not self._choked:
            due, piece = self._queue[0]
            if due > now:
                self._timer = self._loop.call_at(due, self._flush)
                break
            self._queue.popleft()
            self._size -= len(piece)
            self._write(piece)
        self._regulate()
        if self._ended and not self._queue and not self._held:
            self._done()

    def _write(self, piece: bytes) -> None:
        sink = self.sink
        if sink is not None and not sink.is_closing():
            self.passed += len(piece)
            sink.write(piece)

    def _regulate(self) -> None:
        """Read from the source only while there is room for it."""
        full = self._choked or self._size > WAITING or (self._held and self._size > 0)
        source = self.source
        if full == self._paused or source is None or source.is_closing():
            return
        self._paused = full
        if full:
            source.pause_reading()
        else:
            source.resume_reading()
