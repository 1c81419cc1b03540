"""Policies that choose who is asked first, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sits.routing.policies.base import Policy
from sits.routing.policies.dynamic import DynamicWeights
from sits.routing.policies.hashing import BoundedHash, place
from sits.routing.policies.load import LeastAdded, LeastConnections, LeastExpected, PeakEwma
from sits.routing.policies.state import TargetState, Usual
from sits.routing.policies.turns import Drawn, RoundRobin, WeightedRoundRobin

__all__ = ["DEFAULT", "POLICIES", "BoundedHash", "Policy", "TargetState", "Usual", "place"]

POLICIES: Mapping[str, Callable[[], Policy]] = {
    "weighted": Drawn,
    "round-robin": RoundRobin,
    "weighted-round-robin": WeightedRoundRobin,
    "least-connections": LeastConnections,
    "peak-ewma": PeakEwma,
    "least-expected": LeastExpected,
    "dynamic-weights": DynamicWeights,
    "least-added": LeastAdded,
}
"""Name -> what makes one for a route. `BoundedHash` needs the names of the targets and a key, and is made where both are."""
DEFAULT = "least-added"
