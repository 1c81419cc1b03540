"""When units merge and split, on a clock that we turn, and whom a request is sent to meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits import dialects
from sits.engines.base import Deadlines
from sits.engines.unusable import UnusableEngine
from sits.resources.kinds import Metadata, Model, ModelSpec
from sits.resources.problem import Fault
from sits.resources.units import MergeSpec, SplitSpec, UnitsSpec, units_faults
from sits.routing.plan import LEFT_ALONE, Choice
from sits.routing.pool import Pool
from sits.routing.target import OPEN, Target
from sits.routing.units import Action, Sample, State, Traffic, Units, gathered, left_out
from sits.routing.units.gather import WHY

SPEC = UnitsSpec()


@pytest.mark.parametrize(
    ("state", "tokens", "qps", "action"),
    [
        pytest.param("split", 4096, 80.1, "merge", id="long and many"),
        pytest.param("split", 4095, 500, None, id="not long enough"),
        pytest.param("split", 9000, 80, None, id="not more than 80"),
        pytest.param("split", 100, 1, None, id="short and few, split already"),
        pytest.param("merged", 1023, 29.9, "split", id="short and few"),
        pytest.param("merged", 1024, 1, None, id="not short enough"),
        pytest.param("merged", 10, 30, None, id="not fewer than 30"),
        pytest.param("merged", 9000, 500, None, id="long and many, merged already"),
        pytest.param("merged", 0, 0, "split", id="nobody asks any more"),
        pytest.param("merging", 0, 0, None, id="a merge on its way"),
        pytest.param("splitting", 9000, 500, None, id="a split on its way"),
    ],
)
def test_both_of_a_pair_must_be_passed(state: State, tokens: float, qps: float, action: Action | None) -> None:
    units = Units(SPEC)
    units.state = state
    assert units.tick(100.0, Sample(100.0, tokens, qps)) == action


@pytest.mark.parametrize(("age", "action"), [(0.0, "merge"), (0.05, "merge"), (0.0501, None), (3.0, None)])
def test_data_older_than_50_ms_decides_nothing(age: float, action: Action | None) -> None:
    units = Units(SPEC)
    assert units.tick(8.0, Sample(8.0 - age, 5000, 100)) == action
    assert units.stale == (0 if action else 1)


def test_a_change_is_followed_by_a_hold_and_a_failed_one_is_tried_again_after_it() -> None:
    units, busy, calm = Units(SPEC), (5000, 100), (10, 1)
    assert units.tick(0.0, Sample(0.0, *busy)) == "merge"
    assert (units.state, units.tick(1.0, Sample(1.0, *calm))) == ("merging", None)
    units.failed()
    assert (units.state, units.failures, units.tick(9.9, Sample(9.9, *busy))) == ("split", 1, None)
    assert units.tick(10.0, Sample(10.0, *busy)) == "merge"
    units.done()
    assert (units.state, units.tick(19.9, Sample(19.9, *calm))) == ("merged", None)
    assert units.tick(20.0, Sample(20.0, *calm)) == "split"
    units.failed()
    assert (units.state, units.tick(30.0, Sample(30.0, *calm))) == ("merged", "split")
    units.done()
    assert units.state == "split"


LOOKS = st.lists(
    st.tuples(
        st.floats(0.01, 6),
        st.one_of(st.floats(0, 9000), st.sampled_from([1023.0, 1024.0, 4095.0, 4096.0])),
        st.one_of(st.floats(0, 200), st.sampled_from([29.9, 30.0, 80.0, 80.1])),
        st.floats(0, 0.1),
        st.sampled_from(["done", "failed", "wait"]),
    ),
    max_size=60,
)


@settings(max_examples=100)
@given(looks=LOOKS)
def test_it_never_flaps(looks: list[tuple[float, float, float, float, str]]) -> None:
    """No two decisions within the hold, opposite ones least of all; between the thresholds nothing; nothing by old data."""
    units, now = Units(SPEC), 0.0
    decided: list[tuple[float, Action]] = []
    for pause, tokens, qps, age, end in looks:
        now += pause
        action = units.tick(now, Sample(now - age, tokens, qps))
        if action is not None:
            assert age * 1e3 <= 50 + 1e-6
            assert not decided or now - decided[-1][0] >= SPEC.hold_seconds
            inside = (tokens >= 4096 and qps > 80) if action == "merge" else (tokens < 1024 and qps < 30)
            assert inside
            decided.append((now, action))
        if units.state in ("merging", "splitting") and end != "wait":
            units.done() if end == "done" else units.failed()


@settings(max_examples=60)
@given(
    looks=st.lists(st.tuples(st.floats(0.01, 30), st.floats(1024, 9000), st.floats(30, 200)), max_size=40),
    merged=st.booleans(),
)
def test_between_the_thresholds_nothing_changes(looks: list[tuple[float, float, float]], merged: bool) -> None:
    units, now = Units(SPEC), 0.0
    units.state = "merged" if merged else "split"
    for pause, tokens, qps in looks:
        now += pause
        if tokens < 4096 or qps <= 80:
            assert units.tick(now, Sample(now, tokens, qps)) is None


def test_traffic_is_of_the_last_five_seconds() -> None:
    traffic = Traffic()
    assert traffic.sample(1.0, 0.99) == Sample(0.99, 0.0, 0.0)
    for n in range(100):
        traffic.saw(100.0 + n * 0.04, 1000 + 2 * n)
    assert traffic.sample(104.0, 103.99) == Sample(103.99, 1099.0, 20.0)
    traffic.saw(104.5, 9000)
    assert traffic.sample(109.05, 109.0) == Sample(109.0, 9000.0, 0.2)
    assert traffic.sample(1e6, 1e6) == Sample(1e6, 0.0, 0.0)


@settings(max_examples=60)
@given(arrivals=st.lists(st.tuples(st.floats(0, 1.5), st.integers(0, 10_000)), max_size=60), after=st.floats(0, 7))
def test_traffic_counts_as_a_list_of_all_would(arrivals: list[tuple[float, int]], after: float) -> None:
    traffic, now, seen = Traffic(), 1000.0, []
    for pause, tokens in arrivals:
        now += pause
        traffic.saw(now, tokens)
        seen.append((int(now / 0.1), tokens))
    now += after
    kept = [tokens for slot, tokens in seen if slot > int(now / 0.1) - 50]
    found = traffic.sample(now, now)
    assert (found.qps, found.tokens) == (len(kept) / 5.0, sum(kept) / len(kept) if kept else 0.0)


@pytest.mark.parametrize(
    ("spec", "backends", "faults"),
    [
        pytest.param(SPEC, ["a", "b"], [], id="as given"),
        pytest.param(UnitsSpec(into="b"), ["a", "b"], [], id="into one of them"),
        pytest.param(UnitsSpec(into="c"), ["a", "b"], [("into",)], id="into nobody"),
        pytest.param(SPEC, ["a", "a"], [()], id="one unit"),
        pytest.param(
            UnitsSpec(merge=MergeSpec(1000, 20.0), split=SplitSpec(1000, 20.0)),
            ["a", "b"],
            [("split", "promptTokens"), ("split", "qps")],
            id="no room between the thresholds",
        ),
    ],
)
def test_units_that_would_flap_or_have_nothing_to_merge_are_refused(
    spec: UnitsSpec, backends: list[str], faults: list[tuple[str, ...]]
) -> None:
    found: list[Fault] = list(units_faults(spec, backends))
    assert [fault.path for fault in found] == faults


def target(name: str, *, vision: bool = False) -> Target:
    loop = asyncio.new_event_loop()
    loop.close()
    engine = UnusableEngine(name, loop)
    model = Model(Metadata(name), ModelSpec("openai", "http://a:1"))
    can = OPEN if vision else OPEN - {"vision"}
    return Target(name, name, "openai", dialects.upstream("openai"), engine, can, Deadlines(), b"", b"", model)


A, B, C = target("a"), target("b"), target("c", vision=True)
NOBODY: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("away", "out", "attempts", "needs", "names"),
    [
        pytest.param("b", "", None, (), "acb", id="merged away: behind the others, fallbacks too"),
        pytest.param("b", "", 1, (), "a", id="one attempt goes to the one that stays"),
        pytest.param("b", "a", None, (), "cb", id="the one that stays is down"),
        pytest.param("b", "b", None, (), "ac", id="a unit that is down is not behind them either"),
        pytest.param("bc", "a", None, (), "bc", id="nobody who stays is left: all as usual"),
        pytest.param("b", "", None, ("vision",), "c", id="who cannot is not asked"),
    ],
)
def test_requests_go_to_the_unit_that_stays_and_to_the_others_when_it_fails(
    away: str, out: str, attempts: int | None, needs: tuple[str, ...], names: str
) -> None:
    choice = Choice(None, Pool([(A, 1.0), (B, 5.0)], "weighted"), [C], attempts)
    merged, broken, needed = frozenset(away), frozenset(out), frozenset(needs)
    for draw in (0.0, 0.5, 0.999):
        plan = choice.plan("chat", needed, draw, 0.0, left_out(choice.order, merged, broken))
        found = gathered(plan, choice.targets, merged, broken, needed | {"chat"}, attempts)
        told: dict[str, Any] = dict(found.filtered)
        if names != "bc":
            assert "".join(one.name for one in found.targets) == names
            assert told.get("b") == (LEFT_ALONE if "b" in out else "cannot do vision" if needs else WHY)
        else:
            assert {one.name for one in found.targets} == {"b", "c"}
