"""How the weights of the score were found: they put labelled prompts into their tiers with some room to spare.

A squared hinge on each bound, weights that are not negative (so that no signal can lower the score), gradient steps of a
fixed count: the same prompts give the same weights. `sits bench complexity` fits again on the tune split and says whether the
shipped ones agree.
"""

from __future__ import annotations

from collections.abc import Sequence

ROOM = 0.1
"""How far inside its tier a prompt is wanted."""
PENALTY = 0.002
STEPS = 4000
RATE = 0.16
DIGITS = 2


def fit(rows: Sequence[Sequence[float]], tiers: Sequence[int], bounds: tuple[float, float]) -> tuple[float, ...]:
    """Weights for rows of features; `tiers` are 0 to 2."""
    if not rows or len(rows) != len(tiers):
        raise ValueError("weights are fitted on labelled rows, one label each")
    size = len(rows[0])
    weights = [0.1] * size
    for _ in range(STEPS):
        slope = [PENALTY * weight for weight in weights]
        for row, label in zip(rows, tiers, strict=True):
            score = sum(map(float.__mul__, row, weights))
            off = 0.0
            if label > 0:
                off += min(0.0, score - bounds[label - 1] - ROOM)
            if label < 2:
                off += max(0.0, score - bounds[label] + ROOM)
            if off:
                off /= len(rows)
                for at, value in enumerate(row):
                    slope[at] += off * value
        weights = [max(0.0, weight - RATE * down) for weight, down in zip(weights, slope, strict=True)]
    return tuple(round(weight, DIGITS) for weight in weights)
