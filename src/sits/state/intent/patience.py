"""Asking an embedding model so that its pulse is known, and no longer than somebody wants to wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from sits.inner.errors import Code, SitsError
from sits.state.intent.pulse import Pulse

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from sits.state.intent.embedders import Embed

    Matrix = npt.NDArray[np.float32]

_log = logging.getLogger("sits.intent")

T = TypeVar("T")

QUERIES = 256
"""Questions that may be under way at a time, those included that nobody waits for any more."""
LATE = 4
"""Of these, how many are left to be answered when the model is left alone."""
TRY_SECONDS = 0.1
"""How long the question waits by which a model is tried that was left alone: long enough for one that is well again."""


def watched(embed: Embed, pulse: Pulse, clock: Callable[[], float], *, quiet: bool = False) -> Embed:
    """`embed`, with what comes of it told to `pulse`, and to the log unless who asks tells it (`quiet`)."""

    async def told(texts: Sequence[str]) -> Matrix:
        at = clock()
        pulse.asked(at)
        try:
            rows = await embed(texts)
        except SitsError as error:
            if pulse.failed(error.message, now := clock(), at) and not quiet:
                _log.warning("%s", pulse.said(now))
            raise
        except BaseException:
            pulse.left()
            raise
        if pulse.answered(clock(), at) and not quiet:
            _log.info("%s answers again", pulse.name)
        return rows

    return told


class Patience:
    """Asks a model for whoever needs the answer: for a while, and not at all while it is left alone. Of one loop."""

    __slots__ = ("_clock", "_pulse", "_tasks")

    def __init__(self, pulse: Pulse, clock: Callable[[], float]) -> None:
        self._pulse = pulse
        self._clock = clock
        self._tasks: list[asyncio.Task[object]] = []

    async def within(self, ask: Callable[[], Awaitable[T]], seconds: float) -> T:
        """What `ask` returns, which goes on behind where it takes longer. What it asks by tells the pulse (`watched`).

        Raises:
            SitsError: what `ask` raises; `upstream_timeout`: there is no answer yet; `model_unavailable`: the model is left
                alone, or too many wait for it.
        """
        pulse = self._pulse
        trying = pulse.out
        if trying:
            seconds = min(seconds, TRY_SECONDS)
            if not pulse.take(self._clock()):
                raise pulse.error(self._clock())
        self._tasks = [task for task in self._tasks if not task.done()]
        if len(self._tasks) >= QUERIES:
            raise SitsError(Code.MODEL_UNAVAILABLE, f"{QUERIES} queries wait for {pulse.name}")

        async def asked() -> T:
            return await ask()

        task = asyncio.create_task(asked(), name="patience")
        task.add_done_callback(_heard)
        self._tasks.append(task)
        await asyncio.wait({task}, timeout=seconds)
        if task.cancelled() or (trying and not task.done()):
            raise pulse.error(self._clock())
        if task.done():
            return task.result()
        now = self._clock()
        if pulse.missed(now):
            _log.warning("%s", pulse.said(now))
            self._leave()
        raise SitsError(Code.UPSTREAM_TIMEOUT, f"{pulse.name} has not answered within {seconds:g} s")

    async def aclose(self) -> None:
        """Give up what is under way. Safe to repeat."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _leave(self) -> None:
        """Whoever else waits is told at once."""
        for task in self._tasks[LATE:]:
            task.cancel()


def _heard(task: asyncio.Task[object]) -> None:
    """An error that nobody waits for any more is in the pulse."""
    if not task.cancelled():
        task.exception()
