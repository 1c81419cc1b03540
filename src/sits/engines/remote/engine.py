"""A target behind HTTP/1.1: any model server, near or far."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial

from sits.engines.base import Call, Deadlines, Headers, Outgoing, Reply
from sits.engines.remote.address import Address
from sits.engines.remote.call import RemoteCall
from sits.engines.remote.connection import AnswerLimits, Connection
from sits.engines.remote.dial import Route, dial
from sits.engines.remote.pool import Pool, PoolLimits
from sits.engines.remote.proxy import proxy_for
from sits.engines.remote.request import HeadWriter
from sits.engines.remote.tls import client_context
from sits.inner.errors import Code, Remedy, SitsError
from sits.inner.sweep import Sweep
from sits.inner.turn import Turn
from sits.resources.kinds import PoolSpec, Tls

SILENT_IDLE_SECONDS = 4.0
"""How long an unencrypted connection is kept whose server does not say how long it keeps it. uvicorn, under vLLM and SGLang,
closes after 5 s and says nothing; closing first means that no POST meets a connection that is just going away."""
WAITING = 10_000
"""Calls that may wait for a connection to one target."""


class RemoteEngine:
    """An `Engine` over pooled connections. Nothing is told to a reply before `send` has returned.

    `sweep` must be run by whoever owns it, with the time of `clock`: every deadline hangs on that. `send` and the rest are
    called in the thread of `loop`. `probe_headers` go with every probe (the target's own credential).

    Raises:
        ValueError: a TLS file cannot be used, or the environment declares a proxy of a kind that is not spoken.
    """

    __slots__ = ("_clock", "_closed", "_heads", "_loop", "_pool", "_probe_headers", "_turn", "address")

    def __init__(
        self,
        address: Address,
        *,
        sweep: Sweep,
        loop: asyncio.AbstractEventLoop,
        pool: PoolSpec | None = None,
        tls: Tls | None = None,
        environment: Mapping[str, str] | None = None,
        limits: AnswerLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        probe_headers: Headers | None = None,
        waiting: int = WAITING,
        turn: Turn | None = None,
    ) -> None:
        pool = pool or PoolSpec()
        proxy = proxy_for(address, environment or {})
        context = client_context(tls) if address.secure else None
        route = Route(address, proxy, context, tls.server_name if tls is not None else None)
        self.address = address
        self._loop = loop
        self._clock = clock
        self._closed = False
        self._turn = turn
        self._probe_headers = probe_headers or []
        self._heads = HeadWriter(address, proxy)
        silent = pool.idle_seconds if address.secure else min(pool.idle_seconds, SILENT_IDLE_SECONDS)
        pool_limits = PoolLimits(pool.connections, pool.idle_connections, pool.idle_seconds, silent, waiting)
        make = partial(self._make, route.label, limits or AnswerLimits())
        self._pool = Pool(route.label, partial(dial, loop, route, make), pool_limits, sweep, loop, clock)

    def _make(self, label: str, limits: AnswerLimits) -> Connection:
        return Connection(self._pool, label, limits, self._clock, self._turn)

    @property
    def connections(self) -> int:
        """Connections that are open or being made."""
        return self._pool.open

    @property
    def idle(self) -> int:
        """Connections that wait for work."""
        return len(self._pool.idle)

    @property
    def waiting(self) -> int:
        """Calls that wait for a connection."""
        return len(self._pool.waiting)

    def send(self, request: Outgoing, reply: Reply, deadlines: Deadlines) -> Call:
        now = self._clock()
        try:
            head = self._heads.write(request)
        except ValueError as error:
            call = RemoteCall(self._pool, request, reply, deadlines, b"", now)
            self._loop.call_soon(call.fail, SitsError(Code.INTERNAL, str(error), remedy=Remedy.TRY_ELSEWHERE))
            return call
        call = RemoteCall(self._pool, request, reply, deadlines, head, now)
        self._pool.carry(call, now)
        return call

    async def probe(self, path: str | None, deadlines: Deadlines) -> None:
        """Ask the target whether it is well: GET `path`; when not given "/health", and "/v1/models" where that is a 404.

        Raises:
            SitsError: it is not; the message says what was asked and what came back.
        """
        asked = path or "/health"
        status, body = await self._get(asked, deadlines)
        if status == 404 and path is None:
            asked = "/v1/models"
            status, body = await self._get(asked, deadlines)
        if not 200 <= status < 300:
            code = Code.UPSTREAM_AUTH if status in (401, 403) else Code.UPSTREAM_ERROR
            said = body.decode("utf-8", "replace").strip()
            raise SitsError(code, f"GET {asked} of {self.address.origin} answered {status}" + (f": {said}" if said else ""))

    async def _get(self, path: str, deadlines: Deadlines) -> tuple[int, bytes]:
        answer = _Answer(self._loop.create_future())
        headers = [(b"accept", b"*/*"), (b"user-agent", b"sits"), *self._probe_headers]
        call = self.send(Outgoing(b"GET", path.encode(), headers, b""), answer, deadlines)
        try:
            return await answer.done
        finally:
            call.cancel()

    async def aclose(self) -> None:
        """Close idle connections now and busy ones when they are done; later `send`s fail. Does not wait for the busy ones."""
        self._pool.close()


class _Answer:
    """A `Reply` that keeps the status and the beginning of the body."""

    __slots__ = ("_body", "_status", "done")
    KEPT = 500

    def __init__(self, done: asyncio.Future[tuple[int, bytes]]) -> None:
        self.done = done
        self._status = 0
        self._body = b""

    def head(self, status: int, headers: Headers) -> None:
        self._status = status

    def data(self, piece: bytes) -> None:
        self._body = (self._body + piece)[: self.KEPT]

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result((self._status, self._body))

    def fail(self, error: SitsError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
