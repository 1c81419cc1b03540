"""What has to be found out about the requests of a route before their target is chosen, compiled with it."""

from __future__ import annotations

from collections.abc import Sequence

from sits.resources.backends import labels_of
from sits.resources.checks_choosing import matches_of
from sits.resources.choosing import IntentUse, Match
from sits.resources.complexity import ComplexitySpec
from sits.resources.kinds import Model, Route
from sits.resources.snapshot import Resolved, Snapshot
from sits.routing.plan import Choice
from sits.routing.policies.state import TargetState
from sits.routing.pool import Pool

USUAL = IntentUse()
BEYOND = 1e8
"""A room as large as this is none that was found: nothing has shown how much a target takes."""


class Insight:
    """Of one name that can be asked for."""

    __slots__ = ("arms", "complexity", "domains", "intent", "learns", "tokens")

    def __init__(self, resolved: Resolved, choice: Choice, snapshot: Snapshot) -> None:
        route = resolved.route
        spec = route.spec if route is not None else None
        models = list({model.metadata.name: model for model in everybody(resolved)}.values())
        self.domains = frozenset(snapshot.domains)
        self.intent: IntentUse | None = None
        """How the domain is read; None where nobody looks at it."""
        if self.domains and reads_domain(route, models, snapshot):
            self.intent = spec.intent if spec is not None and spec.intent is not None else USUAL
        self.complexity: ComplexitySpec | None = spec.complexity if spec is not None else None
        self.learns = self.complexity is not None and self.complexity.learning is not None
        self.arms: tuple[str, ...] = ()
        """What is chosen among, where the route learns: tiers that somebody stands for, or backends."""
        if self.complexity is not None and self.complexity.learning is not None:
            self.arms = _arms(self.complexity, choice.pool)
        self.tokens = any(match.prompt_tokens is not None for match in _matches(route))
        """Whether a rule asks how long the prompt is."""


def everybody(resolved: Resolved) -> list[Model]:
    """All models of a name: backends, those of rules, fallbacks."""
    listed = [model for model, _ in resolved.backends]
    listed += [model for rule in resolved.rules for model, _ in rule]
    return [*listed, *resolved.fallbacks]


def reads_domain(route: Route | None, models: Sequence[Model], snapshot: Snapshot) -> bool:
    """Whether anything of a route depends on what its requests want: it says so, a rule or a score asks, a model answers for some
    domains only, or a domain prefers one of its models."""
    if any(model.spec.semantics is not None and model.spec.semantics.intents for model in models):
        return True
    if route is None:
        return False
    if route.spec.intent is not None or any(one.name == "domain" for one in route.spec.scores):
        return True
    if any(match.domain for match in _matches(route)):
        return True
    names = {model.metadata.name for model in models}
    for domain in snapshot.domains.values():
        prefers = domain.spec.prefers
        if not names.isdisjoint(prefers.models):
            return True
        wanted = prefers.labels.items()
        if wanted and any(wanted <= labels_of(model).items() for model in models):
            return True
    return False


def load_of(states: Sequence[TargetState]) -> float:
    """The share of the room of these targets that is in use, 0 to 1; those whose room is not known yet are left out."""
    used = room = 0.0
    for state in states:
        if state.room < BEYOND:
            used += state.outstanding + state.elsewhere
            room += state.room
    return min(1.0, used / room) if room > 0.0 else 0.0


def _matches(route: Route | None) -> list[Match]:
    return [match for rule in route.spec.rules for match in matches_of(rule)] if route is not None else []


def _arms(spec: ComplexitySpec, pool: Pool) -> tuple[str, ...]:
    if spec.learning is not None and spec.learning.over == "target":
        return tuple(target.name for target in pool.backends)
    return tuple(name for name in ("tiny", "base", "heavy") if pool.leans.has_tier(name))
