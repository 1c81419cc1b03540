"""The contract of a policy: which of these targets is asked first.

A choice is made in two steps, so that it can be recorded and made again: what the policy sees of each target (`seen`), and which
one follows from that and a random number (`chosen`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sits.routing.compiling import mypyc_attr
from sits.routing.policies.state import TargetState

Way = Literal["least", "share"]
UNSEEN = 1e300
"""The cost of a target that was not looked at."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Policy:
    """One way to choose. An object serves one route: it may keep a place or a table, and is not shared.

    Pure but for that: time and chance are passed in, so that a simulator runs the same code as a gateway.
    """

    way: Way = "least"
    """What `seen` returns: costs, of which the least is asked, or shares by which one is drawn."""
    reads: bool = False
    """Whether it goes by the prompt: by `size` and `warm`."""

    def seen(
        self,
        states: Sequence[TargetState],
        weights: Sequence[float],
        draw: float,
        now: float,
        size: float = 0.0,
        warm: Sequence[float] = (),
    ) -> list[float]:
        """A cost or a share for each. `states` is not empty; `weights` are above 0 and as many; `draw` is in [0, 1). `size` are
        the bytes of the prompt, and `warm` how many of them each has read before; 0 and none where nobody has looked.

        Weights are those of the route: a target that two routes share has one state and two weights.
        """
        raise NotImplementedError

    def pick(
        self,
        states: Sequence[TargetState],
        weights: Sequence[float],
        draw: float,
        now: float,
        size: float = 0.0,
        warm: Sequence[float] = (),
    ) -> int:
        """The index of the one to ask."""
        return chosen(way_of(self), self.seen(states, weights, draw, now, size, warm), draw)


def way_of(policy: object) -> str:
    """Its way. Read by name: compiled code would see that of the class it knows, not that of a subclass that is not compiled."""
    name = "way"
    return str(getattr(policy, name))


def chosen(way: str, seen: Sequence[float], draw: float) -> int:
    """The index that follows from what a policy has seen."""
    return least(seen, draw) if way == "least" else by_share(seen, draw)


def least(costs: Sequence[float], draw: float) -> int:
    """The index of the least cost; of several, the first one from where `draw` falls, so that chance decides."""
    size = len(costs)
    index = best = int(draw * size)
    low = UNSEEN
    for _ in range(size):
        cost = costs[index]
        if cost < low:
            low, best = cost, index
        index += 1
        if index == size:
            index = 0
    return best


def by_share(shares: Sequence[float], draw: float) -> int:
    """The index under which `draw` falls."""
    at = draw * sum(shares)
    for index, share in enumerate(shares):
        at -= share
        if at < 0.0:
            return index
    return len(shares) - 1  # the sum was rounded up
