"""Scores that look at who is under way, how long answers take, and what servers say of their load."""

from __future__ import annotations

from collections.abc import Sequence

from sits.routing.policies.load import LeastAdded
from sits.routing.policies.state import TargetState
from sits.routing.scheduling.base import BEST, Candidate, Facts, Made, Score
from sits.routing.scheduling.reading import label_share
from sits.routing.scheduling.settings import Nothing, ScoreByLatency, ScoreByMemory, read


class LeastOutstanding(Score):
    """The fewest under way from this service. Alone, and with weights, it chooses as policy `least-connections` does."""

    name = "least-outstanding"
    scale = "least"

    def __init__(self, made: Made) -> None:
        read(Nothing, made.settings)
        self._states: list[TargetState] = [one.state for one in made.candidates]

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        return [state.of_service() + 1.0 for state in self._states]


class Load(Score):
    """Where the request adds least to the time of all. Alone, and with weights, it chooses as policy `least-added` does."""

    name = "load"
    scale = "least"

    def __init__(self, made: Made) -> None:
        read(Nothing, made.settings)
        self._states: list[TargetState] = [one.state for one in made.candidates]
        self._policy: LeastAdded = LeastAdded()

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        policy, now = self._policy, facts.now
        return [policy.cost(state, now) for state in self._states]


class Latency(Score):
    """The quickest answers of late; who has not answered yet counts as the quickest. Within a tick it says the same to everybody:
    put `load` or `least-outstanding` beside it."""

    name = "latency"
    varies = "tick"
    scale = "least"

    def __init__(self, made: Made) -> None:
        self._first: bool = read(ScoreByLatency, made.settings).of == "first"
        self._states: list[TargetState] = [one.state for one in made.candidates]

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        took = [one.first if self._first else one.total for one in self._states]
        least = min([one for one in took if one > 0.0], default=1.0)
        return [one if one > 0.0 else least for one in took]


class Queue(Score):
    """What a server has beyond the requests of this process, against its room: 50 where that alone fills it."""

    name = "queue"
    varies = "tick"

    def __init__(self, made: Made) -> None:
        read(Nothing, made.settings)
        self._states: list[TargetState] = [one.state for one in made.candidates]

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        return [BEST / (1.0 + one.elsewhere / one.room) for one in self._states]


class FreeMemory(Score):
    """The share of the KV memory that is free."""

    name = "kv"
    varies = "tick"

    def __init__(self, made: Made) -> None:
        settings = read(ScoreByMemory, made.settings)
        self._states: list[TargetState] = [one.state for one in made.candidates]
        self._said: list[float] = [label_share(one.labels, settings.label) for one in made.candidates]
        self._unknown: float = settings.unknown

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        given = []
        for state, said in zip(self._states, self._said, strict=True):
            used = state.kv if state.kv >= 0.0 else said
            given.append(BEST * (1.0 - used) if used >= 0.0 else self._unknown)
        return given


class Quality(Score):
    """The share of requests that were answered of late, rather than failed."""

    name = "quality"
    varies = "tick"

    def __init__(self, made: Made) -> None:
        read(Nothing, made.settings)
        self._states: list[TargetState] = [one.state for one in made.candidates]

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        return [BEST * (1.0 - one.errors) for one in self._states]


class ZoneBalance(Score):
    """The zone with the fewest under way for the weights in it."""

    name = "zone-balance"
    scale = "least"

    def __init__(self, made: Made) -> None:
        read(Nothing, made.settings)
        zones: dict[tuple[str, str], int] = {}
        self._zone: list[int] = []
        self._weights: list[float] = []
        self._states: list[TargetState] = [one.state for one in made.candidates]
        for one in made.candidates:
            zone = zones.setdefault((one.labels.get("region", ""), one.labels.get("zone", "")), len(zones))
            self._zone.append(zone)
            if zone == len(self._weights):
                self._weights.append(0.0)
            self._weights[zone] += one.weight

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        under_way = [1.0] * len(self._weights)
        zones = self._zone
        for index, state in enumerate(self._states):
            under_way[zones[index]] += state.of_service()
        costs = [count / weight for count, weight in zip(under_way, self._weights, strict=True)]
        return [costs[zone] for zone in zones]
