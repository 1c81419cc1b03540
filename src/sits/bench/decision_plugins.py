"""What the fence around a plugin costs a request, and how long one that misbehaves can do so, for `sits bench decision`."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from time import thread_time_ns

import uvloop

from sits.bench.figure import Figure, bounded, measured
from sits.bench.plugin_trouble import USABLE, Told, story
from sits.routing.plugins.fence import Fence, Kind
from sits.routing.plugins.making import fenced_filter, fenced_score
from sits.routing.scheduling.base import Candidate, Facts, Filter, Made, Score
from sits.routing.scheduling.checks import candidates_of, facts_of, made_for
from sits.state.plugins.alarm import SignalAlarm
from sits.state.plugins.footprint import ProcessFootprint

ROUNDS = 15
CALLS = 5_000
SIZES = (8, 100)
BOUND = "<= 1.5"
"""Microseconds for 8 candidates."""


class _Score(Score):
    name = "bench"

    def __init__(self, made: Made) -> None:
        self._points = [float(one.index) for one in made.candidates]

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        return self._points


class _Filter(Filter):
    name = "bench"

    def __init__(self, made: Made) -> None:
        pass

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        return ""


def figures(rounds: int = ROUNDS) -> list[Figure]:
    """All of it; takes some five seconds. For the main thread."""
    return [*costs(rounds), *troubles()]


def costs(rounds: int = ROUNDS) -> list[Figure]:
    """What the fence adds to a call, sampling and alarm and all."""
    found = []
    alarm, footprint = SignalAlarm(), ProcessFootprint()
    try:
        for size in SIZES:
            candidates = candidates_of(size)
            made, facts = made_for(candidates, {}), facts_of(1)
            for kind in ("score", "filter"):
                fence = Fence(kind, "bench", time.perf_counter, alarm=alarm, footprint=footprint)
                bare, fenced = _pair(kind, made, facts, fence)
                added = _added(bare, fenced, rounds)
                name = f"fence of a {kind}, {size} candidates"
                detail = "CPU that it adds to a call: median of rounds in turns with the plugin alone"
                found.append(
                    bounded(name, added, "us", BOUND, detail) if size == SIZES[0] else measured(name, added, "us", detail)
                )
    finally:
        alarm.close()
    return found


def troubles() -> list[Figure]:
    """Every way to misbehave, as filter and as score, in a watched folder under uvloop."""
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(story(Path(folder)))
    worst = max(one.calls for one in found.values())
    changed = sum(_affected(name, one) for (_, name), one in found.items())
    back = sum(one.repaired["state"] == "live" and one.first == 3 for one in found.values())
    longest = max(one.fenced["max_us"] for one in found.values()) / 1000.0
    ways = f"{len(found)} plugins"
    return [
        bounded("calls until a plugin that misbehaves is fenced off, most", float(worst), "calls", "<= 3", ways),
        bounded("decisions that a plugin in trouble changed", float(changed), "decisions", "== 0", ways),
        bounded("plugins back after repair without a restart", back / len(found), "share", "== 1", ways),
        measured("longest that a plugin held up the worker in one call", longest, "ms", "one that sleeps or spins is cut"),
    ]


def _affected(name: str, one: Told) -> int:
    """Decisions that are not those without it; what a plugin says that only leaks is right, until it is fenced off."""
    counted = one.unaffected[-1:] if name in USABLE else one.unaffected
    return sum(not same for same in counted)


def _pair(kind: Kind, made: Made, facts: Facts, fence: Fence) -> tuple[Callable[[], object], Callable[[], object]]:
    candidates = made.candidates
    if kind == "score":
        score, around = _Score(made), fenced_score(_Score, made, fence)
        return lambda: score.score(facts, candidates), lambda: around.score(facts, candidates)
    sieve, inside = _Filter(made), fenced_filter(_Filter, made, fence)
    return lambda: sieve.asks(facts) and [sieve.keep(facts, one) for one in candidates], lambda: inside.asks(facts)


def _added(bare: Callable[[], object], fenced: Callable[[], object], rounds: int) -> float:
    """Microseconds that a call takes longer."""
    return statistics.median([_clocked(fenced) - _clocked(bare) for _ in range(rounds)])


def _clocked(call: Callable[[], object]) -> float:
    begun = thread_time_ns()
    for _ in range(CALLS):
        call()
    return (thread_time_ns() - begun) / 1000.0 / CALLS
