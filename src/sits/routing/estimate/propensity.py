"""The chance that each target had of being asked first, exactly, by the way in which it is chosen.

They follow from how a random number leads to a choice (`sits.routing.policies.base.chosen`), and add up to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def floored(chances: Sequence[float], explore: float) -> list[float]:
    """The same where a share of the requests is drawn alike from all."""
    each = explore / len(chances)
    return [each + (1.0 - explore) * one for one in chances]


def by_share(shares: Sequence[float]) -> list[float]:
    """Drawn by shares."""
    total = sum(shares)
    if total <= 0.0:
        return [*[0.0] * (len(shares) - 1), 1.0]  # as `by_share` of the policies does
    return [one / total for one in shares]


def by_least(costs: Sequence[float]) -> list[float]:
    """The least cost; of several, the first one from a place that is drawn alike from all."""
    size = len(costs)
    low = min(costs)
    chances = [0.0] * size
    found = next(index for index, cost in enumerate(costs) if cost == low)
    # From the first of the least ones on, backwards: each place leads to the next least one after it.
    ahead = found
    for step in range(size):
        index = (found - step) % size
        if costs[index] == low:
            ahead = index
        chances[ahead] += 1.0 / size
    return chances


def by_two(costs: Sequence[float]) -> list[float]:
    """The lesser of two that are drawn; of two alike, the one that was drawn first."""
    size = len(costs)
    if size == 1:
        return [1.0]
    each = 1.0 / (size * (size - 1))
    return [
        each * sum(2.0 if cost < other else 1.0 if cost == other else 0.0 for place, other in enumerate(costs) if place != index)
        for index, cost in enumerate(costs)
    ]


def by_trying(pick: Callable[[float], int], size: int, tries: int = 256) -> list[float]:
    """For a way that no formula is known for: the share of even draws that lead to each, good to some 1/`tries`."""
    counts = [0] * size
    for step in range(tries):
        counts[pick((step + 0.5) / tries)] += 1
    return [count / tries for count in counts]
