"""What each score gives, and when the ones that learn have learned."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.resources.domains import Domain, DomainSpec, Prefers
from sits.resources.kinds import Cost, Model, ModelSpec, Promise
from sits.resources.vocabulary import Metadata
from sits.routing.beginnings import MOST_BITS
from sits.routing.policies import POLICIES, BoundedHash, place
from sits.routing.policies.fit import Tightest
from sits.routing.policies.state import TargetState, Usual
from sits.routing.scheduling.affinity import PrefixAffinity
from sits.routing.scheduling.base import Candidate, Facts, Made, Score
from sits.routing.scheduling.builtin import SCORES
from sits.routing.scheduling.fitting import TightestFit
from sits.routing.scheduling.scale import scaled
from sits.routing.scheduling.scheduler import Scheduler, Weighed
from sits.routing.scheduling.seen import ENOUGH, FRESH, LATEST, MOST_TARGETS, OLD, CostSeen, LatencySeen


def backend(index: int, labels: dict[str, str] | None = None, weight: float = 1.0, **spec: Any) -> Candidate:
    name = f"m{index}"
    model = Model(metadata=Metadata(name=name), spec=ModelSpec(engine="vllm", endpoint="http://127.0.0.1:1", **spec))
    return Candidate(index, name, model, TargetState(), weight, labels or {}, None)


def backends(*specs: dict[str, Any]) -> list[Candidate]:
    return [backend(index, **spec) for index, spec in enumerate(specs)]


def facts(body: bytes = b"", **known: Any) -> Facts:
    made = Facts("chat", frozenset(("chat",)), known.pop("headers", {}), body)
    for name, value in known.items():
        setattr(made, name, value)
    return made


def make(name: str, candidates: Sequence[Candidate], use: dict[str, Any] | None = None, **known: Any) -> Score:
    return SCORES[name](Made("r", candidates, use or {}, known.pop("snapshot", None), **known))


def points(score: Score, candidates: Sequence[Candidate], asked: Facts | None = None) -> list[float]:
    return [round(one, 3) for one in scaled(score, asked or facts(), candidates)]


def under_way(*counts: int, weights: Sequence[float] = ()) -> list[Candidate]:
    candidates = [backend(index, weight=weights[index] if weights else 1.0) for index in range(len(counts))]
    for one, count in zip(candidates, counts, strict=True):
        for _ in range(count):
            one.state.started(0.0)
    return candidates


# Under load


def test_the_fewest_under_way_get_the_most() -> None:
    candidates = under_way(0, 1, 3)
    assert points(make("least-outstanding", candidates), candidates) == [100.0, 50.0, 25.0]


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 9), min_size=2, max_size=8),
    weights=st.lists(st.sampled_from([1.0, 2.0, 7.0]), min_size=8, max_size=8),
    took=st.lists(st.floats(0.05, 9.0), min_size=8, max_size=8),
)
@pytest.mark.parametrize(("score", "policy"), [("least-outstanding", "least-connections"), ("load", "least-added")])
def test_alone_it_chooses_as_the_policy_does(
    score: str, policy: str, counts: list[int], weights: list[float], took: list[float]
) -> None:
    usual = Usual()
    candidates = [backend(index, weight=weights[index]) for index in range(len(counts))]
    for one, count, seconds in zip(candidates, counts, took, strict=False):
        one.state = TargetState(usual)
        one.state.ended(1.0, seconds, one.state.started(0.0), True, seconds / 10.0, 50.0)
        for _ in range(count):
            one.state.started(1.0)
    states = [one.state for one in candidates]
    scheduler = Scheduler(candidates, [], [Weighed(make(score, candidates), 1.0)])
    chosen = scheduler.decide(facts(now=1.5, draw=0.3), frozenset()).order[0]
    seen = POLICIES[policy]().seen(states, weights[: len(counts)], 0.3, 1.5)
    assert seen[chosen] == pytest.approx(min(seen), rel=1e-9)


def test_latency_counts_whoever_has_not_answered_yet_as_the_quickest() -> None:
    candidates = backends({}, {}, {})
    candidates[0].state.total, candidates[0].state.first = 2.0, 0.4
    candidates[1].state.total, candidates[1].state.first = 4.0, 0.1
    assert points(make("latency", candidates), candidates) == [100.0, 50.0, 100.0]
    assert points(make("latency", candidates, {"of": "first"}), candidates) == [25.0, 100.0, 100.0]


def test_queue_looks_at_what_a_server_has_beyond_our_own_requests() -> None:
    candidates = under_way(3, 3, 0)
    for one, running in zip(candidates, (3, 13, 5), strict=True):
        one.state.room = 10.0
        one.state.told(running, 0)
    assert points(make("queue", candidates), candidates) == [100.0, 50.0, 66.667]


def test_kv_is_what_the_server_says_else_what_a_label_says_else_half() -> None:
    candidates = backends({"labels": {"kv-used": "0.9"}}, {"labels": {"kv-used": "0.9"}}, {}, {"labels": {"kv-used": "much"}})
    candidates[0].state.told(0, 0, 0.25)
    assert points(make("kv", candidates), candidates) == [75.0, 10.0, 50.0, 50.0]


def test_quality_falls_with_the_share_of_errors() -> None:
    candidates = backends({}, {})
    candidates[1].state.ended(1.0, 1.0, candidates[1].state.started(0.0), False)
    given = points(make("quality", candidates), candidates)
    assert given[0] == 100.0
    assert given[1] < 100.0


def test_zone_balance_adds_up_what_a_zone_has_under_way() -> None:
    candidates = under_way(4, 0, 1)
    for one, zone in zip(candidates, ("a", "a", "b"), strict=True):
        one.labels = {"zone": zone}
    # Zone a has 4 under way on two backends, zone b has 1 on one.
    assert points(make("zone-balance", candidates), candidates) == [80.0, 80.0, 100.0]


# Memory that requests hold


def _roomy(*tokens: int) -> list[Candidate]:
    return backends(*[{"labels": {"kv-tokens": str(count)}} if count else {} for count in tokens])


def test_the_tightest_backend_on_which_the_request_fits_gets_the_most() -> None:
    candidates = _roomy(1000, 4000, 2000, 0)
    score = make("memory-fit", candidates)
    assert points(score, candidates, facts(tokens=1000, wanted_output=500)) == [0.0, 50.0, 100.0, 0.0]
    score.reserve(facts(tokens=1000, wanted_output=500), candidates[2])
    assert points(score, candidates, facts(tokens=1000, wanted_output=500)) == [0.0, 100.0, 0.0, 0.0]
    assert points(score, candidates, facts(tokens=400, wanted_output=100)) == [50.0, 50.0, 100.0, 0.0]
    score.release(candidates[2], True)
    assert points(score, candidates, facts(tokens=1000, wanted_output=500)) == [0.0, 50.0, 100.0, 0.0]


def test_who_is_not_counted_is_taken_by_the_length_of_the_body_and_the_usual_answer() -> None:
    candidates = _roomy(1000, 2000)
    score = make("memory-fit", candidates, {"answer": 100})
    assert points(score, candidates, facts(b"x" * 3600)) == [100.0, 50.0]
    assert points(score, candidates, facts(b"x" * 3604)) == [0.0, 100.0]


@settings(max_examples=60, deadline=None)
@given(needs=st.lists(st.integers(1, 3000), max_size=40), seed=st.integers(0, 99))
def test_placing_is_that_of_the_simulated_cluster_and_nothing_is_held_in_the_end(needs: list[int], seed: int) -> None:
    sizes = [2000, 3000, 5000]
    candidates, plain = _roomy(*sizes), Tightest(sizes)
    score = make("memory-fit", candidates)
    held: list[Candidate] = []
    for need in needs:
        asked = facts(tokens=need, wanted_output=1)
        given = score.score(asked, candidates)
        node = plain.take(need + 1)
        assert (list(given).index(100.0) if 100.0 in given else -1) == node
        if node >= 0:
            score.reserve(asked, candidates[node])
            held.append(candidates[node])
    random.Random(seed).shuffle(held)
    for one in held:
        score.release(one, True)
    assert isinstance(score, TightestFit)
    assert (list(score.held.fit.free), score.held.amounts, score.held.counts) == (sizes, {}, {})


def test_a_request_that_began_under_an_older_configuration_gives_back_what_it_holds() -> None:
    old_ones = _roomy(2000, 1000)
    old = make("memory-fit", old_ones)
    old.reserve(facts(tokens=600, wanted_output=100), old_ones[0])
    new_ones = list(reversed(_roomy(2000, 1000)))
    for index, one in enumerate(new_ones):
        one.index = index
    new = make("memory-fit", new_ones, before=[old])
    asked = facts(tokens=1400, wanted_output=100)
    assert points(new, new_ones, asked) == [0.0, 0.0]
    assert points(old, old_ones, asked) == [0.0, 0.0]
    old.release(old_ones[0], True)
    assert points(new, new_ones, asked) == [0.0, 100.0]


def test_a_configuration_that_was_not_taken_changes_nothing_for_the_one_in_force() -> None:
    old_ones = _roomy(2000, 1000)
    old = make("memory-fit", old_ones)
    asked = facts(tokens=600, wanted_output=100)
    before = points(old, old_ones, asked)
    make("memory-fit", _roomy(5, 5, 5), before=[old])
    assert points(old, old_ones, asked) == before == [50.0, 100.0]


# By what is declared

DOMAINS = {
    "legal": Domain(
        metadata=Metadata(name="legal"),
        spec=DomainSpec(examples=["a", "b", "c", "d"], prefers=Prefers(models=["m1"], labels={"gpu": "h100", "tier": "heavy"})),
    )
}


@pytest.mark.parametrize(
    ("domain", "expected"),
    [("legal", [60.0, 100.0, 100.0, 0.0]), ("写诗", [0.0, 0.0, 0.0, 60.0]), ("unknown", [0.0] * 4), ("", [0.0] * 4)],
)
def test_domain_gives_most_to_the_preferred_and_some_to_who_says_it_of_itself(domain: str, expected: list[float]) -> None:
    candidates = backends(
        {"domains": ["legal"]}, {}, {"labels": {"gpu": "h100", "tier": "heavy"}}, {"domains": ["写诗"], "labels": {"gpu": "h100"}}
    )
    score = make("domain", candidates, snapshot=SimpleNamespace(domains=DOMAINS))
    assert points(score, candidates, facts(domain=domain)) == expected
    assert score.facet(facts(domain=domain)) == (domain if any(expected) else "")


@pytest.mark.parametrize(
    ("tier", "expected"),
    [
        ("tiny", [100.0, 60.0, 30.0, 30.0]),
        ("base", [0.0, 100.0, 60.0, 30.0]),
        ("heavy", [0.0, 0.0, 100.0, 30.0]),
        ("", [0.0] * 4),
    ],
)
def test_complexity_gives_nothing_to_a_backend_that_is_too_small(tier: str, expected: list[float]) -> None:
    candidates = backends({"labels": {"tier": "tiny"}}, {}, {"labels": {"tier": "heavy"}}, {})
    score = make("complexity", candidates, {"models": {"m1": "base"}})
    assert points(score, candidates, facts(tier=tier)) == expected


def test_labels_add_up_to_a_hundred_at_the_most() -> None:
    candidates = backends({"labels": {"gpu": "h100", "机房": "北京"}}, {"labels": {"gpu": "h100"}}, {})
    assert points(make("label", candidates, {"points": {"gpu=h100": 70, "机房=北京": 40}}), candidates) == [100.0, 70.0, 0.0]


def test_a_colour_gives_its_backends_all() -> None:
    candidates = backends({"labels": {"version": "v2"}}, {})
    score = make("colour", candidates, {"colours": {"canary": {"version": "v2"}}})
    assert points(score, candidates, facts(colour="canary")) == [100.0, 0.0]
    assert points(score, candidates, facts(colour="blue")) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("use", "asked", "expected"),
    [
        ({}, facts(), [0.0, 0.0, 0.0]),
        ({"region": "eu"}, facts(), [100.0, 100.0, 0.0]),
        ({"region": "eu", "zone": "eu-a"}, facts(), [100.0, 50.0, 0.0]),
        ({"region": "eu", "zone": "eu-a"}, facts(region="us"), [0.0, 0.0, 100.0]),
        ({"region": "eu", "zone": "eu-a"}, facts(region="mars"), [100.0, 50.0, 0.0]),
        ({"region": "eu"}, facts(headers={b"x-sits-zone": b"eu-b"}), [50.0, 100.0, 0.0]),
    ],
    ids=["nobody says", "our region", "our zone", "their region", "a region of nobody", "their zone"],
)
def test_zone_is_the_client_s_where_there_is_a_backend_and_else_ours(
    use: dict[str, Any], asked: Facts, expected: list[float]
) -> None:
    candidates = backends(*[{"labels": {"region": r, "zone": z}} for r, z in (("eu", "eu-a"), ("eu", "eu-b"), ("us", "us-a"))])
    assert points(make("zone", candidates, use), candidates, asked) == expected


def test_a_promise_of_latency_is_held_against_the_truth() -> None:
    candidates = backends({"promise": Promise(latency_p95_ms=200)}, {"promise": Promise(latency_p95_ms=700)}, {})
    seen = LatencySeen()
    assert points(make("latency-promise", candidates, latencies=seen), candidates, facts(now=1.0)) == [100.0, 50.0, 0.0]
    for _ in range(ENOUGH):
        seen.note("m0", 1.4, 0.5)
        seen.note("m2", 0.35, 0.5)
    assert points(make("latency-promise", candidates, latencies=seen), candidates, facts(now=1.0)) == [25.0, 50.0, 100.0]
    assert points(make("latency-promise", candidates, latencies=seen), candidates, facts(now=0.5 + FRESH + 1.0)) == [
        100.0,
        50.0,
        0.0,
    ]
    unmoved = make("latency-promise", candidates, {"measured": False}, latencies=seen)
    assert points(unmoved, candidates, facts(now=1.0)) == [100.0, 50.0, 0.0]


def test_accuracy_has_its_middle_at_what_is_wanted() -> None:
    candidates = backends(*[{"promise": Promise(accuracy=one)} for one in (0.924, 0.962, 1.0, 0.462)], {})
    assert points(make("accuracy-promise", candidates), candidates) == [50.0, 75.0, 100.0, 25.0, 0.0]


PRICES = [Cost(input_per_million=1.0, output_per_million=1.0), Cost(input_per_million=4.0, output_per_million=4.0), Cost()]


def test_cost_is_by_prices_until_there_are_bills() -> None:
    candidates = backends(*[{"cost": one} for one in PRICES])
    seen = CostSeen()
    score = make("cost", candidates, costs=seen)
    assert points(score, candidates) == [75.0, 0.0, 100.0]
    # The dear one turns out to answer briefly: a request costs no more than one of the first.
    seen.note("m0", 0.002)
    seen.note("m1", 0.002)
    assert points(score, candidates) == [0.0, 0.0, 100.0]
    assert points(make("cost", candidates, {"measured": False}, costs=seen), candidates) == [75.0, 0.0, 100.0]


def test_who_was_not_billed_yet_is_taken_to_answer_as_long_as_the_others() -> None:
    candidates = backends(*[{"cost": one} for one in PRICES])
    seen = CostSeen()
    seen.note("m0", 0.001)
    assert points(make("cost", candidates, costs=seen), candidates) == [75.0, 0.0, 100.0]


def test_all_that_is_free_is_alike() -> None:
    candidates = backends({}, {})
    assert points(make("cost", candidates), candidates) == [100.0, 100.0]


# What is learned of finished requests


def test_costs_follow_the_bills_and_the_target_heard_of_least_recently_is_forgotten() -> None:
    seen = CostSeen()
    assert seen.mean("m") == -1.0
    for _ in range(600):
        seen.note("m", 0.5)
    seen.note("m", 0.0)
    assert seen.mean("m") == pytest.approx(0.5 * 63 / 64)
    for number in range(MOST_TARGETS):
        seen.note(f"t{number}", 1.0)
    assert (seen.mean("m"), seen.mean("t0")) == (-1.0, 1.0)


@pytest.mark.parametrize("sigma", [0.2, 0.7, 1.2])
def test_the_percentile_is_that_of_the_answers(sigma: float) -> None:
    dice, seen = random.Random(3), LatencySeen()
    took = [dice.lognormvariate(0.0, sigma) for _ in range(6000)]
    found = []
    for number, seconds in enumerate(took):
        seen.note("m", seconds, 0.0)
        if number >= 2000:
            found.append(seen.p95("m", 0.0))
    exact = sorted(took)[int(0.95 * len(took))]
    assert sum(found) / len(found) == pytest.approx(exact, rel=0.1)


def nearest_rank(took: Sequence[float]) -> float:
    """The least of them that 95 of 100 are not above."""
    return min(one for one in took if 20 * sum(other <= one for other in took) >= 19 * len(took))


@settings(max_examples=60, deadline=None)
@given(
    first=st.lists(st.floats(0.0, 1e4), max_size=130),
    then=st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=8),
    gap=st.sampled_from([0.0, 0.5, 7.0, FRESH]),
)
def test_the_percentile_is_exactly_that_of_the_last_answers_whatever_was_before(
    first: list[float], then: list[float], gap: float
) -> None:
    seen = LatencySeen()
    took = [*first, *(then * LATEST)[:LATEST]]
    for number, seconds in enumerate(took):
        seen.note("m", seconds, number * gap)
        if number % 50 == 30 or number == len(took) - 1:
            lasting = took[: number + 1][-LATEST:][-(int(OLD / gap) + 1 if gap else LATEST) :]
            assert seen.p95("m", number * gap) == nearest_rank(lasting)


@pytest.mark.parametrize(
    ("first", "rest", "answers"),
    [(60.0, 0.2, ENOUGH - 1), (0.001, 5.0, ENOUGH - 1), (0.0, 5.0, ENOUGH - 1)],
    ids=["a cold start", "a quick accident", "nothing at all"],
)
def test_one_first_answer_says_nothing_of_those_after_it(first: float, rest: float, answers: int) -> None:
    seen = LatencySeen()
    for number in range(answers + 1):
        seen.note("m", first if number == 0 else rest, number / 10.0)
    assert seen.p95("m", answers / 10.0) == rest


def slow(seconds: float = 5.0) -> LatencySeen:
    """Of a target that took so long 500 times, up to second 50."""
    seen = LatencySeen()
    for number in range(500):
        seen.note("m", seconds, 0.1 + number / 10.0)
    return seen


@pytest.mark.parametrize(
    ("was", "answers", "told"),
    [
        pytest.param(5.0, [(81.0, 0.2)], 0.2, id="one quick try brings it back"),
        pytest.param(5.0, [(81.0, 4.0)], 4.0, id="a slow one does not"),
        pytest.param(5.0, [(81.0, 4.0), (112.0, 0.2)], 0.2, id="the next try may"),
        pytest.param(5.0, [(81.0, 0.2), (82.0, 9.0)], 5.0, id="the first slow one after that leaves it out again"),
        pytest.param(5.0, [(81.0, 9.0), *[(82.0, 0.2)] * 19], 0.2, id="of twenty, one may be slow"),
        pytest.param(5.0, [(51.0 + OLD, 4.0)], 0.0, id="what is older than all that counts is not held against it"),
        pytest.param(0.2, [(81.0, 9.0)], 0.2, id="who was quick is not thought slow by one"),
        pytest.param(0.2, [(81.0, 9.0)] * ENOUGH, 9.0, id="but by twenty"),
    ],
)
def test_who_was_left_out_for_being_slow_is_judged_by_how_it_is_now(
    was: float, answers: list[tuple[float, float]], told: float
) -> None:
    seen = slow(was)
    assert seen.p95("m", 50.0) == was
    for now, seconds in answers:
        seen.note("m", seconds, now)
    assert seen.p95("m", answers[-1][0]) == told


def test_answers_of_long_ago_do_not_count_where_few_come() -> None:
    seen = LatencySeen()
    for number in range(60):
        seen.note("m", 5.0 if number < 39 else 0.2, number * 29.0)
    assert seen.p95("m", 59 * 29.0) == 0.2


def test_nothing_is_told_of_a_few_answers_or_of_old_ones() -> None:
    seen = LatencySeen()
    for _ in range(ENOUGH - 1):
        seen.note("m", 1.0, 0.0)
    assert seen.p95("m", 0.0) == 0.0
    seen.note("m", 1.0, 0.0)
    assert (seen.p95("m", FRESH), seen.p95("m", FRESH + 0.1), seen.p95("other", 0.0)) == (1.0, 0.0, 0.0)


# Affinity


def test_a_prompt_that_goes_on_from_another_one_gets_the_share_that_is_known() -> None:
    candidates = under_way(0, 0, 0)
    score = make("prefix-affinity", candidates)
    first = b"a" * 1024
    assert points(score, candidates, facts(first)) == [0.0, 0.0, 0.0]
    score.reserve(facts(first), candidates[1])
    assert points(score, candidates, facts(first)) == [0.0, 100.0, 0.0]
    assert points(score, candidates, facts(first + b"b" * 1024)) == [0.0, 50.0, 0.0]
    assert points(score, candidates, facts(b"a" * 512 + b"c" * 512)) == [0.0, 50.0, 0.0]
    assert points(score, candidates, facts(b"a" * 255)) == [0.0, 0.0, 0.0]
    score.reserve(facts(b"a" * 512 + b"c" * 512), candidates[2])
    assert points(score, candidates, facts(first)) == [0.0, 100.0, 50.0]


def test_nobody_with_more_than_its_part_under_way_gets_points_for_a_prefix() -> None:
    candidates = under_way(0, 0)
    score = make("prefix-affinity", candidates)
    body = b"x" * 512
    score.reserve(facts(body), candidates[0])
    given = []
    for _ in range(4):
        given.append(points(score, candidates, facts(body))[0])
        candidates[0].state.started(0.0)
    # Its part is 1.25 times a half of what is under way and the next one, rounded up: 1 of 1, 2 of 2, and no more than 2 of 3.
    assert given == [100.0, 100.0, 0.0, 0.0]
    candidates[1].state.started(0.0)
    candidates[1].state.started(0.0)
    candidates[1].state.started(0.0)
    assert points(score, candidates, facts(body)) == [100.0, 0.0]


@settings(max_examples=50, deadline=None)
@given(bodies=st.lists(st.sampled_from([256, 700, 1024, 20_000]), min_size=1, max_size=60), cap=st.integers(16, 64))
def test_no_more_beginnings_are_remembered_than_is_said(bodies: list[int], cap: int) -> None:
    candidates = under_way(0, 0)
    score = make("prefix-affinity", candidates, {"remembered": cap})
    assert isinstance(score, PrefixAffinity)
    for number, size in enumerate(bodies):
        score.reserve(facts(bytes([number]) * size), candidates[number % 2])
        assert len(score.memory) <= cap


def test_what_was_learned_goes_on_under_another_configuration() -> None:
    candidates = under_way(0, 0, 0)
    old = make("prefix-affinity", candidates)
    old.reserve(facts(b"y" * 512), candidates[2])
    fewer = [backend(0), backend(1)]
    fewer[0].name = "m2"
    new = make("prefix-affinity", fewer, before=[old])
    assert points(new, fewer, facts(b"y" * 512)) == [100.0, 0.0]


def test_no_two_backends_are_taken_for_one_where_the_memory_begins_anew() -> None:
    candidates = under_way(0, 0, 0)
    old = make("prefix-affinity", candidates[:1])
    assert isinstance(old, PrefixAffinity)
    old.reserve(facts(b"o" * 512), candidates[0])
    old.memory.bits([f"gone-{number}" for number in range(MOST_BITS - 2)])
    new = make("prefix-affinity", candidates, before=[old])
    new.reserve(facts(b"x" * 512), candidates[0])
    assert points(new, candidates, facts(b"x" * 512)) == [100.0, 0.0, 0.0]
    # A request of the older configuration, which is still under way.
    assert points(old, candidates[:1], facts(b"o" * 512)) == [0.0]
    old.reserve(facts(b"o" * 512), candidates[0])
    assert points(new, candidates, facts(b"o" * 512)) == [100.0, 0.0, 0.0]


def test_a_configuration_that_never_came_into_force_has_changed_nothing() -> None:
    candidates = under_way(0)
    old = make("prefix-affinity", candidates, {"remembered": 64})
    assert isinstance(old, PrefixAffinity)
    old.reserve(facts(b"a" * 512), candidates[0])
    old.memory.bits([f"gone-{number}" for number in range(MOST_BITS - 1)])
    generation = old.memory.generation
    make("prefix-affinity", [backend(1), backend(2)], {"remembered": 16}, before=[old])
    for number in range(9):
        old.reserve(facts(bytes([number]) * 512), candidates[0])
    assert (points(old, candidates, facts(b"a" * 512)), len(old.memory), old.memory.generation) == ([100.0], 30, generation)


def test_a_session_is_where_policy_hash_would_send_it() -> None:
    candidates = under_way(0, 0, 0, 0, weights=[1.0, 2.0, 1.0, 1.0])
    score = make("session", candidates)
    policy = BoundedHash({one.state: one.name for one in candidates})
    for number in range(50):
        key = f"会话-{number}".encode()
        given = points(score, candidates, facts(session=key))
        assert sorted(given, reverse=True) == [100.0, 50.0, 0.0, 0.0]
        chosen = policy.pick([one.state for one in candidates], [1.0, 2.0, 1.0, 1.0], place(key), 0.0)
        assert given.index(100.0) == chosen


def test_a_session_goes_on_to_its_second_backend_when_the_first_has_more_than_its_part() -> None:
    candidates = under_way(0, 0, 0)
    score = make("session", candidates)
    before = points(score, candidates, facts(session=b"s"))
    first, second = before.index(100.0), before.index(50.0)
    for _ in range(9):
        candidates[first].state.started(0.0)
    after = points(score, candidates, facts(session=b"s"))
    assert (after[first], after[second]) == (0.0, 100.0)


@pytest.mark.parametrize(
    ("use", "asked", "same"),
    [
        ({}, facts(session=b"s", key="k"), facts(session=b"s", key="other")),
        ({}, facts(key="k"), facts(session=b"k")),
        ({"by": "key"}, facts(session=b"s", key="k"), facts(session=b"t", key="k")),
        ({"by": "header", "header": "X-User"}, facts(headers={b"x-user": b"u"}), facts(headers={b"x-user": b"u"}, session=b"s")),
    ],
    ids=["session", "key without a session", "key", "header"],
)
def test_what_a_session_goes_by(use: dict[str, Any], asked: Facts, same: Facts) -> None:
    candidates = under_way(*[0] * 50)
    score = make("session", candidates, use)
    assert points(score, candidates, asked) == points(score, candidates, same) != [0.0] * 50


def test_whoever_says_nothing_of_itself_gets_no_points_for_a_session() -> None:
    candidates = under_way(0, 0)
    assert points(make("session", candidates), candidates, facts()) == [0.0, 0.0]


def test_chance_prefers_nobody() -> None:
    dice, candidates = random.Random(1), under_way(0, 0, 0, 0, 0)
    score = make("random", candidates)
    best: Counter[int] = Counter()
    for _ in range(10_000):
        given = score.score(facts(draw=dice.random()), candidates)
        best[list(given).index(max(given))] += 1
    assert all(count == pytest.approx(2000, abs=5 * 40) for count in best.values())


@pytest.mark.parametrize(
    ("name", "use", "said"),
    [
        ("load", {"x": 1}, 'there is no setting "x"; it has none'),
        ("prefix-affinity", {"capp": 2}, 'there is no setting "capp"; did you mean "cap"?'),
        ("prefix-affinity", {"cap": 1}, "cap: 1 is out of range; give a figure above 1 and of at most 10"),
        ("label", {"points": {"gpu": 5}}, "a label is written name=value, not 'gpu'"),
        ("complexity", {"models": {"m": "huge"}}, 'models.m: "huge" is not one of base, heavy, tiny'),
        ("session", {"by": "header"}, "`by: header` needs the name of the `header`"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_by_name(name: str, use: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        make(name, under_way(0, 0), use)
    assert str(caught.value) == said


def test_every_score_says_how_often_it_changes() -> None:
    candidates = under_way(0, 0)
    uses: dict[str, dict[str, Any]] = {"label": {"points": {}}, "colour": {"colours": {}}}
    said: dict[str, list[str]] = {}
    for name in SCORES:
        said.setdefault(make(name, candidates, uses.get(name, {})).varies, []).append(name)
    assert said == {
        "request": ["load", "least-outstanding", "memory-fit", "zone-balance", "prefix-affinity", "session", "random"],
        "tick": ["latency", "queue", "kv", "quality", "latency-promise", "cost"],
        "never": ["domain", "complexity", "accuracy-promise", "zone", "label", "colour"],
    }
