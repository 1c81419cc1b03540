"""The same key goes to the same target, unless that has more than its part: consistent hashing with bounded loads.

Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018: no target may have more than `factor` times
its fair part of what is under way; a key whose target is full goes on along the ring to the next one that is not.

So does a key whose target fails: whoever is tried after it has its keys once it is left alone. A session moves once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from math import ceil, log2

from sits.routing.policies.base import UNSEEN, Policy
from sits.routing.policies.state import TargetState

POINTS = 64
"""On the ring, of a target of usual weight."""
_MOST_POINTS = 1024
AHEAD = 16
"""Targets with room that are looked for along the ring, as many as are ever tried; the others come behind in any order. Of a
thousand, the whole order would take thousands of steps for each request."""
_RINGS = 8
"""Subsets of the targets for which the ring is kept: breakers open and close, and come back to the same few."""


def place(key: bytes) -> float:
    """Where a key is on the ring: the `draw` to pass to `BoundedHash.pick`."""
    # 53 bits: what a float can tell apart below 1.
    return (int.from_bytes(blake2b(key, digest_size=8).digest(), "big") >> 11) / (1 << 53)


def ring(names: Sequence[str], weights: Sequence[float], usual: float = 0.0) -> tuple[list[float], list[int]]:
    """The places on the ring in order, and which of the names has each. `usual` is the weight that has `POINTS` places; about
    the mean when not given.

    It is a power of 4, so that it hardly ever changes with who is there: else everybody had other places then, and keys moved
    that need not.
    """
    if not names:
        return [], []
    unit = 4.0 ** round(log2(usual or sum(weights) / len(weights)) / 2.0)
    points = []
    for index, name in enumerate(names):
        for number in range(min(_MOST_POINTS, max(1, round(POINTS * weights[index] / unit)))):
            points.append((place(f"{name}#{number}".encode()), index))
    points.sort()
    return [at for at, _ in points], [index for _, index in points]


class BoundedHash(Policy):
    """`draw` is the place of the session, or of the prompt's beginning, in place of chance.

    `names` are those of all targets of the route by their state; a target keeps its places whoever else is there, so that only
    the keys of one that goes move. `usual` is the mean of their weights: those that are left out for a while do not change it.
    """

    def __init__(self, names: dict[TargetState, str], factor: float = 1.25, usual: float = 0.0) -> None:
        if factor <= 1.0:
            raise ValueError("a factor of 1 or less leaves no room for one more request")
        self._names: dict[TargetState, str] = names
        self._factor: float = factor
        self._usual: float = usual
        self._rings: dict[tuple[tuple[TargetState, ...], tuple[float, ...]], tuple[list[float], list[int]]] = {}

    def seen(
        self,
        states: Sequence[TargetState],
        weights: Sequence[float],
        draw: float,
        now: float,
        size: float = 0.0,
        warm: Sequence[float] = (),
    ) -> list[float]:
        """How many steps along the ring each is away, `AHEAD` of them; further than those where it is full."""
        key = (tuple(states), tuple(weights))
        known = self._rings.get(key)
        if known is None:
            known = self._ring(key)
        places, owners = known
        under_way = 1
        for state in states:
            under_way += state.of_service()
        each = self._factor * under_way / sum(weights)
        points, many = len(owners), len(states)
        costs = [UNSEEN] * many
        start = bisect_right(places, draw)
        met = room = 0
        for step in range(points):
            index = owners[(start + step) % points]
            if costs[index] == UNSEEN:
                full = states[index].of_service() >= ceil(each * weights[index])
                costs[index] = float(met + many if full else met)
                met += 1
                room += 0 if full else 1
                if room == AHEAD or met == many:
                    break
        return costs

    def _ring(self, key: tuple[tuple[TargetState, ...], tuple[float, ...]]) -> tuple[list[float], list[int]]:
        states, weights = key
        made = self._part_of_another(states, weights)
        if made is None:
            made = ring([self._names[state] for state in states], weights, self._usual)
        if len(self._rings) >= _RINGS:
            # The widest stays: others are parts of it.
            widest = max([len(one) for one, _ in self._rings])
            some = [one for one in self._rings if len(one[0]) < widest]
            del self._rings[some[0] if some else next(iter(self._rings))]
        self._rings[key] = made
        return made

    def _part_of_another(
        self, states: tuple[TargetState, ...], weights: tuple[float, ...]
    ) -> tuple[list[float], list[int]] | None:
        """Their ring, out of one that has others besides. Of 1000 targets a ring of its own takes 110 ms, a part 6."""
        if self._usual <= 0.0:
            return None  # Who is there changes how many places a weight has.
        wanted = {state: index for index, state in enumerate(states)}
        for (more, theirs), (places, owners) in self._rings.items():
            index_of = [wanted.get(state, -1) for state in more]
            same = [at for at, index in enumerate(index_of) if index >= 0 and theirs[at] == weights[index]]
            if len(same) == len(states):
                kept = [at for at in range(len(owners)) if index_of[owners[at]] >= 0]
                return [places[at] for at in kept], [index_of[owners[at]] for at in kept]
        return None
