"""Several gateways before the same backends: alone, by the backends' own metrics, and by what they tell each other."""

from __future__ import annotations

import statistics
import timeit
from collections.abc import Callable

import msgspec

from sits.bench.figure import Figure, bounded, measured
from sits.bench.page import Section, Table, number
from sits.bench.routing_pool import EXACT, LOAD, MIXED, OURS, RIVALS, STEADY, Told, World, at
from sits.bench.routing_talking import POOL, TRAFFIC, TalkWorld
from sits.bench.routing_words import GATEWAYS
from sits.bench.routing_world import Seen
from sits.gateway.reporting import EVERY
from sits.routing.beginnings import Beginnings, beginnings
from sits.routing.policies import TargetState, Usual
from sits.routing.reports import MOST, Journal, Peers, Report

HALF = 0.5
"""Of the capacity, for conversations: what nobody knows of them costs the more the more there are."""
SLOW = 0.2
"""Seconds between reports over a bus that is ten times as slow."""
SCRAPE = 1.0
"""Seconds between two readings of the backends' metrics."""
WAYS: dict[str, tuple[float, float]] = {
    "nothing": (0.0, 0.0),
    "metrics, every second": (SCRAPE, 0.0),
    "reports": (0.0, EVERY),
    "reports, ten times as slow": (0.0, SLOW),
    "reports, and metrics": (SCRAPE, EVERY),
}
"""What they know of each other's requests: seconds between readings, and between reports."""
MANY = (2, 4, 8, 16)


def measure(seeds: tuple[int, ...], quick: bool, say: Callable[[str], None]) -> tuple[list[Figure], Section]:
    """Single prompts and conversations, by how many gateways there are and what they know of each other."""
    seconds = 20.0 if quick else 100.0
    worlds: dict[str, tuple[World, float]] = {
        "single prompts": (World(MIXED, STEADY, seeds, 3 * seconds), LOAD),
        "conversations": (TalkWorld(POOL, TRAFFIC[0], seeds, seconds), HALF),
    }
    found: dict[tuple[str, int, str], Seen] = {}
    for kind, (world, load) in worlds.items():
        rate = load * world.capacity
        found[kind, 1, "nothing"] = at(RIVALS[OURS], world, rate)
        for many in (2, 8) if quick else MANY:
            say(f"  {kind}, {many} gateways")
            for way, (scrape, reports) in WAYS.items():
                told = msgspec.structs.replace(world, gateways=many, scrape=scrape, reports=reports)
                found[kind, many, way] = at(RIVALS[OURS], told, rate)
    return [*_figures(found), *_costs(200 if quick else 2000)], _section(found, _beside(worlds["single prompts"], quick))


def _beside(one: tuple[World, float], quick: bool) -> list[tuple[int, str, Seen]]:
    """Least connections with exact weights, which goes by reports as well."""
    world, load = one
    rows = []
    for many in (1, 8) if quick else (1, *MANY):
        for way in ("nothing", "reports") if many > 1 else ("nothing",):
            told = msgspec.structs.replace(world, gateways=many, reports=WAYS[way][1])
            rows.append((many, way, at(Told("least-connections", "capacity"), told, load * world.capacity)))
    return rows


def _figures(found: dict[tuple[str, int, str], Seen]) -> list[Figure]:
    figures = []
    for kind in ("single prompts", "conversations"):
        alone = found[kind, 1, "nothing"].mean
        means = {many: seen.mean / alone for (of, many, way), seen in found.items() if of == kind and way == "reports"}
        unknown = {
            many: seen.mean / alone for (of, many, way), seen in found.items() if of == kind and way == "nothing" and many > 1
        }
        label = kind.replace(" ", "_")
        detail = "mean latency over that of one gateway; " + ", ".join(f"{many}: {number(gap)}" for many, gap in means.items())
        figures.append(bounded(f"routing_gateways_{label}", max(means.values()), "x", "<= 1.15", detail))
        detail = "the same where they know nothing of each other; " + ", ".join(
            f"{m}: {number(gap)}" for m, gap in unknown.items()
        )
        figures.append(measured(f"routing_gateways_{label}_unknown", max(unknown.values()), "x", detail))
    return figures


def _section(found: dict[tuple[str, int, str], Seen], beside: list[tuple[int, str, Seen]]) -> Section:
    tables = []
    for kind in ("single prompts", "conversations"):
        rows = []
        for (of, many, way), seen in found.items():
            if of == kind:
                rows.append([str(many), way if many > 1 else "", *map(number, (seen.mean, seen.p99, seen.first_p99))])
        tables.append(Table([f"gateways, {kind}", "know of each other", f"{OURS}: mean s", "p99 s", "first content p99 s"], rows))
    rows = [
        [str(many), way if many > 1 else "", *map(number, (seen.mean, seen.p99, seen.first_p99))] for many, way, seen in beside
    ]
    tables.append(
        Table(["gateways, single prompts", "know of each other", f"{EXACT}: mean s", "p99 s", "first content p99 s"], rows)
    )
    return Section("Several gateways", GATEWAYS, tables)


def _costs(loops: int) -> list[Figure]:
    """What reports cost a request of ours, and one of somebody else's."""
    alone, journal = _request(None), Journal("ours", _silent)
    told = _request(journal)
    ours = _microseconds(told, loops) - _microseconds(alone, loops)
    while True:
        told()
        if journal.left_out:
            break
    state = TargetState(Usual(), "a")
    states = {"a": state}
    report = msgspec.msgpack.encode(journal.take(states))
    memory = Beginnings()
    hears = msgspec.msgpack.Decoder(Report)
    peers = Peers(states, [memory])
    heard = [0]

    def hear() -> None:
        heard[0] += 1
        peers.hear(msgspec.structs.replace(hears.decode(report), number=heard[0]), 1.0 + heard[0])

    each = _microseconds(hear, max(20, loops // 20)) / MOST
    return [
        bounded(
            "routing_report_us", ours, "us", "<= 3", "a request that is written down for the others: started, first content, end"
        ),
        measured("routing_heard_us", each, "us", "a request of another one, with its outcome, first content and prompt of 2 kB"),
    ]


def _request(journal: Journal | None) -> Callable[[], None]:
    state = TargetState(Usual(), "a")
    state.journal = journal
    digests = beginnings(b"x" * 2048)

    def request() -> None:
        among = state.started(0.0)
        if journal is not None:
            journal.read("a", digests)
        state.spoke(0.1, 0.1, among, 2048.0, 0.0)
        state.ended(1.0, 1.0, among, True, 0.1, 20.0, 2048.0, 0.0)

    return request


def _silent() -> None:
    """Nobody is told."""


def _microseconds(call: Callable[[], object], loops: int) -> float:
    return 1e6 * statistics.median(timeit.repeat(call, number=loops, repeat=5)) / loops
