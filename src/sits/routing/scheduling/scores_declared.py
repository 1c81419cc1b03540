"""Scores by what is declared of the backends, and by what requests did cost."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from sits.routing.scheduling.base import BEST, Candidate, Facts, Made, Score
from sits.routing.scheduling.reading import blended, has_labels
from sits.routing.scheduling.seen import CostSeen, LatencySeen
from sits.routing.scheduling.settings import (
    ScoreByAccuracyPromise,
    ScoreByColour,
    ScoreByComplexity,
    ScoreByCost,
    ScoreByDomain,
    ScoreByLabel,
    ScoreByLatencyPromise,
    ScoreByZone,
    read,
)
from sits.routing.scheduling.zones import Zones

_TIERS = ("tiny", "base", "heavy")


class _Table(Score):
    """One that is a table: points by what of the request counts."""

    varies = "never"

    def __init__(self, rows: Mapping[str, list[float]], size: int) -> None:
        self._rows: dict[str, list[float]] = {key: row for key, row in rows.items() if any(row)}
        self._none: list[float] = [0.0] * size

    def key(self, facts: Facts) -> str:
        """What of the request counts."""
        raise NotImplementedError

    def facet(self, facts: Facts) -> Hashable:
        key = self.key(facts)
        return key if key in self._rows else ""

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        return self._rows.get(self.key(facts), self._none)


class DomainMatch(_Table):
    """Who is good at what the request wants: preferred by the Domain, or by what the Model says of itself."""

    name = "domain"

    def __init__(self, made: Made) -> None:
        settings = read(ScoreByDomain, made.settings)
        declared: Mapping[str, Any] = made.snapshot.domains if made.snapshot is not None else {}
        names = {name for one in made.candidates for name in one.model.spec.domains} | set(declared)
        rows: dict[str, list[float]] = {}
        for name in sorted(names):
            row = [settings.declared if name in one.model.spec.domains else 0.0 for one in made.candidates]
            if name in declared:
                prefers = declared[name].spec.prefers
                for one in made.candidates:
                    labelled = bool(prefers.labels) and has_labels(one.labels, prefers.labels)
                    if one.name in prefers.models or labelled:
                        row[one.index] = settings.preferred
            rows[name] = row
        super().__init__(rows, len(made.candidates))

    def key(self, facts: Facts) -> str:
        return facts.domain


class ComplexityMatch(_Table):
    """Who is as large as the request is hard: a larger one does too, a smaller one does not."""

    name = "complexity"

    def __init__(self, made: Made) -> None:
        settings = read(ScoreByComplexity, made.settings)
        tiers = [settings.models.get(one.name, one.labels.get(settings.label, "")) for one in made.candidates]
        by_distance = {0: BEST, 1: settings.larger, 2: settings.larger / 2.0}
        rows: dict[str, list[float]] = {}
        for at, tier in enumerate(_TIERS):
            rows[tier] = [by_distance.get(_TIERS.index(own) - at, 0.0) if own in _TIERS else settings.unknown for own in tiers]
        super().__init__(rows, len(made.candidates))

    def key(self, facts: Facts) -> str:
        return facts.tier


class ColourMatch(_Table):
    """Who is for the traffic colour of the request."""

    name = "colour"

    def __init__(self, made: Made) -> None:
        settings = read(ScoreByColour, made.settings)
        rows = {
            colour: [BEST if has_labels(one.labels, labels) else 0.0 for one in made.candidates]
            for colour, labels in settings.colours.items()
        }
        super().__init__(rows, len(made.candidates))

    def key(self, facts: Facts) -> str:
        return facts.colour


class LabelPoints(Score):
    """Who has certain labels: of an accelerator, a NUMA node, a PCIe switch, an engine, a version."""

    name = "label"
    varies = "never"

    def __init__(self, made: Made) -> None:
        settings = read(ScoreByLabel, made.settings)
        pairs = [(*_pair(text), points) for text, points in settings.points.items()]
        self._given: list[float] = [
            min(BEST, sum([points for name, value, points in pairs if one.labels.get(name) == value], 0.0))
            for one in made.candidates
        ]

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        return self._given


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"a label is written name=value, not {text!r}")
    return name, value


class Near(Score):
    """Who is in the zone or region of the client, or of this gateway where the client says none that there is."""

    name = "zone"
    varies = "never"

    def __init__(self, made: Made) -> None:
        settings = read(ScoreByZone, made.settings)
        self._zones: Zones = Zones(made.candidates, settings)
        self._same_region: float = settings.same_region

    def facet(self, facts: Facts) -> Hashable:
        return self._zones.wanted(facts)

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        region, zone = self._zones.wanted(facts)
        given = []
        for there, part in zip(self._zones.regions, self._zones.zones, strict=True):
            near = not region or there == region
            if zone and part == zone and near:
                given.append(BEST)
            elif region and near:
                given.append(self._same_region if zone else BEST)
            else:
                given.append(0.0)
        return given


class QuickPromise(Score):
    """Who promises to be quick, and is."""

    name = "latency-promise"
    varies = "tick"

    def __init__(self, made: Made) -> None:
        settings = read(ScoreByLatencyPromise, made.settings)
        self._below: float = settings.p95_below_ms
        self._undeclared: float = settings.undeclared
        self._promised: list[float] = [one.model.spec.promise.latency_p95_ms or 0.0 for one in made.candidates]
        self._names: list[str] = [one.name for one in made.candidates]
        self._seen: LatencySeen | None = made.latencies if settings.measured else None

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        given = []
        for name, promised in zip(self._names, self._promised, strict=True):
            measured = 1000.0 * self._seen.p95(name, facts.now) if self._seen is not None else 0.0
            worst = max(promised, measured)
            given.append(min(BEST, BEST * self._below / worst) if worst > 0.0 else self._undeclared)
        return given


class AccuracyPromise(Score):
    """Who promises to be right."""

    name = "accuracy-promise"
    varies = "never"

    def __init__(self, made: Made) -> None:
        settings = read(ScoreByAccuracyPromise, made.settings)
        least = settings.least
        self._given: list[float] = []
        for one in made.candidates:
            promised = one.model.spec.promise.accuracy
            if promised is None:
                self._given.append(settings.undeclared)
            elif promised < least:
                self._given.append(50.0 * promised / least)
            else:
                self._given.append(50.0 + 50.0 * (promised - least) / (1.0 - least) if least < 1.0 else BEST)

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        return self._given


class Cheapness(Score):
    """How much less than the dearest it costs: 0 for that one, 100 for one that is free.

    By what requests did cost, once that is known of a backend; by declared prices of a usual mix of tokens until then.
    """

    name = "cost"
    varies = "tick"

    def __init__(self, made: Made) -> None:
        settings = read(ScoreByCost, made.settings)
        self._declared: list[float] = [blended(one.model, settings.output_share) for one in made.candidates]
        self._names: list[str] = [one.name for one in made.candidates]
        self._seen: CostSeen | None = made.costs if settings.measured else None

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        costs = self._dollars()
        highest = max(costs)
        if highest <= 0.0:
            return [BEST] * len(costs)
        return [BEST * (1.0 - one / highest) for one in costs]

    def _dollars(self) -> list[float]:
        """A request each, or a million tokens each where no request was billed yet."""
        seen = self._seen
        if seen is None:
            return self._declared
        means = [seen.mean(name) for name in self._names]
        # Between prices and bills lies the usual length of a request: as much as it is with those of whom both are known.
        billed = sum([mean for mean, price in zip(means, self._declared, strict=True) if mean >= 0.0 and price > 0.0])
        priced = sum([price for mean, price in zip(means, self._declared, strict=True) if mean >= 0.0 and price > 0.0])
        if billed <= 0.0:
            return self._declared
        each = billed / priced
        return [mean if mean >= 0.0 else price * each for mean, price in zip(means, self._declared, strict=True)]
