"""The algorithm of limits over lines of figures, wherever those are kept: in memory, or in a file that workers share.

A line is one limit: what is spent and reserved in its current window, and how much of that is reserved by this holder (a
worker). The last is what makes a dead worker's reservations returnable without a list of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sits.inner.errors import Code, SitsError
from sits.state.limits.base import MOST_LIMITS, Limit, Refusal, Reservation, Standing, end_of, refusal, unsound

MOST_HELD = 100_000
"""Reservations under way at once in one process."""


Line = tuple[int, float, int, int, int]
"""One limit: where its line is, its window's end, spent, reserved, and this holder's part of what is reserved."""
Change = tuple[int, int, int, int]
"""New figures of a line: its place, spent, reserved, this holder's part."""


class Lines(Protocol):
    """Where lines are kept. Between `enter` and `leave` nobody else reads or writes any."""

    def enter(self) -> None:
        """Take the lines; raises `state_unavailable` when another one does not give them up."""
        ...

    def leave(self) -> None: ...

    def read(self, name: str, now: float) -> Line:
        """The line of this name, made when there is none; raises `overloaded` when there is no room."""
        ...

    def open(self, place: int, ends: float) -> None:
        """Begin a window, in which nothing is spent and nobody holds anything. Only where the last one is over."""
        ...

    def write(self, changes: Sequence[Change]) -> None:
        """Set lines: all of them or, should we die meanwhile, none."""
        ...

    def reclaim(self) -> int:
        """Give back what dead holders have reserved; how many there were. Not between `enter` and `leave`."""
        ...

    def close(self) -> None:
        """Give back all that this holder has reserved, and let go. Safe to repeat."""
        ...


class CountedLimits:
    """A limiter over `Lines`. Its methods never wait for the loop."""

    def __init__(self, name: str, lines: Lines) -> None:
        self.name = name
        self._lines = lines
        self._held: set[Reservation] = set()
        self._closed = False

    async def reserve(self, limits: Sequence[Limit], amounts: Sequence[int], *, now: float, ttl: float) -> Reservation | Refusal:
        if len(self._held) >= MOST_HELD:
            raise SitsError(Code.OVERLOADED, f"{MOST_HELD} reservations are under way", retry_after=1)
        lines = self._lines
        changes: list[Change] = []
        remaining: list[int] = []
        windows: list[float] = []
        lines.enter()
        try:
            for limit, amount in zip(limits, amounts, strict=False):
                place, ends, spent, reserved, mine = lines.read(limit.name, now)
                if ends <= now:
                    ends, spent, reserved, mine = end_of(limit.window, now), 0, 0, 0
                    lines.open(place, ends)
                left = limit.cap - spent - reserved - amount
                if left < 0 < amount:
                    return refusal(limit, spent, reserved, ends, amount, now)
                if amount < 0:
                    raise unsound()
                changes.append((place, spent, reserved + amount, mine + amount))
                remaining.append(left if left > 0 else 0)
                windows.append(ends)
            count = len(changes)
            if not count == len(limits) == len(amounts) <= MOST_LIMITS or count != len({change[0] for change in changes}):
                raise unsound()
            lines.write(changes)
        finally:
            lines.leave()
        reservation = Reservation(self.name, limits, amounts, windows, remaining, now + ttl)
        self._held.add(reservation)
        return reservation

    async def settle(self, reservation: Reservation, used: Sequence[int], *, now: float) -> None:
        if len(used) != len(reservation.limits) or min(used, default=0) < 0:
            raise unsound()
        self._end(reservation, used, now)

    async def release(self, reservation: Reservation, *, now: float) -> None:
        self._end(reservation, (0,) * len(reservation.limits), now)

    async def standings(self, limits: Sequence[Limit], *, now: float) -> list[Standing]:
        lines = self._lines
        found: list[Standing] = []
        lines.enter()
        try:
            for limit in limits:
                _, ends, spent, reserved, _ = lines.read(limit.name, now)
                if ends <= now:
                    ends, spent, reserved = end_of(limit.window, now), 0, 0
                found.append(Standing(limit, spent, reserved, ends))
        finally:
            lines.leave()
        return found

    async def sweep(self, now: float) -> int:
        overdue = [reservation for reservation in self._held if reservation.expires <= now]
        for reservation in overdue:
            self._end(reservation, (0,) * len(reservation.limits), now)
            # What it turns out to have used can still be settled.
            reservation.state = "expired"
        return len(overdue) + self._lines.reclaim()

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        for reservation in self._held:
            reservation.state = "over"
        self._held.clear()
        self._lines.close()

    def _end(self, reservation: Reservation, used: Sequence[int], now: float) -> None:
        """Take what it held out of the lines and spend what was used, in the windows that have not ended."""
        if reservation.state == "over":
            return
        held = reservation.state == "held"
        lines = self._lines
        changes: list[Change] = []
        lines.enter()
        try:
            for limit, amount, window, spend in zip(
                reservation.limits, reservation.amounts, reservation.windows, used, strict=True
            ):
                if window <= now:
                    continue
                place, ends, spent, reserved, mine = lines.read(limit.name, now)
                if ends != window:
                    continue
                if held:
                    reserved -= amount
                    mine -= amount
                room = limit.cap - spent - reserved
                changes.append((place, spent + (spend if spend <= room else max(0, room)), reserved, mine))
            if changes:
                lines.write(changes)
        finally:
            lines.leave()
        reservation.state = "over"
        self._held.discard(reservation)
