"""Queries of probes: what cannot be read says where and what was meant; what can be read is answered from the run."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.chaos.figures import Figures, Series, Window, quantile, understood
from sits.chaos.load import Seen
from sits.resources.query import PHASES, QueryError, parse

RUN = {"before": Window(0, 10), "during": Window(10, 20), "after": Window(20, 30), "run": Window(0, 30), "": Window(0, 30)}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        pytest.param("", "a number, a figure or a function is expected, not the end at character 1", id="empty"),
        pytest.param("success_share >", "'>' is not understood at character 15", id="a comparison belongs outside"),
        pytest.param("delta(sits_requests_total", "')' is expected, not the end at character 26", id="an open bracket"),
        pytest.param('sum(sits_inflight{a="b})', "'\"' is not understood at character 21", id="an open text"),
        pytest.param("delta(a{b=c})", "a text in double quotes is expected, not c at character 11", id="a bare label value"),
        pytest.param(
            "detla(a)", "there is no function 'detla' at character 1; did you mean \"delta\"?", id="a function misspelt"
        ),
        pytest.param("ratio(sits_inflight)", "ratio takes 2 of these, not 1, at character 1", id="too few arguments"),
        pytest.param('failed{load=~"("}', "'(' is no regular expression", id="a broken pattern"),
        pytest.param(
            "failed over durring", "there is no phase 'durring' at character 13; did you mean \"during\"?", id="a phase"
        ),
        pytest.param("failed failed", "the end, or + - * / is expected, not failed at character 8", id="two figures"),
        pytest.param("(" * 60 + "1" + ")" * 60, "too many brackets at character 52", id="too deep"),
        pytest.param(
            "1+" * 1200 + "1", "a query has 2000 characters at the most; this one ends at character 2001", id="too long"
        ),
        pytest.param(
            "sucess_share", "there is no figure 'sucess_share' at character 1; did you mean \"success_share\"?", id="a figure"
        ),
        pytest.param(
            "1 + delta(sits_request_total)",
            "there is no figure 'sits_request_total' at character 11; did you mean \"sits_requests_total\"?",
            id="a metric misspelt",
        ),
        pytest.param(
            'delta(sits_requests_total{rout="x"})',
            "sits_requests_total has no label 'rout' at character 27; did you mean \"route\"?",
            id="a label misspelt",
        ),
        pytest.param(
            "sits_inflight", "sits_inflight needs a function at character 1; write delta(sits_inflight) or another", id="bare"
        ),
        pytest.param(
            "p99(failed)", "failed is a figure by itself, not for p99() at character 5; write failed", id="a client's figure"
        ),
        pytest.param(
            "p99(sits_inflight)",
            "sits_inflight is a gauge, not for p99() at character 5; use delta, rate, sum, max, min, mean or ratio",
            id="a quantile of a gauge",
        ),
        pytest.param(
            "sum(sits_overhead_seconds)",
            "sits_overhead_seconds is a histogram, not for sum() at character 5; use p99 or count",
            id="a sum of a histogram",
        ),
    ],
)
def test_what_cannot_be_read_says_where_and_what_was_meant(query: str, said: str) -> None:
    with pytest.raises(QueryError) as caught:
        understood(query)
    assert said in str(caught.value)


def seen(load: str, ended: float, *, outcome: str = "complete", ms: float = 100.0, **more: object) -> Seen:
    fields: dict[str, object] = {"first": ended - ms / 2000, "status": 200, "code": "", "lost": 0, "doubled": 0, "gateway": "g"}
    return Seen(load=load, began=ended - ms / 1000, ended=ended, outcome=outcome, told={"target": "a"}, **{**fields, **more})  # type: ignore[arg-type]


def filled(*queries: str) -> Figures:
    figures = Figures([understood(query) for query in queries])
    for time, ok, bad, live, low, high in [
        (0, 0, 0, 1, 0, 0),
        (10, 10, 0, 2, 10, 10),
        (20, 30, 10, 6, 20, 30),
        (30, 60, 10, 3, 20, 40),
    ]:
        figures.take(
            "gateway-1",
            float(time),
            "# HELP sits_requests_total x\n"
            f'sits_requests_total{{route="c",operation="chat",status="200"}} {ok}\n'
            f'sits_requests_total{{route="c",operation="chat",status="502",code="upstream_error"}} {bad}\n'
            f"sits_inflight {live}\nsits_workers 7\n"
            f'sits_overhead_seconds_bucket{{route="c",le="0.1"}} {low}\n'
            f'sits_overhead_seconds_bucket{{route="c",le="0.2"}} {high}\n'
            f'sits_overhead_seconds_bucket{{route="c",le="+Inf"}} {high}\nsits_overhead_seconds_count{{route="c"}} {high}\n',
        )
    figures.seen = [
        seen("x", 5.0),
        seen("x", 12.0, ms=300.0),
        seen("x", 13.0, outcome="wrong", lost=2, doubled=1),
        seen("y", 15.0, outcome="shed", status=429, code="rate_limited"),
        seen("y", 25.0, ms=50.0, gateway="h"),
    ]
    figures.struck = {"reset": 4.0, "kill": 1.0}
    figures.recovery = 0.4
    return figures


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("delta(sits_requests_total)", 70),
        ("delta(sits_requests_total) over during", 30),
        ('delta(sits_requests_total{status="200"}) over before', 10),
        ('delta(sits_requests_total{status=~"5.."}) over after', 0),
        ('delta(sits_requests_total{code!=""})', 10),
        ('delta(sits_requests_total{gateway="gateway-2"})', 0),
        ('ratio(sits_requests_total{status="200"}, sits_requests_total) over during', 20 / 30),
        ('ratio(sits_requests_total{route="none"}, sits_requests_total{route="none"})', None),
        ("rate(sits_requests_total) over during", 3),
        ("sum(sits_inflight) over during", 6),
        ("max(sits_inflight)", 6),
        ("min(sits_inflight) over after", 3),
        ("mean(sits_inflight)", 3),
        ("count(sits_overhead_seconds) over during", 20),
        ("p50(sits_overhead_seconds) over before", 0.05),
        ("p99(sits_overhead_seconds) over during", 0.198),
        ("p99(sits_overhead_seconds) over after * 0", 0),
        ("delta(sits_overhead_seconds_count)", 40),
        ("success_share", 3 / 5),
        ('success_share{load="x"} over during', 0.5),
        ('success_share{load="nobody"}', None),
        ("requests over before + failed over during", 3),
        ('requests{status="429"}', 1),
        ('requests{target="a", gateway="h"}', 1),
        ('requests{outcome=~"shed|wrong"}', 2),
        ('requests{code!~".*limit.*"}', 4),
        ("lost_tokens * 10 + doubled_tokens", 21),
        ("p50_ms", 100),
        ("p99_ms", 300),
        ("first_token_p99_ms over after", 25),
        ("longest_ms over during", 300),
        ("per_second over after", 0.1),
        ("recovery_seconds", 0.4),
        ("struck", 5),
        ('struck{kind="reset"}', 4),
        ("-(2 + 3) * 2 / 4 - 1.5e0", -4),
        ("1 / failed over before", None),
    ],
)
def test_a_query_is_answered_from_what_was_seen(query: str, answer: float | None) -> None:
    value = filled(query).value(understood(query), RUN.get)
    if answer is None:
        assert value is None
    else:
        assert value is not None
        assert math.isclose(value, answer, abs_tol=1e-9), value


def test_a_phase_that_never_was_has_no_answer() -> None:
    assert filled("requests").value(understood("requests over after"), lambda phase: None) is None


@given(steps=st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=30), edge=st.integers(0, 30))
def test_a_counter_that_begins_anew_never_shrinks_what_was_counted(steps: list[tuple[float, bool]], edge: int) -> None:
    series, value, whole = Series(), 0.0, 0.0
    for time, (grown, restarted) in enumerate(steps):
        value = grown if restarted else value + grown
        whole += grown
        series.times.append(float(time))
        series.values.append(value)
    everything = series.increase(Window(-1, 100))
    # A restart that already counted past the old value cannot be told from growth: what is found is never more than what was.
    assert 0 <= everything <= whole + 1e-6
    if not any(restarted for _, restarted in steps):
        assert math.isclose(everything, whole, abs_tol=1e-6)
    parts = series.increase(Window(-1, edge)) + series.increase(Window(edge, 100))
    assert math.isclose(parts, everything, abs_tol=1e-6)


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1), part=st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_is_the_smallest_that_so_many_do_not_exceed(values: list[float], part: float) -> None:
    found = quantile(values, part)
    assert found in values
    assert sum(value <= found for value in values) >= part * len(values) - 1e-9
    assert sum(value < found for value in values) < part * len(values)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    place = 1
    try:
        parse(text)
    except QueryError as error:
        place = error.position
    assert 1 <= place <= len(text) + 1


def test_every_phase_can_be_named() -> None:
    assert [understood(f"failed over {phase}").phase for phase in PHASES] == list(PHASES)  # type: ignore[union-attr]
