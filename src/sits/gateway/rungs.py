"""Down the ladder: what an exchange is answered with when no model answers, or none soon enough.

    live -> cache -> template

`lower` is called where an exchange is about to be refused. `Live` is the clock of a route that gives its models only so long
while a kept answer lies below. Both look things up anew rather than carry them along: a request that goes well pays nothing.
"""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter
from typing import TYPE_CHECKING

from sits.dialects.base import Identity
from sits.gateway.billing import bill
from sits.inner.errors import Code, SitsError
from sits.resilience.ladder import WORDED, Rung, leads_down, template
from sits.state.cache.answer import Answer

if TYPE_CHECKING:
    from sits.gateway.exchange import Exchange
    from sits.gateway.recall import How, Recall, RouteCache
    from sits.resources.reliability import LadderSpec

_log = logging.getLogger("sits.gateway")

PATIENCE = 0.25
"""Seconds that the index and the store have for a kept answer; the next rung is taken then."""
MISS = b"x-sits-cache: miss\r\n"
JSON = b"application/json"

Found = tuple["Recall", "How", Answer]


class Live:
    """How long the models have for the first content of one exchange. `found` is what they lost to; whoever makes one calls
    `end`."""

    __slots__ = ("_cache", "_ended", "_seconds", "_timer", "_x", "found")

    def __init__(self, x: Exchange, cache: RouteCache, seconds: float) -> None:
        self._x = x
        self._cache = cache
        self._seconds = seconds
        self._ended = False
        self.found: Found | None = None
        self._timer = x.service.loop.call_later(max(0.0, seconds - (perf_counter() - x.admitted)), self._due)

    def end(self) -> None:
        """The models have answered, or failed by themselves. Safe to repeat."""
        self._ended = True
        self._timer.cancel()

    def _due(self) -> None:
        if not self._settled():
            # Ports want a task, and an exchange has none.
            self._x.service.caches.behind(self._look(), must=True)

    async def _look(self) -> None:
        x = self._x
        found = await find(x, self._cache)
        if found is None or self._settled():
            return
        recalling, _, answer = found
        try:
            if recalling.body(answer) is None:
                return
        except SitsError:
            return  # It cannot be said as the client wants it.
        self.found = found
        if x.seat is not None:
            x.seat.leave()
        # It says nothing of the model's health, and another one would be as late.
        x.cut(SitsError(Code.OUTRUN, f"no content within {self._seconds:g} s (liveSeconds of the ladder), and an answer is kept"))

    def _settled(self) -> bool:
        """Whether there is nothing to be done: it is over, or content has come."""
        x = self._x
        if self._ended or x.gone or x.content or x.ending is not None:
            return True
        return any(one.first or (one.over.happened and one.error is None) for one in x.attempts[-1:])


def live(x: Exchange, cache: RouteCache) -> Live | None:
    """The clock of an exchange whose route has one. A client that wants no other answer than a live one has its way."""
    return None if cache.live is None or _refused(x) else Live(x, cache, cache.live)


async def lower(x: Exchange, error: SitsError) -> bool:
    """Answer an exchange that is about to be refused by a lower rung of its route's ladder; whether it is answered.

    Nothing but comments may have reached the client. Raises nothing: a defect here leaves the error as it was.
    """
    spec = ladder(x, error)
    if spec is None:
        return False
    sent = x.sent_bytes
    try:
        cache = x.table.caches.get(x.requested)
        late = x.live.found if x.live is not None else None
        found = late
        if late is not None:
            error = SitsError(Code.UPSTREAM_TIMEOUT, error.message)
        if found is None and cache is not None and cache.ladder:
            found = await find(x, cache)
        if found is not None and give(x, found, error):
            if late is not None:
                renew(x, late)
            return True
        return spec.template is not None and word(x, spec.template, error)
    except Exception:
        _log.exception("a defect on the ladder", extra={"request_id": x.id})
        return x.sent_bytes > sent


def ladder(x: Exchange, error: SitsError) -> LadderSpec | None:
    """The ladder that an error leads down, if it does."""
    spec = x.conduct.ladder if x.conduct is not None else None
    if spec is None or x.gone or x.content or _refused(x):
        return None
    late = x.live is not None and x.live.found is not None
    return spec if late or leads_down(error) else None


async def find(x: Exchange, cache: RouteCache) -> Found | None:
    """The kept answer that may stand in, if there is one; waits for no more than `PATIENCE`."""
    caches = x.service.caches
    recalling = caches.recall(x, cache)
    if recalling is None:
        return None
    loop = x.service.loop
    looking = loop.create_task(recalling.fallen(caches.wall()))
    timer = loop.call_later(PATIENCE, looking.cancel)
    # The task itself is not awaited: its cancellation would be taken for the exchange's own.
    ended: asyncio.Future[None] = loop.create_future()
    looking.add_done_callback(lambda _: ended.set_result(None))
    await ended
    timer.cancel()
    if looking.cancelled():
        _log.warning("no kept answer within %g s", PATIENCE, extra={"request_id": x.id})
        return None
    try:
        found = looking.result()
    except SitsError as error:
        _log.info("no kept answer: %s", error.message, extra={"request_id": x.id})
        return None
    return (recalling, *found) if found is not None else None


def give(x: Exchange, found: Found, error: SitsError) -> bool:
    """Answer by what was kept; False when that cannot be said as the client wants it."""
    recalling, how, answer = found
    try:
        body = recalling.body(answer)
    except SitsError:
        body = None
    if body is None:
        return False
    now = x.service.caches.wall()
    x.cache = recalling.what(how, answer, now)
    x.more = x.more.replace(MISS, b"") + recalling.lines(answer, now)
    _send(x, Rung("cache", error.code.value, answer.age(now)), body, answer.content_type)
    return True


def word(x: Exchange, text: str, error: SitsError) -> bool:
    """Answer by a text; False when the client wants what no text is."""
    if x.operation not in WORDED:
        return False
    try:
        body = template(x.client, x.ask(), text, Identity(x.id, x.requested, int(x.wall)), stream=x.stream)
    except SitsError:
        return False  # The request has something in it that only its own server reads.
    if body is None:
        return False
    # It is nobody's answer: neither kept nor gone on from.
    x.copy = x.remembering = None
    _send(x, Rung("template", error.code.value), body, JSON)
    return True


def _send(x: Exchange, rung: Rung, body: bytes, content_type: bytes) -> None:
    x.rung = rung
    bill(x, None)
    if x.opened:
        x.write(rung.comment + body)
        x.close()
        return
    x.more += rung.lines
    last = x.attempts[-1] if x.attempts else None
    if x.stream:
        x.open(last, body)
        x.close()
    else:
        x.respond(200, x.lines(last, content_type), body)


def renew(x: Exchange, found: Found) -> None:
    """The models are not down but slow: have one of the next clients get a newer answer, if it is time for that."""
    recalling, _, answer = found
    renewal = recalling.renewal(answer)
    if renewal is None:
        return
    try:
        x.service.renew(x, renewal)
    except Exception:
        renewal.over(kept=False)
        _log.exception("a defect while renewing an answer", extra={"request_id": x.id})


def _refused(x: Exchange) -> bool:
    """The client wants an answer of who it asked for or none, as it says of fallbacks."""
    return x.alone
