"""A thousand nodes, simulated: requests that hold memory for a while, placed by a plain scorer and by the tightest fit."""

from __future__ import annotations

import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import msgspec

from sits.routing.policies.fit import Roomiest, Tightest

NODES = ((8, 500), (16, 300), (32, 200))
"""(GiB of KV memory, nodes)"""
NEEDS = ((1, 0.4), (2, 0.3), (4, 0.15), (8, 0.1), (16, 0.05))
"""(GiB that a request holds, share of the requests)"""
HOLDS = 20.0
"""Seconds that it does, mean of an exponential distribution; where it is has no influence on that."""
LOAD = 0.85
SECONDS = 120.0
Start = Callable[[int, float, float, float], bool]
"""(need, arrival, how long it holds, now) -> whether there was a node."""


class Placed(msgspec.Struct, frozen=True):
    """What a way of placing gave."""

    requests: int
    waited: float
    """Seconds from the arrival until there was a node, mean."""
    waited_p99: float
    waiting: int
    """Of the requests, those that had no node when the last one came; they count as having waited so long."""
    fragmentation: float
    """Share of the free memory that a request drawn at random cannot use, for the node has too little: mean over the run (the
    measure of Weng et al., "Beware of Fragmentation", USENIX ATC 2023)."""
    choosing_us: float
    """Microseconds of computing for a choice, mean."""


def place(new: type[Tightest] | type[Roomiest], seconds: float, seed: int) -> Placed:
    """One run."""
    dice = random.Random(seed)  # noqa: S311 - no secrets
    nodes = [size for size, count in NODES for _ in range(count)]
    sizes, shares = [size for size, _ in NEEDS], [share for _, share in NEEDS]
    rate = LOAD * sum(nodes) / (HOLDS * sum(size * share for size, share in NEEDS))
    fit = new(nodes)
    lines: dict[int, deque[tuple[float, float]]] = {size: deque() for size in sizes}
    ends: list[tuple[float, int, int]] = []
    waited: list[float] = []
    fragments: list[float] = []
    computing, chosen = 0.0, 0

    def start(need: int, at: float, holds: float, now: float) -> bool:
        nonlocal computing, chosen
        began = time.perf_counter()
        node = fit.take(need)
        computing += time.perf_counter() - began
        chosen += 1
        if node < 0:
            return False
        waited.append(now - at)
        heappush(ends, (now + holds, node, need))
        return True

    now = dice.expovariate(rate)
    sample = seconds / 4
    while now < seconds:
        while ends and ends[0][0] <= now:
            at, node, need = heappop(ends)
            fit.give(node, need)
            _let_in(lines, fit.free[node], at, start)
        while sample <= now:
            fragments.append(fragmentation(fit.free))
            sample += 1.0
        need, holds = dice.choices(sizes, shares)[0], dice.expovariate(1.0 / HOLDS)
        if lines[need] or not start(need, now, holds, now):
            lines[need].append((now, holds))
        now += dice.expovariate(rate)
    left = [seconds - at for line in lines.values() for at, _ in line]
    every = sorted(waited + left)
    return Placed(
        requests=len(every),
        waited=statistics.fmean(every),
        waited_p99=every[int(0.99 * len(every))],
        waiting=len(left),
        fragmentation=statistics.fmean(fragments),
        choosing_us=1e6 * computing / chosen,
    )


def _let_in(lines: dict[int, deque[tuple[float, float]]], free: int, now: float, start: Start) -> None:
    """Who waits and fits on the node that has become freer, the one that came first before the others."""
    while True:
        fits = [(line[0][0], need) for need, line in lines.items() if line and need <= free]
        if not fits:
            return
        at, need = min(fits)
        if not start(need, at, lines[need][0][1], now):
            return
        lines[need].popleft()
        free -= need


def fragmentation(free: Sequence[int]) -> float:
    """Share of the free memory that a request drawn at random cannot use."""
    whole = sum(free)
    lost = sum(share * sum(room for room in free if room < need) for need, share in NEEDS)
    return lost / whole if whole else 0.0
