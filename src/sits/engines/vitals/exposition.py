"""Samples of a page in the Prometheus text format 0.0.4 or OpenMetrics 1.0: only those of the names that are asked for.

https://prometheus.io/docs/instrumenting/exposition_formats and https://prometheus.io/docs/specs/om/open_metrics_spec. A page of
vLLM has 60 kB, of which a few lines are wanted; so lines are searched by name, and only those found are taken apart: 0.11 ms
instead of the 6.4 ms that `prometheus_client.parser` takes. A line that is no sample is passed over, as a broken one should not
hide the others; names in quotes (UTF-8 names of Prometheus 3) are not read, for no model server has them.

Ask for the text format (`accept: */*`): asked for OpenMetrics, prometheus_client writes `vllm_` for `vllm:`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import msgspec

from sits.inner.errors import Code, SitsError

MOST_BYTES = 256 * 1024
"""Of lines that are taken apart, on one page."""
LINE_COST = 64
"""Bytes that a line counts for besides its own: many short ones take as long as a few long ones."""
LONGEST_LINE = 64 * 1024
"""Bytes; a longer line is passed over."""
MOST_LABELS = 64
"""Of a line; one with more is passed over."""

_LABEL = re.compile(r'[ \t]*([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*"([^"\\]*(?:\\.[^"\\]*)*)"[ \t]*')
_NUMBER = r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|(?i:nan|inf|infinity))"
_VALUE = re.compile(rf"[ \t]*({_NUMBER})(?:[ \t]+({_NUMBER}))?[ \t\r]*(?:[ \t]#[ \t].*)?", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"\\": "\\", '"': '"', "n": "\n"}


class Sample(msgspec.Struct, frozen=True):
    """One line. `stamp` is as it stands there: milliseconds in the text format, seconds in OpenMetrics."""

    name: str
    labels: dict[str, str]
    value: float
    stamp: float | None = None


def samples(page: bytes, names: Collection[str]) -> Iterator[Sample]:
    """The samples of these names, name by name, each in the order of the page.

    Raises:
        SitsError: `upstream_broken`, there are more lines of these names than `MOST_BYTES` allows.
    """
    lines = b"\n" + page
    left = MOST_BYTES
    for name in names:
        begin = b"\n" + name.encode()
        size = len(begin)
        at = lines.find(begin)
        while at >= 0:
            end = lines.find(b"\n", at + 1)
            if end < 0:
                end = len(lines)
            if lines[at + size : at + size + 1] in (b"{", b" ", b"\t") and end - at <= LONGEST_LINE:
                left -= end - at + LINE_COST
                if left < 0:
                    raise SitsError(Code.UPSTREAM_BROKEN, f"more than {MOST_BYTES} bytes of samples that are wanted")
                found = _sample(name, lines[at + size : end].decode("utf-8", "replace"))
                if found is not None:
                    yield found
            at = lines.find(begin, end)


def _sample(name: str, rest: str) -> Sample | None:
    """A line without its name; None when it is no sample."""
    labels: dict[str, str] = {}
    at = len(rest) - len(rest.lstrip(" \t"))
    if rest.startswith("{", at):
        end = _labels(rest, at + 1, labels)
        if end < 0:
            return None
        at = end
    found = _VALUE.fullmatch(rest, at)
    if found is None:
        return None
    return Sample(name, labels, float(found[1]), None if found[2] is None else float(found[2]))


def _labels(text: str, at: int, into: dict[str, str]) -> int:
    """Read labels from behind the brace; where the text goes on after them, or -1."""
    while True:
        found = _LABEL.match(text, at)
        if found is None:
            break
        name, value = found[1], found[2]
        if name in into or len(into) == MOST_LABELS:
            return -1
        into[name] = _ESCAPE.sub(_unescaped, value) if "\\" in value else value
        at = found.end()
        if not text.startswith(",", at):
            break
        at += 1
    while text.startswith((" ", "\t"), at):
        at += 1
    return at + 1 if text.startswith("}", at) else -1


def _unescaped(found: re.Match[str]) -> str:
    return _ESCAPED.get(found[1], found[0])
