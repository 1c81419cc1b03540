"""What a run gave: metrics of the gateways by time, requests by time, and answers to queries about both. Pure."""

from __future__ import annotations

import bisect
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping

import msgspec

from sits.chaos.load import Seen
from sits.observe.catalogue import METRICS
from sits.resources.problem import did_you_mean
from sits.resources.query import Call, Node, Number, Operation, QueryError, Selection, parse, selections

MOST_SAMPLES = 50_000
"""Of one series."""
_LINE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
Labels = tuple[tuple[str, str], ...]

CLIENT: dict[str, str] = {
    "requests": "requests that ended",
    "success_share": "share of requests whose answer was complete, 0 to 1",
    "failed": "requests whose answer was not complete, whatever the reason",
    "lost_tokens": "tokens missing in answers that said they were complete",
    "doubled_tokens": "tokens too many in answers that said they were complete",
    "p50_ms": "milliseconds from the request to the end of a complete answer: half take no longer",
    "p99_ms": "the same: 99 of 100 take no longer",
    "first_token_p50_ms": "milliseconds to the first content of a complete answer: half take no longer",
    "first_token_p99_ms": "the same: 99 of 100 take no longer",
    "longest_ms": "milliseconds of the longest request, complete or not",
    "per_second": "complete answers a second",
    "recovery_seconds": "from the end of the faults until the steady state held again, and to the end of the run",
    "struck": "how often the faults happened, by the label `kind`",
}
"""Figures of the clients and of the run, and what they are."""
LABELS = ("load", "outcome", "status", "code", "gateway")
"""Labels of requests, besides those that answers tell in `x-sits-*` fields (`target`, `served`, `cache` ...)."""
_KNOWN: dict[str, tuple[str, ...]] = {row.name: (*row.labels, "gateway") for row in METRICS}


class Window(msgspec.Struct, frozen=True):
    """A time of the run, in seconds of its clock."""

    start: float
    end: float


class Series:
    """The values of one metric with one set of labels, by time."""

    __slots__ = ("times", "values")

    def __init__(self) -> None:
        self.times: list[float] = []
        self.values: list[float] = []

    def at(self, time: float) -> float | None:
        """The value at a time: that of the last look before it."""
        place = bisect.bisect_right(self.times, time)
        return self.values[place - 1] if place else None

    def increase(self, window: Window) -> float:
        """By how much a counter grew; one that begins anew, as after a restart, goes on from 0. One that was not there was 0."""
        before = self.at(window.start) or 0.0
        grown = 0.0
        low, high = bisect.bisect_right(self.times, window.start), bisect.bisect_right(self.times, window.end)
        for value in self.values[low:high]:
            grown += value - before if value >= before else value
            before = value
        return grown


class Figures:
    """Fills during a run; `value` answers a query over a window."""

    def __init__(self, wanted: Iterable[Node]) -> None:
        self._names = {name for node in wanted for name in metric_names(node)}
        self.series: dict[str, dict[Labels, Series]] = {name: {} for name in self._names}
        self.looks: list[float] = []
        self.seen: list[Seen] = []
        self.struck: dict[str, float] = {}
        self.recovery: float | None = None

    def take(self, gateway: str, time: float, text: str) -> None:
        """One look at `/metrics` of one gateway."""
        self.looks.append(time)
        for line in text.splitlines():
            if line.startswith("#") or line.partition("{")[0].partition(" ")[0] not in self._names:
                continue
            found = _LINE.match(line)
            if found is None:
                continue
            labels = (*_LABEL.findall(found["labels"] or ""), ("gateway", gateway))
            series = self.series[found["name"]].setdefault(tuple(labels), Series())
            if len(series.times) < MOST_SAMPLES:
                series.times.append(time)
                series.values.append(float(found["value"]))

    def value(self, node: Node, window: Callable[[str], Window | None]) -> float | None:
        """The answer to a query, or None when nothing was seen that it could be made from. `window` is asked for phases."""
        if isinstance(node, Number):
            return node.value
        if isinstance(node, Operation):
            left, right = self.value(node.left, window), self.value(node.right, window)
            if left is None or right is None or (node.sign == "/" and right == 0):
                return None
            return float(_SIGNS[node.sign](left, right))
        phase = window(node.phase)
        if phase is None:
            return None
        if not node.function:
            return self._client(node.selections[0], phase)
        return self._metric(node, phase)

    def requests(self, selection: Selection, window: Window) -> list[Seen]:
        """The requests of a selection that ended in a window."""
        return [
            seen
            for seen in self.seen
            if window.start < seen.ended <= window.end
            and all(match.holds(label_of(seen, match.label)) for match in selection.matches)
        ]

    def _client(self, selection: Selection, window: Window) -> float | None:
        name = selection.name
        if name == "recovery_seconds":
            return self.recovery
        if name == "struck":
            return sum(
                n for kind, n in self.struck.items() if all(m.label == "kind" and m.holds(kind) for m in selection.matches)
            )
        seen = self.requests(selection, window)
        good = [one for one in seen if one.good]
        if name == "requests":
            return float(len(seen))
        if name == "failed":
            return float(len(seen) - len(good))
        if name == "success_share":
            return len(good) / len(seen) if seen else None
        if name == "lost_tokens":
            return float(sum(one.lost for one in seen))
        if name == "doubled_tokens":
            return float(sum(one.doubled for one in seen))
        if name == "per_second":
            return len(good) / (window.end - window.start) if window.end > window.start else None
        if name == "longest_ms":
            return max(((one.ended - one.began) * 1000 for one in seen), default=None)
        part = 0.99 if "p99" in name else 0.5
        if name.startswith("first_token"):
            return quantile([(one.first - one.began) * 1000 for one in good if one.first is not None], part)
        return quantile([(one.ended - one.began) * 1000 for one in good], part)

    def _metric(self, call: Call, window: Window) -> float | None:
        selection = call.selections[0]
        name, function = selection.name, call.function
        if function == "ratio":
            below = self._increase(call.selections[1], "", window)
            return None if below == 0 else self._increase(selection, "", window) / below
        if function in ("delta", "rate", "count"):
            grown = self._increase(selection, "_count" if function == "count" else "", window)
            return grown / (window.end - window.start) if function == "rate" else grown
        if function in _QUANTILES:
            return self._bucketed(selection, _QUANTILES[function], window)
        chosen = list(self._chosen(name, selection))
        if not chosen:
            return None
        times = [time for time in self.looks if window.start <= time <= window.end] or [window.end]
        sums = [sum(value for series in chosen if (value := series.at(time)) is not None) for time in times]
        return {"sum": sums[-1], "max": max(sums), "min": min(sums), "mean": sum(sums) / len(sums)}[function]

    def _chosen(self, name: str, selection: Selection) -> Iterable[Series]:
        for labels, series in self.series.get(name, {}).items():
            named = dict(labels)
            if all(match.holds(named.get(match.label, "")) for match in selection.matches):
                yield series

    def _increase(self, selection: Selection, suffix: str, window: Window) -> float:
        return sum(series.increase(window) for series in self._chosen(selection.name + suffix, selection))

    def _bucketed(self, selection: Selection, part: float, window: Window) -> float | None:
        """A quantile of a histogram: where the line through the counts at the bounds of its bucket passes it."""
        counts: dict[float, float] = {}
        for labels, series in self.series.get(f"{selection.name}_bucket", {}).items():
            named = dict(labels)
            if all(match.holds(named.get(match.label, "")) for match in selection.matches):
                bound = float(named.get("le", "inf").replace("+Inf", "inf"))
                counts[bound] = counts.get(bound, 0.0) + series.increase(window)
        total = counts.get(math.inf, 0.0)
        if total == 0:
            return None
        below_bound, below = 0.0, 0.0
        for bound in sorted(counts):
            if counts[bound] >= part * total:
                if bound == math.inf:
                    return below_bound
                span = counts[bound] - below
                return below_bound + (bound - below_bound) * ((part * total - below) / span if span else 1.0)
            below_bound, below = bound, counts[bound]
        return below_bound


_SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def quantile(values: list[float], part: float) -> float | None:
    """The smallest value that so large a part does not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def label_of(seen: Seen, label: str) -> str:
    """What a label of a request is."""
    if label == "status":
        return str(seen.status)
    return str(getattr(seen, label)) if label in LABELS else seen.told.get(label.replace("_", "-"), "")


def understood(text: str) -> Node:
    """A query whose every name is known.

    Raises:
        QueryError: it is none, or names something that there is not; says where, and what was meant.
    """
    node = parse(text)
    for call in _calls(node):
        for selection in call.selections:
            _check(call, selection)
    return node


def metric_names(node: Node) -> set[str]:
    """The names in the text of `/metrics` that a query needs."""
    names: set[str] = set()
    for call in _calls(node):
        suffix = "_bucket" if call.function in _QUANTILES else "_count" if call.function == "count" else ""
        if call.function:
            names.update(selection.name + suffix for selection in call.selections)
    return names


def _calls(node: Node) -> Iterable[Call]:
    if isinstance(node, Call):
        yield node
    elif isinstance(node, Operation):
        yield from _calls(node.left)
        yield from _calls(node.right)


def _check(call: Call, selection: Selection) -> None:
    name = selection.name
    if name in CLIENT:
        if call.function:
            raise QueryError(f"{name} is a figure by itself, not for {call.function}()", selection.position, f"write {name}")
        return
    row = next((row for row in METRICS if name in (row.name, f"{row.name}_count", f"{row.name}_sum")), None)
    if row is None:
        raise QueryError(f"there is no figure {name!r}", selection.position, did_you_mean(name, [*CLIENT, *_KNOWN]))
    if not call.function:
        raise QueryError(f"{name} needs a function", selection.position, f"write delta({name}) or another")
    if (row.kind == "histogram") is not (call.function in (*_QUANTILES, "count") or name != row.name):
        usual = "p99 or count" if row.kind == "histogram" else "delta, rate, sum, max, min, mean or ratio"
        raise QueryError(f"{name} is a {row.kind}, not for {call.function}()", selection.position, f"use {usual}")
    known: Mapping[str, None] = dict.fromkeys(_KNOWN[row.name])
    for match in selection.matches:
        if match.label not in known:
            hint = did_you_mean(match.label, known) or f"it has {', '.join(known)}"
            raise QueryError(f"{name} has no label {match.label!r}", match.position, hint)


def all_names(node: Node) -> list[str]:
    """The figures that a query names."""
    return [selection.name for selection in selections(node)]
