"""Which tier a request goes to, from what it asks for and how busy the pool is.

Two formulas. `reference` is the literal one, alpha * load + beta * complexity: load raises the score, so a busy pool sends
requests to heavier tiers, and with 0.4 / 0.6 an idle one sends none to the heavy tier at all (its score ends at 0.6).
`relief` turns load round: score = complexity - alpha / (alpha + beta) * load * (1 - complexity). An idle pool goes by
complexity alone; under load the requests between two tiers go to the smaller one, and the hardest keep theirs.
"""

from __future__ import annotations

from typing import Final, Literal

Tier = Literal["tiny", "base", "heavy"]
Formula = Literal["reference", "relief"]
TIERS: Final[tuple[Tier, ...]] = ("tiny", "base", "heavy")
ALPHA: Final = 0.4
BETA: Final = 0.6
BOUNDS: Final = (0.3, 0.7)


def reference(load: float, complexity: float, alpha: float = ALPHA, beta: float = BETA) -> float:
    """The literal score."""
    return alpha * load + beta * complexity


def relief(load: float, complexity: float, alpha: float = ALPHA, beta: float = BETA) -> float:
    """The score that falls under load, the less the harder a request is. Never negative, never above its complexity."""
    both = alpha + beta
    share = alpha / both if both > 0.0 else 0.0
    return max(0.0, complexity - share * load * (1.0 - complexity))


def tier_of(score: float, bounds: tuple[float, float] = BOUNDS) -> Tier:
    """Below the first bound tiny, below the second base, else heavy."""
    return "tiny" if score < bounds[0] else "base" if score < bounds[1] else "heavy"


def tier(
    load: float,
    complexity: float,
    alpha: float = ALPHA,
    beta: float = BETA,
    bounds: tuple[float, float] = BOUNDS,
    formula: Formula = "reference",
) -> Tier:
    """The tier of a request; `load` is the share of the pool's room in use, 0 to 1, as `complexity` is."""
    score = reference(load, complexity, alpha, beta) if formula == "reference" else relief(load, complexity, alpha, beta)
    return tier_of(score, bounds)
