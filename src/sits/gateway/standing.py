"""What stays when the configuration changes: how targets are, who is inside which route, who is on the way to being replaced.

A table refers to it and never owns it, so that a reload forgets no breaker and counts nobody twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from sits.engines.base import Headers
from sits.observe.metrics import Registry
from sits.resilience.breakers import Breaker, Breakers, Change, Declared
from sits.resilience.colours import Passing, echoed
from sits.resilience.qos.classes import NAMES
from sits.resilience.qos.gate import Gate
from sits.resilience.switch.divert import Switches
from sits.resources.choosing import RouteRule, While
from sits.resources.kinds import LOCAL_ENGINES, Model, SettingsSpec
from sits.resources.reliability import BreakerSpec
from sits.routing.beginnings import Beginnings
from sits.routing.policies import TargetState, Usual
from sits.routing.pool import LEFT_ALONE, NOBODY
from sits.routing.rate import Rate
from sits.routing.rule_watch import RuleWatch
from sits.routing.scheduling.builtin import FILTERS, SCORES, MakeFilter, MakeScore
from sits.routing.scheduling.scheduler import Scheduler
from sits.routing.scheduling.seen import CostSeen, LatencySeen
from sits.routing.target import capabilities_of

if TYPE_CHECKING:
    from sits.gateway.exchange import Exchange
    from sits.gateway.table import Table
    from sits.gateway.vitals import VitalsWatch

_log = logging.getLogger("sits.gateway")
MOST_GATES = 10_000


def unknown(kind: Literal["filter", "score"], name: str) -> tuple[str, float]:
    """Why one is not there, where nobody says more."""
    return "is not there", 0.0


class Offered(msgspec.Struct, frozen=True):
    """Filters and scores by name: those that come with SITS, and those of plugins."""

    filters: Mapping[str, MakeFilter]
    scores: Mapping[str, MakeScore]
    gone: Callable[[Literal["filter", "score"], str], tuple[str, float]] = unknown
    """Why one is not among them, and since when, in unix seconds; 0 where nobody knows."""


BUILT_IN = Offered(FILTERS, SCORES)
EMBEDS = frozenset(("embeddings",))


class Standing:
    """One process's. `now` is seconds of the monotonic clock."""

    __slots__ = (
        "_registry", "_usual", "beginnings", "breakers", "clock", "costs", "gates", "heard", "latencies", "passing",
        "plugins", "rates", "rules", "schedulers", "states", "switches", "vitals",
    )  # fmt: skip

    def __init__(self, registry: Registry, *, wall: Callable[[], float], clock: Callable[[], float]) -> None:
        self.clock = clock
        self.breakers = Breakers(wall=wall, told=self._told)
        self._registry = registry
        self.heard: Callable[[Change], None] | None = None
        """Hears of every change of a breaker, too."""
        self.switches = Switches()
        self.passing = Passing()
        """Which model servers give the colour of traffic back."""
        self.states: dict[str, TargetState] = {}
        """How busy and how quick each model is, by name."""
        self.beginnings = Beginnings()
        """Who has read which prompts."""
        self.rates: dict[str, Rate] = {}
        """How many requests a second come, by route."""
        self.rules: dict[tuple[str, str], RuleWatch] = {}
        """What must hold of the targets of rules, by route and rule."""
        self.costs = CostSeen()
        """What requests cost, by model, as they are billed."""
        self.latencies = LatencySeen()
        """How long nearly all answers take, by model."""
        self.vitals: VitalsWatch | None = None
        """Who is not well by what Prometheus says."""
        self.plugins: Offered = BUILT_IN
        """The filters and scores that routes can use."""
        self.schedulers: dict[str, Scheduler] = {}
        """Of routes and rules, as `ROUTE\\nRULE`, so that what their scores have learned goes on in the next configuration."""
        self._usual: dict[bool, Usual] = {}
        self.gates: dict[str, Gate] = {}
        """By the name of the route or model, where requests are admitted by class."""

    def breaker(self, model: Model, settings: SettingsSpec) -> Breaker:
        """The breaker of a model, there already or new."""
        spec = model.spec
        return self.breakers.of(
            model.metadata.name,
            spec.zone,
            spec.version,
            _breaker_of(model, settings),
            spec.promise.latency_p95_ms,
            self.clock(),
            _place(model),
        )

    def out_of(self, names: tuple[str, ...]) -> frozenset[str]:
        """Who of a route is left alone for now: breakers are open, or Prometheus says that they are not well."""
        out = self.breakers.out_of(names) if self.breakers.any_out else NOBODY
        vitals = self.vitals
        return vitals.out_of(names, out) if vitals is not None and vitals.sick else out

    @property
    def ill(self) -> bool:
        """Whether Prometheus says of anybody that it is not well."""
        return self.vitals is not None and bool(self.vitals.sick)

    def why(self, name: str, said: str) -> str:
        """Why a target was left out: what Prometheus said of it, where only its being left alone is known."""
        if said is not LEFT_ALONE or self.vitals is None or name not in self.vitals.sick:
            return said
        return f"is left alone: {self.vitals.reasons.get(name, 'it is not well')}"

    def state(self, model: Model) -> TargetState:
        """What is known of how busy and how quick a model is; new where nobody has asked it."""
        found = self.states.get(model.metadata.name)
        if found is None:
            # What embeds is not compared with what writes.
            embeds = capabilities_of(model) == EMBEDS
            usual = self._usual.setdefault(embeds, Usual())
            found = self.states[model.metadata.name] = TargetState(usual, model.metadata.name)
        return found

    def rule_watch(self, route: str, rule: RouteRule) -> RuleWatch | None:
        """Who watches whether the targets of a rule are as it wants them; None where it wants nothing."""
        key = (route, rule.name)
        if rule.holds == While():
            return None
        found = self.rules.get(key)
        if found is None or found.conditions != rule.holds:
            found = self.rules[key] = RuleWatch(rule.holds)
        return found

    def gate(self, name: str, settings: SettingsSpec) -> Gate | None:
        """The gate of a name, there already or new; None where everybody is let in."""
        if settings.qos is None:
            return None
        found = self.gates.get(name)
        if found is None:
            found = Gate(name, settings.qos, self.clock())
            if len(self.gates) < MOST_GATES:
                self.gates[name] = found
        return found

    def declare(self, table: Table) -> None:
        """This table is in force: forget what it does not know, and go by what it says."""
        settings = table.snapshot.settings
        targets = [
            Declared(
                name,
                model.spec.zone,
                model.spec.version,
                _breaker_of(model, settings),
                model.spec.promise.latency_p95_ms,
                _place(model),
            )
            for name, model in table.snapshot.models.items()
        ]
        routes = [choice.order for choice in table.names.values()]
        self.breakers.declare(targets, routes, settings.outliers, self.clock())
        self.passing.retain(table.snapshot.models)
        for name in self.rates.keys() - table.snapshot.routes.keys():
            del self.rates[name]
        declared = {(name, rule.name) for name, route in table.snapshot.routes.items() for rule in route.spec.rules}
        for key in self.rules.keys() - declared:
            del self.rules[key]
        mine = {f"{name}\n" for name in table.names} | {f"{name}\n{rule}" for name, rule in declared}
        for name in self.schedulers.keys() - mine:
            del self.schedulers[name]
        for name in self.states.keys() - table.snapshot.models.keys():
            del self.states[name]
        gone = [name for name in self.gates if settings.qos is None or name not in table.names]
        for name in gone:
            # Whoever waits goes in: nobody would look at this gate any more.
            self.gates.pop(name).disband(self.clock())
        if settings.qos is None:
            return
        for gate in self.gates.values():
            gate.configure(settings.qos)

    def tick(self, now: float) -> None:
        """Ten times a second: what time alone brings."""
        self.breakers.tick(now)
        for gate in self.gates.values():
            gate.tick(now)

    def waiting(self) -> float:
        """Requests that wait for their turn, over all routes."""
        return float(sum(gate.waiting for gate in self.gates.values()))

    def echoed(self, target: str, headers: Headers, x: Exchange) -> None:
        """A coloured request was answered: note whether the colour came back."""
        if x.behind != "shadow" and self.passing.heard(target, echoed(headers, x.tint), self.clock()):
            _log.warning("%s loses the colour of traffic, which it used to give back", target)

    def measure(self) -> None:
        """Bring the metrics up to date."""
        registry, now = self._registry, self.clock()
        for name, hop in self.passing.hops.items():
            share = hop.passing(now)
            if share is not None:
                registry.colour_passing.series(name).value = share
        for row in self.breakers.rows(self.clock()):
            registry.breaker_out.series(row.name).value = int(row.out)  # a bool would make the whole dump unreadable
        for name, gate in self.gates.items():
            stands = gate.standing()
            registry.gate_limit.series(name).value = stands.limit
            registry.gate_inside.series(name).value = stands.inside
            for priority, word in enumerate(NAMES):
                registry.gate_waiting.series(name, word).value = stands.waiting[priority]
                registry.gate_arrived.series(name, word).value = stands.arrived[priority]
                registry.gate_shed.series(name, word).value = stands.shed[priority]

    def _told(self, change: Change) -> None:
        self._registry.breaker_changes.series(change.name, change.after).value += 1
        _say(change)
        if self.heard is not None:
            self.heard(change)


def _say(change: Change) -> None:
    level = logging.INFO if change.after == "closed" else logging.WARNING
    _log.log(level, "breaker of %s: %s -> %s: %s", change.name, change.before, change.after, change.detail)


def _breaker_of(model: Model, settings: SettingsSpec) -> BreakerSpec:
    """How the breaker of a model is declared. That of a local one goes by its first content only where the model says so itself:
    it is slow while this machine is busy, and another one here would be no faster."""
    own, general = model.spec.breaker, settings.breaker
    if own is not None or model.spec.engine not in LOCAL_ENGINES or general.p99_ms is None:
        return own or general
    return msgspec.structs.replace(general, p99_ms=None)


def _place(model: Model) -> str:
    """Where and as whom a model is asked: what is known of its troubles is of there."""
    spec = model.spec
    return repr((spec.engine, spec.endpoint, spec.upstream_model, spec.api_key, spec.headers))
