"""Normalising: what a score says, as 0 to 100 for each candidate. The Kubernetes scheduler calls this NormalizeScore."""

from __future__ import annotations

from collections.abc import Sequence

from sits.routing.scheduling.base import BEST, Candidate, Facts, Score

LEAST = 1e-9
"""What stands for a cost of nothing."""


def scaled(score: Score, facts: Facts, candidates: Sequence[Candidate]) -> list[float]:
    """What `score` gives each candidate, 0 to 100.

    Raises:
        Whatever the score raises; a fence around it raises nothing.
    """
    return normalised(score.score(facts, candidates), scale_of(score))


def scale_of(score: object) -> str:
    """Its scale. Read by name: compiled code would see that of the class it knows, not that of a plugin's subclass."""
    name = "scale"
    return str(getattr(score, name))


def normalised(said: Sequence[float], scale: str, those: Sequence[int] | None = None) -> list[float]:
    """What was said, as 0 to 100. With `those` the best of them has 100, and the others nothing, unless points were given as they
    are."""
    given: list[float] = said if isinstance(said, list) else list(said)
    if scale == "given":
        for one in given:
            if one < 0.0 or one > BEST:
                return [0.0 if each < 0.0 else BEST if each > BEST else each for each in given]
        return given
    if those is not None:
        some = normalised([given[index] for index in those], scale)
        every = [0.0] * len(given)
        for index, one in zip(those, some, strict=True):
            every[index] = one
        return every
    lowest = min(given)
    if scale == "least":
        if lowest <= 0.0:
            lowest = LEAST
        top = BEST * lowest
        return [BEST if one <= lowest else top / one for one in given]
    span = max(given) - lowest
    if span <= 0.0:
        return [BEST] * len(given)
    by = BEST / span
    return [(one - lowest) * by for one in given]
