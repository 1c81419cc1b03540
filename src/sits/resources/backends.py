"""Who is behind a route: backends by name, and those that are found by their labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sits.resources.choosing import Backend
from sits.resources.kinds import Model, Route
from sits.resources.problem import Fault, Path, quoted
from sits.resources.unread import judged
from sits.resources.vocabulary import LEAST_WEIGHT


def labels_of(model: Model) -> dict[str, str]:
    """The labels of a model; what its spec says of where and what it is stands in for those that it has not."""
    spec = model.spec
    own = {"engine": spec.engine, "region": spec.region, "zone": spec.zone, "version": spec.version}
    return {**{name: value for name, value in own.items() if value is not None}, **model.metadata.labels}


def selected(labels: Mapping[str, str], models: Iterable[Model]) -> list[Model]:
    """The models that have all these labels, by name."""
    wanted = labels.items()
    return sorted((one for one in models if wanted <= labels_of(one).items()), key=lambda one: one.metadata.name)


def members(backends: Iterable[Backend], models: Mapping[str, Model]) -> tuple[tuple[Model, float], ...]:
    """The models of these backends with their weights. Who is named is not found by label once more; who is found by two has a
    part of the weight of each."""
    backends = list(backends)
    named: dict[str, float] = {backend.model: backend.share for backend in backends if backend.model is not None}
    found: dict[str, float] = {}
    for backend in backends:
        if backend.model is None:
            ours = [name for model in selected(backend.select, models.values()) if (name := model.metadata.name) not in named]
            for name in ours:
                found[name] = found.get(name, 0.0) + backend.share / len(ours)
    return tuple((models[name], weight) for name, weight in (named | found).items())


def stated(backends: Iterable[Backend]) -> bool:
    """Whether somebody said how requests are to be shared."""
    return any(backend.weight is not None for backend in backends)


def backend_faults(backends: list[Backend], at: Path) -> Iterator[Fault]:
    """Each is a name or labels, none twice, and something can be drawn."""
    seen: set[str] = set()
    for index, backend in enumerate(backends):
        yield from judged(_backend_faults(backend, (*at, index), seen))
    if sum(backend.share for backend in backends) <= 0:
        yield Fault(at, "every weight is 0, so nothing could be drawn", "give one backend a weight above 0")


def _backend_faults(backend: Backend, where: Path, seen: set[str]) -> Iterator[Fault]:
    if (backend.model is None) == (not backend.select):
        yield Fault(where, "a backend is a `model` or a `select`", "give one of them")
    elif backend.model is not None:
        if backend.model in seen:
            yield Fault((*where, "model"), f"{quoted(backend.model)} is a backend already", "add the weights up")
        seen.add(backend.model)
    yield from weight_faults(backend.weight, (*where, "weight"))


def weight_faults(weight: float | None, at: Path) -> Iterator[Fault]:
    """One that is not 0 is no smaller than counts can tell from 0."""
    if weight and weight < LEAST_WEIGHT:
        yield Fault(at, f"{weight:g} is too small", f"give 0, or a figure of at least {LEAST_WEIGHT:g}")


def fallback_faults(route: Route) -> Iterator[Fault]:
    """Each model is tried once."""
    seen = {backend.model: "a backend" for backend in route.spec.backends if backend.model is not None}
    for index, name in enumerate(route.spec.fallbacks):
        if name in seen:
            message = f"{quoted(name)} is {seen[name]} already"
            yield Fault(("spec", "fallbacks", index), message, "remove it: each model is tried once")
        seen[name] = "a fallback"
