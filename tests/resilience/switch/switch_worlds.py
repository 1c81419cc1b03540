"""Gateways that run one switch over a network that loses, doubles and reorders, without sockets and without clocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from sits.inner.errors import SitsError
from sits.resilience.switch.state import Course, Note, Phase
from sits.resources.reliability import Gates, Pace, SwitchSpec
from sits.state.crdt import Round

NODES = ("a", "b", "丙")
SPEC = SwitchSpec(from_="old", to="new", pace=Pace(steps=[0.1, 0.5, 1.0], step_seconds=10.0), gates=Gates(volume=5))

Act = Callable[..., Round]


def _next(course: Course, note: Note) -> Round:
    """The step that a gateway takes that finds that all is well."""
    if course.phase is Phase.SHIFT and course.step < 2:
        return course.reach(Phase.SHIFT, course.step + 1, note)
    following = Phase(min(course.phase + 1, Phase.RETIRE))
    return course.reach(following, 0, note)


ACTS: dict[str, Act] = {
    "start": lambda course, note: course.start(note),
    "next": _next,
    "abort": lambda course, note: course.abort(note),
    "pause": lambda course, note: course.pause(note, f"{note.who}-{note.at}"),
    "resume": lambda course, note: course.resume(note),
    "promote": lambda course, note: course.promote(note),
}
WEIGHTED = ("start", "next", "next", "next", "next", "next", "abort", "pause", "resume", "promote")


class World:
    """Three gateways, and every delta and state that there ever was."""

    def __init__(self) -> None:
        self.states = [Round() for _ in NODES]
        self.pool: list[Round] = [Round()]
        self.deltas: list[Round] = []
        self.now = 0

    def act(self, node: int, what: str) -> Round | None:
        """Somebody does something at a gateway; None when it is refused there."""
        self.now += 1
        try:
            delta = ACTS[what](Course(self.states[node]), Note(self.now, NODES[node], what))
        except SitsError:
            return None
        self.deltas.append(delta)
        self.hear(node, delta)
        return delta

    def hear(self, node: int, message: Round) -> None:
        self.states[node] = self.states[node].merge(message)
        self.pool += [message, self.states[node]]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    world = World()
    nodes = st.integers(0, len(NODES) - 1)
    for _ in range(draw(st.integers(0, 20))):
        if draw(st.integers(0, 3)):
            world.act(draw(nodes), draw(st.sampled_from(WEIGHTED)))
        else:
            world.hear(draw(nodes), draw(st.sampled_from(world.pool)))
    return world


def course_at(*facts: tuple[str, Any]) -> Course:
    """A course with these things done in turn by one gateway."""
    state = Round()
    for at, (what, argument) in enumerate(facts, 1):
        course, note = Course(state), Note(at * 1000, "gw", str(argument or ""))
        delta = course.reach(*argument, note) if what == "reach" else ACTS[what](course, note)
        state = state.merge(delta)
    return Course(state)
