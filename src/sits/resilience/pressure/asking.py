"""Figures that must be asked for over the network: one question at a time to each server, its last answer kept for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from sits.engines.base import Deadlines, Engine, Headers, Outgoing
from sits.inner.errors import Code, SitsError

ASK_SECONDS = 1.0
"""How often a server is asked."""
KEPT = 3
"""An answer counts for so many times that; then the figure is absent."""
LONGEST = 4 * 1024 * 1024
"""Bytes of an answer that are read."""
DEADLINES = Deadlines(connect=1.0, headers=2.0, first_token=2.0, idle=2.0, total=2.0)


class Asked:
    """A server that is asked for figures again and again. `aclose` ends what is under way."""

    __slots__ = ("_answered", "_ask", "_asked", "_figures", "_task", "trouble")

    def __init__(self, ask: Callable[[], Awaitable[Mapping[str, float]]]) -> None:
        self._ask = ask
        self._asked = float("-inf")
        self._answered = float("-inf")
        self._figures: Mapping[str, float] = {}
        self._task: asyncio.Task[None] | None = None
        self.trouble = ""
        """Why the last question was not answered; empty when it was."""

    def look(self, now: float, clock: Callable[[], float]) -> Mapping[str, float]:
        """What is known, and if it is time, begin to ask."""
        if self._task is None and now - self._asked >= ASK_SECONDS:
            self._asked = now
            self._task = asyncio.get_running_loop().create_task(self._go(clock))
        return self.known(now)

    def known(self, now: float) -> Mapping[str, float]:
        """The last answer; nothing when it is too old."""
        return self._figures if now - self._answered <= KEPT * ASK_SECONDS else {}

    async def _go(self, clock: Callable[[], float]) -> None:
        try:
            self._figures = await self._ask()
            self._answered = clock()
            self.trouble = ""
        except SitsError as error:
            self.trouble = error.message
        finally:
            self._task = None

    async def aclose(self) -> None:
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def get(engine: Engine, path: str, fixed: bytes = b"") -> tuple[int, bytes]:
    """Status and body of a GET; `fixed` are the target's own constant fields, its credential among them.

    Raises:
        SitsError: no complete answer came in time, or it was too long.
    """
    answer = _Body(asyncio.get_running_loop().create_future())
    fields: Headers = [(b"accept", b"*/*")]
    if not fixed:
        fields.append((b"user-agent", b"sits"))
    call = engine.send(Outgoing(b"GET", path.encode(), fields, b"", fixed), answer, DEADLINES)
    try:
        return await answer.done
    finally:
        call.cancel()


class _Body:
    """A `Reply` that keeps everything up to `LONGEST`."""

    __slots__ = ("_pieces", "_size", "_status", "done")

    def __init__(self, done: asyncio.Future[tuple[int, bytes]]) -> None:
        self.done = done
        self._status = 0
        self._pieces: list[bytes] = []
        self._size = 0

    def head(self, status: int, headers: Headers) -> None:
        self._status = status

    def data(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= LONGEST:
            self._pieces.append(piece)
        else:
            self.fail(SitsError(Code.UPSTREAM_BROKEN, f"more than {LONGEST} bytes of metrics"))

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result((self._status, b"".join(self._pieces)))

    def fail(self, error: SitsError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
