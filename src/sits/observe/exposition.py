"""Metrics as text: adds up what the workers dumped, and writes Prometheus 0.0.4 or OpenMetrics 1.0. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from operator import itemgetter

import msgspec

from sits.observe.catalogue import METRICS, Metric
from sits.observe.metrics import Dump, SeriesDump

PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = b"application/openmetrics-text; version=1.0.0; charset=utf-8"

Left = Callable[[Collection[str]], Iterable[bytes]]
"""The last dumps of workers that did not answer now, given the names of those that did."""


def nobody(answered: Collection[str]) -> Iterable[bytes]:
    """What is left where there is only one worker."""
    return ()


_DECODER = msgspec.msgpack.Decoder(Dump)
_PICK = {"min": min, "max": max}


def wants_openmetrics(accept: bytes | None) -> bool:
    """Whether the Accept header prefers OpenMetrics to plain text; the plain one wins a tie that does not name ours."""
    best = {"openmetrics": 0.0, "plain": 0.0}
    for part in (accept or b"").decode("latin-1").lower().split(","):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        weight = 1.0
        version = "1.0.0"
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip() == "q":
                weight = _weight(value)
            elif name.strip() == "version":
                version = value.strip().strip('"')
        if media == "application/openmetrics-text" and version in ("1.0.0", "0.0.1"):
            best["openmetrics"] = max(best["openmetrics"], weight)
        elif media in ("text/plain", "text/*", "*/*"):
            best["plain"] = max(best["plain"], weight)
    return best["openmetrics"] > 0 and best["openmetrics"] >= best["plain"]


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0.0 <= weight <= 1.0 else 0.0


def expose(dumps: Iterable[bytes], accept: bytes | None = None, missing: int = 0, left: Left = nobody) -> tuple[bytes, bytes]:
    """(content type, body) for a scrape; `missing` is the number of workers that did not answer."""
    openmetrics = wants_openmetrics(accept)
    text = merge(dumps, openmetrics=openmetrics, missing=missing, left=left)
    return (OPENMETRICS if openmetrics else PROMETHEUS), text.encode()


def merge(dumps: Iterable[bytes], *, openmetrics: bool = False, missing: int = 0, left: Left = nobody) -> str:
    """One text for all workers: counters and histograms are added, gauges as their row says, exemplars by recency.

    A dump that cannot be read counts as missing. Of those that are `left`, counters and histograms count: what was told once is
    not taken back.
    """
    now = [read(raw) for raw in dumps]
    before = [read(raw) for raw in left({dump.worker for dump in now if dump is not None})]
    missing += now.count(None) + before.count(None)
    told = [(dump, True) for dump in now if dump is not None] + [(dump, False) for dump in before if dump is not None]
    sums: dict[str, dict[tuple[str, ...], SeriesDump]] = {row.name: {} for row in METRICS}
    # Always in one order: the same fractions added in another may be less by the last bit, which to a reader is a reset.
    for dump, present in sorted(told, key=lambda one: one[0].worker):
        for row in METRICS:
            if row.kind == "gauge" and not present:
                continue
            for series in dump.families.get(row.name, ()):
                known = sums[row.name].setdefault(series.labels, series)
                if known is not series:
                    _add(row, known, series)
    sums["sits_metrics_workers_missing"][()] = SeriesDump((), missing)
    lines: list[str] = []
    for row in METRICS:
        _family(lines, row, sums[row.name], openmetrics)
    if openmetrics:
        lines.append("# EOF")
    return "\n".join(lines) + "\n"


def read(raw: bytes) -> Dump | None:
    """The dump, or None when it is not one or comes from another build with other labels or buckets."""
    try:
        dump = _DECODER.decode(raw)
    except msgspec.MsgspecError:
        return None
    for row in METRICS:
        counts = len(row.buckets) + 1 if row.kind == "histogram" else 0
        for series in dump.families.get(row.name, ()):
            if len(series.labels) != len(row.labels) or len(series.counts) != counts:
                return None
    return dump


def _add(row: Metric, into: SeriesDump, other: SeriesDump) -> None:
    if row.merge != "sum":
        into.value = _PICK[row.merge](into.value, other.value)
        return
    into.value += other.value
    if row.kind == "histogram":
        into.counts = [a + b for a, b in zip(into.counts, other.counts, strict=True)]
        latest = {exemplar[0]: exemplar for exemplar in sorted(into.exemplars + other.exemplars, key=itemgetter(3))}
        into.exemplars = list(latest.values())


def _family(lines: list[str], row: Metric, series: dict[tuple[str, ...], SeriesDump], openmetrics: bool) -> None:
    """The metadata and samples of one metric; nothing when it has no series."""
    if not series:
        return
    # OpenMetrics names a counter's family without the suffix that its samples bear.
    family = row.name.removesuffix("_total") if openmetrics and row.kind == "counter" else row.name
    lines.append(f"# HELP {family} {_escape_help(row.help, openmetrics)}")
    lines.append(f"# TYPE {family} {row.kind}")
    if openmetrics and row.unit:
        lines.append(f"# UNIT {family} {row.unit}")
    for labels, figures in sorted(series.items()):
        pairs = [f'{name}="{_escape(value)}"' for name, value in zip(row.labels, labels, strict=True) if value]
        if row.kind == "histogram":
            _histogram(lines, row, pairs, figures, openmetrics)
        else:
            lines.append(f"{row.name}{_braces(pairs)} {_number(figures.value)}")


def _histogram(lines: list[str], row: Metric, pairs: list[str], figures: SeriesDump, openmetrics: bool) -> None:
    exemplars = {bucket: (trace, value, at) for bucket, trace, value, at in figures.exemplars} if openmetrics else {}
    running = 0
    for bucket, bound in enumerate((*row.buckets, math.inf)):
        running += figures.counts[bucket]
        edge = f'le="{_number(bound)}"'
        line = f"{row.name}_bucket{_braces([*pairs, edge])} {running}"
        if bucket in exemplars:
            trace, value, at = exemplars[bucket]
            line += f' # {{trace_id="{_escape(trace)}"}} {_number(value)} {at:.3f}'
        lines.append(line)
    lines.append(f"{row.name}_count{_braces(pairs)} {running}")
    lines.append(f"{row.name}_sum{_braces(pairs)} {_number(figures.value)}")


def _braces(pairs: list[str]) -> str:
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _number(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    return repr(value)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escape_help(text: str, openmetrics: bool) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if openmetrics else text
