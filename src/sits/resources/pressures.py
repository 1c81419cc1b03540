"""What may be written into a Pressure: its metrics, its actions, and what their figures mean."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from sits.resources.problem import Fault, Path, did_you_mean, quoted
from sits.resources.reliability import Action, Pressure, Priority, Trigger
from sits.resources.vitals import balanced
from sits.resources.vocabulary import Name

Unit = Literal["share", "milliseconds", "requests"]


class Metric(msgspec.Struct, frozen=True):
    """Something that can be watched. `by_model`: `NAME:MODEL` watches it for one model alone."""

    name: str
    unit: Unit
    meaning: str
    by_model: bool = False


METRICS: Mapping[str, Metric] = {
    row.name: row
    for row in (
        Metric(
            "accelerator_memory",
            "share",
            "memory of accelerators in use: the fullest KV cache that a model server tells of (vLLM, SGLang, llama.cpp); where "
            "none does, the memory of this machine's accelerators as their drivers write it under /sys (amdgpu)",
            by_model=True,
        ),
        Metric("accelerator_use", "share", "how busy the busiest accelerator of this machine is, from /sys (amdgpu)"),
        Metric("kv_cache", "share", "the fullest KV cache that a model server tells of", by_model=True),
        Metric(
            "model_queue",
            "requests",
            "requests that wait inside of model servers (vLLM, SGLang, TGI, llama.cpp), added up",
            by_model=True,
        ),
        Metric("host_memory", "share", "memory of this machine, or of our control group, that is in use"),
        Metric("host_cpu", "share", "how busy all processors of this machine are"),
        Metric("process_memory", "share", "memory of this gateway process, of what the machine or the control group has"),
        Metric(
            "local_memory",
            "share",
            "memory of local models, of `localMemoryMib` or else of what the machine or the control group has",
        ),
        Metric("loop_lag_ms", "milliseconds", "how late this gateway process gets to what is due"),
        Metric("inflight", "requests", "requests that this gateway process is answering"),
        Metric("queue", "requests", "requests that wait for their turn in this gateway process"),
    )
}
QUERY = "prometheus:"
"""Begins a metric that is a query to the Prometheus server of Settings."""
_PREFIXES = {"gpu": "accelerator", "npu": "accelerator", "tpu": "accelerator", "vram": "accelerator_memory", "cpu": "host_cpu",
             "memory": "host_memory", "mem": "host_memory", "rss": "process_memory"}  # fmt: skip
_OTHERS = {
    "accelerator_mem": "accelerator_memory", "accelerator": "accelerator_use",
    "host_mem": "host_memory", "event_loop_lag": "loop_lag_ms", "loop_lag": "loop_lag_ms", "event_loop_lag_ms": "loop_lag_ms",
    "in_flight": "inflight", "queue_length": "queue", "queue_depth": "queue", "queue_size": "queue",
    "accelerator_cache": "kv_cache", "accelerator_kv_cache": "kv_cache", "local_model_memory": "local_memory",
}  # fmt: skip
_THEIRS = {
    "vllm:gpu_cache_usage_perc": "kv_cache", "vllm:kv_cache_usage_perc": "kv_cache", "vllm:num_requests_waiting": "model_queue",
    "sglang:token_usage": "kv_cache", "sglang:num_queue_reqs": "model_queue", "tgi_queue_size": "model_queue",
}  # fmt: skip
"""What the model servers call the same."""
_ENDINGS = re.compile(r"_(?:usage|used|util|utili[sz]ation|percent|perc|pct|ratio|share|use)(?=_|$)")


def metric_of(text: str) -> tuple[Metric, str] | None:
    """The metric that is meant, and the model that it is about (empty: any); None for a query and for what is unknown.

    Other common spellings of the same thing are taken too: `gpu_memory_utilization`, `GPU memory usage`,
    `cpu_percent`, `vllm:num_requests_waiting`.
    """
    text = _THEIRS.get(text, text)
    name, _, model = text.partition(":")
    found = METRICS.get(name) or METRICS.get(_usual(name))
    if found is None or (model and not found.by_model):
        return None
    return found, model


def _usual(name: str) -> str:
    plain = _ENDINGS.sub("", re.sub(r"[^a-z0-9]+", "_", name.strip().casefold()).strip("_"))
    first, _, rest = plain.partition("_")
    if first in _PREFIXES:
        plain = f"{_PREFIXES[first]}_{rest}" if rest else _PREFIXES[first]
    return _OTHERS.get(plain, plain)


def level(trigger: Trigger, figure: float) -> float:
    """A threshold of this trigger in the unit of its metric: for shares, 92 and 0.92 mean the same, a figure above 1 is a
    percentage."""
    found = metric_of(trigger.metric)
    return figure / 100 if found is not None and found[0].unit == "share" and figure > 1 else figure


class Acts(msgspec.Struct, frozen=True):
    """An action, read. `beyond` names what is asked for that only a model server could do inside of itself."""

    models: Mapping[Name, Name] = {}
    precision: str | None = None
    max_tokens: int | None = None
    shed: Priority | None = None
    idle_seconds: float | None = None
    beyond: tuple[str, ...] = ()


_KEYS: Mapping[str, Mapping[str, str]] = {
    "model_downscale": {
        "models": "models", "precision": "precision", "target_precision": "precision", "dtype": "precision",
        "quantization": "precision",
    },
    "shorten": {"max_tokens": "max_tokens", "max_new_tokens": "max_tokens"},
    "shed": {"priority": "shed"},
    "evict": {"idle_seconds": "idle_seconds"},
}  # fmt: skip
"""By action type: the keys of `config`, and what each is in `Acts`."""
BEYOND = frozenset({
    "skip_layers", "layers", "layer_skip", "early_exit", "batch_size", "max_batch_size", "kv_cache_dtype", "offload",
    "cpu_offload", "tensor_parallel", "pipeline_parallel", "speculative", "context_length",
})  # fmt: skip
"""Keys that are understood and that no gateway can act on: what a model server does inside of itself. They are named in the
status."""
DEFAULT_IDLE_SECONDS = 60.0


def acts_of(action: Action) -> Acts:
    """What an action without faults does."""
    return _read(action)[0]


def pressure_faults(pressure: Pressure) -> Iterator[Fault]:
    """What the shape of a Pressure cannot say: known metrics, figures in order, an action that can be taken."""
    yield from _trigger_faults(pressure.spec.trigger)
    yield from _read(pressure.spec.action)[1]


def _trigger_faults(trigger: Trigger) -> Iterator[Fault]:
    path: Path = ("spec", "trigger")
    if trigger.metric.startswith(QUERY):
        if not trigger.metric.removeprefix(QUERY).strip():
            yield Fault((*path, "metric"), "no query follows", f"write {QUERY}max(DCGM_FI_DEV_GPU_UTIL)")
        else:
            yield from balanced(trigger.metric.removeprefix(QUERY), (*path, "metric"))
    elif (found := metric_of(trigger.metric)) is None:
        name, _, model = trigger.metric.partition(":")
        if model and metric_of(name) is not None:
            yield Fault((*path, "metric"), f"{quoted(name)} is not told by model", f"write {name}")
        else:
            hint = did_you_mean(name, METRICS) or f"one of {', '.join(METRICS)}, or {QUERY}QUERY"
            yield Fault((*path, "metric"), f"{quoted(name)} is nothing that is watched", hint)
    elif found[0].unit == "share" and not 0 <= level(trigger, trigger.threshold) <= 1:
        yield Fault((*path, "threshold"), f"{trigger.threshold:g} is no share", "write 0.92, or 92 for per cent")
    if trigger.release is not None and level(trigger, trigger.release) > level(trigger, trigger.threshold):
        message = f"{trigger.release:g} is above the threshold of {trigger.threshold:g}"
        yield Fault((*path, "release"), message, "give a figure below it: it would act and release at once")


def _read(action: Action) -> tuple[Acts, list[Fault]]:
    path: Path = ("spec", "action", "config")
    keys = _KEYS[action.type]
    found: dict[str, Any] = {}
    beyond: list[str] = []
    faults: list[Fault] = []
    for key, value in action.config.items():
        plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).replace("-", "_").casefold()
        if plain in keys:
            field = keys[plain]
            fault = _CHECKS[field](value)
            if fault:
                faults.append(Fault((*path, key), fault))
            elif field in found:
                faults.append(Fault((*path, key), f"says again what {field} says", "keep one of them", at_key=True))
            else:
                found[field] = value
        elif plain in BEYOND:
            beyond.append(key)
        else:
            hint = did_you_mean(key, [*keys, *BEYOND]) or f"one of {', '.join(keys)}"
            faults.append(Fault((*path, key), f"{action.type} has no {quoted(key)}", hint, at_key=True))
    if not faults:
        faults += _missing(action.type, found)
    if faults:
        return Acts(), faults
    if action.type == "evict":
        found.setdefault("idle_seconds", DEFAULT_IDLE_SECONDS)
    if action.type == "shed":
        found.setdefault("shed", "P2")
    return Acts(**found, beyond=tuple(beyond)), []


def _missing(kind: str, found: Mapping[str, Any]) -> Iterator[Fault]:
    path: Path = ("spec", "action", "config")
    if kind == "model_downscale" and not found:
        yield Fault(path, "says no smaller model", "give `models` (model: smaller one) or `precision`")
    elif kind == "shorten" and not found:
        yield Fault(path, "says no length", "give `max_tokens`")


def _models(value: Any) -> str:
    if not isinstance(value, dict) or not value:
        return "is no mapping of models to smaller ones"
    wrong = [key for key, smaller in value.items() if not isinstance(smaller, str) or smaller == key]
    return f"{quoted(wrong[0])} has no smaller model beside it" if wrong else ""


def _word(value: Any) -> str:
    return "" if isinstance(value, str) and value.strip() else "is no word like fp16"


def _count(value: Any) -> str:
    good = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return "" if good else "is no whole number of at least 1"


def _seconds(value: Any) -> str:
    good = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    return "" if good else "is no number of seconds"


def _class(value: Any) -> str:
    if value == "P0":
        return "P0 is never shed"
    return "" if value in ("P1", "P2") else f"{quoted(value)} is not P1 or P2"


_CHECKS = {"models": _models, "precision": _word, "max_tokens": _count, "idle_seconds": _seconds, "shed": _class}
