"""Rules within one resource of how a route chooses."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from sits.resources.backends import backend_faults, fallback_faults, weight_faults
from sits.resources.choosing import Band, Match, RouteRule
from sits.resources.complexity import complexity_faults
from sits.resources.context import context_faults, tokenizer_faults
from sits.resources.headers import header_faults
from sits.resources.kinds import Model, Route, Settings
from sits.resources.problem import Fault, Path, quoted
from sits.resources.tracing import trace_faults
from sits.resources.units import units_faults
from sits.resources.unread import Unread, judged
from sits.resources.vitals import variables, vitals_faults


def backing(route: Route) -> Iterator[Fault]:
    """Who is asked."""
    yield from backend_faults(route.spec.backends, ("spec", "backends"))


def policies(route: Route) -> Iterator[Fault]:
    """A policy that goes with the rest."""
    spec = route.spec
    if spec.scores and spec.policy is not None and spec.policy != "scores":
        hint = "remove `policy`, or the scores"
        yield Fault(("spec", "policy"), f"{quoted(spec.policy)} does not look at `scores`", hint, at_key=True)
    if spec.policy == "scores" and not spec.scores:
        yield Fault(("spec", "policy"), "'scores' needs `scores`", "name some", at_key=True)


def weighing(route: Route) -> Iterator[Fault]:
    """Scores of which one counts."""
    if route.spec.scores and sum(one.weight for one in route.spec.scores) <= 0:
        yield Fault(("spec", "scores"), "every weight is 0, so nothing counts", "give one score a weight above 0")
    for index, one in enumerate(route.spec.scores):
        yield from weight_faults(one.weight, ("spec", "scores", index, "weight"))


def hashing(route: Route) -> Iterator[Fault]:
    """What policy `hash` goes by."""
    if (route.spec.hash.by == "header") != bool(route.spec.hash.header):
        yield Fault(("spec", "hash"), "`header` is the name of the header where `by` is header", at_key=True)
    elif route.spec.hash.header:
        yield from header_faults(route.spec.hash.header, ("spec", "hash", "header"))


def ruling(route: Route) -> Iterator[Fault]:
    """Rules that can count, each with a name of its own."""
    names: set[str] = set()
    for index, rule in enumerate(route.spec.rules):
        for part in (_named(rule, index, names), _scored(rule, index, route), _backed(rule, index), _matches(rule, _at(index))):
            yield from judged(part)


def _at(index: int) -> Path:
    return ("spec", "rules", index)


def _named(rule: RouteRule, index: int, names: set[str]) -> Iterator[Fault]:
    if rule.name in names:
        yield Fault((*_at(index), "name"), f"there is a rule {quoted(rule.name)} already", "rename one of them")
    names.add(rule.name)


def _scored(rule: RouteRule, index: int, route: Route) -> Iterator[Fault]:
    if rule.policy is not None and rule.policy == "scores" and not route.spec.scores:
        yield Fault((*_at(index), "policy"), "'scores' needs `scores` of the route", "name some there", at_key=True)


def _backed(rule: RouteRule, index: int) -> Iterator[Fault]:
    yield from backend_faults(rule.backends, (*_at(index), "backends"))


def named_models(route: Route) -> frozenset[str] | None:
    """The models of a route by name; None where they are not known: some are found by labels, or could not be read."""
    try:
        backends = [*route.spec.backends, *(one for rule in route.spec.rules for one in rule.backends)]
        if any(backend.model is None for backend in backends):
            return None
        return frozenset((*(str(backend.model) for backend in backends), *route.spec.fallbacks))
    except Unread:
        return None


def tiers(route: Route) -> Iterator[Fault]:
    """Faults of what a route says of complexity."""
    if route.spec.complexity is not None:
        yield from complexity_faults(route.spec.complexity, named_models(route))


def lengths(route: Route) -> Iterator[Fault]:
    """Faults of what a route says of the length of prompts."""
    if route.spec.context is not None:
        yield from context_faults(route.spec.context, named_models(route))


def merging(route: Route) -> Iterator[Fault]:
    """Faults of what a route says of its units."""
    if route.spec.units is not None and named_models(route) is not None:
        named = [backend.model for backend in route.spec.backends if backend.model is not None]
        for fault in units_faults(route.spec.units, named):
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
        for name, value in match.headers.items():
            yield from _header(name, value, (*here, "headers", name))
        for key, band in (("promptTokens", match.prompt_tokens), ("qps", match.qps)):
            if band == Band():
                yield Fault((*here, key), "everything lies in this band", "give `from`, `below` or both")
            elif band is not None and empty(band):
                yield Fault((*here, key), "nothing lies in this band", "let `from` be less than `below`")
    if several and not matches_of(rule):
        yield Fault((*where, "match"), "the list is empty, so the rule never counts", "say which requests")


def _header(name: str, value: str, where: Path) -> Iterator[Fault]:
    yield from header_faults(name, where, at_key=True)
    if value != value.strip() or re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value):
        yield Fault(where, "no header has this value", "write it on one line, without blanks around it")


def empty(band: Band) -> bool:
    """Whether no number is in it."""
    return band.below is not None and band.least is not None and band.least >= band.below


CHOOSING = (backing, fallback_faults, policies, weighing, hashing, tiers, lengths, merging, ruling)
"""The rules of how a route chooses."""
