"""Conversations before servers that remember: the pool, the policies, and what is said of them.

The pool is that of four generations, by the same arithmetic, with a model of today: 8 billion parameters whose heads share their
keys and values, so that the memory of a server holds the state of far more tokens than requests under way have.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from sits.bench.figure import Figure, bounded, measured
from sits.bench.page import Section, Table, number
from sits.bench.plot import Curve, Plot
from sits.bench.routing_pool import LOAD, OURS, RR, SHEETS, WLC, Told, World, at, peak_of, stale
from sits.bench.routing_talks import CacheAware, Sticky, Talking, Talks, Unread, turns
from sits.bench.routing_words import TALKS
from sits.bench.routing_world import Backend, Seen, Traffic, Trouble
from sits.routing.policies import Policy

_WEIGHED, _PER_TOKEN, _USED, _FREE = 16.0, 16.0e9, 0.4, 0.9
"""A model of 8 billion parameters in 16 bits: GB, operations of a token; the share of a chip's arithmetic that is reached, and of
its memory that engines take."""
_KV_GB = 131_072e-9
"""Of a token: 32 layers, 8 heads of keys and values, 128 wide, 16 bits."""
_LONGEST = 8192
"""Tokens that a slot is reckoned with."""


def of_data_sheet(name: str, gb_per_second: float, tera_flops: float, memory_gb: float) -> Backend:
    """A model server on one accelerator. A step reads the weights and the state of all requests under way, so that it takes the
    longer the more of its memory is used: `crowd` is that at all slots."""
    tokens = int((_FREE * memory_gb - _WEIGHED) / _KV_GB)
    slots = tokens // _LONGEST
    crowd = slots * _LONGEST * _KV_GB / _WEIGHED
    return Backend(name, slots, _USED * tera_flops * 1e12 / _PER_TOKEN, gb_per_second / _WEIGHED, crowd, tokens)


POOL = tuple(of_data_sheet(*sheet) for sheet in SHEETS for _ in range(2))
SECONDS = 100.0
TRAFFIC = (
    Traffic("steady"),
    Traffic("bursty", burst=2.0, calm=0.6),
    Traffic("degrading", troubles=(Trouble(0, SECONDS / 3, SECONDS * 2 / 3, slow=4.0),)),
)
TALK = Talks()
EXACT, STALE = "least-connections, exact weights", "least-connections, stale weights"
LC, STICKY, AWARE, UNREAD = "least-connections", "sticky conversations", "cache-aware", "least-added, prompts unread"
RIVALS: dict[str, Told] = {
    RR: Told("round-robin"),
    LC: Told("least-connections"),
    WLC: Told("least-connections", "slots"),
    STALE: Told("least-connections", "stale"),
    EXACT: Told("least-connections", "capacity"),
    STICKY: Told("sticky", "capacity"),
    AWARE: Told("cache-aware"),
    UNREAD: Told("unread"),
    OURS: Told("least-added"),
}
LABELS = {
    RR: "round_robin",
    WLC: "weighted_least_connections",
    EXACT: "wlc_exact",
    STALE: "wlc_stale",
    LC: "least_connections",
    STICKY: "sticky",
    AWARE: "cache_aware",
    UNREAD: "unread",
}
HELD = {RR: (">= 2.18", ">= 1.26"), WLC: (">= 1.44", ">= 1.13")}
DRAWN = {RR: "round-robin", WLC: "lc, slots", EXACT: "lc, exact", STICKY: "sticky", AWARE: "cache-aware", OURS: "least-added"}
GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
INFORMED = (WLC, EXACT, STALE, STICKY)
"""Those that are told something of the backends beforehand."""


class TalkWorld(World, frozen=True):
    """Conversations before `POOL`."""

    seconds: float = SECONDS

    def run(self, policies: Sequence[Policy], weights: Sequence[float], rate: float, seed: int) -> Seen:
        trace = turns(self.traffic, TALK, rate, self.seconds, seed)
        return Talking(self.backends, policies, weights, self.traffic.troubles, seed + 1000, self.scrape, self.reports).run(trace)

    def new(self, name: str) -> Policy:
        made: dict[str, Callable[[], Policy]] = {"sticky": Sticky, "cache-aware": CacheAware, "unread": Unread}
        return made[name]() if name in made else super().new(name)

    def weights(self, kind: str) -> list[float]:
        if kind == "slots":
            return [float(one.slots) for one in self.backends]
        if kind == "capacity":
            return capacities(self.backends)
        return stale(capacities(self.backends)) if kind == "stale" else [1.0] * len(self.backends)

    @property
    def capacity(self) -> float:
        return sum(capacities(self.backends))


_usual: list[tuple[float, float]] = []


def usual() -> tuple[float, float]:
    """Tokens of a turn that are new, and of an answer; mean."""
    if not _usual:
        made = turns(TRAFFIC[0], TALK, 100.0, 200.0, 99)
        _usual.append((statistics.fmean(one.new for one in made), statistics.fmean(one.answer * one.more for one in made)))
    return _usual[0]


def capacities(backends: Sequence[Backend]) -> list[float]:
    """Requests a second of each that reads nothing twice and has all slots busy: more than it can do, for its memory ends."""
    new, answer = usual()
    return [1.0 / (new / one.reads + answer / (one.slots * one.speed(one.slots))) for one in backends]


def measure(seeds: tuple[int, ...], quick: bool, say: Callable[[str], None]) -> tuple[list[Figure], Section]:
    """All policies, on the three kinds of traffic."""
    rivals = [RR, WLC, OURS] if quick else list(RIVALS)
    worlds = {traffic.name: TalkWorld(POOL, traffic, seeds, 20.0 if quick else SECONDS) for traffic in TRAFFIC}
    peaks: dict[tuple[str, str], float] = {}
    beside: dict[tuple[str, str], tuple[float, Seen, Seen]] = {}
    points: dict[tuple[str, float], Seen] = {}
    for name in rivals:
        for traffic, world in worlds.items():
            say(f"  {traffic}: {name}")
            peaks[traffic, name] = peak_of(RIVALS[name], world, 3 if quick else 7, _LEAST)
            if name != OURS:
                rate = min(LOAD * world.capacity, peaks[traffic, name] or _LEAST * world.capacity)
                beside[traffic, name] = rate, at(RIVALS[name], world, rate), at(RIVALS[OURS], world, rate)
        steady = worlds["steady"]
        for share in GRID[:2] if quick else GRID:
            points[name, share] = at(RIVALS[name], steady, share * steady.capacity)
    figures = _figures(peaks, beside, [name for name in rivals if name != OURS])
    if not quick:
        figures.append(_front(points))
    return sorted(figures, key=lambda figure: figure.bound is None), _section(peaks, beside, points, rivals)


_LEAST = 0.02
"""Of the capacity: where the search for a peak begins."""


def _figures(
    peaks: dict[tuple[str, str], float], beside: dict[tuple[str, str], tuple[float, Seen, Seen]], rivals: Sequence[str]
) -> list[Figure]:
    """Ours beside each: the worst of the three kinds of traffic counts."""
    figures = []
    for name in rivals:
        known = {traffic: beside[traffic, name] for traffic, who in beside if who == name}
        held = HELD.get(name, (None, None))
        means = {traffic: other.mean / ours.mean for traffic, (_, other, ours) in known.items()}
        tails = {traffic: other.p99 / ours.p99 for traffic, (_, other, ours) in known.items()}
        rates = {traffic: peaks[traffic, OURS] / peaks[traffic, name] for traffic in known if peaks[traffic, name]}
        for what, found, bound in (("mean", means, held[0]), ("peak", rates, held[1]), ("p99", tails, None)):
            label = f"routing_talks_{what}_vs_{LABELS[name]}"
            detail = "; ".join(f"{traffic} {number(value)}" for traffic, value in found.items())
            worst = min(found.values(), default=None)
            made = measured(label, worst, "x", detail) if bound is None else bounded(label, worst, "x", bound, detail)
            figures.append(made)
    return figures


def _front(points: dict[tuple[str, float], Seen]) -> Figure:
    """Whether any other is quicker at the same rate."""
    others = [name for name in RIVALS if name not in (OURS, UNREAD)]
    gaps = {share: points[OURS, share].mean / min(points[name, share].mean for name in others) for share in GRID}
    detail = "steady traffic, beside all, also those that are told exact weights: " + ", ".join(
        f"{number(gap)} at {share:.0%}" for share, gap in gaps.items()
    )
    return bounded("routing_talks_pareto", max(gaps.values()), "x", "<= 1.0", detail)


def _section(
    peaks: dict[tuple[str, str], float],
    beside: dict[tuple[str, str], tuple[float, Seen, Seen]],
    points: dict[tuple[str, float], Seen],
    rivals: Sequence[str],
) -> Section:
    rows = []
    for name in (one for one in rivals if one != OURS):
        for traffic in TRAFFIC:
            rate, other, ours = beside[traffic.name, name]
            cells = [peaks[traffic.name, name], peaks[traffic.name, OURS], rate, other.mean, ours.mean]
            cells += [other.p99, ours.p99, other.first_p99, ours.first_p99]
            rows.append([name, traffic.name, *map(number, cells)])
    head = [
        "policy",
        "traffic",
        "peak rate /s",
        "ours",
        "compared at",
        "mean s",
        "ours",
        "p99 s",
        "ours",
        "first content p99 s",
        "ours",
    ]
    shares = sorted({share for _, share in points})
    curves = [
        Curve(label, [(points[name, share].throughput, points[name, share].mean) for share in shares])
        for name, label in DRAWN.items()
        if name in rivals
    ]
    plot = Plot("front-talks", "Latency and throughput, conversations", "answers a second", "mean seconds", curves, log=True)
    return Section("Conversations, before servers that remember", TALKS, [_servers(), Table(head, rows), plot])


def _servers() -> Table:
    rows = []
    for one in dict.fromkeys(POOL):
        cells = [POOL.count(one), one.slots, one.memory, one.reads, one.writes, 1.0 + one.crowd, capacities([one])[0]]
        rows.append([one.name, *map(number, cells)])
    head = [
        "backend",
        "how many",
        "slots",
        "tokens it remembers",
        "prompt tokens/s",
        "answer tokens/s",
        "a step when full",
        "capacity /s",
    ]
    return Table(head, rows)
