"""What the tests of vital signs share: a watch over a clock that is turned by hand, real engines, servers that play scripts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import uvloop

from sits import dialects
from sits.engines.base import Deadlines, Engine
from sits.engines.remote import RemoteEngine, parse_address
from sits.engines.remote.connection import AnswerLimits
from sits.gateway.vitals import Declared, VitalsWatch
from sits.gateway.vitals_queries import HealthChange
from sits.inner.sweep import Sweep
from sits.resources.kinds import Metadata, Model, ModelSpec
from sits.routing.policies.state import TargetState
from sits.routing.target import EVERYTHING, Target


class World:
    """`now` is the clock of the watch; the engines go by the real one. All is closed in the end."""

    def __init__(self) -> None:
        self.now = 100.0
        self.states: dict[str, TargetState] = {}
        self.changes: list[HealthChange] = []
        self.opened: list[str] = []
        self._loop = asyncio.get_running_loop()
        self._sweep = Sweep()
        self._engines: dict[str, RemoteEngine] = {}
        self.watch = VitalsWatch(
            self.states,
            self._own,
            clock=lambda: self.now,
            wall=lambda: 1.8e9 + self.now,
            chance=lambda: 0.5,
            told=self.changes.append,
        )
        self._tick()

    def engine(self, url: str, limits: AnswerLimits | None = None) -> RemoteEngine:
        found = self._engines.get(url)
        if found is None:
            found = RemoteEngine(parse_address(url), sweep=self._sweep, loop=self._loop, limits=limits, clock=time.monotonic)
            self._engines[url] = found
        return found

    def target(
        self, name: str, url: str | None = None, family: Any = "vllm", *, upstream: str = "", key: str = "",
        zone: str | None = None, engine: Engine | None = None,
    ) -> Target:  # fmt: skip
        model = Model(Metadata(name), ModelSpec(family, url, upstream or None, zone=zone))
        fixed = f"authorization: Bearer {key}\r\n".encode() if key else b""
        made: Any = engine or (self.engine(url) if url is not None else None)
        dialect = dialects.upstream("openai")
        return Target(name, upstream or name, family, dialect, made, EVERYTHING, Deadlines(), fixed, b"", model)

    def take(
        self,
        targets: Iterable[Target],
        declared: Mapping[str, Declared] | None = None,
        routes: Sequence[Sequence[str]] = (),
        prometheus: str | None = None,
    ) -> None:
        """The table in force; every target has a state."""
        by_name = {target.name: target for target in targets}
        for name in by_name:
            self.states.setdefault(name, TargetState())
        self.watch.take(by_name, declared or {}, routes, prometheus=prometheus, most_out=0.5)

    async def at(self, now: float, met: Callable[[], bool]) -> None:
        """It is so late, and what follows from it has come."""
        self.now = now

        def ticked() -> bool:
            self.watch.tick(now)
            return met()

        await until(ticked)

    def load(self, name: str) -> tuple[int, float]:
        state = self.states[name]
        return state.elsewhere, state.kv

    def row(self, name: str) -> dict[str, Any]:
        (found,) = (row for row in self.watch.status()["data"] if row["target"] == name)
        return dict(found)

    def health(self, name: str) -> dict[str, Any]:
        (found,) = (row for row in self.watch.status()["health"] if row["target"] == name)
        return dict(found)

    def _own(self, url: str) -> Engine:
        self.opened.append(url)
        return self.engine(url)

    def _tick(self) -> None:
        self._sweep.run(time.monotonic())
        self._timer = self._loop.call_later(0.01, self._tick)

    async def __aenter__(self) -> World:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.watch.aclose()
        for engine in self._engines.values():
            await engine.aclose()
        await until(lambda: not any(engine.connections for engine in self._engines.values()))
        self._timer.cancel()


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not met():  # noqa: ASYNC110 - answers from the network set no event of ours
            await asyncio.sleep(0.002)


def run(story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        async with asyncio.timeout(90), World() as world:
            await story(world)

    uvloop.run(go())
