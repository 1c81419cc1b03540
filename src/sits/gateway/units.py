"""Units of a route, merged and split: watches the traffic, has changes made, and says who is merged away.

A request looks `lane.away` up and tells `lane.saw`; nothing else of this is on its way. Merging: the unit that stays is made
ready, then it gets all requests, so that they share its KV cache; the others finish what they have, stay as they are for
`parkSeconds`, and sleep then. Splitting: they are made ready first, and get requests again when all of them are.

The loop's own lateness is what makes data old: what came up to the last look is counted for certain, what came since may still
lie in a socket. So a sample is of the moment of the look before, and after a pause of the loop the next look decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from sits.inner.errors import SitsError
from sits.ports.ending import end
from sits.resources.snapshot import Snapshot
from sits.resources.units import UnitsSpec
from sits.routing.units import Action, Sample, State, Traffic, Units

_log = logging.getLogger("sits.units")

LOOK_SECONDS = 0.02
"""Between two looks; two of them fit into the 50 ms that data may be old."""
DRAIN_SECONDS = 0.01
"""Between two looks at whether a unit still has requests."""
AGAIN_SECONDS = 2.0
"""After how long one that has not gone to sleep is told to again."""
KEEP_SECONDS = 900.0
"""How often units that are merged away are told to sleep on; left alone they are unloaded after an hour, and a split would wait
for their load."""
NOBODY: frozenset[str] = frozenset()


class Wanted(msgspec.Struct, frozen=True):
    """A route with units, as it is declared."""

    spec: UnitsSpec
    backends: tuple[tuple[str, float], ...]
    """Names with weights, in order."""


def wanted(snapshot: Snapshot) -> dict[str, Wanted]:
    """The routes of a configuration that have units. A backend without a share is none of them."""
    found = {}
    for name, route in snapshot.routes.items():
        spec = route.spec.units
        backends = tuple((model.metadata.name, weight) for model, weight in snapshot.names[name].backends if weight > 0)
        if spec is not None and len({one for one, _ in backends}) > 1 and spec.into in (None, *(one for one, _ in backends)):
            found[name] = Wanted(spec, backends)
    return found


class Doing(Protocol):
    """What can be done with a unit."""

    async def ready(self, name: str) -> None:
        """It is loaded and answers.

        Raises:
            SitsError: it is not, and cannot be.
        """

    async def rest(self, name: str) -> bool:
        """Give its memory back, unless it has requests; whether that was done. False for one on another machine. To be repeated
        while it is to stay so."""

    def busy(self, name: str) -> int:
        """Requests that it is working on."""


class Timing(msgspec.Struct):
    """How long the last changes took, in seconds from their decision; None where there was none yet."""

    merge: float | None = None
    """Until one unit got all requests."""
    drain: float | None = None
    """Until the others had finished theirs."""
    split: float | None = None
    """Until all units got requests again."""


class Lane:
    """One route. `away` are the units that are merged into another one; plain attributes, for the way of a request."""

    __slots__ = ("asleep", "away", "others", "route", "sample", "stays", "task", "timing", "traffic", "units", "wanted")

    def __init__(self, route: str, wanted: Wanted, traffic: Traffic) -> None:
        self.route = route
        self.wanted = wanted
        self.away: frozenset[str] = NOBODY
        self.traffic = traffic
        self.units = Units(wanted.spec)
        self.stays = wanted.spec.into or max(wanted.backends, key=lambda pair: pair[1])[0]
        self.others = tuple(dict.fromkeys(name for name, _ in wanted.backends if name != self.stays))
        self.timing = Timing()
        self.sample: Sample | None = None
        self.asleep: set[str] = set()
        self.task: asyncio.Task[None] | None = None
        """The change that is under way, or what follows a merge."""

    def saw(self, now: float, tokens: int) -> None:
        """A request came, whose prompt has so many tokens."""
        self.traffic.saw(now, tokens)


class UnitsStatus(msgspec.Struct, frozen=True):
    """How the units of a route are."""

    route: str
    state: State
    stays: str
    away: list[str]
    asleep: list[str]
    """Those that have given their memory back since they were merged away."""
    tokens: float
    qps: float
    stale: int
    failures: int
    timing: Timing


class Merging:
    """The units of all routes of one process. `told` hears of every change; `workers` processes share the traffic evenly."""

    __slots__ = ("_clock", "_doing", "_keep", "_lanes", "_last", "_leaving", "_loop", "_timer", "_told", "_workers", "any")

    def __init__(
        self,
        doing: Doing,
        told: Callable[[str, dict[str, Any]], None],
        *,
        clock: Callable[[], float],
        workers: int = 1,
        keep_seconds: float = KEEP_SECONDS,
    ) -> None:
        self._doing = doing
        self._told = told
        self._clock = clock
        self._workers = workers
        self._keep = keep_seconds
        self._lanes: dict[str, Lane] = {}
        self._last = clock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self.any = False
        """Whether a route has units at all."""

    def take(self, wanted: Mapping[str, Wanted]) -> None:
        """These routes have units from now on. One that did not change stays as it is; of another, all units get requests."""
        before, self._lanes = self._lanes, {}
        for route, one in wanted.items():
            old = before.get(route)
            if old is not None and old.wanted == one:
                self._lanes[route] = before.pop(route)
            else:
                self._lanes[route] = Lane(route, one, old.traffic if old is not None else Traffic())
        for lane in before.values():
            lane.away = NOBODY
            self._leave(lane)
        self.any = bool(self._lanes)
        if self.any and self._loop is not None and self._timer is None:
            self._look()

    def of(self, route: str) -> Lane | None:
        """The lane of a route; None where it has no units."""
        return self._lanes.get(route)

    def out_of(self, route: str) -> frozenset[str]:
        """Who is merged away."""
        lane = self._lanes.get(route)
        return lane.away if lane is not None else NOBODY

    def status(self) -> list[UnitsStatus]:
        """How all of them are."""
        found = []
        for lane in self._lanes.values():
            sample = lane.sample
            tokens, qps = (sample.tokens, sample.qps) if sample is not None else (0.0, 0.0)
            units = lane.units
            found.append(
                UnitsStatus(
                    lane.route, units.state, lane.stays, sorted(lane.away), sorted(lane.asleep), round(tokens, 1),
                    round(qps, 2), units.stale, units.failures, lane.timing,
                )
            )  # fmt: skip
        return found

    def start(self) -> None:
        """Begin to look, in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._last = self._clock()
        if self.any:
            self._look()

    async def aclose(self) -> None:
        """End what is under way and look no more. Safe to repeat."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await end(*(lane.task for lane in self._lanes.values()), *self._leaving)

    def tick(self, now: float) -> None:
        """One look at all routes."""
        at, self._last = self._last, now
        for lane in self._lanes.values():
            sample = lane.traffic.sample(now, at)
            if self._workers > 1:
                sample = msgspec.structs.replace(sample, qps=sample.qps * self._workers)
            lane.sample = sample
            action = lane.units.tick(now, sample)
            if action is not None:
                self._leave(lane)
                lane.task = asyncio.create_task(self._change(lane, action, now, sample), name="units")
            elif lane.units.state == "merged":
                self._merged(lane, lane.units.crowded(sample))

    def _look(self) -> None:
        self._timer = None
        if self._loop is None or not self._lanes:
            return
        self.tick(self._clock())
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def _leave(self, lane: Lane) -> None:
        """End what goes on for a lane."""
        task, lane.task = lane.task, None
        if task is not None and not task.done():
            task.cancel()
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _change(self, lane: Lane, action: Action, decided: float, sample: Sample) -> None:
        said = {"route": lane.route, "into": lane.stays, "units": list(lane.others)}
        why = f"{sample.tokens:.0f} tokens a prompt, {sample.qps:.0f} requests a second"
        try:
            if action == "merge":
                await self._doing.ready(lane.stays)
                lane.away = frozenset(lane.others)
            else:
                await self._all_ready(lane.others)
                lane.asleep.clear()
                lane.away = NOBODY
        except SitsError as error:
            lane.units.failed()
            _log.error("units of %s cannot %s: %s", lane.route, action, error.message)
            self._told("units", {**said, "action": action, "outcome": "failed", "why": error.message})
            return
        except Exception:
            lane.units.failed()
            _log.exception("a defect while the units of %s %s", lane.route, action)
            return
        seconds = self._clock() - decided
        setattr(lane.timing, action, seconds)
        lane.units.done()
        _log.info("units of %s: %s after %.1f ms: %s", lane.route, action, 1e3 * seconds, why)
        self._told("units", {**said, "action": action, "outcome": "done", "why": why, "seconds": seconds})
        if action == "merge":
            await self._drain(lane, decided)

    async def _all_ready(self, names: Sequence[str]) -> None:
        """Return when all of them are ready. When one cannot be, the others are left off, and have ended their tries.

        Raises:
            SitsError: one of them is not ready, and cannot be.
        """
        tries = [asyncio.create_task(self._doing.ready(name), name="unit") for name in names]
        try:
            await asyncio.gather(*tries)
        finally:
            await end(*(one for one in tries if not one.done()))

    async def _drain(self, lane: Lane, decided: float) -> None:
        """What follows a merge: the others finish, wait whether they are wanted soon, and sleep. Goes on until it is ended."""
        while any(self._doing.busy(name) for name in lane.others):  # noqa: ASYNC110 - requests set no event of ours
            await asyncio.sleep(DRAIN_SECONDS)
        lane.timing.drain = self._clock() - decided
        await self._park(lane)

    async def _park(self, lane: Lane) -> None:
        """Have the others sleep when they were not wanted for a while, and see to it that they do. Goes on until it is ended."""
        await asyncio.sleep(lane.wanted.spec.park_seconds)
        while True:
            for name in lane.others:
                try:
                    if await self._doing.rest(name):
                        lane.asleep.add(name)
                except SitsError as error:
                    _log.warning("unit %s of %s cannot be put to sleep: %s", name, lane.route, error.message)
            all_sleep = lane.asleep.issuperset(lane.others)
            await asyncio.sleep(self._keep if all_sleep else min(self._keep, AGAIN_SECONDS))

    def _merged(self, lane: Lane, crowded: bool) -> None:
        """While units are merged: wake who sleeps when the rush is over, and have them sleep again when it is back."""
        if not crowded:
            if lane.asleep:
                self._come_back(lane)
        elif lane.task is None or lane.task.done():
            lane.task = asyncio.create_task(self._park(lane), name="units")

    def _come_back(self, lane: Lane) -> None:
        """The rush is over though it is not time to split yet: wake who is asleep, so that the split need not wait."""
        wanted = sorted(lane.asleep)
        lane.asleep.clear()
        self._leave(lane)
        lane.task = asyncio.create_task(self._wake(lane.route, wanted), name="units")

    async def _wake(self, route: str, names: Sequence[str]) -> None:
        try:
            await self._all_ready(names)
        except SitsError as error:
            # The split will try again, and say so where it fails too.
            _log.warning("a unit of %s cannot be woken in time: %s", route, error.message)
