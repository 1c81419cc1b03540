"""The contract of limits: reserve before an attempt, settle or release after it.

    reserve(limits, amounts) -> Reservation | Refusal      all of them, or none
    settle(reservation, used)                              what was reserved comes back, what was used is spent
    release(reservation)                                   nothing was used

What every limiter promises, for each limit and at every moment:

- spent + reserved <= cap. What turns out to have been used beyond what was reserved is spent as far as there is room: what is
  over changes nothing any more, since nothing else is let in before the window ends. (The ledger has the true figure.)
- Nothing is admitted twice by several workers or gateways that share the limits: a reservation is one atomic step over all.
- When nothing is under way nothing is reserved: settled, released, and what is left by those who died or forgot comes back.
- Windows are fixed and aligned to unix time (a minute begins at second 0). What was reserved in a window counts in that window:
  settled after its end, it neither gives back nor costs anything.

Time is unix seconds and is passed in. A clock that jumps moves the edges of windows, never their caps.
"""

from __future__ import annotations

import calendar
import math
import time
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from sits.inner.errors import Code, SitsError

Window = float | Literal["month", "forever"]
"""Seconds (60, 86400), a month of the calendar in UTC, or no end: for what is under way at once, and for budgets in all."""
LARGEST_CAP = 2**53 - 1
"""The largest whole number that every store counts exactly; in nano-dollars nine million dollars."""
MOST_LIMITS = 32
"""Limits that one reservation may touch."""


class Limit(msgspec.Struct, frozen=True):
    """So much in each window. `name` says who and what, the window included: `key:alice/tokens/minute`."""

    name: str
    cap: int
    window: Window = 60.0


class Standing(msgspec.Struct, frozen=True):
    """How a limit stands. `resets` is when its window ends in unix seconds, infinity when it never does."""

    limit: Limit
    spent: int
    reserved: int
    resets: float

    @property
    def remaining(self) -> int:
        return max(0, self.limit.cap - self.spent - self.reserved)


class Refusal(msgspec.Struct, frozen=True):
    """A limit is reached; nothing was reserved. `retry_after` in seconds, None when waiting does not help."""

    standing: Standing
    amount: int
    retry_after: float | None

    def error(self) -> SitsError:
        """What the client is told."""
        standing = self.standing
        left = f"{standing.remaining} of {standing.limit.cap} left"
        message = f"the limit {standing.limit.name} is reached: {self.amount} asked for, {left}"
        return SitsError(Code.RATE_LIMITED, message, retry_after=self.retry_after)


class Reservation:
    """What is held for one request. `remaining` is what each limit had left when it was made, and `windows` when their windows
    end; `by` is the limiter that made it, `state` and `tag` are that one's business."""

    __slots__ = ("amounts", "by", "expires", "limits", "remaining", "state", "tag", "windows")

    def __init__(
        self,
        by: str,
        limits: Sequence[Limit],
        amounts: Sequence[int],
        windows: Sequence[float],
        remaining: Sequence[int],
        expires: float,
        tag: str = "",
    ) -> None:
        self.by = by
        self.limits = limits
        self.amounts = amounts
        self.windows = windows
        self.remaining = remaining
        self.expires = expires
        self.state: Literal["held", "expired", "over"] = "held"
        self.tag = tag


class Limiter(Protocol):
    """Counts what is admitted, alone or together with others. Belongs to one loop, and is called from one thread.

    May raise `state_unavailable` where its state is kept elsewhere, and `overloaded` when there is no room for another limit.
    """

    name: str

    async def reserve(self, limits: Sequence[Limit], amounts: Sequence[int], *, now: float, ttl: float) -> Reservation | Refusal:
        """Hold `amounts` of `limits`, each named once, or refuse by the first that has no room. Held at most `ttl` seconds."""
        ...

    async def settle(self, reservation: Reservation, used: Sequence[int], *, now: float) -> None:
        """Give back what was reserved and spend what was used. The second time, and after a release, it does nothing."""
        ...

    async def release(self, reservation: Reservation, *, now: float) -> None:
        """Give back what was reserved: nothing was used. Safe to repeat."""
        ...

    async def standings(self, limits: Sequence[Limit], *, now: float) -> list[Standing]:
        """How limits stand."""
        ...

    async def sweep(self, now: float) -> int:
        """Give back what is held too long here, and what the dead have left; how many reservations or holders that were.

        To be called about once a second.
        """
        ...

    async def aclose(self) -> None:
        """Give back what is held here and let go. Safe to repeat."""
        ...


def end_of(window: Window, now: float) -> float:
    """When the window that `now` is in ends."""
    if window == "forever":
        return math.inf
    if window == "month":
        moment = time.gmtime(now)
        year, month = divmod(moment.tm_year * 12 + moment.tm_mon, 12)
        return float(calendar.timegm((year, month + 1, 1, 0, 0, 0)))
    return (now // window + 1.0) * window


def unsound() -> SitsError:
    message = f"a reservation takes one amount, not negative, for each of at most {MOST_LIMITS} different limits"
    return SitsError(Code.INVALID_REQUEST, message)


def refusal(limit: Limit, spent: int, reserved: int, ends: float, amount: int, now: float) -> Refusal:
    """The refusal by a limit; waiting helps when the window ends, and the amount fits a fresh one."""
    helps = math.isfinite(ends) and amount <= limit.cap
    return Refusal(Standing(limit, spent, reserved, ends), amount, max(0.0, ends - now) if helps else None)
