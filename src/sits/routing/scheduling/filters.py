"""The filters that come with SITS: what a backend cannot do, and what a route does not want.

What can be known when the route is made is worked out then; a request that is none of a filter's business costs one comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sits.resources.problem import quoted
from sits.routing.scheduling.base import Candidate, Facts, Filter, Made
from sits.routing.scheduling.reading import blended, has_labels, label_share, labels_text
from sits.routing.scheduling.seen import LatencySeen
from sits.routing.scheduling.settings import (
    FilterByAccuracy,
    FilterByColour,
    FilterByCost,
    FilterByLabel,
    FilterByLatency,
    FilterByMemory,
    FilterByZone,
    Labels,
    Nothing,
    read,
)
from sits.routing.scheduling.zones import Zones

MOST_HEADER = 1000
"""Bytes of a header that asks for labels that are read."""
MOST_ASKED = 16
"""Labels that a client may ask for."""


class Capable(Filter):
    """What the request cannot do without, the backend can do. Always on."""

    name = "capability"

    def __init__(self, made: Made) -> None:
        read(Nothing, made.settings)
        every = [one.capabilities for one in made.candidates]
        self._common: frozenset[str] = frozenset.intersection(*every) if every else frozenset()

    def asks(self, facts: Facts) -> bool:
        return not facts.needs <= self._common

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        lacking = facts.needs - candidate.capabilities
        return "cannot do " + ", ".join(sorted(lacking)) if lacking else ""


class ContextFits(Filter):
    """The prompt fits into the declared `contextWindow`. Always on; a backend that declares none is kept. Who has room for the
    prompt and not for all of the answer that the client allows is kept, and asked after those who have."""

    name = "context"

    def __init__(self, made: Made) -> None:
        read(Nothing, made.settings)
        self._windows: list[int] = [one.model.spec.window or 0 for one in made.candidates]
        self._least: int = min([one for one in self._windows if one], default=1 << 62)

    def asks(self, facts: Facts) -> bool:
        return facts.tokens > self._least

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        window = self._windows[candidate.index]
        return "" if not window or facts.tokens <= window else f"has room for {window} tokens, not for {facts.tokens}"


class HasAdapter(Filter):
    """The backend has loaded the adapter that the client asks for (`x-sits-adapter`). Always on."""

    name = "adapter"

    def __init__(self, made: Made) -> None:
        read(Nothing, made.settings)
        self._adapters: list[frozenset[str]] = [frozenset(one.model.spec.adapters) for one in made.candidates]
        self._common: frozenset[str] = frozenset.intersection(*self._adapters) if self._adapters else frozenset()

    def asks(self, facts: Facts) -> bool:
        return bool(facts.adapter) and facts.adapter not in self._common

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        return (
            ""
            if not facts.adapter or facts.adapter in self._adapters[candidate.index]
            else f"has no adapter {quoted(facts.adapter)}"
        )


class _Declared(Filter):
    """One whose verdicts depend on what is declared alone."""

    def __init__(self, name: str, reasons: Sequence[str], strict: bool) -> None:
        self.name = name
        self.strict = strict
        self._reasons: list[str] = list(reasons)
        self._any: bool = any(reasons)

    def asks(self, facts: Facts) -> bool:
        return self._any

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        return self._reasons[candidate.index]


def accurate(made: Made) -> Filter:
    """What is promised is as much as is wanted."""
    settings = read(FilterByAccuracy, made.settings)
    reasons = []
    for one in made.candidates:
        promised = one.model.spec.promise.accuracy
        if promised is None:
            reasons.append("promises no accuracy" if settings.undeclared == "drop" else "")
        else:
            short = promised < settings.least
            reasons.append(f"promises an accuracy of {promised:g}, below {settings.least:g}" if short else "")
    return _Declared("accuracy-promise", reasons, settings.strict)


def cheap(made: Made) -> Filter:
    """What it costs is no more than is wanted."""
    settings = read(FilterByCost, made.settings)
    reasons = []
    for one in made.candidates:
        dollars = blended(one.model, settings.output_share)
        much = dollars > settings.most_per_million
        reasons.append(f"costs ${dollars:g} a million tokens, above ${settings.most_per_million:g}" if much else "")
    return _Declared("cost", reasons, settings.strict)


class ByLabel(Filter):
    """Labels that a backend must or must not have, by the route and by the request."""

    name = "label"

    def __init__(self, made: Made) -> None:
        settings = read(FilterByLabel, made.settings)
        self.strict = settings.strict
        self._header: bytes = settings.header.lower().encode()
        self._reasons: list[str] = [self._why(one.labels, settings.required, settings.forbidden) for one in made.candidates]
        self._any: bool = any(self._reasons)

    @staticmethod
    def _why(labels: Mapping[str, str], required: Labels, forbidden: Labels) -> str:
        if not has_labels(labels, required):
            return f"has not the labels {labels_text(required)}"
        for name, value in forbidden.items():
            if has_labels(labels, {name: value}):
                return f"has the label {name}={labels.get(name, '')}"
        return ""

    def asks(self, facts: Facts) -> bool:
        return self._any or (bool(self._header) and self._header in facts.headers)

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        why = self._reasons[candidate.index]
        if why or not self._header:
            return why
        said = facts.headers.get(self._header)
        if not said:
            return ""
        for pair in said[:MOST_HEADER].decode("utf-8", "replace").split(",")[:MOST_ASKED]:
            name, _, value = pair.strip().partition("=")
            if name and candidate.labels.get(name) != value:
                return f"has not the label {quoted(f'{name}={value}')} that is asked for"
        return ""


class InZone(Filter):
    """Only backends of the region or zone of the client, or of this gateway."""

    name = "zone"

    def __init__(self, made: Made) -> None:
        settings = read(FilterByZone, made.settings)
        self.strict = settings.strict
        self._by_zone: bool = settings.by == "zone"
        self._zones: Zones = Zones(made.candidates, settings)

    def asks(self, facts: Facts) -> bool:
        region, zone = self._zones.wanted(facts)
        return bool(zone if self._by_zone else region)

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        region, zone = self._zones.wanted(facts)
        if self._by_zone:
            there = self._zones.zones[candidate.index]
            return "" if there == zone and self._near(region, candidate) else f"is in zone {there or '(none)'}, not in {zone}"
        there = self._zones.regions[candidate.index]
        return "" if there == region else f"is in region {there or '(none)'}, not in {region}"

    def _near(self, region: str, candidate: Candidate) -> bool:
        return not region or self._zones.regions[candidate.index] == region


class QuickEnough(Filter):
    """What is promised of the 95th percentile, and what was measured of it, is below a bound."""

    name = "latency-promise"

    def __init__(self, made: Made) -> None:
        settings = read(FilterByLatency, made.settings)
        self.strict = settings.strict
        self._below: float = settings.p95_below_ms
        self._drops: bool = settings.undeclared == "drop"
        self._promised: list[float] = [one.model.spec.promise.latency_p95_ms or 0.0 for one in made.candidates]
        self._seen: LatencySeen | None = made.latencies if settings.measured else None

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        promised = self._promised[candidate.index]
        if promised > self._below:
            return f"promises {promised:g} ms (p95), above {self._below:g}"
        measured = 1000.0 * self._seen.p95(candidate.name, facts.now) if self._seen is not None else 0.0
        if measured > self._below:
            return f"took {measured:.0f} ms (p95), above {self._below:g}"
        return "promises no latency" if self._drops and not promised and not measured else ""


class HasMemory(Filter):
    """The KV memory has room, as the server says, or a label where it does not."""

    name = "memory"

    def __init__(self, made: Made) -> None:
        settings = read(FilterByMemory, made.settings)
        self.strict = settings.strict
        self._below: float = settings.kv_below
        self._said: list[float] = [label_share(one.labels, settings.label) for one in made.candidates]

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        used = candidate.state.kv
        if used < 0.0:
            used = self._said[candidate.index]
        return f"uses {100 * used:.0f} % of its KV memory" if used > self._below else ""


class ByColour(Filter):
    """A traffic colour goes to the backends that are of it."""

    name = "colour"

    def __init__(self, made: Made) -> None:
        settings = read(FilterByColour, made.settings)
        self.strict = settings.strict
        self._of: dict[str, list[bool]] = {
            colour: [has_labels(one.labels, labels) for one in made.candidates] for colour, labels in settings.colours.items()
        }
        taken = [any(of[index] for of in self._of.values()) for index in range(len(made.candidates))]
        self._taken: list[bool] = taken if settings.reserved else [False] * len(taken)
        self._any: bool = any(self._taken)

    def asks(self, facts: Facts) -> bool:
        return self._any or facts.colour in self._of

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        of = self._of.get(facts.colour)
        if of is not None:
            return "" if of[candidate.index] else f"is not for colour {quoted(facts.colour)}"
        return "is for other colours" if self._taken[candidate.index] else ""
