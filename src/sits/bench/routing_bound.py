"""How low a mean latency can be at all, whoever chooses: what a policy may be asked for, and what it may not.

What a backend gives grows ever less with the number under way (it is concave), so that a number that goes up and down gives no
more than its own mean does (Jensen's inequality). The least that must be under way to give so many answers a second is therefore
found by filling the places that give most, one after the other; by Little's law, that number over the rate is the mean latency.
It holds for every policy, also one that knows the future, as long as which request goes where is chosen without knowing how long
its answer will be.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from math import inf

from sits.bench.routing_pool import LENGTHS, World
from sits.bench.routing_world import Ask, Backend, Trouble, asks


def least_mean(world: World, rate: float) -> float:
    """Seconds: no policy has a lower mean in the long run; mean of the same traces. Infinite beyond what the pool can do."""
    return statistics.fmean(_least(world, rate, asks(world.traffic, LENGTHS, rate, world.seconds, seed)) for seed in world.seeds)


def _least(world: World, rate: float, trace: Sequence[Ask]) -> float:
    places = []
    for index, backend in enumerate(world.backends):
        for part, slow in _parts(index, world.traffic.troubles, world.seconds):
            places += [(gain / slow, part) for gain in _gains(backend, trace)]
    wanted = arrived = len(trace) / world.seconds
    under_way = 0.0
    for gain, part in sorted(places, reverse=True):
        taken = min(part, wanted / gain)
        under_way += taken
        wanted -= taken * gain
        if wanted <= 1e-9 * arrived:
            return under_way / arrived
    return inf


def _parts(index: int, troubles: Sequence[Trouble], seconds: float) -> list[tuple[float, float]]:
    """(share of the time, times as slow) of a backend; troubles of one backend do not overlap."""
    own = [one for one in troubles if one.backend == index]
    parts = [((one.ends - one.begins) / seconds, one.slow) for one in own]
    return [*parts, (1.0 - sum(part for part, _ in parts), 1.0)]


def _gains(backend: Backend, trace: Sequence[Ask]) -> list[float]:
    """Answers a second that each further one under way adds."""
    work = statistics.fmean(ask.more * backend.work(ask.prompt, ask.answer) for ask in trace)
    given = [count * backend.speed(count) / work for count in range(backend.slots + 1)]
    return [after - before for before, after in pairwise(given)]
