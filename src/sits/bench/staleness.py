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
    STALE_SECONDS,
    TTL,
    Apart,
    Ask,
    Coupled,
    Design,
    How,
)
from sits.bench.storm_world import START, Models, Request, Shape, Virtual, percentile, traffic
from sits.ports.vectors.memory import MemoryVectors
from sits.state.cache.semantic import Embedder, Query, WordLlama

HIT_RATE = ">= 93"
"""Percent, in the first minute, which is the worst."""
P99 = ">= 15"
"""The stand-in's over ours, of the requests that a cache answers when it is calm."""
SWING = "<= 8"
"""Percent."""
STALE = 0.7
"""Share of the questions that the model answers whose answers go stale."""
SHORT = 120.0
"""Seconds that stale answers are given, in one variant: less than the storm lasts."""
A_TENANT = 10
"""Questions of one tenant."""
SEED = 4
OURS, THEIRS = "apart", "coupled"
"""What the bounds compare: the product, and the stand-in."""

ANSWERED: tuple[How, ...] = ("hit", "semantic", "stale")
"""How a cache answers. Waiting for an equal question is no answer of a cache."""

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
        """Percent answered from a cache."""
        return self.share(*ANSWERED)

    def share(self, *hows: How) -> float:
        """Percent answered in one of these ways."""
        return 100 * sum(how in hows for _, how, _ in self.hows) / max(1, len(self.hows))

    def minute(self, number: int, *hows: How) -> float:
        """The hit rate of one minute, counted from the storm on; or the share of what was answered in one of these ways."""
        begins = self.hows[0][0] + 60 * number
        return Run([row for row in self.hows if begins <= row[0] < begins + 60], [], 0).share(*(hows or ANSWERED))

    def p99(self, calm: Run | None = None) -> float:
        """Seconds; of those requests alone that a cache answers when it is `calm`, where that is given."""
        answered = None if calm is None else {at for at, how, _ in calm.hows if how in ANSWERED}
        return percentile([took for at, _, took in self.hows if answered is None or at in answered], 0.99)

    @property
    def calls(self) -> int:
        return sum(how == "model" for _, how, _ in self.hows)


DESIGNS: dict[str, Make] = {
    "apart": Apart,
    "apart, two minutes": lambda loop, models: Apart(loop, models, stale=SHORT),
    "apart, never stale": lambda loop, models: Apart(loop, models, stale=0.0),
    "apart, no single flight": lambda loop, models: Apart(loop, models, single_flight=False),
    "coupled": Coupled,
    "coupled, single flight": lambda loop, models: Coupled(loop, models, single_flight=True),
    "tied": lambda loop, models: Coupled(loop, models, one_clock=False),
}
"""Every design by its name. `apart` is the product, on a route that gives stale answers."""
CALM = ("apart", "apart, never stale", "coupled")
"""Those whose calm is looked at."""
SHOWN: dict[Storm, tuple[str, ...]] = {
    "stale": (
        "apart", "apart, two minutes", "apart, never stale", "coupled", "coupled, single flight", "tied",
    ),
    "batch": ("apart", "apart, never stale", "coupled"),
    "wrong": ("apart", "apart, no single flight", "coupled"),
}  # fmt: skip
"""Who is shown in which storm: those for whom it makes a difference."""
SHOWN_QUICKLY: dict[Storm, tuple[str, ...]] = {
    "stale": ("apart", "apart, never stale", "coupled"),
    "batch": (),
    "wrong": ("apart",),
}


@cache
def embedder() -> Embedder:
    """The one that the gateway has."""
    return WordLlama(128)


@cache
def questions() -> list[tuple[str, str]]:
    """Pairs of wordings that the semantic cache takes for one question, of the labelled set."""

    async def found() -> list[tuple[str, str]]:
        kept = []
        for pair in semantic_pairs.pairs():
            if pair.same and pair.a != pair.b:
                cache = await semantic_pairs.opened(embedder(), MemoryVectors())
                await cache.store(Query(pair.a, "p"), semantic_pairs.answer(pair.a), START, cache.moment)
                if await cache.lookup(Query(pair.b, "p"), START) is not None:
                    kept.append((pair.a, pair.b))
        return kept

    return asyncio.run(found())


class World:
    """The traffic, and what each request says."""

    def __init__(self, shape: Shape, times: Times, seed: int = SEED) -> None:
        self.shape = shape
        self.times = times
        self.requests = traffic(shape, times.warm + times.storm, seed)
        self._seed = seed
        self._wordings = questions()
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
        await design.start(embedder())
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
            design.pass_by()
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


class Found(msgspec.Struct, frozen=True):
    """All runs: by storm and design, and the calm ones by design."""

    runs: dict[tuple[Storm, str], Run]
    calm: dict[str, Run]
    world: World

    def calm_of(self, design: str) -> Run:
        """What the design does without a storm; without single flight, or with a shorter time for stale answers, that is about
        the same."""
        return self.calm.get(design) or self.calm[OURS if design.startswith(OURS) else THEIRS]


def simulate(quick: bool, say: Callable[[str], None]) -> Found:
    """Put all designs through their storms. 60 s, 5 when quick."""
    shape, times = (Shape(rate=20.0, questions=400), Times(30.0, 120.0)) if quick else (Shape(), Times())
    world = World(shape, times)
    say("staleness storm: calm")
    calm = {design: world.run(DESIGNS[design], "calm") for design in CALM}
    runs: dict[tuple[Storm, str], Run] = {}
    for storm, designs in (SHOWN_QUICKLY if quick else SHOWN).items():
        for design in designs:
            say(f"staleness storm: {storm}, {design}")
            runs[storm, design] = world.run(DESIGNS[design], storm)
    return Found(runs, calm, world)


def figures(found: Found) -> list[Figure]:
    """The bounds on the product, and what everybody showed."""
    ours, theirs = found.runs["stale", OURS], found.runs["stale", THEIRS]
    calm, their_calm = found.calm[OURS], found.calm[THEIRS]
    hits = f"coupled {theirs.minute(0):.1f} %; from the storm to the end {ours.hit_rate:.1f} and {theirs.hit_rate:.1f}; "
    hits += f"calm {calm.minute(0):.1f}; stale among them {ours.minute(0, 'stale'):.1f}, calm {calm.minute(0, 'stale'):.1f}"
    p99s = ours.p99(calm), theirs.p99(their_calm)
    waits = f"{1e3 * p99s[0]:.0f} ms beside {1e3 * p99s[1]:.0f} of coupled, where a cache answers when it is calm; "
    waits += f"of all requests {1e3 * ours.p99():.0f} beside {1e3 * theirs.p99():.0f}"
    busy = 100 * sum(calm.loads) / len(calm.loads) / calm.slots
    swings = f"coupled {swing(theirs, their_calm):.1f} %; models {busy:.0f} % busy when calm"
    rows = [
        bounded("storm_hit_rate", ours.minute(0), "%", HIT_RATE, hits),
        bounded("storm_p99_ratio", p99s[1] / p99s[0], "x", P99, waits),
        bounded("storm_load_swing", swing(ours, calm), "%", SWING, swings),
    ]
    for (storm, design), run in found.runs.items():
        usual = found.calm_of(design)
        said = f"{run.calls} clients waited for a model, {run.share('stale'):.1f} % got a stale answer; "
        said += f"p99 {1e3 * run.p99(usual):.0f} ms, load swing {swing(run, usual):.1f} %"
        rows.append(measured(f"storm_{storm}_{_slug(design)}_hit_rate", run.minute(0), "%", said))
    return rows


def sections(found: Found) -> list[Section]:
    """What the page says of it."""
    shape, times = found.world.shape, found.world.times
    world = _WORLD.format(
        rate=number(shape.rate),
        personal=f"{100 * shape.personal:.0f}",
        new=f"{100 * shape.new:.0f}",
        questions=number(shape.questions),
        skew=number(shape.skew),
        reworded=f"{100 * shape.reworded:.0f}",
        ttl=number(TTL / 60),
        slots=found.calm[OURS].slots,
        window=number(times.window),
        minutes=number(times.storm / 60),
    )
    designs = _DESIGNS.format(stale=number(STALE_SECONDS), short=number(SHORT))
    parts: list[Table | Bars] = []
    for storm in ("stale", "batch", "wrong"):
        chosen = [(design, run) for (name, design), run in found.runs.items() if name == storm]
        if chosen:
            parts.append(_table(found, storm, chosen))
    bars = [(design, run.minute(0)) for (storm, design), run in found.runs.items() if storm == "stale"]
    parts.append(Bars("storm-hits", "Storm `stale`: hit rate in its first minute", "%, more is better", bars))
    return [Section("Staleness storm", f"{_STORMS}\n\n{world}\n\n{designs}", parts)]


def _table(found: Found, storm: Storm, chosen: Sequence[tuple[str, Run]]) -> Table:
    rows = []
    for design, run in [("calm", found.calm[OURS]), *chosen]:
        usual = found.calm_of(design) if design != "calm" else run
        cells = [
            run.minute(0),
            run.hit_rate,
            run.minute(0, "stale"),
            run.share("stale"),
            1e3 * run.p99(usual),
            1e3 * run.p99(),
            run.calls,
            swing(run, usual),
        ]
        rows.append([design, *(number(cell) for cell in cells)])
    head = ["hit % first minute", "hit % in all", "of them stale", "stale in all"]
    head += ["p99 ms where calm hits", "p99 ms of all", "waited for a model", "load swing %"]
    return Table([f"storm `{storm}`", *head], rows)


def _slug(design: str) -> str:
    return design.replace(",", "").replace(" ", "_")


_STORMS = """\
A simulation: the gateway's own caches on a clock that jumps, and beside them, on the same draws of traffic, stand-ins in which
both caches are one. In storm `stale`, 70 % of the semantic entries (all that one model made) are stale in one moment; their
exact entries are good. The bounds are held in this one. In `batch`, the answers of that model were all made within a minute and
pass their time together, in both caches. In `wrong`, they are purged from both caches: no design may give them, so all that
can help is to ask once."""
_WORLD = """\
{rate} requests a second, at random. {personal} % are none that a cache may answer. Of the others {new} % are new, the rest ask
one of {questions} questions (Zipf, {skew}), {reworded} % of them in other words: pairs of the labelled set. Answers are kept
for {ttl} minutes; there is room for all. Models take 1 s in the median (log-normal, sigma 0.5) in {slots} slots with a line
before them. A hit is an answer from a cache; who waits for an equal question is none. Load is the work asked of the models in
windows of {window} s, that of renewals included; its swing is the greatest departure from the same traffic without the storm.
{minutes} minutes are looked at from the storm on."""
_DESIGNS = """\
- `apart`: the product, on a route that gives answers for `staleSeconds: {stale}` after they have gone stale and asks for them
  anew behind, once for every 20 calls of models (RFC 5861, stale-while-revalidate).
- `two minutes`: the same with `staleSeconds: {short}`, which is less than the storm lasts. `never stale`: without, as a route is
  that says nothing of it.
- `coupled`: one room, one eviction (LRU, as large as both caches) and one clock: whatever makes a part of it stale empties all
  of it, as where a cache has one version, or can only be flushed. Who finds nothing asks a model; no single flight. It finds
  answers by the same rules as ours.
- `tied`: as `coupled`, but only the answers that are meant go: the exact and the semantic entry of each, together.
- `no single flight`, `single flight`: the same without, or with it.

Keeping the caches apart saves the exact entries; what is asked in other words still has to be made again at once, and costs what
the table says of `never stale`. Renewing takes the storm away where what is stale may still be given, and what that costs is told
beside it: how many got a stale answer. It does not need caches that are apart; with coupled ones it was not simulated. What is
not renewed before its time is over goes as ever, so with a time shorter than the storm a part of it comes later. Each answer's
time is shorter by a random part of 10 %, so in `batch` the storm of `apart` begins up to six minutes early. Nothing here helps
with what is wrong."""
