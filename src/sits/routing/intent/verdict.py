"""From scores of classes to a domain or none, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Row = npt.NDArray[np.float32] | npt.NDArray[np.float64]

Stage = Literal["quick", "deep"]


class Verdict(msgspec.Struct, frozen=True):
    """What a request wants."""

    domain: str | None
    """None: none of the declared ones."""
    confidence: float
    """How likely that is right, by calibration on the labelled set."""
    stage: Stage
    """Which embedding said it."""
    nearest: str
    """The likeliest domain, also where it is not likely enough."""


class Scale(msgspec.Struct, frozen=True):
    """How the scores of one stage are read: made by `tune`."""

    temperature: float = 1.0
    """Scores are divided by it (Guo et al. 2017, On Calibration of Modern Neural Networks)."""
    least: float = 0.5
    """The least probability of the likeliest domain; below it the request is of none."""
    shift: float = 0.0
    """What is added to the score of none: set where there are few examples, since what they leave open is not of none."""


def read(scores: Row, domains: Sequence[str], scale: Scale, least: Sequence[float | None], stage: Stage) -> Verdict:
    """The verdict on one row of scores: a column for each domain, and one for none of them at the end.

    `least` has the figure of each domain that sets its own.
    """
    import numpy as np

    lifted = scores / scale.temperature
    lifted[-1] += scale.shift / scale.temperature
    lifted = np.exp(lifted - lifted.max())
    best = int(lifted[:-1].argmax())
    chance = float(lifted[best] / lifted.sum())
    own = least[best]
    if chance >= (scale.least if own is None else own) and lifted[best] >= lifted[-1]:
        return Verdict(domains[best], chance, stage, domains[best])
    return Verdict(None, float(lifted[-1] / lifted.sum()), stage, domains[best])
