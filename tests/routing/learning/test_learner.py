"""Learning: chances are honest and bounded; what is wrong is learned, what is right is left; nothing is lost in keeping."""

from __future__ import annotations

import random
from math import sqrt

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.bench.complexity_world import RIGHT, SHIFTED, WEAK, World, run
from sits.resources.complexity import ComplexitySpec, LearningSpec, TierSpec, TiersSpec
from sits.routing.complexity import TIERS
from sits.routing.learning import SIZE, Bandit, Learner, LearnerState, Rule, context
from sits.routing.learning.bandit import MOST_ARMS
from sits.routing.learning.calibration import APART, EDGE, Calibration
from sits.routing.learning.oracle import PRIOR, Oracle

ANY = TierSpec(labels={"a": "b"})
LEARNING = ComplexitySpec(tiers=TiersSpec(ANY, ANY, ANY), learning=LearningSpec())
EVENTS = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(0, 4), st.floats(0, 1)), max_size=40)
NAMES = ("a", "b", "c", "d", "e")


@settings(max_examples=60, deadline=None)
@given(load=st.floats(0, 1), asked=st.floats(0, 1))
def test_a_context_is_a_place_between_two_points_and_the_load(load: float, asked: float) -> None:
    found = context(load, asked)
    assert len(found) == SIZE
    assert sum(found[:-1]) == pytest.approx(1.0)
    assert sum(value * at / 4 for at, value in enumerate(found[:-1])) == pytest.approx(asked, abs=1e-9)
    assert found[-1] == load - 0.5


@settings(max_examples=80, deadline=None)
@given(
    events=EVENTS, arms=st.integers(1, 5), floor=st.floats(0.01, 0.4), explored=st.floats(0.01, 0.5),
    draw=st.floats(0, 1, exclude_max=True), usual=st.integers(0, 4), asked=st.floats(0, 1),
)  # fmt: skip
def test_every_choice_has_its_floor_and_all_but_the_best_stay_below_the_cap(
    events: list[tuple[float, float, int, float]], arms: int, floor: float, explored: float, draw: float, usual: int, asked: float
) -> None:
    bandit = Bandit(SIZE, floor, explored, half_life=50.0)
    for load, complexity, arm, reward in events:
        bandit.learn(context(load, complexity), NAMES[arm], 0.5, reward)
    names = NAMES[:arms]
    choice = bandit.choose(context(0.5, asked), names, draw, usual % arms)
    chances = choice.propensities
    assert sum(chances) == pytest.approx(1.0)
    assert min(chances) >= min(floor, 1.0 / arms) - 1e-12
    others = 1.0 - chances[names.index(choice.best)]
    assert others <= max(explored, (arms - 1) * min(floor, 1.0 / arms)) + 1e-12
    assert choice.propensity == chances[names.index(choice.arm)]


def test_draws_give_each_choice_as_often_as_is_said() -> None:
    bandit = Bandit(SIZE, 0.05, 0.3)
    count = 2000
    seen = [bandit.choose(context(0.5, 0.5), NAMES, (at + 0.5) / count) for at in range(count)]
    for at, name in enumerate(NAMES):
        assert sum(one.arm == name for one in seen) / count == pytest.approx(seen[0].propensities[at], abs=1.5 / count)


def test_what_is_usual_is_best_until_another_is_surely_better() -> None:
    bandit = Bandit(SIZE)
    seen = context(0.5, 0.5)
    assert bandit.choose(seen, ("a", "b"), 0.0, 1).best == "b"
    bandit.learn(seen, "a", 0.1, 0.6)
    assert bandit.choose(seen, ("a", "b"), 0.0, 1).best == "b"
    for _ in range(60):
        bandit.learn(seen, "a", 0.1, 0.9)
        bandit.learn(seen, "b", 0.9, 0.2)
    assert bandit.choose(seen, ("a", "b"), 0.0, 1).best == "a"


@settings(max_examples=30, deadline=None)
@given(events=EVENTS)
def test_an_oracle_solves_its_least_squares(events: list[tuple[float, float, int, float]]) -> None:
    oracle = Oracle(SIZE)
    rows = [(context(load, asked), reward) for load, asked, _, reward in events]
    for step, (row, reward) in enumerate(rows, 1):
        oracle.learn(row, reward, step, 1.0)
    weights = oracle._weights
    for at in range(SIZE):
        slope = weights[at]  # the ridge
        for row, reward in rows:
            slope += row[at] * (sum(w * x for w, x in zip(weights, row, strict=True)) - (reward - PRIOR))
        assert slope == pytest.approx(0.0, abs=1e-9)


def test_doubt_falls_with_outcomes_and_comes_back() -> None:
    oracle = Oracle(SIZE)
    seen = context(0.5, 0.5)
    first = oracle.doubt(seen)
    for step in range(1, 101):
        oracle.learn(seen, 1.0, step, 0.99)
    known = oracle.doubt(seen)
    oracle.fade(1000, 0.99)
    assert known < 0.05 < 0.9 < oracle.doubt(seen) <= first == 1.0
    assert oracle.expected(seen) == pytest.approx(PRIOR, abs=0.01)


def test_a_bandit_remembers_so_many_arms_and_no_more() -> None:
    bandit = Bandit(SIZE)
    for at in range(MOST_ARMS + 10):
        bandit.learn(context(0.5, 0.5), f"arm {at}", 1.0, 1.0)
    assert len(bandit) == MOST_ARMS
    assert bandit.expected(context(0.5, 0.5), "arm 0") == PRIOR


@pytest.mark.parametrize(("propensity", "reward", "size"), [(0.0, 0.5, SIZE), (1.1, 0.5, SIZE), (0.5, 1.5, SIZE), (0.5, 0.5, 2)])
def test_what_cannot_be_learned_from_is_refused(propensity: float, reward: float, size: int) -> None:
    with pytest.raises(ValueError, match="propensity"):
        Bandit(SIZE).learn((0.5,) * size, "a", propensity, reward)


@settings(max_examples=25, deadline=None)
@given(events=EVENTS, draws=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1, exclude_max=True)), min_size=1, max_size=10))
def test_a_learner_that_was_kept_goes_on_as_the_one_that_was_not(
    events: list[tuple[float, float, int, float]], draws: list[tuple[float, float]]
) -> None:
    one, other = Learner(LEARNING), Learner(LEARNING)
    for load, asked, arm, reward in events:
        one.learn(one.decide(load, asked, TIERS, arm / 5), 2 * reward - 1)
    assert other.from_state(msgspec.json.decode(msgspec.json.encode(one.to_state()), type=LearnerState))
    for asked, draw in draws:
        left, right = one.decide(0.5, asked, TIERS, draw), other.decide(0.5, asked, TIERS, draw)
        assert left == right
        one.learn(left, 1.0)
        other.learn(right, 1.0)
    assert one.to_state() == other.to_state()


def test_what_was_learned_under_other_terms_is_not_gone_on_with() -> None:
    state = Learner(LEARNING).to_state()
    assert not Learner(msgspec.structs.replace(LEARNING, alpha=0.3)).from_state(state)


def test_a_damaged_state_is_refused_and_changes_nothing() -> None:
    learner = Learner(LEARNING)
    learner.learn(learner.decide(0.5, 0.5, TIERS, 0.5), 1.0)
    before = learner.to_state()
    oracles = {arm: msgspec.structs.replace(held, moments=[0.0]) for arm, held in before.bandit.arms.items()}
    with pytest.raises(ValueError, match="features"):
        learner.from_state(msgspec.structs.replace(before, bandit=msgspec.structs.replace(before.bandit, arms=oracles)))
    assert learner.to_state() == before


@pytest.mark.parametrize(
    ("load", "asked", "arms", "wanted"),
    [
        (0.0, 0.5, TIERS, "base"),
        (0.0, 0.5, ("tiny", "heavy"), "heavy"),
        (0.0, 0.9, ("tiny", "base"), "base"),
        (1.0, 0.45, TIERS, "tiny"),
    ],
    ids=["the rule's", "the next heavier", "else the next smaller", "by load"],
)
def test_the_usual_choice_is_the_tier_of_the_rule(load: float, asked: float, arms: tuple[str, ...], wanted: str) -> None:
    assert Learner(LEARNING).decide(load, asked, arms, 0.0).usual == wanted


def test_a_frozen_learner_tries_nothing_and_learns_nothing() -> None:
    frozen = msgspec.structs.replace(LEARNING, learning=LearningSpec(freeze=True))
    learner = Learner(frozen)
    decisions = [learner.decide(0.0, 0.5, TIERS, at / 100) for at in range(100)]
    assert {(one.choice.arm, one.choice.propensity) for one in decisions} == {("base", 1.0)}
    learner.learn(decisions[0], 1.0)
    assert (learner.outcomes, learner.bandit.step) == (0, 0)


@settings(max_examples=50, deadline=None)
@given(score=st.floats(-1, 1), arm=st.sampled_from(TIERS))
def test_a_reward_is_from_0_to_1_and_a_price_is_paid_in_full(score: float, arm: str) -> None:
    learner = Learner(LEARNING)
    prices = LearningSpec().prices
    assert 0.0 <= learner.reward(arm, score) <= 1.0
    apart = learner.reward("tiny", score) - learner.reward(arm, score)
    assert apart == pytest.approx((getattr(prices, arm) - prices.tiny) / (1 + prices.heavy))


@settings(max_examples=60, deadline=None)
@given(low=st.floats(0.02, 0.5), wide=st.floats(0.05, 0.4), alpha=st.floats(0, 0.8))
def test_neighbours_of_a_rule_are_rules(low: float, wide: float, alpha: float) -> None:
    rule = Rule(alpha, 1.0 - alpha, low, min(0.98, low + wide))
    for one in rule.neighbours():
        assert EDGE <= one.low <= one.high - APART + 1e-3
        assert one.high <= 1.0 - EDGE + 1e-9
        assert one.alpha >= 0.0
        assert one.alpha + one.beta == pytest.approx(1.0, abs=1e-3)
        assert one != rule


def test_the_rule_moves_to_where_outcomes_say_and_not_without_cause() -> None:
    chance = random.Random(3)
    moving, staying = Calibration(Rule(formula="relief")), Calibration(Rule(formula="relief"))
    chances = {"tiny": 0.2, "base": 0.6, "heavy": 0.2}
    flat = dict.fromkeys(TIERS, 0.5)
    for _ in range(4000):
        asked = chance.random()
        chosen = chance.choices(TIERS, [chances[one] for one in TIERS])[0]
        right = {"tiny": asked < 0.55, "base": 0.55 <= asked < 0.7, "heavy": asked >= 0.7}[chosen]
        moving.learn(0.0, asked, chosen, chances, flat, 1.0 if right else 0.0)
        staying.learn(0.0, asked, chosen, chances, flat, float(chance.random() < 0.5))
    assert moving.rule.low == pytest.approx(0.55, abs=0.11)
    assert moving.rule.high == pytest.approx(0.7, abs=0.06)
    assert staying.moves <= 1


def test_a_world_where_thresholds_are_wrong_is_learned() -> None:
    for world in (SHIFTED, WEAK):
        course = run([world], 6000, 1, LearningSpec())
        assert course.best - course.learned <= 0.75 * (course.best - course.fixed)
        assert course.late_best - course.late_learned <= 0.6 * (course.late_best - course.late_fixed)
        assert course.least >= 0.02
        assert course.explored <= 0.11


def test_a_world_where_thresholds_are_right_is_hardly_harmed() -> None:
    course = run([RIGHT], 6000, 1, LearningSpec())
    assert course.fixed == pytest.approx(course.best, abs=1e-3)
    assert course.learned >= 0.97 * course.fixed


def test_a_change_is_followed() -> None:
    course = run([SHIFTED, WEAK], 8000, 2, LearningSpec(half_life=2000))
    assert course.late_best - course.late_learned <= 0.35 * (course.late_best - course.late_fixed)


def test_propensities_are_honest_enough_to_judge_another_rule_by() -> None:
    """Inverse propensity scoring of always-base from a log of choices, against its true worth."""
    chance = random.Random(7)
    world = World("plain", 0.5, 0.8)
    learner = Learner(msgspec.structs.replace(LEARNING, learning=LearningSpec(floor=0.05, explored=0.3)))
    values, truth = [], 0.0
    for _ in range(4000):
        asked = chance.random()
        decision = learner.decide(0.0, asked, TIERS, chance.random())
        good = world.good(TIERS.index(decision.choice.arm), asked)  # type: ignore[arg-type]
        score = 1.0 if chance.random() < good else -1.0
        values.append(score / decision.choice.propensity if decision.choice.arm == "base" else 0.0)
        truth += 2 * world.good(1, asked) - 1
        learner.learn(decision, score)
    mean = sum(values) / len(values)
    error = sqrt(sum((value - mean) ** 2 for value in values)) / len(values)
    assert abs(mean - truth / len(values)) <= 3 * error
    assert error < 0.1
