"""Choosing among candidates by filters and scores: the way of every request whose route has any.

Compiled for a snapshot. What does not vary by request is added up once and kept by facet for a tick; a request adds what does,
and takes the highest. A plugin that fails says nothing, and the request goes on without it: `Fence` sees to that.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from sits.routing.scheduling.base import BEST, TICK, Candidate, Facts, Filter, Score
from sits.routing.scheduling.scale import scaled

MOST_FACETS = 256
"""Sums that are kept: so many combinations of facets, then all are made anew."""


class Weighed:
    """A score with its weight."""

    __slots__ = ("score", "weight")

    def __init__(self, score: Score, weight: float) -> None:
        self.score: Score = score
        self.weight: float = weight


class Decision:
    """What was chosen and all that it came from; indices are those of the candidates of the route."""

    __slots__ = ("explored", "filtered", "kept", "order", "parts", "totals")

    def __init__(
        self,
        order: list[int],
        kept: Sequence[int],
        filtered: list[tuple[int, str]],
        totals: list[float],
        parts: list[tuple[str, float, Sequence[float]]],
        explored: bool,
    ) -> None:
        self.order: list[int] = order
        """Whom to ask, best first; empty where nobody is left."""
        self.kept: Sequence[int] = kept
        self.filtered: list[tuple[int, str]] = filtered
        self.totals: list[float] = totals
        """The sums, of all candidates."""
        self.parts: list[tuple[str, float, Sequence[float]]] = parts
        """Of each score: its name, its weight, and what it gave each candidate, 0 to 100."""
        self.explored: bool = explored
        """The first one was drawn alike from all."""


class _Kept:
    """A sum that is kept, with its parts."""

    __slots__ = ("parts", "sums", "until")

    def __init__(self, sums: list[float], parts: list[tuple[str, float, Sequence[float]]], until: float) -> None:
        self.sums: list[float] = sums
        self.parts: list[tuple[str, float, Sequence[float]]] = parts
        self.until: float = until


class Scheduler:
    """The filters and scores of one route. Not shared between routes; `now` is that of the facts."""

    __slots__ = (
        "_all",
        "_candidates",
        "_every",
        "_explore",
        "_facets",
        "_filters",
        "_kept",
        "_live",
        "_slow",
        "_total",
        "_weights",
    )

    def __init__(
        self, candidates: Sequence[Candidate], filters: Sequence[Filter], scores: Sequence[Weighed], explore: float = 0.0
    ) -> None:
        self._candidates: list[Candidate] = list(candidates)
        self._weights: list[float] = [one.weight for one in candidates]
        self._filters: list[Filter] = list(filters)
        self._slow: list[Weighed] = [one for one in scores if one.score.varies != "request"]
        self._live: list[Weighed] = [one for one in scores if one.score.varies == "request"]
        self._facets: list[Score] = [one.score for one in self._slow]
        self._total: float = sum(one.weight for one in scores) or 1.0
        self._explore: float = explore
        self._kept: dict[Hashable, _Kept] = {}
        self._all: list[int] = list(range(len(candidates)))

    @property
    def scores(self) -> list[Score]:
        """All scores, those that do not vary by request first."""
        return [one.score for one in (*self._slow, *self._live)]

    def decide(self, facts: Facts, out: frozenset[str]) -> Decision:
        """Filter, score and order. Those whose names are in `out` are left out too, unless nobody else is left."""
        candidates = self._candidates
        kept: list[int] = self._all
        filtered: list[tuple[int, str]] = []
        for one in self._filters:
            if one.asks(facts):
                still: list[int] = []
                for index in kept:
                    why = one.keep(facts, candidates[index])
                    if why:
                        filtered.append((index, why))
                    else:
                        still.append(index)
                kept = still
        if out and kept:
            well = [index for index in kept if candidates[index].name not in out]
            if well and len(well) < len(kept):
                filtered.extend((index, "") for index in kept if candidates[index].name in out)
                kept = well
        sums, parts = self._sum(facts)
        return self._order(facts, kept, filtered, sums, parts)

    def _sum(self, facts: Facts) -> tuple[list[float], list[tuple[str, float, Sequence[float]]]]:
        known = self._slowly(facts)
        live = self._live
        if not live:
            return known.sums, known.parts
        sums = known.sums.copy()
        parts = known.parts.copy()
        candidates = self._candidates
        share = 1.0 / self._total
        for one in live:
            given = scaled(one.score, facts, candidates)
            weight = one.weight
            each = weight * share
            for index in range(len(sums)):
                sums[index] += each * given[index]
            parts.append((one.score.name, weight, given))
        return sums, parts

    def _slowly(self, facts: Facts) -> _Kept:
        facets = self._facets
        key: Hashable = None
        if len(facets) == 1:
            key = facets[0].facet(facts)
        elif facets:
            key = tuple([one.facet(facts) for one in facets])
        found = self._kept.get(key)
        if found is not None and facts.now < found.until:
            return found
        if len(self._kept) >= MOST_FACETS:
            self._kept.clear()
        sums = [0.0] * len(self._candidates)
        parts: list[tuple[str, float, Sequence[float]]] = []
        until = 1e300
        for one in self._slow:
            given = scaled(one.score, facts, self._candidates)
            for index in range(len(sums)):
                sums[index] += one.weight / self._total * given[index]
            parts.append((one.score.name, one.weight, given))
            if one.score.varies == "tick":
                until = facts.now + TICK
        made = self._kept[key] = _Kept(sums, parts, until)
        return made

    def _order(
        self,
        facts: Facts,
        kept: list[int],
        filtered: list[tuple[int, str]],
        sums: list[float],
        parts: list[tuple[str, float, Sequence[float]]],
    ) -> Decision:
        size = len(kept)
        if not size:
            return Decision([], kept, filtered, sums, parts, False)
        draw, explore = facts.draw, self._explore
        explored = draw < explore
        if explored:
            draw /= explore  # again a number in [0, 1)
        elif explore > 0.0:
            draw = (draw - explore) / (1.0 - explore)
        start = int(draw * size)
        if start >= size:
            start = size - 1
        weights = self._weights
        # Rotated, so that chance decides between those that are alike; sorting is stable.
        turned = kept[start:] + kept[:start]
        if explored:
            first = turned[0]
            rest = sorted(turned[1:], key=lambda index: -sums[index] * weights[index])
            return Decision([first, *rest], kept, filtered, sums, parts, True)
        turned.sort(key=lambda index: -sums[index] * weights[index])
        return Decision(turned, kept, filtered, sums, parts, False)


def propensities(count: int, best: int, explore: float) -> list[float]:
    """The chance that each of `count` candidates had of being asked first, where `best` is the highest."""
    each = explore / count
    return [each + (1.0 - explore if index == best else 0.0) for index in range(count)]


__all__ = ["BEST", "Decision", "Scheduler", "Weighed", "propensities"]
