"""Metrics as text: adds up what the workers dumped, and writes Prometheus 0.0.4 or OpenMetrics 1.0. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import add

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


class _Told(msgspec.Struct, array_like=True):
    """A `Dump` whose families are still to be read."""

    families: dict[str, msgspec.Raw]
    worker: str = ""


_DECODER = msgspec.msgpack.Decoder(Dump)
_TOLD = msgspec.msgpack.Decoder(_Told)
_SERIES = msgspec.msgpack.Decoder(list[SeriesDump])
AT_ONCE = 100
"""Series that are written in one piece: half a millisecond of histograms."""
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
    return type_of(openmetrics), b"".join(pieces(dumps, openmetrics=openmetrics, missing=missing, left=left))


def type_of(openmetrics: bool) -> bytes:
    """The content type of a page."""
    return OPENMETRICS if openmetrics else PROMETHEUS


def merge(dumps: Iterable[bytes], *, openmetrics: bool = False, missing: int = 0, left: Left = nobody) -> str:
    """One text for all workers: what `pieces` gives, in one."""
    return b"".join(pieces(dumps, openmetrics=openmetrics, missing=missing, left=left)).decode()


def pieces(dumps: Iterable[bytes], *, openmetrics: bool = False, missing: int = 0, left: Left = nobody) -> Iterator[bytes]:
    """One text for all workers: counters and histograms are added, gauges as their row says, exemplars by recency.

    A dump that cannot be read counts as missing. Of those that are `left`, counters and histograms count: what was told once is
    not taken back.

    It comes in pieces, some of them empty, and each takes a millisecond or less to make: 300 models in two workers are 39,000
    lines, 7 MB. Whoever serves requests too lets others in between.
    """
    now: list[_Read] = []
    before: list[_Read] = []
    for into, raws in ((now, dumps), (before, _late(left, now))):
        for raw in raws:
            one = _Read(raw)
            into.append(one)
            for _ in one.families():
                yield b""
    missing += sum(one.broken for one in (*now, *before))
    told = [(one, True) for one in now if not one.broken] + [(one, False) for one in before if not one.broken]
    # Always in one order: the same fractions added in another may be less by the last bit, which to a reader is a reset.
    told.sort(key=lambda pair: pair[0].worker)
    escaped = _Escaped()
    for row in METRICS:
        sums: dict[tuple[str, ...], SeriesDump] = {}
        for one, present in told:
            if row.kind == "gauge" and not present:
                continue
            for series in one.told.get(row.name, ()):
                known = sums.setdefault(series.labels, series)
                if known is not series:
                    _add(row, known, series, openmetrics)
            yield b""
        if row.name == "sits_metrics_workers_missing":
            sums[()] = SeriesDump((), missing)
        yield from _family(row, sums, openmetrics, escaped)
    if openmetrics:
        yield b"# EOF\n"


def _late(left: Left, now: list[_Read]) -> Iterator[bytes]:
    """Those that are left, asked for when it is known who answered."""
    yield from left({one.worker for one in now if not one.broken})


class _Read:
    """A dump, read family by family: all of it at once takes three milliseconds of 300 models."""

    __slots__ = ("_raw", "broken", "told", "worker")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self.told: dict[str, list[SeriesDump]] = {}
        self.worker = ""
        self.broken = True
        """Whether it is none, or comes from another build with other labels or buckets."""

    def families(self) -> Iterator[None]:
        """Read it, and stop behind each family."""
        try:
            told = _TOLD.decode(self._raw)
            self.worker = told.worker
            for row in METRICS:
                if (raw := told.families.get(row.name)) is None:
                    continue
                series = _SERIES.decode(raw)
                if not _fits(row, series):
                    return
                self.told[row.name] = series
                yield None
        except msgspec.MsgspecError:
            return
        self.broken = False


def read(raw: bytes) -> Dump | None:
    """The dump, or None when it is not one or comes from another build with other labels or buckets."""
    try:
        dump = _DECODER.decode(raw)
    except msgspec.MsgspecError:
        return None
    return dump if all(_fits(row, dump.families.get(row.name, ())) for row in METRICS) else None


def _fits(row: Metric, told: Sequence[SeriesDump]) -> bool:
    """Whether these are series of this metric as it is here."""
    labels, counts = len(row.labels), len(row.buckets) + 1 if row.kind == "histogram" else 0
    return all(len(series.labels) == labels and len(series.counts) == counts for series in told)


def _add(row: Metric, into: SeriesDump, other: SeriesDump, exemplars: bool) -> None:
    if row.merge != "sum":
        into.value = _PICK[row.merge](into.value, other.value)
        return
    into.value += other.value
    if row.kind != "histogram":
        return
    into.counts = list(map(add, into.counts, other.counts))
    if exemplars and other.exemplars:
        latest = {exemplar[0]: exemplar for exemplar in into.exemplars}
        for exemplar in other.exemplars:
            known = latest.get(exemplar[0])
            if known is None or known[3] <= exemplar[3]:
                latest[exemplar[0]] = exemplar
        into.exemplars = list(latest.values())


def _family(row: Metric, series: dict[tuple[str, ...], SeriesDump], openmetrics: bool, escaped: _Escaped) -> Iterator[bytes]:
    """The metadata and samples of one metric, some series at a time; nothing when it has no series."""
    if not series:
        return
    # OpenMetrics names a counter's family without the suffix that its samples bear.
    family = row.name.removesuffix("_total") if openmetrics and row.kind == "counter" else row.name
    lines = [f"# HELP {family} {_escape_help(row.help, openmetrics)}\n", f"# TYPE {family} {row.kind}\n"]
    if openmetrics and row.unit:
        lines.append(f"# UNIT {family} {row.unit}\n")
    histogram = _Lines(row, openmetrics) if row.kind == "histogram" else None
    named = [f'{label}="' for label in row.labels]
    for at, (labels, figures) in enumerate(sorted(series.items()), 1):
        pairs = ",".join([f'{name}{escaped[value]}"' for name, value in zip(named, labels, strict=True) if value])
        if histogram is not None:
            lines.append(histogram.of(pairs, figures, escaped))
        else:
            lines.append(f"{row.name}{_braces(pairs)} {_number(figures.value)}\n")
        if at % AT_ONCE == 0:
            yield "".join(lines).encode()
            lines = []
    yield "".join(lines).encode()


class _Lines:
    """The lines of a histogram's series: one format of what differs, since most of the page is them. 6 us instead of 20."""

    __slots__ = ("_form", "_step")

    def __init__(self, row: Metric, openmetrics: bool) -> None:
        self._step = 3 if openmetrics else 2
        figure = "%d%s" if openmetrics else "%d"
        edges = [f'{row.name}_bucket{{%sle="{_number(bound)}"}} {figure}\n' for bound in (*row.buckets, math.inf)]
        self._form = f"{''.join(edges)}{row.name}_count%s %d\n{row.name}_sum%s %s\n"

    def of(self, pairs: str, figures: SeriesDump, escaped: _Escaped) -> str:
        step, counts = self._step, list(accumulate(figures.counts))
        said: list[object] = [f"{pairs}," if pairs else ""] * (step * len(counts))
        said[1::step] = counts
        if step == 3:
            exemplars = [""] * len(counts)
            for bucket, trace, value, at in figures.exemplars:
                if not 0 <= bucket < len(counts):
                    continue
                exemplars[bucket] = f' # {{trace_id="{escaped[trace]}"}} {_number(value)} {at:.3f}'
            said[2::step] = exemplars
        braces = _braces(pairs)
        return self._form % (*said, braces, counts[-1], braces, _number(figures.value))


class _Escaped(dict[str, str]):
    """Values of labels as they are written. Of one page, where names come again and again."""

    def __missing__(self, value: str) -> str:
        written = self[value] = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return written


def _braces(pairs: str) -> str:
    return f"{{{pairs}}}" if pairs else ""


def _number(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    return repr(value)


def _escape_help(text: str, openmetrics: bool) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if openmetrics else text
