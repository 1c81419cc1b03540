"""What `sits bench overload` found: its figures, its plots, its page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from sits.bench import Outcome
from sits.bench.environment import environment
from sits.bench.figure import Figure, bounded, measured
from sits.bench.load import percentile
from sits.bench.overload_client import Row
from sits.bench.page import QUICK_RUN, Page, Section, Table, number
from sits.bench.plot import Curve, Plot

PROMISE = {0: 0.3, 1: 0.8, 2: 2.0}
"""Seconds for everything but the model's own work, by class."""
SERVED_BOUND, GOODPUT_BOUND, RSS_BOUND, RECOVERY_BOUND, REFUSAL_BOUND = ">= 0.999", ">= 0.95", "<= 10", "< 2", "< 5"
STEP = 0.5
"""Seconds of a point in the plots."""
LATE = 50.0
"""Milliseconds after which a refusal comes after a wait in line."""
OVERLOADED = (429, 503)


class Found(msgspec.Struct, frozen=True):
    """One gateway's half minute. `memory` is (seconds since the start, MiB)."""

    rows: list[Row]
    memory: list[tuple[float, float]]
    capacity: float
    begins: float
    """When the overload does."""
    ends: float
    over: float
    """When the last request was sent."""

    def during(self, priority: int | None = None) -> list[Row]:
        """Requests that came during the overload."""
        return [row for row in self.rows if self.begins <= row.at < self.ends and priority in (None, row.priority)]

    @property
    def goodput(self) -> float:
        """Good answers a second that ended during the overload."""
        ends = [end(row) for row in self.rows if row.status == 200]
        return sum(self.begins <= at < self.ends for at in ends) / (self.ends - self.begins)

    def kept(self, priority: int) -> float:
        """The share of a class that was served within its time."""
        rows = self.during(priority)
        return sum(good(row) for row in rows) / len(rows) if rows else 0.0

    @property
    def refusals(self) -> list[Row]:
        """Those of the overload."""
        return [row for row in self.during() if row.status in OVERLOADED]

    @property
    def recovery(self) -> float:
        """Seconds after the load has dropped when the last request came that was not served within its time."""
        bad = [row.at for row in self.rows if row.at >= self.ends and not good(row)]
        return max(bad) - self.ends if bad else 0.0

    @property
    def swing(self) -> float:
        """MiB by which memory was above or below the middle during the overload, once it had been on for a tenth of its time."""
        seen = [mib for at, mib in self.memory if 0.9 * self.begins + 0.1 * self.ends <= at < self.ends]
        return (max(seen) - min(seen)) / 2 if seen else 0.0

    @property
    def growth(self) -> float:
        """MiB: the most from the overload on, beyond the last before it."""
        before = [mib for at, mib in self.memory if at < self.begins]
        after = [mib for at, mib in self.memory if at >= self.begins]
        return max(after) - before[-1] if before and after else 0.0


def end(row: Row) -> float:
    """When it was over."""
    return row.at + row.late + row.took


def beyond(row: Row) -> float:
    """Seconds that it took beyond the model's own work, from when it was due."""
    return row.late + row.took - row.worked


def good(row: Row) -> bool:
    """Whether it was served within its class's time and the model's own work."""
    return row.status == 200 and beyond(row) <= PROMISE[row.priority]


def outcome(qos: Found, fifo: Found, more: Sequence[Section] = (), *, quick: bool) -> Outcome:
    """`more` is what else the page has."""
    return Outcome(_figures(qos, fifo, quick=quick), _page(qos, fifo, more, quick=quick))


def _figures(qos: Found, fifo: Found, *, quick: bool) -> list[Figure]:
    """A quick run only informs: in a few seconds one request is more than a thousandth."""
    took = sorted(1e3 * row.took for row in qos.refusals)
    late = sum(ms > LATE for ms in took)
    top = qos.during(0)
    missing = sum(row.retry_after < 1 for row in qos.refusals)
    rows = [
        ("p0_served", qos.kept(0), "", SERVED_BOUND, f"of {len(top)}, within 300 ms beyond the model's work"),
        ("goodput", qos.goodput / qos.capacity, "", GOODPUT_BOUND, f"of {qos.capacity:.0f} answers a second"),
        ("rss_swing_mib", qos.swing, "MiB", RSS_BOUND, "above and below the middle, during the overload"),
        ("recovery_seconds", qos.recovery, "s", RECOVERY_BOUND, "until all classes are served within their time"),
        (
            "refusal_p99_ms",
            percentile(took, 0.99) if took else None,
            "ms",
            REFUSAL_BOUND,
            f"of {len(took)}, by the client's clock; median {number(percentile(took, 0.5))}; {late} after a wait in line",
        ),
        ("refusals_without_retry_after", float(missing), "", "<= 0", f"of {len(took)}"),
    ]
    found = [
        measured(name, value, unit, detail) if quick else bounded(name, value, unit, bound, detail)
        for name, value, unit, bound, detail in rows
    ]
    own = sorted(row.overhead for row in qos.refusals)
    if own:
        detail = "by the gateway's clock, from the end of the request to the answer; who waited in line included"
        found += [measured(f"refusal_gateway_p{share * 100:g}_ms", percentile(own, share), "ms", detail) for share in (0.5, 0.99)]
    for name, one in (("qos", qos), ("fifo", fifo)):
        lag = sorted(1e3 * row.late for row in one.rows)
        found += [
            measured(f"{name}_p0_kept", one.kept(0), "", "served within 300 ms beyond the model's work"),
            measured(f"{name}_p1_kept", one.kept(1), "", "within 800 ms"),
            measured(f"{name}_p2_kept", one.kept(2), "", "within 2 s"),
            measured(f"{name}_goodput", one.goodput, "1/s", "answers, in time or not"),
            measured(f"{name}_recovery_seconds", one.recovery, "s"),
            measured(f"{name}_rss_growth_mib", one.growth, "MiB", "most from the overload on, beyond the last before it"),
            measured(f"{name}_client_lag_p99_ms", percentile(lag, 0.99), "ms", "the load's own delay; it counts as ours"),
        ]
    return found


_INTRO = """\
What happens when four times as many requests come as the model can take: with [classes of service](quality-of-service.md), and
without, where everybody is let in and waits in the model's line, first come, first served."""
_HOW = """\
A real `sits serve` on one core; the model server and the load on another. The model has 32 places and a line before them; a
request takes 100 ms and 60 ms more on average (exponential). What it can give is measured first. 10 % of the requests are P0,
30 % P1, 60 % P2, of three keys, at random (Poisson). Nobody waits for an answer before sending the next; a client goes away after
5 s.
The gateway is told nothing about the model: it starts with the default limit and finds the right one. There are no caches and no
replacement in this, so P1 and P2 can only be served or refused."""


def _page(qos: Found, fifo: Found, more: Sequence[Section], *, quick: bool) -> Page:
    intro = _INTRO + (QUICK_RUN if quick else "")
    waits = Plot(
        "p0-wait",
        "P0: time beyond the model's own work, 99th percentile",
        "seconds since the start; the line of `first come, first served` ends where all of its clients have gone",
        "ms",
        [
            Curve("with classes", _points(qos, 0, _p99)),
            Curve("first come, first served", _points(fifo, 0, _p99)),
            Curve("promise", [(0.0, 300.0), (qos.over, 300.0)], dashed=True),
        ],
        log=True,
        spans=[(qos.begins, qos.ends, "4 x overload")],
    )
    kept = Plot(
        "kept",
        "Requests served within their time, by class",
        "seconds since the start",
        "% of those that came",
        [
            *(Curve(f"P{priority}", _points(qos, priority, _share)) for priority in range(3)),
            Curve("P0, first come first served", _points(fifo, 0, _share), dashed=True),
        ],
        spans=[(qos.begins, qos.ends, "4 x overload")],
    )
    memory = Plot(
        "memory",
        "Memory of the gateway",
        "seconds since the start",
        "MiB resident",
        [
            Curve("with classes", [(at, mib) for at, mib in qos.memory]),
            Curve("first come, first served", [(at, mib) for at, mib in fifo.memory]),
        ],
        spans=[(qos.begins, qos.ends, "4 x overload")],
    )
    sections = [
        Section("How", _HOW),
        Section("Side by side", "", [waits, kept, _table(qos, fifo), memory]),
        *more,
    ]
    return Page("overload", "Overload", intro, "sits bench overload --out docs", environment(), sections)


def _points(found: Found, priority: int, value: Callable[[Sequence[Row]], float | None]) -> list[tuple[float, float | None]]:
    """A value of each half second's requests of a class."""
    steps: list[list[Row]] = [[] for _ in range(int(found.over / STEP) + 1)]
    for row in found.rows:
        if row.priority == priority:
            steps[min(len(steps) - 1, int(row.at / STEP))].append(row)
    return [((index + 0.5) * STEP, value(rows)) for index, rows in enumerate(steps)]


def _p99(rows: Sequence[Row]) -> float | None:
    """Milliseconds, of all that were sent: who was not served has waited in vain until the end."""
    return max(1.0, 1e3 * percentile(sorted(beyond(row) for row in rows), 0.99)) if rows else None


def _share(rows: Sequence[Row]) -> float | None:
    return 100 * sum(good(row) for row in rows) / len(rows) if rows else None


def _table(qos: Found, fifo: Found) -> Table:
    rows = []
    for name, found in (("with classes", qos), ("first come, first served", fifo)):
        for priority in range(3):
            came = found.during(priority)
            served = sorted(1e3 * beyond(row) for row in came if row.status == 200)
            refused = sum(row.status in OVERLOADED for row in came)
            gone = sum(row.status == 0 for row in came)
            cells = [len(came), 100 * found.kept(priority), 100 * len(served) / max(1, len(came))]
            cells += [100 * refused / max(1, len(came)), 100 * gone / max(1, len(came))]
            times = [percentile(served, 0.5), percentile(served, 0.99)] if served else [None, None]
            rows.append([f"P{priority}, {name}", *(number(cell) for cell in (*cells, *times))])
    head = ["during the overload", "came", "served in time %", "served %", "refused %", "client went away %"]
    return Table([*head, "beyond the model p50 ms", "p99 ms"], rows)
