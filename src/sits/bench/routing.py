"""`sits bench routing`: who should answer? The policies of the gateway, simulated on the same traffic and before real servers."""

from __future__ import annotations

import statistics
import timeit
from collections.abc import Callable
from functools import partial

from sits.bench import (
    BenchError,
    Outcome,
    Plan,
    routing_cluster,
    routing_found,
    routing_gateways,
    routing_real,
    routing_talking,
    routing_talks_real,
    routing_words,
)
from sits.bench.environment import environment, load_before
from sits.bench.figure import Figure, bounded, measured
from sits.bench.page import Page, Section, Table, number
from sits.bench.routing_bound import least_mean
from sits.bench.routing_found import Beside, Points, Rates
from sits.bench.routing_pool import (
    ALIKE,
    EXACT,
    FAILING,
    GENERATIONS,
    LOAD,
    MIXED,
    OF_GENERATIONS,
    OURS,
    RIVALS,
    RR,
    SHEET,
    SHORT,
    SHORT_TRAFFIC,
    STALE,
    STEADY,
    TRAFFIC,
    WLC,
    Told,
    World,
    at,
    even_of,
    peak_of,
)
from sits.bench.routing_world import Seen
from sits.routing.policies import POLICIES, BoundedHash, TargetState
from sits.routing.policies.fit import Roomiest, Tightest

Part = Callable[[Plan], tuple[list[Figure], list[Section]]]
GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Of what the pool can do: where the curves have points."""
LEAST = 0.005
"""Of what four generations can do: where the search for a peak begins. In turns, all are as fast as the oldest."""
SEED = 5
REAL_RATE, REAL_SECONDS = 18.0, 40.0
REAL_TALKS_SECONDS = 100.0
REAL: dict[str, Told] = {
    RR: RIVALS[RR],
    "weighted round-robin, exact weights": RIVALS["weighted round-robin, exact weights"],
    WLC: RIVALS[WLC],
    SHEET: OF_GENERATIONS[SHEET],
    STALE: RIVALS[STALE],
    EXACT: RIVALS[EXACT],
    "peak-ewma": RIVALS["peak-ewma"],
    "dynamic-weights": RIVALS["dynamic-weights"],
    "least-expected": RIVALS["least-expected"],
    OURS: RIVALS[OURS],
}
"""Slots are the same for all of the real servers: least-connections by slots has equal weights there."""


def run(plan: Plan) -> Outcome:
    """Measure all parts, or those in `plan.only`: pool, generations, talks, alike, gateways, cluster, real, real-talks, cost.

    Raises:
        BenchError: there is no such part, or a server does not start.
    """
    unknown = sorted(set(plan.only) - set(PARTS))
    if unknown:
        raise BenchError(f"the bench has no part {', '.join(map(repr, unknown))}; there are: {', '.join(PARTS)}")
    busy = load_before()
    figures: list[Figure] = []
    sections: list[Section] = []
    for name, part in PARTS.items():
        if plan.only and name not in plan.only:
            continue
        plan.say(f"routing: {name}")
        found, told = part(plan)
        figures += found
        sections += told
    intro = routing_words.INTRO
    if plan.only:
        intro += f"\n\n**Only a part: {', '.join(plan.only)}.**"
    if plan.quick:
        intro += "\n\n**A quick run: it shows that the harness works. The figures are not for quoting.**"
    ran = environment({}, busy)
    return Outcome(figures, Page("routing", "Routing: who should answer", intro, "sits bench routing --out docs", ran, sections))


def _seeds(plan: Plan) -> tuple[int, ...]:
    return (1,) if plan.quick else (1, 2, 3)


def _pool(plan: Plan) -> tuple[list[Figure], list[Section]]:
    """All policies on the three kinds of traffic."""
    rivals = [RR, WLC, OURS] if plan.quick else list(RIVALS)
    rates: Rates = {}
    even: Rates = {}
    points: Points = {}
    for traffic in TRAFFIC:
        world = World(MIXED, traffic, _seeds(plan))
        for name in rivals:
            plan.say(f"  {traffic.name}: {name}")
            rates[traffic.name, name] = peak_of(RIVALS[name], world, 3 if plan.quick else 8)
            even[traffic.name, name] = even_of(RIVALS[name], RIVALS[OURS], world, 3 if plan.quick else 8)
            for share in (0.1, LOAD) if plan.quick else GRID:
                points[traffic.name, name, share] = at(RIVALS[name], world, share * world.capacity)
    figures: list[Figure] = []
    beside: Beside = {}
    last: Beside = {}
    for traffic in TRAFFIC:
        world = World(MIXED, traffic, _seeds(plan))
        for name in rivals:
            if name != OURS:
                rate = min(LOAD * world.capacity, rates[traffic.name, name])
                beside[traffic.name, name] = _beside(RIVALS[name], world, rate)
                last[traffic.name, name] = _beside(RIVALS[name], world, even[traffic.name, name])
    figures += routing_found.ratios(rates, beside, rivals)
    figures += routing_found.even(last, rivals)
    figures += routing_found.front(points, rivals)
    failing = World(MIXED, FAILING, _seeds(plan))
    black = {name: at(RIVALS[name], failing, LOAD * failing.capacity) for name in rivals}
    return figures, routing_found.pool_sections(rates, points, beside, last, black, rivals)


def _beside(told: Told, world: World, rate: float) -> tuple[float, Seen, Seen, float]:
    return rate, at(told, world, rate), at(RIVALS[OURS], world, rate), least_mean(world, rate)


def _generations(plan: Plan) -> tuple[list[Figure], list[Section]]:
    """The same three kinds of traffic before four generations of hardware."""
    rivals = [RR, WLC, OURS] if plan.quick else list(OF_GENERATIONS)
    rates: Rates = {}
    beside: Beside = {}
    for traffic in SHORT_TRAFFIC:
        world = World(GENERATIONS, traffic, _seeds(plan), 10.0 if plan.quick else SHORT)
        for name in rivals:
            plan.say(f"  {traffic.name}: {name}")
            rates[traffic.name, name] = peak_of(OF_GENERATIONS[name], world, 3 if plan.quick else 8, LEAST)
            if name != OURS:
                rate = min(LOAD * world.capacity, rates[traffic.name, name] or LEAST * world.capacity)
                beside[traffic.name, name] = _beside(OF_GENERATIONS[name], world, rate)
    figures = routing_found.ratios(rates, beside, rivals, "generations_")
    return figures, [routing_found.generations_section(rates, beside, rivals)]


def _talks(plan: Plan) -> tuple[list[Figure], list[Section]]:
    """Conversations, before servers that remember what they have read."""
    seeds = _seeds(plan) if plan.quick else tuple(range(1, 7))
    figures, section = routing_talking.measure(seeds, plan.quick, plan.say)
    return figures, [section]


def _alike(plan: Plan) -> tuple[list[Figure], list[Section]]:
    """Backends that are all the same: there is little to gain, and nothing may be lost."""
    world = World(ALIKE, STEADY, _seeds(plan))
    rate = LOAD * world.capacity
    rivals = [RR, WLC, OURS] if plan.quick else list(RIVALS)
    seen = {name: at(RIVALS[name], world, rate) for name in rivals}
    gains = {name: seen[name].mean / seen[OURS].mean for name in (RR, WLC)}
    figures = [
        measured("routing_alike_mean_vs_round_robin", gains[RR], "x", "eight backends that are the same; 1 is no gain"),
        measured("routing_alike_mean_vs_weighted_least_connections", gains[WLC], "x", "the same; 1 is no gain"),
    ]
    return figures, [routing_found.alike_section(seen, rate)]


def _gateways(plan: Plan) -> tuple[list[Figure], list[Section]]:
    """Several gateways before the same backends."""
    figures, section = routing_gateways.measure(_seeds(plan)[:1] if plan.quick else _seeds(plan), plan.quick, plan.say)
    return figures, [section]


def _cluster(plan: Plan) -> tuple[list[Figure], list[Section]]:
    """A thousand nodes."""
    seconds = 30.0 if plan.quick else routing_cluster.SECONDS
    seeds = _seeds(plan)
    runs = {kind: [routing_cluster.place(kind, seconds, seed) for seed in seeds] for kind in (Roomiest, Tightest)}
    return routing_found.cluster(runs[Roomiest], runs[Tightest])


def _real(plan: Plan) -> tuple[list[Figure], list[Section]]:
    """A real gateway before four real servers."""
    rivals = {name: REAL[name] for name in (RR, WLC, OURS)} if plan.quick else REAL
    found = {
        one.name: one for one in routing_real.compare(rivals, REAL_RATE, 1.0 if plan.quick else REAL_SECONDS, SEED, plan.say)
    }
    figures, section = routing_found.real(found, REAL_RATE)
    return figures, [section]


def _real_talks(plan: Plan) -> tuple[list[Figure], list[Section]]:
    """Conversations with real models."""
    seconds, rivals = (10.0, (routing_talks_real.OURS,)) if plan.quick else (REAL_TALKS_SECONDS, ())
    found = routing_talks_real.compare(plan.cache / "routing" / "models", seconds, SEED, plan.say, rivals)
    figures, section = routing_talks_real.figures(found)
    return figures, [section]


def _cost(plan: Plan) -> tuple[list[Figure], list[Section]]:
    """What a choice costs."""
    loops = 300 if plan.quick else 5000
    rows = []
    ours = 0.0
    for size in (8, 100, 1000):
        states = tuple(TargetState() for _ in range(size))
        weights = (1.0,) * size
        for index, state in enumerate(states):
            among = state.started(0.0)
            state.started(0.0)
            state.spoke(0.1, 0.1, among)
            state.ended(1.0, 1.0 + index / size, among, True, 0.1, 20.0)
        made = {name: new() for name, new in POLICIES.items()}
        made["bounded-hash"] = BoundedHash({state: str(index) for index, state in enumerate(states)})
        for name, policy in made.items():
            cost = _microseconds(partial(policy.pick, states, weights, 0.437, 1.5), loops)
            rows.append([str(size), name, number(cost)])
            if size == 8 and name == OURS:
                ours = cost
    state = TargetState()

    def notes() -> None:
        state.ended(1.0, 1.0, state.started(0.0), True, 0.1, 20.0)

    note = _microseconds(notes, loops)
    figures = [
        bounded("routing_pick_us", ours, "us", "<= 5", f"{OURS}, 8 targets"),
        bounded("routing_notes_us", note, "us", "<= 2", "of a request: started and ended, together"),
    ]
    return figures, [Section("What a choice costs", routing_words.COST, [Table(["targets", "policy", "us"], rows)])]


def _microseconds(call: Callable[[], object], loops: int) -> float:
    return 1e6 * statistics.median(timeit.repeat(call, number=loops, repeat=5)) / loops


PARTS: dict[str, Part] = {
    "pool": _pool,
    "generations": _generations,
    "talks": _talks,
    "alike": _alike,
    "gateways": _gateways,
    "cluster": _cluster,
    "real": _real,
    "real-talks": _real_talks,
    "cost": _cost,
}
