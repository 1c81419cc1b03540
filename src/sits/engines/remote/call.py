"""One attempt under way, as its owner holds it."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from sits.engines.base import Deadlines, Outgoing, Reply
from sits.inner.errors import SitsError


class Carrier(Protocol):
    """The connection that carries a call."""

    def abandon(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Queue(Protocol):
    """Where a call is while no connection carries it."""

    def withdraw(self, call: RemoteCall) -> None: ...
    def overdue(self, call: RemoteCall, now: float) -> None: ...


class RemoteCall:
    """A `Call` of the remote engine; `reply` is None once the call is over, whichever way."""

    __slots__ = (
        "_queue", "carrier", "connect_time", "deadlines", "due", "ends", "head", "paused", "reply", "request", "resent",
        "reused", "since", "started", "task",
    )  # fmt: skip

    def __init__(self, queue: Queue, request: Outgoing, reply: Reply, deadlines: Deadlines, head: bytes, now: float) -> None:
        self._queue = queue
        self.request = request
        self.reply: Reply | None = reply
        self.deadlines = deadlines
        self.head = head
        self.due = self.ends = now + deadlines.total
        """`ends` is when the total deadline passes; `due` is watched while no connection carries the call."""
        self.since = now
        """When the making of a connection began."""
        self.connect_time = 0.0
        self.reused = False
        self.started = False
        self.resent = False
        self.paused = False
        self.carrier: Carrier | None = None
        self.task: asyncio.Task[Any] | None = None
        """Makes the connection; this call owns it."""

    def cancel(self) -> None:
        if self.reply is None:
            return
        self.reply = None
        if self.carrier is not None:
            self.carrier.abandon()
        else:
            self._queue.withdraw(self)

    def pause(self) -> None:
        self.paused = True
        if self.carrier is not None:
            self.carrier.pause()

    def resume(self) -> None:
        self.paused = False
        if self.carrier is not None:
            self.carrier.resume()

    def fail(self, error: SitsError) -> None:
        """Tell the reply, unless the call is over."""
        reply = self.reply
        self.reply = None
        if reply is not None:
            reply.fail(error)

    def expire(self, now: float) -> None:
        if self.due <= now and self.reply is not None:
            self._queue.overdue(self, now)
