"""Targets that say how sure a label is: in part what the deep stage says of an example that it was not fitted on.

A head that learns from them learns which domains are near each other, and believes a doubtful label less (Hinton et al. 2015,
Distilling the Knowledge in a Neural Network; Furlanello et al. 2018, Born-Again Neural Networks). It is the same for each stage:
the quick one learns from the deep one, and the deep one from itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sits.routing.intent.head import across, ones, softmax
from sits.routing.intent.votes import tally

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]
    Labels = npt.NDArray[np.intp]

SOFT = 0.4
"""The part of a target that is not the label."""


def out_of_fold(products: Matrix, targets: Matrix, penalty: float, fold: Labels) -> Matrix:
    """Scores of each example by a head that was fitted without its fold.

    Raises:
        ValueError: there is one fold only.
    """
    import numpy as np

    scores = np.zeros_like(targets)
    for one in np.unique(fold):
        out = fold == one
        if out.all():
            raise ValueError("all examples are of one fold")
        scores[out] = across(products, out, targets, penalty)
    return scores


def votes_of_others(embeddings: Matrix, labels: Labels, classes: int, fold: Labels) -> Matrix:
    """What the examples of other folds vote on each."""
    import numpy as np

    votes = np.zeros((len(labels), classes), dtype=np.float32)
    for one in np.unique(fold):
        out = fold == one
        votes[out] = tally(embeddings[out], embeddings[~out], labels[~out], classes)
    return votes


def softened(scores: Matrix, temperature: float, labels: Labels) -> Matrix:
    """Targets from labels, and the scores of the deep stage out of fold."""
    sharp = ones(labels, scores.shape[1])
    found: Matrix = (1 - SOFT) * sharp + SOFT * softmax(scores / temperature)
    return found
