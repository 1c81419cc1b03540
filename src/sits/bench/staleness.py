"""The staleness storm: most of what one cache holds goes stale in one moment. What do clients and models notice?

A simulation: the real caches (`storm_designs.Apart` asks the gateway's own class) and a stand-in in which both caches are one,
on the same traffic, in a world whose clock jumps (`storm_world`). Three storms:

- `stale`: the semantic entries of one model, 70 % of all, are stale at once, as when the index is made anew or what grounded
  them has lapsed. Their exact entries are good. This is the storm that the bounds are for.
- `batch`: the answers of that model were all made within a minute, and pass their time together, in both caches.
- `wrong`: the answers of that model are purged from both caches, since they are wrong.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal

import msgspec

from sits.bench import semantic_pairs
from sits.bench.figure import Figure, bounded, measured
from sits.bench.page import Bars, Section, Table, number
from sits.bench.storm_designs import (
    EXACT_SECONDS,
    LARGE,
    SEMANTIC_SECONDS,
    SMALL,
    TTL,
    Apart,
    Ask,
    Coupled,
    Design,
    How,
)
from sits.bench.storm_world import Models, Request, Shape, Virtual, percentile, traffic
from sits.ports.vectors.memory import MemoryVectors
from sits.state.cache.semantic import Embedder, WordLlama

HIT_RATE = ">= 93"
P99 = ">= 15"
SWING = "<= 8"
STALE = 0.7
"""Share of the questions that the model answers whose answers go stale."""
RENEWED = 2.5
"""Answers a second that are renewed, where they are: 5 % of the calls of the calm traffic."""
A_TENANT = 10
"""Questions of one tenant."""
SEED = 4

Storm = Literal["calm", "stale", "batch", "wrong"]
Make = Callable[[Virtual, Models], Design]


class Times(msgspec.Struct, frozen=True):
    """How long each part lasts, in seconds of the world."""

    warm: float = 60.0
    storm: float = 300.0
    window: float = 30.0
    """What loads are averaged over."""

    @property
    def begins(self) -> float:
        """When the storm does."""
        return TTL + self.warm


class Run(msgspec.Struct, frozen=True):
    """What one design showed from the storm on."""

    hows: list[tuple[float, How, float]]
    """When each request that a cache may answer came, how it was answered, and how long that took."""
    loads: list[float]
    """The models' work, window by window."""
    slots: int

    @property
    def hit_rate(self) -> float:
        """Percent answered from a cache. Waiting for an equal question is no hit."""
        return 100 * sum(how in ("hit", "semantic") for _, how, _ in self.hows) / max(1, len(self.hows))

    def minute(self, number: int) -> float:
        """The hit rate of one minute, counted from the storm on."""
        begins = self.hows[0][0] + 60 * number
        return Run([row for row in self.hows if begins <= row[0] < begins + 60], [], 0).hit_rate

    def p99(self, calm: Run | None = None) -> float:
        """Seconds; of those requests alone that a cache answers when it is `calm`, where that is given."""
        answered = None if calm is None else {at for at, how, _ in calm.hows if how in ("hit", "semantic")}
        return percentile([took for at, _, took in self.hows if answered is None or at in answered], 0.99)

    @property
    def calls(self) -> int:
        return sum(how == "model" for _, how, _ in self.hows)


DESIGNS: dict[str, Make] = {
    "apart": Apart,
    "apart, seeds": lambda loop, models: Apart(loop, models, seeds=True),
    "apart, spread": lambda loop, models: Apart(loop, models, spread=0.2),
    "apart, renews": lambda loop, models: Apart(loop, models, renews=RENEWED),
    "apart, no single flight": lambda loop, models: Apart(loop, models, single_flight=False),
    "coupled": Coupled,
    "coupled, single flight": lambda loop, models: Coupled(loop, models, single_flight=True),
    "tied": lambda loop, models: Coupled(loop, models, one_clock=False),
}
"""Every design by its name. `apart` is the product."""


@cache
def questions(embedder: Embedder) -> list[tuple[str, str]]:
    """Pairs of wordings that the semantic cache takes for one question, of the labelled set."""

    async def found() -> list[tuple[str, str]]:
        kept = []
        for pair in semantic_pairs.pairs():
            if pair.same and pair.a != pair.b:
                cache = await semantic_pairs.opened(embedder, MemoryVectors())
                await cache.store(semantic_pairs._query(pair.a, "", None), semantic_pairs.answer(pair.a), 1.8e9, cache.moment)
                if await cache.lookup(semantic_pairs._query(pair.b, "", None), 1.8e9) is not None:
                    kept.append((pair.a, pair.b))
        return kept

    return asyncio.run(found())


class World:
    """The traffic, and what each request says."""

    def __init__(self, shape: Shape, times: Times, embedder: Embedder, seed: int = SEED) -> None:
        self.shape = shape
        self.times = times
        self.embedder = embedder
        self.requests = traffic(shape, times.warm + times.storm, seed)
        self._seed = seed
        self._wordings = questions(embedder)
        draw = random.Random(seed)  # noqa: S311
        self._models = [LARGE if draw.random() < STALE else SMALL for _ in range(shape.questions)]

    def ask(self, question: int, reworded: bool) -> Ask:
        if question >= self.shape.questions:
            tenants = self.shape.questions // A_TENANT
            return Ask(f"tenant {question % tenants}", f"What does message {question} on the display mean?", SMALL)
        wordings = self._wordings[question % len(self._wordings)]
        return Ask(f"tenant {question // A_TENANT}", wordings[reworded], self._models[question])

    def fills(self, storm: Storm) -> list[tuple[float, Ask]]:
        """What was asked before, each question once within the time that answers are kept; in a batch those of one model were
        asked within a minute, so that they pass their time as the storm begins."""
        draw = random.Random(self._seed)  # noqa: S311
        found = []
        for question in range(self.shape.questions):
            at, reworded, within = draw.random() * TTL, draw.random() < self.shape.reworded, draw.random() * 60
            ask = self.ask(question, reworded)
            found.append((self.times.begins - TTL + within if storm == "batch" and ask.model == LARGE else at, ask))
        return sorted(found, key=lambda row: row[0])

    @property
    def slots(self) -> int:
        """As many as make the calm traffic take its share of them."""
        shape = self.shape
        calls = shape.personal + (1 - shape.personal) * (shape.new + 0.02)
        mean = sum(request.seconds for request in self.requests) / len(self.requests)
        return round(shape.rate * calls * mean / shape.busy)

    def run(self, make: Make, storm: Storm) -> Run:
        """Put one design through it."""
        with asyncio.Runner(loop_factory=Virtual) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, Virtual)
            return runner.run(self._live(loop, make, storm))

    async def _live(self, loop: Virtual, make: Make, storm: Storm) -> Run:
        models = Models(loop, self.slots)
        design = make(loop, models)
        await design.start(self.embedder)
        for at, ask in self.fills(storm):
            await _until(loop, at)
            await design.ask(ask, None)
        hows: list[tuple[float, How, float]] = []
        under_way = []
        storming = False
        for request in self.requests:
            at = TTL + request.at
            if not storming and at >= self.times.begins:
                storming = True
                await _until(loop, self.times.begins)
                if storm == "stale":
                    await design.go_stale()
                elif storm == "wrong":
                    await design.purge()
            await _until(loop, at)
            under_way.append(loop.create_task(self._one(loop, design, models, request, hows)))
        await asyncio.gather(*under_way)
        begins = self.times.begins
        counted = sorted(row for row in hows if row[0] >= self.times.warm)
        return Run(counted, models.load(begins, begins + self.times.storm, self.times.window), self.slots)

    async def _one(
        self, loop: Virtual, design: Design, models: Models, request: Request, hows: list[tuple[float, How, float]]
    ) -> None:
        if request.question is None:
            await models.answer(request.seconds)
            return
        start = loop.time()
        how = await design.ask(self.ask(request.question, request.reworded), request.seconds)
        took = loop.time() - start + (EXACT_SECONDS if how == "hit" else SEMANTIC_SECONDS)
        hows.append((request.at, how, took))


async def _until(loop: Virtual, at: float) -> None:
    if at > loop.time():
        await asyncio.sleep(at - loop.time())


def swing(run: Run, calm: Run) -> float:
    """The most that the models' load departs, in any window, from what the same traffic makes without the storm, in percent of
    that."""
    return max(100 * abs(load - usual) / usual for load, usual in zip(run.loads, calm.loads, strict=True))
