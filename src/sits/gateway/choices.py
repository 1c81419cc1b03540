"""The routes of a snapshot compiled into choices: their pools, rules, filters and scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from sits.gateway.insight import everybody as everybody_of
from sits.gateway.insight import reads_domain
from sits.gateway.standing import Standing
from sits.resources.backends import labels_of, stated
from sits.resources.choosing import Backend
from sits.resources.kinds import Model, Route, RouteSpec
from sits.resources.snapshot import Resolved, Snapshot
from sits.routing.leaning import NOWHERE, Leans, those
from sits.routing.matching import Rule
from sits.routing.plan import Choice, everybody
from sits.routing.policies import DEFAULT
from sits.routing.pool import Pool
from sits.routing.rule_watch import RuleWatch
from sits.routing.scheduling.away import Away
from sits.routing.scheduling.base import Candidate
from sits.routing.scheduling.building import build
from sits.routing.scheduling.builtin import FILTERS, SCORES
from sits.routing.scheduling.scheduler import Scheduler
from sits.routing.semantics import SemanticFilter
from sits.routing.target import Target

Weighted = Sequence[tuple[Model, float]]
BY_MEMORY = "memory-fit"
"""The score that reckons with the answer. By name: of a compiled class only objects know theirs."""
TIERS = ("tiny", "base", "heavy")


def compiled(resolved: Resolved, targets: Mapping[str, Target], snapshot: Snapshot, standing: Standing) -> Choice:
    """What a name stands for, ready for requests.

    Raises:
        ValueError: a filter or a score is not known, or cannot use its settings.
    """
    return _Compiling(resolved, targets, snapshot, standing).choice()


class _Compiling:
    """Of one name."""

    def __init__(self, resolved: Resolved, targets: Mapping[str, Target], snapshot: Snapshot, standing: Standing) -> None:
        self._resolved = resolved
        self._targets = targets
        self._snapshot = snapshot
        self._standing = standing
        self._name = resolved.name
        self._thinks = _looked_into(resolved.route, everybody_of(resolved), snapshot)
        self._limits = resolved.route is not None and _limited(resolved.route.spec)

    def choice(self) -> Choice:
        resolved, route = self._resolved, self._resolved.route
        fallbacks = [self._targets[model.metadata.name] for model in resolved.fallbacks]
        if route is None:
            pool = self._pool(RouteSpec([Backend(self._name)]), resolved.backends, DEFAULT)
            sieve = self._sieve(everybody([pool], fallbacks))
            return Choice(None, pool, fallbacks, sieve=sieve, sieve_of=self._sieve_of(), thinks=self._thinks)
        spec = route.spec
        pool = self._pool(spec, resolved.backends, self._policy(spec, spec.backends))
        rules = []
        for index, (rule, backends) in enumerate(zip(spec.rules, resolved.rules, strict=True)):
            watch = self._standing.rule_watch(self._name, rule)
            name = rule.policy or self._policy(spec, rule.backends)
            rules.append((Rule(index, rule, watch), self._pool(spec, backends, name, rule.name, watch)))
        sieve = self._sieve(everybody([pool, *(own for _, own in rules)], fallbacks), spec)
        sieve_of = self._sieve_of(spec)
        choice = Choice(
            route, pool, fallbacks, spec.attempts, rules, sieve, sieve_of=sieve_of, thinks=self._thinks, limits=self._limits
        )
        choice.rate = self._standing.rates.setdefault(self._name, choice.rate)
        return choice

    def _policy(self, spec: RouteSpec, backends: Sequence[Backend]) -> str:
        if spec.policy is not None:
            return spec.policy
        return "scores" if spec.scores else "weighted" if stated(backends) else DEFAULT

    def _pool(self, spec: RouteSpec, backends: Weighted, policy: str, rule: str = "", watch: RuleWatch | None = None) -> Pool:
        weighed = [(self._targets[model.metadata.name], weight) for model, weight in backends]
        offered: list[Candidate] = []
        scheduler: Scheduler | None = None
        leans = NOWHERE
        if self._thinks:
            offered = candidates(weighed)
            scheduler = self._scheduler(f"{self._name}\n{rule}", spec, offered)
            leans = self._leans(spec, offered)
        return Pool(
            weighed,
            policy,
            rule=rule,
            scheduler=scheduler,
            candidates=offered,
            bound=spec.hash.bound,
            explore=spec.explore,
            watch=watch,
            leans=leans,
        )

    def _scheduler(self, name: str, spec: RouteSpec, offered: Sequence[Candidate]) -> Scheduler:
        standing = self._standing
        contract = SemanticFilter.of(offered)
        away = self._away(spec)
        spec = self._there(spec)
        before = standing.schedulers.get(name)
        found = standing.schedulers[name] = build(
            self._name,
            spec,
            offered,
            self._snapshot,
            filters=standing.plugins.filters,
            scores=standing.plugins.scores,
            costs=standing.costs,
            latencies=standing.latencies,
            before=before,
            also=() if contract is None else (contract,),
            away=away,
        )
        return found

    def _sieve_of(self, spec: RouteSpec | None = None) -> Callable[[Target], Scheduler] | None:
        """Makes a sieve for somebody who is not declared, made when he is first to answer in another's place."""
        return partial(self._sieved, spec=spec) if self._thinks else None

    def _sieve(self, every: Sequence[Target], spec: RouteSpec | None = None) -> Scheduler | None:
        """Who may answer, of everybody; None where nothing is asked before the backends."""
        return self._sieved(*every, spec=spec) if self._thinks else None

    def _sieved(self, *targets: Target, spec: RouteSpec | None) -> Scheduler:
        every = candidates((target, 1.0) for target in targets)
        bare = RouteSpec([Backend(self._name)], filters=self._there(spec).filters if spec is not None else [])
        contract = SemanticFilter.of(every)
        return build(
            self._name,
            bare,
            every,
            self._snapshot,
            filters=self._standing.plugins.filters,
            costs=self._standing.costs,
            latencies=self._standing.latencies,
            also=() if contract is None else (contract,),
        )

    def _away(self, spec: RouteSpec) -> Sequence[Away]:
        """The filters and scores of the route that are not there, for whoever asks why they said nothing."""
        offered = self._standing.plugins
        missing: list[Away] = []
        for use in spec.filters:
            if use.name not in offered.filters:
                missing.append(Away("filter", use.name, *offered.gone("filter", use.name)))
        for score in spec.scores:
            if score.name not in offered.scores:
                missing.append(Away("score", score.name, *offered.gone("score", score.name)))
        return tuple(missing)

    def _there(self, spec: RouteSpec) -> RouteSpec:
        """The route without filters and scores that are not there: a plugin that comes back is used again."""
        offered = self._standing.plugins
        filters = [one for one in spec.filters if one.name in offered.filters]
        scores = [one for one in spec.scores if one.name in offered.scores]
        if len(filters) == len(spec.filters) and len(scores) == len(spec.scores):
            return spec
        return msgspec.structs.replace(spec, filters=filters, scores=scores)

    def _leans(self, spec: RouteSpec, offered: Sequence[Candidate]) -> Leans:
        domains: dict[str, frozenset[int]] = {}
        if not any(one.name == "domain" for one in spec.scores):
            for name, domain in self._snapshot.domains.items():
                prefers = domain.spec.prefers
                domains[name] = those(offered, prefers.models, prefers.labels)
        tiers: dict[str, frozenset[int]] = {}
        if spec.complexity is not None:
            for tier in TIERS:
                one = getattr(spec.complexity.tiers, tier)
                if one is not None:
                    tiers[tier] = those(offered, one.models, one.labels)
        return Leans(domains, tiers, [one.name for one in offered])


def _looked_into(route: Route | None, models: Sequence[Model], snapshot: Snapshot) -> bool:
    """Whether more has to be known of requests than what they cannot do without."""
    if any(model.spec.adapters or model.spec.semantics is not None for model in models):
        return True
    if route is None:
        return False
    spec = route.spec
    return bool(
        spec.rules
        or spec.filters
        or spec.scores
        or spec.policy == "hash"
        or spec.complexity is not None
        or spec.context is not None
        or spec.explore
        or reads_domain(route, models, snapshot)
    )


def _limited(spec: RouteSpec) -> bool:
    """Whether anything asks how long an answer a request allows: where it fits into memory, or a plugin, which may."""
    return any(one.name not in FILTERS for one in spec.filters) or any(
        one.name == BY_MEMORY or one.name not in SCORES for one in spec.scores
    )


def candidates(backends: Iterable[tuple[Target, float]]) -> list[Candidate]:
    """Those that can be chosen, as plugins see them."""
    found: list[Candidate] = []
    for target, weight in backends:
        if weight > 0:
            one = Candidate(len(found), target.name, target.model, target.state, weight, labels_of(target.model), target)
            one.capabilities = target.capabilities
            found.append(one)
    return found
