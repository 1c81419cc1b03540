"""`sits bench units`: two units of a real model merged and split by real requests, and how long that takes from the decision.

One real `sits serve`, two processes of llama.cpp with the same weights, one client. It asks short questions all the time, one a
second, and sends documents where it wants a merge: with them prompts are long and many. Five seconds after the last of them
prompts are short and few again. A split is measured for a unit that is still loaded, one that fell asleep, and one that was
unloaded. Every answer is read to its end, and its tokens are counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import uvloop

from sits.bench import BenchError, Outcome, Plan, units_found
from sits.bench.environment import installed, load_before
from sits.bench.units_client import Ask, Load, Took
from sits.bench.units_found import Read, Round, State, Story
from sits.bench.units_load import had, loads
from sits.bench.units_rig import AWAY, PARKED, RESTED, SAVING, SPREAD, STAYS, USUAL, Rig, Row, held
from sits.inner.errors import SitsError

SEED = 20_261_130
_QUESTION_SECONDS = 1.0
_AGAIN_SECONDS = 3.0
"""Between two bursts of documents where a merge has to last longer than the window does."""
_SLOT = 0.1
"""The gateway counts requests in slots of so many seconds, of a clock that all processes share."""
_DOCUMENT = 120
"""Words of the documents that bring a merge about."""
_QUESTION, _ANSWER = 16, 12
"""Tokens of the answers to questions and about documents."""
_TRIES = 3
"""Rounds that may be made again, in each state, because the unit had been woken before the split."""


class Scale(msgspec.Struct, frozen=True):
    """How much of everything."""

    rounds: dict[State, int]
    documents: int
    """For the saving."""
    words: int
    """Of each of them."""
    asked: int
    """How often each is asked about."""
    loads: int
    """Of a unit by itself, to see what they are made of."""


FULL = Scale({"loaded": 10, "asleep": 10, "unloaded": 5}, 4, 200, 4, 5)
QUICK = Scale({"loaded": 1, "asleep": 1, "unloaded": 1}, 2, 60, 2, 1)


def run(plan: Plan) -> Outcome:
    """Measure.

    Raises:
        BenchError: the gateway does not start, the model cannot be had, or a change does not come.
    """
    scale = QUICK if plan.quick else FULL
    busy, versions = load_before(), installed("xllamacpp")
    with tempfile.TemporaryDirectory(prefix="sits-units-") as name:
        folder, models = Path(name), plan.cache.resolve() / "units" / "models"
        rig = Rig(folder, models)
        try:
            weights = had(models)
            with rig.gateway:
                story = uvloop.run(_story(plan.say, rig, scale))
        except SitsError as error:
            raise BenchError(error.message) from error
        plan.say("units: what a load is made of")
        spent = loads(weights, folder, scale.loads)
    shape = f"{scale.documents} documents of {scale.words} words, each asked about {scale.asked} times."
    return units_found.outcome(story, spent, shape, busy, versions, quick=plan.quick)


def setup(plan: Plan) -> None:
    """Fetch the model, 98 MiB.

    Raises:
        BenchError: it cannot be had.
    """
    try:
        had(plan.cache.resolve() / "units" / "models")
    except SitsError as error:
        raise BenchError(error.message) from error


async def _story(say: Callable[[str], None], rig: Rig, scale: Scale) -> Story:
    began = time.time()
    async with Load(rig.gateway.port, SEED) as load:
        say("units: both are loaded")
        for name in (STAYS, AWAY):
            took = await load.send(Ask(name, "Hello", 1))
            if not took.ok:
                raise BenchError(f"{name} does not answer: {took.error}")
        stage = _Stage(rig, load)
        rounds: list[Round] = []
        async with stage.coming(stage.question, _QUESTION_SECONDS):
            for state, count in scale.rounds.items():
                rounds += await _rounds(say, stage, state, count)
        await load.settled()
        say("units: prompts computed, merged and spread")
        reads = [await _read(rig, load, route, scale) for route in (SAVING, SPREAD, USUAL)]
        failures = sum(row.failures for row in await rig.rows())
        return Story(rounds, load.took, reads, failures, time.time() - began)


async def _rounds(say: Callable[[str], None], stage: _Stage, state: State, count: int) -> list[Round]:
    """So many rounds in which the unit was as it should be until the split, and those before which it had been woken."""
    found: list[Round] = []
    for _ in range(count + _TRIES):
        one = await stage.round(state)
        found.append(one)
        counted = sum(not each.early for each in found)
        note = " (it had been woken before)" if one.early else ""
        say(f"units: {state} {counted}/{count}: merge {1e3 * one.merge:.1f} ms, split {1e3 * one.split:.1f} ms{note}")
        if counted == count:
            return found
    raise BenchError(f"{AWAY} is {state} too seldom when the units are split")


class _Stage:
    """Where merges and splits are made to happen."""

    def __init__(self, rig: Rig, load: Load) -> None:
        self._rig = rig
        self._load = load
        self._route = PARKED
        self._documents = [load.words(_DOCUMENT) for _ in range(4)]
        self._asked: list[asyncio.Task[Took]] = []

    @contextlib.asynccontextmanager
    async def coming(self, send: Callable[[], None], every: float) -> AsyncIterator[None]:
        """Inside, something is sent again and again, the first time at once."""

        async def go_on() -> None:
            while True:
                # A burst that came in two slots would leave the window in two steps, and be seen to leave between them.
                await asyncio.sleep(_SLOT - time.perf_counter() % _SLOT + _SLOT / 10)
                send()
                await asyncio.sleep(every)

        task = asyncio.create_task(go_on())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def question(self) -> None:
        self._load.send(Ask(self._route, f"What is {self._load.words(2)}?", _QUESTION))

    def documents(self) -> None:
        """One question about each of them."""
        for text in self._documents:
            self._asked.append(self._load.send(Ask(self._route, f"{text}\nWhat is {self._load.words(2)}?", _ANSWER)))

    async def round(self, state: State) -> Round:
        """Have the units merged and split once; `state` is that of the unit that comes back."""
        rig, self._route = self._rig, PARKED if state == "loaded" else RESTED
        before = (await rig.row(self._route)).timing
        awake = slept = None
        async with self.coming(self.documents, _AGAIN_SECONDS):
            await rig.comes_about(self._route, lambda row: row.state == "merged", "a merge")
            since = time.time()
            if state != "loaded":
                pid = (await rig.unit())["pid"]
                awake = held(pid)
                await rig.comes_about(self._route, lambda row: row.asleep == [AWAY], "asleep")
                slept = held(pid)
            if state == "unloaded":
                rig.unload(pid)
                await rig.gone()
        until, early = await self._calm(state)
        back = [self._load.send(Ask(self._route, f"What is {self._load.words(2)}?", _QUESTION)) for _ in range(2)]
        first = [took.first - took.sent for took in await asyncio.gather(*back) if took.target == AWAY]
        await asyncio.gather(*self._asked)
        self._asked.clear()
        timing = (await rig.row(self._route)).timing
        drain = timing.drain if timing.drain != before.drain else None
        assert timing.merge is not None
        assert timing.split is not None
        return Round(
            state, self._route, timing.merge, drain, timing.split, min(first, default=None), since, until, awake, slept, early
        )

    async def _calm(self, state: State) -> tuple[float, bool]:
        """Return when the units are split: until when they were surely merged, and whether the unit had been woken by then.

        Where it is woken as the rush ebbs, a slot passes before the split at the least: that is not overlooked.
        """
        seen: list[tuple[float, bool]] = []

        def over(row: Row) -> bool:
            if row.state == "merged":
                seen.append((time.time(), state != "loaded" and not row.asleep))
            return row.state == "split"

        await self._rig.comes_about(self._route, over, "a split")
        # What is told of a moment was so when it was asked, a look and an answer before.
        return max((at for at, _ in seen[:-1]), default=0.0), any(woken for _, woken in seen)


async def _read(rig: Rig, load: Load, route: str, scale: Scale) -> Read:
    """How many tokens of prompts are computed where some documents are asked about several times."""
    texts = [load.words(scale.words) for _ in range(scale.documents)]
    if route == SAVING:
        for _ in range(4):
            load.send(Ask(route, load.words(60), 1))
        await rig.comes_about(route, lambda row: row.state == "merged", "a merge")
        await load.settled()
    began, took = time.perf_counter(), []
    for _ in range(scale.asked):
        tasks = [load.send(Ask(route, f"{text}\nWhat is {load.words(2)}?", _ANSWER)) for text in texts]
        took += await asyncio.gather(*tasks)
    targets = {name: sum(one.target == name for one in took) for name in (STAYS, AWAY)}
    return Read(route, sum(one.prompt for one in took), sum(one.read for one in took), targets, time.perf_counter() - began)
