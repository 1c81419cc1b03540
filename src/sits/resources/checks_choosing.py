"""Rules within one resource of how a route chooses."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from sits.resources.backends import backend_faults, fallback_faults
from sits.resources.choosing import Band, Match, RouteRule
from sits.resources.complexity import complexity_faults
from sits.resources.context import context_faults, tokenizer_faults
from sits.resources.kinds import Model, Route, Settings
from sits.resources.problem import Fault, Path, quoted
from sits.resources.tracing import trace_faults
from sits.resources.units import units_faults
from sits.resources.vitals import variables, vitals_faults


def choosing(route: Route) -> Iterator[Fault]:
    """Backends, fallbacks, rules, and a policy that goes with the rest."""
    spec = route.spec
    yield from backend_faults(spec.backends, ("spec", "backends"))
    yield from fallback_faults(route)
    if spec.scores and spec.policy is not None and spec.policy != "scores":
        hint = "remove `policy`, or the scores"
        yield Fault(("spec", "policy"), f"{quoted(spec.policy)} does not look at `scores`", hint, at_key=True)
    if spec.policy == "scores" and not spec.scores:
        yield Fault(("spec", "policy"), "'scores' needs `scores`", "name some", at_key=True)
    if spec.scores and sum(one.weight for one in spec.scores) <= 0:
        yield Fault(("spec", "scores"), "every weight is 0, so nothing counts", "give one score a weight above 0")
    if (spec.hash.by == "header") != bool(spec.hash.header):
        yield Fault(("spec", "hash"), "`header` is the name of the header where `by` is header", at_key=True)
    yield from _inside(route)
    names: set[str] = set()
    for index, rule in enumerate(spec.rules):
        where: Path = ("spec", "rules", index)
        if rule.name in names:
            yield Fault((*where, "name"), f"there is a rule {quoted(rule.name)} already", "rename one of them")
        names.add(rule.name)
        if rule.policy == "scores" and not spec.scores:
            yield Fault((*where, "policy"), "'scores' needs `scores` of the route", "name some there", at_key=True)
        yield from backend_faults(rule.backends, (*where, "backends"))
        yield from _matches(rule, where)


def _inside(route: Route) -> Iterator[Fault]:
    """Faults of what a route says of complexity, context and units. Names are checked where all backends are named."""
    spec = route.spec
    named = [backend.model for backend in spec.backends if backend.model is not None]
    others = [backend.model for rule in spec.rules for backend in rule.backends if backend.model is not None]
    whole = all(backend.model is not None for backend in [*spec.backends, *(one for rule in spec.rules for one in rule.backends)])
    known = frozenset((*named, *others, *spec.fallbacks)) if whole else None
    if spec.complexity is not None:
        yield from complexity_faults(spec.complexity, known)
    if spec.context is not None:
        yield from context_faults(spec.context, known)
    if spec.units is not None and whole:
        for fault in units_faults(spec.units, named):
            yield msgspec.structs.replace(fault, path=("spec", "units", *fault.path))


def telling(model: Model) -> Iterator[Fault]:
    """Faults of how a model tells of its load and its health, and of how its tokens are counted."""
    spec = model.spec
    known = variables(model.metadata.name, spec.upstream_model, spec.endpoint, spec.zone, spec.version)
    yield from vitals_faults(spec.vitals, spec.health, known)
    if spec.tokenizer is not None:
        yield from tokenizer_faults(spec.tokenizer, spec.engine)


def recording(settings: Settings) -> Iterator[Fault]:
    """Faults of what is recorded of traffic."""
    if settings.spec.trace is not None:
        yield from trace_faults(settings.spec.trace, ("spec", "trace"))


def matches_of(rule: RouteRule) -> list[Match]:
    """Those of a rule, also where there is one."""
    return [rule.match] if isinstance(rule.match, Match) else rule.match


def _matches(rule: RouteRule, where: Path) -> Iterator[Fault]:
    several = not isinstance(rule.match, Match)
    for number, match in enumerate(matches_of(rule)):
        here: Path = (*where, "match", number) if several else (*where, "match")
        if match == Match():
            yield Fault(here, "matches every request", "say which, or put these backends into the route")
        for key, band in (("promptTokens", match.prompt_tokens), ("qps", match.qps)):
            if band == Band():
                yield Fault((*here, key), "everything lies in this band", "give `from`, `below` or both")
            elif band is not None and empty(band):
                yield Fault((*here, key), "nothing lies in this band", "let `from` be less than `below`")
    if several and not matches_of(rule):
        yield Fault((*where, "match"), "the list is empty, so the rule never counts", "say which requests")


def empty(band: Band) -> bool:
    """Whether no number is in it."""
    return band.below is not None and band.least is not None and band.least >= band.below
