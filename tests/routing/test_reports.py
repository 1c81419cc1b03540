"""Processes that tell each other what they see of targets know as much as one that saw all of it."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.routing.beginnings import Beginnings, Reading, beginnings
from sits.routing.policies import POLICIES, TargetState, Usual
from sits.routing.policies.snapshot import take
from sits.routing.reports import (
    LONGEST_WHO,
    MOST,
    MOST_NAMES,
    MOST_PEERS,
    MOST_UNDER_WAY,
    PATIENCE,
    Journal,
    Peers,
    Report,
)

NAMES = ("a", "b", "c")


class Process:
    """One that chooses: its states, what it remembers, what it tells and hears."""

    def __init__(self, who: str) -> None:
        usual = Usual()
        self.rung = 0
        self.states = {name: TargetState(usual, name) for name in NAMES}
        self.memory = Beginnings()
        self.journal = Journal(who, self._ring)
        self.peers = Peers(self.states, [self.memory])
        self.memory.journal = self.journal
        for state in self.states.values():
            state.journal = self.journal

    def _ring(self) -> None:
        self.rung += 1

    def tell(self, *others: Process, now: float = 0.0, whole: bool = False) -> Report:
        """Over the wire."""
        report = self.journal.take(self.states, NAMES if whole else None)
        report = msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=Report)
        for other in others:
            other.peers.hear(report, now)
        return report

    def learned(self) -> dict[str, tuple[float, ...]]:
        """All numbers of the targets, but for who has what under way."""
        return {name: take(state)[3:-1] for name, state in self.states.items()}


def busy(process: Process, dice: random.Random, count: int, *, failing: float = 0.1) -> None:
    """Requests that come and go, one after the other."""
    for step in range(count):
        state = process.states[dice.choice(NAMES)]
        at = float(step)
        cold, warm = float(dice.randint(0, 4000)), float(dice.randint(0, 4000))
        among = state.started(at)
        if dice.random() < failing:
            state.ended(at + 0.5, 0.5, among, False)
            continue
        state.spoke(at + 0.2, dice.uniform(0.05, 0.4), among, cold, warm)
        state.ended(at + 0.9, dice.uniform(0.5, 2.0), among, True, 0.2, float(dice.randint(1, 400)), cold, warm)


def test_who_hears_everything_knows_what_who_saw_it_knows() -> None:
    one, other = Process("one"), Process("other")
    dice = random.Random(7)
    for step in range(200):
        state = one.states[dice.choice(NAMES)]
        at = float(step)
        among = state.started(at)
        one.tell(other, now=at)
        state.spoke(at + 0.25, 0.25, among, 500.0, 300.0 * (step % 3))
        one.tell(other, now=at + 0.25)
        ok = step % 9 > 0
        state.ended(at + 0.75, dice.uniform(0.5, 2.0), among, ok, 0.25, 100.0, 500.0, 300.0 * (step % 3))
        one.tell(other, now=at + 0.75)
    assert other.learned() == one.learned()
    assert [state.outstanding for state in other.states.values()] == [0, 0, 0]


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(NAMES), st.sampled_from(("start", "end", "tell", "lose"))), max_size=80
    )
)
@settings(max_examples=100, deadline=None)
def test_after_a_whole_report_of_each_everybody_counts_what_all_have_whatever_was_lost(steps: list[tuple[int, str, str]]) -> None:
    crew = [Process(str(number)) for number in range(3)]
    for number, name, what in steps:
        process, others = crew[number], [one for one in crew if one is not crew[number]]
        state = process.states[name]
        if what == "start":
            state.started(1.0)
        elif what == "end" and state.outstanding:
            state.left(1.0)
        elif what == "tell":
            process.tell(*others, now=1.0)
        elif what == "lose":
            process.tell()
    for process in crew:
        process.tell(*(one for one in crew if one is not process), now=1.0, whole=True)
    whole = {name: sum(process.states[name].outstanding for process in crew) for name in NAMES}
    for process in crew:
        assert {name: state.of_service() for name, state in process.states.items()} == whole
        assert {name: state.outstanding + state.elsewhere for name, state in process.states.items()} == whole


def test_what_came_late_or_twice_does_not_count() -> None:
    one, other = Process("one"), Process("other")
    one.states["a"].started(1.0)
    early = one.tell()
    one.states["a"].started(1.0)
    late = one.tell(other)
    assert other.states["a"].peers == 2
    assert (other.peers.hear(early, 1.0), other.peers.hear(late, 1.0)) == (False, False)
    assert other.states["a"].peers == 2
    assert [(row.who, row.lost) for row in other.peers.rows()] == [("one", 0)]
    one.tell()
    one.tell(other)
    assert [row.lost for row in other.peers.rows()] == [1]


def test_what_a_silent_one_had_under_way_is_not_counted_any_more() -> None:
    one, other = Process("one"), Process("other")
    one.states["b"].started(1.0)
    one.tell(other, now=10.0)
    assert other.peers.forget_silent(10.0 + PATIENCE) == []
    assert other.states["b"].of_service() == 1
    assert other.peers.forget_silent(10.1 + PATIENCE) == ["one"]
    assert (other.states["b"].of_service(), other.states["b"].elsewhere, len(other.peers)) == (0, 0, 0)


def test_strangers_are_those_of_nobody_of_the_service() -> None:
    one, other = Process("one"), Process("other")
    for _ in range(3):
        one.states["a"].started(1.0)
    one.tell(other)
    state = other.states["a"]
    state.started(1.0)
    state.told(5, 1)
    assert (state.outstanding, state.peers, state.elsewhere) == (1, 3, 5)
    one.states["a"].left(1.0)
    one.tell(other)
    assert (state.peers, state.elsewhere) == (2, 4)
    state.told(3, 0, 0.5)
    assert (state.elsewhere, state.kv) == (2, 0.5)
    state.untold()
    assert (state.elsewhere, state.kv) == (2, -1.0)


def test_who_has_read_a_prompt_is_known_to_the_others() -> None:
    one, other = Process("one"), Process("other")
    body = "请始终用简体中文回答。".encode() * 100
    digests = beginnings(body)
    assert Reading(len(body), digests, one.memory).sent("b") == 0.0
    one.states["b"].started(1.0)
    one.tell(other)
    warm = Reading(len(body), digests, other.memory).warm(NAMES)
    assert (warm[0], warm[2]) == (0.0, 0.0)
    assert warm[1] == Reading(len(body), digests, one.memory).warm(NAMES)[1] > 0.9 * len(body)
    # Nobody is told twice.
    assert Reading(len(body), digests, other.memory).sent("b") == warm[1]
    assert not other.tell().read


def test_there_is_one_bell_for_all_that_happens_until_it_is_told() -> None:
    one = Process("one")
    dice = random.Random(3)
    busy(one, dice, 5)
    assert (one.rung, one.journal.rung) == (1, True)
    assert one.tell().number == 1
    assert not one.journal.rung
    busy(one, dice, 5)
    assert one.rung == 2


def test_of_a_rush_a_sample_is_told_and_the_rest_is_counted() -> None:
    one, other = Process("one"), Process("other")
    busy(one, random.Random(5), 10 * MOST, failing=0.0)
    for number in range(2 * MOST):
        Reading(600, beginnings(b"%d" % number * 600), one.memory).sent("a")
    report = one.tell(other)
    assert (len(report.spoke), len(report.ended), len(report.read)) == (MOST, MOST, MOST)
    assert one.journal.left_out == 9 * MOST + 9 * MOST + MOST
    assert len(msgspec.msgpack.encode(report)) < 16_384
    assert other.states["a"].seen + other.states["b"].seen + other.states["c"].seen == MOST


def test_targets_that_are_not_known_here_change_nothing_and_are_counted_once_they_are() -> None:
    one, other = Process("one"), Process("other")
    new = one.states["new"] = TargetState(None, "new")
    new.journal = one.journal
    new.started(1.0)
    new.ended(2.0, 1.0, 1, True, 0.1, 10.0)
    new.started(2.0)
    one.tell(other)
    added = other.states["new"] = TargetState(None, "new")
    assert added.peers == 0
    other.peers.recount()
    assert (added.peers, added.elsewhere) == (1, 1)


def test_one_that_says_that_it_ends_is_forgotten_at_once_and_for_good() -> None:
    one, other = Process("one"), Process("other")
    other.states["a"].started(1.0)
    other.tell(one)
    assert (len(one.peers), one.states["a"].peers) == (1, 1)
    assert one.peers.hear(other.journal.farewell(), 1.1)
    assert (len(one.peers), one.states["a"].peers, one.peers.lost) == (0, 0, 0)
    assert one.peers.forget_silent(1.1 + 2 * PATIENCE) == []
    assert not one.peers.hear(Report("other", 1, True, {"a": 1}), 1.2), "one that comes late"
    assert (len(one.peers), one.states["a"].peers) == (0, 0)


def test_gateways_of_another_version_read_each_others_farewells() -> None:
    class Before(msgspec.Struct, frozen=True, array_like=True):
        who: str
        number: int
        whole: bool
        loads: dict[str, int]
        spoke: list[Any] = []
        ended: list[Any] = []
        read: list[Any] = []
        more: bytes = b""

    said = msgspec.msgpack.encode(Process("one").journal.farewell())
    assert msgspec.msgpack.decode(said, type=Before) == Before("one", 1, True, {})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Before("one", 1, True, {})), type=Report).last is False


def test_more_than_enough_others_are_not_listened_to() -> None:
    one = Process("one")
    for number in range(MOST_PEERS + 1):
        heard = one.peers.hear(Report(f"p{number}", 1, True, {"a": 1}), 1.0)
        assert heard == (number < MOST_PEERS)
    assert one.states["a"].peers == MOST_PEERS


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_what_cannot_be_is_not_learned(wrong: float) -> None:
    one, fresh = Process("one"), Process("fresh")
    spoke = [("a", wrong, 1, 5.0, 5.0), ("a", 0.1, 0, 5.0, 5.0), ("a", 0.1, 1, wrong, 5.0), ("a", 0.1, 1, 5.0, wrong)]
    whole = (1.0, 1, 1, True, 0.1, 10.0, 5.0, 5.0)
    ended = [("a", *whole[:at], wrong, *whole[at + 1 :]) for at in (0, 4, 5, 6, 7)]
    ended += [("a", 1.0, 0, 1, True, 0.1, 10.0, 5.0, 5.0), ("a", 1.0, 1, 0, True, 0.1, 10.0, 5.0, 5.0)]
    assert one.peers.hear(Report("x", 1, False, {}, spoke, ended), 1.0)  # type: ignore[arg-type]
    assert one.learned() == fresh.learned()


@pytest.mark.parametrize("under_way", [-3, 0])
def test_nobody_has_less_than_nothing_under_way(under_way: int) -> None:
    one = Process("one")
    one.peers.hear(Report("x", 1, False, {"a": 2}), 1.0)
    one.peers.hear(Report("x", 2, False, {"a": under_way}), 1.0)
    assert one.states["a"].peers == 0


IMPOSSIBLE = {
    "a first content after the end": Report("x", 1, False, {}, (), [("a", 1.0, 1, 1, True, 1000.0, 10.0, 0.0, 0.0)]),
    "an answer of a year": Report("x", 1, False, {}, (), [("a", 3e7, 1, 1, True, 0.1, 10.0, 0.0, 0.0)]),
    "next to no units": Report("x", 1, False, {}, (), [("a", 1.0, 1, 1, True, 0.1, 1e-300, 0.0, 0.0)]),
    "among more than there are": Report("x", 1, False, {}, [("a", 1.0, 2**64 - 1, 0.0, 0.0)]),
    "as many at the end": Report("x", 1, False, {}, (), [("a", 1.0, 1, 2**64 - 1, True, 0.1, 10.0, 0.0, 0.0)]),
}


@pytest.mark.parametrize("report", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_figures_that_no_process_can_have_seen_are_not_learned(report: Report) -> None:
    one, fresh = Process("one"), Process("fresh")
    assert one.peers.hear(report, 1.0)
    assert one.learned() == fresh.learned()


def test_of_one_other_so_many_targets_are_counted_and_no_more_requests_than_there_can_be() -> None:
    one = Process("one")
    one.peers.hear(Report("x", 1, False, {f"t{number}": 1 for number in range(MOST_NAMES)}), 1.0)
    one.peers.hear(Report("x", 2, False, {"a": 1}), 1.0)
    assert ([len(row.loads) for row in one.peers.rows()], one.states["a"].peers) == ([MOST_NAMES], 0)
    one.peers.hear(Report("x", 3, True, {"a": 2**64 - 1}), 1.0)
    assert ([row.loads for row in one.peers.rows()], one.states["a"].peers) == ([{"a": MOST_UNDER_WAY}], MOST_UNDER_WAY)
    assert msgspec.msgpack.encode(take(one.states["a"]))


def test_no_more_is_learned_from_a_report_than_one_may_tell() -> None:
    one = Process("one")
    ended = [("a", 1.0, 1, 1, True, 0.1, 10.0, 0.0, 0.0)] * (4 * MOST)
    prompts = [("a", tuple(range(1000 * number, 1000 * number + 1000))) for number in range(4 * MOST)]
    one.peers.hear(Report("x", 1, False, {}, [("a", 0.1, 1, 0.0, 0.0)] * (4 * MOST), ended, prompts), 1.0)
    assert (one.states["a"].seen, len(one.memory) <= 64 * MOST) == (MOST, True)


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63)])
def test_a_number_that_is_not_of_this_process_silences_nobody(number: int) -> None:
    one = Process("one")
    assert one.peers.hear(Report("x", 1, True, {}), 1.0)
    assert not one.peers.hear(Report("x", number, True, {}), 1.0)
    assert one.peers.hear(Report("x", 3, True, {"a": 1}), 1.0)
    assert (one.peers.lost, one.states["a"].peers) == (1, 1)


def test_a_name_that_is_no_name_is_not_listened_to() -> None:
    one = Process("one")
    assert not one.peers.hear(Report("x" * (LONGEST_WHO + 1), 1, True, {"a": 1}), 1.0)
    assert (len(one.peers), one.states["a"].peers) == (0, 0)


def test_reports_that_did_not_come_stay_counted_when_who_told_them_is_gone() -> None:
    one = Process("one")
    one.peers.hear(Report("x", 1, True, {}), 1.0)
    one.peers.hear(Report("x", 10, True, {}), 1.0)
    assert one.peers.forget_silent(1.1 + PATIENCE) == ["x"]
    assert one.peers.lost == 8


ODD = st.sampled_from([1.0] * 12 + [0.0, -0.0, 5e-324, 1e-9, 0.1, 1e6, 1e11, 1e308, float("inf"), float("nan"), -1.0])
MANY = st.sampled_from([1] * 8 + [-(2**63), -1, 0, 2, 50, 2**31, 2**64 - 1])
SPOKE = st.tuples(st.sampled_from(("a", "b", "nobody")), ODD, MANY, ODD, ODD)
ENDED = st.tuples(st.sampled_from(("a", "b", "nobody")), ODD, MANY, MANY, st.booleans(), ODD, ODD, ODD, ODD)
LOADS = st.dictionaries(st.sampled_from(("a", "b", "nobody")), MANY)


@settings(max_examples=100, deadline=None)
@given(heard=st.lists(st.tuples(LOADS, st.lists(SPOKE, max_size=4), st.lists(ENDED, max_size=4)), max_size=8))
def test_whatever_is_heard_a_request_has_a_cost_everywhere(
    heard: list[tuple[dict[str, int], list[object], list[object]]],
) -> None:
    one = Process("one")
    for number, (loads, spoke, ended) in enumerate(heard):
        report = Report("x", number, number % 3 == 0, loads, spoke, ended)  # type: ignore[arg-type]
        one.peers.hear(msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=Report), 1.0 + number)
    states = list(one.states.values())
    for name, make in POLICIES.items():
        seen = make().seen(states, [1.0] * len(states), 0.5, 20.0, 900.0, [0.0, 300.0, 900.0])
        assert all(-1e301 < cost < 1e301 for cost in seen), name
        assert name.startswith("weighted-round") or min(seen) >= 0.0, name


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(("say", "whole", "repeat", "silence", "gone", "new")),
            st.integers(0, 3),
            st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3)),
        ),
        max_size=30,
    )
)
def test_what_others_have_is_the_sum_of_what_they_said_last_while_targets_come_and_go(
    steps: list[tuple[str, int, dict[str, int]]],
) -> None:
    """Against a table of who said what of whom last."""
    one = Process("one")
    table: dict[str, dict[str, int]] = {}
    said: dict[str, tuple[Report, float]] = {}
    for number, (what, which, loads) in enumerate(steps):
        who, now = f"p{which}", float(number)
        if what in ("say", "whole"):
            report = Report(who, number + 1, what == "whole", loads)
            assert one.peers.hear(report, now)
            table[who] = {**({} if what == "whole" else table.get(who, {})), **loads}
            said[who] = report, now
        elif what == "repeat" and who in table:
            assert not one.peers.hear(said[who][0], now)
        elif what == "silence":
            silent = [one for one, (_, at) in said.items() if one in table and now - at > PATIENCE]
            assert sorted(one.peers.forget_silent(now)) == sorted(silent)
            for gone in silent:
                del table[gone]
        elif what == "gone":
            one.states.pop(NAMES[which % 3], None)
        elif what == "new":
            name = NAMES[which % 3]
            one.states[name] = TargetState(None, name)
            one.peers.recount()
        expected = {name: sum(row.get(name, 0) for row in table.values()) for name in one.states}
        assert {name: state.of_service() for name, state in one.states.items()} == expected
