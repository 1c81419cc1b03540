"""How processes of one service hear each other's reports: workers of one gateway over their sockets, gateways over the bus.

Nobody waits for it: what cannot be said at once is dropped and counted, and the next report makes good what matters of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from sits.gateway.siblings import Siblings
from sits.inner.errors import SitsError
from sits.ports.bus import Bus
from sits.ports.ending import end, together

TOPIC = "follow"
"""What a worker asks of another to hear all that it says from then on."""
SUBJECT = "reports"
"""Of the bus."""
LARGEST = 512 * 1024
"""Bytes of a report."""
MOST_WAITING = 256 * 1024
"""Bytes that may wait for one who is slow to hear."""
SEEK_SECONDS = 1.0
"""How often it is looked for workers that are new."""
AGAIN_SECONDS = 1.0
OLD_SECONDS = 2.0
"""A report that comes so much later than the quickest one of late did is of another time: the bus was away."""
WINDOW_SECONDS = 3.0
"""Of late are the last one or two of these."""
LAST_SECONDS = 0.5
"""How long an end waits for the others to be told of it."""
STEADY_SECONDS = 10.0
"""After so long without trouble whoever is on the bus has been heard: it says something every second, and a call that waits for a
bus that is away is one of a few seconds."""
Hear = Callable[[bytes, float], None]
"""Takes a report, and how many seconds after it was said it came: by two clocks, of which one may be that of who said it."""
Beside = Callable[[Bus], Coroutine[Any, Any, None]]
_log = logging.getLogger("sits.gateway")


class Carrier(Protocol):
    """Carries reports to the others, and theirs here."""

    name: str
    dropped: int
    """Reports that were not carried to somebody."""

    @property
    def ready(self) -> bool:
        """Whether one can be said now: another one is not still on its way."""

    def start(self, hear: Hear) -> None:
        """Begin; `hear` is called in the loop with what others say, and perhaps with our own."""

    def say(self, report: bytes) -> None:
        """Tell everybody. Does not wait."""

    async def aclose(self, last: bytes = b"") -> None:
        """Neither say nor hear any more, but for a `last` report that is told if that can be done at once. Safe to repeat."""


class Lateness:
    """Tells what one says now from what waited while the bus was away, by two clocks that differ nobody knows how much.

    A clock may be set, or go a little faster than the other one, so the quickest way is that of late. Time in which nothing comes
    takes none of it away: what comes first after that is what waited.
    """

    __slots__ = ("_before", "_least", "_since")

    def __init__(self) -> None:
        self._before = self._least = float("inf")
        self._since = float("-inf")

    def fresh(self, late: float, now: float) -> bool:
        """Whether what comes `late` seconds after it was said, by both clocks, is of now; `now` is monotonic."""
        if now - self._since >= WINDOW_SECONDS:
            self._before, self._least, self._since = self._least, late, now
        elif late < self._least:
            self._least = late
        return late - min(self._before, self._least) < OLD_SECONDS


class Workers:
    """Among the workers of one gateway: each follows all the others. `follow` answers the topic `TOPIC` of its `Siblings`."""

    name = "workers"

    def __init__(self) -> None:
        self.dropped = 0
        self.siblings: Siblings | None = None
        self._followers: set[asyncio.StreamWriter] = set()
        self._following: dict[pathlib.Path, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        return True

    def start(self, hear: Hear) -> None:
        self._task = asyncio.get_running_loop().create_task(self._seek(hear))

    def say(self, report: bytes) -> None:
        if len(report) > LARGEST:
            self.dropped += 1  # Nobody would hear it, nor us any more.
            return
        frame = len(report).to_bytes(4, "little") + report
        for writer in self._followers:
            if writer.transport.get_write_buffer_size() > MOST_WAITING:
                self.dropped += 1
            else:
                writer.write(frame)

    async def aclose(self, last: bytes = b"") -> None:
        if last:
            self.say(last)
        task, self._task = self._task, None
        await end(task, *self._following.values())
        for writer in self._followers:
            writer.close()

    async def follow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Another worker hears from now on what this one says, until it goes."""
        self._followers.add(writer)
        try:
            await reader.read()
        finally:
            self._followers.discard(writer)

    async def _seek(self, hear: Hear) -> None:
        loop = asyncio.get_running_loop()
        while True:
            for path in [path for path, task in self._following.items() if task.done()]:
                del self._following[path]
            if self.siblings is not None:
                with contextlib.suppress(OSError):  # the folder cannot be looked into just now
                    for path in self.siblings.others():
                        if path not in self._following:
                            self._following[path] = loop.create_task(self._listen(self.siblings, path, hear))
            await asyncio.sleep(SEEK_SECONDS)

    async def _listen(self, siblings: Siblings, path: pathlib.Path, hear: Hear) -> None:
        """Hear one worker until it goes."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await siblings.open(path, TOPIC)
            try:
                while True:
                    size = int.from_bytes(await reader.readexactly(4), "little")
                    if size > LARGEST:
                        _log.error("a worker says a report of %d bytes: %s", size, path.name)
                        return
                    hear(await reader.readexactly(size), 0.0)
            finally:
                writer.close()


class OverBus:
    """Among gateways that share a bus, their workers included. While it is away everybody goes by what he sees himself."""

    name = "bus"

    def __init__(self, connect: Callable[[], Awaitable[Bus]], wall: Callable[[], float]) -> None:
        self.dropped = 0
        self.beside: list[Beside] = []
        """What else goes over this connection, for as long as it lasts."""
        self._connect = connect
        self._wall = wall
        self._well_since = float("inf")
        self._waiting: bytes | None = None
        self._bus: Bus | None = None
        """As long as it is there."""
        self._bell = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        return self._waiting is None

    def steady(self) -> bool:
        """Whether whoever is there has been heard by now."""
        return asyncio.get_running_loop().time() - self._well_since >= STEADY_SECONDS

    def start(self, hear: Hear) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(hear))

    def say(self, report: bytes) -> None:
        if self._waiting is not None:
            self.dropped += 1
        self._waiting = report
        self._bell.set()

    async def aclose(self, last: bytes = b"") -> None:
        if last and self._bus is not None:
            with contextlib.suppress(SitsError, TimeoutError):  # The others find out by themselves.
                async with asyncio.timeout(LAST_SECONDS):
                    await self._bus.publish(SUBJECT, last)
        task, self._task = self._task, None
        await end(task)

    async def _run(self, hear: Hear) -> None:
        while True:
            bus: Bus | None = None
            try:
                self._bus = bus = await self._connect()
                self._well_since = asyncio.get_running_loop().time()
                await together(*(beside(bus) for beside in self.beside), self._hear(bus, hear), self._say(bus))
            except SitsError as error:
                _log.debug("reports wait for the bus: %s", error.message)
            except Exception:
                _log.exception("a defect ended reports over the bus, they begin again")
            finally:
                self._bus = None
                if bus is not None:
                    await bus.aclose()
            await asyncio.sleep(AGAIN_SECONDS)

    async def _hear(self, bus: Bus, hear: Hear) -> None:
        subscription = await bus.subscribe(SUBJECT)
        try:
            async for message in subscription:
                hear(message.payload, self._wall() - message.at)
        finally:
            await subscription.aclose()

    async def _say(self, bus: Bus) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            report, self._waiting = self._waiting, None
            if report is None:
                continue
            try:
                await bus.publish(SUBJECT, report)
            except SitsError as error:
                # It may be back with the next one.
                self.dropped += 1
                self._well_since = asyncio.get_running_loop().time()
                _log.debug("a report was not told: %s", error.message)
                await asyncio.sleep(AGAIN_SECONDS)
