"""Whom to ask, in which order: a weighted draw, then the other backends, then the fallbacks.

Pure: the random number is passed in, so that a recorded decision can be made again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from sits.inner.ask import Operation
from sits.inner.errors import Code, SitsError
from sits.resources.kinds import Route
from sits.routing.target import Target, operation_capability

NOBODY: frozenset[str] = frozenset()
LEFT_ALONE = "is left alone: its breaker is open"


@dataclass(frozen=True, slots=True)
class Plan:
    """The targets of one request, best first, and how that came about."""

    targets: Sequence[Target]
    drawn: float | None = None
    """The random number in [0, 1) that chose the first one; None where there was nothing to choose."""
    filtered: Sequence[tuple[str, str]] = ()
    """(target, reason) of those that were left out."""
    weighed: Sequence[tuple[Target, float]] = ()
    """Who took part in the draw, with what weight."""


class Choice:
    """A name that clients can ask for, compiled: its backends by weight, its fallbacks, how many may be tried."""

    __slots__ = (
        "_bounds",
        "_every",
        "_only",
        "attempts",
        "backends",
        "common",
        "fallbacks",
        "order",
        "route",
        "total",
        "weights",
    )

    def __init__(
        self,
        route: Route | None,
        backends: Sequence[tuple[Target, float]],
        fallbacks: Sequence[Target],
        attempts: int | None = None,
    ) -> None:
        drawable = [(target, weight) for target, weight in backends if weight > 0]
        spare = [target for target, weight in backends if weight <= 0]
        self.route = route
        self.backends = tuple(target for target, _ in drawable)
        self.weights = tuple(weight for _, weight in drawable)
        self.fallbacks = (*spare, *fallbacks)
        self.attempts = attempts
        self.total = route.spec.total if route is not None else None
        self._bounds = tuple(accumulate(self.weights))
        every = tuple(dict.fromkeys((*self.backends, *self.fallbacks), None))
        self._every = every
        self.order = tuple(target.name for target in every)
        """The names of everybody, backends first."""
        self.common = frozenset.intersection(*(target.capabilities for target in every)) if every else frozenset()
        """What every target can do: a request that needs no more is not filtered at all."""
        self._only = Plan(every[:attempts]) if len(self.backends) == 1 else None

    @property
    def targets(self) -> Sequence[Target]:
        """Everybody that could be asked, backends first."""
        return self._every

    @property
    def name(self) -> str:
        return self.route.metadata.name if self.route is not None else self._every[0].name

    def plan(self, operation: Operation, needs: frozenset[str], random: float, out: frozenset[str] = NOBODY) -> Plan:
        """The targets to try, in order; those whose names are in `out` are left alone for now.

        Raises:
            SitsError: `unsupported`, when no target has what the request needs.
        """
        wanted = needs | {operation_capability(operation)}
        if self._only is not None and not out and wanted <= self.common:
            return self._only
        backends, weights, bounds = self.backends, self.weights, self._bounds
        fallbacks: Sequence[Target] = self.fallbacks
        filtered: list[tuple[str, str]] = []
        if out or not wanted <= self.common:
            kept = [(t, w) for t, w in zip(backends, weights, strict=True) if _able(t, wanted, out, filtered)]
            backends, weights = tuple(t for t, _ in kept), tuple(w for _, w in kept)
            bounds = tuple(accumulate(weights))
            fallbacks = [t for t in fallbacks if _able(t, wanted, out, filtered)]
        if not backends and not fallbacks:
            if out:
                # Those who can are all left alone: asked they are all the same, for nobody else can.
                return self.plan(operation, needs, random)
            raise SitsError(Code.UNSUPPORTED, _nobody(self.name, filtered))
        weighed: Sequence[tuple[Target, float]] = ()
        if len(backends) > 1:
            weighed = tuple(zip(backends, weights, strict=True))
            first = min(bisect_right(bounds, random * bounds[-1]), len(backends) - 1)  # the product may round up to the end
            others = sorted((i for i in range(len(backends)) if i != first), key=lambda i: -weights[i])
            backends = (backends[first], *(backends[i] for i in others))
            drawn: float | None = random
        else:
            drawn = None
        order = dict.fromkeys((*backends, *fallbacks), None)
        return Plan(tuple(order)[: self.attempts], drawn, filtered, weighed)


def _able(target: Target, wanted: frozenset[str], out: frozenset[str], filtered: list[tuple[str, str]]) -> bool:
    lacking = wanted - target.capabilities
    if lacking:
        filtered.append((target.name, "cannot do " + ", ".join(sorted(lacking))))
        return False
    if target.name in out:
        filtered.append((target.name, LEFT_ALONE))
        return False
    return True


def _nobody(name: str, filtered: Sequence[tuple[str, str]]) -> str:
    reasons = "; ".join(f"{target} {reason}" for target, reason in dict.fromkeys(filtered))
    return f"nothing behind {name!r} can answer this request: {reasons}"


def after_too_long(tried: Target, rest: Sequence[Target]) -> Sequence[Target]:
    """Who may still be asked once `tried` has said that the prompt is too long: declared larger contexts only."""
    window = tried.model.spec.context_window
    if window is None:
        return ()
    return tuple(target for target in rest if (target.model.spec.context_window or 0) > window)
