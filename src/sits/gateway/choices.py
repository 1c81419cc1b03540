"""The routes of a snapshot compiled into choices: their pools, rules, filters and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sits.gateway.standing import Standing
from sits.resources.backends import labels_of, stated
from sits.resources.choosing import Backend
from sits.resources.kinds import Model, Route
from sits.resources.snapshot import Resolved, Snapshot
from sits.routing.matching import Rule
from sits.routing.plan import Choice
from sits.routing.policies import DEFAULT
from sits.routing.pool import Pool
from sits.routing.rule_watch import RuleWatch
from sits.routing.scheduling.base import Candidate
from sits.routing.target import Target

Weighted = Sequence[tuple[Model, float]]


def compiled(resolved: Resolved, targets: Mapping[str, Target], snapshot: Snapshot, standing: Standing) -> Choice:
    """What a name stands for, ready for requests."""
    route = resolved.route
    fallbacks = [targets[model.metadata.name] for model in resolved.fallbacks]
    if route is None:
        return Choice(None, Pool(_weighed(resolved.backends, targets), DEFAULT), fallbacks)
    spec = route.spec
    pool = _pool(route, resolved.backends, spec.backends, targets)
    rules = []
    for index, (rule, backends) in enumerate(zip(spec.rules, resolved.rules, strict=True)):
        watch = standing.rule_watch(route.metadata.name, rule)
        own = _pool(route, backends, rule.backends, targets, rule.name, rule.policy, watch)
        rules.append((Rule(index, rule, watch), own))
    return Choice(route, pool, fallbacks, spec.attempts, rules)


def _pool(
    route: Route,
    backends: Weighted,
    declared: Sequence[Backend],
    targets: Mapping[str, Target],
    rule: str = "",
    policy: str | None = None,
    watch: RuleWatch | None = None,
) -> Pool:
    spec = route.spec
    weighed = _weighed(backends, targets)
    name = policy or spec.policy
    if name is None:
        name = "scores" if spec.scores else "weighted" if stated(declared) else DEFAULT
    return Pool(weighed, name, rule=rule, bound=spec.hash.bound, explore=spec.explore, watch=watch)


def _weighed(backends: Weighted, targets: Mapping[str, Target]) -> list[tuple[Target, float]]:
    return [(targets[model.metadata.name], weight) for model, weight in backends]


def candidates(backends: Sequence[tuple[Target, float]]) -> list[Candidate]:
    """Those that can be chosen, as plugins see them."""
    found: list[Candidate] = []
    for target, weight in backends:
        if weight > 0:
            one = Candidate(len(found), target.name, target.model, target.state, weight, labels_of(target.model), target)
            one.capabilities = target.capabilities
            found.append(one)
    return found
