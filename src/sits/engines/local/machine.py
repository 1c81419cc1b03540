"""The machine as the local models of this process share it: folders, memory, the turn to load, the processes that serve them.

Which process serves a model is decided under a lock that all workers on the data folder share, so that they end up with one child
between them, and so that two loads cannot both take the last free memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

from sits.engines.local import memory
from sits.engines.local.aside import aside
from sits.engines.local.child import Child, attach
from sits.engines.local.lease import idle_since, living
from sits.inner.errors import Code, SitsError

log = logging.getLogger("sits.local")

LEAVE_SECONDS = 2.0
"""How long a model that was asked to make room, or whose configuration is gone, may take to end by itself."""
_POLL_SECONDS = 0.05


class Machine:
    """Of one process; used from one event loop. `memory_mib` bounds what the models of all processes on the data folder take
    together; four fifths of what is free without it."""

    def __init__(self, data: Path, *, memory_mib: int | None = None) -> None:
        self.models = data / "models"
        self.run = data / "run"
        self.limit = None if memory_mib is None else memory_mib * memory.MIB
        self._started: set[Child] = set()
        """The processes that this one started. Whoever loses sight of one, they are ended and reaped by us."""
        for folder in (data, self.models, self.run):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def started(self, child: Child) -> Child:
        """Note a process that is to end with this one."""
        self._started = {child, *(one for one in self._started if not one.gone)}
        return child

    def attach(self, lease: Path) -> Child | None:
        """The process that holds a lease, when one does and is ready: as we started it, if we did."""
        found = attach(lease)
        ours = next(
            (one for one in self._started if found is not None and not one.gone and one.lease.pid == found.lease.pid), None
        )
        if ours is None or found is None:
            return found
        ours.lease = found.lease
        found.let_go()
        return ours

    async def stop(self) -> None:
        """End every process that this one started; none is left to be reaped by another."""
        await asyncio.gather(*(child.stop() for child in self._started))

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The right to load or wake, of which there is one over all processes."""
        with (self.run / "loading.lock").open("ab") as file:
            while not _locked(file):  # noqa: ASYNC110 - other processes set no event of ours
                await asyncio.sleep(_POLL_SECONDS)
            yield

    async def make_room(self, name: str, total: int, needs: str, own: Path | None = None) -> None:
        """Return when `total` bytes fit, in words `needs`. Idle models are unloaded for it: those that are asleep before others,
        the longest idle ones first. `own` is the lease of a model that is to be woken: what it holds is part of what it needs.
        Call it within a `turn`.

        Raises:
            SitsError: `model_does_not_fit`, with the figures; nothing is unloaded in vain.
        """
        busy: set[Path] = set()
        while True:
            others = {path: lease for path in self.run.glob("*.json") if (lease := living(path)) is not None}
            waking = others.pop(own, None) if own is not None else None
            used = sum(lease.needs for lease in others.values())
            free = await aside(memory.available, "memory") + (waking.needs if waking is not None else 0)
            limit = self.limit if self.limit is not None else (free + used) * 4 // 5
            room = min(free, limit - used)
            if total <= room:
                return
            idle = sorted(
                (path for path in others if path not in busy), key=lambda path: (others[path].state != "asleep", idle_since(path))
            )
            if not idle or total > room + sum(others[path].needs for path in idle):
                raise SitsError(Code.MODEL_DOES_NOT_FIT, f"{name} needs {needs}, {_free(room, used, self.limit)}")
            victim = attach(idle[0])
            if victim is not None:
                log.info("%s is unloaded to make room for %s", victim.lease.name, name)
                if not await victim.leave(LEAVE_SECONDS):
                    busy.add(idle[0])
                    victim.let_go()


def _locked(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _free(room: int, used: int, limit: int | None) -> str:
    text = f"{memory.size(max(0, room))} free"
    if limit is not None:
        text += f" of localMemoryMib {limit // memory.MIB}"
    return text + (f" ({memory.size(used)} taken by other models)" if used else "")
