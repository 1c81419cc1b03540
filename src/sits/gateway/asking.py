"""The gateway asks a model itself, for nobody who waits outside: by the same way as a client's request, so it is in the records,
the metrics and the ledger, and no cache answers in the model's place."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import perf_counter

from sits import dialects
from sits.engines.base import Headers
from sits.gateway import spine
from sits.gateway.billing import bill
from sits.gateway.conduct import Conduct
from sits.gateway.drive import Drive
from sits.gateway.exchange import NOTHING, Exchange
from sits.gateway.running import run
from sits.gateway.service import OPERATIONS, Service
from sits.gateway.wire import Listener, Request
from sits.inner.ask import Operation
from sits.inner.errors import Code, SitsError
from sits.routing.plan import Plan
from sits.routing.scheduling.base import Facts
from sits.routing.target import Target
from sits.security.keys import KeyIdentity

_log = logging.getLogger("sits.gateway")
_PATHS = {operation: path for path, operation in OPERATIONS.items()}
LARGEST_SAID = 500
"""Characters of an error's body that go into its message."""


class Answered:
    """A wire to ourselves: holds the answer until it is whole."""

    __slots__ = ("_body", "done", "gone", "listener")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.gone = False
        self.listener: Listener | None = None
        self.done: asyncio.Future[tuple[int, bytes]] = loop.create_future()
        self._body = bytearray()

    def respond(self, status: int, headers: Headers, body: bytes, lines: bytes = b"") -> None:
        self._end(status, body)

    def open(self, status: int, headers: Headers, first: bytes = b"", lines: bytes = b"") -> None:
        self._body += first

    def write(self, piece: bytes) -> None:
        self._body += piece

    def close(self, last: bytes = b"") -> None:
        self._end(200, bytes(self._body + last))

    def abort(self) -> None:
        self._end(502, b"")

    def _end(self, status: int, body: bytes) -> None:
        if not self.done.done():
            self.done.set_result((status, body))


async def ask(
    service: Service,
    target: Target,
    operation: Operation,
    body: bytes,
    who: str,
    *,
    key: KeyIdentity | None = None,
    behind: str = "probe",
    called: str = "",
    others: Sequence[Target] = (),
    conduct: Conduct | None = None,
    trace: bytes = b"",
    adapter: str = "",
    over: Callable[[Exchange], None] | None = None,
) -> bytes:
    """The body of the answer of this target and no other, but where it fails of `others`, in order and as `conduct` says. `who`
    asks, for the record; `key` is whose it is in the ledger, and `behind` why it is asked. In the books it stands as asked for by
    the name `called`, or that of the target; `trace` is the `traceparent` of what it belongs to. `adapter` is asked for of
    those who have it. `over` is told of its end.

    Raises:
        SitsError: what the model server said, or why it was not reached.
    """
    path = _PATHS[operation]
    headers = {b"content-type": b"application/json"}
    if trace:
        headers[b"traceparent"] = trace
    request = Request(b"POST", path, b"", headers, body, who, perf_counter())
    wire = Answered(service.loop)
    x = Exchange(service, request, wire, operation, dialects.client(operation))
    x.key, x.behind = key, behind
    if adapter:
        x.facts = Facts(operation, NOTHING, headers, body)
        x.facts.adapter = adapter
    service.live.add(x)
    x.table.live += 1
    wire.listener = x
    x.drive = Drive(_serve(x, (target, *others), called, conduct, over))
    try:
        status, answer = await wire.done
    except asyncio.CancelledError:
        wire.gone = True
        x.on_gone()
        raise
    if x.error is not None:
        raise x.error
    if status != 200:
        said = answer[:LARGEST_SAID].decode("utf-8", "replace")
        raise SitsError(Code.UPSTREAM_ERROR, f"status {status}: {said}")
    return answer


async def _serve(
    x: Exchange, targets: Sequence[Target], called: str, conduct: Conduct | None, over: Callable[[Exchange], None] | None
) -> None:
    try:
        spine.understand(x)
        spine.find(x)
        x.conduct = conduct or x.conduct
        # Whoever has taken their place, and whatever breakers say: it is these that are wanted.
        x.plan = Plan(targets)
        attempt = await run(x)
        _book(x, None, called)
        spine.answer(x, attempt)
    except SitsError as error:
        _book(x, error, called)
        spine.refuse(x, error)
    except Exception:
        spine.fail(x, "a defect while asking a model")
    finally:
        if over is not None:
            over(x)
        x.requested = called or x.requested
        spine.record(x)


def _book(x: Exchange, error: SitsError | None, called: str) -> None:
    """Put it into the ledger by its name there. The head of its answer, which nobody reads, knows only what can be asked for."""
    if called:
        asked, x.requested = x.requested, called
        bill(x, error)
        x.requested = asked
