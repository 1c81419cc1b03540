"""What does not take writes: said by whoever writes, told by the status page."""

from __future__ import annotations

import msgspec


class Stuck(msgspec.Struct, frozen=True):
    """Nothing is taken since `since` (unix seconds), and `why`, in words."""

    since: float
    why: str


def still(before: Stuck | None, why: str, wall: float) -> Stuck:
    """It is stuck at `wall` as well: since when it was, and why it is now."""
    return Stuck(wall if before is None else before.since, why)
