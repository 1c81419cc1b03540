"""All breakers of a process: what reloads keep, who is left out of a route, what is told."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.inner.errors import Code, SitsError
from sits.resilience.breakers import BreakerRow, Breakers, Change, Declared
from sits.resilience.breakers.breakers import CHANGES
from sits.resilience.breakers.outliers import most, outliers
from sits.resources.reliability import BreakerSpec, OutlierSpec

PLAIN = BreakerSpec()
ERROR = SitsError(Code.UPSTREAM_ERROR, "500")


def made(
    *names: str, outliers: OutlierSpec | None = None, spec: BreakerSpec = PLAIN, told: list[Change] | None = None
) -> Breakers:
    """Breakers of one route of these targets."""
    breakers = Breakers(wall=lambda: 1000.0, told=told.append if told is not None else None)
    breakers.declare([Declared(name, None, None, spec) for name in names], [names], outliers or OutlierSpec(), 0.0)
    return breakers


def fail(breakers: Breakers, name: str, times: int = 5, now: float = 0.0) -> None:
    breaker = breakers.get(name)
    assert breaker is not None
    for _ in range(times):
        breakers.ended(breaker, ERROR, None, now, status=500)


def answer(breakers: Breakers, name: str, times: int, now: float = 0.0) -> None:
    breaker = breakers.get(name)
    assert breaker is not None
    for _ in range(times):
        breakers.ended(breaker, None, None, now)


def test_all_is_well_until_a_target_fails() -> None:
    breakers = made("a", "b")
    answer(breakers, "a", 20)
    assert not breakers.any_out
    fail(breakers, "a")
    assert (breakers.any_out, breakers.out_of(("a", "b"))) == (True, frozenset({"a"}))


@pytest.mark.parametrize(
    ("names", "failed", "share", "out"),
    [
        pytest.param("a", "a", 1.0, "", id="the only one stays in"),
        pytest.param("ab", "ab", 0.5, "b", id="of two, one stays in: the one with more good answers"),
        pytest.param("abc", "bc", 0.5, "c", id="of three, one may be out"),
        pytest.param("abcd", "bcd", 0.5, "cd", id="of four, two"),
        pytest.param("abcd", "abcd", 1.0, "bcd", id="never all"),
        pytest.param("abcd", "bcd", 0.1, "d", id="one in any case"),
        pytest.param("abcd", "bcd", 0.0, "", id="none, when none may be"),
        pytest.param("aab", "a", 0.5, "a", id="a name counts once"),
    ],
)
def test_only_so_many_are_left_out_and_the_least_bad_stay_in(names: str, failed: str, share: float, out: str) -> None:
    breakers = made(*names, outliers=OutlierSpec(most_out=share))
    for place, name in enumerate("abcd"[: len(names)]):
        if name in names:
            answer(breakers, name, 20 - place)
        if name in failed:
            fail(breakers, name)
    assert breakers.out_of(tuple(names)) == frozenset(out)


def test_what_rests_goes_before_what_may_be_tried_and_after_what_is_open() -> None:
    breakers = made("open", "rests", "half", outliers=OutlierSpec(most_out=1.0))
    fail(breakers, "half")
    breakers.tick(5.0)
    half, rests = breakers.get("half"), breakers.get("rests")
    assert half is not None
    assert rests is not None
    rests.rest(100.0, 5.0)
    fail(breakers, "open", now=5.0)
    assert breakers.out_of(("open", "rests", "half")) == {"open", "rests"}
    assert half.take_probe(5.0)
    assert breakers.out_of(("open", "rests", "half")) == {"open", "rests"}
    assert breakers.out_of(("rests", "half")) == {"rests"}
    assert breakers.out_of(("open", "rests")) == {"open"}


def test_a_half_open_target_is_in_as_long_as_a_probe_may_be_sent_to_it() -> None:
    breakers = made("a", "b")
    fail(breakers, "a")
    breakers.tick(5.0)
    breaker = breakers.get("a")
    assert breaker is not None
    assert (breakers.any_out, breakers.out_of(("a", "b"))) == (True, frozenset())
    probe = breaker.take_probe(5.0)
    assert breakers.out_of(("a", "b")) == {"a"}
    breakers.ended(breaker, SitsError(Code.CLIENT_CLOSED, "gone"), None, 5.0, probe=probe)
    assert breakers.out_of(("a", "b")) == frozenset()
    for _ in range(3):
        breakers.ended(breaker, None, None, 5.0, probe=breaker.take_probe(5.0))
    assert not breakers.any_out


def test_a_rate_limit_rests_and_the_probe_place_is_given_back() -> None:
    breakers = made("a", "b")
    fail(breakers, "a")
    breakers.tick(5.0)
    breaker = breakers.get("a")
    assert breaker is not None
    busy = SitsError(Code.UPSTREAM_RATE_LIMITED, "429", retry_after=30.0)
    breakers.ended(breaker, busy, None, 5.0, status=429, probe=breaker.take_probe(5.0))
    assert (breaker.probing, breaker.until, breakers.out_of(("a", "b"))) == (0, 35.0, frozenset({"a"}))
    breakers.tick(35.0)
    assert breaker.free


@pytest.mark.parametrize(
    "error",
    [
        SitsError(Code.CLIENT_CLOSED, "gone"),
        SitsError(Code.OVERLOADED, "full"),
        SitsError(Code.UPSTREAM_REJECTED, "no", status=400),
        SitsError(Code.CONTEXT_TOO_LONG, "too long"),
    ],
    ids=lambda error: error.code.value,
)
def test_what_clients_and_the_gateway_itself_do_never_opens_a_breaker(error: SitsError) -> None:
    breakers = made("a", "b")
    breaker = breakers.get("a")
    assert breaker is not None
    for _ in range(200):
        breakers.ended(breaker, error, None, 0.0, status=error.status)
    assert (breaker.state, breaker.window.volume) == ("closed", 0)


def test_deadlines_that_pass_while_the_gateway_sleeps_are_nobodys_fault() -> None:
    breakers = made("a", "b")
    breaker = breakers.get("a")
    assert breaker is not None
    late = SitsError(Code.UPSTREAM_TIMEOUT, "first token")
    breakers.tick(10.0)
    breakers.tick(10.1)
    breakers.tick(15.0)
    for _ in range(50):
        breakers.ended(breaker, late, None, 15.0)
        breakers.ended(breaker, None, 5000.0, 15.5)
    assert (breaker.state, breaker.window.p99_ms, breaker.window.share) == ("closed", None, 1.0)
    for _ in range(5):
        breakers.ended(breaker, late, None, 16.1)
    assert breaker.state == "open"


def test_a_reload_keeps_what_is_declared_still_and_forgets_the_rest() -> None:
    breakers = made("a", "b", "c")
    for name in ("a", "b", "c"):
        fail(breakers, name)
    before = {name: breakers.get(name) for name in ("a", "b", "c")}
    breakers.declare(
        [Declared("a", None, None, PLAIN), Declared("b", None, "2", PLAIN), Declared("d", None, None, PLAIN)],
        [("a", "b", "d")],
        OutlierSpec(),
        1.0,
    )
    assert breakers.get("a") is before["a"]
    assert breakers.get("c") is None
    assert [(row.name, row.version, row.state) for row in breakers.rows(1.0)] == [
        ("a", None, "open"),
        ("b", "2", "closed"),
        ("d", None, "closed"),
    ]
    assert breakers.out_of(("a", "b", "d")) == {"a"}
    gone = before["c"]
    assert gone is not None
    gone.tick(100.0)
    assert breakers.out_of(("a", "b", "d")) == {"a"}, "one that is forgotten is nobody's business"
    elsewhere = Declared("a", None, None, PLAIN, place="another address")
    breakers.declare([elsewhere, Declared("b", None, "2", PLAIN)], [("a", "b")], OutlierSpec(), 2.0)
    assert [(row.name, row.state) for row in breakers.rows(2.0)] == [("a", "closed"), ("b", "closed")]
    assert not breakers.any_out


def test_a_table_that_is_only_looked_at_changes_nothing() -> None:
    breakers = made("a")
    first = breakers.of("a", None, None, BreakerSpec(row=1), None, 0.0)
    assert first is breakers.get("a")
    fail(breakers, "a", 1)
    assert first.state == "closed"
    breakers.declare([Declared("a", None, None, BreakerSpec(row=1))], [("a",)], OutlierSpec(), 0.0)
    fail(breakers, "a", 1)
    assert first.state == "open"


LENIENT = BreakerSpec(success=0.0, row=1000)
FIVE = ("a", "b", "c", "d", "e")


def test_a_target_that_does_worse_than_the_others_of_its_route_is_left_out() -> None:
    breakers = made(*FIVE, spec=LENIENT)
    for name in FIVE:
        answer(breakers, name, 95)
        fail(breakers, name, 40 if name == "e" else 1)
    breakers.tick(1.0)
    breaker = breakers.get("e")
    assert breaker is not None
    assert (breakers.out_of(FIVE), breaker.why) == (frozenset({"e"}), "outlier")


@pytest.mark.parametrize(
    ("failures", "settings"),
    [
        pytest.param(2, OutlierSpec(), id="two failures make no outlier"),
        pytest.param(40, OutlierSpec(enabled=False), id="not when it is turned off"),
        pytest.param(40, OutlierSpec(most_out=0.0), id="not when none may be out"),
        pytest.param(40, OutlierSpec(deviations=2.5), id="not within the deviations"),
    ],
)
def test_nobody_is_an_outlier_when(failures: int, settings: OutlierSpec) -> None:
    breakers = made(*FIVE, spec=LENIENT, outliers=settings)
    for name in FIVE:
        answer(breakers, name, 95)
    fail(breakers, "e", failures)
    breakers.tick(1.0)
    assert not breakers.any_out


def test_outliers_stop_where_enough_are_out_already() -> None:
    breakers = made(*FIVE, spec=BreakerSpec(success=0.0), outliers=OutlierSpec(most_out=0.2, deviations=1.0))
    for name in FIVE:
        answer(breakers, name, 95)
    fail(breakers, "a")
    fail(breakers, "e", 4)
    breakers.tick(1.0)
    assert breakers.out_of(FIVE) == {"a"}
    assert [row.name for row in breakers.rows(1.0) if row.out] == ["a"]


def test_the_rule_is_envoys() -> None:
    shares = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 0.5}
    assert outliers(shares, 1.9) == ["e"]
    assert outliers({**shares, "d": 0.6}, 1.9) == []
    assert outliers({"a": 1.0, "b": 0.0}, 0.9) == ["b"]
    assert outliers({"a": 0.0}, 0.1) == []


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_the_best_is_never_an_outlier_and_four_have_none_at_the_usual_deviations(shares: list[float]) -> None:
    named = {str(place): share for place, share in enumerate(shares)}
    found = outliers(named, 1.9)
    assert all(named[name] < max(shares) for name in found)
    assert len(shares) >= 5 or not found
    equal = dict.fromkeys(named, shares[0])
    assert outliers(equal, 0.001) == []


@given(st.integers(0, 50), st.floats(0, 1))
def test_never_all_and_never_more_than_the_share_but_one(count: int, share: float) -> None:
    allowed = most(count, share)
    assert 0 <= allowed <= max(0, count - 1)
    assert allowed <= max(1, math.floor(share * count + 1e-9))


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["bad", "good", "rest", "probe"]), st.sampled_from([0.0, 0.3, 6.0]))
    ),
    st.sampled_from([0.0, 0.34, 0.5, 1.0]),
)
def test_whatever_happens_those_left_out_are_out_and_as_many_as_may_be(steps: list[tuple[str, str, float]], share: float) -> None:
    breakers = made("a", "b", "c", outliers=OutlierSpec(most_out=share), spec=BreakerSpec(row=2, proofs=1))
    now = 0.0
    for name, what, passed in steps:
        now += passed
        breakers.tick(now)
        breaker = breakers.get(name)
        assert breaker is not None
        if what == "rest":
            breaker.rest(now + 3, now)
        elif what == "probe":
            breaker.take_probe(now)
        else:
            breakers.ended(breaker, None if what == "good" else ERROR, None, now, status=500, probe=breaker.take_probe(now))
        out = breakers.out_of(("a", "b", "c"))
        assert breakers.any_out == any(row.out for row in breakers.rows(now))
        shut = {name for name in "abc" if (found := breakers.get(name)) is not None and found.out and not found.free}
        assert out <= shut
        assert len(out) == min(len(shut), most(3, share)), "who is the least bad may be a second old, how many are out never"


def test_changes_are_told_and_the_last_are_kept() -> None:
    told: list[Change] = []
    breakers = made("a", "b", told=told)
    fail(breakers, "a")
    expected = Change("a", None, None, "closed", "open", "row", "5 failures in a row", 1000.0)
    assert told == [expected]
    breaker = breakers.get("a")
    assert breaker is not None
    for round_ in range(1, 200):
        now = round_ * 61.0
        breakers.tick(now)
        breakers.ended(breaker, ERROR, None, now, status=500, probe=breaker.take_probe(now))
    assert (len(told), len(breakers.changes), breakers.changes[-1]) == (399, CHANGES, told[-1])


def test_rows_say_how_each_target_is_and_why() -> None:
    breakers = made("b", "模型-1")
    answer(breakers, "b", 5)
    breaker = breakers.get("b")
    assert breaker is not None
    breakers.ended(breaker, None, 100.0, 0.0)
    fail(breakers, "b", 6)
    assert breakers.rows(2.0) == [
        BreakerRow(
            name="b", zone=None, version=None, state="open", out=True, enabled=True, volume=12, share=0.5,
            p99_ms=pytest.approx(108.42, abs=0.01), limit_ms=800.0, row=6, probing=0, proofs=0, until=1003.0,
            why="success", detail="4 of 10 answers failed, 0.600 good where 0.95 is the least", since=998.0,
        ),
        BreakerRow(
            name="模型-1", zone=None, version=None, state="closed", out=False, enabled=True, volume=0, share=None, p99_ms=None,
            limit_ms=800.0, row=0, probing=0, proofs=0, until=None, why="declared", detail="", since=998.0,
        ),
    ]  # fmt: skip
