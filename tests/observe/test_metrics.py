"""Counting, adding up and writing metrics; what is written is read back with the parsers of Prometheus' own client."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from sits import __version__
from sits.observe.catalogue import METRICS, OVERFLOW, UNKNOWN, metrics_page
from sits.observe.exposition import AT_ONCE, OPENMETRICS, PROMETHEUS, expose, merge, pieces, wants_openmetrics
from sits.observe.metrics import Registry
from sits.observe.process import ProcessFigures, read_process

FIGURES = ProcessFigures(resident_bytes=1000, cpu_seconds=1.5, open_fds=7, start_time=1_700_000_000.0)
TRACE = "0af7651916cd43dd8448eb211c80319c"


def registry(cap: int = 100, figures: ProcessFigures = FIGURES) -> Registry:
    return Registry(cap, lambda: figures)


def busy() -> Registry:
    one = registry()
    one.inflight.value += 2
    meter = one.meter("chat", "fast", "smol", "vllm")
    meter.done(200, "", 0.3, 0.0001, TRACE, 1_700_000_001.25, 0.05, 12, 6)
    meter.done(502, "upstream_broken", 0.01, 0.00002, None, 0.0)
    one.attempt("smol", "ok").value += 1
    one.events_skipped.series("smol").value += 3
    return one


def samples(text: str, parse: Callable[[str], Any]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in parse(text) for s in family.samples}


EXCHANGE = (
    ("gen_ai_operation_name", "chat"),
    ("gen_ai_provider_name", "vllm"),
    ("gen_ai_request_model", "fast"),
    ("gen_ai_response_model", "smol"),
)


@pytest.mark.parametrize(
    ("openmetrics", "parse"), [(False, parse_prometheus), (True, parse_openmetrics)], ids=["Prometheus 0.0.4", "OpenMetrics 1.0"]
)
def test_what_was_counted_is_read_back_by_the_reference_parser(openmetrics: bool, parse: Callable[[str], Any]) -> None:
    found = samples(merge([busy().dump()], openmetrics=openmetrics), parse)
    duration = "gen_ai_server_request_duration_seconds"
    failed = (("error_type", "upstream_broken"), *EXCHANGE)
    expected = {
        (f"{duration}_count", EXCHANGE): 1,
        (f"{duration}_sum", EXCHANGE): 0.3,
        (f"{duration}_bucket", (*EXCHANGE, ("le", "0.16"))): 0,
        (f"{duration}_bucket", (*EXCHANGE, ("le", "0.32"))): 1,
        (f"{duration}_bucket", (*EXCHANGE, ("le", "+Inf"))): 1,
        # A bound is inclusive.
        (f"{duration}_bucket", (*failed, ("le", "0.01"))): 1,
        ("gen_ai_server_time_to_first_token_seconds_sum", EXCHANGE): 0.05,
        ("gen_ai_server_time_per_output_token_seconds_sum", EXCHANGE): (0.3 - 0.05) / 5,
        ("gen_ai_client_token_usage_sum", tuple(sorted((*EXCHANGE, ("gen_ai_token_type", "input"))))): 12,
        ("gen_ai_client_token_usage_sum", tuple(sorted((*EXCHANGE, ("gen_ai_token_type", "output"))))): 6,
        ("sits_requests_total", (("operation", "chat"), ("route", "fast"), ("status", "200"))): 1,
        (
            "sits_requests_total",
            (("code", "upstream_broken"), ("operation", "chat"), ("route", "fast"), ("status", "502")),
        ): 1,
        ("sits_attempts_total", (("outcome", "ok"), ("target", "smol"))): 1,
        ("sits_overhead_seconds_count", (("route", "fast"),)): 2,
        ("sits_stream_events_skipped_total", (("target", "smol"),)): 3,
        ("sits_inflight", ()): 2,
        ("sits_workers", ()): 1,
        ("sits_metrics_workers_missing", ()): 0,
        ("sits_build_info", (("version", __version__),)): 1,
        ("process_resident_memory_bytes", ()): 1000,
        ("process_cpu_seconds_total", ()): 1.5,
        ("process_open_fds", ()): 7,
        ("process_start_time_seconds", ()): 1_700_000_000.0,
    }
    assert {key: found[key] for key in expected} == pytest.approx(expected)


def test_the_text_is_exactly_this() -> None:
    one = registry()
    one.overhead.series('a\\b"c\n中').observe(0.3, TRACE, 1.5)
    text = merge([one.dump()], openmetrics=True, missing=1)
    lines = [line for line in text.splitlines() if "overhead" in line]
    edges = [
        "2.5e-05",
        "5e-05",
        "0.0001",
        "0.00025",
        "0.0005",
        "0.001",
        "0.0025",
        "0.005",
        "0.01",
        "0.025",
        "0.05",
        "0.1",
        "0.25",
    ]
    route = 'route="a\\\\b\\"c\\n中"'
    assert lines == [
        "# HELP sits_overhead_seconds The gateway's own time in a request: all of it that was not spent waiting for a client "
        "or a model server.",
        "# TYPE sits_overhead_seconds histogram",
        "# UNIT sits_overhead_seconds seconds",
        *(f'sits_overhead_seconds_bucket{{{route},le="{edge}"}} 0' for edge in edges),
        f'sits_overhead_seconds_bucket{{{route},le="1.0"}} 1 # {{trace_id="{TRACE}"}} 0.3 1.500',
        f'sits_overhead_seconds_bucket{{{route},le="+Inf"}} 1',
        f"sits_overhead_seconds_count{{{route}}} 1",
        f"sits_overhead_seconds_sum{{{route}}} 0.3",
    ]
    assert text.endswith("\n# EOF\n")
    assert "sits_metrics_workers_missing 1\n" in text


def test_exemplars_carry_the_trace_id_in_openmetrics_only_and_never_as_a_label() -> None:
    dump = busy().dump()
    assert TRACE not in merge([dump])
    found = [
        (s.name, s.exemplar.labels, s.exemplar.value, float(s.exemplar.timestamp))
        for family in parse_openmetrics(merge([dump], openmetrics=True))
        for s in family.samples
        if s.exemplar is not None and family.name == "gen_ai_server_request_duration_seconds"
    ]
    assert found == [("gen_ai_server_request_duration_seconds_bucket", {"trace_id": TRACE}, 0.3, 1_700_000_001.25)]


def test_workers_are_added_up_each_in_its_way() -> None:
    old, young = busy(), registry(figures=ProcessFigures(500, 0.5, 3, 1_800_000_000.0))
    old.config_version.value, young.config_version.value = 4, 5
    old.config_last_reload_success.value, young.config_last_reload_success.value = 1, 0
    young.inflight.value = 3
    young.meter("chat", "fast", "smol", "vllm").done(200, "", 0.31, 0.0001, "f" * 32, 1_700_000_009.0)
    text = merge([old.dump(), young.dump()], openmetrics=True)
    found = samples(text, parse_openmetrics)
    assert {name: found[name, ()] for name in ("sits_config_version", "sits_config_last_reload_success", "sits_inflight")} == {
        "sits_config_version": 4,
        "sits_config_last_reload_success": 0,
        "sits_inflight": 5,
    }
    assert found["sits_workers", ()] == 2
    assert found["process_resident_memory_bytes", ()] == 1500
    assert found["process_start_time_seconds", ()] == 1_700_000_000.0
    assert found["sits_build_info", (("version", __version__),)] == 1
    assert found["gen_ai_server_request_duration_seconds_bucket", (*EXCHANGE, ("le", "0.32"))] == 2
    assert found["sits_requests_total", (("operation", "chat"), ("route", "fast"), ("status", "200"))] == 2
    # The later exemplar of the bucket stays, whichever order the dumps come in.
    assert f'# {{trace_id="{"f" * 32}"}} 0.31' in text
    assert TRACE not in "".join(line for line in text.splitlines() if 'le="0.32"' in line)
    assert samples(merge([young.dump(), old.dump()]), parse_prometheus) == pytest.approx(
        samples(merge([old.dump(), young.dump()]), parse_prometheus)
    )


def test_the_page_of_many_models_comes_in_small_pieces_that_are_the_same_text() -> None:
    workers = [registry(1000), registry(1000)]
    for worker, one in enumerate(workers):
        one.worker = f"1-{worker}"
        for number in range(250):
            name = f"模型-{number}"
            one.meter("chat", name, name, "vllm").done(200, "", 0.1 * number, 0.001, TRACE, 1.0 * worker, 0.05, number, 6)
    dumps = [one.dump() for one in workers]
    for openmetrics in (False, True):
        found = list(pieces(dumps, openmetrics=openmetrics))
        text = b"".join(found)
        assert text.decode() == merge(dumps, openmetrics=openmetrics)
        longest = max(piece.count(b"\n") for piece in found)
        # Of the widest histogram, with its count and sum and the three lines before the family.
        assert longest <= AT_ONCE * (max(len(row.buckets) for row in METRICS) + 3) + 3
        assert text.count(b"gen_ai_client_token_usage_count{") == 500
        # Whoever makes the page is stopped behind each family of each dump, too.
        assert found.count(b"") > 2 * sum(bool(family.children) for family in workers[0].families.values())


def test_an_exemplar_of_a_bucket_that_is_not_there_is_passed_over() -> None:
    series = [["r"], 1.0, [1] + [0] * 14, [[99, TRACE, 1.0, 1.0], [-1, TRACE, 1.0, 1.0], [0, TRACE, 1.0, 1.0]]]
    text = merge([msgspec.msgpack.encode([{"sits_overhead_seconds": [series]}])], openmetrics=True)
    assert text.count("trace_id") == 1


BROKEN = {
    "empty": b"",
    "not MessagePack": b"\xc1",
    "another shape": msgspec.msgpack.encode(["x"]),
    "cut": busy().dump()[:-5],
    "other labels": msgspec.msgpack.encode([{"sits_inflight": [[["what"], 1]]}]),
    "other buckets": msgspec.msgpack.encode([{"sits_overhead_seconds": [[["r"], 1.0, [1, 2]]]}]),
}


@pytest.mark.parametrize("dump", BROKEN.values(), ids=BROKEN.keys())
def test_a_dump_that_cannot_be_read_counts_as_a_missing_worker(dump: bytes) -> None:
    found = samples(merge([busy().dump(), dump], missing=1), parse_prometheus)
    assert (found["sits_metrics_workers_missing", ()], found["sits_inflight", ()]) == (2, 2)


def test_a_metric_of_another_build_is_left_out() -> None:
    dump = msgspec.msgpack.encode([{"sits_inflight": [[[], 1]], "sits_of_the_future": [[["x"], 1]]}])
    assert samples(merge([dump]), parse_prometheus) == {("sits_inflight", ()): 1, ("sits_metrics_workers_missing", ()): 0}


def test_a_metric_at_its_cap_goes_on_in_one_overflow_series() -> None:
    one = registry(cap=3)
    for number in range(1000):
        one.attempt(f"model-{number}", "ok").value += 1
        one.meter("chat", f"route-{number}", "smol", "vllm").done(200, "", 0.1, 0.1, None, 0.0)
    found = samples(merge([one.dump()]), parse_prometheus)
    attempts = {labels: value for (name, labels), value in found.items() if name == "sits_attempts_total"}
    assert attempts == {
        **{(("outcome", "ok"), ("target", f"model-{number}")): 1 for number in range(3)},
        (("outcome", OVERFLOW), ("target", OVERFLOW)): 997,
    }
    assert all(len(family.children) <= 4 for family in one.families.values())
    total = sum(value for (name, _), value in found.items() if name == "sits_requests_total")
    assert total == 1000


def test_an_upstream_that_makes_up_statuses_cannot_grow_the_metrics() -> None:
    one = registry(cap=50)
    meter = one.meter("chat", "fast", "smol", "vllm")
    for number in range(2000):
        meter.done(number, "upstream_rejected", 0.1, 0.1, None, 0.0)
    assert len(one.requests.children) == 51
    assert sum(series.value for series in one.requests.children.values()) == 2000


def test_series_of_names_that_are_gone_are_forgotten() -> None:
    one = busy()
    one.meter("chat", "", "", "").done(404, "model_not_found", 0.1, 0.1, None, 0.0)
    one.attempt("large", "ok").value += 1
    one.retire({"large"})
    found = samples(merge([one.dump()]), parse_prometheus)
    kept = {labels for name, labels in found if name in ("sits_requests_total", "sits_attempts_total")}
    assert kept == {
        (("code", "model_not_found"), ("operation", "chat"), ("route", UNKNOWN), ("status", "404")),
        (("outcome", "ok"), ("target", "large")),
    }
    one.meter("chat", "fast", "smol", "vllm").done(200, "", 0.1, 0.1, None, 0.0)
    again = samples(merge([one.dump()]), parse_prometheus)
    assert again["sits_requests_total", (("operation", "chat"), ("route", "fast"), ("status", "200"))] == 1


def test_wrong_labels_are_a_defect_of_the_caller() -> None:
    with pytest.raises(ValueError, match="sits_attempts_total has the labels"):
        registry().attempts.series("only-one")


def test_the_same_three_names_give_the_same_meter() -> None:
    one = registry()
    assert one.meter("chat", "a", "b", "vllm") is one.meter("chat", "a", "b", "vllm")
    assert one.meter("chat", "a", "b", "vllm") is not one.meter("messages", "a", "b", "vllm")


@settings(max_examples=100)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=30))
def test_a_histogram_counts_each_value_once_at_or_below_its_bound(values: list[float]) -> None:
    one = registry()
    histogram = one.first_token.series("chat", "vllm", "a", "b")
    for value in values:
        histogram.observe(value)
    name = "gen_ai_server_time_to_first_token_seconds"
    found = samples(merge([one.dump()], openmetrics=True), parse_openmetrics)
    buckets = {dict(labels)["le"]: count for (key, labels), count in found.items() if key == f"{name}_bucket"}
    assert {float(le): count for le, count in buckets.items()} == {
        bound: sum(value <= bound for value in values) for bound in (*histogram.bounds, math.inf)
    }


@settings(max_examples=100)
@given(st.text(max_size=20))
def test_any_name_survives_as_a_label(name: str) -> None:
    one = registry()
    one.attempts.series(name, "ok").value = 1
    found = samples(merge([one.dump()]), parse_prometheus)
    labels = (("outcome", "ok"), ("target", name)) if name else (("outcome", "ok"),)
    assert found["sits_attempts_total", labels] == 1


ACCEPTS = {
    "none": (None, False),
    "anything": (b"*/*", False),
    "plain": (b"text/plain", False),
    "OpenMetrics": (b"application/openmetrics-text", True),
    "Prometheus 2.42": (
        b"application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
        b"text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        True,
    ),
    "plain preferred": (b"application/openmetrics-text;q=0.3, text/plain", False),
    "refused": (b"application/openmetrics-text;q=0", False),
    "a version that we do not write": (b"application/openmetrics-text; version=2.0.0", False),
    "nonsense": (b";;q=,,application/openmetrics-text;q=nan", False),
}


@pytest.mark.parametrize(("accept", "openmetrics"), ACCEPTS.values(), ids=ACCEPTS.keys())
def test_the_form_is_the_one_that_accept_prefers(accept: bytes | None, openmetrics: bool) -> None:
    assert wants_openmetrics(accept) is openmetrics
    kind, body = expose([busy().dump()], accept)
    assert (kind, body.endswith(b"# EOF\n")) == ((OPENMETRICS, True) if openmetrics else (PROMETHEUS, False))


def test_the_table_and_the_registry_name_the_same_metrics() -> None:
    assert sorted(registry().families) == sorted(row.name for row in METRICS)
    for row in METRICS:
        assert (row.kind == "counter") == row.name.endswith("_total")
        assert row.name.removesuffix("_total").endswith(row.unit)
        assert (row.kind == "histogram") == bool(row.buckets)
        assert list(row.buckets) == sorted(row.buckets)


def test_the_page_has_every_metric() -> None:
    page = metrics_page()
    for row in METRICS:
        assert f"| `{row.name}` | {row.kind} |" in page
        assert row.help in page


def test_the_process_figures_are_those_of_this_process() -> None:
    figures = read_process()
    assert 1e6 < figures.resident_bytes < 1e11
    assert figures.cpu_seconds > 0
    with open("/dev/null") as _:
        assert read_process().open_fds == figures.open_fds + 1
    assert time.time() - 3600 * 24 < figures.start_time <= time.time()
