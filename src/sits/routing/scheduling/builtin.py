"""The filters and scores that come with SITS, by the names that routes call them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sits.resources.vocabulary import Spec
from sits.routing.scheduling import settings
from sits.routing.scheduling.affinity import PrefixAffinity, Random, SessionAffinity
from sits.routing.scheduling.base import Filter, Made, Score
from sits.routing.scheduling.filters import (
    ByColour,
    ByLabel,
    Capable,
    ContextFits,
    HasAdapter,
    HasMemory,
    InZone,
    QuickEnough,
    accurate,
    cheap,
)
from sits.routing.scheduling.fitting import TightestFit
from sits.routing.scheduling.scores_declared import (
    AccuracyPromise,
    Cheapness,
    ColourMatch,
    ComplexityMatch,
    DomainMatch,
    LabelPoints,
    Near,
    QuickPromise,
)
from sits.routing.scheduling.scores_load import (
    FreeMemory,
    Latency,
    LeastOutstanding,
    Load,
    Quality,
    Queue,
    ZoneBalance,
)

MakeFilter = Callable[[Made], Filter]
MakeScore = Callable[[Made], Score]

ALWAYS: tuple[str, ...] = ("capability", "context", "adapter")
"""Filters of every route, before its own."""
FILTERS: Mapping[str, MakeFilter] = {
    "capability": Capable,
    "context": ContextFits,
    "adapter": HasAdapter,
    "label": ByLabel,
    "zone": InZone,
    "latency-promise": QuickEnough,
    "accuracy-promise": accurate,
    "memory": HasMemory,
    "cost": cheap,
    "colour": ByColour,
}
SCORES: Mapping[str, MakeScore] = {
    "load": Load,
    "least-outstanding": LeastOutstanding,
    "latency": Latency,
    "queue": Queue,
    "kv": FreeMemory,
    "memory-fit": TightestFit,
    "quality": Quality,
    "domain": DomainMatch,
    "complexity": ComplexityMatch,
    "latency-promise": QuickPromise,
    "accuracy-promise": AccuracyPromise,
    "cost": Cheapness,
    "zone": Near,
    "zone-balance": ZoneBalance,
    "prefix-affinity": PrefixAffinity,
    "session": SessionAffinity,
    "label": LabelPoints,
    "colour": ColourMatch,
    "random": Random,
}
FILTER_SETTINGS: Mapping[str, type[Spec]] = {
    "capability": settings.Nothing,
    "context": settings.Nothing,
    "adapter": settings.Nothing,
    "label": settings.FilterByLabel,
    "zone": settings.FilterByZone,
    "latency-promise": settings.FilterByLatency,
    "accuracy-promise": settings.FilterByAccuracy,
    "memory": settings.FilterByMemory,
    "cost": settings.FilterByCost,
    "colour": settings.FilterByColour,
}
SCORE_SETTINGS: Mapping[str, type[Spec]] = {
    "load": settings.Nothing,
    "least-outstanding": settings.Nothing,
    "latency": settings.ScoreByLatency,
    "queue": settings.Nothing,
    "kv": settings.ScoreByMemory,
    "memory-fit": settings.ScoreByFit,
    "quality": settings.Nothing,
    "domain": settings.ScoreByDomain,
    "complexity": settings.ScoreByComplexity,
    "latency-promise": settings.ScoreByLatencyPromise,
    "accuracy-promise": settings.ScoreByAccuracyPromise,
    "cost": settings.ScoreByCost,
    "zone": settings.ScoreByZone,
    "zone-balance": settings.Nothing,
    "prefix-affinity": settings.ScoreByPrefix,
    "session": settings.ScoreBySession,
    "label": settings.ScoreByLabel,
    "colour": settings.ScoreByColour,
    "random": settings.Nothing,
}
