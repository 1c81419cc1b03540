"""The gateway of one process: takes requests, holds what is in force, ends what it started.

Everything that lives as long as the process hangs here: the table that requests are served by, the sweep that watches
deadlines, metrics, records and logs. Clocks and randomness are passed in.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING

from sits import dialects
from sits.gateway import spine
from sits.gateway.admission import leave
from sits.gateway.books import Books
from sits.gateway.conversations import Conversations
from sits.gateway.drive import Drive
from sits.gateway.exchange import Exchange
from sits.gateway.quotas import settled
from sits.gateway.recall import Caches
from sits.gateway.renewal import Nowhere, Renewal, again
from sits.gateway.shadowing import Shadowing
from sits.gateway.standing import Standing
from sits.gateway.substituting import Substituting
from sits.gateway.table import Table
from sits.gateway.thinking import settle
from sits.gateway.wire import Request, Wire
from sits.inner.ask import Operation
from sits.inner.errors import Code, SitsError
from sits.inner.sweep import Sweep
from sits.observe.log import LineWriter
from sits.observe.metrics import Registry
from sits.observe.record import Ring
from sits.observe.redact import Redactor
from sits.observe.trace import Trace, request_id, trace
from sits.state.ledger import Ledger
from sits.state.limits import Limiter

if TYPE_CHECKING:
    from sits.gateway.counting import Fitness
    from sits.gateway.fitting import Chunks
    from sits.gateway.intent_classifier import IntentClassifier
    from sits.gateway.judging import Judging
    from sits.gateway.tracing import Tracing
    from sits.gateway.units import Merging
    from sits.resilience.later import Later
    from sits.resilience.pressure import Pressures
    from sits.state.outcomes import Outcomes
    from sits.state.tokens import Tokens

_log = logging.getLogger("sits.gateway")

OPERATIONS: dict[bytes, Operation] = {
    b"/v1/chat/completions": "chat",
    b"/v1/completions": "completions",
    b"/v1/embeddings": "embeddings",
    b"/v1/responses": "responses",
    b"/v1/messages": "messages",
    b"/v1/messages/count_tokens": "count_tokens",
}
"""The data plane: each takes POST and goes down the spine."""

Aside = Callable[[Request, Wire], None]
"""Takes every request that is not for the data plane."""


class Service:
    """One process's gateway. `handle` is the `Handler` that the fronts call."""

    # What is there only once it is declared, or started.
    merging: Merging | None = None
    """Units of routes that are merged and split, once the gateway has started."""
    pressures: Pressures | None = None
    """The policies that act under pressure, once one is declared."""
    classifier: IntentClassifier | None = None
    """Reads what requests want, once a Domain is declared."""
    fits: Callable[[Exchange, Fitness], Awaitable[Chunks | None]] | None = None
    """Holds prompts against the windows of models."""
    tokens: Tokens | None = None
    """Counts prompts."""
    outcomes: Outcomes | None = None
    """What routes learn from."""
    judging: Judging | None = None
    """Asks models how good answers were."""
    tracing: Tracing | None = None
    """Records traffic, where Settings say so."""
    later: Later | None = None
    """Answers that are made later, once there is a store for them."""

    def __init__(
        self,
        table: Table,
        sweep: Sweep,
        redactor: Redactor,
        registry: Registry,
        lines: LineWriter,
        aside: Aside,
        caches: Caches,
        limits: Limiter,
        ledger: Ledger | None,
        conversations: Conversations,
        standing: Standing,
        substituting: Substituting,
        *,
        loop: asyncio.AbstractEventLoop,
        chance: random.Random,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.table = table
        self.caches = caches
        self.limits = limits
        self.ledger = ledger
        self.conversations = conversations
        self.standing = standing
        self.substituting = substituting
        self.breakers = standing.breakers
        self.switches = standing.switches
        standing.declare(table)
        self.before_drain: list[Callable[[], Awaitable[None]]] = []
        """What is to end before requests are waited for: they are its own."""
        self.sweep = sweep
        self.redactor = redactor
        self.registry = registry
        self.lines = lines
        self.loop = loop
        self.wall = wall
        self.random = chance.random
        self.live: set[Exchange] = set()
        self.draining = False
        self.books = Books(registry, Ring(table.snapshot.settings.records), lines, loop)
        self.comment_seconds = table.snapshot.settings.sse_keep_alive_seconds
        self._bits = chance.getrandbits
        self._aside = aside
        self._clients = {path: dialects.client(operation) for path, operation in OPERATIONS.items()}
        self._idle: asyncio.Future[None] | None = None
        self.shadowing = Shadowing(
            self, busy=lambda: any(gate.overloaded for gate in standing.gates.values()), counted=self._shadowed
        )
        self.shadowing.declare(table.conducts)

    def handle(self, request: Request, wire: Wire) -> None:
        """Take one request and answer it, now or later."""
        operation = OPERATIONS.get(request.path)
        if operation is None or request.method != b"POST":
            self._aside(request, wire)
            return
        x = Exchange(self, request, wire, operation, self._clients[request.path])
        self.live.add(x)
        x.table.live += 1
        wire.listener = x
        x.gone = wire.gone
        x.drive = Drive(spine.serve(x))

    def _shadowed(self, route: str, outcome: str) -> None:
        self.registry.shadows.series(route, outcome).value += 1

    def renew(self, asked: Exchange, renewal: Renewal) -> None:
        """Ask anew, for nobody who waits, what a client has been answered."""
        x = Exchange(self, again(asked.request), Nowhere(), asked.operation, asked.client)
        x.key = asked.key
        x.cache = x.behind = "renewal"
        renewal.exchange = x
        self.live.add(x)
        x.table.live += 1
        x.drive = Drive(spine.renew(x, renewal))

    def identify(self, headers: dict[bytes, bytes]) -> tuple[str, Trace]:
        """The request id and our span, continued from the client's headers where these are valid."""
        context = trace(headers.get(b"traceparent"), headers.get(b"tracestate"), self._bits)
        return request_id(headers.get(b"x-request-id"), self.wall(), self._bits), context

    def finish(self, x: Exchange) -> None:
        """An exchange is over: account for it and let go of it."""
        self.live.discard(x)
        self.sweep.discard(x)
        x.table.live -= 1
        x.ended = perf_counter()
        if x.held is not None:
            # What attempts used is read now: they are taken apart when the books are done.
            self.caches.behind(settled(x, x.held, self.limits), must=True)
            x.held = None
        if x.place is not None:
            leave(x, x.place)
        x.wire.listener = None
        if x.learned is not None:
            settle(x)
        self.books.take(x)
        if self._idle is not None and not self.live and not self._idle.done():
            self._idle.set_result(None)

    def take(self, table: Table) -> None:
        """Serve new requests by this table; those under way keep theirs."""
        old = self.table.snapshot.settings
        self.table = table
        self.standing.declare(table)
        self.shadowing.declare(table.conducts)
        settings = table.snapshot.settings
        self.comment_seconds = settings.sse_keep_alive_seconds
        if settings.records != old.records:
            self.books.resize(settings.records)
        self.redactor.learn(table.secrets)

    def hurry(self) -> None:
        """End the grace of a drain now."""
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def drain(self, seconds: float) -> int:
        """Wait until nothing is under way, at most so long; then tell what is left in-band and end it.

        Returns the number of exchanges that had to be cut.
        """
        self.draining = True
        self.caches.renewals.end()
        self.shadowing.end()
        for close in self.before_drain:
            await close()
        if self.live:
            self._idle = self.loop.create_future()
            await asyncio.wait([self._idle], timeout=seconds)
            if self.live:
                _log.warning("grace is over: %d answers are cut", len(self.live))
        left = list(self.live)
        for x in left:
            x.cut(
                SitsError(Code.DRAINING, "the gateway is shutting down and the grace for running answers is over", retry_after=1)
            )
        return len(left)
