"""The bus inside this process: the adapter that needs no server, and the fake that tests stand on.

Its messages and rows live as long as their `Log`, in the memory of one process: gateways that must share anything need a server.
Nothing is copied and nobody waits: a publish is a few dictionary operations. For faults see `faulty.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sits.inner.errors import Code, SitsError
from sits.ports.bus.base import KEPT, Message, Pair
from sits.ports.bus.limits import check_id, check_name, check_namespace, check_payload, check_prefix
from sits.ports.bus.log import Channel, Log
from sits.ports.bus.rows import RowWatch

CONSISTENCY = {
    "publish": "kept in memory when it returns; one order a subject; an id is kept once within two minutes",
    "subscribe": "in order, once; from any kept offset; a slow reader costs nothing and may lose what retention takes, counted",
    "put": "compare-and-set, linearizable within the process",
    "get": "linearizable within the process",
    "remove": "compare-and-set, linearizable within the process",
    "watch": "the last value of each key, in the order of revisions",
    "durability": "none: everything ends with the process",
    "outage": "none",
}


class MemorySubscription:
    """A place in a channel."""

    __slots__ = ("_bus", "_channel", "_closed", "_next")

    def __init__(self, bus: MemoryBus, channel: Channel, start: int) -> None:
        self._bus = bus
        self._channel = channel
        self._next = start
        self._closed = False

    def __aiter__(self) -> MemorySubscription:
        return self

    async def __anext__(self) -> Message:
        while not self._closed:
            message = self._channel.read(self._next)
            if message is not None:
                self._next = message.offset + 1
                return message
            await self._channel.bell.wait()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._closed = True
        self._bus.open.discard(self)
        self._channel.bell.ring()


class MemoryWatch:
    """Rows of the table of this process."""

    __slots__ = ("_bus", "_watch")

    def __init__(self, bus: MemoryBus, watch: RowWatch) -> None:
        self._bus = bus
        self._watch = watch

    def __aiter__(self) -> MemoryWatch:
        return self

    async def __anext__(self) -> Pair | None:
        return await anext(self._watch)

    async def aclose(self) -> None:
        self._bus.open.discard(self)
        self._watch.close()


class MemoryBus:
    """A handle on a `Log`; handles on the same one are nodes of one bus."""

    __slots__ = ("_closed", "_log", "open")

    name = "local"

    def __init__(self, log: Log | None = None, *, wall: Callable[[], float] = time.time) -> None:
        self._log = Log(wall=wall) if log is None else log
        self._closed = False
        self.open: set[MemorySubscription | MemoryWatch] = set()

    async def publish(self, subject: str, payload: bytes, *, id: str = "") -> int:
        self._check(subject=subject)
        check_payload("payload", payload)
        check_id(id)
        return self._log.publish(subject, payload, id)

    async def subscribe(self, subject: str, *, after: int | None = None) -> MemorySubscription:
        self._check(subject=subject)
        channel = self._log.channel(subject)
        subscription = MemorySubscription(self, channel, channel.start(after))
        self.open.add(subscription)
        return subscription

    async def put(self, key: str, value: bytes, *, expect: int | None = None) -> int:
        self._check(key=key)
        check_payload("value", value)
        return self._log.change(key, value, expect)

    async def get(self, key: str) -> Pair | None:
        self._check(key=key)
        return self._log.rows.get(key)

    async def remove(self, key: str, *, expect: int | None = None) -> None:
        self._check(key=key)
        self._log.change(key, None, expect)

    async def watch(self, prefix: str) -> MemoryWatch:
        self._check()
        check_prefix(prefix)
        watch = MemoryWatch(self, self._log.rows.watch(prefix))
        self.open.add(watch)
        return watch

    async def aclose(self) -> None:
        self._closed = True
        for one in list(self.open):
            await one.aclose()

    def _check(self, **names: str) -> None:
        if self._closed:
            raise SitsError(Code.STATE_UNAVAILABLE, "the bus is closed")
        for what, name in names.items():
            check_name(what, name)


async def open_memory(
    address: str,
    *,
    wall: Callable[[], float] = time.time,
    timeout: float = 2.0,  # noqa: ASYNC109 - nothing here waits
    kept: int = KEPT,
    replicas: int = 1,
    namespace: str = "sits",
) -> MemoryBus:
    """A bus of its own. Handles that share it are made with `MemoryBus(log)`."""
    check_namespace(namespace)
    return MemoryBus(Log(wall=wall, kept=kept))
