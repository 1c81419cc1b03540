"""Limits: what may be used in a window, reserved before an attempt and settled after it. The contract is in `base.py`.

limits = open_limits(data)                                       # exact over all workers of this machine
limits = open_limits(data, store, away="local", gateways=3)      # exact over all gateways on the store
"""

from __future__ import annotations

from pathlib import Path

from sits.ports.store.base import Store
from sits.state.limits.base import Limit, Limiter, Refusal, Reservation, Standing, Window
from sits.state.limits.guarded import Away

__all__ = ["Away", "Limit", "Limiter", "Refusal", "Reservation", "Standing", "Window", "open_limits"]


def open_limits(data: Path, store: Store | None = None, *, away: Away = "local", gateways: int = 1) -> Limiter:
    """The limits of this worker. Open them after the fork, and call `sweep` once a second.

    Raises:
        SitsError: `internal_error`, the file in the data folder cannot be used.
    """
    from sits.state.limits.mapped import mapped_limits

    if store is None:
        return mapped_limits(data)
    from sits.state.limits.guarded import GuardedLimits
    from sits.state.limits.shared import SharedLimits

    return GuardedLimits(SharedLimits(store), away, local=mapped_limits(data) if away == "local" else None, gateways=gateways)
