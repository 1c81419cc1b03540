"""Choosing by filters and scores: who is kept, in which order, how often anew, and with what chance."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.resources.choosing import Backend, FilterUse, ScoreUse
from sits.resources.kinds import Model, ModelSpec, RouteSpec
from sits.resources.vocabulary import Metadata
from sits.routing.policies.state import TargetState
from sits.routing.scheduling.base import TICK, Candidate, Facts, Filter, Made, Score, Varies
from sits.routing.scheduling.building import build
from sits.routing.scheduling.builtin import SCORES
from sits.routing.scheduling.checks import candidates_of, facts_of, made_for
from sits.routing.scheduling.scale import normalised, scaled
from sits.routing.scheduling.scheduler import MOST_FACETS, Decision, Scheduler, Weighed, propensities

NOBODY: frozenset[str] = frozenset()


def several(size: int, weights: Sequence[float] = ()) -> list[Candidate]:
    found = []
    for index in range(size):
        model = Model(metadata=Metadata(name=f"m{index}"), spec=ModelSpec(engine="vllm", endpoint="http://127.0.0.1:1"))
        found.append(Candidate(index, f"m{index}", model, TargetState(), weights[index] if weights else 1.0, {}, None))
    return found


def asked(draw: float = 0.0, now: float = 0.0, domain: str = "") -> Facts:
    made = Facts("chat", frozenset(), {}, b"")
    made.draw, made.now, made.domain = draw, now, domain
    return made


class Says(Score):
    """What it is told to, by domain; counts how often it is asked."""

    def __init__(self, rows: dict[str, list[float]] | list[float], varies: Varies = "request", name: str = "says") -> None:
        self.rows = rows if isinstance(rows, dict) else {"": rows}
        self.varies, self.name = varies, name
        self.calls = 0
        self.books: list[Any] = []

    def facet(self, facts: Facts) -> Hashable:
        return facts.domain

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        self.calls += 1
        return self.rows[facts.domain]

    def reserve(self, facts: Facts, candidate: Candidate) -> None:
        self.books.append(candidate.name)

    def release(self, candidate: Candidate, ok: bool) -> None:
        self.books.append((candidate.name, ok))


class Drops(Filter):
    """Those with these indices."""

    def __init__(self, those: set[int], *, strict: bool = True, asks: bool = True, name: str = "drops") -> None:
        self.those, self.strict, self.name = those, strict, name
        self._asks = asks
        self.asked: list[int] = []

    def asks(self, facts: Facts) -> bool:
        return self._asks

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        self.asked.append(candidate.index)
        return "is dropped" if candidate.index in self.those else ""


def told(decision: Decision) -> tuple[Any, ...]:
    return decision.order, list(decision.kept), decision.filtered, list(decision.by), list(decision.waived)


# Filtering


def test_what_a_filter_drops_is_asked_by_no_later_one_and_never_chosen() -> None:
    first, second = Drops({0, 2}, name="first"), Drops({3}, name="second")
    found = Scheduler(several(4), [first, second], []).decide(asked(), NOBODY)
    assert told(found) == ([1], [1], [(0, "is dropped"), (2, "is dropped"), (3, "is dropped")], ["first", "first", "second"], [])
    assert second.asked == [1, 3]


def test_a_filter_that_a_request_is_none_of_the_business_of_is_not_asked() -> None:
    sieve = Drops({0, 1}, asks=False)
    assert told(Scheduler(several(2), [sieve], []).decide(asked(), NOBODY)) == ([0, 1], [0, 1], [], [], [])
    assert sieve.asked == []


def test_a_strict_filter_may_leave_nobody_and_one_that_is_not_is_passed_over_then() -> None:
    strict = Scheduler(several(2), [Drops({0, 1})], []).decide(asked(), NOBODY)
    assert told(strict) == ([], [], [(0, "is dropped"), (1, "is dropped")], ["drops", "drops"], [])
    soft = Scheduler(several(2), [Drops({0, 1}, strict=False)], []).decide(asked(), NOBODY)
    assert told(soft) == ([0, 1], [0, 1], [], [], ["drops"])


def test_health_counts_for_more_than_a_wish_and_for_less_than_what_must_be() -> None:
    must, wish = Drops({2}, name="must"), Drops({1}, strict=False, name="wish")
    # Of 0 and 1, who can, 0 is unwell; that 1 is not wished for does not send the request to 0.
    found = Scheduler(several(3), [wish, must], []).decide(asked(), frozenset(("m0",)))
    assert told(found) == ([1], [1], [(2, "is dropped"), (0, "")], ["must", "health"], ["wish"])


def test_the_unwell_are_asked_when_nobody_else_is_left() -> None:
    found = Scheduler(several(3), [Drops({2})], []).decide(asked(), frozenset(("m0", "m1")))
    assert told(found) == ([0, 1], [0, 1], [(2, "is dropped")], ["drops"], [])


ROWS = st.lists(st.floats(0, 100), min_size=5, max_size=5)


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(ROWS, max_size=3),
    drops=st.lists(st.tuples(st.sets(st.integers(0, 4)), st.booleans()), max_size=3),
    out=st.sets(st.sampled_from(["m0", "m1", "m2", "m3", "m4"])),
    draw=st.floats(0, 1, exclude_max=True),
    explore=st.sampled_from([0.0, 0.2, 0.5]),
)
def test_the_order_is_those_who_are_kept_and_each_candidate_is_kept_or_filtered(
    rows: list[list[float]], drops: list[tuple[set[int], bool]], out: set[str], draw: float, explore: float
) -> None:
    sieves = [Drops(those, strict=strict) for those, strict in drops]
    found = Scheduler(several(5), sieves, [Weighed(Says(row), 1.0) for row in rows], explore).decide(asked(draw), frozenset(out))
    assert sorted(found.order) == list(found.kept)
    assert sorted([*found.kept, *(index for index, _ in found.filtered)]) == [0, 1, 2, 3, 4]
    assert len(found.by) == len(found.filtered)
    for those, strict in drops:
        if strict:
            assert not those & set(found.order)


# Totals and order


def test_totals_are_parts_by_their_share_of_the_weight_and_the_order_is_by_the_weight_of_the_route_too() -> None:
    one, other = Says([80.0, 40.0, 0.0], name="one"), Says([0.0, 100.0, 100.0], varies="never", name="other")
    found = Scheduler(several(3, [1.0, 1.0, 2.0]), [], [Weighed(one, 3.0), Weighed(other, 1.0)]).decide(asked(), NOBODY)
    assert found.totals == [60.0, 55.0, 25.0]
    assert found.order == [0, 1, 2]
    assert found.parts == [("other", 1.0, [0.0, 100.0, 100.0]), ("one", 3.0, [80.0, 40.0, 0.0])]
    heavier = Scheduler(several(3, [1.0, 1.0, 3.0]), [], [Weighed(one, 3.0), Weighed(other, 1.0)]).decide(asked(), NOBODY)
    assert heavier.order == [2, 0, 1]


@settings(max_examples=100, deadline=None)
@given(first=ROWS, second=ROWS, weight=st.floats(0.1, 10), more=st.floats(0.1, 10), draw=st.floats(0, 0.99))
def test_more_weight_for_a_score_never_moves_down_whom_it_prefers(
    first: list[float], second: list[float], weight: float, more: float, draw: float
) -> None:
    best = second.index(max(second))
    places = []
    for by in (weight, weight + more):
        scores = [Weighed(Says(first), 1.0), Weighed(Says(second), by)]
        found = Scheduler(several(5), [], scores).decide(asked(draw), NOBODY)
        # A place is who is truly above it: rounding and chance may order the alike either way.
        own = found.totals[best]
        places.append(sum(total > own + 1e-6 for total in found.totals))
    assert places[1] <= places[0]


@pytest.mark.parametrize(
    ("scale", "said", "expected"),
    [
        ("given", [0.0, 55.5, 100.0], [0.0, 55.5, 100.0]),
        ("given", [-5.0, 50.0, 1000.0], [0.0, 50.0, 100.0]),
        ("most", [10.0, 20.0, 30.0], [0.0, 50.0, 100.0]),
        ("most", [-7.0, -7.0, -7.0], [100.0, 100.0, 100.0]),
        ("least", [2.0, 4.0, 1.0], [50.0, 25.0, 100.0]),
        ("least", [0.0, 1.0, 0.0], [100.0, 1e-7, 100.0]),
        ("given", (1, 2, 3), [1, 2, 3]),
    ],
)
def test_what_is_said_is_made_0_to_100(scale: str, said: Sequence[float], expected: list[float]) -> None:
    assert normalised(said, scale) == pytest.approx(expected)


# What is kept


@given(
    rows=st.lists(
        st.tuples(
            st.lists(st.floats(0.0, 50.0), min_size=4, max_size=4),
            st.sampled_from(("never", "tick", "request")),
            st.sampled_from(("given", "least", "most")),
        ),
        min_size=1,
        max_size=4,
    ),
    gone=st.lists(st.sets(st.integers(0, 3), max_size=3), min_size=1, max_size=6),
)
@settings(max_examples=80, deadline=None)
def test_points_are_of_those_who_are_left(rows: list[tuple[list[float], Varies, str]], gone: list[set[int]]) -> None:
    """Whoever is left out is as if he were not there. A backend that was never asked costs nothing, and would make all others
    alike."""

    def scheduler(those: Sequence[int], sieve: Drops | None) -> Scheduler:
        scores = []
        for number, (row, varies, scale) in enumerate(rows):
            score = Says([row[index] for index in those], varies, f"s{number}")
            score.scale = scale  # type: ignore[assignment]
            scores.append(Weighed(score, number + 1.0))
        return Scheduler(several(len(those)), [sieve] if sieve else [], scores)

    sieve = Drops(set())
    whole = scheduler(range(4), sieve)
    for step, dropped in enumerate(gone):
        sieve.those = dropped
        facts = asked(0.0, step * TICK / 3.0)
        kept = [index for index in range(4) if index not in dropped]
        found = whole.decide(facts, NOBODY)
        alone = scheduler(kept, None).decide(facts, NOBODY)
        assert [found.totals[index] for index in kept] == alone.totals
        assert found.order == [kept[index] for index in alone.order]
        for (_, _, given_whole), (_, _, given_alone) in zip(found.parts, alone.parts, strict=True):
            assert [given_whole[index] for index in kept] == given_alone


def test_what_does_not_vary_by_request_is_asked_once_a_facet_and_what_varies_by_tick_once_a_tick() -> None:
    rows = {"": [1.0, 2.0], "legal": [3.0, 4.0]}
    never, tick, live = Says(rows, "never"), Says(rows, "tick"), Says(rows, "request")
    scheduler = Scheduler(several(2), [], [Weighed(one, 1.0) for one in (never, tick, live)])
    for number in range(10):
        scheduler.decide(asked(now=number * TICK / 10, domain=("", "legal")[number % 2]), NOBODY)
    assert (never.calls, tick.calls, live.calls) == (2, 2, 10)
    scheduler.decide(asked(now=TICK), NOBODY)
    assert (never.calls, tick.calls, live.calls) == (2, 3, 11)
    scheduler.decide(asked(now=0.0), NOBODY)  # a replay goes back in time
    assert (never.calls, tick.calls, live.calls) == (2, 4, 12)


def test_scores_with_facets_of_their_own_are_not_asked_for_every_combination() -> None:
    class ByKey(Says):
        def facet(self, facts: Facts) -> Hashable:
            return facts.key

        def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
            self.calls += 1
            return [float(len(facts.key)), 0.0]

    by_domain, by_key = Says({"a": [1.0, 2.0], "b": [2.0, 1.0]}, "never"), ByKey([], "never")
    scheduler = Scheduler(several(2), [], [Weighed(by_domain, 1.0), Weighed(by_key, 1.0)])
    found = {}
    for domain in "ab":
        for key in ("x", "yy", "zzz"):
            facts = asked(domain=domain)
            facts.key = key
            found[domain, key] = scheduler.decide(facts, NOBODY).totals
    assert (by_domain.calls, by_key.calls) == (2, 3)
    assert found["b", "zzz"] == [2.5, 0.5]


def test_no_more_facets_are_kept_than_there_is_a_limit_to() -> None:
    class Endless(Says):
        def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
            return [float(len(facts.domain)), 0.0]

    scheduler = Scheduler(several(2), [], [Weighed(Endless([], "never"), 1.0)])
    for number in range(3 * MOST_FACETS):
        domain = "x" * (number % 50) + str(number)
        assert scheduler.decide(asked(domain=domain), NOBODY).totals == [len(domain), 0.0]
    kept = (scheduler._sums, scheduler._fixed, scheduler._never[0].said)
    assert max(map(len, kept)) <= MOST_FACETS


USES = [
    ("domain", {}),
    ("complexity", {}),
    ("zone", {"region": "eu", "zone": "z1"}),
    ("cost", {}),
    ("latency", {}),
    ("load", {}),
    ("latency-promise", {}),
    ("colour", {"colours": {"canary": {"gpu": "h100"}}}),
]


@settings(max_examples=30, deadline=None)
@given(seeds=st.lists(st.integers(0, 500), min_size=1, max_size=20))
def test_what_is_kept_is_what_would_be_computed_anew(seeds: list[int]) -> None:
    candidates = candidates_of(6)
    scores = [SCORES[name](made_for(candidates, use)) for name, use in USES]
    scheduler = Scheduler(candidates, [], [Weighed(one, 1.0) for one in scores])
    for seed in seeds:
        facts = facts_of(seed)
        found = scheduler.decide(facts, NOBODY)
        anew = {one.name: list(scaled(one, facts, candidates)) for one in scores}
        assert {name: list(given) for name, _, given in found.parts} == anew
        sums = [sum(given[index] for given in anew.values()) / len(USES) for index in range(6)]
        assert found.totals == pytest.approx(sums)


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(st.tuples(ROWS, st.sampled_from(["never", "tick", "request"]), st.floats(0.1, 9)), min_size=1, max_size=7))
def test_sums_are_the_same_to_the_last_bit_whatever_of_them_was_kept(rows: list[tuple[list[float], Varies, float]]) -> None:
    candidates = several(5)
    mixed = Scheduler(candidates, [], [Weighed(Says(row, varies), weight) for row, varies, weight in rows])
    given = iter([list(given) for _, _, given in mixed.decide(asked(), NOBODY).parts])
    live = mixed.recalled(lambda one: one, lambda one: Says(next(given), "request"))
    for now in (0.0, 0.1, 0.3):
        assert live.decide(asked(now=now), NOBODY).totals == mixed.decide(asked(now=now), NOBODY).totals


# Chance


def counted(scheduler: Scheduler, draws: int = 20_000, seed: int = 7) -> tuple[Counter[int], int]:
    """How often each was first, and how often that was drawn."""
    dice, first, explored = random.Random(seed), Counter[int](), 0
    for _ in range(draws):
        found = scheduler.decide(asked(dice.random()), NOBODY)
        first[found.order[0]] += 1
        explored += found.explored
    return first, explored


@pytest.mark.parametrize("row", [[1.0] * 4, [5.0, 5.0, 1.0, 1.0], [5.0, 1.0, 5.0, 5.0], [1.0, 5.0, 1.0, 5.0]])
def test_the_alike_are_chosen_alike_wherever_they_stand(row: list[float]) -> None:
    first, _ = counted(Scheduler(several(4), [], [Weighed(Says(row, "never"), 1.0)]))
    best = [index for index in range(4) if row[index] == max(row)]
    assert sorted(first) == best
    assert all(first[index] == pytest.approx(20_000 / len(best), rel=0.06) for index in best)


@pytest.mark.parametrize("row", [[9.0, 5.0, 1.0, 1.0], [5.0, 5.0, 1.0, 1.0]], ids=["one best", "two best"])
@pytest.mark.parametrize("explore", [0.0, 0.1, 0.5])
def test_the_chances_that_are_told_are_those_that_are_had(row: list[float], explore: float) -> None:
    scheduler = Scheduler(several(4), [], [Weighed(Says(row, "never"), 1.0)], explore)
    chances = scheduler.chances(scheduler.decide(asked(0.9), NOBODY))
    first, explored = counted(scheduler)
    assert [first[index] / 20_000 for index in range(4)] == pytest.approx(chances, abs=0.012)
    assert explored / 20_000 == pytest.approx(explore, abs=0.012)
    assert sum(chances) == pytest.approx(1.0)
    if row[0] > row[1]:
        assert chances == pytest.approx(propensities(4, 0, explore))


def test_chances_are_of_those_who_are_left_and_go_by_the_weight_of_the_route() -> None:
    scheduler = Scheduler(several(3, [1.0, 3.0, 1.0]), [Drops({0})], [Weighed(Says([9.0, 4.0, 9.0], "never"), 1.0)], 0.2)
    found = scheduler.decide(asked(0.99), NOBODY)
    assert (list(found.kept), scheduler.chances(found)) == ([1, 2], pytest.approx([0.9, 0.1]))
    nobody = Scheduler(several(1), [Drops({0})], [])
    assert nobody.chances(nobody.decide(asked(), NOBODY)) == []


def test_the_same_draw_makes_the_same_choice_again() -> None:
    candidates = several(5)
    schedulers = [Scheduler(candidates, [], [Weighed(Says([2.0, 2.0, 1.0, 2.0, 0.0]), 1.0)], 0.3) for _ in range(2)]
    for number in range(200):
        one, other = (scheduler.decide(asked(number / 200), NOBODY) for scheduler in schedulers)
        assert (one.order, one.explored) == (other.order, other.explored)


# Books


def test_only_scores_that_keep_books_are_told_of_requests_one_release_for_each_reserve() -> None:
    class Plain(Score):
        name = "plain"

        def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
            return [1.0] * len(candidates)

    candidates, books = several(2), Says([1.0, 2.0])
    scheduler = Scheduler(candidates, [], [Weighed(Plain(), 1.0), Weighed(books, 1.0)])
    scheduler.reserve(asked(), candidates[1])
    scheduler.release(candidates[1], False)
    assert books.books == ["m1", ("m1", False)]
    assert [one.name for one in scheduler.scores] == ["plain", "says"]


# Building


def route(filters: Sequence[FilterUse] = (), scores: Sequence[ScoreUse] = (), explore: float = 0.0) -> RouteSpec:
    return RouteSpec(backends=[Backend(model="m0")], filters=list(filters), scores=list(scores), explore=explore)


SNAPSHOT = SimpleNamespace(domains={})


def test_what_a_backend_cannot_do_is_left_out_of_every_route() -> None:
    candidates = candidates_of(4)
    facts = facts_of(1)
    facts.needs, facts.tokens, facts.wanted_output, facts.adapter = frozenset(("chat", "tools")), 9000, 0, ""
    found = build("r", route(), candidates, SNAPSHOT).decide(facts, NOBODY)
    full = "has room for 8192 tokens, not for 9000"
    assert told(found) == (
        [],
        [],
        [(0, "cannot do tools"), (2, "cannot do tools"), (1, full), (3, full)],
        ["capability", "capability", "context", "context"],
        [],
    )


def test_filters_scores_weights_and_exploring_come_from_the_route() -> None:
    candidates = candidates_of(8)
    spec = route(
        [FilterUse(name="label", settings={"required": {"gpu": "h100"}})],
        [ScoreUse(name="load", weight=2.0), ScoreUse(name="cost")],
        0.5,
    )
    facts = facts_of(1)
    facts.needs, facts.tokens, facts.wanted_output, facts.adapter, facts.draw = frozenset(("chat",)), 0, 0, "", 0.1
    found = build("r", spec, candidates, SNAPSHOT).decide(facts, NOBODY)
    assert list(found.kept) == [1, 3, 5, 7]
    assert set(found.by) == {"label"}
    assert sorted((name, weight) for name, weight, _ in found.parts) == [("cost", 1.0), ("load", 2.0)]
    assert found.explored


def test_plugins_are_found_beside_what_comes_with_sits() -> None:
    def mine(made: Made) -> Score:
        assert (made.route, made.settings) == ("r", {"a": 1})
        return Says([1.0] * len(made.candidates), "never", "mine")

    spec = route([FilterUse(name="mine")], [ScoreUse(name="mine", settings={"a": 1})])
    scheduler = build(
        "r", spec, several(3), SNAPSHOT, filters={"mine": lambda made: Drops({1}, name="mine")}, scores={**SCORES, "mine": mine}
    )
    assert told(scheduler.decide(asked(), NOBODY))[1:4] == ([0, 2], [(1, "is dropped")], ["mine"])


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (route(scores=[ScoreUse(name="prefix-afinity")]), 'there is no score "prefix-afinity"; did you mean "prefix-affinity"?'),
        (route([FilterUse(name="zon")]), 'there is no filter "zon"; did you mean "zone"?'),
        (
            route(scores=[ScoreUse(name="zone", settings={"regoin": "eu"})]),
            'score zone: there is no setting "regoin"; did you mean "region"?',
        ),
        (route([FilterUse(name="context", settings={"x": 1})]), 'filter context: there is no setting "x"; it has none'),
        (
            route([FilterUse(name="cost")]),
            "filter cost: mostPerMillion: missing; give a figure of at least 0 and of at most 1000000",
        ),
    ],
)
def test_what_is_not_known_is_refused_with_what_was_meant(spec: RouteSpec, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        build("r", spec, several(2), SNAPSHOT)
    assert str(caught.value) == said


def test_what_scores_have_learned_goes_on_under_a_new_configuration() -> None:
    candidates = several(3)
    spec = route(scores=[ScoreUse(name="prefix-affinity")])
    old = build("r", spec, candidates, SNAPSHOT)
    facts = asked()
    facts.body = b"z" * 600
    old.reserve(facts, candidates[2])
    new = build(
        "r",
        route(scores=[ScoreUse(name="prefix-affinity"), ScoreUse(name="random", weight=0.01)]),
        candidates,
        SNAPSHOT,
        before=old,
    )
    facts.beginnings = None
    assert new.decide(facts, NOBODY).order[0] == 2
