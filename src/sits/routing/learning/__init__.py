"""Learning from outcomes whom to choose. Pure: random numbers and outcomes are passed in, what was learned is a value."""

from __future__ import annotations

from sits.routing.learning.bandit import Bandit, BanditState, Choice
from sits.routing.learning.calibration import Calibration, CalibrationState, Rule
from sits.routing.learning.context import SIZE, context
from sits.routing.learning.learner import Decision, Learner, LearnerState

__all__ = [
    "SIZE", "Bandit", "BanditState", "Calibration", "CalibrationState", "Choice", "Decision", "Learner", "LearnerState", "Rule",
    "context",
]  # fmt: skip
