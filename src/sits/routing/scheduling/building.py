"""From what a route declares to the scheduler that chooses for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sits.resources.kinds import RouteSpec
from sits.resources.problem import did_you_mean, quoted
from sits.routing.scheduling.away import Away
from sits.routing.scheduling.base import Candidate, Filter, Made, Score
from sits.routing.scheduling.builtin import ALWAYS, FILTERS, SCORES, MakeFilter, MakeScore
from sits.routing.scheduling.scheduler import Scheduler, Weighed
from sits.routing.scheduling.seen import CostSeen, LatencySeen

T = TypeVar("T")
_NONE: Mapping[str, Any] = {}


def build(
    route: str,
    spec: RouteSpec,
    candidates: Sequence[Candidate],
    snapshot: Any,
    *,
    filters: Mapping[str, MakeFilter] = FILTERS,
    scores: Mapping[str, MakeScore] = SCORES,
    costs: CostSeen | None = None,
    latencies: LatencySeen | None = None,
    before: Scheduler | None = None,
    also: Sequence[Filter] = (),
    away: Sequence[Away] = (),
) -> Scheduler:
    """The scheduler of a route, or of one of its rules, for these candidates.

    `filters` and `scores` are all that there are, those of plugins with the built-in ones. What the scores of the scheduler
    `before` have learned goes on. Filters in `also` are made already; what is `away` is declared and not
    there, and not in `spec`. The candidates' capabilities must be there already.

    Raises:
        ValueError: one is not known, or cannot use its settings; the message says which.
    """
    learned: Sequence[Score] = before.scores if before is not None else ()

    def made(settings: Mapping[str, Any]) -> Made:
        return Made(route, candidates, settings, snapshot, costs, latencies, learned)

    sieves: list[Filter] = [FILTERS[name](made(_NONE)) for name in ALWAYS]
    sieves += also
    for use in spec.filters:
        if use.name not in ALWAYS:
            sieves.append(_one("filter", use.name, filters, made(use.settings)))
        else:
            _one("filter", use.name, FILTERS, made(use.settings))  # its settings are read, for there are none
    weighed = [Weighed(_one("score", use.name, scores, made(use.settings)), use.weight) for use in spec.scores]
    return Scheduler(candidates, sieves, weighed, spec.explore, away)


def _one(what: str, name: str, known: Mapping[str, Callable[[Made], T]], made: Made) -> T:
    make = known.get(name)
    if make is None:
        hint = did_you_mean(name, known) or f"there are: {', '.join(sorted(known))}"
        raise ValueError(f"there is no {what} {quoted(name)}; {hint}")
    try:
        return make(made)
    except ValueError as error:
        raise ValueError(f"{what} {name}: {error}") from error
