"""Filters and scores that say what they said when traffic was recorded: some look at what no trace holds (what was asked before,
what answers did cost), and what production saw counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sits.routing.scheduling.base import Candidate, Facts, Filter, Score
from sits.routing.scheduling.scale import scaled


class RecalledFilter(Filter):
    """`told` are the words for those that it left out, and empty ones for those it did not; of others it is asked anew."""

    def __init__(self, one: Filter) -> None:
        self.one = one
        self.name = one.name
        self.strict = one.strict
        self.told: Mapping[str, str] = {}

    def asks(self, facts: Facts) -> bool:
        return bool(self.told) or self.one.asks(facts)

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        said = self.told.get(candidate.name)
        if said is not None:
            return said
        return self.one.keep(facts, candidate) if self.one.asks(facts) else ""


class RecalledScore(Score):
    """`told` is what it gave each candidate; of nobody it is asked anew, of all of them."""

    varies = "request"
    scale = "given"

    def __init__(self, one: Score) -> None:
        self.one = one
        self.name = one.name
        self.told: Mapping[str, float] = {}

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        if self.told:
            return [self.told[candidate.name] for candidate in candidates]
        return scaled(self.one, facts, candidates)
