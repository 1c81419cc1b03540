"""Whether the filters and scores that routes name are there and can use their settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import structs

from sits.resources.backends import labels_of
from sits.resources.choosing import FilterUse, ScoreUse
from sits.resources.kinds import Route
from sits.resources.problem import Fault, Path, did_you_mean, quoted
from sits.resources.snapshot import Resolved, Snapshot
from sits.resources.unread import UNREAD, judged
from sits.routing.policies.state import TargetState
from sits.routing.scheduling.base import Candidate, Made
from sits.routing.scheduling.builtin import FILTERS, SCORES
from sits.routing.scheduling.settings import BadSettings

Makers = Mapping[str, Callable[[Made], Any]]


def use_faults(
    snapshot: Snapshot, filters: Makers = FILTERS, scores: Makers = SCORES, *, perhaps: bool | None = None
) -> Iterator[tuple[str, str, Fault]]:
    """Kind and name of a resource, and a fault in it. `perhaps` says whether a name that is not known may be of a plugin, and is
    no fault; when not given, it may where a folder is declared: what is in it comes and goes without a restart."""
    if perhaps is None:
        perhaps = snapshot.settings.plugins is not None
    for name, route in snapshot.routes.items():
        yield from (("Route", name, fault) for fault in judged(_route(name, route, snapshot, perhaps, filters, scores)))


def _route(name: str, route: Route, snapshot: Snapshot, perhaps: bool, filters: Makers, scores: Makers) -> Iterator[Fault]:
    offered = candidates_of(snapshot.names[name])
    rows: list[tuple[str, Sequence[FilterUse | ScoreUse], Makers]] = [
        ("filters", route.spec.filters, filters),
        ("scores", route.spec.scores, scores),
    ]
    for key, uses, known in rows:
        yield from judged(_of(key, uses, known, perhaps, name, offered, snapshot))


def _of(
    key: str,
    uses: Sequence[FilterUse | ScoreUse],
    known: Makers,
    perhaps: bool,
    route: str,
    offered: Sequence[Candidate],
    snapshot: Snapshot,
) -> Iterator[Fault]:
    seen: set[str] = set()
    for index, use in enumerate(uses):
        if use is UNREAD:
            continue
        yield from judged(_named(key, index, use, known, perhaps, seen))
        yield from judged(_set(key, index, use, known, Made(route, offered, use.settings, snapshot)))


def _named(key: str, index: int, use: FilterUse | ScoreUse, known: Makers, perhaps: bool, seen: set[str]) -> Iterator[Fault]:
    if use.name in seen:
        yield Fault(("spec", key, index, "name"), f"{quoted(use.name)} is there already", "remove one of them")
    seen.add(use.name)
    if use.name not in known and not perhaps:
        hint = did_you_mean(use.name, known) or "known here: " + ", ".join(sorted(known))
        yield Fault(("spec", key, index, "name"), f"there is no {key[:-1]} {quoted(use.name)}", hint)


def _set(key: str, index: int, use: FilterUse | ScoreUse, known: Makers, made: Made) -> Iterator[Fault]:
    path: Path = ("spec", key, index, "settings")
    make = known.get(use.name)
    try:
        if make is not None:
            # What makes a plugin makes something of all settings, and has a judge that says whether it could use them.
            getattr(make, "judge", make)(made)
    except BadSettings as error:
        for fault in error.faults:
            yield structs.replace(fault, path=(*path, *fault.path))
    except ValueError as error:
        yield Fault(path, str(error))


def candidates_of(resolved: Resolved) -> list[Candidate]:
    """The candidates of a route before anything is known of them."""
    drawable = [(model, weight) for model, weight in resolved.backends if weight > 0]
    return [
        Candidate(index, model.metadata.name, model, TargetState(), weight, labels_of(model), None)
        for index, (model, weight) in enumerate(drawable)
    ]
