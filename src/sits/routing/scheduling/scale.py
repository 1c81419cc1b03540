"""Normalising: what a score says, as 0 to 100 for each candidate. The Kubernetes scheduler calls this NormalizeScore."""

from __future__ import annotations

from collections.abc import Sequence

from sits.routing.scheduling.base import BEST, Candidate, Facts, Score


def scaled(score: Score, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
    """What `score` gives each candidate, 0 to 100.

    Raises:
        Whatever the score raises; a fence around it raises nothing.
    """
    given = score.score(facts, candidates)
    scale = score.scale
    if scale == "given":
        for one in given:
            if one < 0.0 or one > BEST:
                return [0.0 if one < 0.0 else BEST if one > BEST else one for one in given]
        return given
    lowest = min(given)
    if scale == "least":
        if lowest <= 0.0:
            lowest = 1e-9
        return [BEST if one <= lowest else BEST * lowest / one for one in given]
    span = max(given) - lowest
    if span <= 0.0:
        return [BEST] * len(given)
    return [BEST * (one - lowest) / span for one in given]
