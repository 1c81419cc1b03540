"""What has to be found out about the requests of a route before their target is chosen, compiled with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sits.resources.backends import labels_of
from sits.resources.checks_choosing import matches_of
from sits.resources.choosing import IntentUse, Match
from sits.resources.complexity import TIER_NAMES, ComplexitySpec, JudgeSpec
from sits.resources.kinds import Model, Route
from sits.resources.snapshot import Resolved, Snapshot
from sits.routing.plan import Choice
from sits.routing.policies.state import TargetState
from sits.routing.pool import Pool

USUAL = IntentUse()


class Insight:
    """Of one name that can be asked for."""

    __slots__ = ("arms", "complexity", "domains", "intent", "judge", "learns", "over_targets", "stand", "tokens", "usual")

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
        learning = self.complexity.learning if self.complexity is not None else None
        self.learns = learning is not None
        self.over_targets = learning is not None and learning.over == "target"
        """Whether single backends are chosen among, and not tiers."""
        self.judge: JudgeSpec | None = learning.judge if learning is not None else None
        self.stand: Mapping[str, frozenset[str]] = {}
        """What is chosen among, where the route learns, and by whose answers each is judged: tiers that somebody stands for, or
        backends."""
        self.usual: Mapping[str, str] = {}
        """For each tier, the backend that is asked as long as nothing was learned, where backends are chosen among."""
        if self.complexity is not None and learning is not None:
            tiers = standing(self.complexity, choice.pool)
            names = [target.name for target in choice.pool.backends]
            self.stand = {name: frozenset((name,)) for name in names} if self.over_targets else tiers
            if self.over_targets and names:
                self.usual = {tier: _first(tier, tiers, names) for tier in TIER_NAMES}
        self.arms = tuple(self.stand)
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
    """The share of the room of these targets that is in use, 0 to 1: by how many each works on at once, where somebody had to
    wait for that; else by its KV memory, where it tells of it. Others are left out, for how much room they have is not known."""
    used = room = 0.0
    for state in states:
        busy = state.outstanding + state.elsewhere
        if state.filled:
            used += min(float(busy), state.room)
            room += state.room
        elif state.kv >= 0.0:
            used += state.kv * max(1, busy)
            room += max(1, busy)
    return min(1.0, used / room) if room > 0.0 else 0.0


def standing(spec: ComplexitySpec, pool: Pool) -> dict[str, frozenset[str]]:
    """The backends that stand for each tier, by name; tiers for which nobody does are not there."""
    found: dict[str, frozenset[str]] = {}
    for tier in TIER_NAMES:
        one = getattr(spec.tiers, tier)
        if one is None:
            continue
        labels = one.labels.items()
        names = frozenset(
            target.name
            for target in pool.backends
            if target.name in one.models or (labels and labels <= labels_of(target.model).items())
        )
        if names:
            found[tier] = names
    return found


def _first(tier: str, tiers: Mapping[str, frozenset[str]], names: Sequence[str]) -> str:
    """The first backend of a tier, or of the next heavier one that there is, or of the heaviest; else the first of all."""
    place = TIER_NAMES.index(tier)
    for other in (*TIER_NAMES[place:], *reversed(TIER_NAMES[:place])):
        if other in tiers:
            return next(name for name in names if name in tiers[other])
    return names[0]


def _matches(route: Route | None) -> list[Match]:
    return [match for rule in route.spec.rules for match in matches_of(rule)] if route is not None else []
