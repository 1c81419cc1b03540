"""One pass over the fault matrix: a real gateway process, two numbered model servers for each cell, and the requests."""

from __future__ import annotations

import asyncio
import re
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from sits.bench import BenchError
from sits.bench.declared import declare, resource, settings
from sits.bench.faults_cells import PATHS, TOKENS, Cell
from sits.bench.faults_client import Answer, ask
from sits.bench.faults_judge import (
    Asked,
    Booked,
    Found,
    alias,
    came,
    first,
    heard,
    judge_answer,
    judge_asked,
    judge_ledger,
    judge_metrics,
    judge_record,
    judge_said,
    second,
)
from sits.bench.faults_wire import Said
from sits.bench.state_gateway import GatewayProcess
from sits.chaos.script import Fault
from sits.chaos.server import NumberedServer
from sits.state.ledger import Query, open_table
from sits.state.ledger.entry import entry_of

CONCURRENT = 12
"""Cells under way at once."""
LONG = {"connect": 5.0, "headers": 15.0, "firstToken": 15.0, "idle": 15.0, "total": 20.0}
"""Deadlines that nobody waits for."""
UNSHARED = "of-the-client-alone"
PRIVATE = {"authorization": f"Bearer {UNSHARED}", "cookie": f"session={UNSHARED}", "x-api-key": UNSHARED}
"""What clients send and no model server may see. No key is asked for here."""
_ATTEMPTS = re.compile(r'^sits_attempts_total\{target="([^"]*)",outcome="([^"]*)"\} (\S+)$', re.MULTILINE)
Library = Callable[[int, Cell], Awaitable[Said]]
"""Asks a cell at a port by a client library; what it made of the answer."""


class Pair:
    """The two servers of a cell."""

    def __init__(self, cell: Cell) -> None:
        self.first = NumberedServer(first(cell))
        self.second = NumberedServer(second(cell))
        _script(self.first, cell.first_fault)
        _script(self.second, cell.trouble.second)
        self._refuses = cell.trouble.fault is None
        self._closed: socket.socket | None = None

    async def __aenter__(self) -> Pair:
        await self.second.listen()
        if self._refuses:
            # Bound and not listening: connections are refused, and nobody else gets the port.
            self._closed = socket.socket()
            self._closed.bind(("127.0.0.1", 0))
            self.first.port = self._closed.getsockname()[1]
        else:
            await self.first.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in (self.first, self.second):
            await server.__aexit__()
        if self._closed is not None:
            self._closed.close()

    @property
    def asked(self) -> list[list[Asked]]:
        """What each of them was asked."""
        return [
            [
                Asked(
                    msgspec.json.decode(body)["model"],
                    heads.get("x-request-id", ""),
                    [name for name, value in heads.items() if UNSHARED in value],
                )
                for (_, body), heads in zip(server.asked, server.heads, strict=True)
            ]
            for server in (self.first, self.second)
        ]


def _script(server: NumberedServer, fault: Fault | None) -> None:
    server.script(*([fault] if fault is not None else []))


def body(operation: str, name: str, *, streamed: bool, tokens: int = TOKENS) -> dict[str, Any]:
    """What is asked, in the words of the endpoint."""
    prompt = f"Please count to {tokens}"
    turns = [{"role": "user", "content": prompt}]
    told: dict[str, dict[str, Any]] = {
        "chat": {"messages": turns},
        "completions": {"prompt": f"{prompt}:\n"},
        "responses": {"input": prompt},
        "messages": {"messages": turns, "max_tokens": 4096},
    }
    return {"model": name, **told[operation], **({"stream": True} if streamed else {})}


def declared(cell: Cell, pair: Pair) -> Iterator[dict[str, Any]]:
    """The resources of a cell."""
    trouble = cell.trouble
    a = {"engine": cell.way.engines[cell.operation], "endpoint": pair.first.url, "upstreamModel": first(cell)}
    b = {"engine": cell.way.seconds[cell.operation], "endpoint": pair.second.url, "upstreamModel": second(cell)}
    able = {"capabilities": ["chat", "completions", *(["prefill"] if cell.way.prefill else [])]}
    yield resource("Model", first(cell), **a, **able, contextWindow=4096, deadlines=trouble.deadlines)
    window = 8192 if trouble.larger else 4096
    yield resource("Model", second(cell), **b, **able, contextWindow=window, deadlines=trouble.second_deadlines)
    broken = "continue" if cell.way.continues else "error"
    names = {"backends": [{"model": first(cell)}], "fallbacks": [second(cell)], "aliases": [alias(cell)]}
    yield resource("Route", cell.name, **names, onBrokenStream=broken)


def write(gateway: GatewayProcess, resources: Sequence[Mapping[str, Any]]) -> None:
    """All of it as one file, put there in one move."""
    declare(gateway.config, "all", resources)


@asynccontextmanager
async def running(gateway: GatewayProcess) -> AsyncIterator[GatewayProcess]:
    """The gateway while the block lasts; ended by SIGTERM, so that its books are closed."""
    with holding(gateway.port):
        await asyncio.to_thread(gateway.start)
        try:
            yield gateway
        finally:
            await asyncio.to_thread(gateway.stop)


@contextmanager
def holding(port: int) -> Iterator[None]:
    """Keep a port from whoever wants any, until whoever is to have it listens there (and after).

    Linux lets a second socket bind it while none listens, as both say SO_REUSEADDR.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", port))
        yield


async def sweep(cells: Sequence[Cell], folder: Path, library: Library | None = None) -> list[Found]:
    """Run cells against one gateway; `library` asks those of ways by libraries.

    Raises:
        BenchError: the gateway's metrics cannot be had.
    """
    async with AsyncExitStack() as stack:
        pairs = [await stack.enter_async_context(Pair(cell)) for cell in cells]
        gateway = GatewayProcess(folder)  # now: its port must be none that a server took meanwhile
        resources = [one for cell, pair in zip(cells, pairs, strict=True) for one in declared(cell, pair)]
        write(gateway, [settings(deadlines=LONG, accessLog=False, records=4096), *resources])
        gate = asyncio.Semaphore(CONCURRENT)
        async with running(gateway):
            found = await asyncio.gather(
                *(_cell(gateway.port, cell, pair, gate, library) for cell, pair in zip(cells, pairs, strict=True))
            )
            metrics = await ask(gateway.port, "/metrics")
            if metrics.status != 200:
                raise BenchError(f"/metrics answered {metrics.status}: {metrics.body[:200]!r}")
            counted = attempts_in(metrics.body.decode())
    booked = await asyncio.to_thread(ledger_of, gateway.data)
    for one in found:
        one.wrong += judge_metrics(one.cell, counted)
        one.wrong += judge_ledger(one.cell, booked.get(one.cell.name, []))
    return list(found)


async def _cell(port: int, cell: Cell, pair: Pair, gate: asyncio.Semaphore, library: Library | None) -> Found:
    async with gate:
        began = monotonic()
        wrong: list[str] = []
        if library is None or not cell.way.library:
            asked = body(cell.operation, alias(cell), streamed=cell.streamed)
            answer = await ask(port, PATHS[cell.operation], asked, {"x-request-id": cell.name, **PRIVATE})
            said = heard(cell, answer)
            wrong += judge_answer(cell, answer, said)
        else:
            said = await library(port, cell)
            wrong += judge_status(cell, said)
        seconds = monotonic() - began
        wrong += judge_said(cell, said)
        wrong += judge_record(cell, await record_of(port, cell.name))
        wrong += judge_asked(cell, pair.asked)
        return Found(cell, wrong, came(cell, said), seconds)


def judge_status(cell: Cell, said: Said) -> Iterator[str]:
    """The status that a client library told; it tells none where all is well."""
    wanted = 0 if cell.right.status == 200 else cell.right.status
    if said.status != wanted:
        yield f"status: expected {wanted}, came {said.status}"


async def record_of(port: int, request_id: str) -> dict[str, Any]:
    """The decision record; empty when there is none."""
    answer: Answer = await ask(port, f"/v1/admin/records/{request_id}")
    found = msgspec.json.decode(answer.body) if answer.status == 200 else {}
    assert isinstance(found, dict)
    return found


def attempts_in(metrics: str) -> dict[tuple[str, str], float]:
    """`sits_attempts_total` by (target, outcome)."""
    return {(target, outcome): float(value) for target, outcome, value in _ATTEMPTS.findall(metrics)}


def ledger_of(data: Path) -> dict[str, list[Booked]]:
    """The entries by request, in the order of their attempts."""
    table = open_table(data)
    try:
        found: dict[str, list[Booked]] = defaultdict(list)
        after = None
        while True:
            page = table.entries(Query(), after=after, limit=1000)
            for entry in map(entry_of, page.rows):
                found[entry.request_id].append(
                    Booked(entry.attempt, entry.final, entry.outcome, entry.model, entry.output_tokens, entry.cost)
                )
            if page.next is None:
                break
            after = page.next
    finally:
        table.close()
    for entries in found.values():
        entries.sort(key=lambda one: one.attempt)
    return found
