"""Answers that are given again: what a route keeps, how an exchange asks for it, and how it is filled.

    exact -> semantic -> an equal question under way -> the models

The caches themselves are in `sits.state.cache`; here they meet the exchange. A route without a cache never comes here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import structs

from sits.gateway.billing import bill
from sits.gateway.grounding import NOWHERE, grounding
from sits.gateway.renewal import Renewal, Renewals
from sits.inner.errors import Code, SitsError
from sits.inner.sweep import Sweep
from sits.ports.store import Store
from sits.resources.caching import CacheSpec
from sits.resources.snapshot import Resolved
from sits.state.cache import replay
from sits.state.cache.answer import Answer, expiry, tags
from sits.state.cache.eviction import Limit
from sits.state.cache.exact import ExactCache
from sits.state.cache.fingerprint import Fingerprinter, Question, partition
from sits.state.cache.flight import Flights, Seat
from sits.state.cache.rules import ANY, FRESH, Policy, Wish, bypass, fault, wish
from sits.state.cache.shared import SharedCache
from sits.state.cache.tinylfu import TinyLfu

if TYPE_CHECKING:
    from sits.gateway.attempt import Attempt
    from sits.gateway.exchange import Exchange
    from sits.state.cache.semantic.cache import SemanticCache
    from sits.state.cache.semantic.query import Policy as SemanticPolicy
    from sits.state.cache.semantic.query import Query

_log = logging.getLogger("sits.cache")

How = Literal["hit", "semantic", "flight"]
"""Where an answer came from: the exact cache, other words for the same question, an equal question that was under way."""
GONE_STALE = {"hit": "stale", "semantic": "semantic-stale"}
"""What clients and records are told of one that has gone stale."""
SPREAD = 0.1
"""Share of its time that may be taken off an answer's, at random, so that what was made together does not go stale together."""
SWEEP_SECONDS = 1.0
MOST_BEHIND = 1024
"""Answers on their way into the semantic cache."""
ENTRY_BYTES = 4096
"""For how many answers there is room at the most: a mebibyte has 256 of this size."""


class RouteCache(msgspec.Struct, frozen=True):
    """What a route keeps, compiled. `models` identifies who may answer."""

    route: str
    models: str
    policy: Policy
    semantic: SemanticPolicy | None = None
    ladder: float = 0.0
    """The oldest answer, in seconds, that is given when no model can answer; 0 for none. So long they are kept."""
    live: float | None = None
    """Seconds that the models have for their first content while such an answer is there."""

    def wish(self, said: Wish) -> Wish:
        """A client's wish, as this route grants it: what is kept for the ladder is no hit."""
        return structs.replace(said, slack=self.policy.stale) if self.ladder else said


def route_cache(resolved: Resolved) -> RouteCache | None:
    """The cache of a name that can be asked for; None where nothing is kept."""
    route = resolved.route
    if route is None or route.spec.cache is None:
        return None
    spec = route.spec.cache
    policy = Policy(
        spec.ttl_seconds, spec.scope, spec.answer_bytes, spec.sampled, spec.tools, spec.wait_seconds, spec.stale_seconds
    )
    ladder = route.spec.ladder
    return RouteCache(
        route.metadata.name,
        resolved.digest,
        policy,
        _semantic(spec),
        ladder.cache_seconds if ladder is not None else 0.0,
        ladder.live_seconds if ladder is not None and ladder.cache_seconds else None,
    )


def _semantic(spec: CacheSpec) -> SemanticPolicy | None:
    if spec.semantic is None:
        return None
    from sits.state.cache.semantic.query import Policy as SemanticPolicy

    return SemanticPolicy(threshold=spec.semantic.threshold)


class Caches:
    """The caches of one process. With a shared `store` they are the front of one for all nodes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sweep: Sweep,
        wall: Callable[[], float],
        *,
        mib: int,
        store: Store | None = None,
        chance: Callable[[], float] = float,
    ) -> None:
        """`chance` draws from 0 to 1 how much sooner than others an answer goes stale; what is given here draws 0."""
        self._loop = loop
        self.wall = wall
        self.chance = chance
        self.limit = Limit(mib * 1024 * 1024, mib * 1024 * 1024 // ENTRY_BYTES)
        self.own = ExactCache(TinyLfu(self.limit))
        self.shared = SharedCache(self.own, store, loop=loop) if store is not None else None
        self.exact: ExactCache | SharedCache = self.shared or self.own
        self.flights = Flights(loop.create_future, sweep)
        self.renewals = Renewals(self.flights, loop.time)
        self.questions = Fingerprinter()
        self.semantic: SemanticCache | None = None
        self._behind: set[asyncio.Task[Any]] = set()
        self._sweeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to give back what goes stale, and to hear of what others purge."""
        self._sweeper = self._loop.create_task(self._keep_sweeping())

    async def aclose(self) -> None:
        """End what is under way."""
        from sits.ports.ending import end

        self.renewals.end()
        await end(self._sweeper, *self._behind)
        if self.shared is not None:
            await self.shared.aclose()

    def recall(self, x: Exchange, route: RouteCache) -> Recall | None:
        """What the caches have to do with an exchange; None where that is nothing."""
        headers = x.request.headers
        tenant = x.key.name if x.key is not None else None
        ground = grounding(headers)
        words = headers.get(b"anthropic-beta", b"")
        if x.facts is not None and x.plan is not None and (x.facts.adapter or x.plan.rule):
            # Others answer there, or the same ones otherwise.
            words += b"\0%b\0%b" % (x.facts.adapter.encode(), x.plan.rule.encode())
        if ground is not NOWHERE:
            words += b"\0" + ground.words
        place = partition(route.policy, x.operation, route.route, route.models, tenant, words)
        asked = self.questions.read(place, x.request.body)
        if asked is None or bypass(route.policy, x.operation, asked) is not None:
            return None
        return Recall(self, x, route, place, asked, route.wish(wish(headers.get(b"cache-control"))), ground.sources)

    async def purge(self, *found: str) -> int:
        """Forget all answers with all these tags, in every cache; how many this process held.

        Raises:
            SitsError: `state_unavailable`: here they are forgotten, elsewhere it is not known. Safe to repeat.
        """
        count = await self.shared.purge(*found) if self.shared is not None else self.own.purge(*found)
        if self.semantic is not None:
            count += await self.semantic.purge(*found)
        return count

    async def soften(self, *found: str) -> int:
        """Make all answers with all these tags stale: given where a route gives such, and made anew behind; how many this process
        held.

        Raises:
            SitsError: as `purge`.
        """
        exact, now = self.shared or self.own, self.wall()
        count = await exact.soften(now, *found) if isinstance(exact, SharedCache) else exact.soften(now, *found)
        if self.semantic is not None:
            count += await self.semantic.soften(now, *found)
        return count

    def behind(self, work: Coroutine[Any, Any, Any], *, must: bool = False) -> None:
        """Do something that no request waits for; dropped when too much of it is under way, unless it `must` be done: there is
        one such work for a request at the most."""
        if len(self._behind) >= MOST_BEHIND and not must:
            work.close()
            return
        task = self._loop.create_task(work)
        self._behind.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._behind.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a defect while keeping an answer", exc_info=error)

    async def _keep_sweeping(self) -> None:
        while True:
            self.own.sweep(self.wall())
            if self.shared is not None:
                await self.shared.refresh()
            if self.semantic is not None:
                try:
                    await self.semantic.sweep(self.wall())
                except SitsError as error:
                    _log.info("vectors of answers that are gone stay a while: %s", error.message)
            await asyncio.sleep(SWEEP_SECONDS)


class Recall:
    """The caches' part in one exchange: `look`, then `give`, or `keep` what the models said; `leave` in any case."""

    __slots__ = (
        "_asked", "_caches", "_moment", "_place", "_query", "_route", "_seat", "_semantic_moment", "_sources", "_x", "wish",
    )  # fmt: skip

    def __init__(
        self,
        caches: Caches,
        x: Exchange,
        route: RouteCache,
        place: bytes,
        asked: Question,
        wished: Wish,
        sources: tuple[str, ...] = (),
    ) -> None:
        self._sources = sources
        self._caches = caches
        self._x = x
        self._route = route
        self._place = place
        self._asked = asked
        self.wish = wished
        self._seat: Seat | None = None
        self._query: Query | None = None
        self._moment: Any = caches.exact.moment
        self._semantic_moment: Any = None

    async def look(self) -> tuple[How, Answer] | None:
        """An answer that is there, or that comes of an equal question; None when the models have to be asked.

        Raises:
            SitsError: `invalid_request`: the client's threshold is none.
        """
        caches, x, key = self._caches, self._x, self._asked.fingerprint
        found = await self._equal(x.wall, self.wish)
        if found is not None and self._may(found):
            return "hit", found
        alike = await self._alike(x.wall, self.wish)
        if alike is not None and self._may(alike):
            return "semantic", alike
        if self.wish.only or not (self.wish.read and self.wish.keep):
            return None
        self._seat = x.seat = caches.flights.join(key, perf_counter(), self._route.policy.wait)
        if await self._seat.wait() == "landed" and self._seat.answer is not None:
            return "flight", self._seat.answer
        return None

    async def fallen(self, now: float) -> tuple[How, Answer] | None:
        """The kept answer that may be given where no model answers: for this question, else for other words; no older than the
        ladder of the route has it."""
        said = structs.replace(self.wish, slack=None)
        if said == ANY:
            said = ANY
        oldest = self._route.ladder
        found = await self._equal(now, said)
        if found is not None and now - found.made <= oldest:
            return "hit", found
        alike = await self._alike(now, said)
        return ("semantic", alike) if alike is not None and now - alike.made <= oldest else None

    async def _equal(self, now: float, wished: Wish) -> Answer | None:
        """What is kept for this very question."""
        caches, key = self._caches, self._asked.fingerprint
        found = caches.exact.lookup(key, now, wished)
        if caches.shared is not None and (found is None or found.fresh <= now):
            # Another node may have renewed what is stale here.
            found = await caches.shared.fetch(key, now, wished if found is None else FRESH) or found
        return found

    def stale(self, answer: Answer) -> bool:
        return answer.fresh <= self._x.wall

    def _may(self, answer: Answer) -> bool:
        """Whether this route gives it: it may have been kept by one that gives older ones, or when this one did."""
        return self._x.wall < answer.fresh + self._route.policy.stale

    def renewal(self, answer: Answer) -> Renewal | None:
        """The right, and with it the duty, to ask anew behind this answer, which has been given; None where nothing is to be
        done."""
        if not self.stale(answer) or self.wish.only:
            return None
        return self._caches.renewals.take(self._route.route, self._asked.fingerprint)

    def called(self) -> None:
        """The models are asked."""
        if self._route.policy.stale:
            self._caches.renewals.called(self._route.route)

    def lead(self) -> None:
        """Instead of `look`, for a renewal: from now on whoever asks the same and finds nothing waits for this one's answer."""
        self._seat = self._x.seat = self._caches.flights.join(self._asked.fingerprint, perf_counter(), 0.0)
        self._read()

    async def _alike(self, now: float, wished: Wish) -> Answer | None:
        """The answer to other words for the same question."""
        semantic, policy = self._caches.semantic, self._route.semantic
        self._read()
        if semantic is None or policy is None or self._query is None:
            return None
        # Ports need a task, and an exchange has none.
        found = await self._caches._loop.create_task(semantic.lookup(self._query, now, policy, wished))
        return found.answer if found is not None else None

    def _read(self) -> None:
        """Make of the question what the semantic cache can look for and keep."""
        semantic, policy = self._caches.semantic, self._route.semantic
        if semantic is None or policy is None:
            return
        from sits.state.cache.semantic.query import THRESHOLD, Query, threshold, turn

        least = threshold(self._x.request.headers.get(THRESHOLD))
        taken = turn(self._place, self._x.operation, self._x.request.body, policy)
        if taken is not None:
            self._query = Query(taken.text, taken.partition, threshold=least)
            self._semantic_moment = semantic.moment

    def give(self, how: How, answer: Answer) -> bool:
        """Answer the client by what was found; False when that cannot be said as it wants it."""
        body = self.body(answer)
        if body is None:
            return False
        x = self._x
        x.cache = self.what(how, answer, x.wall)
        x.more += self.lines(answer, x.wall)
        bill(x, None)
        if x.stream:
            x.open(None, body)
            x.close()
        else:
            x.respond(answer.status, x.lines(None, answer.content_type), body)
        return True

    def what(self, how: How, answer: Answer, now: float) -> str:
        """What clients and records are told of it."""
        return GONE_STALE.get(how, how) if answer.fresh <= now else how

    def lines(self, answer: Answer, now: float) -> bytes:
        """What the head of the answer says of where it is from, once `x.cache` is set."""
        target = self._x.table.targets.get(answer.model)
        told = self._x.told(target) if target is not None else b""
        return b"%bx-sits-cache: %b\r\nage: %d\r\n" % (told, self._x.cache.encode(), answer.age(now))

    def body(self, answer: Answer) -> bytes | None:
        """The answer as the client wants it, whole or as a stream; None when it cannot be said so."""
        x = self._x
        if not x.stream:
            return replay.given(answer, x.request.body)
        return replay.streamed(answer, x.ask(), x.request.body)

    def keep(self, attempt: Attempt) -> bool:
        """Keep what the models said, if it is a complete good answer, and return whether it is; those who wait for it get it, or
        go on alone."""
        answer = self._answer(attempt) if self.wish.keep else None
        if answer is None:
            if self._seat is not None:
                self._seat.scatter()
            return False
        caches, now = self._caches, answer.made
        caches.exact.store(self._asked.fingerprint, answer, now, self._moment)
        if self._seat is not None:
            self._seat.land(answer)
        if caches.semantic is not None and self._query is not None:
            caches.behind(caches.semantic.store(self._query, answer, now, self._semantic_moment))
        return True

    def leave(self) -> None:
        """This exchange is over: whoever waits for its answer does not wait in vain."""
        if self._seat is not None:
            self._seat.leave()
        self._x.seat = None

    def _answer(self, attempt: Attempt) -> Answer | None:
        x, policy = self._x, self._route.policy
        body: bytes | None = attempt.body
        if x.continued is not None and len(x.continued.targets) > 1:
            return None  # It has a seam in it.
        if x.stream:
            body = None if x.copy is None or x.gone else replay.whole(x.operation, b"".join(x.copy), x.ask(), attempt.usage)
        if body is None or len(body) > policy.answer_bytes or fault(x.operation, body, tools=policy.tools) is not None:
            return None
        now, target = self._caches.wall(), attempt.target
        fresh = expiry(now, policy.ttl * (1 - SPREAD * self._caches.chance()))
        expires = max(fresh + policy.stale, now + self._route.ladder)
        tenant = x.key.name if x.key is not None else None
        return Answer(
            x.operation,
            replay.kept(x.operation, body),
            now,
            expires,
            target.name,
            tags(
                route=self._route.route,
                model=target.name,
                tenant=tenant,
                version=target.model.spec.version,
                sources=self._sources,
            ),
            attempt.usage,
            stale=expires - fresh,
        )


def not_cached() -> SitsError:
    """The client wants no answer that is not in the cache (RFC 9111 5.2.1.7)."""
    return SitsError(Code.NOT_CACHED, "no answer is kept for this, and `cache-control: only-if-cached` wants no other")


def tags_of(wanted: dict[str, Any]) -> Sequence[str]:
    """What a purge means: `model`, `route`, `tenant`, `version`, `source` by name, or `tags` as they are.

    Raises:
        SitsError: `invalid_request`.
    """
    from sits.state.cache.answer import tag

    found: list[str] = []
    for kind, value in wanted.items():
        if kind == "tags" and isinstance(value, list) and all(isinstance(one, str) for one in value):
            found += value
        elif kind in ("model", "route", "tenant", "version", "source") and isinstance(value, str):
            found.append(tag(kind, value))
        else:
            message = f"{kind!r} is not what can be purged by: model, route, tenant, version, source (text), tags (a list)"
            raise SitsError(Code.INVALID_REQUEST, message, param=kind)
    return found
