"""What the tests of pressure share: targets, policies, engines that run."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sits import dialects
from sits.engines.base import Deadlines, Engine
from sits.engines.remote import RemoteEngine, parse_address
from sits.inner.sweep import Sweep
from sits.resources.kinds import Metadata, Model, ModelSpec
from sits.resources.reliability import Action, Pressure, PressureSpec, Trigger
from sits.routing.target import EVERYTHING, Target


def model(name: str, engine: Any = "vllm", **labels: str) -> Model:
    return Model(Metadata(name, labels=labels), ModelSpec(engine, "http://127.0.0.1:1"))


def target(
    name: str,
    engine: Engine | None = None,
    *,
    family: Any = "vllm",
    can: frozenset[str] = EVERYTHING,
    fixed: bytes = b"",
    labels: Mapping[str, str] | None = None,
) -> Target:
    resource = model(name, family, **(labels or {}))
    asked: Any = engine
    return Target(name, name, family, dialects.upstream(family), asked, can, Deadlines(), fixed, b"", resource)


def pressure(
    name: str,
    metric: str = "queue",
    threshold: float = 10.0,
    *,
    action: str = "shed",
    config: dict[str, Any] | None = None,
    seconds: float = 0.0,
    routes: list[str] | None = None,
    release_seconds: float | None = None,
) -> Pressure:
    trigger = Trigger(metric, threshold, seconds, None, release_seconds)
    does: Any = action
    return Pressure(Metadata(name), PressureSpec(trigger, Action(does, config or {}), routes=routes or []))


HOLD = """
import os, signal, sys
from pathlib import Path
from sits.engines.local.lease import Held, Lease
path = Path(sys.argv[1])
held = Held(path)
held.write(Lease("http://127.0.0.1:1", "key", os.getpid(), 7, path.stem))
if len(sys.argv) > 2:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
print(flush=True)
sys.stdin.read()
"""


def holding(path: Path, *, busy: bool = False) -> subprocess.Popen[bytes]:
    """A process that holds the lease at `path` as that of a model does; a busy one does not leave when it is asked to."""
    command = [sys.executable, "-c", HOLD, str(path), *(["busy"] if busy else [])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


class Running:
    """Engines over a sweep that runs; all are closed in the end."""

    def __init__(self) -> None:
        self._sweep = Sweep()
        self._engines: list[RemoteEngine] = []
        self._loop = asyncio.get_running_loop()
        self._tick()

    def engine(self, url: str) -> RemoteEngine:
        made = RemoteEngine(parse_address(url), sweep=self._sweep, loop=self._loop, clock=time.monotonic)
        self._engines.append(made)
        return made

    async def __aenter__(self) -> Running:
        return self

    async def __aexit__(self, *_: object) -> None:
        for engine in self._engines:
            await engine.aclose()
        async with asyncio.timeout(30):
            while any(engine.connections for engine in self._engines):  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.001)
        self._timer.cancel()

    def _tick(self) -> None:
        self._sweep.run(time.monotonic())
        self._timer = self._loop.call_later(0.01, self._tick)
