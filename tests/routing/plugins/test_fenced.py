"""Whatever a plugin does, a decision is made as if it were not there."""

from __future__ import annotations

import contextlib
import math
import types
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.routing.plugins.closely import no_score, no_sift
from sits.routing.plugins.fence import Fence
from sits.routing.plugins.fenced import LOST, FencedScore
from sits.routing.plugins.limits import Alarm, Cut, Footprint, Limits
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
        pytest.param(["gpu", "cpu"], "", "asks gave a list instead of True or False", id="asks gives what it found"),
        pytest.param(["", "", ""], "", "asks gave a list instead of True or False", id="asks gives what verdicts look like"),
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


@pytest.mark.parametrize(
    ("said", "told"),
    [
        pytest.param("不行", "不行", id="Chinese"),
        pytest.param("wants \udcff and \ud800", "wants � and �", id="what no text can be sent with"),
        pytest.param("\x1b[2J", "�[2J", id="what a terminal would obey"),
    ],
)
def test_a_reason_is_one_that_can_be_sent(said, told):
    made = made_for(candidates_of(2), {"said": said})
    mine = fenced_filter(Keeps, made, fence("filter"))
    assert mine.asks(facts_of(0))
    assert [mine.keep(facts_of(0), one) for one in made.candidates] == [told, told]


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


# What a plugin gives may have code of its own wherever it is looked at.


class Proxy:
    """Stands for something that is not there."""

    @property
    def __class__(self):
        raise RuntimeError("working outside of a context")


class Untraced(Exception):
    __traceback__ = property(lambda self: 1 / 0)


class Unclassed(Exception):
    __class__ = property(lambda self: 1 / 0)  # type: ignore[assignment]


class Sums:
    """Adds up to a number, and is none."""

    def __radd__(self, other):
        return 1.0


class Unlike:
    __hash__ = object.__hash__

    def __eq__(self, other):
        raise ValueError("not to be compared")


class Secretive(type):
    __name__ = property(lambda cls: 1 / 0)

    def __hash__(cls):
        raise RuntimeError("no")


class Secret(metaclass=Secretive):
    pass


@types.coroutine
def awaited():
    yield


def begun():
    """A coroutine that has begun and does not want to end."""

    async def stays():
        try:
            await awaited()
        except GeneratorExit:
            await awaited()

    made = stays()
    made.send(None)
    held.append(made)  # what nobody holds ends anyway, and says so on stderr
    return made


held: list[object] = []


def _raise(error):
    raise error


def _meddle(facts, **more):
    for name, value in more.items():
        with contextlib.suppress(TypeError):  # compiled ones take nothing of another kind
            setattr(facts, name, value)


FINE = [1.0, 2.0, 3.0]
ODDITIES = [
    pytest.param(lambda f: Proxy(), "nonsense", "gave a Proxy instead of a list of 3 numbers", id="a proxy"),
    pytest.param(lambda f: [1.0, Proxy(), 1.0], "nonsense", "gave a Proxy instead of a number", id="a proxy in a list"),
    pytest.param(lambda f: Secret(), "nonsense", "gave a Secret instead of a list of 3 numbers", id="a class without a name"),
    pytest.param(lambda f: [0.5, Sums(), 0.5], "nonsense", "gave a Sums instead of a number", id="what adds up to a number"),
    pytest.param(lambda f: begun(), "nonsense", "gave a coroutine instead of a list of 3 numbers", id="a begun coroutine"),
    pytest.param(lambda f: type("a\n\x1b", (), {})(), "nonsense", "gave a a�� instead of a list of 3 numbers", id="an odd name"),
    pytest.param(
        lambda f: _raise(Untraced("x")), "raised", "raised Untraced: x (test_fenced.py, line ", id="an error without a trace"
    ),
    pytest.param(
        lambda f: _raise(Unclassed("x")), "raised", "raised Unclassed: x (test_fenced.py, line ", id="an error without a class"
    ),
    pytest.param(
        lambda f: f.headers.update({b"x": Unlike()}) or FINE, "meddled", "changed `headers` of the req", id="an odd header"
    ),
    pytest.param(
        lambda f: _meddle(f, needs=frozenset((Unlike(),))) or FINE, "meddled", "changed `needs` of the req", id="odd needs"
    ),
]


@pytest.mark.parametrize("sampled", [True, False], ids=["sampled", "not sampled"])
@pytest.mark.parametrize(("odd", "kind", "why"), ODDITIES)
def test_whatever_it_gives_a_decision_is_made(odd, kind, why, sampled):
    class Odd(Says):
        def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
            calls.append(0)
            return odd(facts) if len(calls) > (0 if sampled else 5) else FINE

    calls: list[int] = []
    candidates, around = candidates_of(3), fence(limits=Limits(troubles=1))
    scheduler = Scheduler(candidates, [], [Weighed(fenced_score(Odd, made_for(candidates, {}), around), 1.0)])
    orders = [scheduler.decide(facts_of(0), frozenset()).order for _ in range(300)]
    assert all(sorted(one) == [0, 1, 2] for one in orders)
    assert (around.out, around.counts[kind], around.why[: len(why)]) == (True, 1, why)
    for one in held:
        with contextlib.suppress(RuntimeError):
            one.close()
    held.clear()


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"draw": math.nan}, id="no number is drawn"),
        pytest.param({"now": "noon", "wall": None}, id="no time"),
        pytest.param({"kept": [99]}, id="others are kept"),
    ],
)
def test_what_a_decision_goes_by_is_put_back_after_each_call(more):
    class Meddling(Says):
        varies = "tick"

        def facet(self, facts: Facts):
            _meddle(facts, **more)
            return facts.domain

        def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
            _meddle(facts, **more)
            raise RuntimeError("and said nothing")

        def reserve(self, facts: Facts, candidate: Candidate) -> None:
            _meddle(facts, **more)

    class Third(Keeps):
        def asks(self, facts: Facts) -> bool:
            _meddle(facts, **more)
            return True

        def keep(self, facts: Facts, candidate: Candidate) -> str:
            return "is the third" if candidate.index == 2 else ""

    candidates, around, sieve = candidates_of(3), fence(limits=Limits(troubles=9)), fence("filter")
    made, facts = made_for(candidates, {}), facts_of(1)
    scheduler = Scheduler(candidates, [fenced_filter(Third, made, sieve)], [Weighed(fenced_score(Meddling, made, around), 1.0)])
    for now in range(4):
        around.due = sieve.due = 1000  # none is sampled
        facts.now = 10.0 + now
        before = facts.draw, facts.now, facts.wall
        decision = scheduler.decide(facts, frozenset())
        assert sorted(decision.order) == decision.kept == facts.kept == [0, 1]
        scheduler.reserve(facts, candidates[0])
        assert (facts.draw, facts.now, facts.wall) == before
    assert (around.counts["raised"], around.counts["meddled"]) == (4, 0)


def test_those_who_are_left_cannot_be_taken_out_of_a_decision():
    class Clears(Says):
        varies = "tick"

        def facet(self, facts: Facts):
            return self.reserve(facts, None)

        def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
            self.reserve(facts, candidates[0])
            return [1.0, 2.0, 3.0]

        def reserve(self, facts: Facts, candidate: Candidate | None) -> None:
            if facts.kept is not None:
                facts.kept.clear()

    class Third(Keeps):
        def keep(self, facts: Facts, candidate: Candidate) -> str:
            return "is the third" if candidate.index == 2 else ""

    candidates = candidates_of(3)
    made = made_for(candidates, {})
    scheduler = Scheduler(candidates, [Third(made)], [Weighed(fenced_score(Clears, made, fence()), 1.0)])
    for facts in (facts_of(seed) for seed in range(5)):
        decision = scheduler.decide(facts, frozenset())
        scheduler.reserve(facts, candidates[1])
        assert (decision.order, decision.kept) == ([1, 0], [0, 1])


@pytest.mark.parametrize("scale", ["given", "most"])
def test_a_list_that_is_said_again_is_read_again_where_it_has_changed(scale):
    points = [0.0, 50.0, 100.0]
    made, around = made_for(candidates_of(3), {"said": points, "scale": scale}), fence()
    mine, facts = fenced_score(Says, made, around), facts_of(0)
    assert [list(mine.score(facts, made.candidates)) for _ in range(5)] == [[0.0, 50.0, 100.0]] * 5
    points[:] = [100, 50, 0]
    given = mine.score(facts, made.candidates)
    assert (list(given), {type(one) for one in given}) == ([100.0, 50.0, 0.0], {float})
    points[1] = Fraction(25)
    assert list(mine.score(facts, made.candidates)) == [100.0, 25.0, 0.0]
    points[1] = math.nan
    assert mine.score(facts, made.candidates) is mine.nothing
    assert around.counts["nonsense"] == 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        pytest.param(Secret(), "gave what cannot be looked at: raised RuntimeError: no (test_fenced.py, line ", id="no hash"),
        pytest.param(Proxy(), "gave a Proxy as a facet: text, ", id="a proxy"),
        pytest.param(begun, "gave a coroutine as a facet: text, ", id="a begun coroutine"),
    ],
)
def test_a_facet_that_cannot_be_looked_at_is_none(given, why):
    class Faceted(Says):
        varies = "tick"

        def facet(self, facts: Facts):
            return given() if given is begun else given

    candidates, around = candidates_of(2), fence()
    mine = fenced_score(Faceted, made_for(candidates, {"said": [1.0, 2.0]}), around)
    assert mine.facet(facts_of(0)) == LOST
    assert (around.counts["nonsense"], around.why[: len(why)]) == (1, why)
    for one in held:
        with contextlib.suppress(RuntimeError):
            one.close()
    held.clear()


class Bare(Score):
    name = "mine"
    varies = "tick"

    def __init__(self, made: Made) -> None:
        pass


def _no(self):
    raise ValueError("never set")


@pytest.mark.parametrize("what", ["facet", "score", "reserve", "release", "varies", "scale"])
def test_a_score_whose_attributes_raise_cannot_be_made(what):
    kind = type("Raises", (Bare,), {what: property(_no)})
    around, made = fence(), made_for(candidates_of(2), {"said": [1.0, 2.0]})
    mine = fenced_score(kind, made, around)
    facts = facts_of(0)
    mine.reserve(facts, made.candidates[0])
    mine.release(made.candidates[0], True)
    assert (mine.facet(facts), mine.score(facts, made.candidates)) == (None, [0.0, 0.0])
    assert around.unmade["route"].startswith("cannot be made: raised ValueError: never set (test_fenced.py, line ")


def test_a_filter_whose_attributes_raise_is_as_if_it_were_not_there():
    made, around, calls = made_for(candidates_of(2), {"said": "no"}), fence("filter"), fence("filter")
    assert not fenced_filter(type("Raises", (Keeps,), {"strict": property(_no)}), made, around).asks(facts_of(0))
    assert around.unmade["route"].startswith("cannot be made: raised ValueError: never set")
    assert not fenced_filter(type("Raises", (Keeps,), {"keep": property(_no)}), made, calls).asks(facts_of(0))
    assert calls.counts["raised"] == 1


class Stands(Alarm):
    """As where the machine stands still while a look is prepared, which takes no call of a plugin."""

    def call(self, seconds, function, *args):
        if function in (no_score, no_sift):
            raise Cut
        return function(*args)


@pytest.mark.parametrize(
    ("said", "gives", "counts"),
    [
        pytest.param([1.0, 2.0], [1.0, 2.0], {}, id="all is well"),
        pytest.param(lambda: 1 / 0, [0.0, 0.0], {"raised": 1}, id="it raises"),
    ],
)
def test_a_look_that_is_cut_is_given_up_and_taken_at_the_next_call(said, gives, counts):
    around = Fence("score", "mine", Clock(), alarm=Stands())
    made = made_for(candidates_of(2), {"said": said})
    assert list(fenced_score(Says, made, around).score(facts_of(0), made.candidates)) == gives
    assert ({kind: count for kind, count in around.counts.items() if count}, around.calls, around.due) == (counts, 1, 1)


def test_what_was_changed_is_put_back_where_the_look_is_given_up():
    candidates, around = candidates_of(2), Fence("score", "mine", Clock(), alarm=Stands())
    mine = fenced_score(Meddles, made_for(candidates, {"how": lambda f, c: _set(c[0], "weight", 0.0)}), around)
    assert list(mine.score(facts_of(0), candidates)) == [0.0, 0.0]
    assert (candidates[0].weight, around.counts["meddled"]) == (candidates_of(2)[0].weight, 1)


def owing(times):
    """A score that is fenced off, and so many releases that it has not heard of."""
    mine, plugin, candidates, around = holding()
    for _ in range(times):
        mine.reserve(facts_of(0), candidates[0])
    plugin.broken = True
    while not around.out:
        mine.facet(facts_of(0))
        mine.score(facts_of(0), candidates)
    for _ in range(times):
        mine.release(candidates[0], True)
    plugin.broken = False
    return mine, plugin, candidates, around


def test_a_score_does_not_come_back_while_what_it_is_owed_fails_and_none_of_it_is_lost(monkeypatch):
    mine, plugin, candidates, around = owing(3)
    heard = []

    def asked(wait):
        around.clock.now += wait
        mine.facet(facts_of(0))
        return list(mine.score(facts_of(0), candidates)), around.out, plugin.held, len(heard)

    def fails(candidate, ok):
        heard.append(ok)
        if len(heard) < 3:
            raise RuntimeError("books are broken")
        plugin.held[candidate.index] -= 1

    monkeypatch.setattr(mine._calls, "release", fails)
    assert asked(5.0) == ([0.0, 0.0], True, [3, 0], 1)
    assert asked(5.0) == ([0.0, 0.0], True, [3, 0], 1), "it rests for twice as long"
    assert asked(5.0) == ([0.0, 0.0], True, [3, 0], 2)
    assert asked(20.0) == ([2.0, 0.0], False, [2, 0], 3)


def test_what_it_is_owed_is_told_in_parts_where_that_takes_long(monkeypatch):
    mine, plugin, candidates, around = owing(20)

    def slowly(candidate, ok):
        around.clock.now += 0.004
        plugin.held[candidate.index] -= 1

    monkeypatch.setattr(mine._calls, "release", slowly)
    around.clock.now += 5.0
    said = []
    for _ in range(3):
        mine.facet(facts_of(0))
        mine.score(facts_of(0), candidates)
        said.append((around.out, plugin.held[0]))
    assert said == [(True, 7), (False, 0), (False, 0)]


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


def test_quick_calls_are_counted_like_any_other_and_a_slow_one_has_the_next_looked_at():
    clock, seen = Clock(), []
    times = iter((0.001, 0.003, 0.002, 0.02, 0.001, 0.004))

    class Timed(Says):
        def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
            clock.now += next(times)
            return [1.0, 2.0]

    made, around = made_for(candidates_of(2), {}), Fence("score", "mine", clock)
    mine = fenced_score(Timed, made, around)
    around.due = 1000
    for _ in range(6):
        mine.score(facts_of(0), made.candidates)
        seen.append((around.calls, round(around.seconds, 3), round(around.most, 3), around.due))
    assert seen == [
        (1, 0.001, 0.001, 999),
        (2, 0.004, 0.003, 998),
        (3, 0.006, 0.003, 997),
        (4, 0.026, 0.02, 0),
        (5, 0.027, 0.02, 1),
        (6, 0.031, 0.02, 1),
    ]


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
