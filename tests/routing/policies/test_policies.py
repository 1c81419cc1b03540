"""Each policy keeps the contract, and does what its name says."""

from __future__ import annotations

import bisect
import collections
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.routing.policies import DEFAULT, POLICIES, BoundedHash, TargetState, Usual, place
from sits.routing.policies.base import UNSEEN
from sits.routing.policies.checks import CHECKS, New, states_of
from sits.routing.policies.dynamic import DynamicWeights, formula
from sits.routing.policies.hashing import AHEAD, ring
from sits.routing.policies.load import FEW, LeastAdded, LeastConnections, LeastExpected, PeakEwma
from sits.routing.policies.turns import Drawn, RoundRobin, WeightedRoundRobin, by_weight

NEW: dict[str, New] = {name: (lambda states, make=make: make()) for name, make in POLICIES.items()}  # type: ignore[misc]
NEW["bounded-hash"] = lambda states: BoundedHash({state: str(index) for index, state in enumerate(states)})


@pytest.mark.parametrize("name", sorted(NEW))
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_policy_keeps_the_contract(name: str, check: object) -> None:
    assert callable(check)
    check(NEW[name])


def test_the_default_is_one_of_them() -> None:
    assert DEFAULT in POLICIES


def busy(*outstanding: int) -> tuple[TargetState, ...]:
    states = tuple(TargetState() for _ in outstanding)
    for state, number in zip(states, outstanding, strict=True):
        for _ in range(number):
            state.started(0.0)
    return states


def known(took: float, *, outstanding: int = 0, usual: Usual | None = None, at: float = 100.0) -> TargetState:
    """A target that answered 30 requests, one at a time, in so many seconds each."""
    state = TargetState(usual)
    for number in range(30):
        state.ended(at - 3.0 + number / 10.0, took, state.started(0.0), True)
    for _ in range(outstanding):
        state.started(at)
    return state


# Turns


def test_round_robin_asks_everybody_in_turn() -> None:
    policy, states = RoundRobin(), busy(0, 9, 0)
    assert [policy.pick(states, (1.0, 5.0, 1.0), 0.5, 0.0) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_round_robin_keeps_its_turns_where_every_other_request_has_fewer_targets() -> None:
    policy, states = RoundRobin(), busy(0, 0, 0)
    whole = [policy.pick(those, [1.0] * len(those), 0.5, 0.0) for _ in range(6) for those in (states, states[1:])]
    assert (whole[::2], whole[1::2]) == ([0, 1, 2] * 2, [0, 1] * 3)


def test_weighted_round_robin_spreads_the_heavy_one() -> None:
    policy, states = WeightedRoundRobin(), busy(0, 0, 0)
    assert [policy.pick(states, (5.0, 1.0, 1.0), 0.5, 0.0) for _ in range(7)] == [0, 0, 1, 0, 2, 0, 0]


@given(
    weights=st.lists(st.integers(1, 9), min_size=3, max_size=6),
    lacking=st.sets(st.integers(0, 2), min_size=1, max_size=2),
)
@settings(max_examples=50, deadline=None)
def test_weighted_round_robin_gives_each_its_weight_of_the_requests_that_it_can_answer(
    weights: list[int], lacking: set[int]
) -> None:
    """As where some requests have tools, and some backends cannot do tools."""
    policy, states = WeightedRoundRobin(), busy(*[0] * len(weights))
    some = [index for index in range(len(weights)) if index not in lacking]
    counted = collections.Counter[int]()
    rounds = 40 * sum(weights)
    for step in range(rounds):
        those = some if step % 2 else range(len(weights))
        picked = policy.pick([states[index] for index in those], [float(weights[index]) for index in those], 0.0, 0.0)
        counted[those[picked]] += 1
    few = sum(weights[index] for index in some)
    for index, weight in enumerate(weights):
        due = rounds / 2 * weight / sum(weights) + (rounds / 2 * weight / few if index in some else 0.0)
        assert counted[index] == pytest.approx(due, abs=1.0)


def test_dynamic_weights_are_of_those_who_are_asked() -> None:
    """Shares are kept for 200 ms; of others they say nothing."""
    policy, states = DynamicWeights(), busy(0, 0, 0)
    states[2].total = 10.0
    policy.seen(states, (1.0, 1.0, 1.0), 0.5, 100.0)
    states[0].seen = 5_000_000
    for step in range(50):
        now = 100.0 + step / 40.0
        those = states if step % 2 else (states[0], states[2])
        shares = policy.seen(those, [1.0] * len(those), 0.5, now)
        assert len(shares) == len(those)
        assert min(shares) > 0.0
        assert shares[0] > shares[-1], "the quick one before the slow one"


@given(weights=st.lists(st.integers(1, 20), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_weighted_round_robin_gives_each_its_weight_in_a_round(weights: list[int]) -> None:
    policy, states = WeightedRoundRobin(), busy(*[0] * len(weights))
    counted = collections.Counter(policy.pick(states, [float(w) for w in weights], 0.0, 0.0) for _ in range(sum(weights)))
    assert [counted[index] for index in range(len(weights))] == weights


@pytest.mark.parametrize(("draw", "index"), [(0.0, 0), (0.249, 0), (0.25, 1), (0.999, 1), (1.0 - 2**-53, 1)])
def test_a_draw_falls_by_weight(draw: float, index: int) -> None:
    assert by_weight((1.0, 3.0), draw) == index
    assert Drawn().pick(busy(0, 0), (1.0, 3.0), draw, 0.0) == index


# Load


@pytest.mark.parametrize(
    ("outstanding", "weights", "index"),
    [((3, 1, 2), (1.0, 1.0, 1.0), 1), ((3, 1, 2), (4.0, 1.0, 1.0), 0), ((0, 0), (1.0, 2.0), 1), ((1, 0), (1.0, 1.0), 1)],
    ids=["the fewest", "for its weight", "the larger of two idle ones", "the idle one"],
)
def test_least_connections_takes_the_fewest_for_its_weight(
    outstanding: tuple[int, ...], weights: tuple[float, ...], index: int
) -> None:
    assert LeastConnections().pick(busy(*outstanding), weights, 0.3, 0.0) == index


def test_least_connections_does_not_always_take_the_same_of_equals() -> None:
    assert {LeastConnections().pick(busy(0, 0, 0, 0), (1.0,) * 4, draw / 8, 0.0) for draw in range(8)} == {0, 1, 2, 3}


def test_peak_ewma_takes_the_better_of_the_two_drawn() -> None:
    states = (known(1.0, outstanding=1), known(0.1, outstanding=5), known(5.0))
    worse = {PeakEwma().pick(states, (1.0,) * 3, draw / 100, 100.0) for draw in range(100)}
    assert worse == {0, 1}, "the third has more to do than whomever it is drawn with"


@pytest.mark.parametrize("policy", [LeastExpected(), LeastAdded()], ids=["least-expected", "least-added"])
class TestByTheLine:
    def test_the_quick_one_is_asked_until_the_slow_one_would_be_quicker(self, policy: LeastExpected) -> None:
        usual = Usual()
        states = (known(1.0, usual=usual), known(3.0, usual=usual))
        picked = []
        for _ in range(12):
            index = policy.pick(states, (1.0, 1.0), 0.0, 100.0)
            states[index].started(100.0)
            picked.append(index)
        assert picked[:2] == [0, 0]
        assert picked.count(1) in range(1, 5), "it is three times as slow"

    def test_a_target_never_asked_is_asked_once_and_then_waited_for(self, policy: LeastExpected) -> None:
        states = (known(0.1), TargetState())
        assert policy.pick(states, (1.0, 1.0), 0.0, 100.0) == 1
        states[1].started(100.0)
        assert policy.pick(states, (1.0, 1.0), 0.0, 100.0) == 0

    def test_one_that_fails_at_once_is_not_taken_for_quick(self, policy: LeastExpected) -> None:
        states = (known(1.0), known(1.0))
        for number in range(12):
            states[1].ended(100.0 + number / 100, 0.01, states[1].started(100.0), False)
        for _ in range(3):
            states[0].started(100.2)
        assert policy.pick(states, (1.0, 1.0), 0.0, 100.2) == 0

    def test_one_that_has_gone_silent_is_left_alone(self, policy: LeastExpected) -> None:
        states = (known(1.0, outstanding=2), known(2.0, outstanding=2))
        assert policy.pick(states, (1.0, 1.0), 0.0, 100.1) == 0
        states[1].heard = 130.0
        assert policy.pick(states, (1.0, 1.0), 0.0, 130.0) == 1

    def test_an_idle_slow_one_is_tried_again_in_the_end(self, policy: LeastExpected) -> None:
        quick, slow = known(1.0), known(8.0)
        quick.heard = 110.0
        assert policy.pick((quick, slow), (1.0, 1.0), 0.0, 110.0) == 0
        quick.heard = 200.0
        assert policy.pick((quick, slow), (1.0, 1.0), 0.0, 200.0) == 1

    def test_what_a_target_says_of_its_load_counts(self, policy: LeastExpected) -> None:
        states = (known(1.0), known(1.2))
        states[0].told(running=6, waiting=2)
        assert policy.pick(states, (1.0, 1.0), 0.0, 100.0) == 1

    def test_full_memory_counts(self, policy: LeastExpected) -> None:
        states = (known(1.0), known(1.2))
        states[0].told(0, 0, kv=0.98)
        assert policy.pick(states, (1.0, 1.0), 0.0, 100.0) == 1

    def test_the_least_cost_for_its_weight_is_picked(self, policy: LeastExpected) -> None:
        for seed in range(30):
            states, weights = states_of(8, seed), [1.0 + index / 4 for index in range(8)]
            costs = [policy.cost(state, 55.0) / weight for state, weight in zip(states, weights, strict=True)]
            assert costs[policy.pick(states, weights, 0.4, 55.0)] == min(costs)

    def test_of_many_a_few_are_looked_at_and_all_have_their_turn(self, policy: LeastExpected) -> None:
        states = busy(*[1] * 100)
        dice = random.Random(1)
        assert len({policy.pick(states, (1.0,) * 100, dice.random(), 0.0) for _ in range(3000)}) == 100


# The reference formula


@pytest.mark.parametrize(
    ("latency", "rate", "weight"),
    [
        (0.0, 0.0, 0.6),
        (9.0, 0.0, 0.6),
        (99.0, 0.0, 0.3),
        (1e12 - 1.0, 0.0, 0.06),
        (99.0, 1e6, 0.62),
        (99.0, 1e9, 2.3),
    ],
    ids=["no latency", "1 is the most", "100 ms", "0.1 is the least", "a million a second", "5 is the most"],
)
def test_the_reference_formula(latency: float, rate: float, weight: float) -> None:
    assert formula(latency, rate) == pytest.approx(weight)


def shares(policy: DynamicWeights, states: tuple[TargetState, ...], now: float) -> list[float]:
    """Of a thousand even draws within a refresh, without counting as traffic."""
    counted = collections.Counter(policy.pick(states, (1.0,) * len(states), draw / 1000, now) for draw in range(1000))
    policy._picked -= 1000
    return [counted[index] / 1000 for index in range(len(states))]


def test_dynamic_weights_follow_the_latency_every_200_ms() -> None:
    states = (known(0.099), known(0.099))
    policy = DynamicWeights()
    assert shares(policy, states, 100.0) == [0.5, 0.5]
    states[1].total = 9.999
    assert shares(policy, states, 100.19) == [0.5, 0.5]
    assert shares(policy, states, 100.21) == pytest.approx([2 / 3, 1 / 3], abs=0.002)


def test_dynamic_weights_are_evened_out_while_traffic_surges() -> None:
    states = (known(0.099), known(9.999))
    policy = DynamicWeights()
    now = 100.0

    def second(rate: int) -> None:
        nonlocal now
        for step in range(rate):
            policy.pick(states, (1.0, 1.0), step / rate, now + step / rate)
        now += 1.0

    for _ in range(5):
        second(50)
    calm = shares(policy, states, now)[0]
    for _ in range(2):
        second(500)
    surging = shares(policy, states, now)[0]
    assert calm == pytest.approx(2 / 3, abs=0.01)
    assert 0.5 <= surging < 0.53


def test_a_surge_is_seen_where_every_other_request_has_fewer_targets() -> None:
    """As where some requests have tools, and some backends cannot do tools."""
    states = (known(0.099), known(9.999), known(1.0))
    policy, now, calm = DynamicWeights(), 100.0, 0.0
    for rate in (50,) * 5 + (500,) * 2:
        for step in range(rate):
            those = states[: 2 + step % 2]
            given = policy.seen(those, (1.0,) * len(those), step / rate, now + step / rate)
            if len(those) == 2 and rate == 50:
                calm = given[0] / sum(given)
        now += 1.0
    surging = policy.seen(states[:2], (1.0, 1.0), 0.5, now - 0.01)
    assert calm == pytest.approx(2 / 3, abs=0.01)
    assert 0.5 <= surging[0] / sum(surging) < 0.53


@settings(max_examples=100, deadline=None)
@given(many=st.integers(FEW + 1, 200), draw=st.floats(0.0, 1.0, exclude_max=True))
def test_of_many_targets_sixteen_different_ones_are_looked_at(many: int, draw: float) -> None:
    costs = LeastExpected().seen([TargetState()] * many, [1.0] * many, draw, 0.0)
    assert sum(cost < UNSEEN for cost in costs) == FEW


@pytest.mark.parametrize("many", [24, 32, 97])
def test_of_many_targets_each_is_looked_at_as_often_as_any_other(many: int) -> None:
    states, weights, looked = [TargetState()] * many, [1.0] * many, collections.Counter[int]()
    for number in range(many * (many - 1)):
        costs = LeastExpected().seen(states, weights, (number + 0.5) / (many * (many - 1)), 0.0)
        looked.update(index for index, cost in enumerate(costs) if cost < UNSEEN)
    assert set(looked.values()) == {FEW * (many - 1)}


# Consistent hashing with bounded loads


def hashed(size: int, factor: float = 1.25) -> tuple[BoundedHash, tuple[TargetState, ...]]:
    states = tuple(TargetState() for _ in range(size))
    return BoundedHash({state: f"target-{index}" for index, state in enumerate(states)}, factor), states


def test_a_key_stays_where_it_was_and_keys_are_spread() -> None:
    policy, states = hashed(8)
    first = [policy.pick(states, (1.0,) * 8, place(f"会话 {key}".encode()), 0.0) for key in range(2000)]
    again = [policy.pick(states, (1.0,) * 8, place(f"会话 {key}".encode()), 9.0) for key in range(2000)]
    assert first == again
    counted = collections.Counter(first)
    assert min(counted.values()) > 2000 / 8 * 0.6
    assert max(counted.values()) < 2000 / 8 * 1.5


def test_when_a_target_goes_only_its_own_keys_move() -> None:
    policy, states = hashed(6)
    places = [place(f"{key}".encode()) for key in range(1000)]
    before = [states[policy.pick(states, (1.0,) * 6, at, 0.0)] for at in places]
    fewer = states[:2] + states[3:]
    after = [fewer[policy.pick(fewer, (1.0,) * 5, at, 0.0)] for at in places]
    moved = [was for was, now in zip(before, after, strict=True) if was is not now]
    assert moved
    assert {id(state) for state in moved} == {id(states[2])}


@given(keys=st.lists(st.integers(0, 5), min_size=1, max_size=200), factor=st.sampled_from([1.1, 1.25, 2.0]))
@settings(max_examples=50, deadline=None)
def test_nobody_has_more_than_its_part_however_hot_a_key_is(keys: list[int], factor: float) -> None:
    policy, states = hashed(5, factor)
    for number, key in enumerate(keys, 1):
        states[policy.pick(states, (1.0,) * 5, place(str(key).encode()), 0.0)].started(0.0)
        assert max(state.outstanding for state in states) <= -(-factor * number // 5)


@given(
    weights=st.lists(st.sampled_from([0.2, 1.0, 3.0, 9.0]), min_size=2, max_size=9),
    under_way=st.lists(st.integers(0, 4), min_size=9, max_size=9),
    out=st.sets(st.integers(0, 8), max_size=4),
    factor=st.sampled_from([1.05, 1.25, 3.0]),
    key=st.text(min_size=1),
)
@settings(max_examples=80, deadline=None)
def test_tries_follow_the_ring_without_those_that_are_out_and_who_is_full_comes_behind(
    weights: list[float], under_way: list[int], out: set[int], factor: float, key: str
) -> None:
    states = tuple(TargetState() for _ in weights)
    for state, count in zip(states, under_way, strict=False):
        state.outstanding = count
    names = {state: f"目标/{index}" for index, state in enumerate(states)}
    usual = sum(weights) / len(weights)
    left = [index for index in range(len(weights)) if index not in out] or [0]
    places, owners = ring(list(names.values()), weights, usual)
    start = bisect.bisect_right(places, place(key.encode()))
    along = [index for index in dict.fromkeys(owners[start:] + owners[:start]) if index in left]
    part = factor * (1 + sum(states[index].outstanding for index in left)) / sum(weights[index] for index in left)
    full = [index for index in along if states[index].outstanding >= math.ceil(part * weights[index])]
    policy = BoundedHash(names, factor, usual)
    seen = policy.seen([states[index] for index in left], [weights[index] for index in left], place(key.encode()), 0.0)
    tried = [index for _, index in sorted(zip(seen, left, strict=True))]
    assert tried == [index for index in along if index not in full] + full


def test_of_many_targets_those_that_are_ever_tried_are_in_order() -> None:
    policy, states = hashed(40)
    before = policy.seen(states, (1.0,) * 40, 0.3, 0.0)
    tried = sorted(range(40), key=before.__getitem__)[:AHEAD]
    assert (sorted(before)[:AHEAD], sorted(before)[AHEAD]) == ([float(step) for step in range(AHEAD)], UNSEEN)
    fewer = [index for index in range(40) if index not in tried[:3]]
    after = policy.seen([states[index] for index in fewer], (1.0,) * 37, 0.3, 0.0)
    assert [fewer[at] for at in sorted(range(37), key=after.__getitem__)[: AHEAD - 3]] == tried[3:]


def test_a_factor_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="no room"):
        BoundedHash({}, 1.0)


def test_rings_are_kept_for_a_few_subsets_only() -> None:
    policy, states = hashed(12)
    for size in range(1, 13):
        policy.pick(states[:size], (1.0,) * size, 0.5, 0.0)
    assert len(policy._rings) == 8


@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=2, max_size=8),
    subsets=st.lists(st.sets(st.integers(0, 7), min_size=1), min_size=1, max_size=14),
)
@settings(max_examples=50, deadline=None)
def test_a_ring_that_is_part_of_another_is_the_one_that_would_be_made(weights: list[float], subsets: list[set[int]]) -> None:
    states = tuple(TargetState() for _ in weights)
    names = {state: f"目标/{index}" for index, state in enumerate(states)}
    usual = sum(weights) / len(weights)
    policy = BoundedHash(names, 1.25, usual)
    for subset in subsets:
        those = [index for index in range(len(states)) if index in subset] or [0]
        some, theirs = tuple(states[index] for index in those), tuple(weights[index] for index in those)
        policy.pick(some, theirs, 0.5, 0.0)
        assert policy._rings[some, theirs] == ring([names[state] for state in some], theirs, usual)
    assert len(policy._rings) <= 8


def test_the_widest_ring_is_kept_for_others_are_parts_of_it() -> None:
    states = tuple(TargetState() for _ in range(12))
    policy = BoundedHash({state: str(index) for index, state in enumerate(states)}, 1.25, 1.0)
    for out in range(-1, 12):
        some = tuple(state for index, state in enumerate(states) if index != out)
        policy.pick(some, (1.0,) * len(some), 0.5, 0.0)
    assert (states, (1.0,) * 12) in policy._rings


def test_the_checks_find_a_policy_that_touches() -> None:
    class Touching:
        def pick(self, states: tuple[TargetState, ...], weights: object, draw: float, now: float) -> int:
            states[0].started(now)
            return 0

    failed = []
    for check in CHECKS:
        try:
            check(lambda states: Touching())
        except AssertionError:
            failed.append(check.__name__)
    assert failed == ["looks_and_does_not_touch", "lives_with_new_targets"]
    assert len(states_of(3, 1)) == 3
