"""Equal questions that are asked at the same time are asked once.

The first to come leads: it asks a model. The others wait for its answer. When the leader fails or leaves, the next in line
leads; nobody fails because somebody else did. When its answer turns out not to be one that may be shared, all others go on
alone. Nobody waits longer than it is willing to; then it goes on alone.

    seat = flights.join(fingerprint, now, policy.wait)
    try:
        if await seat.wait() == "landed":
            return seat.answer
        answer = ...                                            # "leads" or "alone": ask a model
        seat.land(answer) if ... else seat.scatter()            # both do nothing for a seat that is alone
    finally:
        seat.leave()

What is waited for is a plain future, and the bound is a row in a `Sweep`, so that an exchange without a task of its own can
wait. Nothing here ends a model's work: that belongs to the request that leads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from sits.inner.sweep import NEVER, Sweep
from sits.state.cache.answer import Answer

if TYPE_CHECKING:
    import asyncio

MOST_WAITING = 10_000
"""Requests that wait, over all flights; whoever comes then goes on alone."""

State = Literal["leads", "waits", "landed", "alone"]


class Seat:
    """One request's place. Whoever took it calls `leave` in the end, which is safe to repeat."""

    __slots__ = ("_flight", "_signal", "answer", "due", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self.answer: Answer | None = None
        """There once the state is `landed`."""
        self.due = NEVER
        self._flight: _Flight | None = None
        self._signal: asyncio.Future[None] | None = None

    async def wait(self) -> State:
        """Wait until this seat leads, has its answer, or goes on alone; returns which."""
        if self._signal is not None:
            try:
                await self._signal
            except BaseException:
                self.leave()
                raise
        return self.state

    def land(self, answer: Answer) -> None:
        """The answer of the one that leads is there: all others get it."""
        if self.state == "leads" and self._flight is not None:
            self._flight.end("landed", answer)
            self._settle("landed", answer)

    def scatter(self) -> None:
        """The answer of the one that leads is not for sharing: all others go on alone, at once."""
        if self.state == "leads" and self._flight is not None:
            self._flight.end("alone", None)
            self._settle("alone", None)

    def leave(self) -> None:
        """This request is over, or waits no more. When it led, the next in line leads."""
        flight = self._flight
        if flight is None:
            return
        led = self.state == "leads"
        self._settle("alone", None)
        if led:
            flight.hand_over()
        else:
            flight.drop(self)

    def expire(self, now: float) -> None:
        """It has waited as long as it would: called by the sweep."""
        self.leave()

    def _settle(self, state: State, answer: Answer | None) -> None:
        self.state = state
        self.answer = answer
        self.due = NEVER
        if state != "leads":
            self._flight = None
        if self._signal is not None and not self._signal.done():
            self._signal.set_result(None)


class _Flight:
    """One question under way, and who waits for its answer."""

    __slots__ = ("_flights", "_key", "_line")

    def __init__(self, flights: Flights, key: bytes) -> None:
        self._flights = flights
        self._key = key
        self._line: OrderedDict[Seat, None] = OrderedDict()

    def queue(self, seat: Seat) -> None:
        self._line[seat] = None
        self._flights.waiting += 1

    def end(self, state: State, answer: Answer | None) -> None:
        self._flights.forget(self._key)
        while self._line:
            self._next()._settle(state, answer)

    def hand_over(self) -> None:
        if self._line:
            self._next()._settle("leads", None)
        else:
            self._flights.forget(self._key)

    def drop(self, seat: Seat) -> None:
        del self._line[seat]
        self._away(seat)

    def _next(self) -> Seat:
        seat, _ = self._line.popitem(last=False)
        self._away(seat)
        return seat

    def _away(self, seat: Seat) -> None:
        self._flights.waiting -= 1
        self._flights.sweep.discard(seat)


class Flights:
    """The questions under way in this process."""

    __slots__ = ("_most", "_signal", "_under_way", "sweep", "waiting")

    def __init__(self, signal: Callable[[], asyncio.Future[None]], sweep: Sweep, most: int = MOST_WAITING) -> None:
        """`signal` makes what a seat waits on (`loop.create_future`); `sweep` is run by its owner, in the same time as
        `join`'s."""
        self._signal = signal
        self._most = most
        self._under_way: dict[bytes, _Flight] = {}
        self.sweep = sweep
        self.waiting = 0

    def __len__(self) -> int:
        return len(self._under_way)

    def __contains__(self, fingerprint: bytes) -> bool:
        return fingerprint in self._under_way

    def join(self, fingerprint: bytes, now: float, wait: float) -> Seat:
        """A seat in the flight of that question; it leads when there was none, and is alone when it would not wait."""
        flight = self._under_way.get(fingerprint)
        if flight is None:
            seat = Seat("leads")
            seat._flight = self._under_way[fingerprint] = _Flight(self, fingerprint)
            return seat
        if wait <= 0 or self.waiting >= self._most:
            return Seat("alone")
        seat = Seat("waits")
        seat._flight = flight
        seat._signal = self._signal()
        seat.due = now + wait
        flight.queue(seat)
        self.sweep.add(seat)
        return seat

    def forget(self, fingerprint: bytes) -> None:
        """The flight of that question is over."""
        del self._under_way[fingerprint]
