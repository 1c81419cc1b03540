"""A small pool of connections to a server, for adapters whose driver's own pool cannot promise what a store promises.

Giving a connection back never waits, so a cancelled call loses none. A connection on which a call was cancelled or failed is
thrown away, so that no answer ever reaches a later call. After a failure the idle ones are thrown away too, since they went the
same way: the next call makes a new one, and an outage is over for us when it is over for the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from sits.inner.errors import Code, SitsError

_L = TypeVar("_L")
_T = TypeVar("_T")

_IDLE_SECONDS = 0.02
"""How long after the last call the sockets are looked at before the next one."""


class Dialer(Protocol[_L]):
    """What a pool has to know about a driver."""

    async def dial(self) -> _L:
        """A connection that is ready for a call."""
        ...

    async def is_open(self, link: _L) -> bool:
        """Whether the other side has not closed it, as far as can be seen without asking."""
        ...

    def hang_up(self, link: _L) -> None:
        """Close it without waiting."""
        ...

    def explain(self, error: BaseException) -> tuple[str, bool] | None:
        """What went wrong, and whether the connection is as good as before; None when it is no error of the driver."""
        ...


class Links(Generic[_L]):
    """At most `size` connections; each call has `seconds` in all."""

    def __init__(self, dialer: Dialer[_L], *, what: str, size: int, seconds: float) -> None:
        self._dialer = dialer
        self._what = what
        self._seconds = seconds
        self._turn = asyncio.Semaphore(size)
        self._idle: list[_L] = []
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._used = 0.0

    async def call(self, work: Callable[[_L], Awaitable[_T]], *, repeatable: bool) -> _T:
        """What `work` returns. A `repeatable` one is tried on a second connection when the first one turns out to be dead.

        Raises:
            SitsError: what `work` raised, or `state_unavailable`; then a call that is not `repeatable` may have happened.
        """
        try:
            async with asyncio.timeout(self._seconds):
                if not repeatable:
                    return await self._once(work)
                try:
                    return await self._once(work)
                except _LostError:
                    return await self._once(work)
        except TimeoutError:
            self._hang_up_idle()
            raise self._unavailable(f"no answer within {self._seconds:g} s") from None
        except _LostError as lost:
            raise self._unavailable(str(lost)) from lost.__cause__

    def close(self) -> None:
        """Hang up. Calls that run fail. Safe to repeat."""
        self._closed = True
        self._hang_up_idle()

    async def _once(self, work: Callable[[_L], Awaitable[_T]]) -> _T:
        if self._closed:
            raise self._unavailable("it is closed")
        async with self._turn:
            await self._notice_what_closed()
            link: _L | None = None
            try:
                while link is None and self._idle:
                    link = self._idle.pop()
                    if not await self._dialer.is_open(link):
                        self._dialer.hang_up(link)
                        link = None
                if link is None:
                    link = await self._dialer.dial()
                result = await work(link)
            except BaseException as error:
                self._failed(link, error)
                raise
            self._give_back(link)
            return result

    async def _notice_what_closed(self) -> None:
        """Let the loop look at sockets that were idle for a while: a process that was busy elsewhere, or stopped as a whole, has
        not heard yet that the server hung up. Each of these takes a turn: last words, their reading, the end of the stream, its
        reading, the end of the transport.
        """
        if self._idle and self._loop.time() - self._used > _IDLE_SECONDS:
            for _ in range(6):
                await asyncio.sleep(0)

    def _give_back(self, link: _L) -> None:
        if self._closed:
            self._dialer.hang_up(link)
        else:
            self._idle.append(link)
            self._used = self._loop.time()

    def _failed(self, link: _L | None, error: BaseException) -> None:
        """Keep or hang up the connection; a driver's error goes on in words of ours."""
        if link is not None and isinstance(error, SitsError):
            self._give_back(link)
            return
        told = self._dialer.explain(error)
        if link is not None:
            if told is not None and told[1]:
                self._give_back(link)
            else:
                self._dialer.hang_up(link)
        if told is None:
            return
        why, is_good = told
        if is_good:
            raise self._unavailable(why) from error
        self._hang_up_idle()
        raise _LostError(why) from error

    def _hang_up_idle(self) -> None:
        while self._idle:
            self._dialer.hang_up(self._idle.pop())

    def _unavailable(self, why: str) -> SitsError:
        return SitsError(Code.STATE_UNAVAILABLE, f"{self._what}: {why}")


class _LostError(Exception):
    """The connection broke; whether the call happened is not known."""
