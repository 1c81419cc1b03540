"""Embeddings of models that nothing was tuned for: where they are laid, by what they are read, how services are compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.routing.intent.fitting import Known, known
from sits.routing.intent.levels import level, offsets
from sits.routing.intent.script import scripts
from sits.routing.intent.tune import Tuning
from sits.routing.intent.verdict import Scale
from sits.state.intent import shipped
from sits.state.intent.anew import LEAST, PENALTY, SAFE, SAFE_NONE, tuned
from sits.state.intent.building import load_tuning
from sits.state.intent.embedders import weights_named
from sits.state.intent.material import background, kinds
from sits.state.intent.seat import SPREAD, Seat, seat
from sits.state.registry.placing import Centred, yardstick


def embedded(texts: list[str]) -> np.ndarray:
    """Embeddings of the built-in model that come with the package."""
    found = shipped.take(texts, weights_named())
    return np.stack([np.frombuffer(found[text], "<f4") for text in texts])


def spread(rows: np.ndarray, spoken: np.ndarray) -> float:
    levelled = level(rows, spoken, offsets(rows, spoken))
    return float((levelled @ levelled.T)[np.triu_indices(len(rows), 1)].std())


def test_the_spread_is_that_of_the_built_in_model() -> None:
    texts = [one.text for one in background()]
    assert spread(embedded(texts), scripts(texts)) == pytest.approx(SPREAD, abs=0.0001)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.integers(8, 64), common=st.floats(0.0, 8.0), noise=st.floats(0.2, 3.0))
def test_whatever_a_model_s_cosines_are_they_are_laid_as_narrow_and_no_pair_changes_places(
    seed: int, size: int, common: float, noise: float
) -> None:
    chance = np.random.default_rng(seed)
    raw = (
        common * np.eye(size)[0] + noise * chance.normal(size=(80, size)) + 0.5 * np.repeat(chance.normal(size=(2, size)), 40, 0)
    )
    rows = (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32)
    spoken = np.repeat([0, 1], 40)
    laid = seat(rows, spoken)
    placed = laid.place(rows)
    assert placed.shape == (80, size + 1)
    np.testing.assert_allclose(np.linalg.norm(placed, axis=1), 1.0, atol=1e-5)
    if laid.share < 1.0:
        assert spread(placed, spoken) == pytest.approx(SPREAD, rel=0.02)
    before = Seat(laid.mean, 1.0).place(rows)
    cosines, narrow = (before @ before.T)[0, 1:], (placed @ placed.T)[0, 1:]
    apart = np.abs(cosines[:, None] - cosines[None, :]) > 1e-4
    assert (np.sign(cosines[:, None] - cosines[None, :]) == np.sign(narrow[:, None] - narrow[None, :]))[apart].all()


@pytest.mark.parametrize("rows", [np.ones((1, 3)), np.ones((5, 3)), np.zeros((0, 3))], ids=["one", "all alike", "none"])
def test_of_too_little_nothing_is_made_and_nothing_fails(rows: np.ndarray) -> None:
    found = seat(rows.astype(np.float32), np.zeros(len(rows), dtype=np.intp))
    placed = found.place(np.array([[1.0, 0.0, 0.0]], dtype=np.float32))
    assert (found.share, placed.shape, bool(np.isfinite(placed).all())) == (1.0, (1, 4), True)


def examples(each: int, of_none: int) -> Known:
    """Two domains and what is of none, told apart by embeddings that differ, and by nothing else."""
    chance = np.random.default_rng(7)
    labels = np.repeat([0, 1, 2], [each, each, of_none])
    raw = 4.0 * np.eye(3, 12)[labels] + chance.normal(size=(len(labels), 12))
    rows = (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32)
    texts = [f"text {at}" for at in range(len(labels))]
    return known(texts, np.zeros((len(labels), 4), dtype=np.float32), labels, labels == 2, rows)


def test_few_examples_begin_with_plain_figures_and_many_set_them_themselves() -> None:
    start = load_tuning(Path("no such file"))
    few = tuned(examples(20, 100), 2, start)
    assert few == Tuning(start.quick, Scale(1.0, LEAST), SAFE, SAFE_NONE, start.quick_penalty, PENALTY)
    many = tuned(examples(160, 200), 2, start)
    assert (many.quick, many.quick_penalty, many.deep_penalty) == (start.quick, start.quick_penalty, PENALTY)
    assert many.deep != few.deep
    # The quick stage sees nothing here, so it never stands.
    assert many.safe > few.safe
    assert many == tuned(examples(160, 200), 2, start)


def test_services_are_compared_on_one_scale_by_any_model() -> None:
    texts = yardstick()
    rows = embedded(texts)
    found = Centred(rows)
    listed = kinds()[::3]
    placed = found.place(texts[-len(listed) :], rows[-len(listed) :])
    names = np.array([one.kind for one in listed])
    cosines, same = found.scale * (placed @ placed.T), names[:, None] == names[None, :]
    np.fill_diagonal(same, False)
    apart = names[:, None] != names[None, :]
    assert (cosines[apart] > 0.3).mean() == pytest.approx(0.05, abs=0.002)
    assert (cosines[same] > 0.3).mean() > 0.3
    # The same of embeddings that lie otherwise: closer to each other, or turned.
    turned = rows[:, ::-1] + 2.0
    other = Centred((turned / np.linalg.norm(turned, axis=1, keepdims=True)).astype(np.float32))
    assert (other.dimension, found.dimension) == (384, 384)
