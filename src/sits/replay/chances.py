"""The chance that each target had of being asked first for a recorded request, under the configuration of a replayer.

Exact where there is a formula: drawn by weight, the least of costs, the better of two, scores, and the share that explores. What
takes turns looks at nothing of the request, so it counts as chance: by weight. What was drawn to learn has the recorded chances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sits.observe.trace_row import Row
from sits.replay.replayer import Redecision, Replayer
from sits.routing.estimate.propensity import by_least, by_share, by_trying, by_two, floored
from sits.routing.plan import Plan
from sits.routing.policies.load import FEW
from sits.routing.pool import Picked

LAST = 1.0 - 2.0**-53
"""A number that never explores."""


def chances(replayer: Replayer, row: Row, made: Redecision) -> Mapping[str, float]:
    """By name; empty where the request is refused or undecidable. `made` is what the replayer decided on this row last."""
    if row.learned and replayer.learns_alike(row):
        total: dict[str, float] = {}
        for arm, chance in row.learned.items():
            one = replayer.again(row, arm=arm)
            for name, share in _of(replayer, row, one, arm).items():
                total[name] = total.get(name, 0.0) + chance * share
        return total
    return _of(replayer, row, made)


def _of(replayer: Replayer, row: Row, made: Redecision, arm: str = "") -> Mapping[str, float]:
    plan = made.plan
    if plan is None:
        return {}
    picked = plan.picked
    if picked is None or plan.pool is None:
        return {made.first: 1.0}
    if picked.policy == "hash":
        return {made.first: 1.0}  # The place on the ring is that of the session, and no chance.
    if picked.explored:
        # What it would have been without: who takes part is the same, and what is seen is known only then.
        return _of(replayer, row, replayer.again(row, _unexplored(row.asked.draw, picked.explore), arm), arm)
    if picked.policy == "scores":
        return _scored(plan, picked)
    if picked.seen:
        found = dict(zip([target.name for target, _ in picked.weighed], _by_policy(replayer, row, plan, picked), strict=True))
    else:
        found = {made.first: 1.0}  # Leaning has left one.
    return _explored(found, plan, picked)


def _explored(found: Mapping[str, float], plan: Plan, picked: Picked) -> Mapping[str, float]:
    """With the share that explores: among all that were left, whatever leaning says."""
    names = [target.name for target, _ in picked.weighed]
    if picked.decision is not None and plan.pool is not None:
        names = [plan.pool.backends[index].name for index in picked.decision.kept]
    if len(names) < 2:
        return found
    return dict(zip(names, floored([found.get(name, 0.0) for name in names], picked.explore), strict=True))


def _unexplored(draw: float, explore: float) -> float:
    """A number that does not explore, alike for alike ones."""
    return min(LAST, explore + (1.0 - explore) * (draw / explore))


def _scored(plan: Plan, picked: Picked) -> Mapping[str, float]:
    decision, pool = picked.decision, plan.pool
    assert decision is not None
    assert pool is not None
    assert pool.scheduler is not None
    names = [pool.backends[index].name for index in decision.kept]
    if picked.leaning:
        # Leaning makes another the best one, and leaves what explores alone.
        alone = [1.0 if name == plan.first else 0.0 for name in names]
        return dict(zip(names, floored(alone, picked.explore if len(names) > 1 else 0.0), strict=True))
    return dict(zip(names, pool.scheduler.chances(decision), strict=True))


def _by_policy(replayer: Replayer, row: Row, plan: Plan, picked: Picked) -> Sequence[float]:
    size, now = len(picked.weighed), row.asked.now
    weights = [weight for _, weight in picked.weighed]
    if picked.policy == "round-robin":
        return [1.0 / size] * size
    if picked.policy == "weighted-round-robin":
        return by_share(weights)
    if picked.policy in ("weighted", "dynamic-weights"):
        return by_share(picked.seen)
    if picked.policy == "peak-ewma":
        return by_two([replayer.seen(plan, (index + 0.5) / size, now)[index] for index in range(size)])
    if picked.policy in ("least-expected", "least-added") and size > FEW:
        return by_trying(lambda draw: replayer.pick(plan, draw, now), size)
    return by_least(picked.seen)
