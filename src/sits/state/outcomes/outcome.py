"""What came of a request: signals of one kind each, and the one score that they make together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

from sits.resources.complexity import OutcomeWeights

Kind = Literal["feedback", "guard", "retry", "judge"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
LABELS: Final[Mapping[str, float]] = {
    "up": 1.0, "down": -1.0, "pass": 1.0, "flag": -0.5, "redact": -0.5, "block": -1.0, "retried": -1.0,
}  # fmt: skip
"""What words mean: of thumbs, guards and the watch for retries."""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """One signal."""

    request_id: str
    kind: Kind
    score: float
    """-1 is as bad as can be, 1 as good."""
    at: float
    """Seconds, by the clock that decisions are dated by."""


def labelled(request_id: str, kind: Kind, label: str, at: float) -> Outcome:
    """An outcome by its word.

    Raises:
        ValueError: the word means nothing.
    """
    if label not in LABELS:
        raise ValueError(f"{label!r} is not one of {', '.join(LABELS)}")
    return Outcome(request_id, kind, LABELS[label], at)


def together(scores: Mapping[Kind, float], weights: OutcomeWeights) -> float | None:
    """The mean of the scores by their weights; None where nothing counts."""
    total = weight = 0.0
    for kind, score in scores.items():
        share: float = getattr(weights, kind)
        total += share * score
        weight += share
    return total / weight if weight > 0.0 else None
