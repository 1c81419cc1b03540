"""Estimates of another way of choosing: chances are exact, intervals hold the truth, and what cannot be known is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.routing.estimate import Estimate, Estimated, Logged, Regression, by_least, by_share, by_two, estimated, floored
from sits.routing.estimate.propensity import by_trying
from sits.routing.policies import POLICIES
from sits.routing.policies.base import by_share as share_of
from sits.routing.policies.base import least
from sits.routing.policies.checks import states_of

COSTS = st.lists(st.sampled_from([1.0, 2.0, 3.0, 1e300]), min_size=1, max_size=7)


@settings(max_examples=100)
@given(COSTS)
def test_the_chances_of_the_least_cost_are_the_shares_of_draws_that_lead_there(costs: list[float]) -> None:
    # Each of `size` places is hit by as many draws, so a grid that is a multiple of it is exact.
    size = len(costs)
    assert by_least(costs) == pytest.approx(by_trying(lambda draw: least(costs, draw), size, size * 8))


@settings(max_examples=100)
@given(st.lists(st.integers(0, 9).map(float), min_size=1, max_size=6).filter(any))
def test_the_chances_by_share_are_the_shares_of_draws_that_lead_there(shares: list[float]) -> None:
    grid = int(sum(shares)) * 4
    assert by_share(shares) == pytest.approx(by_trying(lambda draw: share_of(shares, draw), len(shares), grid))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_chances_of_the_better_of_two_are_those_of_the_policy(size: int) -> None:
    states, weights = states_of(size, 11), [1.0] * size
    policy = POLICIES["peak-ewma"]()
    costs = [policy.seen(states, weights, (index + 0.5) / size, 60.0)[index] for index in range(size)]
    grid = size * max(1, size - 1) * 20
    assert by_two(costs) == pytest.approx(by_trying(lambda draw: policy.pick(states, weights, draw, 60.0), size, grid))


@given(COSTS, st.floats(0, 0.5))
def test_with_exploring_everybody_has_a_chance_and_they_add_up(costs: list[float], explore: float) -> None:
    chances = floored(by_least(costs), explore)
    assert sum(chances) == pytest.approx(1.0)
    assert min(chances) >= explore / len(costs) - 1e-12


def test_a_line_is_found_for_each_target_by_the_rows_of_other_folds() -> None:
    dice = random.Random(5)
    regression = Regression(1)
    for row in range(400):
        feature = dice.uniform(0, 10)
        regression.add("a", [feature], 3.0 + 2.0 * feature + dice.gauss(0, 0.1), row % 5)
        regression.add("b", [feature], 7.0 - feature, row % 5)
    assert regression.expected("a", [5.0], 0) == pytest.approx(13.0, rel=0.01)
    assert regression.expected("b", [5.0], 4) == pytest.approx(2.0, rel=0.02)
    unseen = regression.expected("c", [5.0], 0)
    assert unseen == pytest.approx(regression.expected("d", [9.0], 1))


# A world of which the truth is known: latencies by target and length, heavy to the right.

TARGETS = ("slow", "fast", "far")


def _latency(action: str, length: float, dice: random.Random) -> float:
    base, slope = {"slow": (2.0, 0.5), "fast": (1.0, 0.2), "far": (1.5, 0.3)}[action]
    return (base + slope * length) * dice.lognormvariate(0.0, 0.4)


def _logging(length: float) -> dict[str, float]:
    favour = "slow" if length < 2.0 else "fast"
    return {one: 0.1 + (0.7 if one == favour else 0.0) for one in TARGETS}


def _wanted(length: float) -> dict[str, float]:
    return {"fast": 0.8, "far": 0.2} if length < 3.0 else {"fast": 0.3, "far": 0.7}


def _log(count: int, seed: int, chances: Callable[[float], dict[str, float]] = _logging) -> list[Logged]:
    dice = random.Random(seed)
    rows = []
    for _ in range(count):
        length = dice.uniform(0.0, 5.0)
        given = chances(length)
        action = dice.choices(list(given), list(given.values()))[0]
        features = dict.fromkeys(TARGETS, (length,))
        rows.append(Logged(action, _latency(action, length, dice), given, _wanted(length), features))
    return rows


def _truth() -> float:
    mean = 2.718281828459045 ** (0.4**2 / 2)
    total, steps = 0.0, 5000
    for step in range(steps):
        length = 5.0 * (step + 0.5) / steps
        lines = {"slow": 2.0 + 0.5 * length, "fast": 1.0 + 0.2 * length, "far": 1.5 + 0.3 * length}
        total += sum(chance * lines[one] for one, chance in _wanted(length).items())
    return mean * total / steps


TRUTH = _truth()
REPEATED = 300


@pytest.fixture(scope="module")
def repeated() -> Sequence[Estimated]:
    return [estimated(_log(1000, 1000 + seed), seed) for seed in range(REPEATED)]


def _covered(found: Sequence[Estimate | None], *, boot: bool = False) -> float:
    held = 0
    for one in found:
        assert one is not None
        held += (one.low_boot <= TRUTH <= one.high_boot) if boot else (one.low <= TRUTH <= one.high)
    return held / len(found)


@pytest.mark.parametrize("boot", [False, True], ids=["normal", "bootstrap"])
@pytest.mark.parametrize("which", ["ips", "snips", "dr"])
def test_intervals_hold_the_truth_as_often_as_they_say(repeated: Sequence[Estimated], which: str, boot: bool) -> None:
    assert _covered([getattr(one, which) for one in repeated], boot=boot) >= 0.93


def test_estimates_are_right_on_average_and_the_doubly_robust_one_is_the_least_scattered(repeated: Sequence[Estimated]) -> None:
    widths = {}
    for which in ("ips", "snips", "dr"):
        found = [getattr(one, which) for one in repeated]
        assert sum(one.value for one in found) / REPEATED == pytest.approx(TRUTH, rel=0.01), which
        widths[which] = sum(one.high - one.low for one in found) / REPEATED
    assert widths["dr"] < widths["snips"] < widths["ips"]


def test_what_was_recorded_is_no_estimate_of_another_way() -> None:
    found = estimated(_log(2000, 7))
    assert found.recorded is not None
    assert found.dr is not None
    assert found.difference is not None
    assert found.recorded.low > TRUTH
    assert found.difference.high < 0.0
    assert found.difference.value == pytest.approx(found.dr.value - found.recorded.value)


def test_the_same_way_is_estimated_as_what_was_recorded() -> None:
    rows = [Logged(one.action, one.outcome, one.chances, one.chances, one.features) for one in _log(500, 3)]
    found = estimated(rows)
    assert found.recorded is not None
    assert found.ips == found.recorded
    assert found.effective == pytest.approx(500)


def test_what_had_no_chance_is_said_and_nothing_is_estimated() -> None:
    rows = _log(300, 4, lambda _: {"slow": 0.5, "fast": 0.5})
    found = estimated(rows)
    assert found.dr is None
    assert found.unsupported == pytest.approx(sum(one.wanted["far"] for one in rows) / 300)
    assert "had no chance of being done" in found.refused


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        pytest.param([], "no outcome", id="none"),
        pytest.param(_log(20, 1), "too few", id="too few"),
        pytest.param([Logged("a", 1.0, {"a": 0.999, "b": 0.001}, {"b": 1.0})] * 200, "are worth 0", id="nothing alike was done"),
    ],
)
def test_too_little_is_refused_in_words(rows: list[Logged], word: str) -> None:
    found = estimated(rows)
    assert word in found.refused
    assert (found.ips, found.dr) == (None, None)


def test_the_same_rows_and_seed_give_the_same_figures() -> None:
    rows = _log(1500, 9)
    assert estimated(rows, 5) == estimated(rows, 5)
