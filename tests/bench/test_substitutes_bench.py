"""The bench of substitutes: its map falls along its loss, its shares count intents, and its rungs are told apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sits.bench import BenchError, Plan, substitutes
from sits.bench.cache_served import Reply
from sits.bench.substitutes_fit import TEMPERATURE, gradient
from sits.bench.substitutes_rungs import _figure
from sits.bench.substitutes_sentences import SUBJECTS, TASKS, sentences
from sits.bench.substitutes_set import Chosen, Labelled, cards, pools, share
from sits.resilience.substitutes.card import described


def test_the_gradient_is_that_of_the_loss() -> None:
    chance = np.random.default_rng(3)
    left, right = chance.normal(size=(5, 6)), chance.normal(size=(5, 6))
    rows = chance.normal(size=(6, 4))

    def loss(found: np.ndarray) -> float:
        a, b = left @ found, right @ found
        a, b = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (a, b))
        alike = np.exp(a @ b.T / TEMPERATURE)
        own = np.diag(alike)
        return float(-(np.log(own / alike.sum(axis=1)) + np.log(own / alike.sum(axis=0))).mean() / 2)

    step = 1e-6
    slope = gradient(rows, left, right)
    for place in [(0, 0), (2, 3), (5, 1)]:
        nudge = np.zeros_like(rows)
        nudge[place] = step
        assert (loss(rows + nudge) - loss(rows - nudge)) / (2 * step) == pytest.approx(slope[place], rel=1e-4, abs=1e-7)


def test_each_ability_has_as_many_wordings_and_none_twice() -> None:
    found = [sentence.text for sentence in sentences()]
    assert len(set(found)) == len(found) == len(TASKS) * len(SUBJECTS) * len(TASKS[0])
    assert {len(forms) for forms in TASKS} == {6}


def labelled(name: str, *intents: str) -> Labelled:
    card = described(name, name, [])
    assert card is not None
    return Labelled(f"test/d/{name}", "test", "en", frozenset(intents), card)


def test_a_share_counts_intents_of_those_that_are_near_enough() -> None:
    both, one, other = labelled("both", "a", "b"), labelled("one", "a"), labelled("other", "c")
    chosen = [Chosen(both, one, 0.95), Chosen(one, both, 0.93), Chosen(other, one, 0.8)]
    assert [share(chosen, least) for least in (0.0, 0.92, 0.94, 0.99)] == [(4, 2), (3, 1), (2, 1), (0, 0)]


@pytest.mark.parametrize(("wrong", "taken", "limit"), [(0, 0, 1.0), (0, 100, 0.029513), (1, 100, 0.046560), (5, 5, 1.0)], ids=str)
def test_few_errors_of_few_prove_little(wrong: int, taken: int, limit: float) -> None:
    assert substitutes.at_the_most(wrong, taken) == pytest.approx(limit, abs=1e-5)


def test_small_pools_are_drawn_the_same_each_time_and_half_of_one_domain() -> None:
    tune = [one for one in cards() if one.split == "tune"]
    drawn = pools(tune, 6, 5, 1)
    assert [[one.id for one in pool] for pool in drawn] == [[one.id for one in pool] for pool in pools(tune, 6, 5, 1)]
    for pool in drawn:
        domains = [one.domain for one in pool]
        assert 4 <= len(pool) <= 6
        assert max(map(domains.count, domains)) >= 3


def test_a_rung_that_was_not_always_taken_has_no_figure() -> None:
    def reply(rung: str, took: float) -> Reply:
        return Reply(200, {"x-sits-rung": rung, "x-sits-cache": "stale"}, b"", took)

    taken = _figure("f", [reply("cache", 1.0), reply("cache", 3.0)], ("cache", "stale"), "<= 5")
    mixed = _figure("f", [reply("cache", 1.0), reply("template", 1.0)], ("cache", "stale"), "<= 5")
    assert (taken.ok, mixed.value, mixed.ok) == (True, None, False)


def plan(tmp_path: Path, *only: str) -> Plan:
    return Plan(say=lambda line: None, cache=tmp_path, quick=True, only=only)


def test_a_quick_run_of_the_rungs_is_whole(tmp_path: Path) -> None:
    outcome = substitutes.run(plan(tmp_path, "rungs"))
    names = ["rung_cache_ms", "rung_semantic_ms", "rung_template_ms", "rung_live_ms"]
    assert [figure.name for figure in outcome.figures] == names
    assert all(figure.value is not None for figure in outcome.figures)
    assert "Only a part: rungs" in outcome.page.intro


def test_a_part_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="there are: cards, rungs"):
        substitutes.run(plan(tmp_path, "nothing"))
