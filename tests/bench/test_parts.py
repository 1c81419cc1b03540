"""Benches in parts: which run, in which order, and what the reader is told of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from sits.bench import BenchError, Plan
from sits.bench.figure import Figure, measured
from sits.bench.page import QUICK_RUN, Section
from sits.bench.parts import Part, intro_of, run_parts
from sits.inner.errors import Code, SitsError


def _part(name: str) -> Part:
    def part(plan: Plan) -> tuple[list[Figure], list[Section]]:
        return [measured(name, 1.0, "s")], [Section(name, "What it found.")]

    return part


PARTS = {name: _part(name) for name in ("one", "two", "three")}


@pytest.mark.parametrize(
    ("only", "run"),
    [
        pytest.param((), ["one", "two", "three"], id="all"),
        pytest.param(("three", "one"), ["one", "three"], id="some, in the order of the bench"),
    ],
)
def test_the_parts_that_are_asked_for_run_in_the_order_of_the_bench(only: tuple[str, ...], run: list[str]) -> None:
    said: list[str] = []
    figures, sections = run_parts("bench", PARTS, Plan(said.append, Path(), only=only))
    assert said == [f"bench: {name}" for name in run]
    assert [figure.name for figure in figures] == run
    assert [section.title for section in sections] == run


def test_a_part_that_is_not_there_is_refused_before_any_runs() -> None:
    said: list[str] = []
    with pytest.raises(BenchError, match="no part 'five', 'four'; there are: one, two, three"):
        run_parts("bench", PARTS, Plan(said.append, Path(), only=("four", "one", "five")))
    assert said == []


def test_what_a_part_cannot_do_is_the_error_of_the_bench() -> None:
    def broken(plan: Plan) -> tuple[list[Figure], list[Section]]:
        raise SitsError(Code.INTERNAL, "the model is not there")

    with pytest.raises(BenchError, match="the model is not there"):
        run_parts("bench", {"broken": broken}, Plan(str, Path()))


@pytest.mark.parametrize(
    ("plan", "intro"),
    [
        pytest.param(Plan(str, Path()), "Words.", id="whole"),
        pytest.param(Plan(str, Path(), quick=True), "Words." + QUICK_RUN, id="quick"),
        pytest.param(
            Plan(str, Path(), quick=True, only=("one", "two")),
            "Words.\n\n**Only a part: one, two.**" + QUICK_RUN,
            id="quick, a part",
        ),
    ],
)
def test_an_introduction_says_when_a_run_was_not_whole(plan: Plan, intro: str) -> None:
    assert intro_of("Words.", plan) == intro
