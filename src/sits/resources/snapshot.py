"""Resources compiled into one immutable snapshot.

Names are resolved here, once, so a request costs one look-up: alias -> route -> models. Three rules keep a name from meaning
two things:

- Every model can be asked for by its own name.
- A route may bear the name of a model only when that model is one of its backends: it stands in front of the model
  on purpose, and the name then means the route.
- An alias is nobody else's name.

The hash is that of the resources as they were declared, whatever the order of files, documents and keys; equal
declarations give equal hashes on every node. A relative path is hashed as a place below the folder of the configuration, so
two gateways with the same configuration at different places agree; the snapshot's models and settings have it absolute.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from sits.resources.anchor import needed
from sits.resources.backends import members
from sits.resources.checks import is_reference, resource_faults
from sits.resources.checks_choosing import matches_of
from sits.resources.checks_embedding import embedding
from sits.resources.choosing import Backend, Match
from sits.resources.domains import UNKNOWN, Domain
from sits.resources.keys import Key
from sits.resources.kinds import Model, Resource, Route, Settings, SettingsSpec
from sits.resources.plain import plain
from sits.resources.problem import ConfigError, Fault, Path, Problem, did_you_mean, nearest, quoted
from sits.resources.reading import Declared, Reading
from sits.resources.reliability import Pressure, Switch
from sits.resources.secrets import SecretError, resolve

Judge = Callable[["Snapshot"], "Iterable[tuple[str, str, Fault]]"]
"""Sees what only a whole snapshot shows: kind and name of a resource, and a fault in it."""


class Resolved(msgspec.Struct, frozen=True):
    """What a name that clients ask for stands for."""

    name: str
    """The route's or model's own name, also when an alias was asked for."""
    route: Route | None
    """None for a model that is asked for directly."""
    backends: tuple[tuple[Model, float], ...]
    """Models and weights; at least one weight is above 0. Empty where no model has the labels that are asked for."""
    fallbacks: tuple[Model, ...]
    rules: tuple[tuple[tuple[Model, float], ...], ...] = ()
    """The same of each of the route's rules."""
    digest: str = ""
    """Of its models as they were written, where its answers are kept: gateways that share them have them by this."""


class Snapshot(msgspec.Struct, frozen=True):
    """Everything declared at one moment. A request pins one and keeps it to its end."""

    version: int
    """Counts up with each change that was taken; of this process."""
    hash: str
    models: Mapping[str, Model]
    routes: Mapping[str, Route]
    keys: Mapping[str, Key]
    """By the SHA-256 of the secret, in hexadecimal."""
    settings: SettingsSpec
    names: Mapping[str, Resolved]
    """Every name that can be asked for: models, routes and aliases."""
    switches: Mapping[str, Switch] = MappingProxyType({})
    pressures: Mapping[str, Pressure] = MappingProxyType({})
    domains: Mapping[str, Domain] = MappingProxyType({})
    """What requests may want, by name, in the order of their names."""
    written: tuple[Resource, ...] = ()
    """Everything as it was declared, with paths as they are hashed."""

    def nearest_name(self, name: str) -> str | None:
        """The known name that `name` was most likely meant to be."""
        return nearest(name, self.names)


def compile(
    resources: Iterable[Resource | Declared],
    version: int,
    *,
    registered: Iterable[Resource | Declared] = (),
    secrets: bool = False,
) -> Snapshot:
    """The snapshot of the declared resources and those registered through the API.

    `secrets` also asks that every secret that is named is there. Paths in the snapshot's models are absolute: a relative one
    is relative to the file that declares it, or, where it came from no file, to the base of what was read.

    Raises:
        ConfigError: every problem that was found.
    """
    declared = [_declared(resource, "(declared)") for resource in resources]
    return _compile(Reading(tuple(declared), ()), version, registered, secrets)


def compile_reading(
    reading: Reading,
    version: int,
    *,
    registered: Iterable[Resource | Declared] = (),
    secrets: bool = False,
    judge: Judge | None = None,
) -> Snapshot:
    """As `compile`, of what was read from files; the problems of reading are among those raised, and what `judge` says."""
    return _compile(reading, version, registered, secrets, judge)


def _compile(
    reading: Reading, version: int, registered: Iterable[Resource | Declared], secrets: bool, judge: Judge | None = None
) -> Snapshot:
    added = [_declared(resource, "(registered)", reading.base) for resource in registered]
    everything = [*reading.declared, *added]
    # What was read from a file has been through these rules; a bare resource has not.
    problems = [d.problem(fault) for d in everything if d.document is None for fault in resource_faults(d.resource)]
    problems += _twice(reading.declared, added)
    problems += _relations(everything, whole=not reading.problems)
    if secrets:
        problems += missing_secrets(everything)
    if reading.problems or problems:
        raise ConfigError(sorted({*reading.problems, *problems}, key=lambda p: (p.file, p.line, p.column, p.path, p.message)))
    snapshot = _snapshot(everything, version)
    if judge is not None:
        place = {(one.kind, one.name): one for one in everything}
        found = [place[kind, name].problem(fault) for kind, name, fault in judge(snapshot)]
        if found:
            raise ConfigError(sorted(found, key=lambda p: (p.file, p.line, p.column, p.path, p.message)))
    return snapshot


def _snapshot(everything: Sequence[Declared], version: int) -> Snapshot:
    written = tuple(one.written for one in everything)
    here = [one.anchored for one in everything]
    models = {one.metadata.name: one for one in here if isinstance(one, Model)}
    routes = {one.metadata.name: one for one in here if isinstance(one, Route)}
    return Snapshot(
        version,
        content_hash(written),
        MappingProxyType(models),
        MappingProxyType(routes),
        MappingProxyType({one.spec.sha256: one for one in here if isinstance(one, Key)}),
        next((one.spec for one in here if isinstance(one, Settings)), SettingsSpec()),
        MappingProxyType(_names(models, routes, {one.metadata.name: one for one in written if isinstance(one, Model)})),
        MappingProxyType({one.metadata.name: one for one in here if isinstance(one, Switch)}),
        MappingProxyType({one.metadata.name: one for one in here if isinstance(one, Pressure)}),
        MappingProxyType(dict(sorted((one.metadata.name, one) for one in here if isinstance(one, Domain)))),
        written,
    )


def content_hash(resources: Iterable[Resource]) -> str:
    """SHA-256 over the canonical JSON of the resources, sorted by kind and name."""
    rows = sorted((type(r).__name__, r.metadata.name, msgspec.json.encode(plain(r), order="sorted")) for r in resources)
    return hashlib.sha256(b"\n".join(row[2] for row in rows)).hexdigest()


def missing_secrets(resources: Iterable[Declared]) -> list[Problem]:
    """A problem for each reference whose secret is not there."""
    problems = []
    for declared in resources:
        for path, reference in _references(declared.anchored):
            try:
                resolve(reference)
            except SecretError as error:
                problems.append(declared.problem(Fault(path, str(error), "set it, or skip this check with --no-secrets")))
    return problems


def absent(resources: Iterable[Declared]) -> list[Problem]:
    """A problem for each file or folder that is named and is not there."""
    return [
        declared.problem(Fault(path, f"no file or folder at {place}", "put it there, or name another place"))
        for declared in resources
        for path, place in needed(declared.anchored)
        if not os.path.exists(place)
    ]


def _declared(resource: Resource | Declared, file: str, base: pathlib.Path | None = None) -> Declared:
    return resource if isinstance(resource, Declared) else Declared(resource, file, base=base)


def _references(resource: Resource) -> Iterator[tuple[Path, str]]:
    if not isinstance(resource, Model):
        return
    if resource.spec.api_key is not None:
        yield ("spec", "apiKey"), resource.spec.api_key
    for name, value in resource.spec.headers.items():
        if is_reference(value):
            yield ("spec", "headers", name), value


def _twice(declared: Sequence[Declared], registered: Sequence[Declared]) -> Iterator[Problem]:
    seen: dict[tuple[str, str], Declared] = {}
    secrets: dict[str, Declared] = {}
    ours = {id(d) for d in registered}
    for one in (*declared, *registered):
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


def _relations(everything: Sequence[Declared], *, whole: bool) -> Iterator[Problem]:
    """Faults between resources; a target that is not there is one only when everything could be read."""
    models = {d.name: d for d in everything if isinstance(d.resource, Model)}
    routes = {d.name: d for d in everything if isinstance(d.resource, Route)}
    aliases: dict[str, Declared] = {}
    for one in everything:
        if isinstance(one.resource, Route):
            yield from _route_relations(one, one.resource, models, routes, aliases, whole)
    names = {*models, *routes, *aliases}
    domains = {d.name for d in everything if isinstance(d.resource, Domain)}
    known: dict[str, Collection[str]] = {"Model": models, "Route": routes, "Domain": domains}
    for one in everything:
        for path, name, kind in _references_of(one.resource):
            if whole and name not in known[kind]:
                yield one.problem(Fault(path, f"no {kind} {quoted(name)}", did_you_mean(name, known[kind])))
        if isinstance(one.resource, Settings):
            found = {name: d.resource for name, d in models.items() if isinstance(d.resource, Model)}
            yield from map(one.problem, embedding(one.resource, found))
        # A key that was stored may name models that come and go; one in a file is checked.
        if isinstance(one.resource, Key) and one.document is not None:
            for index, name in enumerate(one.resource.spec.models or ()):
                if whole and name not in names:
                    message = f"no model, route or alias {quoted(name)}"
                    yield one.problem(Fault(("spec", "models", index), message, did_you_mean(name, names)))


def _route_relations(
    one: Declared,
    route: Route,
    models: Mapping[str, Declared],
    routes: Mapping[str, Declared],
    aliases: dict[str, Declared],
    whole: bool,
) -> Iterator[Problem]:
    places: list[tuple[Path, list[Backend]]] = [(("spec", "backends"), route.spec.backends)]
    places += [(("spec", "rules", i, "backends"), rule.backends) for i, rule in enumerate(route.spec.rules)]
    backends: list[tuple[Path, str]] = [
        ((*path, i, "model"), backend.model)
        for path, listed in places
        for i, backend in enumerate(listed)
        if backend.model is not None
    ]
    fallbacks: list[tuple[Path, str]] = [(("spec", "fallbacks", i), name) for i, name in enumerate(route.spec.fallbacks)]
    for path, name in (*backends, *fallbacks):
        if name not in models and (whole or name in routes):
            yield one.problem(Fault(path, _no_model(name, routes), did_you_mean(name, models)))
    if one.name in models and all(backend.model != one.name for backend in route.spec.backends):
        message = f"{quoted(one.name)} is a Model too ({models[one.name].place}) and not a backend of this Route"
        yield one.problem(Fault(("metadata", "name"), message, "rename one, or make the model a backend"))
    for index, alias in enumerate(route.spec.aliases):
        holder = models.get(alias) or routes.get(alias) or aliases.get(alias)
        if holder is not None:
            what = "an alias of" if alias in aliases and alias not in models and alias not in routes else "the name of"
            message = f"{quoted(alias)} is {what} {holder.kind} {quoted(holder.name)} ({holder.place})"
            yield one.problem(Fault(("spec", "aliases", index), message, "choose another alias"))
        else:
            aliases[alias] = one


def _references_of(resource: Resource) -> Iterator[tuple[Path, str, str]]:
    """Where a resource names others that must be there (backends and fallbacks have more to say and are looked at apart)."""
    spec: Path = ("spec",)
    if isinstance(resource, Route):
        yield from _domains_matched(resource)
        yield from _models_preferred(resource)
        if resource.spec.shadow is not None:
            yield (*spec, "shadow", "model"), resource.spec.shadow.model, "Model"
        if resource.spec.qos is not None and resource.spec.qos.replacement is not None:
            yield (*spec, "qos", "replacement"), resource.spec.qos.replacement, "Model"
        complexity = resource.spec.complexity
        if complexity is not None and complexity.learning is not None and complexity.learning.judge is not None:
            yield (*spec, "complexity", "learning", "judge", "model"), complexity.learning.judge.model, "Model"
        if resource.spec.substitutes is not None:
            for index, name in enumerate(resource.spec.substitutes.candidates):
                yield (*spec, "substitutes", "candidates", index), name, "Model"
    elif isinstance(resource, Switch):
        yield (*spec, "from"), resource.spec.from_, "Model"
        yield (*spec, "to"), resource.spec.to, "Model"
        for index, name in enumerate(resource.spec.routes):
            yield (*spec, "routes", index), name, "Route"
    elif isinstance(resource, Pressure):
        for index, name in enumerate(resource.spec.routes):
            yield (*spec, "routes", index), name, "Route"
    elif isinstance(resource, Model) and resource.spec.semantics is not None:
        for index, name in enumerate(resource.spec.semantics.intents):
            yield (*spec, "semantics", "intents", index), name, "Domain"
    elif isinstance(resource, Settings) and resource.spec.embedder is not None:
        yield (*spec, "embedder", "model"), resource.spec.embedder.model, "Model"
    elif isinstance(resource, Domain):
        for index, name in enumerate(resource.spec.prefers.models):
            yield (*spec, "prefers", "models", index), name, "Model"


def _models_preferred(route: Route) -> Iterator[tuple[Path, str, str]]:
    if route.spec.complexity is not None:
        for tier in ("tiny", "base", "heavy"):
            one = getattr(route.spec.complexity.tiers, tier)
            for index, name in enumerate(one.models if one is not None else ()):
                yield ("spec", "complexity", "tiers", tier, "models", index), name, "Model"
    if route.spec.context is not None:
        for number, stage in enumerate(route.spec.context.stages):
            for index, name in enumerate(stage.models):
                yield ("spec", "context", "stages", number, "models", index), name, "Model"


def _domains_matched(route: Route) -> Iterator[tuple[Path, str, str]]:
    for number, rule in enumerate(route.spec.rules):
        for place, match in enumerate(matches_of(rule)):
            at: Path = ("match",) if isinstance(rule.match, Match) else ("match", place)
            for index, name in enumerate(match.domain):
                if name != UNKNOWN:
                    yield ("spec", "rules", number, *at, "domain", index), name, "Domain"


def _no_model(name: str, routes: Mapping[str, Declared]) -> str:
    if name in routes:
        return f"{quoted(name)} is a Route; a route names models only"
    return f"no Model {quoted(name)}"


def _names(models: Mapping[str, Model], routes: Mapping[str, Route], written: Mapping[str, Model]) -> dict[str, Resolved]:
    names = {name: Resolved(name, None, ((model, 1.0),), ()) for name, model in models.items()}
    for name, route in routes.items():
        backends = members(route.spec.backends, models)
        found = {model.metadata.name for model, _ in backends}
        fallbacks = tuple(models[fallback] for fallback in route.spec.fallbacks if fallback not in found)
        rules = tuple(members(rule.backends, models) for rule in route.spec.rules)
        digest = ""
        if route.spec.cache is not None:
            asked = [*(model for model, _ in backends), *fallbacks]
            digest = content_hash(written[model.metadata.name] for model in asked)
        resolved = Resolved(name, route, backends, fallbacks, rules, digest)
        for word in (name, *route.spec.aliases):
            names[word] = resolved
    return names
