"""What can be used and is probably not meant: it has no effect, or never the one that it says.

A warning is a fault that nobody is kept from serving by. It looks at what was written, so what stands in a file and only
repeats a default is seen too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

from sits.resources.backends import labels_of, selected
from sits.resources.checks_choosing import matches_of
from sits.resources.choosing import Backend, HashSpec, Match, While
from sits.resources.domains import Domain, Prefers
from sits.resources.keys import Key, Quota
from sits.resources.kinds import Cost, Model, Resource, Route, Settings, SettingsSpec
from sits.resources.pressures import QUERY
from sits.resources.problem import Fault, Path, Problem, did_you_mean, in_order, quoted
from sits.resources.reading import Declared, Reading
from sits.resources.reliability import Pressure
from sits.resources.snapshot import absent
from sits.resources.vocabulary import LocalEngine

_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:-[A-Za-z0-9]{1,8})*")
_NOT_FILES = frozenset(("apiKey", "headers", "plugins"))
"""Fields of a spec whose files are asked for as secrets, or are a matter of their own."""


def warnings(reading: Reading) -> tuple[Problem, ...]:
    """Everything in what was read that has no effect, by file and place."""
    settings = next((one.resource.spec for one in reading.declared if isinstance(one.resource, Settings)), SettingsSpec())
    found = [one.problem(fault) for one in reading.declared for rule in _RULES.get(one.kind, ()) for fault in rule(one, settings)]
    found += [problem for problem in absent(reading.declared) if not _NOT_FILES & set(problem.path.split(".")[1:])]
    found += _unpriced_budgets(reading.declared)
    found += _nobody(reading.declared)
    found += _shared_examples([one for one in reading.declared if isinstance(one.resource, Domain)])
    return in_order(found)


def _written(one: Declared, path: Path) -> bool:
    """Whether something stands there, be it no more than the default."""
    return one.document is not None and (*one.prefix, *path) in one.document.marks


def _hash(one: Declared, settings: SettingsSpec) -> Iterator[Fault]:
    route = _as(Route, one.resource)
    used = [route.spec.policy, *(rule.policy for rule in route.spec.rules)]
    if "hash" not in used and (_written(one, ("spec", "hash")) or route.spec.hash != HashSpec()):
        yield Fault(("spec", "hash"), "nothing goes by it: no policy is hash", "write `policy: hash`, or remove it", at_key=True)


def _rules(one: Declared, settings: SettingsSpec) -> Iterator[Fault]:
    for number, rule in enumerate(_as(Route, one.resource).spec.rules):
        at: Path = ("spec", "rules", number)
        if rule.holds == While() and _written(one, (*at, "while")):
            yield Fault((*at, "while"), "says nothing, so it always holds", "give a condition, or remove it", at_key=True)
        for place, match in enumerate(matches_of(rule)):
            where: Path = (*at, "match") if isinstance(rule.match, Match) else (*at, "match", place)
            for name, value in match.headers.items():
                if "*" in value[:-1] and value != "*/*":
                    message = f"only a * at the end of {quoted(value)} stands for anything: the others are compared as they are"
                    yield Fault((*where, "headers", name), message)


def _times(one: Declared, settings: SettingsSpec) -> Iterator[Fault]:
    """Waiting longer than the whole request may take."""
    spec = _as(Route, one.resource).spec
    total, whose = (settings.deadlines.total, "an attempt") if spec.total is None else (spec.total, "the whole request")
    if spec.intent is not None and spec.intent.seconds > total:
        yield Fault(("spec", "intent", "seconds"), _longer(spec.intent.seconds, whose, total))
    if spec.cache is not None and spec.cache.wait_seconds > total:
        yield Fault(("spec", "cache", "waitSeconds"), _longer(spec.cache.wait_seconds, whose, total))


def _pieces(one: Declared, settings: SettingsSpec) -> Iterator[Fault]:
    """How prompts are read in pieces, where none is."""
    spec = _as(Route, one.resource).spec.context
    if spec is None or spec.oversize == "split" or any(stage.kind == "chunked" for stage in spec.stages):
        return
    for name in ("notes", "pieces"):
        if _written(one, ("spec", "context", name)):
            message = "has no effect: no prompt is read in pieces"
            yield Fault(("spec", "context", name), message, "write `oversize: split`, or remove it", at_key=True)


def _longer(seconds: float, whose: str, total: float) -> str:
    return f"{seconds:g} s is longer than {whose} may take, {total:g} s"


def _intents(one: Declared, settings: SettingsSpec) -> Iterator[Fault]:
    path: Path = ("spec", "semantics", "intents")
    semantics = _as(Model, one.resource).spec.semantics
    if semantics is not None and not semantics.intents and _written(one, path):
        yield Fault(
            path, "is empty, and so no clause: requests of any domain are let pass", "name Domains, or remove it", at_key=True
        )


def _window(one: Declared, settings: SettingsSpec) -> Iterator[Fault]:
    """A local model that says of itself more than it is given here."""
    spec = _as(Model, one.resource).spec
    if spec.context_window is None or spec.window == spec.context_window:
        return
    message = f"{spec.context_window} tokens are more than there is room for here: the {spec.window} of local.context count"
    yield Fault(("spec", "contextWindow"), message, f"write {spec.window}, or give more local.context")


def _domain(one: Declared, settings: SettingsSpec) -> Iterator[Fault]:
    spec = _as(Domain, one.resource).spec
    if spec.prefers == Prefers() and _written(one, ("spec", "prefers")):
        yield Fault(("spec", "prefers"), "prefers nobody", "name models or labels, or remove it", at_key=True)
    for language in spec.examples if isinstance(spec.examples, dict) else ():
        if not _LANGUAGE.fullmatch(language):
            message = f"{quoted(language)} is no language tag; it is for people, texts are told apart by their script"
            yield Fault(("spec", "examples", language), message, "write zh or en, or give one list", at_key=True)


def _unasked(one: Declared, settings: SettingsSpec) -> Iterator[Fault]:
    """Queries that nobody is asked."""
    resource = one.resource
    if settings.prometheus is not None:
        return
    asked: list[Path] = []
    if isinstance(resource, Model):
        spec = resource.spec
        asked += [("spec", "health", "query")] * (spec.health is not None)
        asked += [("spec", "vitals", "memoryQuery")] * (spec.vitals is not None and spec.vitals.memory_query is not None)
    elif isinstance(resource, Pressure) and resource.spec.trigger.metric.startswith(QUERY):
        asked.append(("spec", "trigger", "metric"))
    for path in asked:
        yield Fault(
            path, "is asked of nobody: Settings name no Prometheus server", "give Settings `prometheus: http://HOST:9090`"
        )


def _nobody(declared: Sequence[Declared]) -> Iterator[Problem]:
    """Labels that no model has: a route of them alone can answer no request, unless such a model is registered later."""
    models = [one.resource for one in declared if isinstance(one.resource, Model)]
    for one in declared:
        for path, labels in _selectors(one.resource):
            if labels and not selected(labels, models):
                yield one.problem(Fault(path, *_why_nobody(labels, [labels_of(model) for model in models])))


def _selectors(resource: Resource) -> Iterator[tuple[Path, Mapping[str, str]]]:
    if isinstance(resource, Route):
        spec = resource.spec
        lists: list[tuple[Path, Sequence[Backend]]] = [(("spec", "backends"), spec.backends)]
        lists += [(("spec", "rules", number, "backends"), rule.backends) for number, rule in enumerate(spec.rules)]
        for at, backends in lists:
            yield from (((*at, place, "select"), backend.select) for place, backend in enumerate(backends))
    elif isinstance(resource, Domain):
        yield ("spec", "prefers", "labels"), resource.spec.prefers.labels


def _why_nobody(labels: Mapping[str, str], known: Sequence[Mapping[str, str]]) -> tuple[str, str]:
    """What is wrong with labels that nobody has, and what may have been meant."""
    for name, value in labels.items():
        values = sorted({one[name] for one in known if name in one})
        if value in values:
            continue
        message = f"finds nobody: no Model here has {name}: {quoted(value)}"
        if values:
            return message, did_you_mean(value, values) or f"there is {', '.join(map(quoted, values[:5]))}"
        return message, did_you_mean(name, sorted({key for one in known for key in one}))
    return "finds nobody: no Model here has all of these", "remove one of them, or give a Model `labels`"


def _unpriced_budgets(declared: Sequence[Declared]) -> Iterator[Problem]:
    """A budget in dollars holds only for models that say what they cost: without it they count as free."""
    free = {
        one.name: one
        for one in declared
        if isinstance(one.resource, Model)
        and one.resource.spec.engine not in get_args(LocalEngine)
        and one.resource.spec.cost == Cost()
        and not _written(one, ("spec", "cost"))
    }
    for one in declared if free else ():
        for path, quota, asked in _quotas(one.resource):
            unpriced = [name for name in (free if asked is None else asked) if name in free]
            fields = {"dollarsPerDay": quota.dollars_per_day, "dollarsPerMonth": quota.dollars_per_month}
            limited = [name for name, dollars in fields.items() if dollars is not None]
            if limited and unpriced:
                more = f" and {len(unpriced) - 3} more" if len(unpriced) > 3 else ""
                message = f"does not count what {', '.join(map(quoted, unpriced[:3]))}{more} answer: they have no `cost`"
                yield one.problem(
                    Fault((*path, limited[0]), message, "give their Models a `cost`, `cost: {}` where they are free")
                )


def _quotas(resource: Resource) -> Iterator[tuple[Path, Quota, Sequence[str] | None]]:
    """What limits whom, and the models that are asked under it where it is not all of them."""
    if isinstance(resource, Settings):
        yield from ((("spec", "teams", name), quota, None) for name, quota in resource.spec.teams.items())
    elif isinstance(resource, Key) and resource.spec.quota is not None:
        yield ("spec", "quota"), resource.spec.quota, None
    elif isinstance(resource, Route) and resource.spec.quota is not None:
        spec = resource.spec
        backends = [backend for each in (spec.backends, *(rule.backends for rule in spec.rules)) for backend in each]
        named = dict.fromkeys((*(one.model for one in backends if one.model is not None), *spec.fallbacks))
        yield ("spec", "quota"), resource.spec.quota, None if any(one.select for one in backends) else list(named)


def _shared_examples(domains: Sequence[Declared]) -> Iterator[Problem]:
    """The same query in two Domains says that it is of both, of which a request is never. One warning for each two of them."""
    seen: dict[str, Declared] = {}
    for one in domains:
        shared: dict[str, list[tuple[Path, str]]] = {}
        for path, example in _examples(_as(Domain, one.resource)):
            first = seen.setdefault(example.strip().casefold(), one)
            if first is not one:
                shared.setdefault(first.name, []).append((path, example))
        for name, found in shared.items():
            path, example = found[0]
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            message = f"{quoted(example)}{more}: examples of Domain {quoted(name)} too"
            yield one.problem(Fault(path, message, "leave each with the one that it is of"))


def _examples(domain: Domain) -> Iterator[tuple[Path, str]]:
    at: Path = ("spec", "examples")
    if not isinstance(domain.spec.examples, dict):
        yield from (((*at, index), example) for index, example in enumerate(domain.spec.examples))
        return
    for language, listed in domain.spec.examples.items():
        yield from (((*at, language, index), example) for index, example in enumerate(listed))


def _as(kind: type[Any], resource: Resource) -> Any:
    assert isinstance(resource, kind)
    return resource


_RULES: Mapping[str, Sequence[Callable[[Declared, SettingsSpec], Iterator[Fault]]]] = {
    "Route": (_hash, _rules, _times, _pieces),
    "Model": (_intents, _unasked, _window),
    "Pressure": (_unasked,),
    "Domain": (_domain,),
}
"""By kind; a rule sees what was declared, and the Settings that it is declared with."""
