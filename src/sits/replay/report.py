"""What another configuration would have changed for recorded traffic, added up row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from sits.inner.errors import Code
from sits.observe.trace_row import Row, outcome
from sits.replay.latency import Fit, Latencies, percentile
from sits.replay.prices import NANO, Prices, both
from sits.replay.replayer import Redecision
from sits.resources.choosing import FilterUse, ScoreUse
from sits.resources.kinds import Route
from sits.resources.snapshot import Snapshot
from sits.routing.estimate import Estimated

FEWEST = 20
"""Answers of a target from which its 95th percentile is told."""
MOST_NAMED = 20
"""Requests that are named of those that differ."""
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
    """`latency`: 95 of 100 answers of a target, in ms. `total`: answers of a route that take longer than it gives them.
    `accuracy`: requests of a route whose target promises less than the route asks for."""
    subject: str
    limit_before: float | None
    """What is promised; None where nothing is."""
    limit_after: float | None
    before: float | None
    """Milliseconds for `latency`, else requests, of those of which it is known; None where too little is."""
    after: float | None
    known_before: int = 0
    """So many requests it is known of."""
    known_after: int = 0
    unknown_before: int = 0
    """So many more there are: no time is known or can be predicted, or the target promises nothing of the kind."""
    unknown_after: int = 0

    @property
    def broken_before(self) -> bool:
        """Whether it is known that it was, under the configuration of the trace."""
        return self._broken(self.before, self.limit_before)

    @property
    def broken_after(self) -> bool:
        """Whether it is known that it would be."""
        return self._broken(self.after, self.limit_after)

    @property
    def worse(self) -> bool:
        """Whether it is known to be broken more than before: by more than those of which it is not known how it was."""
        if not self.broken_after:
            return False
        if self.limit_before is None:
            return True  # Nothing was promised, so nothing was broken.
        if self.what == "latency":
            unknown = self.before is None and self.known_before + self.unknown_before > 0
            return not unknown and not self.broken_before
        return (self.after or 0) > (self.before or 0) + self.unknown_before

    @property
    def perhaps_worse(self) -> bool:
        """Whether it would be broken, and it is not known well enough how it was to say whether that is worse."""
        if not self.broken_after or self.worse:
            return False
        return self.before is None if self.what == "latency" else (self.after or 0) > (self.before or 0)

    @property
    def doubtful(self) -> bool:
        """Whether it may be broken, or broken more than before, and nobody knows."""
        if self.perhaps_worse:
            return True
        if self.limit_after is None or self.broken_after:
            return False
        lost = self.after is None and self.known_after > 0 and (self.before is not None or self.limit_before is None)
        return self.unknown_after > 0 or lost

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
    cost_before: float | None
    """Dollars for these alone, by the declared prices of who was to be asked first; None where there are none, or none of those
    that moved elsewhere is among them: the others cannot differ."""
    cost_after: float | None
    unpriced: Mapping[str, int]
    """Why the cost of the others is not known, and how many they are: with `priced` all rows."""
    timed: int
    """Requests of which a latency is known under both."""
    predicted: Mapping[str, int]
    """For so many of these it is predicted, by target: they moved."""
    latency_before: float | None
    """Milliseconds, mean of these alone; None where there are none, or none of those that moved elsewhere is among them."""
    latency_after: float | None
    p95_before: float | None
    """None where they are too few."""
    p95_after: float | None
    untimed: Mapping[str, int]
    """Why the latency of the others is not known, and how many they are: with `timed` all rows."""
    fits: Mapping[str, Fit]
    """How good these predictions are, by target."""
    promises: tuple[Promise, ...]
    differing: tuple[tuple[str, str], ...] = ()
    """(request id, what differs) of the first few."""
    estimates: Mapping[str, Estimated] = {}
    """By outcome."""
    excluded: Mapping[str, int] = {}
    """Requests that each estimate leaves out: they failed, another was asked than who was chosen, or nobody knows the outcome."""
    elsewhere: int = 0
    """Of those that moved, the ones of which another one is asked first, or nobody; the others cost and take what they did."""
    priced_elsewhere: int = 0
    """So many of these are among the ones of which the cost is known under both."""
    timed_elsewhere: int = 0
    """The same of the latency."""
    share: float = 1.0
    """Of the traffic, so much was recorded: all sums are of that."""
    refused_with: Mapping[str, int] = {}
    """Of those that would be refused and were not, how many with which code."""
    refused_first: tuple[tuple[str, str], ...] = ()
    """(request id, code) of the first few of these."""

    @property
    def worse(self) -> bool:
        """Whether requests would be refused that were not, or a promise is known to be broken more than before."""
        return bool(self.worse_because)

    @property
    def worse_because(self) -> tuple[str, ...]:
        """What is worse, in words."""
        found = []
        if self.refused:
            found.append(f"{self.refused:,} request{'' if self.refused == 1 else 's'} would be refused that were not")
        found += [f"{promise.what} of {promise.subject}" for promise in self.promises if promise.worse]
        return tuple(found)

    @property
    def doubtful(self) -> bool:
        """Whether there is a promise of which it cannot be told whether it would be kept."""
        return any(promise.doubtful for promise in self.promises)


UNDECIDABLE = "it cannot be told who would answer"
REFUSED = "refused under one of the two"
UNASKED = "no model was asked"
FAILED = "they failed, or another answered than was chosen"
LEFT = "their clients left before the end"
UNTIMED = "how long it took was not recorded"


class Adding:
    """The report in the making."""

    def __init__(self, before: Snapshot, after: Snapshot, latencies: Latencies, share: float = 1.0) -> None:
        self.before = before
        self._after = after
        self._latencies = latencies
        self._share = share
        self._rows = self._reproduced = self._behind = self._moved = self._refused = self._answered = 0
        self._refused_with: Counter[str] = Counter()
        self._refused_first: list[tuple[str, str]] = []
        self._undecidable: Counter[str] = Counter()
        self._notes: Counter[str] = Counter()
        self._moves: Counter[tuple[str, str, str]] = Counter()
        self._decided: Counter[str] = Counter()
        self._elsewhere = self._priced_elsewhere = 0
        self._priced, self._costs = 0, [0, 0]
        self._unpriced: Counter[str] = Counter()
        self._untimed: Counter[str] = Counter()
        self._predicted: Counter[str] = Counter()
        self._took: tuple[list[float], list[float]] = ([], [])
        self._by_target: tuple[dict[str, list[float]], dict[str, list[float]]] = ({}, {})
        self._unknown_by_target: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._answers: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        """By route, those of which the time is known."""
        self._unknown_answers: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._over: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._said: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._inexact: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._unsaid: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._differing: list[tuple[str, str]] = []
        self._prices = (Prices(before), Prices(after))

    def add(self, row: Row, made: Redecision) -> None:
        """One request and what became of it."""
        self._rows += 1
        if made.undecidable:
            self._undecidable[made.undecidable] += 1
            self._unpriced[UNDECIDABLE] += 1
            self._untimed[UNDECIDABLE] += 1
            return
        route = made.route or row.record.route
        self._decided[route] += 1
        self._notes.update(made.notes)
        if made.differs:
            self._moved += 1
            self._moves[route, row.first, made.first] += 1
            self._elsewhere += row.first != made.first
            if made.refused:
                self._refused += 1
                self._refused_with[made.refused] += 1
                if len(self._refused_first) < MOST_NAMED:
                    self._refused_first.append((row.record.request_id, made.refused))
            self._answered += not row.order
            if len(self._differing) < MOST_NAMED:
                self._differing.append((row.record.request_id, made.differs))
        else:
            self._reproduced += 1
            self._behind += made.behind
        self._cost(row, made)
        why = self._time(row, made)
        if why:
            self._untimed[why] += 1
        self._accuracy(row, made)

    def report(self) -> Report:
        """All of it."""
        before, after = sorted(self._took[0]), sorted(self._took[1])
        timed, timed_elsewhere = len(before), sum(self._predicted.values())
        priced = self._priced > 0
        if self._elsewhere:
            # Those that stay where they were are the same whatever the configuration: they alone compare nothing.
            priced = self._priced_elsewhere > 0
            before, after = (before, after) if timed_elsewhere else ([], [])
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
            self._costs[0] * NANO if priced else None,
            self._costs[1] * NANO if priced else None,
            dict(self._unpriced.most_common()),
            timed,
            dict(self._predicted.most_common()),
            sum(before) / len(before) if before else None,
            sum(after) / len(after) if after else None,
            _p95(before),
            _p95(after),
            dict(self._untimed.most_common()),
            self._latencies.fits,
            tuple(self._promises()),
            tuple(self._differing),
            elsewhere=self._elsewhere,
            priced_elsewhere=self._priced_elsewhere,
            timed_elsewhere=timed_elsewhere,
            share=self._share,
            refused_with=dict(self._refused_with.most_common()),
            refused_first=tuple(self._refused_first),
        )

    def _cost(self, row: Row, made: Redecision) -> None:
        if not row.first or not made.first:
            self._unpriced[REFUSED] += 1
            return
        if not row.record.attempts:
            self._unpriced[UNASKED] += 1
            return
        costs = both(row, *self._prices, made.first)
        if isinstance(costs, str):
            self._unpriced[costs] += 1
            return
        self._priced += 1
        self._priced_elsewhere += row.first != made.first
        self._costs[0] += costs[0]
        self._costs[1] += costs[1]

    def _time(self, row: Row, made: Redecision) -> str:
        """Take down how long it took and would take; why that is not known, if so."""
        found = outcome(row)
        if not row.first or not made.first:
            return REFUSED
        if not row.record.attempts:
            return UNASKED
        if found.code == Code.CLIENT_CLOSED.value:
            return LEFT
        if not found.ok or found.asked != row.first:
            return FAILED
        # Places are spread evenly over the rows, whatever their order: by the golden ratio.
        place = (self._rows * 0.6180339887498949) % 1.0
        same, before = made.first == row.first, found.latency_ms
        after = before if same else self._latencies.likely(row, made.first, place)
        sides = ((0, row.first, before, self.before), (1, made.first, after, self._after))
        for side, name, took, snapshot in sides:
            # What another model answered after it says nothing of its own answers.
            own = row.record.target if name == row.first else name
            self._promised(side, name, took, made.route, _total(snapshot, row.record.requested), own=own == name)
        if before is None or after is None:
            return UNTIMED if before is None else self._latencies.unknown(made.first)
        self._predicted.update([] if same else [made.first])
        self._took[0].append(before)
        self._took[1].append(after)
        return ""

    def _promised(self, side: int, name: str, took: float | None, route: str, total: float | None, *, own: bool) -> None:
        """Hold an answer, its own or one after it, against what is promised; under each configuration by itself."""
        if took is None:
            self._unknown_by_target[side][name] += own
            self._unknown_answers[side][route] += 1
            return
        if own:
            self._by_target[side].setdefault(name, []).append(took)
        self._answers[side][route] += 1
        if total is not None and took > total * 1e3:
            self._over[side][route] += 1

    def _accuracy(self, row: Row, made: Redecision) -> None:
        for side, name, snapshot in ((0, row.first, self.before), (1, made.first, self._after)):
            asked = _accuracy_asked(_route(snapshot, row.record.requested))
            if not name or asked is None:
                continue
            model = snapshot.models.get(name)  # A damaged row may name anybody.
            promised = model.spec.promise.accuracy if model is not None else None
            (self._said if promised is not None else self._unsaid)[side][made.route] += 1
            self._inexact[side][made.route] += promised is not None and promised < asked

    def _promises(self) -> Iterable[Promise]:
        for name in sorted({*self.before.models, *self._after.models}):
            limits = [_promised(snapshot, name) for snapshot in (self.before, self._after)]
            if any(limit is not None for limit in limits):
                took = [side.get(name, []) for side in self._by_target]
                p95 = [_p95(sorted(one)) for one in took]
                unknown = [side[name] for side in self._unknown_by_target]
                yield Promise("latency", name, limits[0], limits[1], p95[0], p95[1], len(took[0]), len(took[1]), *unknown)
        for route in sorted(self._decided):
            totals = [_total(snapshot, route) for snapshot in (self.before, self._after)]
            if any(total is not None for total in totals):
                counts = [side[route] for pair in (self._over, self._answers, self._unknown_answers) for side in pair]
                yield Promise("total", route, totals[0], totals[1], *counts)
            asked = [_accuracy_asked(_route(snapshot, route)) for snapshot in (self.before, self._after)]
            if any(one is not None for one in asked):
                counts = [side[route] for pair in (self._inexact, self._said, self._unsaid) for side in pair]
                yield Promise("accuracy", route, asked[0], asked[1], *counts)


def _p95(took: list[float]) -> float | None:
    """Of sorted ones; None where they are too few."""
    return percentile(took, 0.95) if len(took) >= FEWEST else None


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
