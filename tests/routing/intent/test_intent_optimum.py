"""The optimum of a head: it is where the loss is flat, no higher than many plain steps get, and the same each time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sits.bench.intent import queries
from sits.routing.intent import optimum
from sits.routing.intent.optimum import minimise, softmax
from sits.state.intent import shipped
from sits.state.intent.embedders import weights_named

LEFT, ROUNDED = 5e-4, 1e-5
"""What float32 leaves of a gradient, and of a difference of losses, of a handful of examples at the worst."""


class Problem:
    """Rows, whose products with each other are fitted; the share of each class in each; and how much each counts."""

    def __init__(self, rows: np.ndarray, targets: np.ndarray, shares: np.ndarray, penalty: float) -> None:
        rows = rows - shares @ rows
        self.products = (rows @ rows.T).astype(np.float32)
        self.targets, self.shares, self.penalty = targets.astype(np.float32), shares.astype(np.float32), penalty

    def found(self) -> tuple[np.ndarray, np.ndarray]:
        return minimise(self.products, self.targets, self.penalty, self.shares)

    def loss(self, duals: np.ndarray, bias: np.ndarray) -> float:
        scores = (self.products @ duals.astype(np.float64)) + bias
        highest = scores.max(axis=1)
        level = highest + np.log(np.exp(scores - highest[:, None]).sum(axis=1))
        fits = float(self.shares @ (level - (self.targets * scores).sum(axis=1)))
        return fits + self.penalty / 2 * float((duals * (scores - bias)).sum())

    def steep(self, duals: np.ndarray, bias: np.ndarray) -> float:
        """The length of the gradient, of weights and of offsets."""
        wrong = (softmax(self.products @ duals.astype(np.float64) + bias) - self.targets) * self.shares[:, None]
        slope = wrong + self.penalty * duals
        return float(max(0.0, (slope * (self.products @ slope)).sum()) + (wrong.sum(axis=0) ** 2).sum()) ** 0.5

    def nothing(self) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros_like(self.targets), np.zeros(self.targets.shape[1], np.float32)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Of each class an example at least, and no penalty so light that float32 has no room for the coefficients of so few."""
    count, size, classes = draw(st.integers(5, 14)), draw(st.integers(1, 5)), draw(st.integers(2, 5))
    rows = draw(arrays(np.float64, (count, size), elements=st.floats(-1, 1, width=16)))
    others = draw(arrays(np.intp, count - classes, elements=st.integers(0, classes - 1)))
    parts = draw(arrays(np.float64, count, elements=st.floats(0.125, 1, width=16)))
    penalty = draw(st.sampled_from([1e-3, 1e-2, 1.0]))
    return Problem(rows, np.eye(classes)[np.concatenate([np.arange(classes), others])], parts / parts.sum(), penalty)


def labelled(penalty: float) -> Problem:
    """Every ninth of the labelled set's examples, all kinds of task among them, as an embedding model sees them."""
    known = [query for query in queries() if query.split == "examples"][::9]
    held = shipped.take([query.text for query in known], weights_named())
    rows = np.stack([np.frombuffer(held[query.text], "<f4") for query in known]).astype(np.float64)
    rows -= rows.mean(axis=0)
    names = sorted({query.domain for query in known})
    labels = [names.index(query.domain) for query in known]
    rows /= (rows**2).sum(axis=1).mean() ** 0.5
    return Problem(rows, np.eye(len(names))[labels], np.full(len(known), 1 / len(known)), penalty)


def hurried(problem: Problem, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """As many accelerated gradient steps (Nesterov 1983), as long as the greatest bend of the loss allows."""
    roots = np.sqrt(problem.shares)[:, None]
    longest = float(np.linalg.eigvalsh(roots * problem.products * roots.T)[-1])
    step, pace = 1.0 / (0.5 * longest + problem.penalty), 1.0
    duals, bias = problem.nothing()
    last = duals, bias
    for _ in range(steps):
        faster = (1.0 + (1.0 + 4.0 * pace * pace) ** 0.5) / 2.0
        ahead, pace = (pace - 1.0) / faster, faster
        there, there_bias = duals + ahead * (duals - last[0]), bias + ahead * (bias - last[1])
        last = duals, bias
        wrong = (softmax(problem.products @ there + there_bias) - problem.targets) * problem.shares[:, None]
        duals, bias = there - step * (wrong + problem.penalty * there), there_bias - wrong.sum(axis=0)
    return duals, bias


@settings(max_examples=100, deadline=None)
@given(problem=problems())
def test_the_loss_is_flat_where_it_ends(problem: Problem) -> None:
    found = problem.found()
    assert problem.steep(*found) <= 2 * optimum.FLAT * problem.steep(*problem.nothing()) + LEFT
    assert problem.loss(*found) <= problem.loss(*hurried(problem, 200)) + ROUNDED


@pytest.mark.parametrize("penalty", [3e-6, 1e-4], ids=["light penalty", "heavy penalty"])
def test_the_labelled_set_is_fitted_to_the_optimum_and_better_than_by_200_accelerated_steps(penalty: float) -> None:
    problem = labelled(penalty)
    found = problem.found()
    assert problem.steep(*found) <= 2 * optimum.FLAT * problem.steep(*problem.nothing())
    assert problem.loss(*found) <= problem.loss(*hurried(problem, 200))


def test_the_same_examples_have_the_same_optimum_to_the_bit() -> None:
    once, again = (labelled(1e-4).found() for _ in range(2))
    assert [part.tobytes() for part in once] == [part.tobytes() for part in again]


def test_every_step_lowers_the_loss_and_there_are_no_more_than_it_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = labelled(3e-6)
    losses = [problem.loss(*problem.nothing())]
    for steps in range(1, 9):
        monkeypatch.setattr(optimum, "STEPS", steps)
        losses.append(problem.loss(*problem.found()))
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == len(losses)
    monkeypatch.setattr(optimum, "STEPS", 0)
    assert not any(part.any() for part in problem.found())


def test_with_little_room_fewer_steps_are_remembered_and_it_ends_at_the_same_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = labelled(1e-4)
    wide = problem.loss(*problem.found())
    monkeypatch.setattr(optimum, "ROOM", 0)
    monkeypatch.setattr(optimum, "STEPS", 300)
    assert problem.loss(*problem.found()) == pytest.approx(wide, rel=1e-5)


def test_what_cannot_be_told_apart_ends_where_it_begins() -> None:
    problem = Problem(np.zeros((3, 2)), np.full((3, 2), 0.5), np.full(3, 1 / 3), 1e-3)
    assert not any(part.any() for part in problem.found())


@pytest.mark.parametrize("penalty", [1e-2, 1.0], ids=["lighter", "heavier"])
def test_a_class_without_an_example_becomes_unlikely_and_nothing_grows_without_end(penalty: float) -> None:
    # Its offset is best at minus infinity; and of rows along one line hardly any product is exact.
    chance = np.random.default_rng(4)
    rows = chance.normal(size=(9, 1)) * np.array([[1.0, -0.7, 0.3]])
    problem = Problem(rows, np.eye(4)[np.arange(9) % 3], np.full(9, 1 / 9), penalty)
    duals, bias = problem.found()
    assert float(softmax(problem.products @ duals + bias)[:, 3].max()) < 1e-3
    assert float(np.abs(problem.products @ duals + bias).max()) < 50.0
    assert problem.loss(duals, bias) <= problem.loss(*hurried(problem, 200)) + ROUNDED
