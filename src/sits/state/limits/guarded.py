"""What limits do while the store that they are shared in is away: as declared, and never in silence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeVar

import msgspec

from sits.inner.errors import Code, SitsError
from sits.state.limits.base import Limit, Limiter, Refusal, Reservation, Standing

T = TypeVar("T")
NOBODY = "nobody"
"""Who made a reservation that is none."""
Away = Literal["open", "closed", "local"]
"""`open`: everything is let in, and counted; `closed`: nothing is, with `state_unavailable`; `local`: each gateway keeps its own
share (cap / gateways, rounded down)."""


class GuardedLimits:
    """A shared limiter with a mode for its outages; `local` needs a limiter of this machine."""

    def __init__(
        self, shared: Limiter, away: Away, *, local: Limiter | None = None, gateways: int = 1, rest_seconds: float = 1.0
    ) -> None:
        """While the store is away it is asked once in `rest_seconds`, so that requests do not wait for its timeout one by one."""
        if (away == "local") != (local is not None) or gateways < 1:
            raise ValueError("mode local, and only that, needs a local limiter, and the number of gateways")
        self.name = f"{shared.name}, {away} when away"
        self.outages = 0
        """Calls that the store did not answer."""
        self.bypassed = 0
        """Reservations that were let in without being counted by the shared limits: `open` and `local`."""
        self._shared = shared
        self._away = away
        self._local = local
        self._gateways = gateways
        self._rest_seconds = rest_seconds
        self._back_at = 0.0

    async def reserve(self, limits: Sequence[Limit], amounts: Sequence[int], *, now: float, ttl: float) -> Reservation | Refusal:
        try:
            return await self._asked(lambda: self._shared.reserve(limits, amounts, now=now, ttl=ttl), now)
        except SitsError as error:
            if error.code is not Code.STATE_UNAVAILABLE or self._away == "closed":
                raise
        if self._local is None:
            self.bypassed += 1
            return Reservation(NOBODY, limits, amounts, (), (), now + ttl)
        answer = await self._local.reserve([self._share(limit) for limit in limits], amounts, now=now, ttl=ttl)
        self.bypassed += isinstance(answer, Reservation)
        return answer

    async def settle(self, reservation: Reservation, used: Sequence[int], *, now: float) -> None:
        if (limiter := self._owner(reservation)) is not None:
            await limiter.settle(reservation, used, now=now)

    async def release(self, reservation: Reservation, *, now: float) -> None:
        if (limiter := self._owner(reservation)) is not None:
            await limiter.release(reservation, now=now)

    async def standings(self, limits: Sequence[Limit], *, now: float) -> list[Standing]:
        return await self._asked(lambda: self._shared.standings(limits, now=now), now)

    async def sweep(self, now: float) -> int:
        count = 0 if self._local is None else await self._local.sweep(now)
        return count + await self._shared.sweep(now)

    async def aclose(self) -> None:
        await self._shared.aclose()
        if self._local is not None:
            await self._local.aclose()

    async def _asked(self, ask: Callable[[], Awaitable[T]], now: float) -> T:
        if now < self._back_at:
            raise SitsError(Code.STATE_UNAVAILABLE, "the store of the limits does not answer", retry_after=self._back_at - now)
        try:
            return await ask()
        except SitsError as error:
            if error.code is Code.STATE_UNAVAILABLE:
                self.outages += 1
                self._back_at = now + self._rest_seconds
            raise

    def _owner(self, reservation: Reservation) -> Limiter | None:
        if reservation.by == self._shared.name:
            return self._shared
        return self._local if reservation.by != NOBODY else None

    def _share(self, limit: Limit) -> Limit:
        return msgspec.structs.replace(limit, cap=limit.cap // self._gateways)
