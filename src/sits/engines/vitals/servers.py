"""What each kind of model server calls its vital signs, as a table, and how a page of one is read.

Names were read in the projects' own sources in November 2026:

    vLLM        v1/metrics/loggers.py. V1 (0.8 and later): kv_cache_usage_perc, prefix_cache_*; V0, and V1 up to 0.10:
                gpu_cache_usage_perc, gpu_prefix_cache_*. Labels model_name and, in V1, engine (a data parallel rank).
    SGLang      srt/observability/metrics_collector.py (0.5). Needs --enable-metrics. Labels model_name, tp_rank, pp_rank,
                moe_ep_rank, dp_rank; with priority scheduling a row each and the total under priority="".
    TGI         docs/source/reference/metrics.md (3.x). Tells nothing of its KV cache.
    llama.cpp   tools/server (b11549, as it answers). Needs --metrics. The KV ratio went away in 2025; older ones have it.
    TensorRT-LLM  metrics/collector.py (trtllm-serve; declare the path: /prometheus/metrics).
    Triton      the same engine behind Triton: triton_backend/.../custom_metrics_reporter.cc and Triton's own docs/user_guide/
                metrics.md for nv_gpu_*; metrics are at a port of their own, 8002.
    Ollama      docs/api.md, GET /api/ps: what is loaded, and where. No queue is told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from sits.engines.vitals.exposition import Sample, samples
from sits.engines.vitals.signs import Vitals
from sits.inner.errors import Code, SitsError

MOST_REQUESTS = 1_000_000
"""A server that claims more is not believed: beyond this, figures are cut."""
MOST_BYTES = 2**60
"""The same of memory."""
MOST_NAMES = 1000
"""Of adapters or loaded models."""
_RANKS = frozenset(("tp_rank", "pp_rank", "moe_ep_rank", "pid"))
"""Labels of processes that work on the same requests together: of their rows the greatest counts. Rows that differ in any other
label (engine, dp_rank) are of different requests, and are added."""


class Source(msgspec.Struct, frozen=True):
    """Where a figure stands: a metric, and labels that its rows must have."""

    metric: str
    where: tuple[tuple[str, str], ...] = ()


class Server(msgspec.Struct, frozen=True):
    """A kind of server. For each figure the first source that has rows is taken."""

    name: str
    running: tuple[Source, ...]
    waiting: tuple[Source, ...]
    kv: tuple[Source, ...] = ()
    kv_used: tuple[Source, ...] = ()
    kv_total: tuple[Source, ...] = ()
    """Blocks, for a server that tells no share."""
    prefix_hit: tuple[Source, ...] = ()
    prefix_hits: tuple[Source, ...] = ()
    prefix_queries: tuple[Source, ...] = ()
    """Counters, for a server that tells no share."""
    memory_used: tuple[Source, ...] = ()
    memory_total: tuple[Source, ...] = ()
    adapters: tuple[Source, ...] = ()
    """The label `running_lora_adapters` of its newest row; the value is the time."""
    model_label: str = ""
    """Which label names the model."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """All names of metrics that are read."""
        sources = (getattr(self, field) for field in _FIGURES)
        return tuple(dict.fromkeys(source.metric for one in sources for source in one))


_FIGURES = ("running", "waiting", "kv", "kv_used", "kv_total", "prefix_hit", "prefix_hits", "prefix_queries", "memory_used",
            "memory_total", "adapters")  # fmt: skip


def _of(*metrics: str, **where: str) -> tuple[Source, ...]:
    return tuple(Source(metric, tuple(where.items())) for metric in metrics)


SERVERS: Mapping[str, Server] = {
    server.name: server
    for server in (
        Server(
            "vllm",
            running=_of("vllm:num_requests_running"),
            waiting=_of("vllm:num_requests_waiting"),
            kv=_of("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            prefix_hits=_of("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
            prefix_queries=_of("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
            adapters=_of("vllm:lora_requests_info"),
            model_label="model_name",
        ),
        Server(
            "sglang",
            running=_of("sglang:num_running_reqs"),
            waiting=_of("sglang:num_queue_reqs"),
            kv=_of("sglang:token_usage"),
            prefix_hit=_of("sglang:cache_hit_rate"),
            model_label="model_name",
        ),
        Server("tgi", running=_of("tgi_batch_current_size"), waiting=_of("tgi_queue_size")),
        Server(
            "llamacpp",
            running=_of("llamacpp:requests_processing"),
            waiting=_of("llamacpp:requests_deferred"),
            kv=_of("llamacpp:kv_cache_usage_ratio"),
        ),
        Server(
            "tensorrt-llm",
            running=_of("trtllm_num_requests_running"),
            waiting=_of("trtllm_num_requests_waiting"),
            kv=_of("trtllm_kv_cache_utilization"),
            prefix_hit=_of("trtllm_kv_cache_hit_rate"),
            memory_used=_of("trtllm_gpu_memory_usage_bytes"),
            model_label="model_name",
        ),
        Server(
            "triton",
            running=_of("nv_trt_llm_request_metrics", request_type="scheduled"),
            waiting=_of("nv_trt_llm_request_metrics", request_type="waiting"),
            kv=_of("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="fraction"),
            kv_used=_of("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="used"),
            kv_total=_of("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="max"),
            memory_used=_of("nv_gpu_memory_used_bytes"),
            memory_total=_of("nv_gpu_memory_total_bytes"),
            model_label="model",
        ),
    )
}
_PATHS = {"vllm": "/metrics", "sglang": "/metrics", "tgi": "/metrics", "llamacpp": "/metrics"}


def default_path(engine: str) -> str | None:
    """Where servers of this engine tell of their load; None where they are asked only if that is declared."""
    return _PATHS.get(engine)


def vitals_of(page: bytes, model: str, at: float, like: str = "") -> Vitals:
    """The vital signs on a page. `model` is the server's own id of the model, which matters where it has several; `like` is the
    kind that the server is taken to be, the others are tried after it.

    Raises:
        SitsError: `upstream_error`, nothing of a kind of server that is known stands there, or nothing of this model;
            `upstream_broken`, the page cannot be what it claims to be.
    """
    if page.lstrip()[:1] == b"{":
        return _ollama(page, at)
    kinds = [SERVERS[like], *SERVERS.values()] if like in SERVERS else list(SERVERS.values())
    for kind in kinds:
        if any(one.metric.encode() in page for one in (*kind.running, *kind.waiting, *kind.kv)):
            found = _Rows(kind, page, model)
            if found:
                return found.vitals(at)
    raise SitsError(Code.UPSTREAM_ERROR, "nothing there is known of " + ", ".join(SERVERS))


class _Rows:
    """The rows of a page that are about one model, by metric."""

    def __init__(self, kind: Server, page: bytes, model: str) -> None:
        self._kind = kind
        self._all: dict[str, list[Sample]] = {}
        for sample in samples(page, kind.metrics):
            if math.isfinite(sample.value) and sample.value >= 0:
                self._all.setdefault(sample.name, []).append(sample)
        self._only = self._which(model)

    def __bool__(self) -> bool:
        return bool(self._all)

    def _which(self, model: str) -> str | None:
        """The model that rows must name; None where all are of one."""
        label = self._kind.model_label
        named = {name for rows in self._all.values() for row in rows if (name := row.labels.get(label)) is not None}
        if len(named) < 2:
            return None
        if model not in named:
            listed = ", ".join(sorted(named)[:5])
            raise SitsError(Code.UPSTREAM_ERROR, f"it tells of {listed}, and not of {model!r}")
        return model

    def vitals(self, at: float) -> Vitals:
        kind = self._kind
        hits, queries = self._sum(kind.prefix_hits), self._sum(kind.prefix_queries)
        return Vitals(
            server=kind.name,
            at=at,
            running=_count(self._sum(kind.running)),
            waiting=_count(self._sum(kind.waiting)),
            kv=_share(self._most(kind.kv), self._sum(kind.kv_used), self._sum(kind.kv_total)),
            prefix_hit=_share(self._most(kind.prefix_hit), hits, queries),
            memory_used=_bytes(self._sum(kind.memory_used)),
            memory_total=_bytes(self._sum(kind.memory_total)),
            adapters_loaded=self._adapters(),
        )

    def _rows(self, sources: tuple[Source, ...]) -> list[Sample]:
        label = self._kind.model_label
        for source in sources:
            rows = [
                row
                for row in self._all.get(source.metric, ())
                if (self._only is None or row.labels.get(label, self._only) == self._only)
                and all(row.labels.get(key) == value for key, value in source.where)
            ]
            if rows:
                totals = [row for row in rows if not row.labels.get("priority")]
                return totals or rows
        return []

    def _sum(self, sources: tuple[Source, ...]) -> float | None:
        parts: dict[frozenset[tuple[str, str]], float] = {}
        for row in self._rows(sources):
            part = frozenset(item for item in row.labels.items() if item[0] not in _RANKS)
            parts[part] = max(row.value, parts.get(part, 0.0))
        return math.fsum(parts.values()) if parts else None

    def _most(self, sources: tuple[Source, ...]) -> float | None:
        return max((row.value for row in self._rows(sources)), default=None)

    def _adapters(self) -> tuple[str, ...]:
        newest = max(self._rows(self._kind.adapters), key=lambda row: row.value, default=None)
        return _names(newest.labels.get("running_lora_adapters", "").split(",")) if newest is not None else ()


class _Loaded(msgspec.Struct):
    name: str = ""
    model: str = ""
    size_vram: int = 0


class _Ps(msgspec.Struct):
    models: list[_Loaded]


def _ollama(page: bytes, at: float) -> Vitals:
    try:
        found = msgspec.json.decode(page, type=_Ps)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SitsError(Code.UPSTREAM_BROKEN, f"this is no list of loaded models: {error}") from error
    # Whole numbers, which JSON has of any length: no float holds them all.
    used = min(sum(max(0, one.size_vram) for one in found.models), MOST_BYTES)
    return Vitals("ollama", at, memory_used=used, adapters_loaded=_names(one.name or one.model for one in found.models))


def _names(names: Iterable[str]) -> tuple[str, ...]:
    plain = dict.fromkeys(name.strip()[:200] for name in names)
    return tuple(name for name in plain if name)[:MOST_NAMES]


def _count(value: float | None) -> int | None:
    return None if value is None else round(min(value, MOST_REQUESTS))


def _bytes(value: float | None) -> int | None:
    return None if value is None else round(min(value, MOST_BYTES))


def _share(value: float | None, part: float | None, whole: float | None) -> float | None:
    if value is None and part is not None and whole:
        value = part / whole
    return None if value is None else min(value, 1.0)
