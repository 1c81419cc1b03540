"""What `sits bench routing` says of what it found: the figures with their bounds, and the sections of the page."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from sits.bench.figure import Figure, bounded, measured
from sits.bench.page import Section, Table, number
from sits.bench.plot import Curve, Plot
from sits.bench.routing_cluster import Placed
from sits.bench.routing_pool import (
    EXACT,
    GENERATIONS,
    INFORMED,
    KNOWING,
    LIMIT,
    LOAD,
    MIXED,
    OURS,
    RR,
    SHEET,
    STALE,
    STEADY,
    TRAFFIC,
    WLC,
    World,
    capacities,
)
from sits.bench.routing_real import Compared
from sits.bench.routing_words import (
    CLUSTER,
    COMPARED,
    EVEN_TEXT,
    FAILING_TEXT,
    GENERATIONS_TEXT,
    REAL,
    SETUP,
    TRAFFIC_TEXT,
    WHICH,
)
from sits.bench.routing_world import Backend, Seen

Rates = dict[tuple[str, str], float]
"""(traffic, policy) -> peak rate."""
Points = dict[tuple[str, str, float], Seen]
"""(traffic, policy, share of the pool's capacity) -> what clients saw."""
Beside = dict[tuple[str, str], tuple[float, Seen, Seen, float]]
"""(traffic, policy) -> the rate at which it is compared with ours, it, ours, the least mean that any policy can have there."""
MEAN_RR, MEAN_WLC, PEAK_RR, PEAK_WLC = ">= 2.18", ">= 1.44", ">= 1.26", ">= 1.13"
LABELS = {
    RR: "round_robin",
    WLC: "weighted_least_connections",
    EXACT: "wlc_exact",
    STALE: "wlc_stale",
    SHEET: "wlc_data_sheet",
    "least-connections": "least_connections",
    "peak-ewma": "peak_ewma",
    "dynamic-weights": "dynamic_weights",
    KNOWING: "all_knowing",
}
DRAWN = {
    RR: "round-robin",
    "dynamic-weights": "dynamic",
    "least-connections": "least-conn.",
    WLC: "lc, slots",
    EXACT: "lc, exact",
    OURS: "least-added",
}
"""In the plots, and what they are called there."""


def ratios(rates: Rates, beside: Beside, rivals: Sequence[str], scene: str = "") -> list[Figure]:
    """Ours beside each: the worst of the three kinds of traffic counts."""
    figures = []
    for name in (one for one in LABELS if one in rivals):
        known = {t.name: beside[t.name, name] for t in TRAFFIC}
        means = {traffic: other.mean / ours.mean for traffic, (_, other, ours, _) in known.items()}
        most = {traffic: other.mean / least for traffic, (_, other, _, least) in known.items()}
        tails = {traffic: other.p99 / ours.p99 for traffic, (_, other, ours, _) in known.items()}
        peaks = {t.name: rates[t.name, OURS] / rates[t.name, name] for t in TRAFFIC if rates[t.name, name]}
        label = f"{scene}{{}}_vs_{LABELS[name]}"
        held = {RR: (MEAN_RR, PEAK_RR), WLC: (MEAN_WLC, PEAK_WLC)}.get(name)
        figures += [
            _worst(label.format("mean"), means, held[0] if held else None, most),
            _worst(label.format("peak"), peaks, held[1] if held else None),
            _worst(label.format("p99"), tails, None),
        ]
        if held:
            figures.append(_worst(label.format("mean_possible"), most, None))
    return sorted(figures, key=lambda figure: figure.bound is None)


def _worst(name: str, found: dict[str, float], bound: str | None, most: dict[str, float] | None = None) -> Figure:
    """The least of them; `most` is what any policy could have."""
    beyond = {traffic: f" (at most {number(value)})" for traffic, value in (most or {}).items()}
    detail = "; ".join(f"{traffic} {number(value)}{beyond.get(traffic, '')}" for traffic, value in found.items())
    worst = min(found.values()) if found else None
    if bound is None:
        return measured(f"routing_{name}", worst, "x", detail)
    return bounded(f"routing_{name}", worst, "x", bound, detail)


def even(last: Beside, rivals: Sequence[str]) -> list[Figure]:
    """The means at the highest rate at which the other one gives as many answers."""
    figures = []
    for name in (one for one in LABELS if one in rivals):
        known = {t.name: last[t.name, name] for t in TRAFFIC}
        found = {traffic: other.mean / ours.mean for traffic, (_, other, ours, _) in known.items()}
        most = {traffic: other.mean / least for traffic, (_, other, _, least) in known.items()}
        figures.append(_worst(f"mean_last_even_vs_{LABELS[name]}", found, None, most))
    return figures


def front(points: Points, rivals: Sequence[str]) -> list[Figure]:
    """Whether any other policy is quicker at the same rate."""
    others = [name for name in rivals if name not in (OURS, "least-expected", KNOWING)]
    blind = [name for name in others if name not in INFORMED]
    return [
        bounded("routing_pareto", *_gap(points, blind), "<= 1.0", "beside all that are told nothing of the backends"),
        measured("routing_pareto_told", *_gap(points, others), "beside all, also those that are told exact weights"),
    ]


def _gap(points: Points, others: Sequence[str]) -> tuple[float, str]:
    """Our mean over the least mean of others, at the rate where that is largest; its unit."""
    places = {(traffic, share) for traffic, _, share in points}
    gaps = [
        points[traffic, OURS, share].mean / min(points[traffic, other, share].mean for other in others)
        for traffic, share in places
        if points[traffic, OURS, share].p99 <= LIMIT
    ]
    return max(gaps), "x"


def pool_sections(
    rates: Rates, points: Points, beside: Beside, last: Beside, black: dict[str, Seen], rivals: Sequence[str]
) -> list[Section]:
    whole = World(MIXED, STEADY).capacity
    sections = [Section("How it is measured", SETUP, [_backends(MIXED)]), Section("Which weighted least-connections", WHICH)]
    for traffic in TRAFFIC:
        head = ["policy", "mean s", "p50 s", "p99 s", "first content p99 s", "without answer %", "peak rate /s", "of capacity"]
        rows = []
        for name in rivals:
            one, peak = points[traffic.name, name, LOAD], rates[traffic.name, name]
            cells = [one.mean, one.p50, one.p99, one.first_p99, 100.0 * one.drops, peak, peak / whole]
            rows.append([f"**{name}**" if name == OURS else name, *map(number, cells)])
        parts: list[Table | Plot] = [Table(head, rows), _drawing(points, traffic.name, rivals)]
        sections.append(Section(f"{traffic.name.capitalize()} traffic", TRAFFIC_TEXT[traffic.name], parts))
    sections.append(Section("Side by side, at equal throughput", COMPARED, [_compared(beside, rivals)]))
    sections.append(Section("Side by side, at the last rate with equal throughput", EVEN_TEXT, [_compared(last, rivals)]))
    rows = [[name, *map(number, (one.mean, one.p99, 100.0 * one.drops, 100.0 * one.shares[0]))] for name, one in black.items()]
    head = ["policy", "mean s", "p99 s", "without answer %", "% of requests to it"]
    sections.append(Section("A backend that fails at once", FAILING_TEXT, [Table(head, rows)]))
    return sections


def _drawing(points: Points, traffic: str, rivals: Sequence[str]) -> Plot:
    # Beyond its peak, the latency of a policy is that of its queues, and grows with the length of the trace.
    shares = sorted({share for kind, _, share in points if kind == traffic})
    curves = []
    for name, label in DRAWN.items():
        if name in rivals:
            seen = [points[traffic, name, share] for share in shares]
            curves.append(Curve(label, [(one.throughput, one.mean) for one in seen]))
    title = f"Latency and throughput, {traffic} traffic"
    return Plot(f"front-{traffic}", title, "answers a second", "mean seconds", curves, log=True)


def generations_section(rates: Rates, beside: Beside, rivals: Sequence[str]) -> Section:
    """The pool of four generations: each where it is compared with ours."""
    rows = []
    for name in (one for one in rivals if one != OURS):
        for traffic in TRAFFIC:
            rate, other, ours, least = beside[traffic.name, name]
            peak = rates[traffic.name, name]
            cells = [peak, rates[traffic.name, OURS], rate, other.mean, ours.mean, least, other.p99, ours.p99]
            rows.append([name, traffic.name, *map(number, cells)])
    head = ["policy", "traffic", "peak rate /s", "ours", "compared at", "mean s", "ours", "at least", "p99 s", "ours"]
    return Section("Four generations of hardware", GENERATIONS_TEXT, [_backends(GENERATIONS), Table(head, rows)])


def _backends(pool: Sequence[Backend]) -> Table:
    rows = []
    for backend in dict.fromkeys(pool):
        cells = [pool.count(backend), backend.slots, backend.reads, backend.writes, capacities([backend])[0]]
        rows.append([backend.name, *map(number, cells)])
    return Table(["backend", "how many", "slots", "prompt tokens/s", "answer tokens/s", "capacity /s"], rows)


def _compared(beside: Beside, rivals: Sequence[str]) -> Table:
    rows = []
    for name in (one for one in rivals if one != OURS):
        for traffic in TRAFFIC:
            rate, other, ours, least = beside[traffic.name, name]
            cells = [rate, other.throughput, ours.throughput, other.mean, ours.mean, least]
            cells += [other.mean / ours.mean, other.mean / least, other.p99 / ours.p99]
            rows.append([name, traffic.name, *map(number, cells)])
    head = [
        "policy",
        "traffic",
        "rate /s",
        "throughput",
        "ours",
        "mean s",
        "ours",
        "at least",
        "mean, times",
        "at most",
        "p99, times",
    ]
    return Table(head, rows)


def alike_section(seen: dict[str, Seen], rate: float) -> Section:
    rows = [[name, *map(number, (one.mean, one.p50, one.p99, one.first_p99))] for name, one in seen.items()]
    head = ["policy", "mean s", "p50 s", "p99 s", "first content p99 s"]
    text = f"Eight times `medium`, steady traffic, {number(rate)} requests a second. Here a policy has little to win."
    return Section("Backends that are all the same", text, [Table(head, rows)])


def cluster(plain: Sequence[Placed], tight: Sequence[Placed]) -> tuple[list[Figure], list[Section]]:
    """The two ways of placing."""

    def latency(runs: Sequence[Placed]) -> float:
        return statistics.fmean(one.waited + one.choosing_us / 1e6 for one in runs)

    def lost(runs: Sequence[Placed]) -> float:
        return statistics.fmean(one.fragmentation for one in runs)

    detail = f"{1e3 * latency(plain):.3g} ms and {1e3 * latency(tight):.3g} ms: waiting for a node, and choosing it"
    choosing = [statistics.fmean(one.choosing_us for one in runs) for runs in (plain, tight)]
    told = f"{100 * lost(plain):.3g} % and {100 * lost(tight):.3g} % of the free memory"
    figures = [
        bounded("routing_cluster_latency", latency(plain) / latency(tight), "x", ">= 3.8", detail),
        bounded("routing_cluster_fragmentation", lost(plain) / lost(tight), "x", ">= 3.6", told),
        measured("routing_cluster_choosing", choosing[0] / choosing[1], "x", f"{choosing[0]:.3g} us and {choosing[1]:.3g} us"),
    ]
    rows = []
    for name, runs in (("plain scorer", plain), ("tightest fit", tight)):
        columns = [
            [1e3 * one.waited for one in runs],
            [1e3 * one.waited_p99 for one in runs],
            [float(one.waiting) for one in runs],
            [100 * one.fragmentation for one in runs],
            [one.choosing_us for one in runs],
        ]
        rows.append([name, *(number(statistics.fmean(column)) for column in columns)])
    head = ["placed by", "waited ms, mean", "p99", "still waiting at the end", "fragmented %", "us a choice"]
    return figures, [Section("A thousand nodes", CLUSTER, [Table(head, rows)])]


def real(found: dict[str, Compared], rate: float) -> tuple[list[Figure], Section]:
    """Through a gateway, before real servers."""
    ours = found[OURS]
    figures = []
    for name, label, bound in ((RR, "round_robin", MEAN_RR), (WLC, "weighted_least_connections", MEAN_WLC)):
        if name in found:
            other = found[name]
            ratio = other.mean / ours.mean
            alike = "; slots are alike" if name == WLC else ""
            detail = f"{number(other.mean)} s and {number(ours.mean)} s; {rate:g} requests a second for each{alike}"
            figures.append(bounded(f"routing_real_mean_vs_{label}", ratio, "x", bound, detail))
            figures.append(measured(f"routing_real_p99_vs_{label}", other.p99 / ours.p99, "x"))
            even = f"{number(ours.throughput)} and {number(other.throughput)} answers a second"
            figures.append(measured(f"routing_real_throughput_vs_{label}", ours.throughput / other.throughput, "x", even))
    for name in (EXACT, STALE, SHEET):
        if name in found:
            tail = f"p99 {number(found[name].p99 / ours.p99)} times"
            figures.append(measured(f"routing_real_mean_vs_{LABELS[name]}", found[name].mean / ours.mean, "x", tail))
    failed = sum(one.failed for one in found.values())
    offered = sum(one.offered for one in found.values())
    off, who = max((abs(one.mean / one.simulated - 1.0), one.name) for one in found.values())
    loads = [one.load for one in found.values()]
    late = max(one.late for one in found.values())
    figures += [
        bounded("routing_real_failed", failed, "requests", "== 0", f"of {offered:,}, whichever policy"),
        measured("routing_real_vs_simulated", 100.0 * off, "%", f"so much is the mean latency off at most, that of {who}"),
        measured("routing_real_late", 1e3 * late, "ms", "so late were requests sent, 99th percentile of the worst policy"),
        measured(
            "routing_real_load",
            statistics.fmean(loads),
            "",
            f"of the machine, while it ran; {min(loads):.1f} to {max(loads):.1f}",
        ),
    ]
    rows = []
    for one in found.values():
        name = f"**{one.name}**" if one.name == OURS else one.name
        cells = [one.mean, one.p50, one.p99, one.throughput, one.failed]
        cells += [100.0 * one.shares[0], 100.0 * one.shares[-1], one.simulated, one.simulated_p99]
        rows.append([name, *map(number, cells)])
    head = [
        "policy",
        "mean s",
        "p50 s",
        "p99 s",
        "answers /s",
        "failed",
        "% to fastest",
        "% to slowest",
        "simulated: mean s",
        "p99 s",
    ]
    return sorted(figures, key=lambda figure: figure.bound is None), Section(
        "A real gateway before real servers", REAL, [Table(head, rows)]
    )
