"""How well our caches choose what to keep: hit ratios beside `theine` (a W-TinyLFU in Rust), LRU and LRU-K, on the same
traces in one run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from blake3 import blake3

from sits.bench.cache_traces import ELSEWHERE, Trace, scanned, traces, zipf
from sits.bench.figure import Figure, bounded, measured
from sits.state.cache.eviction import Eviction, Limit, Lru, LruK
from sits.state.cache.tinylfu import TinyLfu

SIZE = 1000
"""Entries of each cache: a twentieth of what the Zipf traces ask for."""
LENGTH = 200_000
SEED = 7
BESIDE_THEINE = "<= 2"
"""Points of hit ratio that we may be behind it."""
RESISTS = "<= 2"
"""Points of hit ratio that a scan may cost those who ask for something else."""

OURS: dict[str, Callable[[Limit], Eviction]] = {"ours": TinyLfu, "lru_k": LruK, "lru": Lru}


class Ratios(msgspec.Struct, frozen=True):
    """Hit ratios in percent: of all requests, and of those that are no scan or loop."""

    all: float
    drawn: float


def rows(length: int = LENGTH, size: int = SIZE, seed: int = SEED) -> list[Figure]:
    """All figures. 15 s with the defaults."""
    names: dict[int, bytes] = {}
    figures = []
    for name, make in traces(length, size, seed).items():
        figures += beside(name, make(), size, names)
    return figures + resistance(length, size, seed, names)


def beside(name: str, trace: Trace, size: int, names: dict[int, bytes]) -> list[Figure]:
    """How far we are behind theine on one trace; the ratios of all others beside it."""
    found = {who: replay(make(Limit(size, size)), trace, names).all for who, make in OURS.items()}
    theirs = theine(trace, size)
    said = ", ".join(f"{who} {ratio:.2f} %" for who, ratio in found.items())
    if theirs is None:
        return [bounded(f"cache_behind_theine_{name}", None, "points", BESIDE_THEINE, f"theine is not installed; {said}")]
    said += f", theine {theirs:.2f} %"
    return [bounded(f"cache_behind_theine_{name}", theirs - found["ours"], "points", BESIDE_THEINE, said)]


def resistance(length: int, size: int, seed: int, names: dict[int, bytes]) -> list[Figure]:
    """What scans cost the other requests: the hit ratio of the same Zipf draws without and with them."""
    calm, disturbed = zipf(0.9, length, seed), scanned(0.9, 2 * length, seed, size, between=size)
    figures = []
    for who, make in OURS.items():
        without = replay(make(Limit(size, size)), calm, names).drawn
        with_scans = replay(make(Limit(size, size)), disturbed, names).drawn
        said = f"{without:.2f} % without, {with_scans:.2f} % with a scan of {size} after each {size} requests"
        name = f"cache_scan_cost_{who}"
        if who == "lru":
            figures.append(measured(name, without - with_scans, "points", said))
        else:
            figures.append(bounded(name, without - with_scans, "points", RESISTS, said))
    return figures


def replay(policy: Eviction, trace: Iterable[int], names: dict[int, bytes]) -> Ratios:
    """The hit ratios of a policy on a trace. `names` keeps the digests that stand for the numbers."""
    asked = hits = drawn = drawn_hits = 0
    for number in trace:
        key = names.get(number)
        if key is None:
            key = names[number] = blake3(number.to_bytes(8)).digest()
        hit = policy.touch(key, asked)
        if not hit:
            policy.add(key, 1, asked)
        asked += 1
        hits += hit
        if number < ELSEWHERE:
            drawn += 1
            drawn_hits += hit
    return Ratios(100 * hits / max(1, asked), 100 * drawn_hits / max(1, drawn))


def theine(trace: Iterable[int], size: int) -> float | None:
    """Theine's hit ratio in percent; None where it is not installed."""
    try:
        module: Any = importlib.import_module("theine")
    except ImportError:
        return None
    cache = module.Cache(size)
    asked = hits = 0
    for number in trace:
        asked += 1
        _, hit = cache.get(number)
        if hit:
            hits += 1
        else:
            cache.set(number, True)
    cache.close()
    return 100 * hits / max(1, asked)
