"""What is compared in `sits bench routing`: the pools, the traffic, the policies, and how a rate and a peak are found.

One configuration of each policy is used for everything. What was set when is said on the page.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import starmap

import msgspec

from sits.bench.routing_world import Backend, Lengths, Seen, Simulation, Traffic, Trouble, asks, peak
from sits.routing.policies import POLICIES, Policy, TargetState

LENGTHS = Lengths()
LARGE = Backend("large", 32, 16_000.0, 60.0)
MEDIUM = Backend("medium", 16, 8_000.0, 40.0)
SMALL = Backend("small", 8, 4_000.0, 25.0)
MIXED = (LARGE,) * 2 + (MEDIUM,) * 3 + (SMALL,) * 3
"""One model on three generations of hardware."""
ALIKE = (MEDIUM,) * 8
_WEIGHED, _PER_TOKEN, _USED = 14.0, 14.0e9, 0.4
"""A model of 7 billion parameters in 16 bits: GB that are read for a token, operations of a token of the prompt; the share of its
arithmetic that hardware reaches in that."""
_KV_GB = 8192 * 0.524e-3
"""Of the longest request: 32 layers, 4,096 wide, 16 bits."""


def of_data_sheet(name: str, gb_per_second: float, tera_flops: float, memory_gb: float) -> Backend:
    """A model server on one accelerator, by what its maker says of it: answers are bound by its memory's speed, prompts by its
    arithmetic, slots by the memory that the weights leave."""
    slots = int((0.9 * memory_gb - _WEIGHED) / _KV_GB)
    return Backend(name, slots, _USED * tera_flops * 1e12 / _PER_TOKEN, gb_per_second / _WEIGHED)


SHEETS = (
    ("B200", 8000.0, 2250.0, 192.0),
    ("H100", 3350.0, 989.0, 80.0),
    ("A100", 2039.0, 312.0, 80.0),
    ("V100", 900.0, 125.0, 32.0),
)
"""Four generations: GB/s, dense 16-bit TFLOPS, GB of memory. NVIDIA's data sheets."""
GENERATIONS = tuple(of_data_sheet(*sheet) for sheet in SHEETS for _ in range(2))
SHORT = 100.0
"""Seconds of a trace before `GENERATIONS`, which answers eight times as many requests in one."""
SECONDS = 300.0
STEADY = Traffic("steady")
BURSTY = Traffic("bursty", burst=2.0, calm=0.6)
DEGRADING = Traffic("degrading", troubles=(Trouble(0, SECONDS / 3, SECONDS * 2 / 3, slow=4.0),))
FAILING = Traffic("failing", troubles=(Trouble(0, SECONDS / 3, SECONDS * 2 / 3, fails=0.9),))
TRAFFIC = (STEADY, BURSTY, DEGRADING)
SHORT_TRAFFIC = (STEADY, BURSTY, Traffic("degrading", troubles=(Trouble(0, SHORT / 3, SHORT * 2 / 3, slow=4.0),)))
"""The same three, for traces of `SHORT` seconds."""
LIMIT = 45.0
"""Seconds within which 99 of 100 whole answers must come at a rate that counts as carried, where the slowest backend is `small`:
a little more than it takes for the 99th longest answer, alone. Less where the slowest one is quicker."""
MOST_DROPS = 0.01
LOAD = 0.7
"""Of what the pool can do: where latencies are compared, or at the peak of the other policy where that is lower."""

EVEN = 0.98
"""Of the throughput of another policy: so little less is the same."""


class Told(msgspec.Struct, frozen=True):
    """A policy, and the weights that it is told."""

    policy: str
    weights: str = "equal"
    """equal; slots: what the engines are set to; sheet: arithmetic, as the maker says; stale: capacities, from before one of the
    largest and one of the next class changed places; capacity: requests a second of each, exactly."""


RR, OURS, KNOWING = "round-robin", "least-added", "all-knowing"
WLC = "least-connections, slots as weights"
"""The weighted least-connections of the bounds: with weights that somebody can set without measuring."""
EXACT, STALE, SHEET = "least-connections, exact weights", "least-connections, stale weights", "least-connections, data sheet"
RIVALS: dict[str, Told] = {
    RR: Told("round-robin"),
    "weighted round-robin, exact weights": Told("weighted-round-robin", "capacity"),
    "least-connections": Told("least-connections"),
    WLC: Told("least-connections", "slots"),
    STALE: Told("least-connections", "stale"),
    EXACT: Told("least-connections", "capacity"),
    "peak-ewma": Told("peak-ewma"),
    "dynamic-weights": Told("dynamic-weights"),
    "least-expected": Told("least-expected"),
    OURS: Told("least-added"),
    KNOWING: Told("all-knowing"),
}
OF_GENERATIONS: dict[str, Told] = {
    RR: RIVALS[RR],
    "least-connections": RIVALS["least-connections"],
    WLC: RIVALS[WLC],
    SHEET: Told("least-connections", "sheet"),
    STALE: RIVALS[STALE],
    EXACT: RIVALS[EXACT],
    "peak-ewma": RIVALS["peak-ewma"],
    "dynamic-weights": RIVALS["dynamic-weights"],
    OURS: RIVALS[OURS],
    KNOWING: RIVALS[KNOWING],
}
INFORMED = ("weighted round-robin, exact weights", WLC, STALE, EXACT, KNOWING)
"""Those that are told something of the backends beforehand."""


class AllKnowing(Policy):
    """Knows the true speed and slots of each backend (not its troubles) and adds as little as it can to the time of all. No
    gateway can have it; it shows how much is left to gain."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        prompt, answer = usual()
        self._lines = []
        for one in backends:
            base = one.work(round(prompt), round(answer)) / one.writes
            self._lines.append((base, base * one.crowd / max(1, one.slots - 1), one.slots))

    def seen(
        self,
        states: Sequence[TargetState],
        weights: Sequence[float],
        draw: float,
        now: float,
        size: float = 0.0,
        warm: Sequence[float] = (),
    ) -> list[float]:
        return [_added(state.outstanding, *line) for state, line in zip(states, self._lines, strict=True)]


def _added(under_way: int, base: float, slope: float, slots: int) -> float:
    if under_way < slots:
        return base + slope * 2 * under_way
    full = base + slope * slots
    return full * (1 + 8 * (under_way + 1 - slots) / slots) + slope * slots


_drawn: list[tuple[float, float]] = []


def usual() -> tuple[float, float]:
    """Tokens of a prompt and of an answer, mean of the lengths that are used."""
    if not _drawn:
        made = asks(STEADY, LENGTHS, 100.0, 500.0, 99)
        _drawn.append((statistics.fmean(one.prompt for one in made), statistics.fmean(one.answer * one.more for one in made)))
    return _drawn[0]


def capacities(backends: Sequence[Backend]) -> list[float]:
    """Requests a second of each, all slots busy."""
    return [backend.capacity(*usual()) for backend in backends]


class World(msgspec.Struct, frozen=True):
    """Where policies are compared."""

    backends: tuple[Backend, ...]
    traffic: Traffic
    seeds: tuple[int, ...] = (1, 2, 3)
    seconds: float = SECONDS
    gateways: int = 1
    scrape: float = 0.0
    """Seconds between two readings of the backends' own metrics; 0: they have none."""
    reports: float = 0.0
    """Seconds between two reports of the gateways to each other; 0: they know nothing of each other."""

    def run(self, policies: Sequence[Policy], weights: Sequence[float], rate: float, seed: int) -> Seen:
        """One trace, so many requests a second. The same seed gives the same requests, whoever chooses."""
        trace = asks(self.traffic, LENGTHS, rate, self.seconds, seed)
        return Simulation(self.backends, policies, weights, self.traffic.troubles, seed + 1000, self.scrape, self.reports).run(
            trace
        )

    def new(self, name: str) -> Policy:
        """The policy of that name, before these backends."""
        return AllKnowing(self.backends) if name == KNOWING else POLICIES[name]()

    def weights(self, kind: str) -> list[float]:
        """What is told, of `Told.weights`."""
        return weights_of(kind, self.backends)

    @property
    def capacity(self) -> float:
        return sum(capacities(self.backends))

    @property
    def limit(self) -> float:
        """`LIMIT`, for these backends."""
        return LIMIT * SMALL.writes / min(one.writes for one in self.backends)


def make(told: Told, world: World) -> tuple[list[Policy], list[float]]:
    """A policy for each gateway, and the weights."""
    return [world.new(told.policy) for _ in range(world.gateways)], world.weights(told.weights)


def weights_of(kind: str, backends: Sequence[Backend]) -> list[float]:
    """What is told, of `Told.weights`."""
    if kind == "slots":
        return [float(one.slots) for one in backends]
    if kind == "sheet":
        return [one.reads for one in backends]  # bound by arithmetic, see `of_data_sheet`
    if kind == "capacity":
        return capacities(backends)
    return stale(capacities(backends)) if kind == "stale" else [1.0] * len(backends)


def stale(weights: Sequence[float]) -> list[float]:
    """As if the first one of the largest and the first one of the next class had changed places since they were measured."""
    found = list(weights)
    first, second = sorted(set(weights), reverse=True)[:2] if len(set(weights)) > 1 else (weights[0], weights[0])
    one, two = found.index(first), found.index(second)
    found[one], found[two] = second, first
    return found


def once(told: Told, world: World, rate: float, seed: int) -> Seen:
    """One trace. The same seed gives the same requests, whoever chooses."""
    policies, weights = make(told, world)
    return world.run(policies, weights, rate, seed)


def mean_of(runs: Sequence[Seen]) -> Seen:
    """The means of several runs, p99 of each included."""
    columns = {name: statistics.fmean(getattr(one, name) for one in runs) for name in _MEANS}
    shares = tuple(starmap(lambda *each: statistics.fmean(each), zip(*(one.shares for one in runs), strict=True)))
    return Seen(offered=sum(one.offered for one in runs), dropped=sum(one.dropped for one in runs), shares=shares, **columns)


_MEANS = ("mean", "p50", "p99", "first_p99", "throughput", "waited")


def at(told: Told, world: World, rate: float) -> Seen:
    return mean_of([once(told, world, rate, seed) for seed in world.seeds])


def even_of(told: Told, ours: Told, world: World, steps: int) -> float:
    """The highest rate, up to `LOAD`, at which it gives as many answers a second as ours does, but for `EVEN`."""

    def keeps_up(rate: float) -> bool:
        return at(told, world, rate).throughput >= EVEN * at(ours, world, rate).throughput

    highest = LOAD * world.capacity
    return highest if keeps_up(highest) else peak(keeps_up, 0.02 * world.capacity, highest, steps)


def peak_of(told: Told, world: World, steps: int, low: float = 0.02) -> float:
    """The highest rate that it carries on the mean of the seeds; 0 where it does not even carry `low` of the capacity."""

    def carries(rate: float) -> bool:
        seen = at(told, world, rate)
        return seen.p99 <= world.limit and seen.drops <= MOST_DROPS

    whole = world.capacity
    return peak(carries, low * whole, 1.2 * whole, steps)
