"""The pressure policies in force: their metrics are read twice a second, their watches moved on, and what follows is set for each
route.

Each worker process does this by itself. What a policy of a resource that did not change has seen so far is kept over reloads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from sits.inner.errors import SitsError
from sits.resilience.pressure.readings import Readings
from sits.resilience.pressure.relief import NO_RELIEF, Relief, relief_of, replacements, together
from sits.resilience.pressure.watch import Phase, Watch
from sits.resources.kinds import Model
from sits.resources.pressures import acts_of
from sits.resources.reliability import Pressure
from sits.routing.target import Target

_log = logging.getLogger("sits.pressure")

LOOK_SECONDS = 0.5
EVICT_SECONDS = 5.0
"""How often idle local models are looked for while a policy wants them unloaded."""
CHANGES = 256
"""Changes that are kept."""
BLIND_SECONDS = 10.0
"""For so long there must be no reading before the log tells of it: servers are asked for the first one, and some start later."""


class PressureChange(msgspec.Struct, frozen=True):
    """A policy began to act, or ended to."""

    name: str
    acting: bool
    metric: str
    value: float | None
    threshold: float
    at: float
    """Unix seconds."""
    policy: str = ""
    """In the words of whoever wrote it."""


class PressureRow(msgspec.Struct, frozen=True):
    """How a policy is, for people and machines."""

    name: str
    policy: str
    """In the words of whoever wrote it."""
    metric: str
    value: float | None
    """The last reading; None when there is none."""
    threshold: float
    release: float
    phase: Phase
    since: float
    """Unix seconds of the last change."""
    action: str
    routes: list[str]
    """Empty: all."""
    models: dict[str, str]
    """Who is replaced by whom while it acts."""
    trouble: str
    """Why there is no reading, or an old one; empty when all is well."""
    notes: list[str]
    """What of the policy is not followed, and why."""


class _Policy:
    """A declared policy: its watch, and what it brings while it acts."""

    __slots__ = ("blind", "blind_since", "notes", "relief", "resource", "since", "watch")

    def __init__(self, resource: Pressure, wall: float) -> None:
        self.resource = resource
        self.watch = Watch(resource.spec.trigger)
        self.since = wall
        self.relief = NO_RELIEF
        self.notes: list[str] = []
        self.blind_since: float | None = None
        """Since when there is no reading."""
        self.blind = False
        """Whether that was told."""

    def declare(self, resource: Pressure, models: Mapping[str, Model]) -> None:
        """Bring from now on what `resource` says; what the watch has seen stays."""
        trigger, acts = resource.spec.trigger, acts_of(resource.spec.action)
        smaller, notes = replacements(acts, models)
        seconds = trigger.release_seconds if trigger.release_seconds is not None else trigger.duration_seconds
        self.resource = resource
        self.relief = relief_of(resource.metadata.name, acts, smaller, seconds)
        self.notes = [*notes, *(f"{key} is for the model server to do: a gateway cannot" for key in acts.beyond)]

    def is_about(self, route: str) -> bool:
        routes = self.resource.spec.routes
        return not routes or route in routes


class Pressures:
    """All policies of this process. `of` is for the hot path, behind `any`.

    `evict` unloads the local models that were idle for so long; `told` hears of each change of a policy. `clock` is monotonic,
    `wall` unix seconds. `readings` are closed with it.
    """

    def __init__(
        self,
        readings: Readings,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        evict: Callable[[float], Awaitable[object]] | None = None,
        told: Callable[[PressureChange], None] | None = None,
    ) -> None:
        self.any = False
        """Whether any policy acts."""
        self.changes: deque[PressureChange] = deque(maxlen=CHANGES)
        """The last ones, oldest first."""
        self._readings = readings
        self._clock = clock
        self._wall = wall
        self._evict = evict
        self._told = told
        self._policies: dict[str, _Policy] = {}
        self._by_route: dict[str, Relief] = {}
        self._general = NO_RELIEF
        self._evicting: asyncio.Task[None] | None = None
        self._evicted = float("-inf")

    def of(self, route: str) -> Relief:
        """What is in force for requests of this route (or model, asked for by its own name)."""
        return self._by_route.get(route, self._general)

    def take(
        self,
        pressures: Mapping[str, Pressure],
        targets: Mapping[str, Target],
        *,
        prometheus: str | None = None,
        local_memory_mib: int | None = None,
    ) -> None:
        """From now on these are the policies. One whose trigger is the same goes on from where it is."""
        models = {name: target.model for name, target in targets.items()}
        kept: dict[str, _Policy] = {}
        for name, resource in pressures.items():
            policy = self._policies.get(name)
            if policy is None or policy.resource.spec.trigger != resource.spec.trigger:
                policy = _Policy(resource, self._wall())
            policy.declare(resource, models)
            kept[name] = policy
        left = [(name, policy) for name, policy in self._policies.items() if policy.watch.acting and kept.get(name) is not policy]
        self._policies = kept
        for name, policy in left:
            self._ended(name, policy, "its trigger is another one" if name in kept else "it is not declared any more")
        metrics = {policy.resource.spec.trigger.metric for policy in kept.values()}
        self._readings.want(metrics, targets, prometheus, local_memory_mib)
        self._settle()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                self.look(self._clock())
            except Exception:  # A defect in one reading must not end the watching of all the others.
                _log.exception("a defect while watching for pressure")

    def look(self, now: float) -> None:
        """One round: read, judge, tell."""
        if not self._policies:
            return
        self._readings.begin(now)
        changed = False
        for name, policy in self._policies.items():
            value, trouble = self._readings.read(policy.resource.spec.trigger.metric, now)
            self._sees(name, policy, value, trouble, now)
            if policy.watch.look(value, now):
                changed = True
                self._happened(name, policy)
        if changed:
            self._settle()
        if self.any:
            self._unload(now)

    def rows(self) -> list[PressureRow]:
        """All policies, in the order in which they are declared."""
        now = self._clock()
        rows = []
        for name, policy in self._policies.items():
            spec, watch = policy.resource.spec, policy.watch
            rows.append(
                PressureRow(
                    name=name,
                    policy=spec.policy or name,
                    metric=spec.trigger.metric,
                    value=watch.value,
                    threshold=watch.threshold,
                    release=watch.release,
                    phase=watch.phase,
                    since=policy.since,
                    action=spec.action.type,
                    routes=list(spec.routes),
                    models=dict(policy.relief.downscale),
                    trouble=self._readings.trouble(spec.trigger.metric, now),
                    notes=policy.notes,
                )
            )
        return rows

    async def aclose(self) -> None:
        """End what is under way."""
        evicting = self._evicting
        if evicting is not None:
            evicting.cancel()
            await asyncio.gather(evicting, return_exceptions=True)
        await self._readings.aclose()

    def _sees(self, name: str, policy: _Policy, value: float | None, trouble: str, now: float) -> None:
        """A line in the log when nothing is read for long, and when it is again: a policy that is blind does nothing."""
        if value is not None:
            if policy.blind:
                _log.warning("pressure %s is watched again: %s is %.4g", name, policy.resource.spec.trigger.metric, value)
            policy.blind_since, policy.blind = None, False
            return
        if policy.blind_since is None:
            policy.blind_since = now
        if not policy.blind and now - policy.blind_since >= BLIND_SECONDS:
            policy.blind = True
            stays = "acts until it is known" if policy.watch.acting else "cannot act"
            _log.warning("pressure %s %s: nothing is known of %s: %s", name, stays, policy.resource.spec.trigger.metric, trouble)

    def _happened(self, name: str, policy: _Policy) -> None:
        """By a reading."""
        watch = policy.watch
        called = self._tell(name, policy, acting=watch.acting)
        word, figure = ("acts", watch.threshold) if watch.acting else ("is over", watch.release)
        _log.warning("pressure %s %s: %s is %.4g (%.4g)", called, word, policy.resource.spec.trigger.metric, watch.value, figure)

    def _ended(self, name: str, policy: _Policy, why: str) -> None:
        """By another configuration, while it acted."""
        _log.warning("pressure %s is over: %s", self._tell(name, policy, acting=False), why)

    def _tell(self, name: str, policy: _Policy, *, acting: bool) -> str:
        """Note a change for pages and metrics; what the policy is called in the log."""
        watch, trigger = policy.watch, policy.resource.spec.trigger
        policy.since = self._wall()
        words = policy.resource.spec.policy or name
        change = PressureChange(name, acting, trigger.metric, watch.value, watch.threshold, policy.since, words)
        self.changes.append(change)
        if self._told is not None:
            self._told(change)
        return name if words == name else f"{name} ({words})"

    def _settle(self) -> None:
        """Set what is in force for each route that a policy names, and for all others."""
        acting = [policy for policy in self._policies.values() if policy.watch.acting]
        self.any = bool(acting)
        self._general = together([policy.relief for policy in acting if not policy.resource.spec.routes])
        self._by_route = {
            route: together([policy.relief for policy in acting if policy.is_about(route)])
            for route in dict.fromkeys(route for policy in acting for route in policy.resource.spec.routes)
        }

    def _unload(self, now: float) -> None:
        """Unload idle local models if a policy says so, behind everything else."""
        seconds = [policy.relief.idle_seconds for policy in self._policies.values() if policy.watch.acting]
        idle = min((each for each in seconds if each is not None), default=None)
        if idle is None or self._evict is None or self._evicting is not None or now - self._evicted < EVICT_SECONDS:
            return
        self._evicted = now
        self._evicting = asyncio.get_running_loop().create_task(self._go_unload(self._evict, idle))

    async def _go_unload(self, evict: Callable[[float], Awaitable[object]], idle: float) -> None:
        try:
            await evict(idle)
        except (SitsError, OSError) as error:
            _log.error("idle models cannot be unloaded: %s", error)
        finally:
            self._evicting = None
