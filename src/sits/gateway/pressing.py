"""Pressure on the way of a request, and the one that watches for it: made when the first policy is declared."""

from __future__ import annotations

import asyncio
import pathlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from sits.dialects.shorten import cap_tokens
from sits.engines.base import Engine
from sits.gateway.strangers import may
from sits.inner.errors import Code, SitsError
from sits.observe.metrics import Registry
from sits.ports.ending import end

if TYPE_CHECKING:
    from sits.gateway.exchange import Exchange
    from sits.gateway.table import Table
    from sits.resilience.pressure import PressureChange, Pressures


class Pressing:
    """The policies of one process, if there are any. `gauges` are figures of the gateway itself; `engine_of` asks a URL."""

    def __init__(
        self,
        data: pathlib.Path,
        registry: Registry,
        gauges: Mapping[str, Callable[[], float]],
        engine_of: Callable[[str], Engine],
        *,
        wall: Callable[[], float],
    ) -> None:
        self.pressures: Pressures | None = None
        self._run = data / "run"
        self._registry = registry
        self._gauges = gauges
        self._engine_of = engine_of
        self._wall = wall
        self._task: asyncio.Task[None] | None = None

    def take(self, table: Table) -> Pressures | None:
        """Go by the policies of this table; None while there never were any."""
        snapshot = table.snapshot
        if self.pressures is None:
            if not snapshot.pressures:
                return None
            self._begin()
        assert self.pressures is not None
        settings = snapshot.settings
        self.pressures.take(
            snapshot.pressures, table.targets, prometheus=settings.prometheus, local_memory_mib=settings.local_memory_mib
        )
        for name in snapshot.pressures:
            self._registry.pressure_acting.series(name)
        return self.pressures

    def _begin(self) -> None:
        from sits.resilience.pressure import Pressures, evict
        from sits.resilience.pressure.readings import Readings

        readings = Readings(clock=time.perf_counter, gauges=self._gauges, ask_prometheus=self._engine_of, run=self._run)
        self.pressures = Pressures(
            readings,
            clock=time.perf_counter,
            wall=self._wall,
            evict=lambda idle: evict(self._run, idle, time.time),
            told=self._told,
        )
        self._task = asyncio.get_running_loop().create_task(self.pressures.run())

    async def aclose(self) -> None:
        """End the watching."""
        if self._task is not None and self.pressures is not None:
            await end(self._task)
            await self.pressures.aclose()

    def page(self) -> dict[str, Any]:
        """How every policy is, and what changed of late, newest first."""
        if self.pressures is None:
            return {"data": [], "changes": []}
        return {
            "data": [msgspec.to_builtins(row) for row in self.pressures.rows()],
            "changes": [msgspec.to_builtins(change) for change in reversed(self.pressures.changes)],
        }

    def _told(self, change: PressureChange) -> None:
        state = "acting" if change.acting else "released"
        self._registry.pressure_acting.series(change.name).value = change.acting
        self._registry.pressure_changes.series(change.name, state).value += 1


def relieve(x: Exchange, pressures: Pressures) -> None:
    """Ask less of the models for this request, as the policies that act say. P0 is exempt: do not call it for that.

    Raises:
        SitsError: `overloaded`, its class is not served while the pressure lasts.
    """
    from sits.resilience.pressure import downscaled

    assert x.choice is not None
    assert x.plan is not None
    relief = pressures.of(x.choice.name)
    if x.priority >= relief.shed_from:
        said = f"requests of class P{x.priority} are refused while pressure lasts: {', '.join(relief.policies)}"
        raise SitsError(Code.OVERLOADED, said, retry_after=relief.retry_after)
    if relief.downscale:
        targets = downscaled(x.plan.targets, relief, x.table.targets, partial(may, x))[: x.choice.attempts]
        x.plan = msgspec.structs.replace(x.plan, targets=targets)
    if relief.max_tokens is not None:
        x.rewritten(cap_tokens(x.request.body, x.operation, relief.max_tokens))
    if relief.policies:
        x.more += b"x-sits-pressure: %b\r\n" % ", ".join(relief.policies).encode()
