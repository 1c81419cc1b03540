from __future__ import annotations

import json

import pytest

from sits.bench.figure import Figure, bounded, exit_code, holds, line, measured

HOLDS = [
    pytest.param(1.0, "<= 1.0", True, id="at most, and just that"),
    pytest.param(1.0001, "<= 1.0", False, id="at most, a little over"),
    pytest.param(1.5, "< 1.5", False, id="below, and just that"),
    pytest.param(100.0, ">= 100", True, id="at least, and just that"),
    pytest.param(99.9, ">= 100", False, id="at least, a little under"),
    pytest.param(3.0, "> 2", True, id="above"),
    pytest.param(0.0, "== 0", True, id="equal"),
    pytest.param(None, "<= 1.0", False, id="nothing keeps nothing"),
    pytest.param(float("nan"), "<= 1.0", False, id="not a number keeps nothing"),
]


@pytest.mark.parametrize(("value", "bound", "expected"), HOLDS)
def test_a_bound_is_kept_exactly(value: float | None, bound: str, expected: bool) -> None:
    assert holds(value, bound) is expected


@pytest.mark.parametrize("bound", ["", "1.0", "about 1", "<=1", "<= one"])
def test_an_unreadable_bound_is_refused_even_without_a_value(bound: str) -> None:
    with pytest.raises(ValueError):
        holds(None, bound)


def test_the_unrounded_value_is_judged() -> None:
    assert bounded("ratio", 1.000001, "x", "<= 1.0") == Figure("ratio", 1.0, "x", "<= 1.0", False, "")


EXITS = [
    pytest.param([bounded("a", 0.5, "x", "<= 1.0"), measured("b", 7.0, "ms")], 0, id="all bounds hold"),
    pytest.param([bounded("a", 0.5, "x", "<= 1.0"), bounded("b", 2.0, "x", "<= 1.0")], 1, id="one does not"),
    pytest.param([bounded("a", None, "x", "<= 1.0")], 1, id="a bounded one was not measured"),
    pytest.param([measured("a", None, "x")], 0, id="an unbounded one was not measured"),
    pytest.param([], 1, id="nothing was measured"),
]


@pytest.mark.parametrize(("figures", "expected"), EXITS)
def test_the_exit_code_is_zero_only_when_every_bounded_figure_holds(figures: list[Figure], expected: int) -> None:
    assert exit_code(figures) == expected


def test_a_line_is_one_json_object_with_every_field() -> None:
    text = line(bounded("cpu_plain", 0.123456789, "x", "<= 1.0", "两行\nof detail"))
    assert "\n" not in text
    assert json.loads(text) == {
        "name": "cpu_plain",
        "value": 0.12346,
        "unit": "x",
        "bound": "<= 1.0",
        "ok": True,
        "detail": "两行\nof detail",
    }
    assert json.loads(line(measured("b", 7.0, "ms"))) == {
        "name": "b", "value": 7.0, "unit": "ms", "bound": None, "ok": None, "detail": "",
    }  # fmt: skip
