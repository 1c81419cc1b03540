"""Setting what turns scores into verdicts, from labelled queries: temperature, the least probability of a domain, and how sure
the quick stage must be to answer alone. All by search over a grid: deterministic, and nothing to tune about the tuning.

The scores must be of queries that the heads were not fitted on: `folds` says how they are had without giving examples away.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from sits.routing.intent.optimum import softmax
from sits.routing.intent.verdict import Scale

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]
    Labels = npt.NDArray[np.intp]

FOLDS = 5
ALONE = 0.003
"""What the two stages may lose against the deep one alone on what they are tuned with: less than the bench allows, since other
queries differ."""

DRAWN = (3.0, 0.15)
"""How much a temperature twice or half as high (e times), and a shift of one, cost against what one example costs. Chosen on the
labelled set with 4 to 30 examples a domain: a third of both gave worse confidences at 4 and the same from 8 on."""

TEMPERATURES, LEASTS = (0.05, 5.0), (0.2, 0.9)
"""The least and the most that are tried. What is best there might be better beyond: the queries do not say."""
NEVER = 1.01
"""`safe` where no verdict of the quick stage stands."""


class Tuning(msgspec.Struct, frozen=True):
    """Everything that is set from labelled data."""

    quick: Scale = Scale()
    deep: Scale = Scale()
    safe: float = 0.9
    """The confidence from which the quick stage's verdict for a domain stands."""
    safe_none: float = 0.9
    """The same where it says that it is none: that is wrong more often, since there is no telling what is still to come."""
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

    none = scores.shape[1] - 1
    lifted = scores.astype(np.float64)
    lifted[:, none] += scale.shift
    chances = softmax(lifted / scale.temperature)
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

    temperature = min((float(one) for one in np.geomspace(*TEMPERATURES, 93)), key=loss)
    none = scores.shape[1] - 1
    unknown = labels == none

    def worth(least: float) -> tuple[bool, float, float]:
        classes = read_all(scores, Scale(temperature, least)).classes
        found = float((classes[unknown] == none).mean()) if unknown.any() else 1.0
        right = float((classes == labels).mean())
        return (True, right, found) if found >= recall else (False, found, right)

    return Scale(temperature, max((float(one) for one in np.linspace(*LEASTS, 71)), key=worth))


def recalibrate(scores: Matrix, labels: Labels, weights: Matrix, start: Scale) -> Scale:
    """The temperature and the shift of the least log loss, not far from `start` where little speaks for it: each is drawn to
    where it was as by a few examples (`DRAWN`)."""
    import numpy as np

    none = scores.shape[1] - 1
    rows, shares = np.arange(len(labels)), weights / weights.sum(dtype=np.float64)
    pull = 1.0 / max(1, int((labels != none).sum()))

    def loss(shift: float, times: float) -> float:
        lifted = scores.astype(np.float64)
        lifted[:, none] += shift
        chances = softmax(lifted / (times * start.temperature))[rows, labels]
        drawn = DRAWN[0] * float(np.log(times)) ** 2 + DRAWN[1] * (shift - start.shift) ** 2
        return float(-(shares * np.log(np.maximum(chances, 1e-12))).sum()) + pull * drawn

    # One after the other twice: where the one is best hardly moves with the other.
    times, shift = 1.0, start.shift
    for _ in range(2):
        shift = min((float(one) for one in np.linspace(-6.0, 3.0, 37)), key=lambda one: loss(one, times))
        times = min((float(one) for one in np.geomspace(0.3, 4.0, 27)), key=lambda one: loss(shift, one))
    return msgspec.structs.replace(start, temperature=times * start.temperature, shift=shift)


def tune_safe(quick: Read, deep: Read, labels: Labels, none: int, loss: float = ALONE) -> tuple[float, float]:
    """The confidences of the quick stage, for a domain and for `none`, from which most of its verdicts stand while both stages
    together are right at most `loss` less often than the deep one alone; above 1 where there is none."""
    import numpy as np

    lost = (deep.classes == labels).astype(int) - (quick.classes == labels)
    grid = np.append(np.linspace(0.3, 1.0, 141), NEVER)

    def parts(of: npt.NDArray[np.bool_]) -> tuple[Labels, Labels]:
        """How many stand from each confidence on, and what is lost by them."""
        order = np.argsort(quick.confidence[of])
        sums = np.append(0, np.cumsum(lost[of][order]))
        below = np.searchsorted(quick.confidence[of][order], grid)
        return len(order) - below, sums[-1] - sums[below]

    stand, cost = parts(quick.classes != none)
    stand_none, cost_none = parts(quick.classes == none)
    standing = stand[:, None] + stand_none[None, :]
    # Of those that do the same the highest confidences.
    standing[cost[:, None] + cost_none[None, :] > loss * len(labels)] = -1
    best = np.argwhere(standing == standing.max())[-1]
    return float(grid[best[0]]), float(grid[best[1]])
