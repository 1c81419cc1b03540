"""The targets of a request while units are merged away: those that stay are planned, the others stand behind them.

    out = left_out(choice.order, away, breakers_out)      # whom the plan leaves out
    plan = gathered(choice.plan(..., out), choice.targets, away, breakers_out, wanted, choice.attempts)

They are not taken out for good, for then nobody could answer when the one that stays fails; a request that comes to one of them
after all loads it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from sits.routing.plan import LEFT_ALONE, Plan
from sits.routing.target import Target

WHY = "is merged into another unit: asked last"


def left_out(order: Iterable[str], away: frozenset[str], out: frozenset[str]) -> frozenset[str]:
    """Whom a plan is to leave out, where breakers leave out `out` of `order`: nobody for merging's sake when nobody who stays is
    left."""
    if all(name in away or name in out for name in order):
        return out
    return away | out if out else away


def gathered(
    plan: Plan,
    targets: Iterable[Target],
    away: frozenset[str],
    out: frozenset[str],
    wanted: frozenset[str],
    attempts: int | None = None,
) -> Plan:
    """The plan with the units that are merged away behind it, as far as they can what is wanted and breakers leave them in."""
    # Left out for another reason than that they are merged: then they may not answer at all.
    never = {name for name, why in plan.filtered if why != LEFT_ALONE}
    there = {target.name for target in plan.targets} | never
    last = [one for one in targets if one.name in away and one.name not in there | out and wanted <= one.capabilities]
    if not last:
        return plan
    told = [(name, WHY if name in away and why == LEFT_ALONE and name not in out else why) for name, why in plan.filtered]
    return msgspec.structs.replace(plan, targets=(*plan.targets, *last)[:attempts], filtered=tuple(told))
