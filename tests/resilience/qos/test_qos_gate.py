"""The gate: who is let in, in which order, who is refused and what they are told."""

from __future__ import annotations

import contextlib
import heapq
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.bench.overload_world import DRAWS, Arrival, GateWorld, Slots, Told, crowd
from sits.inner.errors import Code, SitsError
from sits.resilience.qos.classes import P0, P1, P2
from sits.resilience.qos.course import LATER, LESS, ORDINARY, degrade
from sits.resilience.qos.gate import DROPPED, SERVED, VOID, Gate, Waiter
from sits.resources.reliability import ClassSpec, QosSpec

TWO = QosSpec(start=2, least=2, most=2)
"""Two at once, always."""


class One(Waiter):
    """A request that keeps what it is told."""

    __slots__ = ("name", "told")

    def __init__(self, name: str, priority: int, told: list[str], *, tenant: str = "", until: float = 1e9, cost: int = 1) -> None:
        super().__init__(priority, tenant or name, until=until, cost=cost)
        self.name = name
        self.told = told

    def admitted(self) -> None:
        self.told.append(f"{self.name} in")

    def shed(self, error: SitsError) -> None:
        self.told.append(f"{self.name} {error.code.value}")


class Scene:
    """A gate, a clock, and whoever comes."""

    def __init__(self, spec: QosSpec = TWO) -> None:
        self.gate = Gate("chat", spec, 0.0)
        self.told: list[str] = []
        self.now = 0.0
        self.ones: dict[str, One] = {}

    def come(self, name: str, priority: int = P1, *, tenant: str = "", until: float = 1e9, cost: int = 1) -> bool:
        one = self.ones[name] = One(name, priority, self.told, tenant=tenant, until=until, cost=cost)
        return self.gate.enter(one, self.now)

    def go(self, name: str, outcome: int = SERVED) -> None:
        self.gate.leave(self.ones[name], self.now, 0.1, outcome)

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self.gate.tick(self.now)

    def full(self) -> Scene:
        assert self.come("a")
        assert self.come("b")
        return self


def test_there_is_room_for_as_many_as_the_limit() -> None:
    scene = Scene()
    assert [scene.come(name) for name in "abc"] == [True, True, False]
    assert scene.gate.standing().waiting == (0, 1, 0)
    scene.go("a")
    assert scene.told == ["c in"]
    assert (scene.gate.inside, scene.gate.waiting) == (2, 0)


def test_the_classes_go_in_by_their_order_whenever_they_came() -> None:
    scene = Scene(QosSpec(start=2, least=2, most=2, p0=ClassSpec(first_ms=5000.0), p1=ClassSpec(5000.0))).full()
    # P0 has places of its own beyond the limit; these are taken.
    assert scene.come("top", P0)
    assert scene.come("too", P0)
    for name, priority in (("low", P2), ("middle", P1), ("high", P0)):
        assert not scene.come(name, priority)
    for name in ("a", "b", "top", "too", "high"):
        scene.go(name)
    assert scene.told == ["high in", "middle in", "low in"]


def test_p0_has_half_as_many_places_again() -> None:
    scene = Scene(QosSpec(start=8, least=8, most=8))
    assert all(scene.come(f"first {number}") for number in range(8))
    assert [scene.come(f"top {number}", P0) for number in range(5)] == [True] * 4 + [False]
    assert not scene.come("middle", P1)


def test_tenants_take_turns() -> None:
    scene = Scene(QosSpec(start=2, least=2, most=2, p1=ClassSpec(5000.0))).full()
    for name in ("x1", "x2", "x3", "y1", "z1", "y2"):
        scene.come(name, tenant=name[0])
    for name in ("a", "b", "x1", "y1", "z1", "x2"):
        scene.go(name)
    assert scene.told == [f"{name} in" for name in ("x1", "y1", "z1", "x2", "y2", "x3")]


def test_a_tenant_of_dear_requests_has_fewer_turns() -> None:
    scene = Scene(QosSpec(start=2, least=2, most=2, p1=ClassSpec(60_000.0))).full()
    for number in range(4):
        scene.come(f"dear {number}", tenant="dear", cost=3)
    for number in range(9):
        scene.come(f"cheap {number}", tenant="cheap")
    scene.go("a")
    while len(scene.told) < 10:
        scene.go(scene.told[-1].removesuffix(" in"))
    assert [told.split()[0] for told in scene.told].count("dear") == 3
    assert [told.split()[0] for told in scene.told[:5]] == ["dear", "cheap", "cheap", "cheap", "dear"]


def test_who_waits_too_long_is_told_so_by_the_next_tick() -> None:
    scene = Scene().full()
    scene.come("c", P1)
    scene.pass_time(0.7)
    assert scene.told == []
    scene.pass_time(0.2)
    assert scene.told == ["c overloaded"]
    assert scene.gate.waiting == 0


def test_a_deadline_of_its_own_ends_a_wait_earlier() -> None:
    scene = Scene().full()
    scene.come("c", P2, until=0.25)
    scene.pass_time(0.3)
    assert scene.told == ["c overloaded"]


def test_nobody_is_let_in_after_their_time_even_between_two_ticks() -> None:
    scene = Scene().full()
    scene.come("c", P1)
    scene.come("d", P2)
    scene.now = 0.85
    scene.go("a")
    assert scene.told == ["c overloaded", "d in"]


def test_who_comes_after_its_own_deadline_is_refused() -> None:
    scene = Scene().full()
    scene.now = 3.0
    with pytest.raises(SitsError) as caught:
        scene.come("c", P1, until=3.0)
    assert caught.value.code is Code.OVERLOADED
    assert scene.gate.waiting == 0


def test_a_client_that_goes_away_is_called_no_more() -> None:
    scene = Scene().full()
    scene.come("c")
    scene.come("d")
    scene.gate.give_up(scene.ones["c"])
    scene.gate.give_up(scene.ones["c"])
    scene.go("a")
    scene.pass_time(2.0)
    assert scene.told == ["d in"]


def test_leaving_twice_counts_once() -> None:
    scene = Scene().full()
    scene.go("a")
    scene.go("a")
    assert scene.gate.inside == 1


def test_the_newest_of_the_tenant_with_the_most_in_line_makes_room_for_another() -> None:
    scene = Scene(QosSpec(start=2, least=2, most=2, p2=ClassSpec(5000.0, 4))).full()
    for number in range(8):
        with contextlib.suppress(SitsError):
            scene.come(f"flood {number}", P2, tenant="flood")
    assert not scene.come("other", P2)
    assert not scene.come("third", P2)
    assert scene.told == ["flood 3 rate_limited", "flood 2 rate_limited"]
    with pytest.raises(SitsError) as caught:
        scene.come("fourth", P2, tenant="third")
    assert caught.value.code is Code.OVERLOADED


def test_among_equals_nobody_is_sent_away_for_another() -> None:
    scene = Scene(QosSpec(start=2, least=2, most=2, p2=ClassSpec(5000.0, 2))).full()
    for number in range(20):
        for tenant in "xyz":
            with contextlib.suppress(SitsError):
                scene.come(f"{tenant}{number}", P2, tenant=tenant)
    assert scene.told == []
    assert scene.gate.waiting == 2


def test_a_flood_is_told_that_it_is_one_and_others_are_not() -> None:
    scene = Scene(QosSpec(start=4, least=4, most=4, p1=ClassSpec(5000.0, 4)))
    codes = Counter[str]()
    for number in range(40):
        try:
            scene.come(f"flood {number}", tenant="flood")
        except SitsError as error:
            codes[error.code.value] += 1
        if number == 10:
            assert not scene.come("other")
    assert scene.ones["other"].waiting
    assert codes["rate_limited"] >= 29


def test_p0_takes_the_places_of_p2_in_line_and_then_of_p1() -> None:
    spec = QosSpec(start=2, least=2, most=2, p0=ClassSpec(5000.0, 1), p1=ClassSpec(5000.0, 1), p2=ClassSpec(5000.0, 1))
    scene = Scene(spec).full()
    for name in ("top 1", "top 2"):
        assert scene.come(name, P0)
    scene.come("low", P2)
    scene.come("middle", P1)
    for number in range(3, 6):
        assert not scene.come(f"top {number}", P0)
    assert scene.told == ["low overloaded", "middle overloaded"]
    with pytest.raises(SitsError):
        scene.come("top 6", P0)
    assert scene.gate.standing().waiting == (3, 0, 0)


def test_a_refusal_says_when_to_come_again_and_not_to_all_the_same() -> None:
    scene = Scene(QosSpec(start=2, least=2, most=2, p2=ClassSpec(2000.0, 1)))
    scene.full()
    scene.now = 0.5
    scene.go("a")
    scene.come("c")
    said = []
    for number in range(60):
        scene.now += 0.02
        scene.gate.tick(scene.now)
        try:
            scene.come(f"low {number}", P2)
        except SitsError as error:
            said.append(error.retry_after or 0.0)
    assert all(1.0 <= seconds <= 30.0 for seconds in said)
    assert len({int(seconds) for seconds in said}) > 3


def test_a_class_that_gets_nothing_is_refused_at_once() -> None:
    world = GateWorld(Slots(8, DRAWS["constant"](0.1, random.Random(1))))
    told = world.run(crowd(random.Random(2), 160.0, (0.0, 0.8, 0.2), 0.0, 20.0, ("one", "two")), 20.0)
    low = [one for one in told if one.priority == P2 and one.came > 5.0]
    assert sum(one.how == "served" for one in low) <= 0.1 * len(low)
    assert sum(one.how == "refused" for one in low) >= 0.85 * len(low)


def test_what_is_called_may_call_back() -> None:
    gate = Gate("chat", TWO, 0.0)
    told: list[str] = []

    class Brief(One):
        """Is over as soon as it is in."""

        __slots__ = ()

        def admitted(self) -> None:
            super().admitted()
            gate.leave(self, 1.0, 0.1, VOID)

    ones = [Brief(f"{number}", P1, told) for number in range(16)]
    first = [One("a", P1, told), One("b", P1, told)]
    for one in (*first, *ones):
        gate.enter(one, 0.9)
    gate.leave(first[0], 1.0, 0.1, SERVED)
    assert told == [f"{number} in" for number in range(16)]
    assert (gate.inside, gate.waiting) == (1, 0)


def test_a_refusal_by_the_model_lowers_the_limit() -> None:
    scene = Scene(QosSpec(start=8, least=2, most=8))
    for number in range(8):
        scene.come(f"{number}")
    scene.now = 1.0
    scene.go("7", DROPPED)
    assert scene.gate.limit.value == 7
    scene.go("6", VOID)
    assert scene.gate.limit.value == 7


def test_overload_is_when_somebody_waits_all_the_time_and_is_over_a_second_after_there_is_room() -> None:
    scene = Scene().full()
    scene.now = 0.05
    scene.come("c")
    scene.now = 0.0
    scene.pass_time(0.1)
    seen = [scene.gate.overloaded]
    scene.pass_time(0.1)
    seen.append(scene.gate.overloaded)
    scene.go("a")
    scene.go("b")
    for seconds in (0.9, 0.2):
        scene.pass_time(seconds)
        seen.append(scene.gate.overloaded)
    assert seen == [False, True, True, False]


def test_the_course_of_each_class() -> None:
    scene = Scene().full()
    courses = [degrade(priority, scene.gate) for priority in (P0, P1, P2)]
    assert courses == [ORDINARY, ORDINARY, ORDINARY]
    scene.come("c")
    scene.pass_time(0.3)
    courses = [degrade(priority, scene.gate) for priority in (P0, P1, P2)]
    assert courses == [ORDINARY, LESS, LATER]
    scene.go("a")
    scene.go("b")
    courses = [degrade(priority, scene.gate) for priority in (P0, P1, P2)]
    assert courses == [ORDINARY, ORDINARY, ORDINARY], "there is room again"


def test_new_terms_hold_for_those_who_come_from_then_on() -> None:
    scene = Scene().full()
    scene.come("c", P1)
    scene.gate.configure(QosSpec(start=2, least=3, most=3, p1=ClassSpec(100.0)))
    scene.pass_time(0.1)
    assert scene.told == ["c in"]
    scene.come("d", P1)
    scene.pass_time(0.2)
    assert scene.told == ["c in", "d overloaded"]


def test_when_a_gate_is_given_up_everybody_goes_in() -> None:
    scene = Scene().full()
    for name, priority in (("c", P2), ("d", P1), ("e", P2)):
        scene.come(name, priority)
    scene.gate.disband(0.2)
    assert scene.told == ["d in", "c in", "e in"]
    assert scene.come("f", P2)


# In a world with a server.


def share(told: Sequence[Told], how: str) -> float:
    return sum(one.how == how for one in told) / len(told)


@pytest.fixture(scope="module")
def overload() -> list[Told]:
    """Four times what a server of 32 places can do, for 30 s; half of what it can do before and after."""
    dice = random.Random(3)
    world = GateWorld(Slots(32, DRAWS["uneven"](0.1, dice)))
    mix, tenants = (0.1, 0.3, 0.6), ("one", "two", "三")
    arrivals = [
        *crowd(dice, 160.0, mix, 0.0, 10.0, tenants),
        *crowd(dice, 1280.0, mix, 10.0, 40.0, tenants),
        *crowd(dice, 160.0, mix, 40.0, 50.0, tenants),
    ]
    return world.run(arrivals, 51.0)


def test_under_overload_all_of_p0_is_served_within_its_time(overload: list[Told]) -> None:
    top = [one for one in overload if one.priority == P0]
    assert share(top, "served") == 1.0
    assert max(one.waited for one in top) <= 0.3


def test_under_overload_the_server_is_kept_busy(overload: list[Told]) -> None:
    done = [one for one in overload if one.how == "served" and 10.0 < one.over <= 40.0]
    assert len(done) >= 0.95 * 320 * 30


def test_under_overload_p1_gets_what_p0_leaves_and_waits_little(overload: list[Told]) -> None:
    middle = [one for one in overload if one.priority == P1 and 12.0 < one.came <= 40.0]
    assert share(middle, "served") >= 0.4
    waits = sorted(one.waited for one in middle if one.how == "served")
    assert waits[len(waits) // 2] <= 0.25


def test_under_overload_nearly_all_refusals_come_at_once_and_say_when_to_come_again(overload: list[Told]) -> None:
    refused = [one for one in overload if one.how != "served"]
    assert share(refused, "refused") >= 0.98
    assert all(one.error is not None and one.error.retry_after and one.error.retry_after >= 1.0 for one in refused)


def test_after_an_overload_everybody_is_served_again_within_a_second(overload: list[Told]) -> None:
    after = [one for one in overload if one.came > 41.0]
    assert len(after) > 1000
    assert share(after, "served") == 1.0


def test_the_flood_of_one_tenant_does_not_starve_another() -> None:
    dice = random.Random(3)
    world = GateWorld(Slots(32, DRAWS["uneven"](0.1, dice)))
    flood = crowd(dice, 900.0, (0, 1, 0), 0.0, 10.0, ("flood",))
    quiet = crowd(random.Random(9), 60.0, (0, 1, 0), 0.0, 10.0, ("quiet",))
    told = world.run(heapq.merge(flood, quiet, key=lambda arrival: arrival.at), 12.0)
    settled = [one for one in told if one.came > 2.0]
    assert share([one for one in settled if one.tenant == "quiet"], "served") == 1.0
    refusals = Counter(one.error.code for one in settled if one.error is not None)
    assert refusals[Code.RATE_LIMITED] >= 0.95 * refusals.total()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["come", "go", "give up", "tick"]), st.integers(0, 2), st.sampled_from("xyz"), st.floats(0.0, 0.4)
        ),
        max_size=80,
    )
)
def test_everybody_is_told_once_and_nobody_is_forgotten(steps: list[tuple[str, int, str, float]]) -> None:
    """Whatever happens in whatever order: one answer each, no more inside than there may be, and nobody left at the end."""
    told: list[str] = []
    gate = Gate("chat", QosSpec(start=2, least=2, most=2, p2=ClassSpec(700.0, 3)), 0.0)
    now = 0.0
    inside: dict[str, One] = {}
    waiting: dict[str, One] = {}
    answers = Counter[str]()

    def note() -> None:
        for line in told:
            name, how = line.split()
            answers[name] += 1
            one = waiting.pop(name)
            if how == "in":
                assert now < one.due
                inside[name] = one
        told.clear()

    for number, (what, priority, tenant, later) in enumerate(steps):
        now += later
        if what == "come":
            one = One(f"{number}", priority, told, tenant=tenant)
            try:
                entered = gate.enter(one, now)
            except SitsError:
                answers[one.name] += 1
            else:
                answers[one.name] += entered
                (inside if entered else waiting)[one.name] = one
        elif what == "go" and inside:
            gate.leave(inside.pop(next(iter(inside))), now, 0.1, SERVED)
        elif what == "give up" and waiting:
            name = next(iter(waiting))
            gate.give_up(waiting.pop(name))
            answers[name] += 1
        elif what == "tick":
            gate.tick(now)
        note()
        assert gate.inside == len(inside) <= 4
        assert gate.waiting == len(waiting) == sum(gate.standing().waiting)
    gate.tick(now + 10.0)
    now += 10.0
    note()
    assert not waiting
    assert set(answers.values()) <= {1}


def test_arrivals_are_in_order_and_of_the_shares_that_were_asked_for() -> None:
    arrivals: list[Arrival] = list(crowd(random.Random(1), 100.0, (0.1, 0.3, 0.6), 5.0, 45.0, ("one", "two")))
    assert [one.at for one in arrivals] == sorted(one.at for one in arrivals)
    assert len(arrivals) == pytest.approx(4000, rel=0.05)
    assert Counter(one.priority for one in arrivals)[P2] == pytest.approx(2400, rel=0.05)
