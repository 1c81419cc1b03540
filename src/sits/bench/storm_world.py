"""A world for caches to live in: a clock that jumps, models with a limited number of slots, and traffic that is the same for
everybody.

Nothing here sleeps: the event loop is asyncio's own, but where it would wait for the next timer its clock is moved there. So
the real caches, locks and futures run as they do in the gateway, and five minutes of traffic take seconds.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec

START = 1_800_000_000.0
"""The wall clock when a world begins."""


class Virtual(asyncio.SelectorEventLoop):
    """An event loop whose seconds pass at once. It serves no sockets."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self._now

    def wall(self) -> float:
        """Unix seconds."""
        return START + self._now

    def jump(self, seconds: float) -> None:
        self._now += seconds


class _Jumping(selectors.SelectSelector):
    """Says at once that nothing has come, after moving the clock on."""

    def __init__(self, loop: Virtual) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everybody waits, and nothing is going to happen")
        self._loop.jump(max(0.0, timeout))
        return []


class Shape(msgspec.Struct, frozen=True):
    """What the traffic is like."""

    rate: float = 100.0
    """Requests a second."""
    questions: int = 2000
    """Different questions that are asked again and again."""
    skew: float = 0.9
    """The n-th most popular is asked for in proportion to n ** -skew."""
    personal: float = 0.5
    """Share of requests that no cache may answer: agents' turns, drawn answers, tool calls."""
    new: float = 0.02
    """Share of the others that nobody has asked before and nobody will again."""
    reworded: float = 0.25
    """Share of those that are asked again which come in other words."""
    model_seconds: float = 1.0
    """Median of how long a model takes; log-normal, sigma 0.5."""
    busy: float = 0.75
    """Share of the models' slots that the calm traffic takes."""


class Request(msgspec.Struct, frozen=True):
    """One request of the traffic. `question` is None for one that no cache may answer."""

    at: float
    question: int | None
    reworded: bool
    seconds: float
    """How long a model takes for it, whoever asks."""


def traffic(shape: Shape, seconds: float, seed: int) -> list[Request]:
    """Requests at random moments (Poisson). The same for the same seed, whatever answers them: designs are compared on equal
    draws, so what differs comes from the designs. Questions from `shape.questions` on are new ones."""
    draw = random.Random(seed)  # noqa: S311
    ranks = list(accumulate((rank + 1) ** -shape.skew for rank in range(shape.questions)))
    fresh = shape.questions
    found: list[Request] = []
    at = 0.0
    while True:
        at += draw.expovariate(shape.rate)
        if at >= seconds:
            return found
        kind, rank, words = draw.random(), draw.random() * ranks[-1], draw.random()
        took = draw.lognormvariate(0.0, 0.5) * shape.model_seconds
        if kind < shape.personal:
            found.append(Request(at, None, False, took))
        elif kind < shape.personal + (1 - shape.personal) * shape.new:
            found.append(Request(at, fresh, False, took))
            fresh += 1
        else:
            found.append(Request(at, bisect_left(ranks, rank), words < shape.reworded, took))


def rates(shape: Shape) -> list[float]:
    """How often each question is asked, a second, in any words."""
    weights = [(rank + 1) ** -shape.skew for rank in range(shape.questions)]
    asked = shape.rate * (1 - shape.personal) * (1 - shape.new)
    return [asked * weight / sum(weights) for weight in weights]


class Models:
    """Models with `slots` at once and a line before them. `calls` has the moment and the length of each call made."""

    def __init__(self, loop: Virtual, slots: int) -> None:
        self.slots = slots
        self._loop = loop
        self._free = asyncio.Semaphore(slots)
        self.calls: list[tuple[float, float]] = []

    async def answer(self, seconds: float) -> None:
        """Have a model answer."""
        self.calls.append((self._loop.time(), seconds))
        async with self._free:
            await asyncio.sleep(seconds)

    def load(self, start: float, end: float, window: float) -> list[float]:
        """Seconds of work asked for in each second, window by window."""
        found = [0.0] * round((end - start) / window)
        for at, seconds in self.calls:
            if start <= at < end:
                found[min(len(found) - 1, int((at - start) // window))] += seconds / window
        return found


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values does not pass."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
