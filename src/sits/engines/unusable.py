"""The engine of a target that cannot be asked at all: a secret that is not there, a TLS file that cannot be read.

It says why on every request, so that the rest of the configuration serves and a route's fallbacks take over.
"""

from __future__ import annotations

import asyncio

from sits.engines.base import Deadlines, Outgoing, Reply
from sits.inner.errors import Code, SitsError


class _Never:
    """A call that was over before it began."""

    __slots__ = ("connect_time", "reply", "reused", "started")

    def __init__(self, reply: Reply) -> None:
        self.connect_time = 0.0
        self.reused = False
        self.started = False
        self.reply: Reply | None = reply

    def fail(self, error: SitsError) -> None:
        if self.reply is not None:
            self.reply.fail(error)

    def cancel(self) -> None:
        self.reply = None

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class UnusableEngine:
    """An `Engine` that fails every request with `model_unavailable` and the reason."""

    __slots__ = ("_loop", "reason")

    def __init__(self, reason: str, loop: asyncio.AbstractEventLoop) -> None:
        self.reason = reason
        self._loop = loop

    def _error(self) -> SitsError:
        return SitsError(Code.MODEL_UNAVAILABLE, self.reason)

    def send(self, request: Outgoing, reply: Reply, deadlines: Deadlines) -> _Never:
        call = _Never(reply)
        self._loop.call_soon(call.fail, self._error())
        return call

    async def probe(self, path: str | None, deadlines: Deadlines) -> None:
        raise self._error()

    async def aclose(self) -> None: ...
