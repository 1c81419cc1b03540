"""One number from the signals: a weighted sum, each signal with diminishing returns."""

from __future__ import annotations

from typing import Final

from sits.routing.complexity.signals import Signals

FEATURES: Final = (
    "information", "steps", "depth", "conditions", "clauses", "constraints", "code", "maths", "tables", "reasoning", "numbers",
    "questions", "characters",
)  # fmt: skip
HALF: Final = (150.0, 3.0, 2.0, 2.0, 8.0, 4.0, 4.0, 4.0, 3.0, 3.0, 6.0, 3.0, 4000.0)
"""How much of a signal counts half of what it can."""
WEIGHTS: Final = (0.52, 0.09, 0.03, 0.05, 0.21, 0.47, 0.35, 0.52, 0.04, 0.66, 0.14, 0.0, 0.0)
"""What each can bring, found by `fit` on labelled prompts; none is negative, so that no signal lowers the score."""


def features(signals: Signals) -> tuple[float, ...]:
    """Each signal on a scale from 0 to 1, in the order of `FEATURES`."""
    return tuple([value / (value + half) for value, half in zip(_values(signals), HALF, strict=True)])


def complexity(signals: Signals) -> float:
    """How much a request asks of a model, 0 to 1. It never falls when a signal grows."""
    score = 0.0
    for value, half, weight in zip(_values(signals), HALF, WEIGHTS, strict=True):
        if value:
            score += weight * value / (value + half)
    return min(1.0, score)


def _values(seen: Signals) -> tuple[float, ...]:
    return (
        seen.information, seen.steps, seen.depth, seen.conditions, seen.clauses, seen.constraints, seen.code, seen.maths,
        seen.tables, seen.reasoning, seen.numbers, seen.questions, seen.characters,
    )  # fmt: skip
