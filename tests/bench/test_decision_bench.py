"""The decision bench: it chooses as a plain scorer does, a quick run is whole, and its bounds are those that are promised."""

from __future__ import annotations

from pathlib import Path

import pytest

from sits.bench import BenchError, Plan, decision
from sits.bench.decision_world import MIX, PlainScorer, World, clocked, scheduler_of
from sits.bench.page import render
from sits.routing.policies.state import TargetState


@pytest.mark.parametrize("size", [8, 100])
def test_what_is_kept_beforehand_changes_no_choice_beside_a_plain_scorer(size: int) -> None:
    world = World(size)
    scheduler, plain = scheduler_of(world, MIX), PlainScorer(world, MIX)
    for number in range(60):
        facts = world.request(100.0 + number / 1000.0)
        facts.draw = 0.0  # the alike by their index, as the plain scorer has them
        found = scheduler.decide(facts, frozenset())
        first, theirs = found.order[0], plain.decide(facts)[0]
        assert found.totals[first] == pytest.approx(found.totals[theirs], abs=1e-9)
        for scorer in (scheduler, plain):
            scorer.reserve(facts, world.candidates[first])


def test_a_quick_run_is_whole_and_holds_what_is_promised_of_it(tmp_path: Path) -> None:
    said: list[str] = []
    outcome = decision.run(Plan(said.append, tmp_path, quick=True))
    assert said == ["decision: the build at hand"]
    assert [(figure.name, figure.bound) for figure in outcome.figures if figure.bound] == [
        ("decision_8_us", "<= 15"),
        ("decision_100_us", "<= 60"),
    ]
    assert all(figure.value is not None and figure.value > 0.0 for figure in outcome.figures)
    page = render(outcome.page, outcome.figures)["performance-decision.md"]
    assert "not for quoting" in page
    assert all(f"| {name} |" in page for name, _, _ in MIX)


def test_nothing_is_under_way_when_a_round_is_over() -> None:
    world = World(3)
    released: list[int] = []

    class Choice:
        def choose(self, facts: object) -> int:
            return 1

        def release(self, index: int) -> None:
            released.append(index)

    before = [_under_way(one.state) for one in world.candidates]
    cell = clocked(world, Choice(), 50)
    assert [_under_way(one.state) for one in world.candidates] == before
    assert released == [1] * 60
    assert cell.p50 <= cell.p99


def test_a_build_that_prints_something_else_is_told_from_one_that_measures(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "sits"
    program.parent.mkdir()
    for script, said in (("echo 没有", "did not print what it measured"), ("echo broken >&2; exit 3", "failed: broken")):
        python = program.parent / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        with pytest.raises(BenchError, match=said):
            decision._in(program)


def _under_way(state: TargetState) -> int:
    return state.outstanding
