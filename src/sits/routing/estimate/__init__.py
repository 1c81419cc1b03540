"""What another way of choosing would have brought, estimated from what was recorded of this one. Pure."""

from __future__ import annotations

from sits.routing.estimate.estimators import ALLOWED, FEWEST, Estimated, Logged, estimated
from sits.routing.estimate.interval import Estimate
from sits.routing.estimate.propensity import by_least, by_share, by_two, floored
from sits.routing.estimate.regression import Regression

__all__ = [
    "ALLOWED", "FEWEST", "Estimate", "Estimated", "Logged", "Regression", "by_least", "by_share", "by_two", "estimated",
    "floored",
]  # fmt: skip
