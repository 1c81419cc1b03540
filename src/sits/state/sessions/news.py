"""Announcements of changes over the bus, so that other nodes' memory does not serve what is old.

They may be late, doubled, out of order or lost: a version says whether there is anything new, and what is lost costs staleness
only, for which reads and commits have bounds of their own. So nobody waits for the bus.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from sits.inner.errors import SitsError
from sits.ports.bus.base import Bus, Subscription
from sits.state.sessions.layout import encode

SUBJECT = "sessions.changed"
_MOST = 10_000
"""Announcements that wait for the bus."""
_BATCH = 500
_AGAIN_SECONDS = 1.0
_log = logging.getLogger("sits.sessions")


class Changed(msgspec.Struct, frozen=True, array_like=True):
    """A session has come to `version`; -1 when it was removed."""

    session_id: str
    birth: str
    version: int


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    node: str
    changed: list[Changed]


_decode = msgspec.msgpack.Decoder(_Batch).decode


class News:
    """Tells of our changes, and calls `heard` for each of the others'; None when some are known to be lost."""

    def __init__(self, bus: Bus, node: str, heard: Callable[[Changed | None], None]) -> None:
        self._bus = bus
        self._node = node
        self._heard = heard
        self._waiting: dict[str, Changed] = {}
        self._bell = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._subscription: Subscription | None = None
        self.untold = 0
        """Announcements that the bus did not take."""

    async def start(self) -> None:
        """Begin; a bus that is away is tried again in the background."""
        await self._subscribe()
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._speak())]

    def tell(self, changed: Changed) -> None:
        """Announce a change soon."""
        if len(self._waiting) < _MOST or changed.session_id in self._waiting:
            self._waiting[changed.session_id] = changed
        else:
            self.untold += 1
        self._bell.set()

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._subscription is not None:
            await self._subscription.aclose()

    async def _subscribe(self) -> None:
        try:
            self._subscription = await self._bus.subscribe(SUBJECT)
        except SitsError as error:
            _log.warning("changes of sessions are not heard for now: %s", error.message)
            self._subscription = None

    async def _listen(self) -> None:
        while True:
            while self._subscription is None:
                await asyncio.sleep(_AGAIN_SECONDS)
                await self._subscribe()
                self._heard(None)
            async for message in self._subscription:
                if message.lost:
                    self._heard(None)
                try:
                    batch = _decode(message.payload)
                except (msgspec.MsgspecError, ValueError, RecursionError):
                    continue  # another version's, perhaps
                for changed in batch.changed if batch.node != self._node else ():
                    self._heard(changed)
            self._subscription = None  # The bus was closed under us.

    async def _speak(self) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            while self._waiting:
                batch = [self._waiting.pop(session) for session in list(self._waiting)[:_BATCH]]
                try:
                    await self._bus.publish(SUBJECT, encode(_Batch(self._node, batch)))
                except SitsError:
                    self.untold += len(batch)
