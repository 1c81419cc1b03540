"""The semantic registry of a node: which services there are, found by what they are for, graded by how they are wanted.

Nothing is embedded before somebody searches, unless grading is declared: a gateway that does not use it does not pay for it.
Then the cards are embedded by the gateway's own local model (the one of substitutes, whose map puts both languages in one place)
or by the one that Settings name, behind each change of the configuration and once an hour. Where the model or the vectors cannot
be had, names and words still find, and the answer says that meaning was left out; of a card that has no vector yet, too.

What one worker imports the others of the machine are told of before the import is answered, other gateways look for it.
"""

from __future__ import annotations

import asyncio
import logging
import pathlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from sits.engines.base import Engine
from sits.engines.local.engine import LocalEngine
from sits.gateway.embedding import Embedder, followed
from sits.gateway.registry_answer import Answered, lacking_words
from sits.gateway.sense import Sense
from sits.inner.errors import Code, SitsError
from sits.ports.ending import end
from sits.ports.store import Store
from sits.ports.vectors import Vectors
from sits.resources.registry import RegistrySpec
from sits.resources.snapshot import Snapshot
from sits.routing.registry import Grades, Lexical, Origin, Rules, ServiceCard, card_of, fused
from sits.routing.registry.grade import POOLS, Change, Standing
from sits.routing.target import capabilities_of
from sits.state.registry.entries import Entries

_log = logging.getLogger("sits.registry")

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
LONGEST_QUERY = 2000
"""Characters of a query that are read."""
MOST_TOP = 100
LOOK_SECONDS = 1.0
UNEMBEDDED = "services are not embedded yet"
ENTRIES_SECONDS = 8.0
"""How often the store is asked whether another gateway imported something: with `LOOK_SECONDS` and what it takes, ten."""
EARLY = 0.9
"""Vectors are renewed when so much of their hour is over."""
AGAIN_SECONDS = 60.0
"""After how long a renewal that failed is tried again."""
PATIENCE = 5.0
"""How long the search that a declared embedder is first needed for waits for it: its embeddings of what all is compared with may
take minutes. One that has not done it in this time is not waited for again."""
BUILT_IN_PATIENCE = 60.0
"""The same of the built-in model, which may have to be fetched first."""
CHANGE_PATIENCE = 2.0
"""How long a search waits for what has just changed: for the entries that another process imported, and for the vectors of new
cards where there are others. As long as it waits for its own vector."""
TOPIC = "registry-entries"
"""What siblings are told under when something was imported."""


class Service(msgspec.Struct, frozen=True):
    """A service as the registry lists it."""

    name: str
    origin: Origin
    description: str
    domains: tuple[str, ...]
    capabilities: list[str]
    labels: Mapping[str, str]
    address: str
    healthy: bool | None
    standing: Standing | None


class ServiceRegistry:
    """Of one process. Whoever makes it runs `want` behind each change, and ends it with `aclose`."""

    def __init__(
        self,
        data: pathlib.Path,
        embedder: Callable[[], Embedder],
        store: Store,
        *,
        counts: Callable[[], Mapping[str, float]],
        told: Callable[[str, dict[str, Any]], None],
        unload: Callable[[str], Awaitable[bool]],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        vectors: Callable[[], Awaitable[Vectors]] | None = None,
        others: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """`embedder` is the one of the configuration in force. `counts` are the requests that came for each model since the
        start. `unload` ends a local model that is loaded, and says whether it did. `vectors` opens an index that is shared; one
        of this process without. `others` tells the other workers that something was imported: their `heard` is called."""
        self._embedder = embedder
        self._data = data
        self._entries = Entries(store)
        self._counts = counts
        self._told = told
        self._unload = unload
        self._clock = clock
        self._sleep = sleep
        self._open = vectors
        self._others = others
        self._wanted: Embedder | None = None
        self._sense: Sense | None = None
        """What is searched; of the embedder before the wanted one until that one's is made."""
        self._making: asyncio.Task[None] | None = None
        self._slow = False
        """Whether somebody has waited for it in vain."""
        self._models: dict[str, ServiceCard] = {}
        self._imported: list[ServiceCard] = []
        self._cards: dict[str, ServiceCard] = {}
        self._lexical = Lexical(())
        self._indexed: dict[str, ServiceCard] = {}
        """Those that vectors were made of."""
        self._known: frozenset[str] = frozenset()
        """Services with a vector of what their cards say now."""
        self._attempted: dict[str, ServiceCard] | None = None
        """Those that vectors were last made for, whatever came of it."""
        self._turn = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._unread = False
        """Whether something was imported elsewhere since the entries were last read."""
        self._read_at = float("-inf")
        self._closed = False
        self._used = False
        self._task: asyncio.Task[None] | None = None
        self._spec: RegistrySpec | None = None
        self._grades = Grades(Rules())
        self._tried = float("-inf")
        self._unrenewed = ""
        """Why the last renewal failed; empty where it did not."""
        self.trouble = ""
        """Why meaning cannot be asked; empty while it can."""

    async def want(self, snapshot: Snapshot, spec: RegistrySpec | None) -> None:
        """These models are the services, beside those that were imported; graded as `spec` says."""
        self._models = {name: card_of(model, capabilities_of(model)) for name, model in snapshot.models.items()}
        self._follow(self._embedder())
        if spec != self._spec:
            self._spec = spec
            self._grades = Grades(_rules(spec) if spec is not None else Rules())
        await self._read_entries()
        self._taken()
        if spec is not None:
            self._used = True
            if self._task is None:
                self._task = asyncio.create_task(self._watch(), name="registry")
        elif self._task is not None:
            task, self._task = self._task, None
            await end(task)
        if self._used:
            await self._renew()

    async def find_by_intent(
        self,
        query: str,
        top_k: int = 5,
        *,
        capabilities: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        allows: Callable[[str], bool] = lambda name: True,
    ) -> Answered:
        """The services that do what is meant, best first: at most `top_k` of those with these capabilities and labels.

        Raises:
            SitsError: `invalid_request`: nothing is asked, or for too many.
        """
        text = " ".join(_CONTROL.sub(" ", query).split())[:LONGEST_QUERY]
        if not text:
            raise SitsError(Code.INVALID_REQUEST, "the query is empty", param="query")
        if not 1 <= top_k <= MOST_TOP:
            raise SitsError(Code.INVALID_REQUEST, f"from 1 to {MOST_TOP} services can be asked for, not {top_k}", param="top_k")
        await self.fresh()
        semantic = await self._nearest(text)
        # By the cards of now: what was waited for may have changed them.
        wanted, marks = frozenset(capabilities), (labels or {}).items()
        allowed = frozenset(
            name
            for name, card in self._cards.items()
            if wanted <= card.capabilities and marks <= card.labels.items() and (card.origin != "model" or allows(name))
        )
        found = fused(self._lexical.called(text), self._lexical.search(text), semantic, allowed, top_k)
        graded = [msgspec.structs.replace(one, grade=self._grades.grade(one.name)) for one in found]
        if self.trouble:
            return Answered(graded, self.trouble)
        lacking = len(allowed - self._known)
        return Answered(graded, lacking_words(lacking, len(allowed), self._unrenewed) if lacking else "", lacking, len(allowed))

    async def fresh(self) -> None:
        """Have what other processes imported, as far as the store says it without delay; the last known stays otherwise."""
        reading = self._reading
        if reading is None or reading.done():
            # Whoever grades looks by itself.
            if self._closed or self._task is not None or self._clock() - self._read_at < ENTRIES_SECONDS:
                return
            reading = self._read_soon()
        await asyncio.wait({reading}, timeout=CHANGE_PATIENCE)

    def heard(self, _: str = "") -> bytes:
        """For a sibling: something was imported, and who searches here from now on is to find it."""
        if not self._closed:
            self._unread = True
            self._read_soon()
        return b"heard"

    def pool(self, name: str) -> str:
        """The label of the pool that a service belongs in: `accelerator`, `default` or `cpu-low-priority`."""
        return POOLS[self._grades.grade(name)]

    def services(self) -> list[Service]:
        """All of them, in the order of their names."""
        now, graded = self._clock(), self._spec is not None
        return [
            Service(
                card.name,
                card.origin,
                card.description,
                card.domains,
                sorted(card.capabilities),
                card.labels,
                card.address if card.origin != "model" else "",
                card.healthy,
                self._grades.standing(name, now) if graded else None,
            )
            for name, card in sorted(self._cards.items())
        ]

    async def take_entries(self, origin: Origin, cards: Sequence[ServiceCard], *, allow_removal: bool = False) -> int:
        """These are what another registry has, from now on; how many others of it went.

        Raises:
            SitsError: `state_unavailable`; `request_too_large`; `conflict`, more than half would go.
        """
        try:
            gone = await self._entries.replace(origin, cards, allow_removal=allow_removal)
        finally:
            # Also of one that stopped half way.
            if self._others is not None:
                await self._others()
        await self._read_entries()
        self._taken()
        if self._used:
            await self._renew()
        return gone

    def engines(self) -> list[Engine]:
        """The engines that are to be kept for this: of who embeds, and of who is to. Those of a declared one also when its Model
        has gone; that of the built-in one from the first search on. Its process ends by itself when it has long been idle."""
        asked = (self._wanted, self._sense.embedder if self._sense is not None else None)
        kept = [one for one in asked if one is not None and (self._used or not one.built_in)]
        return [engine for one in kept for engine in one.engines()]

    def tick(self, now: float) -> list[Change]:
        """Grade anew by what was counted until now, and have it told; what changed."""
        counts = self._counts()
        for name in self._models:
            self._grades.counted(name, counts.get(name, 0.0), now)
        changes = self._grades.tick(now)
        for change in changes:
            _log.info("%s is %s: %s", change.name, change.after, change.why)
            said = {"service": change.name, "before": change.before, "after": change.after, "why": change.why}
            self._told("service_grade", {**said, "pool": POOLS[change.after]})
        return changes

    async def act(self, changes: Sequence[Change]) -> None:
        """Unload what has become cold and runs on this machine."""
        if self._spec is None or not self._spec.cold.unload:
            return
        for change in changes:
            if change.after == "cold" and change.name in self._models and await self._unload(change.name):
                _log.info("%s is unloaded, for it is cold: %s", change.name, change.why)

    async def aclose(self) -> None:
        """End what goes on. Safe to repeat."""
        self._closed = True
        task, self._task = self._task, None
        reading, self._reading = self._reading, None
        making, self._making = self._making, None
        await end(task)
        await end(reading)
        await end(making)
        sense, self._sense = self._sense, None
        if sense is not None:
            await sense.aclose()

    # The cards

    def _read_soon(self) -> asyncio.Task[None]:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="registry entries")
        return self._reading

    async def _read(self) -> None:
        """Take what is in the store now, and what comes meanwhile; then its vectors, for which nobody waits here."""
        self._unread = True
        while self._unread:
            self._unread = False
            await self._read_entries()
        self._taken()
        if self._used and self._attempted is not self._cards:
            self._make()

    async def _read_entries(self) -> None:
        self._read_at = self._clock()
        try:
            self._imported = await self._entries.all()
        except SitsError as error:
            _log.warning("what was imported cannot be read, the last known stays: %s", error.message)

    def _taken(self) -> None:
        """The cards are these now. A Model goes before an entry of its name."""
        cards = {card.name: card for card in self._imported} | self._models
        if cards == self._cards:
            return
        self._cards = cards
        self._lexical = Lexical(list(cards.values()))
        self._compare()
        self._grades.declare(cards, self._clock())

    # Meaning

    def _follow(self, embedder: Embedder) -> None:
        """This one is wanted, also by its new credentials where it is the same as before."""
        if self._sense is not None:
            followed(self._sense.embedder, embedder)
        if self._wanted is None or not followed(self._wanted, embedder):
            self._wanted, self._slow = embedder, False

    def _as_wanted(self) -> bool:
        sense, wanted = self._sense, self._wanted
        return sense is not None and wanted is not None and not sense.changed and sense.embedder.weights == wanted.weights

    async def _renew(self) -> None:
        """Make the vectors of all cards anew, and have no others."""
        async with self._turn:
            if self._wanted is None:
                self._follow(self._embedder())
            assert self._wanted is not None
            cards, wanted, old = self._cards, self._wanted, self._sense
            self._tried, self._attempted = self._clock(), cards
            if old is None and not wanted.built_in:
                self.trouble = f"{wanted.name} is embedding what services are compared by"
            made = old if old is not None and self._as_wanted() else Sense(wanted, self._data, self._open, clock=self._clock)
            try:
                await made.renew(cards)
                self._sense = made
            except SitsError as error:
                self._unrenewed = self.trouble = error.message
                _log.error("services cannot be found by meaning: %s", error.message)
                return
            finally:
                for one in (old, made):
                    if one is not None and one is not self._sense:
                        await one.aclose()
            self.trouble, self._unrenewed, self._slow = "", "", False
            self._indexed = cards
            self._compare()
            now = self._clock()
            for name in cards:
                self._grades.renewed(name, now)

    def _make(self) -> asyncio.Task[None]:
        """Renew, in a task of its own; the one that is under way where there is one."""
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._renew_until_attempted(), name="registry meaning")
        return self._making

    async def _renew_until_attempted(self) -> None:
        """Also for what changes meanwhile."""
        await self._renew()
        while self._attempted is not self._cards:
            await self._renew()

    async def _renewed(self, patience: float) -> None:
        """Renew, and wait for it unless that is known to take long."""
        making = self._make()
        await asyncio.wait({making}, timeout=0.0 if self._slow else patience)
        if not making.done():
            self._slow = True
            self.trouble = self.trouble or UNEMBEDDED
        elif not making.cancelled():
            making.result()

    async def _waited(self) -> None:
        """Wait for a renewal that is under way, unless that is known to take long: of a few new cards it takes a moment, and for
        the first time with the built-in model a second."""
        first = not self._indexed
        briefly = self._wanted is not None and self._wanted.built_in if first else self._as_wanted()
        if self._slow or not briefly or not self._turn.locked():
            return
        try:
            async with asyncio.timeout(BUILT_IN_PATIENCE if first else CHANGE_PATIENCE), self._turn:
                pass
        except TimeoutError:
            self._slow = True

    def _patience(self) -> float:
        """How long whoever searches waits for a renewal that begins with it."""
        if self._indexed and self._as_wanted():
            return CHANGE_PATIENCE
        return BUILT_IN_PATIENCE if self._wanted is None or self._wanted.built_in else PATIENCE

    async def _nearest(self, text: str) -> list[tuple[str, float]]:
        """All services that have vectors by how near they are; none where that cannot be told, `trouble` says why then."""
        stale = self._indexed is not self._cards or not self._as_wanted()
        # What failed is left alone for a while; other cards have not failed yet.
        due = self._attempted is not self._cards or self._clock() - self._tried > AGAIN_SECONDS
        if not self._used or (stale and due and not self._turn.locked()):
            self._used = True
            await self._renewed(self._patience())
        elif stale:
            await self._waited()
        if not self._cards:
            return []
        if self._sense is None or not self._indexed:
            self.trouble = self.trouble or UNEMBEDDED
            return []
        try:
            hits = await self._sense.nearest(text, 2 * len(self._cards))
        except SitsError as error:
            if not self.trouble:
                _log.warning("queries are answered by names and words: %s", error.message)
            self.trouble = error.message
            return []
        self.trouble = ""
        found = [(name, score) for name, score in hits if name in self._known]
        self._grades.asked(dict(found), self._clock())
        return found

    def _compare(self) -> None:
        """Which cards are as they were when the vectors were made."""
        texts = {name: card.text for name, card in self._indexed.items()} if self._indexed is not self._cards else None
        self._known = frozenset(name for name, card in self._cards.items() if texts is None or texts.get(name) == card.text)

    # Time

    async def _watch(self) -> None:
        """Grade once a second; read what others imported; renew in time."""
        looked = self._clock()
        while True:
            await self._sleep(LOOK_SECONDS)
            now = self._clock()
            try:
                await self._look(now, entries=now - looked >= ENTRIES_SECONDS)
            except Exception:
                _log.exception("a defect while services are graded")
            if now - looked >= ENTRIES_SECONDS:
                looked = now

    async def _look(self, now: float, *, entries: bool) -> None:
        await self.act(self.tick(now))
        if entries:
            await self._read_entries()
            self._taken()
        spec = self._spec
        under_way = self._making is not None and not self._making.done()
        if spec is not None and not under_way and self._due(now, spec):
            await self._renew()

    def _due(self, now: float, spec: RegistrySpec) -> bool:
        if self._attempted is not self._cards:
            return True
        if self._indexed is self._cards and not self.trouble and not self._unrenewed:
            return now - self._tried >= EARLY * spec.hot.renew_seconds
        return now - self._tried >= min(AGAIN_SECONDS, EARLY * spec.hot.renew_seconds)


async def unloaded(engine: Engine | None) -> bool:
    """Unload a local model unless it has requests; whether it was loaded and is no more."""
    return isinstance(engine, LocalEngine) and engine.status.pid is not None and await engine.unload()


def _rules(spec: RegistrySpec) -> Rules:
    return Rules(
        hot_qps=spec.hot.qps,
        renew_seconds=spec.hot.renew_seconds,
        cold_cosine=spec.cold.cosine,
        cold_seconds=3600 * spec.cold.hours,
        quiet_per_hour=spec.cold.quiet_per_hour,
    )


def counted(attempts: Mapping[tuple[str, ...], Any]) -> dict[str, float]:
    """Attempts on each target, from the children of `sits_attempts_total`."""
    found: dict[str, float] = {}
    for labels, counter in attempts.items():
        found[labels[0]] = found.get(labels[0], 0.0) + counter.value
    return found
