"""Setting what turns scores into verdicts, from labelled queries: temperature, the least probability of a domain, and how sure
the quick stage must be to answer alone. All by search over a grid: deterministic, and nothing to tune about the tuning.

The scores must be of queries that the heads were not fitted on: `folds` says how they are had without giving examples away.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from sits.routing.intent.head import softmax
from sits.routing.intent.verdict import Scale

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]
    Labels = npt.NDArray[np.intp]

FOLDS = 5
ALONE = 0.008
"""What the two stages may lose against the deep one alone on what they are tuned with: a little less than the bench allows, since
other queries differ."""


class Tuning(msgspec.Struct, frozen=True):
    """Everything that is set from labelled data."""

    quick: Scale = Scale()
    deep: Scale = Scale()
    safe: float = 0.9
    """The confidence from which the quick stage's verdict stands."""
    quick_penalty: float = 1e-4
    deep_penalty: float = 1e-4


class Read(msgspec.Struct, frozen=True):
    """Verdicts on many rows: the class (the last one: none) and how likely it is right."""

    classes: Labels
    confidence: npt.NDArray[np.float64]


def folds(groups: Sequence[str], count: int = FOLDS) -> Labels:
    """A fold for each query. Those of one group (translations of each other) are in one fold, or the score of one would be that
    of its twin."""
    import numpy as np

    return np.array([zlib.crc32(group.encode()) % count for group in groups], dtype=np.intp)


def read_all(scores: Matrix, scale: Scale) -> Read:
    """What `verdict.read` says of each row."""
    import numpy as np

    chances = softmax(scores.astype(np.float64) / scale.temperature)
    none = chances.shape[1] - 1
    best = chances[:, :-1].argmax(axis=1)
    high = chances[np.arange(len(best)), best]
    taken = (high >= scale.least) & (high >= chances[:, none])
    return Read(np.where(taken, best, none), np.where(taken, high, chances[:, none]))


def tune_scale(scores: Matrix, labels: Labels, recall: float = 0.92) -> Scale:
    """The temperature of the least log loss; the least probability of most right verdicts that still finds `recall` of the
    unknown ones (as many as can be where that is out of reach)."""
    import numpy as np

    rows = np.arange(len(labels))

    def loss(temperature: float) -> float:
        chances = softmax(scores.astype(np.float64) / temperature)[rows, labels]
        return float(-np.log(np.maximum(chances, 1e-12)).mean())

    temperature = min((float(one) for one in np.geomspace(0.05, 5.0, 93)), key=loss)
    none = scores.shape[1] - 1
    unknown = labels == none

    def worth(least: float) -> tuple[bool, float, float]:
        classes = read_all(scores, Scale(temperature, least)).classes
        found = float((classes[unknown] == none).mean()) if unknown.any() else 1.0
        right = float((classes == labels).mean())
        return (True, right, found) if found >= recall else (False, found, right)

    return Scale(temperature, max((float(one) for one in np.linspace(0.2, 0.9, 71)), key=worth))


def tune_safe(quick: Read, deep: Read, labels: Labels, loss: float = ALONE) -> float:
    """The lowest confidence of the quick stage from which both stages together are right at most `loss` less often than the deep
    one alone; above 1 where there is none."""
    import numpy as np

    alone = float((deep.classes == labels).mean())
    safe = 1.01
    for at in np.linspace(0.99, 0.3, 139):
        both = np.where(quick.confidence >= at, quick.classes, deep.classes)
        if float((both == labels).mean()) < alone - loss:
            break
        safe = float(at)
    return safe
