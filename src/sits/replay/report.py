"""What another configuration would have changed for recorded traffic, added up row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from sits.observe.trace_row import Row, outcome
from sits.replay.latency import Fit, Latencies, percentile
from sits.replay.replayer import Redecision
from sits.resources.choosing import FilterUse, ScoreUse
from sits.resources.kinds import Route
from sits.resources.snapshot import Snapshot
from sits.routing.estimate import Estimated
from sits.state.ledger.price import Price, price_of

FEWEST = 20
"""Answers of a target from which its 95th percentile is told."""
MOST_NAMED = 20
"""Requests that are named of those that differ."""
NANO = 1e-9
ACCURACY = "accuracy-promise"
USUAL_ACCURACY = 0.924
"""What filter and score `accuracy-promise` ask for where the route says nothing."""


class Move(msgspec.Struct, frozen=True):
    """Requests of a route that are asked of another one first."""

    route: str
    of: str
    """Who was asked; empty where the request was refused."""
    to: str
    """Who would be; empty where it would be refused."""
    count: int
    share: float
    """Of the requests of this route that could be decided."""


class Promise(msgspec.Struct, frozen=True):
    """Something that is promised, and whether it is kept."""

    what: str
    """`latency`: 95 of 100 answers of a target, in ms. `total`: requests of a route that take longer than it gives them.
    `accuracy`: requests of a route whose target promises less than the route asks for."""
    subject: str
    limit_before: float | None
    limit_after: float | None
    before: float | None
    """Milliseconds for `latency`, else requests; None where too little is known."""
    after: float | None

    @property
    def broken_before(self) -> bool:
        """Whether it was, under the configuration of the trace."""
        return self._broken(self.before, self.limit_before)

    @property
    def broken_after(self) -> bool:
        """Whether it would be."""
        return self._broken(self.after, self.limit_after)

    @property
    def worse(self) -> bool:
        """Whether it is broken more than before."""
        return self.broken_after and (
            not self.broken_before or (self.what != "latency" and (self.after or 0) > (self.before or 0))
        )

    def _broken(self, value: float | None, limit: float | None) -> bool:
        if value is None or limit is None:
            return False
        return value > limit if self.what == "latency" else value > 0


class Report(msgspec.Struct, frozen=True):
    """The differences."""

    rows: int
    reproduced: int
    """Decided as they were recorded."""
    behind: int
    """Of these, the ones whose later choices are others."""
    moved: int
    """The rule, who is asked first, or whether it is refused is another."""
    refused: int
    """Would be refused, and were not."""
    answered: int
    """Would be answered, and were refused."""
    undecidable: Mapping[str, int]
    """Why, and how many."""
    moves: tuple[Move, ...]
    notes: Mapping[str, int]
    """What was assumed, of how many requests."""
    priced: int
    """Requests of which the cost is known under both."""
    cost_before: float
    """Dollars, by the declared prices of who was to be asked first."""
    cost_after: float
    timed: int
    """Requests of which a latency is known under both."""
    latency_before: float | None
    """Milliseconds, mean."""
    latency_after: float | None
    """The same; of requests that moved it is predicted."""
    p95_before: float | None
    p95_after: float | None
    fits: Mapping[str, Fit]
    """How good these predictions are, by target."""
    promises: tuple[Promise, ...]
    differing: tuple[tuple[str, str], ...] = ()
    """(request id, what differs) of the first few."""
    estimates: Mapping[str, Estimated] = {}
    """By outcome."""
    excluded: int = 0
    """Requests that estimates leave out: they failed, or another was asked than who was chosen."""
    bad_lines: int = 0
    missing: int = 0
    """Requests that the gateway could not record."""

    @property
    def worse(self) -> bool:
        """Whether a promise is broken more than before."""
        return any(promise.worse for promise in self.promises)


class Adding:
    """The report in the making."""

    def __init__(self, before: Snapshot, after: Snapshot, latencies: Latencies) -> None:
        self.before = before
        self._after = after
        self._latencies = latencies
        self._rows = self._reproduced = self._behind = self._moved = self._refused = self._answered = 0
        self._undecidable: Counter[str] = Counter()
        self._notes: Counter[str] = Counter()
        self._moves: Counter[tuple[str, str, str]] = Counter()
        self._decided: Counter[str] = Counter()
        self._priced, self._costs = 0, [0, 0]
        self._took: tuple[list[float], list[float]] = ([], [])
        self._by_target: tuple[dict[str, list[float]], dict[str, list[float]]] = ({}, {})
        self._over: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._inexact: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._differing: list[tuple[str, str]] = []
        self._prices: dict[tuple[bool, str], Price] = {}

    def add(self, row: Row, made: Redecision) -> None:
        """One request and what became of it."""
        self._rows += 1
        if made.undecidable:
            self._undecidable[made.undecidable] += 1
            return
        route = made.route or row.record.route
        self._decided[route] += 1
        self._notes.update(made.notes)
        if made.differs:
            self._moved += 1
            self._moves[route, row.first, made.first] += 1
            self._refused += bool(made.refused)
            self._answered += not row.order
            if len(self._differing) < MOST_NAMED:
                self._differing.append((row.record.request_id, made.differs))
        else:
            self._reproduced += 1
            self._behind += made.behind
        self._cost(row, made)
        self._time(row, made)
        self._accuracy(row, made)

    def report(self) -> Report:
        """All of it."""
        before, after = sorted(self._took[0]), sorted(self._took[1])
        return Report(
            self._rows,
            self._reproduced,
            self._behind,
            self._moved,
            self._refused,
            self._answered,
            dict(self._undecidable.most_common()),
            tuple(
                Move(route, of, to, count, count / self._decided[route])
                for (route, of, to), count in sorted(self._moves.items(), key=lambda item: (item[0][0], -item[1], item[0]))
            ),
            dict(self._notes.most_common()),
            self._priced,
            self._costs[0] * NANO,
            self._costs[1] * NANO,
            len(before),
            sum(before) / len(before) if before else None,
            sum(after) / len(after) if after else None,
            percentile(before, 0.95) if before else None,
            percentile(after, 0.95) if after else None,
            self._latencies.fits,
            tuple(self._promises()),
            tuple(self._differing),
        )

    def _cost(self, row: Row, made: Redecision) -> None:
        usage = row.record.usage
        if not row.first or not made.first or usage is None:
            return
        costs = [self._price(now, name).of(usage) for now, name in ((False, row.first), (True, made.first))]
        if costs[0] is None or costs[1] is None:
            return
        self._priced += 1
        self._costs[0] += costs[0]
        self._costs[1] += costs[1]

    def _price(self, now: bool, name: str) -> Price:
        found = self._prices.get((now, name))
        if found is None:
            models = (self._after if now else self.before).models
            found = self._prices[now, name] = price_of(models[name].spec.cost)
        return found

    def _time(self, row: Row, made: Redecision) -> None:
        found = outcome(row)
        if not found.ok or found.latency_ms is None or not made.first or found.asked != row.first:
            return
        # Places are spread evenly over the rows, whatever their order: by the golden ratio.
        place = (self._rows * 0.6180339887498949) % 1.0
        after = found.latency_ms if made.first == row.first else self._latencies.likely(row, made.first, place)
        if after is None:
            return
        route = made.route
        for side, name, took, snapshot in ((0, row.first, found.latency_ms, self.before), (1, made.first, after, self._after)):
            self._took[side].append(took)
            self._by_target[side].setdefault(name, []).append(took)
            total = _total(snapshot, row.record.requested)
            if total is not None and took > total * 1e3:
                self._over[side][route] += 1

    def _accuracy(self, row: Row, made: Redecision) -> None:
        for side, name, snapshot in ((0, row.first, self.before), (1, made.first, self._after)):
            asked = _accuracy_asked(_route(snapshot, row.record.requested))
            if name and asked is not None and (snapshot.models[name].spec.promise.accuracy or 0.0) < asked:
                self._inexact[side][made.route] += 1

    def _promises(self) -> Iterable[Promise]:
        for name in sorted({*self.before.models, *self._after.models}):
            limits = [_promised(snapshot, name) for snapshot in (self.before, self._after)]
            if any(limit is not None for limit in limits):
                p95 = [_p95(side.get(name, [])) for side in self._by_target]
                yield Promise("latency", name, limits[0], limits[1], p95[0], p95[1])
        for route in sorted(self._decided):
            totals = [_total(snapshot, route) for snapshot in (self.before, self._after)]
            if any(total is not None for total in totals):
                yield Promise("total", route, totals[0], totals[1], self._over[0][route], self._over[1][route])
            asked = [_accuracy_asked(_route(snapshot, route)) for snapshot in (self.before, self._after)]
            if any(one is not None for one in asked):
                yield Promise("accuracy", route, asked[0], asked[1], self._inexact[0][route], self._inexact[1][route])


def _p95(took: list[float]) -> float | None:
    return percentile(sorted(took), 0.95) if len(took) >= FEWEST else None


def _promised(snapshot: Snapshot, name: str) -> float | None:
    model = snapshot.models.get(name)
    return model.spec.promise.latency_p95_ms if model is not None else None


def _route(snapshot: Snapshot, requested: str) -> Route | None:
    resolved = snapshot.names.get(requested)
    return resolved.route if resolved is not None else None


def _total(snapshot: Snapshot, requested: str) -> float | None:
    route = _route(snapshot, requested)
    return route.spec.total if route is not None else None


def _accuracy_asked(route: Route | None) -> float | None:
    """What a route asks for; None where it asks for nothing."""
    if route is None:
        return None
    uses: list[FilterUse | ScoreUse] = [*route.spec.filters, *route.spec.scores]
    asked = [use.settings.get("least", USUAL_ACCURACY) for use in uses if use.name == ACCURACY]
    return max(asked) if asked else None
