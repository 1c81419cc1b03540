"""Samples of a page: what Prometheus' own parser reads, we read, and what is no sample is passed over."""

from __future__ import annotations

import math
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from sits.engines.vitals.exposition import LINE_COST, LONGEST_LINE, MOST_BYTES, MOST_LABELS, Sample, samples
from sits.inner.errors import Code, SitsError


@pytest.mark.parametrize(
    ("line", "found"),
    [
        pytest.param(b"m 1", Sample("m", {}, 1.0), id="a plain one"),
        pytest.param(b"m{} 1", Sample("m", {}, 1.0), id="no labels in braces"),
        pytest.param(b"m\t\t2.5e-3\t1700000000000", Sample("m", {}, 0.0025, 1.7e12), id="tabs and a time"),
        pytest.param(b"m 1 1700000000.25", Sample("m", {}, 1.0, 1700000000.25), id="a time of OpenMetrics"),
        pytest.param(b"m 1\r", Sample("m", {}, 1.0), id="a carriage return"),
        pytest.param(b"m +Inf", Sample("m", {}, math.inf), id="infinite"),
        pytest.param(b"m -inf", Sample("m", {}, -math.inf), id="less than all"),
        pytest.param(b"m .5", Sample("m", {}, 0.5), id="no digit in front"),
        pytest.param(b"m 5.", Sample("m", {}, 5.0), id="no digit behind"),
        pytest.param(b'm{a="1",b="2"} 3', Sample("m", {"a": "1", "b": "2"}, 3.0), id="two labels"),
        pytest.param(b'm{a="1",} 3', Sample("m", {"a": "1"}, 3.0), id="a comma behind the last"),
        pytest.param(b'm { a = "1" , b = "2" } 3', Sample("m", {"a": "1", "b": "2"}, 3.0), id="much space"),
        pytest.param(
            b'm{a="}{ \\"x\\" \\\\ \\n \\t,="} 3',
            Sample("m", {"a": '}{ "x" \\ \n \\t,='}, 3.0),
            id="what is escaped, and what is not",
        ),
        pytest.param('m{a="通义千问"} 3'.encode(), Sample("m", {"a": "通义千问"}, 3.0), id="Chinese"),
        pytest.param(b'm{a="\xff"} 3', Sample("m", {"a": "\ufffd"}, 3.0), id="bytes that are no UTF-8"),
        pytest.param(b'm_bucket 7\nm 4 # {trace_id="x"} 0.5 1.5', Sample("m", {}, 4.0), id="an exemplar"),
    ],
)
def test_a_sample_is_read(line: bytes, found: Sample) -> None:
    assert list(samples(b"# TYPE m gauge\n" + line + b"\nother 9\n", ("m",))) == [found]


@pytest.mark.parametrize(
    "line",
    [
        b"", b"m", b"m ", b"m x", b"m 1_0", b"m 0x10", b"m 1 2 3", b"m 1 x", b"mm 1", b" m 1", b"# m 1", b"m: 1", b"m{a} 1",
        b"m{a=1} 1", b"m{a='1'} 1", b'm{a="1} 1', b'm{a="1"b="2"} 1', b'm{a="1","b"} 1', b'm{a="1",a="2"} 1', b'm{a="1"',
        b'm{a="1"} {} 1', b'{"m",a="1"} 1', b"m 1#x", b"m{,} 1",
        b'm{a="' + b"x" * LONGEST_LINE + b'"} 1',
        b"m{" + b"".join(b'a%d="",' % index for index in range(MOST_LABELS + 1)) + b"} 1",
    ],
    ids=lambda line: repr(line[:30]),
)  # fmt: skip
def test_what_is_no_sample_hides_no_other(line: bytes) -> None:
    assert list(samples(b"m 1\n" + line + b"\nm 2", ("m",))) == [Sample("m", {}, 1.0), Sample("m", {}, 2.0)]


def test_a_value_that_is_no_number_is_read_as_such() -> None:
    (found,) = samples(b"m NaN\n", ("m",))
    assert math.isnan(found.value)


def test_names_come_in_the_order_in_which_they_are_asked_for_and_rows_in_that_of_the_page() -> None:
    page = b'a 1\nb{x="1"} 2\na{x="2"} 3\nc 4'
    assert [(one.name, one.value) for one in samples(page, ("b", "a", "absent"))] == [("b", 2.0), ("a", 1.0), ("a", 3.0)]


@pytest.mark.parametrize("line", [b"m 1\n", b'm{a="' + b"\\\\" * 1000 + b'"} 1\n'], ids=["short lines", "long ones"])
def test_a_page_of_too_many_samples_is_refused(line: bytes) -> None:
    enough = MOST_BYTES // (len(line) + LINE_COST)
    assert len(list(samples(line * enough, ("m",)))) == enough
    with pytest.raises(SitsError) as told:
        list(samples(line * (enough + 1), ("m",)))
    assert told.value.code is Code.UPSTREAM_BROKEN


NAMES = st.sampled_from(("vllm:num_requests_running", "tgi_queue_size", "a", "a_b", "b:c"))
TEXT = st.text(st.one_of(st.sampled_from('\\"\n{},= #'), st.characters(exclude_categories=("Cs",))), max_size=12)
LABELS = st.dictionaries(
    st.text(string.ascii_lowercase + "_", min_size=1, max_size=4).filter(lambda n: n[0] != "_"), TEXT, max_size=3
)
VALUES = st.floats(allow_nan=False)


@settings(max_examples=60, deadline=None)
@given(
    gauges=st.dictionaries(NAMES, st.tuples(LABELS, st.lists(VALUES, min_size=1, max_size=3)), max_size=3),
    observed=st.lists(st.floats(0, 1e6), max_size=4),
    openmetrics=st.booleans(),
)
def test_what_the_client_library_writes_is_read_as_it_was(
    gauges: dict[str, tuple[dict[str, str], list[float]]], observed: list[float], openmetrics: bool
) -> None:
    registry = CollectorRegistry()
    for name, (labels, values) in gauges.items():
        more = {key: text for key, text in labels.items() if key != "part"}
        gauge = Gauge(name, "words\nmore", ["part", *more], registry=registry)
        for index, value in enumerate(values):
            gauge.labels(str(index), *more.values()).set(value)
    histogram = Histogram("seconds", "x", registry=registry)
    for one in observed:
        histogram.observe(one, {"trace_id": "abc"} if openmetrics else None)
    Counter("done", "x", registry=registry).inc(7)
    page = generate_openmetrics(registry, escaping="allow-utf-8") if openmetrics else generate_latest(registry)
    written = [Sample(one.name, dict(one.labels), one.value) for family in registry.collect() for one in family.samples]
    kept = [one for one in written if not (openmetrics and one.name.endswith("_created"))]
    names = list(dict.fromkeys(one.name for one in kept))
    assert list(samples(page, names)) == sorted(kept, key=lambda one: names.index(one.name))


SPACE = st.sampled_from((" ", "\t", "  "))
NUMBERS = st.one_of(
    st.integers(-(10**9), 10**9).map(str),
    st.floats(allow_nan=False).map(repr),
    st.sampled_from(("+Inf", "-Inf", "1e3", "1.5E-7", ".5", "5.", "+4")),
)


@st.composite
def lines(draw: st.DrawFn) -> str:
    name, labels = draw(NAMES), draw(LABELS)
    written = [f'{key}="{escaped(value)}"' for key, value in labels.items()]
    text = name + (
        "{" + ",".join(written) + draw(st.sampled_from(("", ","))) + "}" if written else draw(st.sampled_from(("", "{}")))
    )
    stamp = draw(st.one_of(st.just(""), st.integers(0, 2**41).map(lambda one: f" {one}")))
    return text + draw(SPACE) + draw(NUMBERS) + stamp


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@settings(max_examples=100, deadline=None)
@given(written=st.lists(st.one_of(lines(), st.sampled_from(("", "# HELP a words", "# TYPE zz gauge", "# a 1"))), max_size=8))
def test_lines_are_read_as_prometheus_reads_them(written: list[str]) -> None:
    page = "\n".join(written) + "\n"
    theirs = [
        Sample(one.name, dict(one.labels), one.value, None if one.timestamp is None else one.timestamp * 1000)
        for family in text_string_to_metric_families(page)
        for one in family.samples
    ]
    names = sorted({one.name for one in theirs})
    mine = list(samples(page.encode(), names))
    assert [(s.name, s.labels, s.value, s.stamp and round(s.stamp)) for s in mine] == [
        (s.name, s.labels, s.value, s.stamp and round(s.stamp)) for name in names for s in theirs if s.name == name
    ]


@settings(max_examples=100, deadline=None)
@given(page=st.binary(max_size=200), noise=st.binary(max_size=20))
def test_no_bytes_can_hurt(page: bytes, noise: bytes) -> None:
    found = list(samples(page + b"\nm{a" + noise + b'} 1\nm 2\nm{a="' + noise, ("m", "m:a")))
    assert Sample("m", {}, 2.0) in found
