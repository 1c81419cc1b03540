"""How much a request asks of a model, and which tier of models it goes to. Pure: no model is loaded, nothing waits."""

from __future__ import annotations

from sits.routing.complexity.score import complexity
from sits.routing.complexity.signals import Signals, measure, whole, words
from sits.routing.complexity.tiers import TIERS, Formula, Tier, reference, relief, tier, tier_of

__all__ = [
    "TIERS",
    "Formula",
    "Signals",
    "Tier",
    "complexity",
    "measure",
    "reference",
    "relief",
    "tier",
    "tier_of",
    "whole",
    "words",
]
