"""Whatever a plugin does, a decision is made as if it were not there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.routing.plugins.fence import Fence
from sits.routing.plugins.fenced import LOST, FencedScore
from sits.routing.plugins.limits import Footprint, Limits
from sits.routing.plugins.making import fenced_filter, fenced_score
from sits.routing.scheduling.base import Candidate, Facts, Filter, Made, Score
from sits.routing.scheduling.builtin import SCORES
from sits.routing.scheduling.checks import candidates_of, facts_of, made_for
from sits.routing.scheduling.scheduler import Scheduler, Weighed


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fence(kind="score", limits=None):
    return Fence(kind, "mine", Clock(), limits)


class Says(Score):
    """Says what it is told to."""

    name = "mine"

    def __init__(self, made: Made) -> None:
        self.said = made.settings.get("said")
        self.scale = made.settings.get("scale", "given")

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        return self.said() if callable(self.said) else self.said


class Keeps(Filter):
    name = "mine"

    def __init__(self, made: Made) -> None:
        self.asked = made.settings.get("asked", True)
        self.said = made.settings.get("said", "")

    def asks(self, facts: Facts) -> bool:
        return self.asked

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        return self.said() if callable(self.said) else self.said


class Fourths(float):
    """As numpy's are, a float of its own kind."""


async def coroutine():
    return []


def scored(said, scale="given", size=3):
    around = fence()
    made = made_for(candidates_of(size), {"said": said, "scale": scale})
    given = fenced_score(Says, made, around).score(facts_of(0), made.candidates)
    return given, around


@pytest.mark.parametrize(
    ("said", "scale", "gives"),
    [
        pytest.param([1.0, 2.0, 3.0], "given", [1.0, 2.0, 3.0], id="numbers"),
        pytest.param((1, 2, 3), "given", [1.0, 2.0, 3.0], id="a tuple of whole numbers"),
        pytest.param([Fourths(1), Fraction(2), 3], "given", [1.0, 2.0, 3.0], id="numbers of other kinds"),
        pytest.param(range(3), "given", [0.0, 1.0, 2.0], id="a range"),
        pytest.param([5.0, 10.0, 15.0], "most", [0.0, 50.0, 100.0], id="the most is best"),
        pytest.param([5.0, 10.0, 20.0], "least", [100.0, 50.0, 25.0], id="the least is best"),
        pytest.param([1e308, 1e308, 1e308], "most", [100.0, 100.0, 100.0], id="finite, and its sum is not"),
    ],
)
def test_what_makes_sense_counts(said, scale, gives):
    given, around = scored(said, scale)
    assert (given, around.calls, sum(around.counts.values())) == (gives, 1, 0)
    assert all(type(one) is float for one in given)


@pytest.mark.parametrize("varies", ["never", "tick", "request"])
def test_points_are_of_those_whom_filters_have_left(varies):
    class Varies(Says):
        pass

    Varies.varies = varies
    made = made_for(candidates_of(3), {"said": [0.0, 2.0, 4.0], "scale": "least"})
    gone = []

    class Gone(Keeps):
        def keep(self, facts, candidate):
            return "is gone" if candidate.index in gone else ""

    scheduler = Scheduler(made.candidates, [Gone(made)], [Weighed(fenced_score(Varies, made, fence()), 1.0)])
    for those, totals in (
        ([], [100.0, 0.0, 0.0]),
        ([0], [0.0, 100.0, 50.0]),
        ([0, 1], [0.0, 0.0, 100.0]),
        ([], [100.0, 0.0, 0.0]),
    ):
        gone[:] = those
        assert scheduler.decide(facts_of(0), frozenset()).totals == pytest.approx(totals, abs=1e-6)


@pytest.mark.parametrize(
    ("said", "scale", "why"),
    [
        pytest.param(None, "given", "gave None instead of a list of 3 numbers", id="nothing"),
        pytest.param("abc", "given", "gave a str instead of a list of 3 numbers", id="a text"),
        pytest.param({0: 1.0, 1: 1.0, 2: 1.0}, "given", "gave a dict instead of a list of 3 numbers", id="a mapping"),
        pytest.param(7.0, "given", "gave a float instead of a list of 3 numbers", id="a number"),
        pytest.param(iter([1.0, 2.0, 3.0]), "given", "gave a list_iterator instead of a list of 3 numbers", id="an iterator"),
        pytest.param([], "given", "gave 0 numbers for 3 candidates", id="none"),
        pytest.param([1.0, 2.0], "given", "gave 2 numbers for 3 candidates", id="too few"),
        pytest.param([1.0] * 4, "given", "gave 4 numbers for 3 candidates", id="too many"),
        pytest.param(range(10**12), "given", "gave a range instead of a list of 3 numbers", id="far too many"),
        pytest.param([1.0, None, 2.0], "given", "gave None instead of a number", id="none of a number"),
        pytest.param(["1", "2", "3"], "given", "gave a str instead of a number", id="texts of numbers"),
        pytest.param([1.0, 1j, 2.0], "given", "gave a complex instead of a number", id="a complex number"),
        pytest.param([1.0, math.nan, 2.0], "given", "gave a number that is not finite, or too large", id="NaN"),
        pytest.param([1.0, math.inf, 2.0], "most", "gave a number that is not finite, or too large", id="infinity"),
        pytest.param([1.0, math.inf, -math.inf], "given", "gave a number that is not finite, or too large", id="both"),
        pytest.param([1, 10**400, 2], "given", "gave a number that is not finite, or too large", id="no float holds it"),
        pytest.param([1e308, -1e308, 0.0], "most", "gave a number that is not finite, or too large", id="no scale holds it"),
        pytest.param(coroutine, "given", "gave a coroutine instead of a list of 3 numbers", id="a coroutine"),
    ],
)
def test_nonsense_says_nothing_and_is_a_trouble(said, scale, why):
    given, around = scored(said, scale)
    assert given == [0.0, 0.0, 0.0]
    assert (around.why, {kind: count for kind, count in around.counts.items() if count}) == (why, {"nonsense": 1})


def test_a_plugin_may_keep_its_list_and_change_it():
    kept = [1.0, 2.0, 3.0]
    given, _ = scored(kept)
    kept.clear()
    assert given == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("asked", "said", "why"),
    [
        pytest.param(None, "", "asks gave None instead of True or False", id="asks gives nothing"),
        pytest.param(coroutine, "", "asks gave a function instead of True or False", id="asks gives a function"),
        pytest.param(True, None, "keep gave None instead of a text", id="keep gives nothing"),
        pytest.param(True, True, "keep gave a bool instead of a text", id="keep gives a verdict"),
        pytest.param(True, b"no", "keep gave a bytes instead of a text", id="keep gives bytes"),
        pytest.param(True, coroutine, "keep gave a coroutine instead of a text", id="keep gives a coroutine"),
    ],
)
def test_nonsense_of_a_filter_leaves_out_nobody(asked, said, why):
    around = fence("filter")
    mine = fenced_filter(Keeps, made_for(candidates_of(3), {"asked": asked, "said": said}), around)
    assert not mine.asks(facts_of(0))
    assert (around.why, around.counts["nonsense"]) == (why, 1)


def test_a_filter_counts_for_all_candidates_or_for_none():
    class HalfWay(Filter):
        name = "mine"

        def __init__(self, made: Made) -> None:
            pass

        def keep(self, facts: Facts, candidate: Candidate) -> str:
            if candidate.index == 2:
                raise LookupError("no such thing")
            return "is not liked"

    made = made_for(candidates_of(3), {})
    around = fence("filter")
    decision = Scheduler(made.candidates, [fenced_filter(HalfWay, made, around)], []).decide(facts_of(0), frozenset())
    assert decision.filtered == []
    assert around.why.startswith("raised LookupError: no such thing (test_fenced.py, line ")


def test_a_filter_that_makes_sense_is_obeyed():
    made = made_for(candidates_of(3), {"said": "costs too much" + "!" * 500})
    mine = fenced_filter(Keeps, made, fence("filter"))
    assert mine.asks(facts_of(0))
    assert mine.keep(facts_of(0), made.candidates[1]) == "costs too much" + "!" * 186


class Meddles(Score):
    name = "mine"

    def __init__(self, made: Made) -> None:
        self.how = made.settings["how"]

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        self.how(facts, candidates)
        return [50.0] * len(candidates)


def _set(one, name, value):
    setattr(one, name, value)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        pytest.param(lambda f, c: _set(c[1], "weight", 0.0), "changed `weight` of candidate 模型-1", id="a weight"),
        pytest.param(lambda f, c: _set(c[0], "name", "x"), "changed `name` of candidate 模型-0", id="a name"),
        pytest.param(
            lambda f, c: _set(c[1].state, "outstanding", 99), "changed `state.outstanding` of candidate 模型-1", id="a state"
        ),
        pytest.param(lambda f, c: c[1].labels.clear(), "changed `labels` of candidate 模型-1", id="labels"),
        pytest.param(lambda f, c: _set(f, "draw", 0.5), "changed `draw` of the request", id="the random number"),
        pytest.param(lambda f, c: f.headers.clear(), "changed `headers` of the request", id="headers"),
    ],
)
def test_what_a_plugin_changes_is_put_back(how, why):
    candidates, facts, around = candidates_of(3), facts_of(1), fence()
    mine = fenced_score(Meddles, made_for(candidates, {"how": how}), around)
    given = mine.score(facts, candidates)
    assert (list(given), around.why, around.counts["meddled"]) == ([0.0, 0.0, 0.0], why, 1)
    assert [(one.name, one.weight, dict(one.labels), one.state.outstanding) for one in candidates] == [
        (one.name, one.weight, dict(one.labels), one.state.outstanding) for one in candidates_of(3)
    ]
    assert (facts.draw, facts.headers) == (facts_of(1).draw, facts_of(1).headers)


def test_candidates_cannot_be_taken_out_of_the_list():
    around = fence()
    candidates = candidates_of(3)
    mine = fenced_score(Meddles, made_for(candidates, {"how": lambda f, c: c.clear()}), around)
    assert mine.score(facts_of(0), candidates) == [0.0, 0.0, 0.0]
    assert len(candidates) == 3
    assert around.counts["raised"] == 1


class Holds(Score):
    """Counts who is being asked, and can be told to fail."""

    name = "mine"
    varies = "tick"

    def __init__(self, made: Made) -> None:
        self.held = [0] * len(made.candidates)
        self.broken = False
        self.facets = ""

    def facet(self, facts: Facts):
        return [] if self.facets == "list" else facts.domain

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        if self.broken:
            raise RuntimeError("broken")
        return [float(one) for one in self.held]

    def reserve(self, facts: Facts, candidate: Candidate) -> None:
        self.held[candidate.index] += 1

    def release(self, candidate: Candidate, ok: bool) -> None:
        self.held[candidate.index] -= 1


def holding():
    around = fence()
    candidates = candidates_of(2)
    mine = fenced_score(Holds, made_for(candidates, {}), around)
    assert isinstance(mine.plugin, Holds)
    return mine, mine.plugin, candidates, around


def test_each_release_finds_its_reserve_even_if_it_was_fenced_off_between():
    mine, plugin, candidates, around = holding()
    facts = facts_of(0)
    mine.reserve(facts, candidates[0])
    mine.reserve(facts, candidates[1])
    plugin.broken = True
    for _ in range(3):
        mine.facet(facts)
        mine.score(facts, candidates)
    assert around.out
    mine.release(candidates[0], True)
    mine.reserve(facts, candidates[1])
    assert plugin.held == [1, 1]
    plugin.broken = False
    around.clock.now += 5.0
    mine.facet(facts)
    assert list(mine.score(facts, candidates)) == [0.0, 1.0]
    mine.release(candidates[1], True)
    mine.release(candidates[1], True)  # of the reserve that it was never told of
    assert plugin.held == [0, 0]


def test_good_facets_do_not_make_up_for_a_score_that_fails():
    mine, plugin, candidates, around = holding()
    plugin.broken = True
    calls = 0
    while not around.out:
        for _ in range(500):
            mine.facet(facts_of(0))
        mine.score(facts_of(0), candidates)
        calls += 1
    assert calls == 3


def test_a_facet_that_cannot_be_kept_is_nonsense_and_the_score_says_nothing():
    mine, plugin, candidates, around = holding()
    plugin.facets = "list"
    assert mine.facet(facts_of(0)) == LOST
    assert mine.score(facts_of(0), candidates) == [0.0, 0.0]
    assert around.why == "gave a list as a facet: text, a number, None or a tuple of those is one"
    plugin.facets = ""
    assert mine.facet(facts_of(0)) == facts_of(0).domain


def test_only_what_a_plugin_has_of_its_own_is_called():
    made = made_for(candidates_of(2), {"said": [1.0, 2.0]})
    plain = fenced_score(Says, made, fence())
    assert type(plain) is FencedScore
    assert type(plain).facet is Score.facet
    assert type(plain).reserve is Score.reserve


def test_what_never_varies_is_asked_again_as_it_may_have_been_in_trouble():
    class Never(Says):
        varies = "never"

    made = made_for(candidates_of(2), {"said": [1.0, 2.0]})
    assert (fenced_score(Never, made, fence()).varies, fenced_score(Says, made, fence()).varies) == ("tick", "request")


def test_a_score_that_never_varies_counts_again_once_it_is_back():
    class Never(Holds):
        varies = "never"

        def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
            return [] if self.broken else [0.0, 100.0]

    candidates, around = candidates_of(2), fence()
    mine = fenced_score(Never, made_for(candidates, {}), around)
    assert isinstance(mine.plugin, Never)
    scheduler, facts, totals = Scheduler(candidates, [], [Weighed(mine, 1.0)]), facts_of(0), []
    for now, broken in ((30.0, False), (30.3, True), (30.6, True), (30.9, True), (31.2, False), (35.9, False)):
        facts.now, around.clock.now, mine.plugin.broken = now, now, broken
        totals.append(list(scheduler.decide(facts, frozenset()).totals))
    assert totals == [[0.0, 100.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 100.0]]
    assert (around.out, around.counts["nonsense"]) == (False, 3)


@pytest.mark.parametrize(
    ("error", "unmade"),
    [
        pytest.param(RuntimeError("no"), "cannot be made: raised RuntimeError: no (test_fenced.py, line ", id="an error"),
        pytest.param(SystemExit(1), "cannot be made: raised SystemExit: 1 (test_fenced.py, line ", id="an exit"),
    ],
)
def test_one_that_cannot_be_made_says_nothing(error, unmade):
    def make(made):
        raise error

    around = fence()
    made = made_for(candidates_of(2), {})
    mine = fenced_score(make, made, around)
    assert list(mine.score(facts_of(0), made.candidates)) == [0.0, 0.0]
    assert around.unmade["route"].startswith(unmade)
    assert mine.silent == around.unmade["route"]
    assert not fenced_filter(make, made, fence("filter")).asks(facts_of(0))


def test_one_that_cannot_be_made_for_a_route_is_not_hidden_by_another_route():
    def make(made):
        if made.route == "bad":
            raise RuntimeError("no")
        return Says(made)

    around, candidates = fence(), candidates_of(2)
    bad = fenced_score(make, Made("bad", candidates, {}, None), around)
    good = fenced_score(make, Made("good", candidates, {}, None), around)
    assert (list(around.unmade), bad.silent != "", good.silent) == (["bad"], True, "")


def test_one_that_takes_no_part_says_why():
    around = fence(limits=Limits(troubles=1))
    made = made_for(candidates_of(2), {"said": None})
    mine, sieve = fenced_score(Says, made, around), fenced_filter(Keeps, made, around)
    assert (mine.silent, sieve.silent) == ("", "")
    mine.score(facts_of(0), made.candidates)
    assert mine.silent == sieve.silent == "is fenced off: gave None instead of a list of 2 numbers"


class Busy(Footprint):
    """A machine on which each look finds so many more seconds used, and processors taken away."""

    def __init__(self, used: float, taken: int) -> None:
        self.used, self.taken, self.looks = used, taken, 0

    def turns(self) -> tuple[float, int]:
        self.looks += 1
        return self.looks * self.used, self.looks * self.taken


@pytest.mark.parametrize(
    ("seconds", "used", "taken", "troubles"),
    [
        pytest.param(0.03, 0.0, 0, 3, id="it waits"),
        pytest.param(0.03, 0.03, 2, 3, id="it computes"),
        pytest.param(0.03, 0.001, 1, 0, id="others have the processor"),
        pytest.param(0.004, 0.004, 0, 0, id="it is quick"),
    ],
)
def test_a_smaller_call_that_took_long_is_looked_at_the_next_time(seconds, used, taken, troubles):
    clock = Clock()

    class Holding(Says):
        def reserve(self, facts: Facts, candidate: Candidate) -> None:
            clock.now += seconds

    candidates = candidates_of(2)
    around = Fence("score", "mine", clock, Limits(troubles=10), footprint=Busy(used, taken))
    mine = fenced_score(Holding, made_for(candidates, {"said": [1.0, 2.0]}), around)
    for _ in range(4):
        mine.reserve(facts_of(0), candidates[0])
    assert around.counts["slow"] == troubles


class Elsewhere(Footprint):
    """Another thread opens a file while each call is made, and has it open for so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks, self.left = looks, 0

    def others(self) -> tuple[int, int, int]:
        self.left -= 1
        return 1, 10 + (self.left >= 0), 0


@pytest.mark.parametrize(("looks", "leaked"), [(2, 0), (1000, 1)], ids=["for a moment", "for good"])
def test_what_another_thread_has_open_for_a_moment_is_not_left_behind(looks, leaked):
    elsewhere = Elsewhere(looks)

    class Opens(Says):
        def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
            elsewhere.left = looks
            return super().score(facts, candidates)

    candidates = candidates_of(2)
    around = Fence("score", "mine", Clock(), Limits(), footprint=elsewhere)
    mine = fenced_score(Opens, made_for(candidates, {"said": [1.0, 2.0]}), around)
    mine.score(facts_of(0), candidates)
    assert around.counts["leaked"] == leaked


def test_settings_that_cannot_be_used_are_told_to_whoever_wrote_them():
    def make(made):
        raise ValueError("there is no setting \x1bx")

    with pytest.raises(ValueError, match=r"^there is no setting �x$"):
        fenced_score(make, made_for(candidates_of(2), {}), fence())


def test_a_plugin_finds_what_was_before_without_its_fence():
    made = made_for(candidates_of(2), {"said": [1.0, 2.0]})
    old = fenced_score(Says, made, fence())
    seen = []

    class Next(Says):
        def __init__(self, made: Made) -> None:
            super().__init__(made)
            seen.extend(made.before)

    fenced_score(Next, Made("r", made.candidates, {}, None, before=[old]), fence())
    assert seen == [old.plugin]


BAD = st.sampled_from([None, "x", [], [1.0], [math.nan] * 8, ["a"] * 8, lambda: 1 / 0, coroutine])


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    weight=st.sampled_from([0.5, 1.0, 4.0, 1000.0]),
    scale=st.sampled_from(["given", "most", "least"]),
    varies=st.sampled_from(["never", "tick", "request"]),
    bad=BAD,
    out=st.booleans(),
)
def test_the_order_is_that_without_the_plugin(seed, weight, scale, varies, bad, out):
    class Mine(Says):
        pass

    Mine.varies = varies
    candidates = candidates_of(8)
    made = made_for(candidates, {})
    around = fence(limits=Limits(troubles=1 if out else 10))
    mine = fenced_score(Mine, made_for(candidates, {"said": bad, "scale": scale}), around)
    others = [Weighed(SCORES[name](made), share) for name, share in (("load", 2.0), ("domain", 1.0), ("cost", 1.0))]
    without, beside = Scheduler(candidates, [], others), Scheduler(candidates, [], [*others, Weighed(mine, weight)])
    for step in range(3):
        facts = facts_of(seed + step)
        left, right = without.decide(facts, frozenset()), beside.decide(facts, frozenset())
        assert right.order == left.order
        assert right.kept == left.kept
    assert around.out is out
