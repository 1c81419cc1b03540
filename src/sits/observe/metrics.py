"""Counting on the hot path: plain numbers in slots, named once.

A label set is turned into a *series* object once; after that an update is an attribute increment, or for a histogram one
bisect and one increment. There are no locks: every update happens on the event loop's thread. `Registry.dump` hands the
figures over as bytes; `sits.observe.exposition` adds up the dumps of all workers and writes the text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

import msgspec

from sits import __version__
from sits.inner.ask import Operation
from sits.observe.catalogue import BY_NAME, OVERFLOW, UNKNOWN, Metric
from sits.observe.process import ProcessFigures, read_process

OPERATION_NAMES: dict[Operation, str] = {
    "chat": "chat",
    "messages": "chat",
    "responses": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
    "count_tokens": "count_tokens",
}
"""Endpoint -> `gen_ai.operation.name`: the convention's own value wherever one applies."""

_NAMED = frozenset({"route", "target", "gen_ai_request_model", "gen_ai_response_model"})
"""Labels whose values are names of the snapshot."""


class Counter:
    """Only ever grows. The hot path writes `series.value += 1` itself."""

    __slots__ = ("past", "value")

    def __init__(self) -> None:
        self.value: float = 0
        self.past: float = 0
        """What a worker that was here before us had counted; apart, because some counters are set and not increased."""


class Gauge:
    """A level: set it or move it through `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Histogram:
    """Counts by bucket; each bucket keeps the last exemplar that fell into it."""

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.exemplars: list[tuple[int, str, float, float] | None] = [None] * (len(bounds) + 1)
        """(bucket, trace id, value, unix seconds) for each bucket, as they are told."""
        self.total = 0.0

    def observe(self, value: float, trace_id: str | None = None, at: float = 0.0) -> None:
        """Count `value`; with a trace id, leave it as the bucket's exemplar."""
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.total += value
        if trace_id is not None:
            self.exemplars[bucket] = (bucket, trace_id, value, at)

    def resume(self, told: SeriesDump) -> None:
        """Count on from what was told."""
        self.counts = [own + other for own, other in zip(self.counts, told.counts, strict=True)]
        self.total += told.value
        for exemplar in told.exemplars:
            self.exemplars[exemplar[0]] = exemplar


S = TypeVar("S", Counter, Gauge, Histogram)


class Family(Generic[S]):
    """One metric: its row of the table and its series, at most `cap` of them and one for the overflow."""

    __slots__ = ("_cap", "_make", "children", "row")

    def __init__(self, row: Metric, make: Callable[[], S], cap: int) -> None:
        self.row = row
        self.children: dict[tuple[str, ...], S] = {}
        self._make: Callable[[], S] = make
        self._cap = cap

    def series(self, *values: str) -> S:
        """The series with these label values, in the order of the row; the `_overflow` one when there is no room."""
        found = self.children.get(values)
        if found is not None:
            return found
        if len(values) != len(self.row.labels):
            raise ValueError(f"{self.row.name} has the labels {self.row.labels}, not {values}")
        if len(self.children) >= self._cap:
            values = (OVERFLOW,) * len(values)
        return self.children.setdefault(values, self._make())

    def retire(self, live: Collection[str]) -> None:
        """Drop the series that are about a name outside `live`; the values that start with `_` stay."""
        spots = [spot for spot, label in enumerate(self.row.labels) if label in _NAMED]
        gone = [
            values
            for values in self.children
            if any(values[spot] and values[spot][0] != "_" and values[spot] not in live for spot in spots)
        ]
        for values in gone:
            del self.children[values]


class SeriesDump(msgspec.Struct, array_like=True, gc=False):
    """One series on its way between workers; `value` is the sum of a histogram."""

    labels: tuple[str, ...]
    value: float
    counts: list[int] = []
    exemplars: list[tuple[int, str, float, float]] = []
    """(bucket, trace id, value, unix seconds)."""


class Dump(msgspec.Struct, array_like=True):
    families: dict[str, list[SeriesDump]]
    worker: str = ""
    """Who tells it; empty where there is only one."""


class Meter:
    """All series of one (endpoint, route, served model): a finished exchange is one call of `done`."""

    __slots__ = (
        "_durations",
        "_labels",
        "_operation",
        "_registry",
        "_requests",
        "_route",
        "first",
        "inward",
        "outward",
        "overhead",
        "pace",
    )

    def __init__(self, registry: Registry, operation: Operation, route: str, served: str, provider: str) -> None:
        labels = (OPERATION_NAMES.get(operation, operation), provider, route, served)
        self._registry = registry
        self._operation = operation
        self._route = route
        self._labels = labels
        self._requests: dict[tuple[int, str], Counter] = {}
        self._durations: dict[str, Histogram] = {}
        self.first = registry.first_token.series(*labels)
        self.pace = registry.per_token.series(*labels)
        self.inward = registry.tokens.series(*labels, "input")
        self.outward = registry.tokens.series(*labels, "output")
        self.overhead = registry.overhead.series(route)

    def done(
        self,
        status: int,
        code: str,
        total: float,
        overhead: float,
        trace_id: str | None,
        at: float,
        first_token: float | None = None,
        tokens_in: int | None = None,
        tokens_out: int | None = None,
    ) -> None:
        """Count one finished exchange: times in seconds, `code` empty on success, `at` in unix seconds.

        `first_token` is given for streamed answers only. 1.0 us with everything given, its exemplars included.
        """
        requests = self._requests.get((status, code))
        if requests is None:
            requests = self._new_requests(status, code)
        requests.value += 1
        duration = self._durations.get(code)
        if duration is None:
            duration = self._durations[code] = self._registry.duration.series(*self._labels, code)
        duration.observe(total, trace_id, at)
        self.overhead.observe(overhead, trace_id, at)
        if tokens_in is not None:
            self.inward.observe(tokens_in, trace_id, at)
        if tokens_out is not None:
            self.outward.observe(tokens_out, trace_id, at)
        if first_token is not None and not code:
            self.first.observe(first_token, trace_id, at)
            if tokens_out is not None and tokens_out > 1:
                self.pace.observe((total - first_token) / (tokens_out - 1), trace_id, at)

    def _new_requests(self, status: int, code: str) -> Counter:
        series = self._registry.requests.series(self._route, self._operation, str(status), code)
        # An upstream's own status is passed on, so a hostile one could send a thousand: only so many are kept apart.
        if len(self._requests) < 256:
            self._requests[(status, code)] = series
        return series


class Registry:
    """The metrics of one process. `cap` is the most series that a metric may have."""

    def __init__(self, cap: int = 2000, process: Callable[[], ProcessFigures] = read_process) -> None:
        self._cap = cap
        self._process = process
        self.worker = ""
        """Which one of several workers this is; its successor has the same name."""
        self._meters: dict[tuple[Operation, str, str], Meter] = {}
        self._attempts: dict[tuple[str, str], Counter] = {}
        self._colours: dict[str, Counter] = {}
        self.families: dict[str, Family[Counter] | Family[Gauge] | Family[Histogram]] = {}
        self.duration = self._histograms("gen_ai_server_request_duration_seconds")
        self.first_token = self._histograms("gen_ai_server_time_to_first_token_seconds")
        self.per_token = self._histograms("gen_ai_server_time_per_output_token_seconds")
        self.tokens = self._histograms("gen_ai_client_token_usage")
        self.requests = self._counters("sits_requests_total")
        self.attempts = self._counters("sits_attempts_total")
        self.overhead = self._histograms("sits_overhead_seconds")
        self.cache = self._counters("sits_cache_total")
        self.cache_entries = self._gauges("sits_cache_entries")
        self.cache_bytes = self._gauges("sits_cache_bytes")
        self.kinds = self._counters("sits_attempt_kinds_total")
        self.breaker_out = self._gauges("sits_breaker_out")
        self.breaker_changes = self._counters("sits_breaker_changes_total")
        self.gate_limit = self._gauges("sits_gate_limit")
        self.gate_inside = self._gauges("sits_gate_inside")
        self.gate_waiting = self._gauges("sits_gate_waiting")
        self.gate_arrived = self._counters("sits_gate_arrived_total")
        self.gate_shed = self._counters("sits_gate_shed_total")
        self.plugin_calls = self._counters("sits_plugin_calls_total")
        self.plugin_seconds = self._counters("sits_plugin_seconds_total")
        self.plugin_troubles = self._counters("sits_plugin_troubles_total")
        self.plugin_fenced = self._gauges("sits_plugin_fenced")
        self.plugin_problem = self._gauges("sits_plugin_problem")
        self.intent_unwell = self._gauges("sits_intent_unwell").series()
        self.target_asked = self._counters("sits_target_asked_total")
        self.target_running = self._gauges("sits_target_running")
        self.target_waiting = self._gauges("sits_target_waiting")
        self.target_kv = self._gauges("sits_target_kv_ratio")
        self.target_memory_free = self._gauges("sits_target_memory_free_ratio")
        self.target_sick = self._gauges("sits_target_sick")
        self.target_health_unknown = self._gauges("sits_target_health_unknown")
        self.prometheus_answers = self._counters("sits_prometheus_answers_total")
        self.peers = self._gauges("sits_peers").series()
        self.reports = self._counters("sits_reports_total")
        self.rungs = self._counters("sits_rungs_total")
        self.pressure_acting = self._gauges("sits_pressure_acting")
        self.pressure_changes = self._counters("sits_pressure_changes_total")
        self.shadows = self._counters("sits_shadow_total")
        self.shadow_difference = self._gauges("sits_shadow_difference_ratio")
        self.shadow_alarm = self._gauges("sits_shadow_alarm")
        self.switch_share = self._gauges("sits_switch_share_ratio")
        self.colour_passing = self._gauges("sits_colour_passing_ratio")
        self.colours = self._counters("sits_colour_total")
        self.inflight = self._gauges("sits_inflight").series()
        self.events_skipped = self._counters("sits_stream_events_skipped_total")
        self.config_version = self._gauges("sits_config_version").series()
        self.config_rejected = self._counters("sits_config_rejected_total").series()
        self.config_last_reload_success = self._gauges("sits_config_last_reload_success").series()
        self.records_dropped = self._counters("sits_records_dropped_total").series()
        self.log_held = self._counters("sits_log_held_total").series()
        self.estimates = self._counters("sits_token_estimates_total").series()
        self.trace_rows_dropped = self._counters("sits_trace_rows_dropped_total").series()
        self._counters("sits_worker_deaths_total")  # Of the parent of several workers, who tells it in a dump of his own.
        self._gauges("sits_build_info").series(__version__).value = 1
        self._gauges("sits_workers").series().value = 1
        self.workers_missing = self._gauges("sits_metrics_workers_missing").series()
        self._rss = self._gauges("process_resident_memory_bytes").series()
        self._cpu = self._counters("process_cpu_seconds_total").series()
        self._fds = self._gauges("process_open_fds").series()
        self._start = self._gauges("process_start_time_seconds").series()

    def meter(self, operation: Operation, route: str, served: str, provider: str) -> Meter:
        """The meter of an endpoint, a route (`_unknown` for names we do not have) and who served it (empty: nobody).

        `provider` is the engine of the served model. The same three give the same meter until `retire`.
        """
        found = self._meters.get((operation, route, served))
        if found is None:
            found = Meter(self, operation, route or UNKNOWN, served, provider)
            if len(self._meters) < self._cap:
                self._meters[(operation, route, served)] = found
        return found

    def attempt(self, target: str, outcome: str) -> Counter:
        """The counter of attempts on `target` that ended as `outcome`: `ok` or an error code."""
        found = self._attempts.get((target, outcome))
        if found is None:
            found = self.attempts.series(target, outcome)
            if len(self._attempts) < self._cap:
                self._attempts[(target, outcome)] = found
        return found

    def colour(self, label: str) -> Counter:
        """The counter of a traffic colour."""
        found = self._colours.get(label)
        if found is None:
            found = self._colours[label] = self.colours.series(label)
        return found

    def retire(self, live: Collection[str]) -> None:
        """Forget the series of names that no snapshot has any more, so that coming and going models never fill the cap.

        An exchange that still holds a dropped meter counts into the void: call this when the old snapshot is released.
        """
        for family in self.families.values():
            family.retire(live)
        self._meters.clear()
        self._attempts.clear()
        self._colours.clear()

    def resume(self, told: Dump, live: Collection[str]) -> None:
        """Go on where a worker of our name ended: its counters and histograms, as far as they are about names in `live`, count
        on here. Its gauges ended with it."""
        for name, family in self.families.items():
            if family.row.kind == "gauge":
                continue
            for before in told.families.get(name, ()):
                series = family.series(*before.labels)
                if isinstance(series, Counter):
                    series.past += before.value
                elif isinstance(series, Histogram):
                    series.resume(before)
        self.retire(live)

    def dump(self) -> bytes:
        """All figures of this process as MessagePack, for `exposition.merge`. Histograms that never counted are left out."""
        figures = self._process()
        self._rss.value = figures.resident_bytes
        self._cpu.value = figures.cpu_seconds
        self._fds.value = figures.open_fds
        self._start.value = figures.start_time
        return msgspec.msgpack.encode(Dump({name: _series(family) for name, family in self.families.items()}, self.worker))

    def _counters(self, name: str) -> Family[Counter]:
        family = Family(BY_NAME[name], Counter, self._cap)
        self.families[name] = family
        return family

    def _gauges(self, name: str) -> Family[Gauge]:
        family = Family(BY_NAME[name], Gauge, self._cap)
        self.families[name] = family
        return family

    def _histograms(self, name: str) -> Family[Histogram]:
        row = BY_NAME[name]
        family = Family(row, lambda: Histogram(row.buckets), self._cap)
        self.families[name] = family
        return family


def _series(family: Family[Counter] | Family[Gauge] | Family[Histogram]) -> list[SeriesDump]:
    out = []
    for labels, series in family.children.items():
        if isinstance(series, Counter):
            out.append(SeriesDump(labels, series.past + series.value))
        elif isinstance(series, Gauge):
            out.append(SeriesDump(labels, series.value))
        elif any(series.counts):
            kept = [exemplar for exemplar in series.exemplars if exemplar is not None]
            # Told at once, so that the counts need no copy. 300 models: 4 ms, encoded.
            out.append(SeriesDump(labels, series.total, series.counts, kept))
    return out
