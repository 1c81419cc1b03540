"""Going in: a request's place inside its route, by its class of service; where nobody declares classes there is no door."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from sits.gateway.drive import Moment
from sits.inner.errors import Code, SitsError
from sits.resilience.qos.gate import DROPPED, NEVER, SERVED, VOID, Gate, Waiter

if TYPE_CHECKING:
    from sits.gateway.exchange import Exchange

BUSY = frozenset((Code.UPSTREAM_TIMEOUT, Code.UPSTREAM_RATE_LIMITED))
"""Errors by which a model says that it has no room; so does a 503 or 529."""


class Place(Waiter):
    """An exchange at a gate. `turn` happens when it may go in or was refused (`error`)."""

    # No slots: mypyc has none for a class with a base; compiled, its attributes have places of their own anyway.

    def __init__(self, gate: Gate, priority: int, tenant: str, until: float) -> None:
        super().__init__(priority, tenant, until=until)
        self.gate = gate
        self.turn = Moment()
        self.error: SitsError | None = None

    def admitted(self) -> None:
        self.turn.happen()

    def shed(self, error: SitsError) -> None:
        self.error = error
        self.turn.happen()


async def enter(x: Exchange, gate: Gate) -> None:
    """Go in, at once or when it is this request's turn.

    Raises:
        SitsError: `overloaded`, `rate_limited`: there will be no place in time; whatever ends the request meanwhile.
    """
    _go_on(x)
    now = perf_counter()
    until = x.admitted + x.total if x.total is not None else NEVER
    place = Place(gate, x.priority, x.key.name if x.key is not None else "", until)
    if not gate.enter(place, now):
        x.waiting = place.turn
        await place.turn
        x.waiting = None
        if x.ending is not None:
            gate.give_up(place)
            gate.leave(place, perf_counter(), 0.0, VOID)
            raise x.ending
        if place.error is not None:
            raise place.error
    x.place = place


def _go_on(x: Exchange) -> None:
    """Whoever has gone already does not wait: nobody would wake him.

    Raises:
        SitsError: why it is to end.
    """
    if x.ending is not None or x.gone:
        raise x.ending or SitsError(Code.CLIENT_CLOSED, "the client went away")


def leave(x: Exchange, place: Place) -> None:
    """The last byte has gone out, or it failed: the next one may go in."""
    now = x.ended
    last = x.attempts[-1] if x.attempts else None
    outcome, seconds = VOID, 0.0
    if last is not None:
        error = last.error
        if error is None:
            outcome = SERVED
            seconds = (last.first or last.over_at or now) - place.began
        elif error.code in BUSY or last.status in (503, 529):
            outcome = DROPPED
            seconds = now - place.began
    place.gate.leave(place, now, seconds, outcome)
