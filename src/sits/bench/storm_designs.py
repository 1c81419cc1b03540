"""The two designs that go through the storm: the caches of the gateway as they are, and a stand-in in which both are one.

Both find answers by the same rules (fingerprint, then reading, vector and guards), have the same room in all, and the same
traffic and models. What differs is the coupling, so that is what the figures show:

- `Apart` is `gateway/recall.py:Caches`, the very class, asked as an exchange asks it.
- `Coupled` keeps an answer in one room with one eviction (LRU) and one clock: its exact and its semantic entry live and die
  together, as in caches that keep a row a question and both ways to it (GPTCache's data manager does). Each request that finds
  nothing asks a model itself, with `single_flight` it waits for an equal one as ours do.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import msgspec

from sits.bench.storm_world import Models, Virtual
from sits.gateway.recall import Caches, Recall, RouteCache
from sits.gateway.renewal import Renewal
from sits.inner.sweep import Sweep
from sits.ports.vectors.memory import MemoryVectors
from sits.state.cache.answer import Answer, tags
from sits.state.cache.eviction import Limit, Lru
from sits.state.cache.exact import ExactCache
from sits.state.cache.fingerprint import Fingerprinter, partition
from sits.state.cache.flight import Flights
from sits.state.cache.rules import ANY, Policy, Wish
from sits.state.cache.semantic import Embedder, HeldAnswers, Query, SemanticCache, turn
from sits.state.cache.semantic import Policy as SemanticPolicy
from sits.state.cache.semantic.answers import Watched

if TYPE_CHECKING:
    from sits.gateway.attempt import Attempt
    from sits.gateway.exchange import Exchange

How = Literal["hit", "semantic", "stale", "flight", "model"]
"""`stale`: what was found, in whichever cache, had gone stale."""
TTL = 3600.0
ROOM_MIB = 16
"""Room for 4096 answers in each cache: more than the traffic has, so that no design loses by want of room."""
EXACT_SECONDS, SEMANTIC_SECONDS = 0.0003, 0.002
"""What a hit takes at the client, in the world's clock; the real ones are measured elsewhere in this bench."""
STALE_SECONDS = TTL
"""How long the route gives answers that have gone stale, where it does: as long again."""
LARGE = "large"
"""The model whose answers go stale."""
SMALL = "small"


class Ask(msgspec.Struct, frozen=True):
    """What is sent, and who answers it."""

    tenant: str
    text: str
    model: str

    @property
    def body(self) -> bytes:
        system = "You answer questions about our products, orders and accounts. Be short, name the page where it is written."
        messages = [{"role": "system", "content": system}, {"role": "user", "content": self.text}]
        return msgspec.json.encode({"model": "assistant", "messages": messages})


class Design(Protocol):
    """A way to keep answers."""

    async def start(self, embedder: Embedder) -> None:
        """Be ready."""
        ...

    async def ask(self, ask: Ask, seconds: float | None) -> How:
        """Answer a request; a model takes `seconds` for it, None before the clock counts: it is there at once."""
        ...

    def pass_by(self) -> None:
        """A request comes that no cache may answer: it goes to the models."""
        ...

    async def go_stale(self) -> None:
        """From now on the semantic entries of the model `LARGE` are stale."""
        ...

    async def purge(self) -> None:
        """From now on all answers of the model `LARGE` are wrong."""
        ...


class Apart:
    """The gateway's caches, renewals and all, on a route that gives answers for `stale` seconds after they have gone stale."""

    def __init__(self, loop: Virtual, models: Models, *, single_flight: bool = True, stale: float = STALE_SECONDS) -> None:
        policy = Policy(ttl=TTL, wait=60.0 if single_flight else 0.0, stale=stale)
        self._loop = loop
        self._models = models
        self._route = RouteCache("assistant", "models", policy, SemanticPolicy())
        self.caches = Caches(loop, Sweep(), loop.wall, mib=ROOM_MIB, chance=random.Random(1).random)  # noqa: S311

    async def start(self, embedder: Embedder) -> None:
        self.caches.semantic = await _semantic(self._loop, embedder, HeldAnswers(self.caches.limit))

    async def ask(self, ask: Ask, seconds: float | None) -> How:
        recall = self._recall(ask)
        try:
            found = await recall.look()
            if found is not None:
                how, answer = found
                renewal = recall.renewal(answer)
                if renewal is not None:
                    anew = self._recall(ask, cache_control=b"no-cache")
                    anew.lead()
                    self.caches.behind(self._renew(ask, seconds, anew, renewal))
                return "stale" if recall.stale(answer) else how
            recall.called()
            await self._made(seconds)
            recall.keep(_attempt(ask))
            return "model"
        finally:
            recall.leave()

    def pass_by(self) -> None:
        if self._route.policy.stale:
            self.caches.renewals.called(self._route.route)

    def _recall(self, ask: Ask, **headers: bytes) -> Recall:
        recall = self.caches.recall(_exchange(ask, self._loop.wall(), headers), self._route)
        assert recall is not None
        return recall

    async def _made(self, seconds: float | None) -> None:
        if seconds is not None:
            await self._models.answer(seconds)

    async def _renew(self, ask: Ask, seconds: float | None, anew: Recall, renewal: Renewal) -> None:
        """As `spine.renew` does."""
        kept = False
        try:
            await self._made(seconds)
            kept = anew.keep(_attempt(ask))
        finally:
            anew.leave()
            renewal.over(kept)

    async def go_stale(self) -> None:
        assert self.caches.semantic is not None
        await self.caches.semantic.soften(self._loop.wall(), _STALE)

    async def purge(self) -> None:
        await self.caches.purge(_STALE)


class Coupled:
    """The stand-in: one room, one eviction, one clock."""

    def __init__(self, loop: Virtual, models: Models, *, single_flight: bool = False, one_clock: bool = True) -> None:
        self._loop = loop
        self._models = models
        self._wait = 60.0 if single_flight else 0.0
        self._stale = () if one_clock else (_STALE,)
        limit = Caches(loop, Sweep(), loop.wall, mib=ROOM_MIB).limit
        self._room = OneRoom(Limit(2 * limit.bytes, 2 * limit.entries))
        self._questions = Fingerprinter()
        self._flights = Flights(loop.create_future, Sweep())
        self._semantic: SemanticCache

    async def start(self, embedder: Embedder) -> None:
        self._semantic = await _semantic(self._loop, embedder, self._room)

    async def ask(self, ask: Ask, seconds: float | None) -> How:
        place, body, now = _place(ask), ask.body, self._loop.wall()
        asked = self._questions.read(place, body)
        assert asked is not None
        moment = self._room.moment
        if self._room.held(asked.fingerprint, now) is not None:
            return "hit"
        query = _query(place, body)
        if await self._semantic.lookup(query, now) is not None:
            return "semantic"
        seat = self._flights.join(asked.fingerprint, self._loop.time(), self._wait)
        try:
            if await seat.wait() == "landed":
                return "flight"
            if seconds is not None:
                await self._models.answer(seconds)
            answer = _answer(ask, self._loop.wall())
            if await self._room.put(asked.fingerprint, answer, answer.made, moment):
                await self._semantic.store(query, answer, answer.made, moment)
                self._room.tie(asked.fingerprint, query.key)
            seat.land(answer)
            return "model"
        finally:
            seat.leave()

    def pass_by(self) -> None:
        """It is nothing to the caches."""

    async def go_stale(self) -> None:
        await self._semantic.purge(*self._stale)

    async def purge(self) -> None:
        await self._semantic.purge(*self._stale)


class OneRoom:
    """The answers of both caches in one: what is tied goes together, for whichever reason one of them goes."""

    durable = False

    def __init__(self, limit: Limit) -> None:
        self._watched = Watched(Lru(limit), 4 * limit.entries)
        self._cache = ExactCache(self._watched)
        self._ties: dict[bytes, bytes] = {}
        self._lost: list[bytes] = []

    @property
    def moment(self) -> int:
        return self._cache.moment

    def held(self, key: bytes, now: float, wish: Wish = ANY) -> Answer | None:
        found = self._cache.lookup(key, now, wish)
        self._cool()
        return found

    async def get(self, key: bytes, now: float, wish: Wish = ANY) -> Answer | None:
        return self.held(key, now, wish)

    async def put(self, key: bytes, answer: Answer, now: float, since: int) -> bool:
        kept = self._cache.store(key, answer, now, since)
        self._cool()
        return kept

    async def delete(self, key: bytes) -> None:
        self._cache.discard(key)
        self._cool()

    async def purge(self, *tags: str) -> int:
        count = self._cache.purge(*tags)
        self._cool()
        return count

    async def soften(self, at: float, *tags: str) -> int:
        count = self._cache.soften(at, *tags)
        self._cool()
        return count

    def gone(self, limit: int) -> list[bytes]:
        found, self._lost = self._lost[:limit], self._lost[limit:]
        return [key for key in found if key not in self._watched]

    def tie(self, exact: bytes, semantic: bytes) -> None:
        """These two are one answer."""
        self._ties[exact], self._ties[semantic] = semantic, exact

    def _cool(self) -> None:
        gone = self._watched.gone
        while gone:
            key = gone.popleft()
            if key in self._watched:
                continue
            self._lost.append(key)
            other = self._ties.pop(key, None)
            if other is not None:
                self._ties.pop(other, None)
                self._cache.discard(other)


# What an exchange is to the caches.

_STALE = f"model:{LARGE}"
_GOOD = {"index": 0, "message": {"role": "assistant", "content": "It is on page 7. " * 12}, "finish_reason": "stop"}
_BODY = msgspec.json.encode({"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [_GOOD]})


async def _semantic(loop: Virtual, embedder: Embedder, answers: Any) -> SemanticCache:
    made = SemanticCache(embedder=embedder, vectors=MemoryVectors(), answers=answers, clock=loop.wall)
    await made.start()
    return made


def _exchange(ask: Ask, now: float, headers: dict[str, bytes]) -> Exchange:
    """What the caches look at of an exchange."""
    fields = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    request = SimpleNamespace(headers=fields, body=ask.body)
    key = SimpleNamespace(name=ask.tenant)
    return cast(
        "Exchange",
        SimpleNamespace(
            request=request, key=key, operation="chat", wall=now, stream=False, seat=None, continued=None, facts=None, plan=None
        ),
    )


def _attempt(ask: Ask) -> Attempt:
    """What the caches look at of an attempt that has succeeded."""
    target = SimpleNamespace(name=ask.model, model=SimpleNamespace(spec=SimpleNamespace(version=None)))
    return cast("Attempt", SimpleNamespace(body=_BODY, target=target, usage=None))


def _place(ask: Ask) -> bytes:
    return partition(Policy(), "chat", "assistant", "models", ask.tenant)


def _query(place: bytes, body: bytes) -> Query:
    taken = turn(place, "chat", body)
    assert taken is not None
    return Query(taken.text, taken.partition)


def _answer(ask: Ask, now: float) -> Answer:
    return Answer("chat", _BODY, now, now + TTL, ask.model, tags(route="assistant", model=ask.model, tenant=ask.tenant))
