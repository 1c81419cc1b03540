"""How good verdicts are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from sits.routing.intent.tune import Labels

BINS = 10


class Marks(msgspec.Struct, frozen=True):
    """Shares from 0 to 1; None where there was nothing to judge."""

    count: int
    accuracy: float | None
    """Right verdicts, `unknown` ones included."""
    macro_f1: float | None
    """The mean of the F1 of all classes that occur, unknown being one."""
    unknown_recall: float | None
    """Unknown queries that were left unknown."""
    calibration_error: float | None
    """Expected calibration error, ten bins (Naeini et al. 2015)."""


def judge(classes: Labels, confidence: npt.NDArray[np.float64], labels: Labels, none: int) -> Marks:
    """Marks for verdicts on labelled queries; `none` is the class of what is of no domain."""
    import numpy as np

    count = len(labels)
    if not count:
        return Marks(0, None, None, None, None)
    right = classes == labels
    unknown = labels == none
    scores = []
    for one in np.union1d(classes, labels):
        both = float(((classes == one) & (labels == one)).sum())
        scores.append(2 * both / float((classes == one).sum() + (labels == one).sum()))
    found = float(right[unknown].mean()) if unknown.any() else None
    return Marks(count, float(right.mean()), sum(scores) / len(scores), found, calibration_error(confidence, right))


def calibration_error(confidence: npt.NDArray[np.float64], right: npt.NDArray[np.bool_]) -> float:
    """By how much confidence and the share of right verdicts differ, on average over the queries."""
    import numpy as np

    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    total = 0.0
    for one in range(BINS):
        inside = bins == one
        if inside.any():
            total += abs(float(confidence[inside].mean()) - float(right[inside].mean())) * float(inside.mean())
    return total
