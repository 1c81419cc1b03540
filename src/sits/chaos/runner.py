"""One experiment, from start to verdict: steady state, faults, recovery, with clients all along."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from sits.chaos import NotRun
from sits.chaos.figures import Figures, Window, metric_names, understood
from sits.chaos.injector import Injector
from sits.chaos.load import Crowd
from sits.chaos.report import COMPARE, Judged, Report, described, told
from sits.chaos.world import Running, Started, ask
from sits.inner.errors import SitsError
from sits.resources.checks_experiments import touched
from sits.resources.experiments import Experiment, FaultSpec, Probe
from sits.resources.query import Node

LOOK_SECONDS = 0.2
"""Between two looks at `/metrics`."""
ABORT_SECONDS = 0.1
"""Between two looks at what would end the run early."""
_ENOUGH = 10
"""Requests before their failures are counted as a share."""
_SETTLED = 0.5
"""Seconds that the steady state must hold to the end of the run, or half of the time for recovery where that is shorter."""
_STEP = 0.05
"""Seconds; how exactly the time of recovery is found."""
_WARM_SECONDS = 10.0


class Query(msgspec.Struct, frozen=True):
    """A probe with its query read."""

    probe: Probe
    node: Node

    @classmethod
    def of(cls, probe: Probe) -> Query:
        return cls(probe, understood(probe.query))

    def judge(self, figures: Figures, part: Any, window: Callable[[str], Window | None]) -> Judged:
        measured = figures.value(self.node, window)
        holds = measured is not None and COMPARE[self.probe.is_](measured, self.probe.value)
        name = self.probe.name or self.probe.query
        return Judged(part, name, self.probe.query, self.probe.is_, self.probe.value, measured, holds)


class Run:
    """One run of one experiment."""

    def __init__(self, experiment: Experiment, world: Started | Running, *, seed: int, say: Callable[[str], None]) -> None:
        self._experiment = experiment
        self._spec = experiment.spec
        self._world = world
        self._seed = seed
        self._say = say
        self._steady = [Query.of(probe) for probe in self._spec.steady]
        self._verdict = [Query.of(probe) for probe in self._spec.verdict]
        self._limits = [Query.of(probe) for probe in self._spec.abort.probes]
        self._figures = Figures(query.node for query in (*self._steady, *self._verdict, *self._limits))
        self._wants_metrics = any(metric_names(query.node) for query in (*self._steady, *self._verdict, *self._limits))
        self._loop = asyncio.get_running_loop()
        self._edges: list[float] = []
        self._judged: list[Judged] = []
        self._aborted: asyncio.Future[str] = self._loop.create_future()

    async def go(self) -> Report:
        """Run it through.

        Raises:
            NotRun: the steady state was none, or a fault could not be made.
        """
        crowd = self._crowd = Crowd(self._world.gateways, self._world.connect, headers=self._world.admin_headers)
        self._figures.seen = crowd.seen
        injector = Injector(self._world, self._spec, self._seed)
        watching: list[asyncio.Task[None]] = []
        try:
            for load in self._spec.load:
                await crowd.warm(load, _WARM_SECONDS)
            watching = [self._loop.create_task(self._look()), self._loop.create_task(self._guard())]
            await self._phases(injector)
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            with contextlib.suppress(SitsError, NotRun):
                await injector.stop_all()
            await crowd.aclose()
        return self._report(injector)

    # The three phases

    async def _phases(self, injector: Injector) -> None:
        spec = self._spec
        steady = [load for load in spec.load if load.when == "run"]
        await self._edge()
        for load in steady:
            self._crowd.start(load)
        if await self._pass(spec.before_seconds):
            return
        await self._edge()
        self._judged += [query.judge(self._figures, "steady before", self._window("before")) for query in self._steady]
        if wrong := [one for one in self._judged if not one.holds]:
            raise NotRun("the steady state does not hold before the faults: " + "; ".join(map(told, wrong)))
        self._say(f"faults: {', '.join(described(fault) for fault in spec.faults)}")
        burst = [load for load in spec.load if load.when == "during"]
        for load in burst:
            self._crowd.start(load)
        faults = [self._loop.create_task(self._have(injector, fault)) for fault in spec.faults]
        try:
            aborted = await self._pass(spec.seconds)
            if not aborted:
                for task in faults:
                    await task
        finally:
            for task in faults:
                task.cancel()
            await asyncio.gather(*faults, return_exceptions=True)
        if aborted:
            return
        await injector.stop_all()
        await self._edge()
        ending = [self._loop.create_task(self._crowd.stop(load)) for load in burst]
        self._say("recovery")
        try:
            if await self._pass(spec.after_seconds):
                return
            for load in steady:
                await self._crowd.stop(load)
        finally:
            for task in ending:
                await task
        self._figures.struck = await injector.struck()
        await self._edge()
        self._judge()

    async def _have(self, injector: Injector, fault: FaultSpec) -> None:
        """One fault, from when it begins to when it ends."""
        await asyncio.sleep(fault.after_seconds)
        await injector.start(fault)
        left = self._spec.seconds - fault.after_seconds
        if fault.seconds is not None and fault.seconds < left:
            await asyncio.sleep(fault.seconds)
            await injector.stop(fault)

    async def _pass(self, seconds: float) -> bool:
        """Let time go by; whether the run was aborted meanwhile."""
        await asyncio.wait([self._aborted], timeout=seconds)
        return self._aborted.done()

    async def _edge(self) -> None:
        """A phase ends and the next one begins."""
        await self._sample()
        self._edges.append(self._loop.time())

    # Looking

    async def _look(self) -> None:
        while self._wants_metrics:
            await asyncio.sleep(LOOK_SECONDS)
            await self._sample()

    async def _sample(self) -> None:
        if self._wants_metrics:
            gots = await asyncio.gather(*(ask(self._world, name, "GET", "/metrics") for name in self._world.gateways))
            now = self._loop.time()
            for gateway, got in zip(self._world.gateways, gots, strict=True):
                if got.status == 200:
                    self._figures.take(gateway, now, got.error.decode(errors="replace"))

    async def _guard(self) -> None:
        """End the run as soon as it goes too far."""
        while not self._aborted.done():
            await asyncio.sleep(ABORT_SECONDS)
            if self._edges and (why := self._too_far()):
                self._aborted.set_result(why)

    def _too_far(self) -> str:
        now = Window(self._edges[0], self._loop.time())
        seen, most = self._crowd.seen, self._spec.abort.failures
        if most is not None and len(seen) >= _ENOUGH:
            share = sum(not one.good for one in seen) / len(seen)
            if share > most:
                return f"{share:.1%} of {len(seen)} requests failed, more than {most:.1%}"
        for query in self._limits:
            judged = query.judge(self._figures, "verdict", _only(now))
            if judged.measured is not None and not judged.holds:
                return told(judged)
        return ""

    # Judging

    def _window(self, usual: str) -> Callable[[str], Window | None]:
        places = {"before": (0, 1), "during": (1, 2), "after": (2, 3)}

        def window(phase: str) -> Window | None:
            phase = phase or usual
            if phase == "run":
                return Window(self._edges[0], self._edges[-1])
            first, second = places[phase]
            return Window(self._edges[first], self._edges[second]) if second < len(self._edges) else None

        return window

    def _judge(self) -> None:
        self._figures.recovery = self._recovered()
        for kind in dict.fromkeys(fault.type for fault in self._spec.faults):
            struck = self._figures.struck.get(kind, 0.0)
            self._judged.append(Judged("fault", f"{kind} happened", f'struck{{kind="{kind}"}}', ">", 0.0, struck, struck > 0))
        if self._steady:
            settled = self._figures.recovery is not None
            start = self._edges[2] + (self._figures.recovery or 0.0)
            for one in self._steady:
                judged = one.judge(self._figures, "steady after", _only(Window(start, self._edges[3])))
                self._judged.append(judged if settled else msgspec.structs.replace(judged, holds=False))
        self._judged += [query.judge(self._figures, "verdict", self._window("run")) for query in self._verdict]

    def _recovered(self) -> float | None:
        """Seconds from the end of the faults until the steady state held, and to the end; None when it never did."""
        start, end = self._edges[2], self._edges[3]
        at = max(start, end - min(_SETTLED, self._spec.after_seconds / 2))
        found: float | None = None
        while all(one.judge(self._figures, "steady after", _only(Window(at, end))).holds for one in self._steady):
            found = at - start
            if at <= start:
                break
            at = max(start, at - _STEP)
        return found

    def _report(self, injector: Injector) -> Report:
        outcomes: dict[str, int] = {}
        for one in self._crowd.seen:
            outcomes[one.outcome] = outcomes.get(one.outcome, 0) + 1
        aborted = self._aborted.result() if self._aborted.done() else ""
        bad = bool(injector.surprises) or not all(one.holds for one in self._judged)
        return Report(
            self._experiment.metadata.name,
            self._spec.claim,
            "aborted" if aborted else "fails" if bad else "holds",
            aborted or "; ".join(injector.surprises),
            tuple(described(fault) for fault in self._spec.faults),
            tuple(self._judged),
            len(self._crowd.seen),
            outcomes,
            self._figures.recovery,
            round(self._loop.time() - self._edges[0], 3) if self._edges else 0.0,
            self._seed,
        )


async def run(
    experiment: Experiment,
    *,
    seed: int = 1,
    url: str | None = None,
    key: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    keep: pathlib.Path | None = None,
) -> Report:
    """Run an experiment and say what came of it; what it started is ended, whatever happens. `keep` is where logs stay.

    Raises:
        QueryError: a query names what there is not.
    """
    spec = experiment.spec
    for probe in (*spec.steady, *spec.verdict, *spec.abort.probes):
        understood(probe.query)
    outside = [name for fault in spec.faults for name in touched(fault, spec) if spec.blast and name not in spec.blast]
    if outside:
        return _not_run(experiment, seed, f"outside of the blast radius: {', '.join(outside)}")
    with tempfile.TemporaryDirectory(prefix="sits-chaos-") as made:
        folder = keep or pathlib.Path(made)
        entering: AbstractAsyncContextManager[Started | Running]
        entering = Running(url, key) if url is not None else Started(spec, folder, seed)
        try:
            async with entering as world:
                say("steady state")
                return await Run(experiment, world, seed=seed, say=say).go()
        except NotRun as error:
            return _not_run(experiment, seed, str(error))


def _not_run(experiment: Experiment, seed: int, why: str) -> Report:
    spec = experiment.spec
    faults = tuple(described(fault) for fault in spec.faults)
    return Report(experiment.metadata.name, spec.claim, "not run", why, faults, seed=seed)


def _only(window: Window) -> Callable[[str], Window | None]:
    """That window, whatever phase a query names."""
    return lambda _: window
