"""A switch as people and programs see it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from sits.resilience.switch.machine import Decision, Now, share_of, steps_of
from sits.resilience.switch.state import Course, Event, Phase
from sits.resilience.switch.watching import Row, Tally, place_of, seen
from sits.resources.reliability import SwitchSpec


class SwitchEvent(msgspec.Struct, frozen=True):
    """Something that was noted."""

    switch: str
    generation: int
    event: str
    who: str
    why: str
    at: float
    """Unix seconds."""


class ArmStatus(msgspec.Struct, frozen=True):
    """What was seen of one of the two models at this step, over all gateways."""

    requests: int
    failures: int
    p95_ms: float | None
    """To the first content."""


class GateStatus(msgspec.Struct, frozen=True):
    """What one gate says: `fine`, `doubt`, `broken`, or `open` while too little was seen."""

    gate: str
    state: str
    why: str


class GatewayStatus(msgspec.Struct, frozen=True):
    """A process that takes part."""

    id: str
    there: bool
    ready: str
    """The last phase of which it has done its part; empty: none."""
    busy: int
    """Answers of the old model that are under way, while it drains."""


class SwitchStatus(msgspec.Struct, frozen=True):
    """How a switch is, as far as this gateway knows."""

    name: str
    old: str
    new: str
    routes: list[str]
    state: str
    """`idle`, `prepare`, `warm`, `verify`, `shift`, `drain`, `retired` or `aborted`."""
    generation: int
    step: int
    """Of the steps, from 1; 0 before the first."""
    steps: list[float]
    share: float
    """Of the requests, for the new model."""
    paused: bool
    promoted: bool
    over: bool
    why: str
    """Why it is as it is: what it waits for, or why it ended."""
    started: float | None
    """Unix seconds."""
    seconds: float
    """Since it came to where it is."""
    observed: dict[str, ArmStatus]
    """`old` and `new`."""
    gates: list[GateStatus]
    gateways: list[GatewayStatus]
    history: list[SwitchEvent]
    """What was noted in this generation, oldest first."""


def event_of(name: str, event: Event) -> SwitchEvent:
    return SwitchEvent(name, event.generation, event.what, event.note.who, event.note.why, event.note.at / 1000)


def status_of(
    name: str, spec: SwitchSpec, course: Course, now: Now, decision: Decision, rows: Mapping[str, tuple[int, Row]]
) -> SwitchStatus:
    """Everything about it in one value."""
    summed = seen((row for _, row in rows.values()), place_of(course))
    shifting = not course.idle and course.phase is Phase.SHIFT
    gone = course.phase > Phase.SHIFT
    return SwitchStatus(
        name=name,
        old=spec.from_,
        new=spec.to,
        routes=list(spec.routes),
        state=course.state,
        generation=course.generation,
        step=course.step + 1 if shifting else len(steps_of(spec)) if gone and not course.idle else 0,
        steps=steps_of(spec),
        share=share_of(course, spec),
        paused=course.live and bool(course.pauses),
        promoted=course.promoted,
        over=course.over,
        why=_why(course, decision),
        started=course.started.at / 1000 if course.started is not None else None,
        seconds=max(0.0, now.here) if course.live else 0.0,
        observed={"old": _arm(summed.old), "new": _arm(summed.new)},
        gates=[GateStatus(one.gate, one.state, one.why) for one in now.verdicts],
        gateways=[
            GatewayStatus(one.id, one.there, Phase(one.ready).name.lower() if one.ready in _PHASES else "", _busy(rows, one.id))
            for one in now.gateways
        ],
        history=[event_of(name, event) for event in course.events()],
    )


def _why(course: Course, decision: Decision) -> str:
    if course.rolled_back and course.aborted is not None:
        return f"rolled back by {course.aborted.who}" + (f": {course.aborted.why}" if course.aborted.why else "")
    if course.retired:
        events = [event for event in course.events() if event.what == "retire"]
        return events[-1].note.why if events else ""
    return decision.why


def _arm(tally: Tally) -> ArmStatus:
    return ArmStatus(tally.requests, tally.failures, tally.quantile(0.95))


def _busy(rows: Mapping[str, tuple[int, Row]], name: str) -> int:
    return rows[name][1].busy if name in rows else 0


_PHASES = frozenset(int(phase) for phase in Phase)
