"""What an answer that is made later needs of the gateway: to be asked for, in an exchange of its own, and to be sent on.

    room              when its turn has come
    Making            the request once more, to nobody but the store
    Callbacks         answers on their way to whoever wants to be called

The key is looked up anew when its turn comes: one that was taken away meanwhile gets nothing. Tokens and cost are the key's, as
for any answer of its; the request itself was counted when it was taken on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING

from sits.dialects.base import ClientDialect
from sits.engines.base import Deadlines, Headers, Outgoing
from sits.engines.remote import RemoteEngine, parse_address
from sits.gateway import spine
from sits.gateway.drive import Drive
from sits.gateway.exchange import Exchange
from sits.gateway.running import run
from sits.gateway.wire import Listener, Request
from sits.inner.ask import Operation
from sits.inner.errors import Code, SitsError
from sits.inner.sweep import Sweep
from sits.resilience.colours import Tint
from sits.resilience.later import LARGEST_ANSWER, Made, Wanted
from sits.resilience.qos.classes import P2
from sits.resilience.qos.gate import Gate

if TYPE_CHECKING:
    from sits.gateway.service import Service

_log = logging.getLogger("sits.gateway")

JSON = b"application/json"
TOLD = frozenset(
    (b"x-sits-served", b"x-sits-target", b"x-sits-requested", b"x-sits-attempts", b"x-sits-cache", b"x-sits-pieces", b"age")
)
"""What is kept of an answer's fields, besides its type and the tint."""
TINT = frozenset((b"x-traffic-color", b"x-experiment-id"))
SECONDS = Deadlines(connect=5.0, headers=10.0, first_token=10.0, idle=10.0, total=15.0)
"""Of a callback."""
LOOK_SECONDS = 0.1
MOST_ORIGINS = 64
"""Servers that are called, whose connections are kept."""


async def room(gates: Mapping[str, Gate], route: str, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Wait until a route is no longer overloaded and somebody who comes would go in at once. Gates tell nobody when that is, so
    they are looked at, as often as they look at themselves."""
    while (gate := gates.get(route)) is not None and (gate.overloaded or not gate.free):
        await sleep(LOOK_SECONDS)


class Gathered:
    """A wire to nobody that keeps the answer, up to `LARGEST_ANSWER` bytes of it; `over` is done when it is complete."""

    __slots__ = ("_pieces", "_size", "fields", "gone", "listener", "over", "status", "whole")

    def __init__(self, over: asyncio.Future[None]) -> None:
        self.gone = False
        self.listener: Listener | None = None
        self.over = over
        self.status = 0
        self.fields: Headers = []
        self.whole = False
        self._pieces: list[bytes] = []
        self._size = 0

    @property
    def body(self) -> bytes:
        return b"".join(self._pieces)

    @property
    def too_large(self) -> bool:
        return self._size > LARGEST_ANSWER

    def respond(self, status: int, headers: Headers, body: bytes, lines: bytes = b"") -> None:
        self.open(status, headers, body, lines)
        self.close()

    def open(self, status: int, headers: Headers, first: bytes = b"", lines: bytes = b"") -> None:
        self.status = status
        self.fields = [*headers, *_fields(lines)]
        self.write(first)

    def write(self, piece: bytes) -> None:
        self._size += len(piece)
        if not self.too_large:
            self._pieces.append(piece)

    def close(self, last: bytes = b"") -> None:
        self.write(last)
        self.whole = True
        self._end()

    def abort(self) -> None:
        self._end()

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


def _fields(lines: bytes) -> Headers:
    found: Headers = []
    for line in lines.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if colon:
            found.append((name.lower(), value.strip()))
    return found


class Making:
    """Asks the models for what was taken on. `clients`: the client dialects, by operation; `made` hears of each answer: request
    id, status, tint."""

    def __init__(
        self,
        service: Service,
        clients: Callable[[Operation], ClientDialect],
        made: Callable[[str, int, Tint], None] | None = None,
    ) -> None:
        self._service = service
        self._clients = clients
        self._told = made

    async def ask(self, job: Wanted) -> Made:
        """The answer to a request that was kept, or the error that it ends with."""
        service = self._service
        client = self._clients(job.operation)
        wire = Gathered(service.loop.create_future())
        headers = dict(job.headers)
        headers[b"cache-control"] = b"no-cache"  # The real one is wanted: what is kept, the client has been given.
        x = Exchange(service, Request(b"POST", job.path, b"", headers, job.body, "", perf_counter()), wire, job.operation, client)
        x.behind = "later"
        wire.listener = x
        service.live.add(x)
        x.table.live += 1
        x.drive = Drive(self._serve(x, job))
        try:
            await wire.over
        except asyncio.CancelledError:
            x.on_gone()
            raise
        made = _made(x, wire, client)
        if self._told is not None:
            self._told(x.id, made.status, x.tint)
        return made

    async def _serve(self, x: Exchange, job: Wanted) -> None:
        """As `spine.serve`, for somebody who was admitted before."""
        try:
            x.key = x.table.authenticator.named(job.key, x.wall)
            spine.understand(x)
            await spine.decide(x)
            x.priority = P2
            await spine.hold_use(x)
            if x.operation == "responses":
                await spine.go_on(x)
            if x.conduct is not None and x.conduct.fitness is not None:
                await spine.fit(x, x.conduct.fitness)
            cache = x.table.caches.get(x.requested) if x.table.caches else None
            if cache is not None:
                await spine.recall(x, cache)
            else:
                spine.answer(x, await run(x))
        except SitsError as error:
            spine.refuse(x, error)
        except Exception:
            spine.fail(x, "a defect while making an answer later")
        finally:
            if not x.wire.gone and isinstance(x.wire, Gathered):
                x.wire.abort()  # Whoever was refused after he had gone has been told nothing.
            spine.record(x)


def _made(x: Exchange, wire: Gathered, client: ClientDialect) -> Made:
    fields = dict(wire.fields)
    kept = [(name, value) for name, value in wire.fields if name in TOLD or name in TINT]
    error = x.error
    if error is None and wire.too_large:
        message = f"the answer is larger than the {LARGEST_ANSWER} bytes that are kept"
        error = SitsError(Code.TOO_LARGE, message)
    if error is None and wire.whole:
        return Made(wire.status, fields.get(b"content-type", JSON), wire.body, kept)
    error = error or SitsError(Code.INTERNAL, "the answer was cut")
    # Also where a stream broke: nobody has its beginning, so the error stands for all of it.
    return Made(error.status, JSON, client.error(error, x.id), kept, error.code.value, error.retry_after)


class Callbacks:
    """Sends answers to URLs. One pool of connections for each server; no redirect is followed, and no answer is read."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sweep: Sweep,
        environment: Mapping[str, str],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._loop = loop
        self._sweep = sweep
        self._environment = environment
        self._clock = clock
        self._engines: dict[str, RemoteEngine] = {}

    async def call(self, url: str, id: str, made: Made) -> bool:
        """Send an answer; whether it was taken, which any 2xx says."""
        scheme, _, rest = url.partition("://")
        authority, slash, path = rest.partition("/")
        fields: Headers = [
            (b"content-type", made.content_type),
            (b"x-sits-later-id", id.encode()),
            (b"x-sits-later-status", b"done" if made.good else b"failed"),
            (b"x-sits-status", b"%d" % made.status),
            (b"user-agent", b"sits"),
            *made.headers,
        ]
        if made.code:
            fields.append((b"x-sits-error", made.code.encode()))
        taken = _Taken(self._loop.create_future())
        try:
            engine = await self._engine(f"{scheme}://{authority.partition('?')[0]}")
            call = engine.send(Outgoing(b"POST", (slash or "/").encode() + path.encode(), fields, made.body), taken, SECONDS)
            try:
                status = await taken.status
            finally:
                call.cancel()
        except (SitsError, ValueError) as error:
            _log.info("a callback was not taken: %s", error)
            return False
        if not 200 <= status < 300:
            _log.info("a callback was answered %d", status)
        return 200 <= status < 300

    async def aclose(self) -> None:
        """Close the connections."""
        for engine in self._engines.values():
            await engine.aclose()
        self._engines.clear()

    async def _engine(self, origin: str) -> RemoteEngine:
        found = self._engines.get(origin)
        if found is None:
            if len(self._engines) >= MOST_ORIGINS:
                oldest = next(iter(self._engines))
                await self._engines.pop(oldest).aclose()
            found = self._engines[origin] = RemoteEngine(
                parse_address(origin), sweep=self._sweep, loop=self._loop, environment=self._environment, clock=self._clock
            )
        return found


class _Taken:
    """A `Reply` of which only the status is wanted."""

    __slots__ = ("status",)

    def __init__(self, status: asyncio.Future[int]) -> None:
        self.status = status

    def head(self, status: int, headers: Headers) -> None:
        if not self.status.done():
            self.status.set_result(status)

    def data(self, piece: bytes) -> None:
        """What it says is nothing to us."""

    def end(self) -> None:
        """Nor when it ends."""

    def fail(self, error: SitsError) -> None:
        if not self.status.done():
            self.status.set_exception(error)
