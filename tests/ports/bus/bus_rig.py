"""Where the buses of these tests are, and how a test runs on one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any

from sits.ports.bus import Bus, open_bus
from sits.ports.bus.base import KEPT
from sits.ports.bus.faulty import FaultyNetwork
from sits.ports.bus.log import Log
from sits.ports.bus.memory import MemoryBus

_numbers = itertools.count(1)


class LocalPlace:
    """A log of this process."""

    def __init__(self) -> None:
        self._log: Log | None = None

    async def open(self, *, kept: int = KEPT) -> Bus:
        self._log = self._log or Log(kept=kept)
        return MemoryBus(self._log)


class FaultyPlace:
    """A network without faults: then it must be a bus like any other."""

    def __init__(self) -> None:
        self._network: FaultyNetwork | None = None
        self._nodes = itertools.count()

    async def open(self, *, kept: int = KEPT) -> Bus:
        self._network = self._network or FaultyNetwork(kept=kept)
        return self._network.bus(f"node-{next(self._nodes)}")


class ServerPlace:
    """A namespace of its own on a server."""

    def __init__(self, address: str, *, timeout: float = 5.0) -> None:
        self.address = address
        self.timeout = timeout
        self.namespace = f"place-{next(_numbers)}"

    async def open(self, *, kept: int = KEPT) -> Bus:
        return await open_bus(self.address, timeout=self.timeout, kept=kept, namespace=self.namespace)


def finish(test: Coroutine[Any, Any, None]) -> None:
    """Run a test, and see that no task of it is left."""

    async def whole() -> None:
        await test
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            await asyncio.wait(left, timeout=20.0)
        assert [task for task in left if not task.done()] == []

    asyncio.run(whole())
