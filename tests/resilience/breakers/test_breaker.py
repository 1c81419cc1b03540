"""One breaker: when it opens, when it closes, and that it never loses count."""

from __future__ import annotations

import pytest
from breaker_reference import Heard, PlainBreaker
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.resilience.breakers.breaker import LONGEST_REST, Breaker, limit_of
from sits.resilience.breakers.window import BAD, GOOD
from sits.resources.reliability import BreakerSpec


def made(spec: BreakerSpec | None = None, promise: float | None = None, owner: Heard | None = None) -> Breaker:
    return Breaker("m", "eu-1", "2", spec or BreakerSpec(), promise, 0.0, owner or Heard())


def good(breaker: Breaker, times: int, now: float = 0.0, first_ms: float | None = None) -> None:
    for _ in range(times):
        breaker.note(True, first_ms, now)


def bad(breaker: Breaker, times: int, now: float = 0.0) -> None:
    for _ in range(times):
        breaker.note(False, None, now)


def opened(spec: BreakerSpec | None = None, owner: Heard | None = None) -> Breaker:
    """A breaker that was opened at 0."""
    breaker = made(spec, owner=owner)
    bad(breaker, breaker.spec.row)
    assert breaker.state == "open"
    return breaker


MIXED = BreakerSpec(row=100)
"""Failures in a row alone never open it."""


@pytest.mark.parametrize(
    ("spec", "story", "opens"),
    [
        pytest.param(BreakerSpec(), "b" * 4, False, id="four failures alone are no row and no volume"),
        pytest.param(BreakerSpec(), "b" * 5, True, id="five in a row"),
        pytest.param(BreakerSpec(), "b" * 25, True, id="twenty-five failures do not leave it in rotation"),
        pytest.param(BreakerSpec(success=0.1), "bbbb" + "g" + "bbbb", False, id="a good answer ends the row"),
        pytest.param(MIXED, "g" * 8 + "b", False, id="nine answers are below the volume"),
        pytest.param(MIXED, "g" * 9 + "b", True, id="one of ten failed: 0.9 is less than 0.95"),
        pytest.param(MIXED, "g" * 19 + "b", False, id="one of twenty failed: 0.95 is the least"),
        pytest.param(MIXED, "b" * 9, False, id="nine of nine failed: no volume"),
        pytest.param(MIXED, "b" * 9 + "g", True, id="the good answer that makes the volume lets it be judged"),
        pytest.param(BreakerSpec(success=0.0), "b" * 4 + "g", False, id="a share of none is kept by all"),
        pytest.param(BreakerSpec(enabled=False), "b" * 50, False, id="never, when it is not enabled"),
        pytest.param(BreakerSpec(), "s" * 2 + "g" * 8, False, id="two slow ones say nothing of a 99th percentile"),
        pytest.param(BreakerSpec(), "s" * 3 + "f" * 7, True, id="three of ten slow"),
        pytest.param(BreakerSpec(), "s" * 10, True, id="all slow"),
        pytest.param(BreakerSpec(), "f" * 297 + "s" * 3, False, id="three of three hundred are slow: 99 of 100 are not"),
        pytest.param(BreakerSpec(), "f" * 296 + "s" * 3, True, id="three of 299 are more than one in a hundred"),
        pytest.param(BreakerSpec(p99_ms=None), "s" * 20, False, id="no limit, nothing is slow"),
    ],
)
def test_it_opens_when(spec: BreakerSpec, story: str, opens: bool) -> None:
    breaker = made(spec)
    for what in story:
        breaker.note(what != "b", {"s": 801.0, "f": 799.0}.get(what), 1.0)
    assert (breaker.state, breaker.out) == (("open", True) if opens else ("closed", False))


def test_the_limit_is_twice_the_promise_where_that_is_longer() -> None:
    assert [limit_of(BreakerSpec(), promise) for promise in (None, 100.0, 400.0, 2000.0)] == [800.0, 800.0, 800.0, 4000.0]
    assert limit_of(BreakerSpec(p99_ms=None), 100.0) == float("inf")
    slow_model = made(promise=2000.0)
    good(slow_model, 10, first_ms=3900.0)
    assert slow_model.state == "closed"


def test_failures_are_forgotten_when_the_window_has_passed() -> None:
    breaker = made(MIXED)
    good(breaker, 5)
    bad(breaker, 4)
    breaker.age(61.0)
    good(breaker, 9, 61.0)
    assert (breaker.state, breaker.window.volume, breaker.window.share) == ("closed", 9, 1.0)


def test_it_opens_when_the_good_answers_leave_the_window_and_the_failures_stay() -> None:
    breaker = made(MIXED)
    good(breaker, 200, 0.0)
    for _ in range(5):
        breaker.note(False, None, 50.0)
        breaker.note(True, None, 50.0)
    assert breaker.state == "closed"
    breaker.age(60.5)
    assert breaker.state == "open"


def test_three_good_probes_one_at_a_time_close_it_and_begin_a_clean_window() -> None:
    owner = Heard()
    breaker = opened(owner=owner)
    breaker.tick(4.9)
    assert (breaker.state, breaker.take_probe(4.9)) == ("open", 0)
    breaker.tick(5.0)
    for _ in range(3):
        assert breaker.out
        probe = breaker.take_probe(5.0)
        assert probe
        assert breaker.take_probe(5.0) == 0, "one probe at a time"
        breaker.note(True, None, 5.1, probe)
    assert (breaker.state, breaker.out, breaker.window.volume, breaker.row) == ("closed", False, 0, 0)
    assert owner.changes == [("closed", "open", "row"), ("open", "half-open", "time"), ("half-open", "closed", "proofs")]


def test_a_failed_probe_opens_it_twice_as_long_each_time_up_to_the_longest() -> None:
    breaker = opened()
    waited, now = [], 0.0
    for _ in range(6):
        waited.append(breaker.until - now)
        now = breaker.until
        breaker.tick(now)
        breaker.note(False, None, now, breaker.take_probe(now))
        assert breaker.state == "open"
    assert waited == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]


def test_opening_at_once_after_closing_goes_on_doubling_and_later_begins_anew() -> None:
    breaker = opened(BreakerSpec(proofs=1))

    def close(now: float) -> None:
        breaker.tick(now)
        breaker.note(True, None, now, breaker.take_probe(now))
        assert breaker.state == "closed"

    close(5.0)
    bad(breaker, 5, 6.0)
    assert breaker.until == 16.0
    close(16.0)
    bad(breaker, 5, 100.0)
    assert breaker.until == 105.0


def test_a_cancelled_probe_gives_its_place_back() -> None:
    breaker = opened()
    breaker.tick(5.0)
    probe = breaker.take_probe(5.0)
    assert not breaker.may_probe()
    breaker.unprobe(probe)
    assert breaker.may_probe()
    assert breaker.take_probe(5.1) == probe
    assert breaker.proofs == 0


def test_a_place_comes_back_by_itself_when_its_probe_hangs() -> None:
    breaker = opened()
    breaker.tick(5.0)
    hanging = breaker.take_probe(5.0)
    breaker.tick(64.9)
    assert not breaker.free
    breaker.tick(65.0)
    assert breaker.free
    breaker.note(True, None, 70.0, hanging)
    assert (breaker.proofs, breaker.probing) == (1, 0)


def test_several_probes_may_run_and_answers_of_an_earlier_period_prove_nothing() -> None:
    breaker = opened(BreakerSpec(probes=2, proofs=2))
    breaker.tick(5.0)
    first, second = breaker.take_probe(5.0), breaker.take_probe(5.0)
    assert breaker.take_probe(5.0) == 0
    breaker.note(False, None, 6.0, first)
    assert (breaker.state, breaker.until) == ("open", 16.0)
    breaker.tick(16.0)
    breaker.note(True, None, 16.0, second)
    breaker.unprobe(second)
    assert (breaker.state, breaker.proofs, breaker.probing) == ("half-open", 0, 0)


def test_the_first_content_of_a_stream_is_proof_and_its_end_is_counted_once() -> None:
    breaker = opened(BreakerSpec(proofs=1))
    breaker.tick(5.0)
    probe = breaker.take_probe(5.0)
    breaker.proved(probe, 6.0)
    assert breaker.state == "closed"
    breaker.note(True, 100.0, 90.0)
    assert breaker.window.volume == 1
    breaker.proved(0, 90.0)
    assert breaker.state == "closed"


def test_answers_that_were_asked_for_before_it_opened_change_nothing() -> None:
    breaker = opened()
    good(breaker, 20, 1.0)
    bad(breaker, 20, 2.0)
    assert (breaker.state, breaker.until) == ("open", 5.0)
    breaker.tick(5.0)
    bad(breaker, 3, 5.0)
    good(breaker, 3, 5.0)
    assert (breaker.state, breaker.proofs) == ("half-open", 0)


@pytest.mark.parametrize(
    ("asked", "until"),
    [
        pytest.param([3.0], 5.0, id="a rest that is over before the open time"),
        pytest.param([30.0], 30.0, id="a longer rest wins"),
        pytest.param([30.0, 7.0], 30.0, id="a later, shorter one does not"),
        pytest.param([7.0, 30.0], 30.0, id="a later, longer one does"),
        pytest.param([1e9], LONGEST_REST, id="an hour at the most"),
        pytest.param([-4.0], 5.0, id="the past"),
    ],
)
def test_the_longest_deadline_wins(asked: list[float], until: float) -> None:
    breaker = opened()
    for each in asked:
        breaker.rest(each, 0.0)
    assert breaker.until == until
    breaker.tick(until - 0.1)
    assert breaker.state == "open"
    breaker.tick(until)
    assert breaker.state == "half-open"


def test_a_rest_is_no_failure_and_ends_without_probes() -> None:
    owner = Heard()
    breaker = made(owner=owner)
    breaker.rest(10.0, 0.0)
    assert (breaker.out, breaker.word, breaker.state, breaker.free) == (True, "resting", "closed", False)
    breaker.tick(9.9)
    assert breaker.out
    breaker.tick(10.0)
    assert (breaker.out, breaker.word, breaker.window.volume, breaker.row) == (False, "closed", 0, 0)
    assert owner.changes == [("closed", "resting", "rest"), ("resting", "closed", "rested")]


def test_a_probe_that_is_told_to_wait_leaves_the_target_half_open_until_then() -> None:
    breaker = opened()
    breaker.tick(5.0)
    breaker.unprobe(breaker.take_probe(5.0))
    breaker.rest(20.0, 5.0)
    assert (breaker.word, breaker.free) == ("half-open", False)
    breaker.tick(20.0)
    assert breaker.free


def test_another_declaration_takes_effect_and_turning_it_off_lets_it_in_again() -> None:
    breaker = made()
    bad(breaker, 3)
    breaker.retune(BreakerSpec(row=4), None, 1.0)
    bad(breaker, 1, 1.0)
    assert breaker.state == "open"
    breaker.rest(50.0, 1.0)
    breaker.retune(BreakerSpec(enabled=False), None, 2.0)
    assert (breaker.state, breaker.out, breaker.why) == ("closed", False, "declared")
    bad(breaker, 50, 3.0)
    breaker.rest(60.0, 3.0)
    assert not breaker.out


def test_the_percentile_is_told_to_a_quarter() -> None:
    breaker = made(BreakerSpec(p99_ms=None))
    assert breaker.window.p99_ms is None
    good(breaker, 98, first_ms=40.0)
    good(breaker, 2, first_ms=900.0)
    assert breaker.window.p99_ms is not None
    assert 900.0 <= breaker.window.p99_ms <= 900.0 * 1.25
    good(breaker, 1, first_ms=10_000_000.0)
    assert breaker.window.p99_ms < 1200.0
    good(breaker, 10, first_ms=10_000_000.0)
    assert breaker.window.p99_ms == float("inf")


SPECS = st.builds(
    BreakerSpec,
    success=st.sampled_from([0.5, 0.75, 0.95]),
    window_seconds=st.just(60.0),
    volume=st.integers(1, 6),
    row=st.integers(1, 5),
    open_seconds=st.sampled_from([1.0, 5.0]),
    longest_seconds=st.sampled_from([4.0, 60.0]),
    probes=st.integers(1, 2),
    proofs=st.integers(1, 3),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["good", "good", "slow", "bad", "bad", "probe", "end", "fail", "cancel", "rest", "tick", "age", "age"]),
        st.sampled_from([0.0, 0.0, 0.5, 1.0, 5.0, 17.5, 70.0]),
        st.sampled_from([0.5, 3.0, 40.0, 9000.0]),
    ),
    max_size=60,
)


@settings(max_examples=100, deadline=None)
@given(spec=SPECS, steps=STEPS)
def test_it_does_as_the_plain_one_does_whatever_happens(spec: BreakerSpec, steps: list[tuple[str, float, float]]) -> None:
    breaker, plain = made(spec), PlainBreaker(spec, 800.0)
    now = 0.0
    probes: list[int] = []
    for step, passed, seconds in steps:
        now += passed
        if step in ("good", "slow", "bad"):
            first = {"good": 10.0, "slow": 900.0}.get(step)
            breaker.note(step != "bad", first, now)
            plain.note(step != "bad", first, now, 0)
        elif step == "probe":
            probe = breaker.take_probe(now)
            assert probe == plain.take_probe(now)
            probes += [probe] if probe else []
        elif step in ("end", "fail") and probes:
            probe = probes.pop(0)
            breaker.note(step == "end", None, now, probe)
            plain.note(step == "end", None, now, probe)
        elif step == "cancel" and probes:
            probe = probes.pop(0)
            breaker.unprobe(probe)
            plain.unprobe(probe)
        elif step == "rest":
            breaker.rest(now + seconds, now)
            plain.rest(now + seconds, now)
        else:
            breaker.tick(now)
            plain.tick(now)
        if step != "tick":
            breaker.age(now)
            plain.age(now)
        assert (breaker.state, breaker.out, breaker.free) == (
            plain.state,
            plain.out,
            plain.state == "half-open" and not plain.resting and len(plain.taken) < spec.probes,
        )
        assert step == "tick" or (breaker.window.figures[GOOD], breaker.window.figures[BAD]) == plain.figures(now)
        assert breaker.row == plain.row
        assert breaker.probing <= spec.probes
        assert breaker.open_until - now <= spec.longest_seconds or breaker.state != "open"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 5.0, 30.0, 61.0, 500.0]), st.booleans()), max_size=50))
def test_no_story_leaves_a_breaker_open_for_ever(steps: list[tuple[float, bool]]) -> None:
    breaker, now = made(), 0.0
    for passed, well in steps:
        now += passed
        breaker.tick(now)
        breaker.note(well, None, now, breaker.take_probe(now))
    for _ in range(10):
        now += 60.0
        breaker.tick(now)
        breaker.note(True, None, now, breaker.take_probe(now))
    assert not breaker.out
