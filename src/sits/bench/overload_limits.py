"""How the limit is found and what a long line is good for, in a world whose clock jumps (`overload_world`)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from sits.bench.load import percentile
from sits.bench.overload_world import DRAWS, Batching, GateWorld, Half, Slots, crowd, saturate
from sits.bench.page import Section, Table, number
from sits.bench.plot import Curve, Plot
from sits.resilience.qos.limit import Limit
from sits.resources.reliability import QosSpec

MEAN = 0.1
"""Seconds of work of a request, on average."""
SETTLED = 5.0
"""Seconds after a cold start from which on the limit is judged."""
PLACES = (4, 16, 64, 256)
SHARES = (1.0, 0.5, 0.25, 0.1)
_LIMIT = """\
Simulated: servers that nobody describes to the limit, which begins at its default of 32 with endless demand. Work is 100 ms on
average, of five distributions. Each cell: the share of what the server can do that was done after the first 5 s (4 places: 20 s;
batching: 30 s), and how many were there at once for each place. `batching` works on up to 64 at once, and with 32 each is half as
fast as alone."""
_LINES = """\
Simulated: 32 places, 1.5 times as many requests as they can take (20 % P0, 50 % P1, 30 % P2). How long may a line of P1 and P2 be
when it has not been empty for as long as the class may wait? In shares of what can be served within that time: the whole of it
serves hardly more requests than a quarter, and each waits four times as long."""


def section(*, quick: bool) -> Section:
    """The limit before servers of many kinds, and when they change."""
    seeds = (1,) if quick else (1, 2, 3)
    rows = []
    for draw in DRAWS:
        cells = [_cell([_slots(places, draw, seed) for seed in seeds], places, places / MEAN) for places in PLACES]
        servers = [Batching(32.0, 64, DRAWS[draw](MEAN, random.Random(seed))) for seed in seeds]  # noqa: S311
        runs = [saturate(_fresh(), server, 60.0) for server in servers]
        rows.append([draw, *cells, _said(runs, 30.0, 64, servers[0].best(MEAN))])
    head = ["work", *(f"{places} places" for places in PLACES), "batching"]
    return Section("The limit", _LIMIT, [Table(head, rows), _changes()])


def lines(*, quick: bool) -> Section:
    """What a long line is good for under standing overload."""
    seconds = 10.0 if quick else 40.0
    rows = []
    for share in SHARES:
        dice = random.Random(3)  # noqa: S311 - no secrets
        world = GateWorld(Slots(32, DRAWS["uneven"](MEAN, dice)), QosSpec(), standing_share=share)
        told = world.run(crowd(dice, 480.0, (0.2, 0.5, 0.3), 0.0, seconds, ("one", "two", "three")), seconds)
        p1 = [one for one in told if one.priority == 1 and one.came > SETTLED]
        waits = sorted(1e3 * one.waited for one in p1 if one.how == "served")
        served = sum(one.how == "served" and one.over > SETTLED for one in told) / (seconds - SETTLED)
        cells = [100 * len(waits) / max(1, len(p1)), percentile(waits, 0.5), percentile(waits, 0.99), served]
        rows.append([f"{share:g}", *(number(cell) for cell in cells)])
    return Section(
        "Lines under standing overload",
        _LINES,
        [Table(["share", "P1 served %", "P1 waits p50 ms", "p99 ms", "answers a second"], rows)],
    )


def _fresh() -> Limit:
    return Limit(32, 2, 4096)


def _slots(places: int, draw: str, seed: int) -> Slots:
    return Slots(places, DRAWS[draw](MEAN, random.Random(seed)))  # noqa: S311 - no secrets


def _cell(servers: Sequence[Slots], places: int, best: float) -> str:
    settled = 4 * SETTLED if places < 16 else SETTLED
    return _said([saturate(_fresh(), server, settled + 20.0) for server in servers], settled, places, best)


def _said(runs: Sequence[Sequence[Half]], settled: float, places: int, best: float) -> str:
    seen = [half for run in runs for half in run if half.at > settled]
    done = sum(half.done for half in seen) / (0.5 * len(seen)) / best
    inside = sum(half.inside for half in seen) / len(seen) / places
    return f"{100 * done:.0f} %, {inside:.2f}"


def _changes() -> Plot:
    """Places that go and come, and work that becomes twice as long."""
    dice = random.Random(5)  # noqa: S311 - no secrets
    plain = DRAWS["uneven"](MEAN, dice)
    server = Slots(64, lambda now: plain(now) * (1 if now < 60.0 else 2))
    limit = _fresh()
    halves = saturate(
        limit, server, 80.0, [(20.0, lambda now: server.resize(16, now)), (40.0, lambda now: server.resize(128, now))]
    )
    places = [(0.0, 64.0), (20.0, 64.0), (20.0, 16.0), (40.0, 16.0), (40.0, 128.0), (80.0, 128.0)]
    return Plot(
        "limit",
        "Requests at a server whose places change; from 60 s on, each takes twice as long",
        "seconds since a cold start",
        "requests",
        [Curve("at the server", [(half.at, half.inside) for half in halves]), Curve("its places", [*places], dashed=True)],
    )
