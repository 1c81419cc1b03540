"""All that comes with SITS keeps the checks that are shipped for plugins, and the checks find what is wrong with others."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from sits.routing.scheduling.base import Candidate, Facts, Filter, Made, Score
from sits.routing.scheduling.builtin import FILTER_SETTINGS, FILTERS, SCORE_SETTINGS, SCORES
from sits.routing.scheduling.checks import FILTER_CHECKS, SCORE_CHECKS, candidates_of, failures, made_for

SCORE_USES: dict[str, dict[str, Any]] = {
    "label": {"points": {"gpu=h100": 40, "tier=base": 70}},
    "colour": {"colours": {"canary": {"gpu": "h100"}}},
    "zone": {"region": "eu", "zone": "z1"},
    "complexity": {"models": {"模型-1": "tiny"}},
}
FILTER_USES: dict[str, dict[str, Any]] = {
    "label": {"required": {"gpu": ["h100", "a100"]}, "forbidden": {"tier": "heavy"}, "header": "x-sits-labels"},
    "cost": {"mostPerMillion": 2.0},
    "colour": {"colours": {"canary": {"gpu": "h100"}}, "reserved": True},
    "zone": {"region": "eu", "zone": "z1", "by": "zone"},
}


@pytest.mark.parametrize("name", SCORES)
def test_every_score_keeps_every_check(name: str) -> None:
    assert failures("score", SCORES[name], SCORE_USES.get(name, {})) == []


@pytest.mark.parametrize("name", FILTERS)
def test_every_filter_keeps_every_check(name: str) -> None:
    assert failures("filter", FILTERS[name], FILTER_USES.get(name, {})) == []


def test_everything_goes_by_its_own_name_and_has_its_settings_listed() -> None:
    candidates = candidates_of(3)
    made = [SCORES[name](made_for(candidates, SCORE_USES.get(name, {}))).name for name in SCORES]
    sieves = [FILTERS[name](made_for(candidates, FILTER_USES.get(name, {}))).name for name in FILTERS]
    assert (made, sieves) == (list(SCORES), list(FILTERS))
    assert (set(SCORE_SETTINGS), set(FILTER_SETTINGS)) == (set(SCORES), set(FILTERS))


class _Good(Score):
    name = "mine"

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        return [50.0] * len(candidates)


class _Short(_Good):
    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        return [50.0]


class _Nan(_Good):
    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        return [float("nan")] * len(candidates)


class _Beyond(_Good):
    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        return [101.0] * len(candidates)


class _Moody(_Good):
    def __init__(self) -> None:
        self.calls = 0

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        self.calls += 1
        return [float(self.calls % 50)] * len(candidates)


class _Peeks(_Good):
    varies = "never"

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        return [float(len(facts.body) % 100)] * len(candidates)


class _ManyFacets(_Good):
    varies = "tick"

    def facet(self, facts: Facts) -> Any:
        return facts.domain


class _Unhashable(_Good):
    varies = "tick"

    def facet(self, facts: Facts) -> Any:
        return [facts.domain]


class _Meddles(_Good):
    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        candidates[0].state.outstanding += 1
        return super().score(facts, candidates)


class _Sleeps(_Good):
    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        time.sleep(0.006)
        return super().score(facts, candidates)


class _Leaks(_Good):
    def __init__(self) -> None:
        self.kept: list[bytes] = []

    def reserve(self, facts: Facts, candidate: Candidate) -> None:
        self.kept.append(facts.session * 2)


class _Fails(_Good):
    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        return [100.0 / len(facts.body)] * len(candidates)


class _EndlessNumbers(list[float]):
    def __iter__(self) -> Iterator[float]:
        return itertools.repeat(1.0)


class _Endless(_Good):
    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        return _EndlessNumbers([1.0] * len(candidates))


class _Nameless(_Good):
    name = ""


def _picky(made: Made) -> Score:
    made.settings["needed"]
    return _Good()


@pytest.mark.parametrize(
    ("make", "check", "said"),
    [
        (lambda made: _Short(), "gives_a_number_for_each_candidate", "1 numbers for 2 candidates"),
        (lambda made: _Endless(), "gives_a_number_for_each_candidate", "more than 1 numbers for 1 candidates"),
        (lambda made: _Nan(), "gives_a_number_for_each_candidate", "nan is no finite number"),
        (lambda made: _Beyond(), "gives_a_number_for_each_candidate", "101.0 is not from 0 to 100, and `scale` is `given`"),
        (lambda made: _Moody(), "says_the_same_of_the_same", "another answer to the same request, asked again"),
        (lambda made: _Peeks(), "looks_at_nothing_but_its_facet", "two answers for facet None: it varies by `never` only"),
        (lambda made: _ManyFacets(), "has_few_small_facets", "a facet is kept, and should be small"),
        (lambda made: _Unhashable(), "has_few_small_facets", "the facet ['w0'] cannot be hashed"),
        (lambda made: _Meddles(), "changes_nothing", "a candidate was changed"),
        (lambda made: _Nameless(), "is_named", "`name` is empty"),
    ],
    ids=["short", "endless", "nan", "beyond", "moody", "peeks", "many-facets", "unhashable", "meddles", "nameless"],
)
def test_a_check_finds_what_is_wrong_with_a_score(make: Any, check: str, said: str) -> None:
    assert _only(check, make) == said


def test_failures_names_what_a_score_was_claimed_to_do_and_what_it_did() -> None:
    found = dict(failures("score", lambda made: _Fails(), {}))
    assert found["gives a number for each candidate"] == "ZeroDivisionError: float division by zero"
    assert "is named" not in found


def test_a_score_that_sleeps_is_found() -> None:
    found = _only("is_quick", lambda made: _Sleeps())
    assert "ms a call for 100 candidates" in found


def test_a_score_that_keeps_something_of_each_request_is_found() -> None:
    found = _only("holds_nothing_when_all_is_released", lambda made: _Leaks())
    assert "KiB more after 10000 further calls" in found


def test_settings_that_are_refused_by_another_error_than_a_value_error_are_found() -> None:
    found = _only("takes_settings_or_says_why_not", _picky)
    assert found == "settings {} are to be refused by a ValueError, not by KeyError('needed')"


def test_a_good_score_of_somebody_else_keeps_every_check() -> None:
    assert failures("score", lambda made: _Good(), {}) == []


class _Talks(Filter):
    name = "talks"

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        return facts.domain


class _Silent(Filter):
    name = "silent"

    def keep(self, facts: Facts, candidate: Candidate) -> Any:
        return None


def test_a_filter_that_passes_on_what_a_client_wrote_is_found() -> None:
    assert _only("filter_says_why_in_a_line", lambda made: _Talks()).endswith("has characters that cannot be shown")


def test_a_filter_that_gives_no_text_is_found() -> None:
    assert _only("filter_says_why_in_a_line", lambda made: _Silent()) == "`keep` returns None"


def _only(check: str, make: Any) -> str:
    found = {one.__name__: one for one in (*FILTER_CHECKS, *SCORE_CHECKS)}[check]
    with pytest.raises(AssertionError) as caught:
        found(make, {})
    return str(caught.value).partition("\nassert ")[0]
