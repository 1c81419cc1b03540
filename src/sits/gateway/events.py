"""What happens to the service, told on the bus for whoever listens: breakers, alarms of shadows, answers that were made later.

A message is JSON: `{"event": ..., "node": ..., "at": unix seconds, ...}`, on the subject `events`. One that is about a request
carries the colour of its traffic in front (`colours.wrap`, for readers `colours.unwrap`). Nobody waits for the bus: what it does
not take within a while is counted and dropped, and all of it is in the log of this gateway as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from sits.inner.errors import SitsError
from sits.ports.bus import Bus
from sits.ports.ending import end
from sits.resilience.colours import PLAIN, Tint, wrap

SUBJECT = "events"
MOST = 1000
"""Events that wait for the bus; the oldest go first."""
AGAIN_SECONDS = 1.0
TRIES = 3
_log = logging.getLogger("sits.events")
_encode = msgspec.json.Encoder().encode


class Events:
    """Of one process. Without `connect` there is no bus that is shared, and nobody to tell."""

    def __init__(self, connect: Callable[[], Awaitable[Bus]] | None, node: str, *, wall: Callable[[], float]) -> None:
        self._connect = connect
        self._node = node
        self._wall = wall
        self._waiting: deque[bytes] = deque()
        self._bell = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._bus: Bus | None = None
        self.untold = 0
        """Events that the bus did not take."""

    def start(self) -> None:
        """Begin to tell."""
        if self._connect is not None:
            self._task = asyncio.get_running_loop().create_task(self._speak(self._connect))

    def tell(self, event: str, fields: dict[str, Any], tint: Tint = PLAIN) -> None:
        """Tell of something, soon; `tint` is that of the request that it is about."""
        if self._task is None:
            return
        if len(self._waiting) >= MOST:
            self._waiting.popleft()
            self.untold += 1
        self._waiting.append(wrap(_encode({"event": event, "node": self._node, "at": self._wall(), **fields}), tint))
        self._bell.set()

    async def aclose(self) -> None:
        """Say no more. Safe to repeat."""
        task, self._task = self._task, None
        if task is not None:
            await end(task)
        bus, self._bus = self._bus, None
        if bus is not None:
            await bus.aclose()

    async def _speak(self, connect: Callable[[], Awaitable[Bus]]) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            while self._waiting:
                await self._one(connect, self._waiting.popleft())

    async def _one(self, connect: Callable[[], Awaitable[Bus]], payload: bytes) -> None:
        for _ in range(TRIES):
            try:
                if self._bus is None:
                    self._bus = await connect()
                await self._bus.publish(SUBJECT, payload)
            except SitsError as error:
                _log.debug("an event waits for the bus: %s", error.message)
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return
        self.untold += 1
