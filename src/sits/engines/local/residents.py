"""The models of this process that live on this machine: each is made when somebody takes it, and ended when nobody holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path

from sits.engines.base import Engine
from sits.engines.local.hosting import ASLEEP_SECONDS
from sits.engines.local.machine import Machine
from sits.engines.local.plans import Plan
from sits.engines.local.resident import MakeRemote, Resident


class LocalModels:
    """All local models of this process. Used from one event loop.

    `make_remote` gives an `Engine` for the server at an address. `memory_mib` is as of `Machine`.
    """

    def __init__(
        self, data: Path, make_remote: MakeRemote, *, memory_mib: int | None = None, asleep_seconds: float = ASLEEP_SECONDS
    ) -> None:
        self.make_remote = make_remote
        self.machine = Machine(data, memory_mib=memory_mib)
        self.asleep_seconds = asleep_seconds
        self._members: dict[str, Resident] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def take(self, wanted: Plan) -> Resident:
        """The resident of a plan, made when there is none. Every `take` needs a `give_back`."""
        resident = self._members.get(wanted.id)
        if resident is None:
            resident = self._members[wanted.id] = Resident(
                wanted, self.machine, self.make_remote, self.close_soon, asleep_seconds=self.asleep_seconds
            )
        resident.holders += 1
        return resident

    async def give_back(self, resident: Resident) -> None:
        """Undo one `take`. The last one ends the model: now, or when its last request is done."""
        resident.holders -= 1
        if resident.holders == 0 and resident.in_flight == 0:
            # Who waits may be cancelled; the end of the process is not left half-way for that.
            await asyncio.shield(self._aside(self.retire(resident)))

    def finished(self, resident: Resident) -> None:
        """The last request of a resident that nobody holds any more is done."""
        self._aside(self.retire(resident))

    def close_soon(self, remote: Engine) -> None:
        self._aside(remote.aclose())

    async def retire(self, resident: Resident) -> None:
        if resident.holders == 0 and self._members.get(resident.plan.id) is resident:
            del self._members[resident.plan.id]
            await resident.end()

    async def aclose(self) -> None:
        """End every model that this process started, at once; none of their processes is left to be reaped by another."""
        members, self._members = list(self._members.values()), {}
        try:
            await asyncio.gather(*(resident.end() for resident in members))
            while self._leaving:
                await asyncio.gather(*self._leaving)
        finally:
            await self.machine.stop()

    def _aside(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task
