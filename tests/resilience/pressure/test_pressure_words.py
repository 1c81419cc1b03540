"""Pressure policies as they are written: read as they are, refused with a place and a hint, and what they mean."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sits.resources.pressures import METRICS, Acts, acts_of, metric_of, pressure_faults
from sits.resources.reading import read_text
from sits.resources.reliability import Action, Pressure

AS_IS = """\
policy: gpu_backpressure_v2
trigger:
  metric: gpu_memory_utilization
  threshold: 92%
  duration_seconds: 5
action:
  type: model_downscale
  config:
    precision: fp16
    skip_layers: [12, 18]
"""


def only(text: str, file: str = "p.yaml") -> Pressure:
    reading = read_text(text, file)
    assert reading.problems == ()
    [declared] = reading.declared
    assert isinstance(declared.resource, Pressure)
    assert list(pressure_faults(declared.resource)) == []
    return declared.resource


def test_a_plain_policy_is_read_as_it_is() -> None:
    pressure = only(AS_IS)
    spec = pressure.spec
    assert pressure.metadata.name == "gpu_backpressure_v2"
    assert (spec.policy, spec.routes) == ("gpu_backpressure_v2", [])
    assert (spec.trigger.metric, spec.trigger.threshold, spec.trigger.duration_seconds) == ("gpu_memory_utilization", 0.92, 5)
    assert acts_of(spec.action) == Acts(precision="fp16", beyond=("skip_layers",))
    found = metric_of(spec.trigger.metric)
    assert found == (METRICS["accelerator_memory"], "")


def test_it_may_be_json_and_one_of_a_list_among_resources() -> None:
    text = (
        '[{"apiVersion": "sits/v1", "kind": "Settings", "spec": {}},'
        ' {"policy": "p", "trigger": {"metric": "queue", "threshold": 9}, "action": {"type": "shed"}, "routes": ["chat"]}]'
    )
    reading = read_text(text, "all.json")
    assert reading.problems == ()
    assert [(one.kind, one.name) for one in reading.declared] == [("Settings", "settings"), ("Pressure", "p")]
    pressure = reading.declared[1].resource
    assert isinstance(pressure, Pressure)
    assert pressure.spec.routes == ["chat"]


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        ("gpu_backpressure_v2", "gpu_backpressure_v2"),
        ("GPU back pressure!", "GPU-back-pressure"),
        ("--odd--", "odd"),
        ("显存背压", "pressure-"),
        ("显存背压_v2", "v2-"),
        ("x" * 300, "x" * 180),
        ("!!!", "pressure-"),
    ],
)
def test_its_name_is_cleaned_to_one_that_resources_may_have(policy: str, name: str) -> None:
    found = only(AS_IS.replace("gpu_backpressure_v2", f'"{policy}"')).metadata.name
    assert found == name or (name.endswith("-") and found.startswith(name) and len(found) == len(name) + 8)


def test_names_that_lose_letters_stay_apart() -> None:
    first, second = (only(AS_IS.replace("gpu_backpressure_v2", word)).metadata.name for word in ("显存", "内存"))
    assert first != second


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param(
            ("  duration_seconds: 5", "  duration_second: 5"),
            'p.yaml:5:3 spec.trigger.duration_second: unknown key; did you mean "duration_seconds"?',
            id="an unknown key of the trigger",
        ),
        pytest.param(
            ("model_downscale", "model_downscal"),
            'p.yaml:7:9 spec.action.type: "model_downscal" is not one of evict, model_downscale, shed, shorten; '
            'did you mean "model_downscale"?',
            id="an unknown action",
        ),
        pytest.param(("92%", "lots"), 'p.yaml:4:14 spec.trigger.threshold: must be a number, not text ("lots")', id="no figure"),
    ],
)
def test_what_is_wrong_in_a_plain_policy_is_said_with_its_place(change: tuple[str, str], problem: str) -> None:
    found = read_text(AS_IS.replace(*change), "p.yaml").problems
    assert [str(one) for one in found] == [problem]


def test_without_a_policy_name_it_is_no_plain_policy() -> None:
    [problem] = read_text(AS_IS.replace("policy: gpu_backpressure_v2\n", ""), "p.yaml").problems
    assert problem.message == "`kind` is missing"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("gpu_memory", "accelerator_memory"), ("gpu_memory_usage", "accelerator_memory"),
        ("GPU memory usage", "accelerator_memory"),
        ("gpu.memory.used_percent", "accelerator_memory"), ("accelerator memory", "accelerator_memory"),
        ("npu_memory_utilisation", "accelerator_memory"), ("vram_usage", "accelerator_memory"),
        ("gpu_utilization", "accelerator_use"), ("gpu_cache_usage_perc", "kv_cache"), ("kv_cache_usage", "kv_cache"),
        ("cpu_percent", "host_cpu"), ("memory_usage", "host_memory"), ("rss", "process_memory"),
        ("event_loop_lag_ms", "loop_lag_ms"),
        ("in_flight", "inflight"), ("queue_length", "queue"), ("vllm:num_requests_waiting", "model_queue"),
        ("sglang:token_usage", "kv_cache"), *((name, name) for name in METRICS),
    ],
)  # fmt: skip
def test_metrics_have_their_other_common_names_too(written: str, meant: str) -> None:
    assert metric_of(written) == (METRICS[meant], "")


def test_a_metric_of_one_model_alone() -> None:
    assert metric_of("kv_cache:qwen/72b") == (METRICS["kv_cache"], "qwen/72b")
    assert metric_of("queue:qwen") is None
    assert metric_of("prometheus:up") is None


def faults_of(trigger: dict[str, Any], action: dict[str, Any]) -> list[tuple[str, str, str]]:
    value = {"policy": "p", "trigger": {"metric": "queue", "threshold": 1, **trigger}, "action": {"type": "shed", **action}}
    reading = read_text(json.dumps(value), "p.json")
    assert len(reading.declared) == 1, reading.problems
    pressure = reading.declared[0].resource
    assert isinstance(pressure, Pressure)
    return [(".".join(map(str, fault.path[1:])), fault.message, fault.hint) for fault in pressure_faults(pressure)]


DOWN: dict[str, Any] = {"type": "model_downscale"}
KNOWN = "one of " + ", ".join(METRICS) + ", or prometheus:QUERY"


@pytest.mark.parametrize(
    ("trigger", "action", "fault"),
    [
        pytest.param(
            {"metric": "host_memry"}, {},
            ("trigger.metric", '"host_memry" is nothing that is watched', 'did you mean "host_memory"?'),
            id="a metric nearly right",
        ),
        pytest.param(
            {"metric": "tea"}, {}, ("trigger.metric", '"tea" is nothing that is watched', KNOWN), id="an unknown metric",
        ),
        pytest.param(
            {"metric": "queue:m"}, {}, ("trigger.metric", '"queue" is not told by model', "write queue"), id="not by model",
        ),
        pytest.param(
            {"metric": "prometheus: "}, {}, ("trigger.metric", "no query follows", "write prometheus:max(DCGM_FI_DEV_GPU_UTIL)"),
            id="no query",
        ),
        pytest.param(
            {"metric": "host_cpu", "threshold": 920}, {},
            ("trigger.threshold", "920 is no share", "write 0.92, or 92 for per cent"), id="more than all",
        ),
        pytest.param(
            {"metric": "host_cpu", "threshold": 0.5, "release": 60}, {},
            ("trigger.release", "60 is above the threshold of 0.5", "give a figure below it: it would act and release at once"),
            id="released above, in per cent",
        ),
        pytest.param(
            {}, {**DOWN, "config": {"model": {"a": "b"}}},
            ("action.config.model", 'model_downscale has no "model"', 'did you mean "models"?'), id="a key nearly right",
        ),
        pytest.param(
            {}, {"config": {"colour": 1}}, ("action.config.colour", 'shed has no "colour"', "one of priority"),
            id="an unknown key",
        ),
        pytest.param(
            {}, DOWN, ("action.config", "says no smaller model", "give `models` (model: smaller one) or `precision`"),
            id="nothing to scale down to",
        ),
        pytest.param(
            {}, {**DOWN, "config": {"skip_layers": [1]}},
            ("action.config", "says no smaller model", "give `models` (model: smaller one) or `precision`"),
            id="only what no gateway can do",
        ),
        pytest.param(
            {}, {**DOWN, "config": {"models": {"a": "a"}}}, ("action.config.models", '"a" has no smaller model beside it', ""),
            id="a model for itself",
        ),
        pytest.param(
            {}, {**DOWN, "config": {"models": []}}, ("action.config.models", "is no mapping of models to smaller ones", ""),
            id="no mapping",
        ),
        pytest.param(
            {}, {**DOWN, "config": {"precision": 16}}, ("action.config.precision", "is no word like fp16", ""), id="no word",
        ),
        pytest.param(
            {}, {**DOWN, "config": {"precision": "fp16", "dtype": "fp8"}},
            ("action.config.dtype", "says again what precision says", "keep one of them"), id="said twice",
        ),
        pytest.param({}, {"type": "shorten"}, ("action.config", "says no length", "give `max_tokens`"), id="no length"),
        pytest.param(
            {}, {"type": "shorten", "config": {"max_tokens": 0}},
            ("action.config.max_tokens", "is no whole number of at least 1", ""), id="no tokens",
        ),
        pytest.param({}, {"config": {"priority": "P0"}}, ("action.config.priority", "P0 is never shed", ""), id="P0"),
        pytest.param({}, {"config": {"priority": "P7"}}, ("action.config.priority", '"P7" is not P1 or P2', ""), id="no class"),
        pytest.param(
            {}, {"type": "evict", "config": {"idle_seconds": True}},
            ("action.config.idle_seconds", "is no number of seconds", ""), id="no seconds",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused(trigger: dict[str, Any], action: dict[str, Any], fault: tuple[str, str, str]) -> None:
    assert faults_of(trigger, action) == [fault]


@pytest.mark.parametrize(
    ("action", "acts"),
    [
        (Action("model_downscale", {"models": {"a": "b"}}), Acts(models={"a": "b"})),
        (Action("model_downscale", {"targetPrecision": "INT8", "skipLayers": 4}), Acts(precision="INT8", beyond=("skipLayers",))),
        (Action("shorten", {"maxTokens": 64}), Acts(max_tokens=64)),
        (Action("shed", {"priority": "P1"}), Acts(shed="P1")),
        (Action("shed"), Acts(shed="P2")),
        (Action("evict", {"idle-seconds": 5}), Acts(idle_seconds=5)),
        (Action("evict"), Acts(idle_seconds=60.0)),
    ],
)
def test_an_action_is_what_it_says(action: Action, acts: Acts) -> None:
    assert acts_of(action) == acts


DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("name", METRICS)
def test_the_page_has_every_metric_as_the_code_has_it(name: str) -> None:
    row = METRICS[name]
    assert f"| `{name}` | {row.unit} | {row.meaning} |" in (DOCS / "pressure.md").read_text("utf-8")


@pytest.mark.parametrize("page", ["pressure.md", "breakers.md"])
def test_what_the_pages_show_is_read_without_a_problem(page: str) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    readings = [read_text(block, page) for block in blocks]
    assert [reading.problems for reading in readings] == [()] * len(blocks)
    assert all(reading.declared for reading in readings)
    pressures = [one.resource for reading in readings for one in reading.declared if isinstance(one.resource, Pressure)]
    assert [list(pressure_faults(pressure)) for pressure in pressures] == [[]] * len(pressures)
