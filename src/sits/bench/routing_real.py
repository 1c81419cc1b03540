"""The policies in a real gateway before four real model servers of different speed; and the same requests simulated.

One `sits serve`, four processes of `sits.chaos.server`, one route for each policy with models of its own: they are the same
servers, but what a gateway has learned of a model belongs to the model, and a route may not profit from what another one learned.
Routes are asked one after the other, each the same requests at the same moments, whether the ones before are answered or not (an
open loop).
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import uvloop

from sits.bench import BenchError
from sits.bench.child import Child, answers
from sits.bench.routing_pool import SHEETS, Told, stale
from sits.bench.routing_world import Ask, Backend, Seen, Simulation
from sits.bench.state_gateway import GatewayProcess, openai_model
from sits.inner.errors import SitsError
from sits.ports.servers.process import free_port
from sits.routing.policies import POLICIES

SLOTS = 8
DELAYS = (0.005, 0.01, 0.02, 0.04)
"""Seconds a token."""
ANSWER, SIGMA, MOST = 32.0, 0.6, 160
"""Tokens of an answer: median, spread, the most."""
POOL = tuple(Backend(f"server-{number}", SLOTS, 1e12, 1.0 / delay, crowd=0.0) for number, delay in enumerate(DELAYS))
GRACE = 60.0
"""Seconds after which an answer counts as failed."""
_READY_SECONDS = 15.0
_TARGET = b"x-sits-target: "


class Compared(msgspec.Struct, frozen=True):
    """One policy, before real servers and before simulated ones."""

    name: str
    offered: int
    failed: int
    """Requests without a whole answer; they count as `GRACE` seconds."""
    mean: float
    """Seconds to the end of an answer."""
    p50: float
    p99: float
    throughput: float
    """Whole answers a second, of those that came before the last request was sent."""
    shares: tuple[float, ...]
    """Of the requests, by server, the fastest first."""
    late: float
    """Seconds that a request was sent after its time, 99th percentile: the load maker's own delay."""
    simulated: float
    simulated_p99: float
    load: float
    """Of the machine, over the minute before it was done."""


class _Took(msgspec.Struct, frozen=True):
    """One request."""

    seconds: float
    ok: bool
    target: int
    """Who answered, by number; -1 for nobody."""
    late: float
    over: float
    """When it was over, from the start."""


def weights_of(told: Told) -> list[float]:
    """What the route of a policy says its backends' weights are."""
    if told.weights == "sheet":
        # The servers are as fast to each other as four generations of memory; arithmetic grew faster than that.
        return [round(flops / SHEETS[-1][2], 1) for _, _, flops, _ in SHEETS]
    exact = [DELAYS[-1] / delay for delay in DELAYS]
    return {"capacity": exact, "stale": stale(exact)}.get(told.weights, [1.0] * len(DELAYS))


def compare(rivals: dict[str, Told], rate: float, seconds: float, seed: int, say: Callable[[str], None]) -> list[Compared]:
    """All of them, before the same servers.

    Raises:
        BenchError: a server or the gateway does not start.
    """
    trace = _trace(rate, seconds, seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sits-routing-")))
        gateway = GatewayProcess(folder)
        ports = [_server(stack, folder, number) for number in range(len(DELAYS))]
        _declare(gateway, rivals, ports)
        try:
            stack.enter_context(gateway)
        except SitsError as error:
            raise BenchError(error.message) from error
        _await_routes(gateway, len(rivals))
        found = []
        for number, (name, told) in enumerate(rivals.items()):
            say(f"  {name}")
            rows = uvloop.run(_drive(gateway.port, _route(number), trace))
            weights = weights_of(told)
            found.append(_compared(name, rows, Simulation(POOL, [POLICIES[told.policy]()], weights, (), seed).run(trace)))
    return found


def _compared(name: str, rows: Sequence[_Took], simulated: Seen) -> Compared:
    took = sorted(row.seconds if row.ok else GRACE for row in rows)
    late = sorted(row.late for row in rows)
    whole = sum(row.ok for row in rows)
    last = max(row.over - row.seconds for row in rows)
    return Compared(
        name=name,
        offered=len(rows),
        failed=len(rows) - whole,
        mean=sum(took) / len(took),
        p50=_at(took, 0.5),
        p99=_at(took, 0.99),
        throughput=sum(row.ok and row.over <= last for row in rows) / last,
        shares=tuple(sum(row.target == number for row in rows) / len(rows) for number in range(len(DELAYS))),
        late=_at(late, 0.99),
        simulated=simulated.mean,
        simulated_p99=simulated.p99,
        load=os.getloadavg()[0],
    )


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[math.ceil(share * len(ordered)) - 1]


def _trace(rate: float, seconds: float, seed: int) -> list[Ask]:
    dice = random.Random(seed)  # noqa: S311 - no secrets
    made: list[Ask] = []
    at = dice.expovariate(rate)
    while at < seconds:
        made.append(Ask(at, 0, int(min(MOST, max(1.0, dice.lognormvariate(math.log(ANSWER), SIGMA)))), 1.0))
        at += dice.expovariate(rate)
    return made


# The servers and the gateway


def _server(stack: ExitStack, folder: Path, number: int) -> int:
    port = free_port()
    command = [sys.executable, "-m", "sits.chaos.server", "--port", str(port), "--slots", str(SLOTS)]
    command += ["--delay", str(DELAYS[number]), "--name", POOL[number].name]
    child = stack.enter_context(Child(f"server {number}", command, core=number % 2, log=folder / f"{number}.log"))
    child.await_ready(answers(f"http://127.0.0.1:{port}/health"), seconds=20.0)
    return port


def _route(number: int) -> str:
    return f"route-{number}"


def _declare(gateway: GatewayProcess, rivals: dict[str, Told], ports: Sequence[int]) -> None:
    gateway.declare("settings", "Settings", {"accessLog": False, "outliers": {"enabled": False}})
    for number, told in enumerate(rivals.values()):
        backends = []
        for server, (port, weight) in enumerate(zip(ports, weights_of(told), strict=True)):
            name = f"model-{number}-{server}"
            # A line before a server makes first contents late, and a breaker would leave it out: choosing is what is measured.
            spec = {**openai_model(f"http://127.0.0.1:{port}"), "breaker": {"enabled": False}}
            gateway.declare(name, "Model", spec)
            backends.append({"model": name, "weight": weight})
        gateway.declare(_route(number), "Route", {"policy": told.policy, "backends": backends})


def _await_routes(gateway: GatewayProcess, count: int) -> None:
    wanted = {_route(number) for number in range(count)}
    until = time.monotonic() + _READY_SECONDS
    while not wanted <= gateway.names():
        if time.monotonic() > until:
            raise BenchError(f"the gateway does not know {', '.join(sorted(wanted - gateway.names()))}")
        time.sleep(0.05)


# The clients


async def _drive(port: int, route: str, trace: Sequence[Ask]) -> list[_Took]:
    """Send each request when it is due."""
    rows: list[_Took] = []
    began = time.perf_counter()

    async def one(ask: Ask) -> None:
        sent = time.perf_counter()
        target, ok = -1, False
        try:
            async with asyncio.timeout(GRACE):
                target, ok = await _ask(port, route, ask.answer)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            ok = False
        over = time.perf_counter()
        rows.append(_Took(over - sent, ok, target, sent - began - ask.at, over - began))

    async with asyncio.TaskGroup() as group:
        for ask in trace:
            await asyncio.sleep(max(0.0, began + ask.at - time.perf_counter()))
            group.create_task(one(ask))
    return rows


async def _ask(port: int, route: str, tokens: int) -> tuple[int, bool]:
    """One streamed answer, read to its last byte: who gave it, and whether it is whole."""
    asked = {"model": route, "stream": True, "messages": [{"role": "user", "content": f"count to {tokens}"}]}
    body = msgspec.json.encode(asked)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: m\r\nconnection: close\r\ncontent-type: application/json\r\n")
        writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
        target, done = -1, False
        last = b'w%d"' % tokens
        came = False
        while line := await reader.readline():
            if line.startswith(_TARGET):
                target = int(line.rsplit(b"-", 1)[1])
            came = came or last in line
            done = done or line.startswith(b"data: [DONE]")
        return target, came and done
    finally:
        writer.close()
