"""What is to be noted next of a switch: pure, and the same on every gateway that has seen the same.

Whoever comes first notes it; that two do so at the same time changes nothing. What each gateway must have done itself (found
the new model, warmed it, verified it, let go of the old one) it tells in its row, and the switch goes on when all that are
there have.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sits.resilience.switch.gates import Verdict
from sits.resilience.switch.state import Course, Phase
from sits.resources.reliability import SwitchSpec

OWN = {
    Phase.PREPARE: "found the new model",
    Phase.WARM: "warmed it",
    Phase.VERIFY: "had it answer",
    Phase.DRAIN: "let go of the old one",
}
"""What every gateway does itself in a phase before the switch goes on."""


class Gateway(msgspec.Struct, frozen=True):
    """A process that takes part."""

    id: str
    there: bool
    """Whether it was heard of late."""
    ready: int
    """The last phase of which it has done its part."""


class Now(msgspec.Struct, frozen=True):
    """What is known at this moment, besides the facts."""

    wall: float
    here: float
    """Seconds since the switch came to where it is, by the clock of this gateway."""
    requests: int
    """Of the new model at this step."""
    verdicts: Sequence[Verdict] = ()
    gateways: Sequence[Gateway] = ()
    fault: str = ""
    """Why this gateway cannot do its part."""
    patience: float = 10.0
    """How long a gateway that is not heard is waited for at the least."""
    settle: float = 1.5
    """How long the others have to hear that it began."""


class Start(msgspec.Struct, frozen=True):
    """Begin."""

    why: str


class Reach(msgspec.Struct, frozen=True):
    """Go on to a phase and step."""

    phase: Phase
    step: int
    why: str


class Abort(msgspec.Struct, frozen=True):
    """Roll back."""

    why: str


class Wait(msgspec.Struct, frozen=True):
    """Stay."""

    why: str


Decision = Start | Reach | Abort | Wait


def steps_of(spec: SwitchSpec) -> list[float]:
    """The shares in turn. A canary has the whole as a further one, which it comes to when it is promoted."""
    steps = list(spec.pace.steps)
    return steps if steps[-1] >= 1.0 else [*steps, 1.0]


def share_of(course: Course, spec: SwitchSpec) -> float:
    """The share of the new model."""
    if course.idle or course.rolled_back or course.phase < Phase.SHIFT:
        return 0.0
    if course.phase > Phase.SHIFT:
        return 1.0
    steps = steps_of(spec)
    return steps[min(course.step, len(steps) - 1)]


def decide(course: Course, spec: SwitchSpec, now: Now) -> Decision:
    """What to note next."""
    if course.idle:
        return Start("it is declared to start by itself") if spec.start == "auto" else Wait("it was not started")
    if course.over:
        return Wait(f"it is {course.state}")
    broken = _broken(course, spec, now)
    if broken:
        return Abort(broken)
    if course.pauses:
        pause = course.pauses[0]
        return Wait(f"paused by {pause.who}" + (f": {pause.why}" if pause.why else ""))
    return _shift(course, spec, now) if course.phase is Phase.SHIFT else _together(course, spec, now)


def _broken(course: Course, spec: SwitchSpec, now: Now) -> str:
    """Why it must be rolled back; empty when it need not."""
    if course.phase < Phase.DRAIN:
        if now.fault:
            return now.fault
        assert course.started is not None or course.notes
        begun = course.started.at / 1000 if course.started is not None else now.wall
        took = now.wall - begun - course.paused_seconds(now.wall)
        if took >= spec.deadline_seconds and not course.pauses:
            return f"it has taken {took:.0f} s; {spec.deadline_seconds:g} s is the deadline"
    # Before the first request has moved only shadows have something to say.
    for verdict in now.verdicts:
        if verdict.state == "broken":
            return f"the gate of the {verdict.gate} broke: {verdict.why}"
    return ""


def _shift(course: Course, spec: SwitchSpec, now: Now) -> Decision:
    steps = steps_of(spec)
    step = min(course.step, len(steps) - 1)
    share = steps[step]
    if now.here < spec.pace.step_seconds:
        return Wait(f"{now.here:.0f} of {spec.pace.step_seconds:g} s at {share:.0%}")
    if now.requests < spec.gates.volume:
        return Wait(f"{now.requests} of {spec.gates.volume} requests at {share:.0%}")
    doubt = _doubt(now)
    if doubt:
        return Wait(doubt)
    if share < 1.0 and step == len(spec.pace.steps) - 1 and not course.promoted:
        return Wait(f"a canary of {share:.0%}, until it is promoted")
    why = f"{now.requests} requests in {now.here:.0f} s at {share:.0%}, and all gates hold"
    return Reach(Phase.SHIFT, step + 1, why) if step + 1 < len(steps) else Reach(Phase.DRAIN, 0, why)


def _doubt(now: Now) -> str:
    """What is on the wrong side and may still be chance; empty when nothing is."""
    return next((f"the {one.gate} may be chance: {one.why}" for one in now.verdicts if not one.holds), "")


def _together(course: Course, spec: SwitchSpec, now: Now) -> Decision:
    """Go on when all have done their part. Those that are not heard are waited for before the old model is given up."""
    phase = course.phase
    if phase is Phase.PREPARE and now.here < now.settle:
        return Wait("the others hear of it")
    late = [one.id for one in now.gateways if one.there and one.ready < phase]
    if late or not now.gateways:
        return Wait(f"not all have {OWN[phase]} yet: {', '.join(late[:5])}")
    if phase is Phase.VERIFY and (doubt := _doubt(now)):
        return Wait(doubt)
    count = sum(one.there for one in now.gateways)
    if phase is not Phase.DRAIN:
        return Reach(Phase(phase + 1), 0, f"{_gateways(count)} {OWN[phase]}")
    lost = [one.id for one in now.gateways if not one.there and one.ready < phase]
    if lost and now.here < max(spec.pace.drain_seconds, now.patience):
        return Wait(f"not heard for a while, perhaps still asking the old model: {', '.join(lost[:5])}")
    unheard = f", and {len(lost)} {'was' if len(lost) == 1 else 'were'} not heard" if lost else ""
    return Reach(Phase.RETIRE, 0, f"{_gateways(count)} {OWN[phase]}{unheard}")


def _gateways(count: int) -> str:
    return "1 gateway has" if count == 1 else f"{count} gateways have"
