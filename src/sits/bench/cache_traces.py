"""Requests for a cache, as numbers: the shapes that the literature measures eviction by. Seeded, so the same on every machine."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from itertools import accumulate, cycle, islice

UNIVERSE = 20_000
"""Different things that are asked for, in the traces that draw."""
ELSEWHERE = 10_000_000
"""Scans and loops ask for things from here on, which nobody else asks for."""

Trace = list[int]


def zipf(alpha: float, length: int, seed: int) -> Trace:
    """Independent draws; the n-th most popular thing is asked for in proportion to n ** -alpha."""
    shares = list(accumulate((rank**-alpha for rank in range(1, UNIVERSE + 1)), initial=0.0))[1:]
    total = shares[-1]
    draw = random.Random(seed).random  # noqa: S311
    return [bisect_left(shares, draw() * total) for _ in range(length)]


def scanned(alpha: float, length: int, seed: int, scan: int, between: int = 4000) -> Trace:
    """As `zipf`, and after each `between` requests a scan: `scan` things, each asked for once."""
    draws = iter(zipf(alpha, length, seed))
    fresh = iter(range(ELSEWHERE, ELSEWHERE + length))
    found: Trace = []
    while len(found) < length:
        found += islice(draws, between)
        found += islice(fresh, scan)
    return found[:length]


def mixed(length: int, seed: int, size: int) -> Trace:
    """Zipf draws, scans of twice the cache, and a loop over one and a half times the cache, taking turns."""
    draws = iter(zipf(0.9, length, seed))
    fresh = iter(range(ELSEWHERE, ELSEWHERE + length))
    loop = range(ELSEWHERE * 2, ELSEWHERE * 2 + size * 3 // 2)
    found: Trace = []
    while len(found) < length:
        found += islice(draws, 4000)
        found += islice(fresh, 2 * size)
        found += [*loop, *loop]
    return found[:length]


def loop(length: int, size: int) -> Trace:
    """The same things in the same order, a fifth more than the cache holds: LRU's worst case."""
    return list(islice(cycle(range(size * 6 // 5)), length))


def sessions(length: int, seed: int) -> Trace:
    """Something new, or, more often, something asked for a moment ago and soon never again."""
    chance = random.Random(seed)  # noqa: S311
    found: Trace = []
    for number in range(length):
        if found and chance.random() < 0.6:
            found.append(found[-1 - min(int(chance.expovariate(1 / 150)), len(found) - 1)])
        else:
            found.append(number)
    return found


def traces(length: int, size: int, seed: int) -> dict[str, Callable[[], Trace]]:
    """Every trace by its name, for a cache of `size` entries."""
    found: dict[str, Callable[[], Trace]] = {
        f"zipf_{alpha}": partial(zipf, alpha, length, seed) for alpha in (0.7, 0.8, 0.9, 1.0, 1.1)
    }
    found["zipf_0.9_scan"] = partial(scanned, 0.9, length, seed, size)
    found["mixed"] = partial(mixed, length, seed, size)
    found["loop"] = partial(loop, length, size)
    found["sessions"] = partial(sessions, length, seed)
    return found
