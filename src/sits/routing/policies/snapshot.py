"""The numbers of a target that policies look at, taken at the moment of a choice, so that it can be made again elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from sits.routing.policies.state import TargetState

Taken = tuple[float, ...]
NUMBERS = (
    "outstanding", "elsewhere", "kv", "first", "total", "quick", "room", "peak", "errors", "base", "slope", "heard", "noted",
    "seen", "filled", "read", "again", "reading", "peers",
)  # fmt: skip
"""What `take` gives, in this order. Others are added at the end only: recorded traffic has these."""
FIRST = 14
"""So many of them all recorded traffic has."""


def take(state: TargetState) -> Taken:
    """The numbers, as they are now. 0.8 us."""
    return (
        state.outstanding,
        state.elsewhere,
        state.kv,
        state.first,
        state.total,
        state.quick,
        state.room,
        state.peak,
        state.errors,
        state.base,
        state.slope,
        state.heard,
        state.noted,
        state.seen,
        1.0 if state.filled else 0.0,
        state.read,
        state.again,
        state.reading,
        state.peers,
    )


def give(values: Sequence[float]) -> TargetState:
    """A state that policies choose by as they did by the one that was taken. It is for choosing: it has not what was learned
    from, so it learns anew."""
    state = TargetState()
    lay(state, values)
    return state


def lay(state: TargetState, values: Sequence[float]) -> None:
    """The same into a state that is there.

    Raises:
        ValueError: there are too few numbers.
    """
    if len(values) < FIRST:
        raise ValueError(f"a state has at least {FIRST} numbers, not {len(values)}")
    state.outstanding = int(values[0])
    state.elsewhere = int(values[1])
    state.kv = float(values[2])
    state.first = float(values[3])
    state.total = float(values[4])
    state.quick = float(values[5])
    state.room = float(values[6])
    state.peak = float(values[7])
    state.errors = float(values[8])
    state.base = float(values[9])
    state.slope = float(values[10])
    state.heard = float(values[11])
    state.noted = float(values[12])
    state.seen = int(values[13])
    state.filled = len(values) > FIRST and values[FIRST] > 0.0
    more = [float(one) for one in values[FIRST + 1 : len(NUMBERS)]]
    more += [0.0] * (len(NUMBERS) - FIRST - 1 - len(more))
    state.read, state.again, state.reading = more[0], more[1], more[2]
    state.peers = int(more[3])


IDLE: Taken = take(TargetState())
"""Of a target that nobody has asked."""
