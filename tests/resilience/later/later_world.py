"""Nodes that make answers later, on one store, under a clock that the test holds."""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

from sits.ports.store.memory import MemoryStore, Shelf
from sits.resilience.later import Later, Made, Wanted

SETTLED = 60
"""Turns of the loop after which everything that can go on without the clock has gone on."""
KEEP = 3600.0


def run(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(story)
    def test(*args: Any, **kwargs: Any) -> None:
        asyncio.run(story(*args, **kwargs))

    return test


def wanted(body: str = "q", key: str | None = "alice", **more: Any) -> Wanted:
    return Wanted(
        "chat", b"/v1/chat/completions", [(b"x-request-id", b"r")], body.encode(), key, **{"route": "r", "keep": KEEP, **more}
    )


def made(text: str = "a") -> Made:
    return Made(200, b"application/json", text.encode())


def failed(status: int, code: str, retry_after: float | None = None) -> Made:
    return Made(status, b"application/json", b"{}", [], code, retry_after)


class World:
    """The clock and the shelf that all nodes share."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.shelf = Shelf()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._number = itertools.count()

    def sleep(self, seconds: float) -> asyncio.Future[None]:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._number), waiting))
        return waiting

    async def settle(self) -> None:
        for _ in range(SETTLED):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Let so much time pass, and everything happen that it brings."""
        await self.settle()
        end = self.now + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            self.now, _, waiting = heapq.heappop(self._sleepers)
            if not waiting.done():
                waiting.set_result(None)
            await self.settle()
        self.now = end
        await self.settle()


class Node:
    """One process. `answers` are given in turn, the last one again and again; an event is waited for first."""

    def __init__(self, world: World, name: str, *answers: Made | asyncio.Event, taken: tuple[bool, ...] = (True,)) -> None:
        self.world = world
        self.dead = False
        self.asked: list[bytes] = []
        self.called: list[tuple[str, str, int]] = []
        self.most = 0
        self._running = 0
        self._answers = list(answers) or [made()]
        self._taken = list(taken)
        self.store = MemoryStore(lambda: world.now, shelf=world.shelf)
        ids = itertools.count()
        self.later = Later(
            self.store, self._ask, self._call, owner=name, token=lambda: f"id-of-{name}-{next(ids):012}", sleep=self._sleep
        )

    def die(self) -> None:
        """As by kill -9: nothing of it goes on, and nothing is said."""
        self.dead = True

    async def _sleep(self, seconds: float) -> None:
        await self.world.sleep(seconds)
        await self._unless_dead()

    async def _ask(self, job: Wanted) -> Made:
        await self._unless_dead()
        self.asked.append(job.body)
        self._running += 1
        self.most = max(self.most, self._running)
        answer = self._next()
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            answer = self._next()
        await self._unless_dead()
        self._running -= 1
        assert isinstance(answer, Made)
        return answer

    async def _call(self, url: str, id: str, answer: Made) -> bool:
        await self._unless_dead()
        self.called.append((url, id, answer.status))
        return self._taken.pop(0) if len(self._taken) > 1 else self._taken[0]

    async def _unless_dead(self) -> None:
        if self.dead:
            await asyncio.Event().wait()

    def _next(self) -> Made | asyncio.Event:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
