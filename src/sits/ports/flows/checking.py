"""How the checks of flows come by runners, and what they let them do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from sits.inner.errors import Code, SitsError
from sits.ports.flows.base import Body, Context, Flows, Retry, State, Step

WAIT = 15.0
SOON = Retry(attempts=3, first=0.02, longest=0.1)


class Rig(Protocol):
    """How the checks come by runners. Everything that was opened is closed by whoever made the rig."""

    prefix: str
    """What ids must begin with, so that checks on one server keep apart."""
    long: float
    """Seconds that are a long time: an hour on a virtual clock, a second on a real one."""

    async def open(self) -> Flows:
        """A runner on the rig's place, with nothing declared."""
        ...

    async def fall(self, flows: Flows) -> None:
        """End a runner in the middle of what it does; steps under way end with it."""
        ...

    async def advance(self, seconds: float) -> None:
        """Let that time pass, on whatever clock the runner has."""
        ...


Check = Callable[[Rig], Awaitable[None]]


async def running(rig: Rig, flows: dict[str, Body], actions: dict[str, Callable[[Step], Awaitable[bytes]]]) -> Flows:
    runner = await rig.open()
    for name, body in flows.items():
        runner.flow(name, body)
    for name, action in actions.items():
        runner.action(name, action)
    await runner.run()
    return runner


async def ended(runner: Flows, id: str, status: str = "done") -> State:
    state = await runner.result(id, timeout=WAIT)
    assert state.status == status, f"{state!r}"
    return state


async def refused(code: Code, call: Awaitable[object]) -> SitsError:
    answer: object
    try:
        answer = await call
    except SitsError as error:
        if error.code is code:
            return error
        answer = error
    raise AssertionError(f"{answer!r} instead of {code}")


class Ticks:
    """An action that counts: what it was given, and the result `name:input`. `hold` keeps a try from ending."""

    def __init__(self, *, fail: int = 0) -> None:
        self.seen: list[Step] = []
        self.hold: set[bytes] = set()
        self._fail = fail
        self._news = asyncio.Event()

    async def __call__(self, step: Step) -> bytes:
        self.seen.append(step)
        self._news.set()
        if step.input in self.hold:
            await asyncio.Event().wait()
        if len(self.seen) <= self._fail:
            raise ValueError(f"try {len(self.seen)} 失败")
        return b"did " + step.input

    async def until(self, count: int) -> None:
        async with asyncio.timeout(WAIT):
            while len(self.seen) < count:
                self._news.clear()
                await self._news.wait()

    @property
    def inputs(self) -> list[bytes]:
        return [step.input for step in self.seen]


async def echo(context: Context, input: bytes) -> bytes:
    return await context.step("tick", input)
