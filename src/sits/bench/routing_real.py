"""The policies before four real model servers of different speed, as a check of the simulator: the same requests in both."""

from __future__ import annotations

import asyncio
import math
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import uvloop

from sits.bench import BenchError
from sits.bench.child import Child, answers, free_port
from sits.bench.routing_world import Ask, Backend, Seen, Simulation
from sits.routing.policies import POLICIES, Policy, TargetState, Usual

SLOTS = 8
DELAYS = (0.005, 0.01, 0.02, 0.04)
"""Seconds a token."""
ANSWER, SIGMA, MOST = 32.0, 0.6, 160
"""Tokens of an answer: median, spread, the most."""
POOL = tuple(Backend(f"server-{number}", SLOTS, 1e12, 1.0 / delay, crowd=0.0) for number, delay in enumerate(DELAYS))
GRACE = 30.0


class Compared(msgspec.Struct, frozen=True):
    """One policy, before real servers and before simulated ones."""

    name: str
    real: float
    """Seconds to the end of an answer, mean."""
    real_p99: float
    simulated: float
    simulated_p99: float
    failed: int


def compare(rivals: dict[str, tuple[str, bool]], rate: float, seconds: float, seed: int) -> list[Compared]:
    """Name -> (policy, whether it is told the capacities).

    Raises:
        BenchError: a server does not start.
    """
    trace = _trace(rate, seconds, seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sits-routing-")))
        ports = [_server(stack, folder, number) for number in range(len(DELAYS))]
        found = []
        for name, (policy, told) in rivals.items():
            weights = [1.0 / delay for delay in DELAYS] if told else [1.0] * len(DELAYS)
            took, failed = uvloop.run(_drive(POLICIES[policy](), weights, ports, trace, seed))
            if not took:
                raise BenchError("no model server gave an answer")
            seen: Seen = Simulation(POOL, [POLICIES[policy]()], weights, (), seed).run(trace)
            p99 = took[math.ceil(0.99 * len(took)) - 1]
            found.append(Compared(name, sum(took) / len(took), p99, seen.mean, seen.p99, failed))
    return found


def _trace(rate: float, seconds: float, seed: int) -> list[Ask]:
    dice = random.Random(seed)  # noqa: S311 - no secrets
    made: list[Ask] = []
    at = dice.expovariate(rate)
    while at < seconds:
        made.append(Ask(at, 0, int(min(MOST, max(1.0, dice.lognormvariate(math.log(ANSWER), SIGMA)))), 1.0))
        at += dice.expovariate(rate)
    return made


def _server(stack: ExitStack, folder: Path, number: int) -> int:
    port = free_port()
    command = [sys.executable, "-m", "sits.chaos.server", "--port", str(port), "--slots", str(SLOTS)]
    command += ["--delay", str(DELAYS[number]), "--name", POOL[number].name]
    child = stack.enter_context(Child(f"server {number}", command, core=number % 2, log=folder / f"{number}.log"))
    child.await_ready(answers(f"http://127.0.0.1:{port}/health"), seconds=20.0)
    return port


async def _drive(
    policy: Policy, weights: Sequence[float], ports: Sequence[int], trace: Sequence[Ask], seed: int
) -> tuple[list[float], int]:
    """Send each request when it is due; how long the answers took, in order of length, and how many did not come."""
    usual = Usual()
    states = tuple(TargetState(usual) for _ in ports)
    dice = random.Random(seed)  # noqa: S311 - no secrets
    took: list[float] = []
    failed = 0
    began = time.perf_counter()

    async def one(ask: Ask) -> None:
        nonlocal failed
        now = time.perf_counter()
        which = policy.pick(states, weights, dice.random(), now)
        state = states[which]
        among = state.started(now)
        first, ok = 0.0, False
        try:
            async with asyncio.timeout(GRACE):
                first, ok = await _ask(ports[which], ask.answer, state, now, among)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            failed += 1
        ended = time.perf_counter()
        state.ended(ended, ended - now, among, ok, first, ask.answer)
        if ok:
            took.append(ended - now)

    async with asyncio.TaskGroup() as group:
        for ask in trace:
            await asyncio.sleep(max(0.0, began + ask.at - time.perf_counter()))
            group.create_task(one(ask))
    return sorted(took), failed


async def _ask(port: int, tokens: int, state: TargetState, sent: float, among: int) -> tuple[float, bool]:
    """One streamed answer, read to its last byte: seconds to its first content, and whether it was whole."""
    asked = {"model": "m", "stream": True, "messages": [{"role": "user", "content": f"count to {tokens}"}], "max_tokens": tokens}
    body = msgspec.json.encode(asked)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: m\r\nconnection: close\r\ncontent-type: application/json\r\n")
        writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
        first = 0.0
        while line := await reader.readline():
            if first == 0.0 and b'"content":"w' in line:
                now = time.perf_counter()
                first = now - sent
                state.spoke(now, first, among)
            elif line == b"0\r\n":
                return first, first > 0.0
    finally:
        writer.close()
    return first, False
