"""Which requests a rule of a route is for, compiled."""

from __future__ import annotations

from collections.abc import Sequence

from sits.resources.checks_choosing import matches_of
from sits.resources.choosing import Band, Match, RouteRule
from sits.resources.reliability import Priority
from sits.routing.rule_watch import RuleWatch
from sits.routing.scheduling.base import Facts

CLASSES: dict[Priority, int] = {"P0": 0, "P1": 1, "P2": 2}


class Matcher:
    """One match of a rule: everything it names must hold."""

    __slots__ = (
        "_adapters", "_colours", "_domains", "_headers", "_priorities", "_qps", "_regions", "_teams", "_tiers", "_tokens",
    )  # fmt: skip

    def __init__(self, match: Match) -> None:
        self._regions = frozenset(match.region)
        self._adapters = frozenset(match.adapter)
        self._headers = [(name.lower().encode(), value.encode()) for name, value in match.headers.items()]
        self._priorities = frozenset(CLASSES[one] for one in match.priority)
        self._teams = frozenset(match.team)
        self._colours = frozenset(match.colour)
        self._domains = frozenset(match.domain)
        self._tiers = frozenset(match.complexity)
        self._tokens = _ends(match.prompt_tokens)
        self._qps = _ends(match.qps)

    def matches(self, facts: Facts) -> bool:
        """Whether a request is one of these."""
        if self._regions and facts.region not in self._regions:
            return False
        if self._adapters and facts.adapter not in self._adapters:
            return False
        if self._priorities and facts.priority not in self._priorities:
            return False
        if self._teams and facts.team not in self._teams:
            return False
        if self._colours and facts.colour not in self._colours:
            return False
        if self._domains and facts.domain not in self._domains:
            return False
        if self._tiers and facts.tier not in self._tiers:
            return False
        if self._tokens is not None and not self._tokens[0] <= facts.tokens < self._tokens[1]:
            return False
        if self._qps is not None and not self._qps[0] <= facts.qps < self._qps[1]:
            return False
        return all(_says(facts.headers.get(name), value) for name, value in self._headers)


class Rule:
    """A rule of a route: when it counts."""

    __slots__ = ("_matchers", "index", "name", "watch")

    def __init__(self, index: int, rule: RouteRule, watch: RuleWatch | None) -> None:
        self.index = index
        self.name = rule.name
        self.watch = watch
        """Whether what must hold of its targets does; None where nothing must."""
        self._matchers: Sequence[Matcher] = [Matcher(one) for one in matches_of(rule)]

    def counts(self, facts: Facts) -> bool:
        """Whether this request is one of its own, and its targets are as they must be; what is not is noted in its facts."""
        if not any(one.matches(facts) for one in self._matchers):
            return False
        watch = self.watch
        if watch is None or watch.takes(facts.now):
            return True
        facts.passed = (*facts.passed, (self.name, watch.why_not()))
        return False


def _ends(band: Band | None) -> tuple[float, float] | None:
    if band is None:
        return None
    return band.least or 0.0, band.below if band.below is not None else float("inf")


def _says(said: bytes | None, wanted: bytes) -> bool:
    if said is None:
        return False
    if wanted.endswith(b"*"):
        return said.startswith(wanted[:-1])
    return said == wanted
