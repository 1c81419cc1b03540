"""Figures in words: nothing that is rounded away is called nothing, and no number has a minus sign that means nothing."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sits.observe.wording import amount, change, dollars, gap, milliseconds, share

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)

CHANGES = [
    pytest.param(100.0, 122.9, "22.9% more", id="more"),
    pytest.param(100.0, 40.0, "60.0% less", id="less"),
    pytest.param(3.0, 3.0, "the same", id="the same"),
    pytest.param(0.1 + 0.2, 0.3, "the same", id="the same, added up otherwise"),
    pytest.param(0.0, -0.0, "the same", id="nothing, twice"),
    pytest.param(1000.0, 1000.4, "less than 0.1% more", id="hardly more"),
    pytest.param(1000.0, 999.6, "less than 0.1% less", id="hardly less"),
    pytest.param(1000.0, 0.1, "more than 99.9% less", id="hardly anything left"),
    pytest.param(1000.0, 0.0, "100.0% less", id="nothing left"),
    pytest.param(0.0, 5.0, "more, and it was nothing", id="out of nothing"),
    pytest.param(1e-300, 1e300, "more, and it was nothing", id="out of as good as nothing"),
    pytest.param(1.0, 50_001.0, "5,000,000% more", id="very much more"),
    pytest.param(nan, 5.0, "not known", id="no number before"),
    pytest.param(5.0, inf, "not known", id="no number after"),
    pytest.param(5.0, None, "not known", id="none"),
]
SHARES = [
    pytest.param(0.0, 2, "0.00%", id="none"),
    pytest.param(-0.0, 2, "0.00%", id="none, with a sign"),
    pytest.param(1e-6, 2, "less than 0.01%", id="hardly any"),
    pytest.param(0.884, 2, "88.40%", id="most"),
    pytest.param(0.999_999, 2, "more than 99.99%", id="hardly all"),
    pytest.param(1.0, 2, "100.00%", id="all"),
    pytest.param(0.001, 0, "less than 1%", id="hardly any, without decimals"),
    pytest.param(0.999, 0, "more than 99%", id="hardly all, without decimals"),
    pytest.param(0.25, 0, "25%", id="a quarter"),
    pytest.param(nan, 2, "not known", id="no number"),
]
FIGURES = [
    pytest.param(gap(12.5, "ms"), "12.5 ms more", id="a gap"),
    pytest.param(gap(-0.002, "$"), "$0.0020 less", id="a gap in money"),
    pytest.param(gap(-0.0, "ms"), "the same", id="no gap"),
    pytest.param(gap(nan, "ms"), "not known", id="a gap that nobody knows"),
    pytest.param(amount(0.25), "0.25", id="no unit"),
    pytest.param(amount(-0.0, "ms"), "0 ms", id="nothing, with a sign"),
    pytest.param(dollars(0.0), "$0", id="no money"),
    pytest.param(dollars(1234.56789), "$1,234.5679", id="money"),
    pytest.param(dollars(0.0000123), "$0.0000123", id="little money"),
    pytest.param(dollars(1.2e-14), "$0.000000000000012", id="hardly any money"),
    pytest.param(dollars(1e-20), "less than $0.000000000000001", id="money that is rounded away"),
    pytest.param(dollars(-1e-20), "more than -$0.000000000000001", id="money lost that is rounded away"),
    pytest.param(gap(-1e-20, "$"), "less than $0.000000000000001 less", id="a gap in money that is rounded away"),
    pytest.param(dollars(None), "not known", id="money that nobody knows"),
    pytest.param(milliseconds(2548.4), "2,548", id="seconds"),
    pytest.param(milliseconds(0.4249), "0.425", id="less than a millisecond"),
    pytest.param(milliseconds(44.28), "44.3", id="less than a hundred"),
    pytest.param(milliseconds(99.96), "100", id="hardly less than a hundred"),
    pytest.param(milliseconds(nan), "not known", id="time that nobody knows"),
]


@pytest.mark.parametrize(("before", "after", "said"), CHANGES)
def test_a_difference_says_more_or_less_and_never_nothing_of_something(
    before: float | None, after: float | None, said: str
) -> None:
    assert change(before, after) == said


@pytest.mark.parametrize(("part", "decimals", "said"), SHARES)
def test_none_and_all_are_said_of_none_and_all_only(part: float, decimals: int, said: str) -> None:
    assert share(part, decimals) == said


@pytest.mark.parametrize(("found", "said"), FIGURES)
def test_figures_are_said_with_the_digits_that_count(found: str, said: str) -> None:
    assert found == said


@settings(max_examples=100, deadline=None)
@given(before=NUMBERS, after=NUMBERS)
def test_no_difference_has_a_sign_and_whoever_differs_is_not_called_the_same(before: float, after: float) -> None:
    for said in (change(before, after), gap(after - before, "ms")):
        assert not said.startswith(("-", "+"))
        assert "nan" not in said
        assert "inf" not in said
        assert not said.startswith(("0.0% ", "0% ", "0 ms "))
    if abs(after - before) > 1e-9 * max(abs(before), abs(after)):
        assert change(before, after) != "the same"


@settings(max_examples=100, deadline=None)
@given(count=st.integers(0, 10**7), more=st.integers(0, 10**7))
def test_a_share_says_all_or_nothing_if_and_only_if_it_is(count: int, more: int) -> None:
    said = share(count / (count + more)) if count + more else share(0.0)
    assert (said == "0.00%") == (count == 0)
    assert (said == "100.00%") == (more == 0 and count > 0)


@settings(max_examples=100, deadline=None)
@given(much=st.floats(allow_nan=False, allow_infinity=False))
@example(much=4.9e-16)
@example(much=5.1e-16)
def test_money_is_called_nothing_if_and_only_if_it_is(much: float) -> None:
    digits = {one for one in dollars(much) if one.isdigit()}
    assert (digits == {"0"}) == (much == 0.0)
