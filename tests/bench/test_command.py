from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest
from click.testing import CliRunner

from sits.bench import BENCHES, BenchError, Outcome, Plan, Row, find
from sits.bench.figure import bounded, measured
from sits.bench.page import Page
from sits.cli.bench import bench


def _outcome(value: float) -> Outcome:
    return Outcome([bounded("ratio", value, "x", "<= 1.0"), measured("rate", 5.0, "1/s")], Page("toy", "Toy", "i", "c", []))


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """A bench called `toy`, found as every other one; the plans that it was given."""
    plans: list[Plan] = []
    module = types.ModuleType("toy_bench")

    def run(plan: Plan) -> Outcome:
        plans.append(plan)
        plan.say("measuring 测量")
        if plan.only == ("broken",):
            raise BenchError("no toy: `make toy` makes one")
        return _outcome(0.5 if plan.quick else 2.0)

    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toy_bench", module)
    monkeypatch.setattr("sits.bench.BENCHES", {**BENCHES, "toy": Row("toy_bench", "A toy.")})
    return plans


def test_every_bench_of_the_registry_can_be_loaded_and_run() -> None:
    for name in BENCHES:
        assert callable(find(name).run)


def test_the_list_names_every_bench() -> None:
    result = CliRunner().invoke(bench, ["--list"])
    assert (result.exit_code, result.stdout.split()[0]) == (0, "gateway")


def test_json_is_a_line_a_figure_on_stdout_and_progress_goes_to_stderr(toy: list[Plan], tmp_path: Path) -> None:
    result = CliRunner().invoke(bench, ["toy", "--json", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0
    assert [json.loads(text)["name"] for text in result.stdout.splitlines()] == ["ratio", "rate"]
    assert result.stderr == f"measuring 测量\nwrote {tmp_path}/toy.md\n"
    assert (tmp_path / "toy.md").exists()
    assert toy[0].quick


def test_a_bound_that_does_not_hold_is_exit_code_one(toy: list[Plan]) -> None:
    result = CliRunner().invoke(bench, ["toy"])
    assert result.exit_code == 1
    assert "<= 1.0 FAILS" in result.stdout


def test_what_cannot_be_measured_is_exit_code_two_with_the_remedy(toy: list[Plan]) -> None:
    result = CliRunner().invoke(bench, ["toy", "--only", "broken"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "`make toy` makes one" in result.stderr
    unknown = CliRunner().invoke(bench, ["toi"])
    assert unknown.exit_code == 2
    assert f"no bench is called 'toi'; there are: {', '.join(BENCHES)}, toy" in unknown.stderr


def test_setup_of_a_bench_that_needs_nothing_does_nothing(toy: list[Plan]) -> None:
    result = CliRunner().invoke(bench, ["toy", "--setup"])
    assert (result.exit_code, toy) == (0, [])
