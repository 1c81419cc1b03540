"""Making what reads requests' intents: fitted on the domains that are declared, anew behind each change of them, put in force.

The quick stage stands within a second or two; while the examples are embedded for the deep one, and where they cannot be, its
verdicts stand. A node without a Domain does nothing here.

Another embedder is a change like one of the domains: what reads by the one before stays in force until all is made for it. One
that fails or says nothing is left alone for a while, and costs requests nothing meanwhile.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from sits.engines.base import Engine
from sits.engines.local.aside import aside
from sits.gateway.embedding import BATCH, DIMENSION, Embedder, followed, shelf_of
from sits.gateway.intent_classifier import InForce, IntentClassifier
from sits.inner.errors import Code, SitsError
from sits.ports.vectors import Vectors
from sits.resources.domains import Domain
from sits.resources.snapshot import Snapshot

if TYPE_CHECKING:
    # Imported when a domain is declared: they want numpy, which the base install does without.
    from sits.state.cache.semantic.embedder import WordLlama
    from sits.state.intent.building import Built, Index
    from sits.state.intent.material import Material
    from sits.state.intent.pulse import Pulse
    from sits.state.intent.tunings import Found

_log = logging.getLogger("sits.intent")

PROBE = "hello"
"""What a declared model is asked to see how many numbers it answers with."""
AGAIN_SECONDS = (1.0, 5.0, 60.0)
"""After how long what went wrong is tried again; the last one from then on."""

State = Literal["none", "building", "quick", "ready", "failed"]
"""`quick`: the quick stage reads alone, the deep one is being made."""


class IntentTraining:
    """Makes what reads by the domains in force, for its `classifier`. Belongs to the loop that it is made in; `aclose` ends what
    it began."""

    __slots__ = (
        "_chance",
        "_clock",
        "_data",
        "_domains",
        "_embedded",
        "_embedder",
        "_embedder_of",
        "_fitted",
        "_index",
        "_measured",
        "_pulses",
        "_quick",
        "_sleep",
        "_standing",
        "_state",
        "_task",
        "_told",
        "_tuned",
        "_vectors",
        "classifier",
        "trouble",
    )

    def __init__(
        self,
        data: Path,
        embedder: Callable[[], Embedder],
        vectors: Callable[[], Awaitable[Vectors]],
        *,
        index: Index | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.perf_counter,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`embedder` is asked for the one of the configuration in force with each `apply`, `vectors` once for an index, which is
        closed here. `index` as the count of examples says when not given. `sleep`, `clock` and
        `chance` are for tests."""
        self._data = data / "intent"
        self._embedder_of = embedder
        self._embedder: Embedder | None = None
        """Whom the configuration wants."""
        self._vectors: Vectors | Callable[[], Awaitable[Vectors]] = vectors
        self._index = index
        self._sleep = sleep
        self._clock = clock
        self._chance = chance
        self._pulses: dict[str, Pulse] = {}
        """How those are that requests are read by, or are to be: by their weights."""
        self._tuned = ""
        """What is wrong with the tuning that there is."""
        self._domains: Mapping[str, Domain] = {}
        self._task: asyncio.Task[None] | None = None
        self._quick: WordLlama | None = None
        self._embedded = self._fitted = (0, 0)
        """How many examples are embedded, of those to come into force, and how many there are; likewise heads."""
        self._told = False
        """Whether the log has it that something is wrong."""
        self._measured = ""
        """The weights whose embeddings have another size than those that are kept."""
        self._standing = ""
        """What the quick stage that reads alone was made of."""
        self._state: State = "none"
        self.trouble = ""
        """What went wrong last, if that has not been mended."""
        self.classifier = IntentClassifier(lambda: self.trouble or self._state)
        """Reads by what is in force."""

    def apply(self, snapshot: Snapshot) -> None:
        """Read by this configuration as soon as it is ready; by the one before until then. Costs a comparison where the domains
        are as they were."""
        domains, embedder = dict(snapshot.domains), self._embedder_of()
        used = self.classifier.embedder
        if used is not None:
            followed(used, embedder)
        same = self._embedder is not None and followed(self._embedder, embedder)
        if not same:
            self._embedder = embedder
        if domains == self._domains and (same or not domains):
            return
        self._domains = domains
        self._begin(domains)

    def engines(self) -> list[Engine]:
        """The engines that are to be kept for this."""
        asked = {id(one): one for one in (self._embedder, self.classifier.embedder) if one is not None} if self._domains else {}
        return [engine for one in asked.values() for engine in one.engines()]

    def status(self) -> dict[str, Any]:
        """What is in force and what is being made, for the status page."""
        built, declared = self.classifier.built, sorted(self._domains)
        return {
            "state": self._state,
            "trouble": self.unwell() or self._tuned,
            "making": self.making(),
            "resting": self._resting(),
            "declared": declared,
            "domains": list(built.intent.domains) if built is not None else declared if self._state == "quick" else [],
            "embedder": self._embedder_status(),
            "examples": len(built.material.examples) if built is not None else 0,
            "embedded": {"done": self._embedded[0], "of": self._embedded[1]},
            "index": built.index if built is not None else None,
            "indexed": self.classifier.indexed,
            "verdicts": self.classifier.counts(),
            "tuning": msgspec.to_builtins(built.intent.tuning) if built is not None else None,
        }

    def unwell(self) -> str:
        """Why requests are not read as is declared; empty where all is well. That a call hangs comes before what went wrong with
        one before."""
        if not self.trouble:
            return self._silence()
        now = self._clock()
        return next((said for pulse in self._pulses.values() if (said := pulse.hangs(now))), self.trouble)

    def making(self) -> str:
        """How far what is being made is, and by what requests are read meanwhile; empty where nothing is."""
        making = self._task is not None and not self._task.done() and not self._in_force
        if not making or not self._domains:
            return ""
        (done, of), (heads, of_heads) = self._embedded, self._fitted
        if of_heads:
            said = f"fitting head {min(heads + 1, of_heads)} of {of_heads}"
        elif of and done == of:
            said = "waiting for the fit"
        else:
            said = f"{done:,} of {of:,} examples embedded" if of else "reading what is declared"
        built = self.classifier.built
        if built is not None:
            return f"{said}; requests are read by the {len(built.intent.domains)} domains before"
        return f"{said}; the quick stage reads alone" if self.classifier.active else f"{said}; nothing is read yet"

    def brief(self) -> dict[str, Any]:
        """The same in short, for the page of all that is in force."""
        built = self.classifier.built
        return {
            "state": self._state,
            "unwell": self.unwell(),
            "making": self.making(),
            "declared": len(self._domains),
            "in_force": len(built.intent.domains) if built is not None else 0,
        }

    def tick(self) -> None:
        """What time alone brings: a word in the log where a model says nothing and nobody waits for it. Costs next to nothing
        where no domain is declared."""
        if not self._domains or self._told or self._in_force:
            return
        said = self._silence()
        if said:
            self._told = True
            _log.warning("the domains that are declared cannot be put in force yet: %s", said)

    @property
    def _in_force(self) -> bool:
        """Whether requests are read by what is declared."""
        return self._state == "ready"

    async def aclose(self) -> None:
        """End what is under way; whoever waits has the quick verdict. Safe to repeat."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._clear()
        if not callable(self._vectors):
            await self._vectors.aclose()

    # Behind the scene

    def _begin(self, domains: Mapping[str, Domain]) -> None:
        """Make what reads by these domains and the wanted embedder, in place of what is being made."""
        self._measured = ""
        self._forget_pulses(self.classifier.embedder)
        if self._task is not None:
            self._task.cancel()
        self.trouble = ""
        self._state = "building" if domains else "none"
        self._embedded = self._fitted = (0, 0)
        self._told = False
        self._task = asyncio.get_running_loop().create_task(self._follow(domains, self._task), name="intent-training")

    async def _follow(self, domains: Mapping[str, Domain], before: asyncio.Task[None] | None) -> None:
        """Make what reads by these domains, however often it has to be tried, and then the index of their examples."""
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
        if not domains:
            await self._clear()
            return
        await self._until_done(lambda: self._make(domains), "the domains that are declared cannot be put in force yet")
        built = self.classifier.built
        if built is not None and self._state == "ready":
            await self._until_done(lambda: self._keep(built), "the index of examples is not up to date")

    async def _until_done(self, make: Callable[[], Awaitable[None]], said: str) -> None:
        tried = 0
        while True:
            try:
                await make()
            except SitsError as error:
                self.trouble = error.message
                if self._state == "building":
                    self._state = "failed"
                if not self._told:
                    self._told = True
                    _log.error("%s: %s", said, error.message)
                if error.code is Code.UNSUPPORTED:
                    return
            except Exception as error:
                # Nobody else would say so: nobody waits for this.
                self.trouble = f"a defect: {error!r}"
                if self._state == "building":
                    self._state = "failed"
                if not self._told:
                    self._told = True
                    _log.error("a defect: %s", said, exc_info=error)
            else:
                self.trouble = ""
                if self._told:
                    self._told = False
                    _log.info("that is mended: %s", said)
                return
            await self._sleep(AGAIN_SECONDS[min(tried, len(AGAIN_SECONDS) - 1)])
            tried += 1

    async def _make(self, domains: Mapping[str, Domain]) -> None:
        # numpy and its kin take a while to import.
        await aside(lambda: importlib.import_module("sits.state.intent.building"), "intent")
        from sits.state.intent.building import load_quick, restored
        from sits.state.intent.material import material
        from sits.state.intent.tunings import find

        embedder = self._embedder
        assert embedder is not None
        if self._quick is None:
            self._quick = await aside(load_quick, "intent")
        found = await aside(lambda: find(self._data, embedder.name, embedder.weights, built_in=embedder.built_in), "intent")
        self._tuned = found.trouble
        given = await aside(lambda: material(domains), "intent")
        self._pulse(embedder)
        size = await self._size_kept(embedder)
        built = None
        if size is not None:
            shelf = shelf_of(self._data, embedder, size)
            built = await restored(given, shelf, found.tuning, self._index, anew=not embedder.built_in, tuned=found.own)
        if built is None or size is None:
            await self._read_quickly(given, self._quick, found)
            size = DIMENSION if embedder.built_in else await self._measure(embedder)
            built = await self._build(given, self._quick, found, embedder, size)
        self._tell(len(set(given.texts)), len(set(given.texts)))
        await self._put(built, self._quick, embedder, size)
        self._state = "ready"
        _log.info(
            "requests are read by %d domains, %d examples, %s of %d numbers",
            len(domains), len(built.material.examples), embedder.name, size,
        )  # fmt: skip

    async def _read_quickly(self, given: Material, quick: WordLlama, found: Found) -> None:
        """Have the quick stage read alone meanwhile, where nothing reads that is better."""
        from sits.state.intent.building import build_quick
        from sits.state.intent.reader import Reader

        if self.classifier.built is not None or self._standing == given.digest:
            return
        reader = Reader(await build_quick(given, quick, found.tuning), quick, None)
        self._forget_pulses(None)
        await self.classifier.put_quick(reader)
        self._state, self._standing = "quick", given.digest

    async def _build(self, given: Material, quick: WordLlama, found: Found, embedder: Embedder, size: int) -> Built:
        """Embed what is not embedded, and fit."""
        from sits.state.intent.building import EACH, build
        from sits.state.intent.embedders import steady
        from sits.state.intent.patience import watched

        anew = not embedder.built_in
        embed = watched(steady(embedder.name, embedder.embed, size), self._pulse(embedder), self._clock, quiet=True)
        return await build(
            given,
            quick,
            embed,
            shelf_of(self._data, embedder, size),
            found.tuning,
            self._index,
            self._tell,
            anew=anew,
            tuned=found.own,
            each=BATCH if anew else EACH,
            fitting=self._tell_fitted,
        )

    async def _put(self, built: Built, quick: WordLlama, embedder: Embedder, size: int) -> None:
        """Have requests read by this from now on."""
        from sits.state.intent.embedders import laid, steady
        from sits.state.intent.patience import Patience, watched
        from sits.state.intent.reader import Reader

        pulse = self._pulse(embedder)
        asked = laid(steady(embedder.name, embedder.embed, size, self._change), built.seat)
        # Where votes decide, they come from the index.
        votes = None if built.index == "heads" else self.classifier.votes
        reader = Reader(built.intent, quick, asked, votes=votes, pulse=pulse, clock=self._clock)
        self._forget_pulses(embedder)
        patience = Patience(pulse, self._clock)
        await self.classifier.put(InForce(reader, built, embedder, watched(asked, pulse, self._clock), patience))

    async def _clear(self) -> None:
        """Have nothing read any more."""
        self._standing = ""
        self._forget_pulses(None)
        await self.classifier.clear()

    def _pulse(self, embedder: Embedder) -> Pulse:
        from sits.state.intent.pulse import Pulse

        return self._pulses.setdefault(embedder.weights, Pulse(embedder.name, self._chance))

    def _tell(self, done: int, of: int) -> None:
        self._embedded = done, of

    def _tell_fitted(self, done: int, of: int) -> None:
        self._fitted = done, of

    async def _keep(self, built: Built) -> None:
        from sits.state.intent.nearest import Nearest

        if callable(self._vectors):
            self._vectors = await self._vectors()
        used = self.classifier.embedder
        assert used is not None
        size = built.embeddings.shape[1]
        # The name of the built-in one's is older than there being others; those say how many numbers they have.
        model = used.weights if built.seat is None else f"{size}_{used.weights}"
        nearest = Nearest(self._vectors, model, size)
        written, removed = await nearest.keep(built.material, built.embeddings)
        self.classifier.put_index(nearest, built)
        _log.info("the index of examples is up to date: %d written, %d removed", written, removed)

    async def _size_kept(self, embedder: Embedder) -> int | None:
        """How many numbers its embeddings have, as far as that is known without asking it."""
        from sits.state.intent.shelf import size_kept

        if embedder.built_in:
            return DIMENSION
        if self._measured == embedder.weights:
            return await self._measure(embedder)
        return await aside(lambda: size_kept(self._data, embedder.weights), "intent")

    async def _measure(self, embedder: Embedder) -> int:
        from sits.state.intent.patience import watched

        ask = watched(embedder.embed, self._pulse(embedder), self._clock, quiet=True)
        return int((await ask([PROBE])).shape[1])

    def _change(self) -> None:
        """The model answers with embeddings of another size than those that requests are read by: make all anew, though not at
        once, since there may be two models that take turns behind one address."""
        if self._task is not None and self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._change_later(self._domains), name="intent-training")

    async def _change_later(self, domains: Mapping[str, Domain]) -> None:
        await self._sleep(AGAIN_SECONDS[-1])
        embedder = self._embedder
        assert embedder is not None
        # What is kept of the size before is of other weights.
        self._measured = embedder.weights
        await self._follow(domains, None)

    def _forget_pulses(self, used: Embedder | None) -> None:
        """Of those by whom nothing is read, nor to be."""
        meant = {one.weights for one in (used, self._embedder) if one is not None}
        self._pulses = {weights: pulse for weights, pulse in self._pulses.items() if weights in meant}

    def _silence(self) -> str:
        """What is wrong with those who embed."""
        if not self._domains:
            return ""
        return next((said for pulse in self._pulses.values() if (said := pulse.said(self._clock()))), "")

    def _resting(self) -> dict[str, Any] | None:
        """Why whom requests are read by is left alone, and in how many seconds it may be asked again."""
        used = self.classifier.embedder
        pulse = self._pulses.get(used.weights) if used is not None else None
        if pulse is None or not pulse.out:
            return None
        return {"why": pulse.why, "again_seconds": round(max(0.0, pulse.again_at - self._clock()), 3)}

    def _embedder_status(self) -> dict[str, Any] | None:
        """Whom requests are read by, or are to be."""
        embedder = self.classifier.embedder or self._embedder
        if embedder is None:
            return None
        size, wanted = self.classifier.dimension(embedder), self._embedder.name if self._embedder is not None else embedder.name
        return {"name": embedder.name, "dimension": size, "built_in": embedder.built_in, "wanted": wanted}
