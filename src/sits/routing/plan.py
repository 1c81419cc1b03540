"""Whom to ask, in which order: a choice among the backends, then the others, then the fallbacks.

Pure: the random number and the time are passed in, so that a recorded decision can be made again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from sits.inner.ask import Operation
from sits.inner.errors import Code, SitsError
from sits.resources.kinds import Route
from sits.routing.matching import Rule
from sits.routing.pool import LEFT_ALONE, NOBODY, Picked, Pool, ring_place
from sits.routing.rate import Rate
from sits.routing.scheduling.base import Facts
from sits.routing.target import Target, operation_capability

__all__ = ["LEFT_ALONE", "NOBODY", "Choice", "Leans", "Plan", "after_too_long"]

Leans = Callable[[Facts, Pool], Sequence[tuple[str, frozenset[int]]]]
"""Who of a pool is to be asked first, and why: for each reason, the indices of its backends."""


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

    @property
    def rule(self) -> str:
        """The rule of the route that counted; empty where none did."""
        return self.pool.rule if self.pool is not None else ""


class Choice:
    """A name that clients can ask for, compiled: its backends, its rules, its fallbacks, how many may be tried."""

    __slots__ = (
        "_every",
        "_leans",
        "_only",
        "attempts",
        "common",
        "fallbacks",
        "hash_header",
        "order",
        "pool",
        "pools",
        "rate",
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
        leans: Leans | None = None,
    ) -> None:
        self.route = route
        self.pool = pool
        self.rules = tuple(rules)
        self.pools: tuple[Pool, ...] = (pool, *(one for _, one in rules))
        self.fallbacks = (*pool.spare, *fallbacks)
        self.attempts = attempts
        self.total = route.spec.total if route is not None else None
        self.rate = Rate()
        self._leans = leans
        self.hash_header = (route.spec.hash.header or "").lower().encode() if route is not None else b""
        others = [target for one in self.pools[1:] for target in (*one.backends, *one.spare)]
        every = tuple(dict.fromkeys((*pool.backends, *self.fallbacks, *others), None))
        self._every = every
        self.order = tuple(target.name for target in every)
        """The names of everybody, backends first."""
        self.common = frozenset.intersection(*(target.capabilities for target in every)) if every else frozenset()
        """What every target can do: a request that needs no more is not filtered at all."""
        self.thinks = (
            bool(rules) or leans is not None or any(one.scheduler is not None or one.name == "hash" for one in self.pools)
        )
        """Whether more has to be known of a request than what it needs: `decide` is to be asked instead of `plan`."""
        self._only = Plan(every[:attempts]) if len(pool.backends) == 1 and not self.thinks else None

    @property
    def targets(self) -> Sequence[Target]:
        """Everybody that could be asked, backends first."""
        return self._every

    @property
    def name(self) -> str:
        return self.route.metadata.name if self.route is not None else self._every[0].name

    def plan(self, operation: Operation, needs: frozenset[str], random: float, now: float, out: frozenset[str] = NOBODY) -> Plan:
        """The targets to try, in order; those whose names are in `out` are left alone for now.

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
                return self.plan(operation, needs, random, now)
            raise self._nobody(filtered)
        targets, picked = pool.simply(kept, random, now)
        return self._plan(targets, fallbacks, picked, filtered, pool, None)

    def decide(self, facts: Facts, out: frozenset[str] = NOBODY) -> Plan:
        """As `plan`, by all that is known of the request.

        Raises:
            SitsError: `unsupported`, when no target may answer it.
        """
        pool = self.pool
        for rule, own in self.rules:
            if rule.counts(facts):
                pool = own
                break
        if pool.name == "hash" and self.route is not None:
            facts.draw = ring_place(self.route.spec.hash.by, facts, self.hash_header)
        fallbacks: Sequence[Target] = self.fallbacks if pool is self.pool else (*pool.spare, *self.pool.backends, *self.fallbacks)
        filtered: list[tuple[str, str]] = []
        if out or not facts.needs <= self.common:
            fallbacks = [target for target in fallbacks if _able(target, facts.needs, out, filtered)]
        if pool.scheduler is not None:
            leans = self._leans(facts, pool) if self._leans is not None else ()
            targets, made = pool.scheduled(facts, out, leans)
            picked: Picked | None = made
            assert made.decision is not None
            names = pool.backends
            left = [(names[index].name, why or LEFT_ALONE) for index, why in made.decision.filtered]
            filtered = [*left, *filtered]
        else:
            kept = None
            if out or not facts.needs <= self.common:
                kept = [i for i in range(len(pool.backends)) if _able(pool.backends[i], facts.needs, out, filtered)]
            targets, picked = pool.simply(kept, facts.draw, facts.now)
        if not targets and not fallbacks:
            if out:
                return self.decide(facts)
            raise self._nobody(filtered)
        return self._plan(targets, fallbacks, picked, filtered, pool, facts)

    def _plan(
        self,
        targets: Sequence[Target],
        fallbacks: Sequence[Target],
        picked: Picked | None,
        filtered: Sequence[tuple[str, str]],
        pool: Pool,
        facts: Facts | None,
    ) -> Plan:
        if fallbacks:
            targets = tuple(dict.fromkeys((*targets, *fallbacks), None))
        return Plan(targets[: self.attempts], picked, filtered, pool, facts, targets[0].name)

    def _nobody(self, filtered: Sequence[tuple[str, str]]) -> SitsError:
        if not self._every:
            return SitsError(Code.MODEL_UNAVAILABLE, f"no model has the labels that {self.name!r} asks for")
        reasons = "; ".join(f"{target} {reason}" for target, reason in dict.fromkeys(filtered))
        return SitsError(Code.UNSUPPORTED, f"nothing behind {self.name!r} can answer this request: {reasons}")


def _able(target: Target, wanted: frozenset[str], out: frozenset[str], filtered: list[tuple[str, str]]) -> bool:
    lacking = wanted - target.capabilities
    if lacking:
        filtered.append((target.name, "cannot do " + ", ".join(sorted(lacking))))
        return False
    if target.name in out:
        filtered.append((target.name, LEFT_ALONE))
        return False
    return True


def after_too_long(tried: Target, rest: Sequence[Target]) -> Sequence[Target]:
    """Who may still be asked once `tried` has said that the prompt is too long: declared larger contexts only."""
    window = tried.model.spec.context_window
    if window is None:
        return ()
    return tuple(target for target in rest if (target.model.spec.context_window or 0) > window)
