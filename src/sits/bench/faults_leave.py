"""Clients that go away: how soon the model server is let go of, in every phase of an answer, and what is left in the books."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import msgspec

from sits.bench.declared import resource, settings
from sits.bench.faults_cells import BROKEN_AT, OPERATIONS, OWN, PATHS, Operation
from sits.bench.faults_client import ask
from sits.bench.faults_judge import Booked, differ
from sits.bench.faults_rig import LONG, body, ledger_of, record_of, running, write
from sits.bench.state_gateway import GatewayProcess
from sits.chaos.script import Fault
from sits.chaos.server import NumberedServer

PROMISED = 0.25
"""Seconds within which an upstream is cancelled."""
PATIENCE = 5.0
_LEAVE_AFTER = 0.25
"""Seconds after which a client goes that cannot see how far the answer is."""
_CONCURRENT = 8
Phase = Literal["silent", "opened", "middle", "second", "hedged"]
PHASES: dict[Phase, str] = {
    "silent": "before the head of the upstream's answer",
    "opened": "after head and opening frames, before the first token",
    "middle": "after 40 of 60 tokens",
    "second": "while the second target is asked, after the first has failed",
    "hedged": "while two targets are asked at once",
}
_STALL: dict[Phase, Fault] = {
    "silent": Fault("stall"),
    "opened": Fault("stall", at=0),
    "middle": Fault("stall", at=BROKEN_AT),
    "second": Fault("error", status=503),
    "hedged": Fault("stall"),
}
CODE = "client_closed_request"


class Leaving(msgspec.Struct, frozen=True):
    """One client that goes."""

    operation: Operation
    streamed: bool
    phase: Phase

    @property
    def name(self) -> str:
        return f"leave.{self.phase}.{self.operation}.{'stream' if self.streamed else 'whole'}"

    @property
    def outcomes(self) -> list[str]:
        """Of the attempts."""
        if self.phase == "second":
            return ["upstream_error", CODE]
        return [CODE, CODE] if self.phase == "hedged" else [CODE]


class Left(msgspec.Struct, frozen=True):
    """What came of it."""

    leaving: Leaving
    seconds: float | None
    """From the client's leaving until the last upstream connection was gone; None when one never went."""
    wrong: list[str]


LEAVINGS = tuple(
    Leaving(operation, streamed, phase) for phase in PHASES for operation in OPERATIONS for streamed in (False, True)
)


async def leave(leavings: Sequence[Leaving], folder: Path) -> list[Left]:
    """Let all of them go."""
    async with AsyncExitStack() as stack:
        servers = []
        resources: list[Mapping[str, Any]] = []
        for one in leavings:
            pair = [await stack.enter_async_context(NumberedServer(f"{one.name}.{place}")) for place in "ab"]
            pair[0].script(_STALL[one.phase])
            pair[1].script(Fault("stall"))
            servers.append(pair)
            resources += _declared(one, pair)
        gateway = GatewayProcess(folder)
        write(gateway, [settings(deadlines=LONG, accessLog=False), *resources])
        gate = asyncio.Semaphore(_CONCURRENT)
        async with running(gateway):
            found = await asyncio.gather(
                *(_one(gateway.port, one, pair, gate) for one, pair in zip(leavings, servers, strict=True))
            )
    booked = await asyncio.to_thread(ledger_of, gateway.data)
    for left in found:
        left.wrong.extend(_judge_ledger(left.leaving, booked.get(left.leaving.name, [])))
    return list(found)


def _declared(one: Leaving, pair: Sequence[NumberedServer]) -> Iterator[dict[str, Any]]:
    for server in pair:
        spec = {"engine": OWN[one.operation], "endpoint": server.url, "upstreamModel": server.name}
        yield resource("Model", server.name, **spec)
    hedge = {"hedge": {"afterMs": 50, "share": 1}} if one.phase == "hedged" else {}
    yield resource("Route", one.name, backends=[{"model": pair[0].name}], fallbacks=[pair[1].name], **hedge)


async def _one(port: int, one: Leaving, pair: Sequence[NumberedServer], gate: asyncio.Semaphore) -> Left:
    async with gate:
        sees = one.streamed and one.phase == "middle"
        answer = await ask(
            port,
            PATHS[one.operation],
            body(one.operation, one.name, streamed=one.streamed),
            {"x-request-id": one.name},
            enough=b"w40" if sees else None,
            leave=PATIENCE if sees else _LEAVE_AFTER,
        )
        wrong = list(differ("requests at the servers", [server.figures.requests for server in pair], _asked(one)))
        seconds = await _gone(answer.ended, pair)
        record = await _record(port, one.name)
    attempts = record.get("attempts", [])
    wrong += differ("record: outcomes", [attempt["outcome"] for attempt in attempts], one.outcomes)
    wrong += differ("record: status", record.get("status"), 499)
    wrong += differ("record: code", record.get("code"), CODE)
    return Left(one, seconds, wrong)


def _asked(one: Leaving) -> list[int]:
    return [1, len(one.outcomes) - 1]


async def _gone(since: float, pair: Sequence[NumberedServer]) -> float | None:
    """Seconds until no server has a connection on which an answer is due."""
    while any(server.figures.open for server in pair):
        if monotonic() - since > PATIENCE:
            return None
        await asyncio.sleep(0.002)
    return monotonic() - since


async def _record(port: int, name: str) -> dict[str, Any]:
    """The record; it is made when the gateway has seen that the client went."""
    end = monotonic() + PATIENCE
    while True:
        found = await record_of(port, name)
        if found or monotonic() > end:
            return found
        await asyncio.sleep(0.01)


def _judge_ledger(one: Leaving, entries: Sequence[Booked]) -> Iterator[str]:
    came = [(entry.attempt, entry.final, entry.outcome) for entry in entries]
    last = len(one.outcomes)
    wanted = [(number, number == last, outcome) for number, outcome in enumerate(one.outcomes, 1)]
    yield from differ("ledger", came, wanted)
    if one.streamed and one.phase == "middle" and entries:
        yield from differ("ledger: output tokens", entries[-1].output_tokens, BROKEN_AT)
