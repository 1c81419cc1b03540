"""Whom to ask, in which order: a choice among the backends, then the others, then the fallbacks.

Pure: the random number and the time are passed in, so that a recorded decision can be made again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from sits.inner.ask import Operation
from sits.inner.errors import Code, SitsError
from sits.resources.kinds import Route
from sits.routing.barred import Barred
from sits.routing.beginnings import Reading
from sits.routing.matching import Rule
from sits.routing.pool import LEFT_ALONE, NOBODY, Picked, Pool, ring_place
from sits.routing.rate import Rate
from sits.routing.scheduling.base import Facts
from sits.routing.scheduling.scheduler import Scheduler
from sits.routing.target import Target, operation_capability

__all__ = ["LEFT_ALONE", "NOBODY", "Choice", "Plan", "after_too_long"]


class Plan(msgspec.Struct, frozen=True):
    """The targets of one request, best first, and how that came about."""

    targets: Sequence[Target]
    picked: Picked | None = None
    """How the first one was chosen; None where there was nothing to choose."""
    filtered: Sequence[tuple[str, str]] = ()
    """(target, reason) of those that were left out."""
    pool: Pool | None = None
    """Where they were chosen from; None where there is but one backend."""
    facts: Facts | None = None
    """What was known of the request, where the route looks at that."""

    first: str = ""
    """Who was chosen for the first place, whatever was put before it since."""
    reading: Reading | None = None
    """Who has read how much of the prompt, where anybody goes by that."""
    beyond: Sequence[Target] = ()
    """Who may answer too, and is not tried because a route tries only so many."""

    @property
    def rule(self) -> str:
        """The rule of the route that counted; empty where none did."""
        return self.pool.rule if self.pool is not None else ""


class Choice:
    """A name that clients can ask for, compiled: its backends, its rules, its fallbacks, how many may be tried."""

    __slots__ = (
        "_every",
        "_only",
        "_sieve",
        "_sieve_of",
        "_strangers",
        "attempts",
        "common",
        "fallbacks",
        "hash_header",
        "limits",
        "order",
        "pool",
        "pools",
        "rate",
        "reads",
        "route",
        "rules",
        "thinks",
        "total",
    )

    def __init__(
        self,
        route: Route | None,
        pool: Pool,
        fallbacks: Sequence[Target],
        attempts: int | None = None,
        rules: Sequence[tuple[Rule, Pool]] = (),
        sieve: Scheduler | None = None,
        *,
        sieve_of: Callable[[Target], Scheduler] | None = None,
        thinks: bool = False,
        limits: bool = False,
    ) -> None:
        """`sieve` leaves out those who may not answer, of everybody: its candidates are `everybody(...)` of the same. `sieve_of`
        makes the same for anybody else. Where `thinks`, its requests are looked into even if nothing else asks for it."""
        self.route = route
        self.pool = pool
        self.rules = tuple(rules)
        self.pools: tuple[Pool, ...] = (pool, *(one for _, one in rules))
        self.fallbacks = (*pool.spare, *fallbacks)
        self.attempts = attempts
        self.total = route.spec.total if route is not None else None
        self.rate = Rate()
        self._sieve = sieve
        self._sieve_of = sieve_of
        self._strangers: dict[str, Scheduler] = {}
        self.hash_header = (route.spec.hash.header or "").lower().encode() if route is not None else b""
        every = everybody(self.pools, fallbacks)
        self._every = every
        self.order = tuple(target.name for target in every)
        """The names of everybody, backends first."""
        self.common = frozenset.intersection(*(target.capabilities for target in every)) if every else frozenset()
        """What every target can do: a request that needs no more is not filtered at all."""
        self.thinks = thinks or bool(rules) or any(one.scheduler is not None or one.name == "hash" for one in self.pools)
        """Whether more has to be known of a request than what it needs: `decide` is to be asked instead of `plan`."""
        self.limits = limits
        """Whether it looks at how long an answer a request allows."""
        self.reads = any(one.reads for one in self.pools)
        """Whether it goes by who has read how much of a prompt."""
        self._only: Plan | None = None
        if len(pool.backends) == 1 and not self.thinks:
            self._only = Plan(every[:attempts], beyond=() if attempts is None else every[attempts:])

    @property
    def targets(self) -> Sequence[Target]:
        """Everybody that could be asked, backends first."""
        return self._every

    @property
    def name(self) -> str:
        return self.route.metadata.name if self.route is not None else self._every[0].name

    def plan(
        self,
        operation: Operation,
        needs: frozenset[str],
        random: float,
        now: float,
        out: frozenset[str] = NOBODY,
        reading: Reading | None = None,
    ) -> Plan:
        """The targets to try, in order; those whose names are in `out` are left alone for now. `reading` is of the prompt.

        Raises:
            SitsError: `unsupported`, when no target has what the request needs.
        """
        wanted = needs | {operation_capability(operation)}
        if self._only is not None and not out and wanted <= self.common:
            return self._only
        pool = self.pool
        fallbacks: Sequence[Target] = self.fallbacks
        filtered: list[tuple[str, str]] = []
        kept: list[int] | None = None
        if out or not wanted <= self.common:
            backends = pool.backends
            kept = [index for index in range(len(backends)) if _able(backends[index], wanted, out, filtered)]
            fallbacks = [target for target in fallbacks if _able(target, wanted, out, filtered)]
        if not (pool.backends if kept is None else kept) and not fallbacks:
            if out:
                # Those who can are all left alone: asked they are all the same, for nobody else can.
                return self.plan(operation, needs, random, now, NOBODY, reading)
            raise self._nobody(filtered)
        targets, picked = pool.simply(kept, random, now, reading)
        return self._plan(targets, fallbacks, picked, filtered, pool, None, reading)

    def decide(self, facts: Facts, out: frozenset[str] = NOBODY) -> Plan:
        """As `plan`, by all that is known of the request.

        Raises:
            SitsError: `unsupported`, when no target may answer it.
        """
        if facts.passed:
            facts.passed = ()  # Of another decision on the same request.
        for rule, pool in self.rules:
            if rule.counts(facts):  # Asked once: whoever follows a rule uses up one of its tries.
                return self._decided(pool, facts, out)
        return self._decided(self.pool, facts, out)

    def _decided(self, pool: Pool, facts: Facts, out: frozenset[str]) -> Plan:
        facts.pool, facts.sieved, facts.weighed = pool, None, None
        if pool.name == "hash" and self.route is not None:
            facts.draw = facts.place if facts.place >= 0.0 else ring_place(self.route.spec.hash.by, facts, self.hash_header)
        fallbacks: Sequence[Target] = self.fallbacks if pool is self.pool else (*pool.spare, *self.pool.backends, *self.fallbacks)
        filtered: list[tuple[str, str]] = []
        if fallbacks and self._sieve is not None:
            found = facts.sieved = self._sieve.decide(facts, out)
            allowed = {self._every[index] for index in found.kept}
            ours = {target.name for target in fallbacks}
            filtered = [(self._every[i].name, why or LEFT_ALONE) for i, why in found.filtered if self._every[i].name in ours]
            fallbacks = [target for target in fallbacks if target in allowed]
        elif out or not facts.needs <= self.common:
            fallbacks = [target for target in fallbacks if _able(target, facts.needs, out, filtered)]
        if pool.scheduler is not None and pool.backends:
            targets, made = pool.scheduled(facts, out)
            picked: Picked | None = made
            assert made.decision is not None
            facts.weighed = made.decision
            names = pool.backends
            left = [(names[index].name, why or LEFT_ALONE) for index, why in made.decision.filtered]
            filtered = list(dict.fromkeys((*left, *filtered)))  # A backend of a rule may be one of the route's, too.
            if out and any(one.name not in out for one in fallbacks) and all(one.name in out for one in targets):
                # As without filters: those who are well are asked, and not those who are left alone.
                filtered += [(one.name, LEFT_ALONE) for one in targets]
                targets, picked = [], None
        else:
            kept = None
            if out or not facts.needs <= self.common:
                kept = [i for i in range(len(pool.backends)) if _able(pool.backends[i], facts.needs, out, filtered)]
            targets, picked = pool.simply(kept, facts.draw, facts.now, facts.reading)
        if not targets and not fallbacks:
            if out:
                return self._decided(pool, facts, NOBODY)
            raise self._nobody(filtered)
        return self._plan(targets, fallbacks, picked, filtered, pool, facts, facts.reading)

    def refuses(self, target: Target, facts: Facts) -> str:
        """Why a model may not answer in the place of those that are declared, by strict filters; empty when it may."""
        sieve = self._strangers.get(target.name)
        if sieve is None:
            if self._sieve_of is None:
                return lacking(target, facts.needs)
            sieve = self._strangers[target.name] = self._sieve_of(target)
        found = sieve.decide(facts, NOBODY)
        return "" if found.kept else found.filtered[0][1]

    def recall(self, sieve_of: Callable[[Scheduler], Scheduler]) -> None:
        """Leave out by another sieve, made from its own one: a replay has one that is told what was said."""
        if self._sieve is not None:
            self._sieve = sieve_of(self._sieve)

    def _plan(
        self,
        targets: Sequence[Target],
        fallbacks: Sequence[Target],
        picked: Picked | None,
        filtered: Sequence[tuple[str, str]],
        pool: Pool,
        facts: Facts | None,
        reading: Reading | None,
    ) -> Plan:
        if fallbacks:
            targets = tuple(dict.fromkeys((*targets, *fallbacks), None))
        beyond = targets[self.attempts :] if self.attempts is not None else ()
        return Plan(targets[: self.attempts], picked, filtered, pool, facts, targets[0].name, reading, beyond)

    def _nobody(self, filtered: Sequence[tuple[str, str]]) -> SitsError:
        if not filtered:
            spec = self.route.spec if self.route is not None else None
            wanted = [one.select for one in spec.backends if one.select] if spec is not None else []
            labels = " or ".join(", ".join(f"{name}={value}" for name, value in one.items()) for one in wanted)
            return Barred(Code.MODEL_UNAVAILABLE, f"no model has the labels that {self.name!r} asks for: {labels}")
        reasons = "; ".join(f"{target} {reason}" for target, reason in dict.fromkeys(filtered))
        return Barred(Code.UNSUPPORTED, f"nothing behind {self.name!r} can answer this request: {reasons}", filtered)


def everybody(pools: Sequence[Pool], fallbacks: Sequence[Target]) -> tuple[Target, ...]:
    """All targets of a choice: the backends of its route, what is asked after them, and the backends of its rules."""
    own = pools[0]
    others = [target for one in pools[1:] for target in (*one.backends, *one.spare)]
    return tuple(dict.fromkeys((*own.backends, *own.spare, *fallbacks, *others), None))


def lacking(target: Target, wanted: frozenset[str]) -> str:
    """What a model cannot do of what is wanted, in words; empty when it can."""
    missing = wanted - target.capabilities
    return "cannot do " + ", ".join(sorted(missing)) if missing else ""


def _able(target: Target, wanted: frozenset[str], out: frozenset[str], filtered: list[tuple[str, str]]) -> bool:
    missing = lacking(target, wanted)
    if missing:
        filtered.append((target.name, missing))
        return False
    if target.name in out:
        filtered.append((target.name, LEFT_ALONE))
        return False
    return True


def after_too_long(tried: Target, rest: Sequence[Target]) -> Sequence[Target]:
    """Who may still be asked once `tried` has said that the prompt is too long: declared larger contexts only."""
    window = tried.model.spec.window
    if window is None:
        return ()
    return tuple(target for target in rest if (target.model.spec.window or 0) > window)
