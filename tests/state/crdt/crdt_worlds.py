"""Histories to test CRDTs with: three replicas of one value, what they did, and every delta and state on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from sits.state.clocks import HybridClock
from sits.state.crdt import GCounter, Kind, LWWRegister, ORMap, ORSet, PNCounter, Round
from sits.state.crdt.wire import latest_stamp

NODES = ("a~1", "b~1", "丙~1")
WORDS = ("x", "y", "字")

Change = Callable[[Any, str, int, HybridClock], Any]
"""From a value, a node, a number between 0 and 8 and a clock to a delta."""


def _word(number: int) -> str:
    return WORDS[number % 3]


def _key(number: int) -> str:
    return f"k{number // 3 % 2}"


CHANGES: dict[type[Any], tuple[Change, ...]] = {
    GCounter: (lambda value, node, number, clock: value.increment(node, number + 1),),
    PNCounter: (
        lambda value, node, number, clock: value.increment(node, number + 1),
        lambda value, node, number, clock: value.decrement(node, number + 1),
    ),
    ORSet: (
        lambda value, node, number, clock: value.add(_word(number), node),
        lambda value, node, number, clock: value.add(_word(number), node),
        lambda value, node, number, clock: value.remove(_word(number)),
        lambda value, node, number, clock: value.clear() if number == 0 else value.add(_word(number), node),
    ),
    LWWRegister: (lambda value, node, number, clock: value.write(bytes([number]), clock.tick(1.0)),),
    ORMap: (
        lambda value, node, number, clock: value.increment(_key(number), node, number + 1),
        lambda value, node, number, clock: value.adjust(_key(number), node, -number - 1 if number % 2 else number + 1),
        lambda value, node, number, clock: value.add(_key(number), _word(number), node),
        lambda value, node, number, clock: value.discard(_key(number), _word(number)),
        lambda value, node, number, clock: value.write(_key(number), bytes([number]), node, clock.tick(1.0)),
        lambda value, node, number, clock: value.remove(Kind(number % 4 + 1), _key(number)),
    ),
    Round: (
        lambda value, node, number, clock: (
            value.note(_word(number), bytes([number])) if value.number else value.next(_word(number), b"")
        ),
        lambda value, node, number, clock: (
            value.next(_word(number), node.encode()) if number == 0 or not value.number else value.note(node, bytes([number]))
        ),
    ),
}


class World:
    """Three replicas; `pool` has every delta and every state that there ever was."""

    def __init__(self, kind: type[Any]) -> None:
        self.kind = kind
        self.states = [kind() for _ in NODES]
        self.clocks = [HybridClock(node) for node in NODES]
        self.deltas: list[Any] = []
        self.pool: list[Any] = [kind()]

    def change(self, node: int, which: int, number: int) -> None:
        changes = CHANGES[self.kind]
        delta = changes[which % len(changes)](self.states[node], NODES[node], number, self.clocks[node])
        self.deltas.append(delta)
        self.take(node, delta)

    def take(self, node: int, other: Any) -> None:
        """Join a delta or state into a node's state."""
        stamp = latest_stamp(other)
        if stamp is not None:
            self.clocks[node].receive(stamp, 1.0)
        self.states[node] = self.states[node].merge(other)
        self.pool += [other, self.states[node]]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    world = World(draw(st.sampled_from(list(CHANGES))))
    nodes = st.integers(0, len(NODES) - 1)
    for _ in range(draw(st.integers(0, 14))):
        node = draw(nodes)
        if draw(st.integers(0, 3)):
            world.change(node, draw(st.integers(0, 5)), draw(st.integers(0, 8)))
        else:
            world.take(node, draw(st.sampled_from(world.pool)))
    return world
