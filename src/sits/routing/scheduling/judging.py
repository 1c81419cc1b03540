"""Whether the filters and scores that routes name are there and can use their settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sits.resources.backends import labels_of
from sits.resources.choosing import FilterUse, ScoreUse
from sits.resources.problem import Fault, did_you_mean, quoted
from sits.resources.snapshot import Resolved, Snapshot
from sits.routing.policies.state import TargetState
from sits.routing.scheduling.base import Candidate, Made
from sits.routing.scheduling.builtin import FILTERS, SCORES

Makers = Mapping[str, Callable[[Made], Any]]


def use_faults(snapshot: Snapshot, filters: Makers = FILTERS, scores: Makers = SCORES) -> Iterator[tuple[str, str, Fault]]:
    """Kind and name of a resource, and a fault in it. A name that is not known may be of a plugin where a folder is declared:
    it comes and goes without a restart."""
    perhaps = snapshot.settings.plugins is not None
    for name, route in snapshot.routes.items():
        offered = candidates_of(snapshot.names[name])
        rows: list[tuple[str, Sequence[FilterUse | ScoreUse], Makers]] = [
            ("filters", route.spec.filters, filters),
            ("scores", route.spec.scores, scores),
        ]
        for key, uses, known in rows:
            for fault in _of(key, uses, known, perhaps, name, offered, snapshot):
                yield "Route", name, fault


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
        make = known.get(use.name)
        if use.name in seen:
            yield Fault(("spec", key, index, "name"), f"{quoted(use.name)} is there already", "remove one of them")
        seen.add(use.name)
        if make is None:
            if not perhaps:
                hint = did_you_mean(use.name, known) or "known here: " + ", ".join(sorted(known))
                yield Fault(("spec", key, index, "name"), f"there is no {key[:-1]} {quoted(use.name)}", hint)
            continue
        try:
            make(Made(route, offered, use.settings, snapshot))
        except ValueError as error:
            yield Fault(("spec", key, index, "settings"), str(error))


def candidates_of(resolved: Resolved) -> list[Candidate]:
    """The candidates of a route before anything is known of them."""
    drawable = [(model, weight) for model, weight in resolved.backends if weight > 0]
    return [
        Candidate(index, model.metadata.name, model, TargetState(), weight, labels_of(model), None)
        for index, (model, weight) in enumerate(drawable)
    ]
