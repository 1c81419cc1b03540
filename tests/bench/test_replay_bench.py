"""The replay bench: its figures hold on a quick run, and its prediction is its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from sits.bench import Plan, replay
from sits.bench.page import render


def test_a_quick_run_holds_and_makes_a_page(tmp_path: Path) -> None:
    said: list[str] = []
    outcome = replay.run(Plan(said.append, tmp_path, quick=True, only=("choices",)))
    held = {figure.name: figure.ok for figure in outcome.figures if figure.bound is not None}
    assert held == {"replay_reproduced": True, "replay_order_reproduced": True, "replay_moved_otherwise": True}
    assert said == ["200 requests by choices alone"]
    assert "performance-replay.md" in render(outcome.page, outcome.figures)
    blind = next(figure for figure in outcome.figures if figure.name == "replay_without_states")
    assert blind.value is not None
    assert blind.value < 0.9


def test_a_prediction_that_is_wrong_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(replay, "predicted", lambda records, after: (set(), set()))
    figures = replay.chosen(tmp_path, 100)
    assert {figure.ok for figure in figures if figure.name == "replay_moved_otherwise"} == {False}
