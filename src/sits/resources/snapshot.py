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
from sits.resources.domains import Domain
from sits.resources.keys import Key
from sits.resources.kinds import Model, Resource, Route, Settings, SettingsSpec
from sits.resources.plain import plain
from sits.resources.problem import ConfigError, Fault, Path, Problem, in_order, nearest
from sits.resources.reading import Declared, Lost, Reading
from sits.resources.relations import name_of, relations, twice
from sits.resources.reliability import Pressure, Switch
from sits.resources.secrets import SecretError, resolve
from sits.resources.unread import UNREAD, Unread, judged

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
    """Counts up with each change that was taken; of this gateway, not of its cluster."""
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
    seen = [*(_in_order([*reading.declared, *reading.partial]) if reading.partial else reading.declared), *added]
    # What was read from a file has been through these rules; a bare resource has not.
    problems = [d.problem(fault) for d in everything if d.document is None for fault in resource_faults(d.resource)]
    problems += twice(seen[: len(seen) - len(added)], added)
    problems += relations(seen, reading.lost)
    if secrets:
        problems += missing_secrets(seen)
    sound = not reading.problems and not problems
    snapshot = _snapshot(everything, version) if sound else None
    if judge is not None:
        problems += _judged(judge, snapshot or _sketch(everything, seen), seen, reading.lost)
    if snapshot is None or problems:
        raise ConfigError(in_order([*reading.problems, *problems]))
    return snapshot


def _in_order(declared: Sequence[Declared]) -> list[Declared]:
    """As they were written: files as they were read, and within one as they stand in it."""
    files = {name: number for number, name in enumerate(dict.fromkeys(sorted(one.file for one in declared)))}
    place = {id(one): one.document.where(one.prefix) if one.document is not None else (0, 0) for one in declared}
    return sorted(declared, key=lambda one: (files[one.file], place[id(one)]))


def _judged(judge: Judge, snapshot: Snapshot, seen: Sequence[Declared], lost: Collection[Lost]) -> Iterator[Problem]:
    if any(one.kind in ("", "Settings") for one in lost):
        # Plugins come by Settings: without them, nobody knows what is there.
        return
    place = {(one.kind, name): one for one in seen if (name := name_of(one)) is not None}
    for kind, name, fault in judged(judge(snapshot)):
        yield place[kind, name].problem(fault)


def _sketch(everything: Sequence[Declared], seen: Sequence[Declared]) -> Snapshot:
    """A snapshot to judge by where none can be made: routes with what is known of them, and of the rest what is whole."""
    models = {one.name: one.resource for one in everything if isinstance(one.resource, Model)}
    domains = {one.name: one.resource for one in everything if isinstance(one.resource, Domain)}
    routes = {name: one.resource for one in seen if isinstance(one.resource, Route) and (name := name_of(one)) is not None}
    names = {name: Resolved(name, route, _members_known(route, models), ()) for name, route in routes.items()}
    settings = next((one.resource.spec for one in seen if isinstance(one.resource, Settings)), SettingsSpec())
    return Snapshot(0, "", models, routes, {}, settings, names, domains=domains)


def _members_known(route: Route, models: Mapping[str, Model]) -> tuple[tuple[Model, float], ...]:
    try:
        return members([one for one in route.spec.backends if one.model is None or one.model in models], models)
    except Unread:
        return ()


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
        for path, reference in _references(_anchored(declared)):
            try:
                resolve(reference)
            except SecretError as error:
                problems.append(declared.problem(Fault(path, str(error), "set it, or skip this check with --no-secrets")))
    return problems


def _anchored(declared: Declared) -> Resource:
    """With paths made absolute; as it is, where one of them could not be read."""
    try:
        return declared.anchored
    except (Unread, TypeError):
        return declared.resource


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
    if isinstance(resource, Model):
        yield from judged(_api_key(resource))
        yield from judged(_header_values(resource))
    elif isinstance(resource, Settings):
        yield from judged(_addresses(resource))


def _api_key(model: Model) -> Iterator[tuple[Path, str]]:
    if model.spec.api_key is not None and model.spec.api_key is not UNREAD:
        yield ("spec", "apiKey"), model.spec.api_key


def _addresses(settings: Settings) -> Iterator[tuple[Path, str]]:
    spec = settings.spec
    if spec is UNREAD:
        return
    places: dict[Path, str] = {("spec", name): getattr(spec, name) for name in ("store", "bus", "vectors", "flows")}
    if spec.ledger is not UNREAD:
        places[("spec", "ledger", "store")] = spec.ledger.store
    for path, value in places.items():
        if value is not UNREAD and is_reference(value):
            yield path, value


def _header_values(model: Model) -> Iterator[tuple[Path, str]]:
    for name, value in model.spec.headers.items():
        if value is not UNREAD and is_reference(value):
            yield ("spec", "headers", name), value


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
