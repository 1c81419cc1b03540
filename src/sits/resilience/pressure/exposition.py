"""The few figures that are wanted of what a model server exposes for Prometheus, and of what Prometheus itself answers. Pure.

Names as the servers give them: vLLM docs/design/metrics.md, SGLang docs/references/production_metrics, TGI
docs/reference/metrics, llama.cpp tools/server/README.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal

from sits.engines.vitals.answers import query_values

Figure = Literal["kv_cache", "model_queue"]

FAMILIES: Mapping[str, Mapping[str, Figure]] = {
    "vllm": {
        "vllm:kv_cache_usage_perc": "kv_cache",
        "vllm:gpu_cache_usage_perc": "kv_cache",
        "vllm:num_requests_waiting": "model_queue",
    },
    "sglang": {"sglang:token_usage": "kv_cache", "sglang:num_queue_reqs": "model_queue"},
    "tgi": {"tgi_queue_size": "model_queue"},
    "llamacpp": {"llamacpp:kv_cache_usage_ratio": "kv_cache", "llamacpp:requests_deferred": "model_queue"},
}
"""Engine -> what its servers call the figures. Shares of several parts (data parallel ranks) count by the fullest, queues are
added."""

_LINE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{.*\})?[ \t]+(\S+)", re.MULTILINE)


def figures_of(engine: str, text: str) -> dict[Figure, float]:
    """The figures in an exposition (Prometheus text format 0.0.4, or OpenMetrics); what is not there is left out."""
    names = FAMILIES[engine]
    found: dict[Figure, float] = {}
    for line in _LINE.finditer(text):
        figure = names.get(line[1])
        value = _number(line[2]) if figure is not None else None
        if figure is None or value is None:
            continue
        if figure == "kv_cache":
            found[figure] = max(value, found.get(figure, 0.0))
        else:
            found[figure] = value + found.get(figure, 0.0)
    return found


def query_value(body: bytes) -> float | None:
    """The largest value of an instant query's answer (prometheus.io/docs/prometheus/latest/querying/api); None when it is empty.

    Raises:
        SitsError: `upstream_error`, the query was refused; `upstream_broken`, this is no such answer.
    """
    return max((value for value in query_values(body) if math.isfinite(value)), default=None)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
