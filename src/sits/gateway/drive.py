"""Runs an exchange's coroutine without a task: the first step at once, the others where what it waits for ends.

A task costs two trips through the event loop for each request (its first step, and waking up), and an entry in the set of
all tasks; this is 2 to 3 us less. Two kinds of things may be awaited: our own `Moment`, which goes on within the very call that
ends it, and any future of the loop. There is no cancellation: an exchange is ended through what it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Self


class Moment:
    """Something that will happen once; await it, and `happen` goes on with whoever does."""

    __slots__ = ("_waiting", "happened")

    def __init__(self) -> None:
        self.happened = False
        self._waiting: Drive | None = None

    def happen(self) -> None:
        """It has happened. Runs the waiting coroutine up to its next wait before it returns."""
        self.happened = True
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.step()

    def __await__(self) -> Generator[Self, None, None]:
        if not self.happened:
            yield self

    def wake(self, waiting: Drive) -> None:
        self._waiting = waiting


class Drive:
    """A coroutine under way. It must handle its own exceptions: there is nobody to take them."""

    __slots__ = ("_coroutine", "done")

    def __init__(self, coroutine: Coroutine[Any, None, None]) -> None:
        self._coroutine = coroutine
        self.done = False
        self.step()

    def step(self, future: asyncio.Future[Any] | None = None) -> None:
        """Go on to the next wait."""
        try:
            awaited = self._coroutine.send(None)
        except StopIteration:
            self.done = True
            return
        if type(awaited) is Moment:
            awaited.wake(self)
        else:
            awaited._asyncio_future_blocking = False
            awaited.add_done_callback(self.step)
