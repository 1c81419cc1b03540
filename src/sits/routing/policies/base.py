"""The contract of a policy: which of these targets is asked first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sits.routing.policies.state import TargetState


class Policy(Protocol):
    """One way to choose. An object serves one route: it may keep a place or a table, and is not shared.

    Pure but for that: time and chance are passed in, so that a simulator runs the same code as a gateway.
    """

    def pick(self, states: Sequence[TargetState], weights: Sequence[float], draw: float, now: float) -> int:
        """The index of the one to ask. `states` is not empty; `weights` are above 0 and as many; `draw` is in [0, 1).

        Weights are those of the route: a target that two routes share has one state and two weights.
        """
