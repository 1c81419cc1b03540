"""Every metric that the gateway has, in one table: name, kind, labels, unit, buckets and what it means.

Names follow the OpenTelemetry semantic conventions for generative AI where these have one, in their Prometheus spelling
(dots become underscores, the unit is appended); the bucket bounds of those are the convention's own. The rest is `sits_*`
and the usual `process_*`. `docs/metrics.md` is rendered from this table by `metrics_page`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["counter", "gauge", "histogram"]
Merge = Literal["sum", "min", "max"]

UNKNOWN = "_unknown"
"""The label value of every name that a client made up: names outside the snapshot never become labels."""
OVERFLOW = "_overflow"
"""The label values of the series that takes what a metric at its cap of series can no longer tell apart."""

# https://github.com/open-telemetry/semantic-conventions/blob/main/docs/gen-ai/gen-ai-metrics.md
_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0, 67108864.0)
_OVERHEAD = (0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

_EXCHANGE = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "gen_ai_response_model")


class Metric(msgspec.Struct, frozen=True):
    """One row: `merge` says how the figures of several worker processes become one."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    """As OpenMetrics spells it, a suffix of the name; empty for plain counts."""
    buckets: tuple[float, ...] = ()
    """Upper bounds, inclusive, without +Inf."""
    merge: Merge = "sum"
    otel: str = ""
    """The name in the semantic conventions, when it comes from there."""


METRICS: tuple[Metric, ...] = (
    Metric(
        "gen_ai_server_request_duration_seconds",
        "histogram",
        "From the first byte of the request to the last of the answer; error_type is the code of a failed one.",
        (*_EXCHANGE, "error_type"),
        "seconds",
        _DURATION,
        otel="gen_ai.server.request.duration",
    ),
    Metric(
        "gen_ai_server_time_to_first_token_seconds",
        "histogram",
        "From the first byte of the request to the first content of a successful streamed answer.",
        _EXCHANGE,
        "seconds",
        _FIRST_TOKEN,
        otel="gen_ai.server.time_to_first_token",
    ),
    Metric(
        "gen_ai_server_time_per_output_token_seconds",
        "histogram",
        "Time for each output token after the first, of a successful streamed answer.",
        _EXCHANGE,
        "seconds",
        _PER_TOKEN,
        otel="gen_ai.server.time_per_output_token",
    ),
    Metric(
        "gen_ai_client_token_usage",
        "histogram",
        "Tokens of a request, as its model server counted them; gen_ai_token_type is input or output.",
        (*_EXCHANGE, "gen_ai_token_type"),
        "",
        _TOKENS,
        otel="gen_ai.client.token.usage",
    ),
    Metric(
        "sits_requests_total",
        "counter",
        "Requests answered, by route, endpoint, HTTP status sent and error code (none on success).",
        ("route", "operation", "status", "code"),
    ),
    Metric(
        "sits_attempts_total",
        "counter",
        "Attempts on a target, by outcome: ok or the code of the failure.",
        ("target", "outcome"),
    ),
    Metric(
        "sits_attempt_kinds_total",
        "counter",
        "Attempts on a target by why it was asked: first, next, again, larger, hedge, continuation.",
        ("target", "kind"),
    ),
    Metric(
        "sits_breaker_out",
        "gauge",
        "1 while a target is left alone or only tried (its breaker is open or half-open, or it asked for a rest) in some worker.",
        ("target",),
        merge="max",
    ),
    Metric(
        "sits_breaker_changes_total",
        "counter",
        "Changes of a target's breaker, by the state it came to: closed, open, half-open, resting.",
        ("target", "state"),
    ),
    Metric("sits_plugin_calls_total", "counter", "Calls of a plugin.", ("plugin", "kind")),
    Metric("sits_plugin_seconds_total", "counter", "Time spent in calls of a plugin.", ("plugin", "kind")),
    Metric("sits_plugin_troubles_total", "counter", "Calls of a plugin that went wrong, by how.", ("plugin", "kind", "trouble")),
    Metric("sits_plugin_fenced", "gauge", "1 while a plugin is fenced off.", ("plugin", "kind"), merge="max"),
    Metric(
        "sits_plugin_problem",
        "gauge",
        "1 while a plugin cannot be loaded (failed), its file is another one that cannot (stale), a route names it and it is not "
        "there (missing), or cannot use it with its settings (unusable). No series where all is well.",
        ("plugin", "problem"),
        merge="max",
    ),
    Metric(
        "sits_intent_unwell",
        "gauge",
        "1 while requests are not read as the Domains declare, in some worker: the embedding model fails or says nothing, or "
        "what reads cannot be made. `/v1/admin/intent` says why.",
        (),
        merge="max",
    ),
    Metric(
        "sits_target_asked_total",
        "counter",
        "How often a target was asked for its vital signs: ok, failed.",
        ("target", "outcome"),
    ),
    Metric(
        "sits_target_running",
        "gauge",
        "Requests that a target works on, of all its clients, as it says.",
        ("target",),
        merge="max",
    ),
    Metric("sits_target_waiting", "gauge", "Requests that wait in a target, as it says.", ("target",), merge="max"),
    Metric("sits_target_kv_ratio", "gauge", "Share of a target's KV cache in use, as it says.", ("target",), merge="max"),
    Metric(
        "sits_target_memory_free_ratio",
        "gauge",
        "Share of a target's accelerator memory that is free, from the best source that there is.",
        ("target",),
        merge="min",
    ),
    Metric("sits_target_sick", "gauge", "1 while a target's health query says that it is not well.", ("target",), merge="max"),
    Metric(
        "sits_target_health_unknown",
        "gauge",
        "1 while no answer to a target's health query counts, so that sits_target_sick is 0 for want of one.",
        ("target",),
        merge="max",
    ),
    Metric(
        "sits_prometheus_answers_total",
        "counter",
        "Health and memory queries to Prometheus, by what came of them: answered, refused, failed.",
        ("outcome",),
    ),
    Metric("sits_peers", "gauge", "Processes of this service that tell this one what they see of targets.", merge="max"),
    Metric(
        "sits_reports_total", "counter", "Reports on targets among the processes of this service: said, heard, lost.", ("way",)
    ),
    Metric("sits_gate_limit", "gauge", "Requests of a route that may be inside at once, as found.", ("route",)),
    Metric("sits_gate_inside", "gauge", "Requests of a route that are inside.", ("route",)),
    Metric("sits_gate_waiting", "gauge", "Requests of a route that wait for their turn, by class.", ("route", "priority")),
    Metric("sits_gate_arrived_total", "counter", "Requests that came to a route with classes, by class.", ("route", "priority")),
    Metric("sits_gate_shed_total", "counter", "Requests that were refused for lack of room, by class.", ("route", "priority")),
    Metric(
        "sits_rungs_total",
        "counter",
        "Requests that no model could answer and a lower rung of the route's ladder did: cache or template.",
        ("route", "rung"),
    ),
    Metric("sits_pressure_acting", "gauge", "1 while a pressure policy acts in some worker.", ("policy",), merge="max"),
    Metric(
        "sits_pressure_changes_total", "counter", "How often a pressure policy began to act or was released.", ("policy", "state")
    ),
    Metric(
        "sits_shadow_total",
        "counter",
        "Requests drawn for a route's shadow, by what came of them: same, differs, failed, unread, or left_out_ and why.",
        ("route", "outcome"),
    ),
    Metric(
        "sits_shadow_difference_ratio",
        "gauge",
        "Share of a shadow's answers of the last hour that differ.",
        ("route", "target"),
        merge="max",
    ),
    Metric(
        "sits_shadow_alarm",
        "gauge",
        "1 while too many of a shadow's answers differ in some worker.",
        ("route", "target"),
        merge="max",
    ),
    Metric(
        "sits_switch_share_ratio",
        "gauge",
        "Share of the requests that a switch gives to its new model.",
        ("switch",),
        merge="max",
    ),
    Metric(
        "sits_colour_passing_ratio",
        "gauge",
        "Share of coloured requests whose colour a model server gave back, of those servers that do.",
        ("target",),
        merge="min",
    ),
    Metric(
        "sits_colour_total",
        "counter",
        "Requests by the colour of their traffic; those that no configuration names count as `_other`.",
        ("colour",),
    ),
    Metric(
        "sits_overhead_seconds",
        "histogram",
        "The gateway's own time in a request: all of it that was not spent waiting for a client or a model server.",
        ("route",),
        "seconds",
        _OVERHEAD,
    ),
    Metric(
        "sits_cache_total",
        "counter",
        "Requests of routes with a cache, by what it had to do with them: hit, stale, semantic, semantic-stale, flight, miss, "
        "bypass, renewal.",
        ("route", "outcome"),
    ),
    Metric("sits_cache_entries", "gauge", "Answers kept, by cache: exact or semantic.", ("cache",)),
    Metric("sits_cache_bytes", "gauge", "Bytes of kept answers, by cache.", ("cache",), unit="bytes"),
    Metric("sits_inflight", "gauge", "Requests being answered now."),
    Metric(
        "sits_stream_events_skipped_total",
        "counter",
        "Stream events of a model server that could not be read and were left out.",
        ("target",),
    ),
    Metric(
        "sits_config_version",
        "gauge",
        "Version of the configuration in force; with several workers, the oldest that one of them still has.",
        merge="min",
    ),
    Metric(
        "sits_config_rejected_total", "counter", "Changes of the configuration that were refused because they were not valid."
    ),
    Metric(
        "sits_config_last_reload_success",
        "gauge",
        "1 when the last change of the configuration was taken, 0 when it was refused.",
        merge="min",
    ),
    Metric("sits_records_dropped_total", "counter", "Log lines dropped because their reader did not keep up."),
    Metric("sits_log_held_total", "counter", "Log lines left out because many like them came; the next one says how many."),
    Metric("sits_token_estimates_total", "counter", "Counts of tokens that were estimates, since nobody counted in time."),
    Metric(
        "sits_trace_rows_dropped_total",
        "counter",
        "Requests that were to be recorded (`trace` of Settings) and are not: too many at once, or the disk took none for long.",
    ),
    Metric("sits_build_info", "gauge", "1; the version is in the label.", ("version",), merge="max"),
    Metric("sits_workers", "gauge", "Worker processes that these figures are the sum of."),
    Metric(
        "sits_worker_deaths_total",
        "counter",
        "Workers of several that were killed or failed, with the answers that they had under way; the log says how.",
        ("worker",),
    ),
    Metric("sits_metrics_workers_missing", "gauge", "Worker processes that did not hand over their figures in time."),
    Metric("process_resident_memory_bytes", "gauge", "Resident memory, summed over the workers.", unit="bytes"),
    Metric("process_cpu_seconds_total", "counter", "User and system CPU time, summed over the workers.", unit="seconds"),
    Metric("process_open_fds", "gauge", "Open file descriptors, summed over the workers."),
    Metric(
        "process_start_time_seconds",
        "gauge",
        "Unix time at which the oldest worker started.",
        unit="seconds",
        merge="min",
    ),
)

BY_NAME: dict[str, Metric] = {row.name: row for row in METRICS}


def metrics_page() -> str:
    """The text of `docs/metrics.md`."""
    out = [
        "# Metrics",
        "",
        "`GET /metrics` answers in the Prometheus text format 0.0.4, or in OpenMetrics 1.0 when `Accept` asks for it. There,",
        "each bucket of a histogram carries the trace id of the last request that fell into it, as an exemplar.",
        "",
        f"Label values are names of the configuration only: what a client made up counts under `{UNKNOWN}`, and a metric at its",
        f"cap of series goes on under `{OVERFLOW}`. With several workers the figures are those of all of them together.",
        "",
        "This page is rendered from `sits.observe.catalogue`.",
        "",
        "| name | kind | unit | labels | meaning |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in METRICS:
        labels = ", ".join(f"`{label}`" for label in row.labels)
        origin = f" OpenTelemetry: `{row.otel}`." if row.otel else ""
        out.append(f"| `{row.name}` | {row.kind} | {row.unit} | {labels} | {row.help}{origin} |")
    out += ["", "## Buckets", "", "| name | upper bounds |", "| --- | --- |"]
    out += [f"| `{row.name}` | {', '.join(f'{bound:g}' for bound in row.buckets)} |" for row in METRICS if row.buckets]
    return "\n".join(out) + "\n"
