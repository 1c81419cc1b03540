"""Faults between resources: names that two have, and names that nobody has.

What could not be read is thought of: a name is only missing where all of its kind are known by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sits.resources.checks_choosing import matches_of, named_models
from sits.resources.checks_embedding import embedding
from sits.resources.choosing import Backend, Match, RouteRule
from sits.resources.domains import UNKNOWN, Domain, examples_of
from sits.resources.keys import Key
from sits.resources.kinds import Model, Resource, Route, Settings
from sits.resources.problem import Fault, Path, Problem, did_you_mean, instead, quoted
from sits.resources.reading import Declared, Lost
from sits.resources.reliability import Pressure, Switch
from sits.resources.unread import UNREAD, Unread, judged

T = TypeVar("T")
Reference = tuple[Path, str, str]
"""Where a name stands, the name, and the kind that it is of."""


def twice(declared: Sequence[Declared], registered: Sequence[Declared]) -> Iterator[Problem]:
    """Two of one kind and name, two Settings, two keys with one secret."""
    seen: dict[tuple[str, str], Declared] = {}
    secrets: dict[str, Declared] = {}
    ours = {id(d) for d in registered}
    for one in (*declared, *registered):
        yield from judged(_twice(one, seen, secrets, ours))


def _twice(
    one: Declared, seen: dict[tuple[str, str], Declared], secrets: dict[str, Declared], ours: set[int]
) -> Iterator[Problem]:
    name = "" if isinstance(one.resource, Settings) else one.name
    first = seen.setdefault((one.kind, name), one)
    if first is not one:
        yield one.problem(_second(one, first, id(one) in ours and id(first) not in ours))
    elif isinstance(one.resource, Key):
        holder = secrets.setdefault(one.resource.spec.sha256, one)
        if holder is not one:
            message = f"the same secret as Key {quoted(holder.name)} ({holder.place})"
            yield one.problem(Fault(("spec", "sha256"), message, "give each key a secret of its own"))


def _second(one: Declared, first: Declared, redefined: bool) -> Fault:
    if isinstance(one.resource, Settings):
        return Fault((), f"Settings are declared already, at {first.place}", "there is at most one Settings resource")
    path = ("metadata", "name")
    if redefined:
        message = f"{one.kind} {quoted(one.name)} is declared at {first.place}; a registered one may not redefine it"
        return Fault(path, message, "register it under another name, or remove one of the two")
    return Fault(path, f"{one.kind} {quoted(one.name)} is declared already, at {first.place}", "rename or remove one of them")


class Names:
    """The names of what is declared, and whether these are all."""

    def __init__(self, everything: Sequence[Declared], lost: Collection[Lost]) -> None:
        self.models = _by_name(everything, Model)
        self.routes = _by_name(everything, Route)
        self.domains = _by_name(everything, Domain)
        self._everything = everything
        self._lost = lost
        self._known: Mapping[str, Mapping[str, Declared]] = {
            "Model": self.models, "Route": self.routes, "Domain": self.domains,
        }  # fmt: skip

    def known(self, kind: str) -> Mapping[str, Declared]:
        """Those of a kind."""
        return self._known[kind]

    def nobody(self, kind: str) -> str:
        """What to do where nobody of a kind is known; nothing where somebody may be whose resource cannot be read."""
        return "" if any(lost.kind in ("", kind) for lost in self._lost) else _NONE[kind]

    def missing(self, name: str, *kinds: str) -> bool:
        """Whether certainly none of these kinds is called that."""
        if any(name in self._known[kind] for kind in kinds):
            return False
        if any(lost.kind in ("", *kinds) and lost.name in ("", name) for lost in self._lost):
            return False
        return all(name_of(one) is not None for one in self._everything if one.kind in kinds)


def _by_name(everything: Sequence[Declared], kind: type[Resource]) -> dict[str, Declared]:
    named = ((name_of(one), one) for one in everything if isinstance(one.resource, kind))
    return {name: one for name, one in named if name is not None}


def name_of(one: Declared) -> str | None:
    """The name of a resource, where it could be read."""
    try:
        return None if one.name is UNREAD else one.name
    except Unread:
        return None


def relations(everything: Sequence[Declared], lost: Collection[Lost]) -> Iterator[Problem]:
    """Faults between resources."""
    names = Names(everything, lost)
    aliases: dict[str, Declared] = {}
    # An alias that could not be read may be any name.
    aliased = True
    for one in everything:
        if isinstance(one.resource, Route):
            for part in (_backends(one.resource, names), _stands_before(one, one.resource, names)):
                yield from map(one.problem, judged(part))
            try:
                yield from map(one.problem, _aliases(one, one.resource, names, aliases))
            except Unread:
                aliased = False
    yield from _alike(names.domains)
    for one in everything:
        yield from map(one.problem, judged(_unknown(one.resource, names)))
        if isinstance(one.resource, Settings):
            models = {name: d.resource for name, d in names.models.items() if isinstance(d.resource, Model)}
            yield from map(one.problem, judged(embedding(one.resource, models)))
        # A key that was stored may name models that come and go; one in a file is checked.
        if isinstance(one.resource, Key) and one.document is not None and aliased:
            yield from map(one.problem, judged(_asked_for(one.resource, names, aliases)))


def _alike(domains: Mapping[str, Declared]) -> Iterator[Problem]:
    """Two Domains with the same examples: nothing could tell them apart."""
    seen: dict[frozenset[str], Declared] = {}
    for one in domains.values():
        yield from judged(_alike_to(one, seen))


def _alike_to(one: Declared, seen: dict[frozenset[str], Declared]) -> Iterator[Problem]:
    assert isinstance(one.resource, Domain)
    first = seen.setdefault(frozenset(example.strip().casefold() for example in examples_of(one.resource.spec)), one)
    if first is not one:
        message = f"the same as those of Domain {quoted(first.name)} ({first.place}): nothing tells the two apart"
        yield one.problem(Fault(("spec", "examples"), message, "give each examples of its own", at_key=True))


def _asked_for(key: Key, names: Names, aliases: Mapping[str, Declared]) -> Iterator[Fault]:
    for index, name in enumerate(key.spec.models or ()):
        if name is not UNREAD and name not in aliases and names.missing(name, "Model", "Route"):
            hint = instead(name, dict.fromkeys((*names.models, *names.routes, *aliases)), names.nobody("Model"))
            yield Fault(("spec", "models", index), f"no model, route or alias {quoted(name)}", hint)


def _backends(route: Route, names: Names) -> Iterator[Fault]:
    for path, name in _backends_of(route):
        if name in names.routes and name not in names.models:
            yield Fault(path, f"{quoted(name)} is a Route; a route names models only", did_you_mean(name, names.models))
        elif names.missing(name, "Model"):
            yield Fault(path, f"no Model {quoted(name)}", instead(name, names.models, names.nobody("Model")))


def _backends_of(route: Route) -> Iterator[tuple[Path, str]]:
    """Where a route names models that answer, and the names."""
    yield from judged(_named(route.spec.backends, ("spec", "backends")))
    for index, rule in enumerate(_read(route.spec.rules)):
        yield from judged(_of_rule(rule, ("spec", "rules", index, "backends")))
    for index, name in enumerate(_read(route.spec.fallbacks)):
        if name is not UNREAD:
            yield ("spec", "fallbacks", index), name


def _of_rule(rule: RouteRule, at: Path) -> Iterator[tuple[Path, str]]:
    yield from _named(rule.backends, at)


def _named(backends: Sequence[Backend], at: Path) -> Iterator[tuple[Path, str]]:
    for index, backend in enumerate(backends):
        if backend is not UNREAD and backend.model is not None and backend.model is not UNREAD:
            yield (*at, index, "model"), backend.model


def _read(listed: Sequence[T]) -> Sequence[T]:
    return () if listed is UNREAD else listed


def _stands_before(one: Declared, route: Route, names: Names) -> Iterator[Fault]:
    if one.name in names.models and all(backend.model != one.name for backend in route.spec.backends):
        message = f"{quoted(one.name)} is a Model too ({names.models[one.name].place}) and not a backend of this Route"
        yield Fault(("metadata", "name"), message, "rename one, or make the model a backend")


def _aliases(one: Declared, route: Route, names: Names, aliases: dict[str, Declared]) -> Iterator[Fault]:
    for index, alias in enumerate(route.spec.aliases):
        holder = names.models.get(alias) or names.routes.get(alias) or aliases.get(alias)
        if holder is not None:
            what = (
                "an alias of" if alias in aliases and alias not in names.models and alias not in names.routes else "the name of"
            )
            message = f"{quoted(alias)} is {what} {holder.kind} {quoted(holder.name)} ({holder.place})"
            yield Fault(("spec", "aliases", index), message, "choose another alias")
        else:
            aliases[alias] = one


def _unknown(resource: Resource, names: Names) -> Iterator[Fault]:
    """Names of others that nobody has (backends, fallbacks and those of keys have more to say and are looked at apart)."""
    for find in _REFERENCES.get(type(resource), ()):
        for path, name, kind in judged(find(resource)):
            if name is not UNREAD and names.missing(name, kind):
                yield Fault(path, f"no {kind} {quoted(name)}", instead(name, names.known(kind), names.nobody(kind)))


_NONE = {
    "Model": "none is declared: write a resource of `kind: Model`",
    "Route": "none is declared: write a resource of `kind: Route`",
    "Domain": "none is declared: write a resource of `kind: Domain`, or begin with those of `sits domains export FOLDER`",
}
"""What to do where there is nobody who could be meant."""


def _list(names: Sequence[str], at: Path, kind: str) -> Iterator[Reference]:
    for index, name in enumerate(names):
        yield (*at, index), name, kind


def _domains_matched(route: Route) -> Iterator[Reference]:
    for number, rule in enumerate(route.spec.rules):
        yield from judged(_domains_of(rule, ("spec", "rules", number)))


def _domains_of(rule: RouteRule, where: Path) -> Iterator[Reference]:
    for place, match in enumerate(matches_of(rule)):
        at: Path = ("match",) if isinstance(rule.match, Match) else ("match", place)
        for index, name in enumerate(match.domain):
            if name is UNREAD or name != UNKNOWN:
                yield (*where, *at, "domain", index), name, "Domain"


def _of_tiers(route: Route) -> Iterator[Reference]:
    # Where the names of a route's models are known, its own rules tell which of these are none.
    if route.spec.complexity is not None and named_models(route) is None:
        for tier in ("tiny", "base", "heavy"):
            one = getattr(route.spec.complexity.tiers, tier)
            if one is not None and one is not UNREAD:
                yield from judged(_list(one.models, ("spec", "complexity", "tiers", tier, "models"), "Model"))


def _of_stages(route: Route) -> Iterator[Reference]:
    if route.spec.context is not None and named_models(route) is None:
        for number, stage in enumerate(route.spec.context.stages):
            if stage is not UNREAD:
                yield from judged(_list(stage.models, ("spec", "context", "stages", number, "models"), "Model"))


def _shadow(route: Route) -> Iterator[Reference]:
    if route.spec.shadow is not None:
        yield ("spec", "shadow", "model"), route.spec.shadow.model, "Model"


def _replacement(route: Route) -> Iterator[Reference]:
    if route.spec.qos is not None and route.spec.qos.replacement is not None:
        yield ("spec", "qos", "replacement"), route.spec.qos.replacement, "Model"


def _judge(route: Route) -> Iterator[Reference]:
    complexity = route.spec.complexity
    if complexity is not None and complexity.learning is not None and complexity.learning.judge is not None:
        yield ("spec", "complexity", "learning", "judge", "model"), complexity.learning.judge.model, "Model"


def _substitutes(route: Route) -> Iterator[Reference]:
    if route.spec.substitutes is not None:
        yield from _list(route.spec.substitutes.candidates, ("spec", "substitutes", "candidates"), "Model")


def _switched(switch: Switch) -> Iterator[Reference]:
    yield ("spec", "from"), switch.spec.from_, "Model"
    yield ("spec", "to"), switch.spec.to, "Model"


def _routes(resource: Switch | Pressure) -> Iterator[Reference]:
    yield from _list(resource.spec.routes, ("spec", "routes"), "Route")


def _intents(model: Model) -> Iterator[Reference]:
    if model.spec.semantics is not None:
        yield from _list(model.spec.semantics.intents, ("spec", "semantics", "intents"), "Domain")


def _embedder(settings: Settings) -> Iterator[Reference]:
    if settings.spec.embedder is not None:
        yield ("spec", "embedder", "model"), settings.spec.embedder.model, "Model"


def _preferred(domain: Domain) -> Iterator[Reference]:
    yield from _list(domain.spec.prefers.models, ("spec", "prefers", "models"), "Model")


_REFERENCES: Mapping[type[Resource], Sequence[Callable[[Any], Iterator[Reference]]]] = {
    Route: (_domains_matched, _of_tiers, _of_stages, _shadow, _replacement, _judge, _substitutes),
    Switch: (_switched, _routes),
    Pressure: (_routes,),
    Model: (_intents,),
    Settings: (_embedder,),
    Domain: (_preferred,),
}
"""By kind: where a resource names others that must be there."""
