"""What is next of a switch: when it goes on, when it stays, when it is rolled back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from switch_worlds import SPEC, course_at

from sits.resilience.switch.gates import judge
from sits.resilience.switch.machine import Abort, Decision, Gateway, Now, Reach, Start, Wait, decide, share_of, steps_of
from sits.resilience.switch.state import Course, Phase
from sits.resilience.switch.watching import Seen, Tally
from sits.resources.reliability import Gates, Pace, SwitchSpec

AT = 10.0
"""Seconds on the wall at which the courses of these tests have come to where they are."""
ALL = (Gateway("a", there=True, ready=3), Gateway("b", there=True, ready=3))


def at(phase: Phase, step: int = 0, *more: tuple[str, Any]) -> Course:
    return course_at(("start", None), ("reach", (phase, step)), *more)


def now(spec: SwitchSpec = SPEC, old: Tally | None = None, new: Tally | None = None, **changed: Any) -> Now:
    seen = Seen(old or tally(100), new or tally(10), 0, 0)
    moment = Now(wall=AT, here=12.0, requests=seen.new.requests, verdicts=judge(spec, seen), gateways=ALL)
    return msgspec.structs.replace(moment, **changed)


def tally(requests: int, failures: int = 0, ms: float = 100.0) -> Tally:
    made = Tally()
    for number in range(requests):
        made.add(number >= failures, ms)
    return made


AUTO = msgspec.structs.replace(SPEC, start="auto")
CANARY = msgspec.structs.replace(SPEC, pace=Pace(steps=[0.05, 0.2], step_seconds=10.0))
SOON = msgspec.structs.replace(SPEC, deadline_seconds=5.0)
LATE = Gateway("b", there=True, ready=1)
LOST = Gateway("b", there=False, ready=4)

DECISIONS: dict[str, tuple[Course, SwitchSpec, Now, Decision]] = {
    "one that is started by hand waits": (Course(course_at().round), SPEC, now(), Wait("it was not started")),
    "one that starts by itself begins": (course_at(), AUTO, now(), Start("it is declared to start by itself")),
    "one that was rolled back does not begin by itself again": (
        at(Phase.SHIFT, 0, ("abort", None)),
        AUTO,
        now(),
        Wait("it is aborted"),
    ),
    "others have time to hear of it": (course_at(("start", None)), SPEC, now(here=0.5), Wait("the others hear of it")),
    "all have found the new model": (
        course_at(("start", None)),
        SPEC,
        now(),
        Reach(Phase.WARM, 0, "2 gateways have found the new model"),
    ),
    "one gateway has not warmed it": (at(Phase.WARM), SPEC, now(gateways=(ALL[0], LATE)), Wait("not all have warmed it yet: b")),
    "one that is away does not hold it up": (
        at(Phase.WARM),
        SPEC,
        now(gateways=(ALL[0], msgspec.structs.replace(LATE, there=False))),
        Reach(Phase.VERIFY, 0, "1 gateway has warmed it"),
    ),
    "its answers were looked at": (at(Phase.VERIFY), SPEC, now(), Reach(Phase.SHIFT, 0, "2 gateways have had it answer")),
    "a gateway cannot reach the new model": (
        at(Phase.WARM),
        SPEC,
        now(fault="new does not answer"),
        Abort("new does not answer"),
    ),
    "too early for the next step": (at(Phase.SHIFT), SPEC, now(here=9.0), Wait("9 of 10 s at 10%")),
    "too few requests for the next step": (at(Phase.SHIFT), SPEC, now(requests=4), Wait("4 of 5 requests at 10%")),
    "time and requests enough": (
        at(Phase.SHIFT),
        SPEC,
        now(),
        Reach(Phase.SHIFT, 1, "10 requests in 12 s at 10%, and all gates hold"),
    ),
    "after the last step the old one drains": (
        at(Phase.SHIFT, 2),
        SPEC,
        now(),
        Reach(Phase.DRAIN, 0, "10 requests in 12 s at 100%, and all gates hold"),
    ),
    "a canary stays": (at(Phase.SHIFT, 1), CANARY, now(), Wait("a canary of 20%, until it is promoted")),
    "a promoted canary goes on to everybody": (
        at(Phase.SHIFT, 1, ("promote", None)),
        CANARY,
        now(),
        Reach(Phase.SHIFT, 2, "10 requests in 12 s at 20%, and all gates hold"),
    ),
    "one that was promoted before does not stop": (
        at(Phase.SHIFT, 0, ("promote", None)),
        CANARY,
        now(),
        Reach(Phase.SHIFT, 1, "10 requests in 12 s at 5%, and all gates hold"),
    ),
    "a paused one stays": (at(Phase.SHIFT, 0, ("pause", "lunch")), SPEC, now(), Wait("paused by gw: lunch")),
    "a broken gate rolls a paused one back too": (
        at(Phase.SHIFT, 0, ("pause", None)),
        SPEC,
        now(new=tally(60, 30)),
        Abort("the gate of the errors broke: 50.00% of 60 failed, 0.00% of 100 before; 1.00% more may"),
    ),
    "what may be chance keeps it where it is": (
        at(Phase.SHIFT),
        SPEC,
        now(new=tally(20, 1)),
        Wait("the errors may be chance: 5.00% of 20 failed, 0.00% of 100 before; 1.00% more may"),
    ),
    "nothing is concluded of too few": (at(Phase.SHIFT), SPEC, now(new=tally(4, 4)), Wait("4 of 5 requests at 10%")),
    "too slow": (
        at(Phase.SHIFT),
        SPEC,
        now(new=tally(30, 0, 400.0)),
        Abort("the gate of the latency broke: 95 of 100 have content within 431 ms, 108 ms before; 161 ms may be"),
    ),
    "a gate that breaks while it drains": (
        at(Phase.DRAIN),
        SPEC,
        now(new=tally(60, 30)),
        Abort("the gate of the errors broke: 50.00% of 60 failed, 0.00% of 100 before; 1.00% more may"),
    ),
    "the deadline": (at(Phase.SHIFT), SOON, now(), Abort("it has taken 9 s; 5 s is the deadline")),
    "no deadline once the old one drains": (
        at(Phase.DRAIN),
        SOON,
        now(gateways=(LATE,)),
        Wait("not all have let go of the old one yet: b"),
    ),
    "the time of a pause does not count": (at(Phase.SHIFT, 0, ("pause", None)), SOON, now(), Wait("paused by gw")),
    "answers of the old one are under way": (at(Phase.DRAIN), SPEC, now(), Wait("not all have let go of the old one yet: a, b")),
    "all have let go": (
        at(Phase.DRAIN),
        SPEC,
        now(gateways=(Gateway("a", there=True, ready=5),)),
        Reach(Phase.RETIRE, 0, "1 gateway has let go of the old one"),
    ),
    "one that is not heard may still ask the old one": (
        at(Phase.DRAIN),
        SPEC,
        now(gateways=(Gateway("a", there=True, ready=5), LOST)),
        Wait("not heard for a while, perhaps still asking the old model: b"),
    ),
    "one that is not heard is not waited for for ever": (
        at(Phase.DRAIN),
        SPEC,
        now(here=31.0, gateways=(Gateway("a", there=True, ready=5), LOST)),
        Reach(Phase.RETIRE, 0, "1 gateway has let go of the old one, and 1 was not heard"),
    ),
    "what is retired stays": (at(Phase.RETIRE), SPEC, now(new=tally(60, 60)), Wait("it is retired")),
}


@pytest.mark.parametrize(("course", "spec", "moment", "wanted"), DECISIONS.values(), ids=DECISIONS.keys())
def test_what_is_next(course: Course, spec: SwitchSpec, moment: Now, wanted: Decision) -> None:
    assert decide(course, spec, moment) == wanted


def test_a_difference_of_answers_holds_it_up_and_a_sure_one_rolls_it_back() -> None:
    few, many = (judge(SPEC, Seen(tally(100), tally(10), 200, differed))[2].state for differed in (2, 40))
    none = judge(msgspec.structs.replace(SPEC, gates=Gates(shadow=None)), Seen(tally(100), tally(10), 200, 200))[2].state
    assert (few, many, none) == ("doubt", "broken", "open")


def test_shares_by_phase_and_step() -> None:
    assert [share_of(at(Phase.SHIFT, step), SPEC) for step in range(4)] == [0.1, 0.5, 1.0, 1.0]
    assert [share_of(at(phase), SPEC) for phase in (Phase.VERIFY, Phase.DRAIN, Phase.RETIRE)] == [0.0, 1.0, 1.0]
    assert share_of(at(Phase.SHIFT, 2, ("abort", None)), SPEC) == 0.0
    assert share_of(course_at(), SPEC) == 0.0
    assert steps_of(CANARY) == [0.05, 0.2, 1.0]
