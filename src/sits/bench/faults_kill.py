"""Streams whose model server dies: killed as a process with all of them on it, and one by one at a random token of each.

The routes continue (`onBrokenStream: continue`), so each stream must be complete, every token once. A server that takes the
text so far as the beginning of its answer (capability `prefill`) goes on at once; another one says all of it again, and what the
client has is left out.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal

import msgspec

from sits.bench.declared import resource, settings
from sits.bench.faults_cells import ABLE, OPERATIONS, OWN, PATHS, Operation
from sits.bench.faults_client import Answer, ask
from sits.bench.faults_rig import LONG, body, holding, record_of, running, write
from sits.bench.faults_wire import FINISHES, read
from sits.bench.state_gateway import GatewayProcess
from sits.chaos.script import Fault
from sits.chaos.server import NumberedServer
from sits.ports.servers.process import ServerProcess, answers, free_port

TOKENS = 120
DELAY = 0.01
"""Seconds a token."""
BETWEEN = 0.004
"""Seconds between the starts of two streams: so each is at another token when the process dies."""
SEED = 20_261_130
Death = Literal["none", "process", "token"]
Mode = Literal["prefill", "replay"]
MODES: tuple[Mode, ...] = ("prefill", "replay")
_SETTINGS = settings(deadlines=LONG, accessLog=False)
_ABLE: dict[Mode, list[str]] = {"prefill": ["chat", "completions", "prefill"], "replay": ["chat", "completions"]}


class Stream(msgspec.Struct, frozen=True):
    """One stream that a client has read to its end."""

    name: str
    wrong: list[str]
    hit: bool
    """Its first server died under it."""
    seconds: float
    gap: float
    """The longest time between two pieces."""


class Round(msgspec.Struct, frozen=True):
    """All streams of one kind of death."""

    death: Death
    mode: Mode
    streams: list[Stream]

    @property
    def complete(self) -> int:
        return sum(1 for one in self.streams if not one.wrong)

    @property
    def hit(self) -> list[Stream]:
        return [one for one in self.streams if one.hit]


class ModelProcess(ServerProcess):
    """A numbered model server in a process of its own, which can be killed."""

    def __init__(self, name: str, folder: Path) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "sits.chaos.server", "--port", str(self.port), "--name", name, "--delay", str(DELAY)]
        question = b"GET /health HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n"
        super().__init__(name, command, answers(self.port, question, b" 200 "), log=folder / f"{name}.log")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def _declare(mode: Mode, first: str, second: str) -> list[dict[str, Any]]:
    """For each endpoint two models and a route that goes on from one to the other."""
    found = []
    for operation in OPERATIONS:
        name = f"{mode}.{operation}"
        for place, url in (("a", first), ("b", second)):
            spec = {
                "engine": (ABLE if mode == "prefill" else OWN)[operation],
                "endpoint": url,
                "upstreamModel": "numbered",
                "capabilities": _ABLE[mode],
            }
            # What a dead server does to its health is not the question here.
            found.append(resource("Model", f"{name}.{place}", **spec, breaker={"enabled": False}))
        found.append(
            resource("Route", name, backends=[{"model": f"{name}.a"}], fallbacks=[f"{name}.b"], onBrokenStream="continue")
        )
    return found


async def by_process(folder: Path, mode: Mode, count: int, death: Death) -> Round:
    """Streams on one server process, which is killed with SIGKILL once all of them run; `none` leaves it alive."""
    async with AsyncExitStack() as stack:
        first, second = (ModelProcess(name, folder) for name in ("first", "second"))
        for server in (first, second):
            stack.enter_context(holding(server.port))
            await asyncio.to_thread(server.start)
            stack.push_async_callback(asyncio.to_thread, server.stop)
        gateway = GatewayProcess(folder)
        write(gateway, [_SETTINGS, *_declare(mode, first.url, second.url)])
        async with running(gateway):
            streams = [asyncio.ensure_future(_stream(gateway.port, mode, number, death)) for number in range(count)]
            await asyncio.sleep(count * BETWEEN + 20 * DELAY)
            if death == "process":
                await asyncio.to_thread(first.kill)
            return Round(death, mode, await asyncio.gather(*streams))


async def by_token(folder: Path, mode: Mode, count: int) -> Round:
    """Each stream's connection is reset at a random token of its own."""
    dice = random.Random(SEED)  # noqa: S311 - no secrets
    async with NumberedServer("first", delay=DELAY) as first, NumberedServer("second", delay=DELAY) as second:
        first.script(*(Fault("reset", at=dice.randrange(1, TOKENS), times=1) for _ in range(count)))
        gateway = GatewayProcess(folder)
        write(gateway, [_SETTINGS, *_declare(mode, first.url, second.url)])
        async with running(gateway):
            streams = [_stream(gateway.port, mode, number, "token") for number in range(count)]
            return Round("token", mode, await asyncio.gather(*streams))


async def _stream(port: int, mode: Mode, number: int, death: Death) -> Stream:
    await asyncio.sleep(number * BETWEEN)
    operation = OPERATIONS[number % len(OPERATIONS)]
    name = f"{death}.{mode}.{operation}.{number}"
    asked = body(operation, f"{mode}.{operation}", streamed=True, tokens=TOKENS)
    answer = await ask(port, PATHS[operation], asked, {"x-request-id": name})
    record = await record_of(port, name)
    outcomes = [attempt["outcome"] for attempt in record.get("attempts", [])]
    return Stream(
        name,
        _judge(operation, answer, outcomes),
        hit=len(outcomes) > 1,
        seconds=answer.ended - answer.asked,
        gap=answer.widest_gap(),
    )


def _judge(operation: Operation, answer: Answer, outcomes: Sequence[str]) -> list[str]:
    """What is wrong with a stream that should be complete."""
    if answer.status != 200:
        return [f"status {answer.status}: {answer.body[:200]!r}"]
    said = read(operation, answer.body, streamed=True)
    wrong = [*said.wrong, *([answer.fault] if answer.fault else [])]
    wanted = [f"w{number}" for number in range(1, TOKENS + 1)]
    words = said.text.split()
    if words != wanted or said.text != " ".join(wanted):
        at = next((place for place, pair in enumerate(zip(words, wanted, strict=False)) if pair[0] != pair[1]), len(words))
        wrong.append(f"{len(words)} tokens; wrong from the {at + 1}th on: {words[max(0, at - 2) : at + 3]}")
    if said.end != "complete" or said.finish != FINISHES[operation]:
        wrong.append(f"it ended with {said.end} {said.code} {said.finish}")
    if not outcomes or outcomes[-1] != "ok":
        wrong.append(f"outcomes {outcomes}")
    return wrong
