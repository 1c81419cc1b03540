"""The event loop in which a body runs alone, so that it can be said for certain when the body has come to rest.

In the loop of the process nobody can tell: however many passes are waited, some branch may have one more to go, and what it asks
for next then depends on what else the process does. Here only the body's tasks take turns, in the order in which they became
ready, and the body rests when none is ready. Nothing comes in by itself (there are no sockets, threads and timers), so all that
a body does is a function of what it was given, in which order. Temporal's Python SDK runs workflows so; the idea is that of
FoundationDB's simulation (Zhou et al., SIGMOD 2021, section 4).

Turns are taken in slices, each a callback of the process's loop, so a body that goes on for long does not hold up the others.
A callback and not a task, because a thread can be in one task at a time (since Python 3.14 that is an error).
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, NoReturn, TypeVar, cast

_T = TypeVar("_T")

MOST_TURNS = 1_000_000
"""Turns of tasks between two results: enough to ask for all calls of a flow at once, each in ten tasks inside each other."""

_SLICE = 1_000
"""Turns after which others in the process have theirs: one to two milliseconds."""
_DYING = 20
"""Turns that each task of a body gets to end when it is cancelled, and a thousand beside."""


class Restless(Exception):
    """The body goes on and on, and asks for nothing."""


class Stage:
    """What asyncio takes for the running loop inside of one body. `seed` is the same at every run of it; `now` is its time."""

    def __init__(self, seed: str, now: Callable[[], float]) -> None:
        self.turns = 0
        self.halted = False
        self._now = now
        self._outer = asyncio.get_running_loop()
        self._ready: deque[asyncio.Handle] = deque()
        self._tasks: set[_BodyTask] = set()
        self._next_hash = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=7).digest(), "big")
        self._closed = False

    # For who runs the body

    async def rest(self, most: int | None = None) -> None:
        """Run the body until it cannot go on with what it has, or is `halted`.

        Raises:
            Restless: it took more than `most` turns, MOST_TURNS when it is not said.
        """
        last = self.turns + (MOST_TURNS if most is None else most)
        while self._ready and not self.halted:
            if self.turns >= last:
                raise Restless
            sliced: asyncio.Future[None] = self._outer.create_future()
            self._outer.call_soon(self._take_turns, sliced)
            await sliced

    async def aclose(self) -> None:
        """Cancel what is left of the body; nothing runs here any more."""
        self.halted = False
        for task in sorted(self._tasks, key=hash):
            task.cancel()
        try:
            await self.rest(1_000 + _DYING * len(self._tasks))
        except Restless:
            return  # asyncio will say that a task was pending
        finally:
            self._closed = True
            self._ready.clear()

    def _take_turns(self, sliced: asyncio.Future[None]) -> None:
        if sliced.done():
            return
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._finish_generator)
        asyncio._set_running_loop(self._loop)
        last = self.turns + _SLICE
        try:
            while self._ready and self.turns < last and not self.halted:
                self.turns += 1
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(self._outer)
            sys.set_asyncgen_hooks(*hooks)
            sliced.set_result(None)

    def _finish_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._closed:
            self.create_task(generator.aclose())

    # For asyncio: what `gather`, `wait`, `TaskGroup`, `shield`, locks, events and queues need

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return cast("asyncio.AbstractEventLoop", self)

    def create_task(self, coro: Coroutine[Any, Any, _T], **rest: Any) -> asyncio.Task[_T]:
        self._next_hash += 1
        task = _BodyTask(self._next_hash, coro, loop=self._loop, **rest)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._loop)

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._loop, context)
        if not self._closed:
            self._ready.append(handle)
        return handle

    def time(self) -> float:
        return self._now()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._outer.call_exception_handler(context)

    def __getattr__(self, name: str) -> NoReturn:
        """All that a loop has else is not remembered, so it would not be the same when the body is run again."""
        raise AttributeError(
            f"there is no {name} in a flow: it waits with its context's sleep and signal, and what else it does are steps"
        )


class _BodyTask(asyncio.Task[Any]):
    """A task that hashes to the same at every run, and so has the same place in a set.

    `TaskGroup` cancels its tasks in the order of a set, and `asyncio.wait` returns sets: with the addresses that tasks hash to
    otherwise, who goes on first would be another one each time. Hashes of different flows differ all the same, since asyncio
    has the tasks of all of them in one set.
    """

    def __init__(self, hash: int, coro: Coroutine[Any, Any, Any], **rest: Any) -> None:
        self._hash = hash  # before all else: asyncio puts the task into its set at once
        super().__init__(coro, **rest)

    def __hash__(self) -> int:
        return self._hash
