"""Budgets and limits that many ask for at once: never passed, nothing left reserved, and the same over several gateways.

A key may spend 0.45 dollars a day. Two hundred clients ask at once, again and again until none is let in any more; some go away,
some of the servers break off. All the while another process looks at what is spent and reserved.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from sits.bench import BenchError
from sits.bench.declared import resource, settings
from sits.bench.faults_cells import PATHS
from sits.bench.faults_client import ask
from sits.bench.faults_rig import LONG, body, ledger_of, running, write
from sits.bench.state_gateway import GatewayProcess
from sits.chaos.script import Fault
from sits.chaos.server import NumberedServer
from sits.ports.servers.redis import RedisServer
from sits.ports.store import open_store
from sits.state.limits import Limit, Limiter, open_limits

NANO = 1_000_000_000
DOLLARS = 0.45
CAP = round(DOLLARS * NANO)
OUTPUT = 100
"""`max_tokens` of each request; 60 are used."""
COST = {"inputPerMillion": 10.0, "outputPerMillion": 100.0}
MOST_ROUNDS = 12
GATEWAYS = 3
ROOM = 77
"""Requests a minute that the shared route has room for."""
_LATEST = 35.0
"""Second of the minute after which the next one is waited for."""
_BEARER = "sits-bench-key"
_SPEND = Limit("key:spender/nanodollars/day", CAP, 86400.0)
_QUIET_SECONDS = 3.0


class Spent(msgspec.Struct):
    """What came of the race for a budget."""

    gateways: int
    asked: int = 0
    answers: dict[str, int] = {}
    """How often each status, or `left`, came."""
    looks: int = 0
    most: int = 0
    """The most that was spent and reserved together at any look, in nano-dollars."""
    at_once: int = 0
    """The most that was reserved at any look."""
    reserved: int | None = None
    """What is still reserved when all is quiet."""
    spent: int = 0
    booked: int = 0
    """The sum of the ledgers."""
    seconds: float = 0.0


class Shared(msgspec.Struct, frozen=True):
    """What gateways with one store let in together."""

    gateways: int
    asked: int
    room: int
    admitted: int
    others: dict[int, int]
    """Answers that were neither 200 nor 429."""
    seconds: float


async def race(folder: Path, count: int, redis: RedisServer | None = None) -> Spent:
    """Let so many clients spend the budget; on one gateway, or on three with one Redis.

    Raises:
        BenchError: the budget does not come to its end.
    """
    spent = Spent(1 if redis is None else GATEWAYS, answers={})
    async with AsyncExitStack() as stack:
        good = await stack.enter_async_context(NumberedServer("good", delay=0.001))
        bad = await stack.enter_async_context(NumberedServer("bad", delay=0.001))
        bad.script(Fault("reset", at=30))
        gateways = []
        for number in range(spent.gateways):
            gateway = GatewayProcess(folder / str(number))
            write(gateway, _declared(good.url, bad.url, redis))
            gateways.append(await stack.enter_async_context(running(gateway)))
        limits = await stack.enter_async_context(_looking(gateways[0].data, redis))
        watching = asyncio.ensure_future(_watch(limits, spent))
        began = time.monotonic()
        try:
            await _spend([gateway.port for gateway in gateways], count, spent)
            spent.reserved, spent.spent = await _quiet(limits)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        spent.seconds = time.monotonic() - began
    for gateway in gateways:
        booked = await asyncio.to_thread(ledger_of, gateway.data)
        spent.booked += sum(entry.cost or 0 for entries in booked.values() for entry in entries)
    return spent


def _declared(good: str, bad: str, redis: RedisServer | None) -> list[dict[str, Any]]:
    store = {} if redis is None else {"store": redis.address}
    quota = {"dollarsPerDay": DOLLARS}
    return [
        settings(deadlines=LONG, accessLog=False, **store),
        resource("Key", "spender", sha256=sha256(_BEARER.encode()).hexdigest(), quota=quota),
        *(
            resource("Model", name, engine="openai", endpoint=url, upstreamModel=name, cost=COST, breaker={"enabled": False})
            for name, url in (("good", good), ("bad", bad))
        ),
    ]


@asynccontextmanager
async def _looking(data: Path, redis: RedisServer | None) -> AsyncIterator[Limiter]:
    """The limits as another worker, or another node, sees them."""
    store = None if redis is None else await open_store(redis.address, data)
    limits = open_limits(data, store, away="closed")
    try:
        yield limits
    finally:
        await limits.aclose()
        if store is not None:
            await store.aclose()


async def _watch(limits: Limiter, spent: Spent) -> None:
    """Look again and again; the most that is seen stays."""
    while True:
        (found,) = await limits.standings((_SPEND,), now=time.time())
        spent.looks += 1
        spent.most = max(spent.most, found.spent + found.reserved)
        spent.at_once = max(spent.at_once, found.reserved)
        await asyncio.sleep(0.002)


async def _spend(ports: Sequence[int], count: int, spent: Spent) -> None:
    """Ask in rounds until a whole round is refused."""
    answers: Counter[str] = Counter()
    for _ in range(MOST_ROUNDS):
        came = await asyncio.gather(*(_ask(ports[number % len(ports)], number) for number in range(count)))
        answers.update(came)
        spent.asked += count
        spent.answers = dict(answers)
        if set(came) == {"429"}:
            return
    raise BenchError(f"after {spent.asked} requests a budget of {DOLLARS} dollars is not used up: {spent.answers}")


async def _ask(port: int, number: int) -> str:
    """One request: most are whole and good, one in five streams breaks off, one in five clients goes away."""
    kind = number % 5
    asked = body("chat", "bad" if kind == 1 else "good", streamed=kind in (1, 2))
    asked["max_tokens"] = OUTPUT
    answer = await ask(port, PATHS["chat"], asked, {"authorization": f"Bearer {_BEARER}"}, enough=b"w20 " if kind == 2 else None)
    return str(answer.status) if kind != 2 or answer.status != 200 else "left"


async def _quiet(limits: Limiter) -> tuple[int, int]:
    """What is reserved and spent once nothing is under way; settling is behind the answers, so it may take a moment."""
    end = time.monotonic() + _QUIET_SECONDS
    while True:
        (found,) = await limits.standings((_SPEND,), now=time.time())
        if found.reserved == 0 or time.monotonic() > end:
            return found.reserved, found.spent
        await asyncio.sleep(0.02)


async def share(folder: Path, count: int, redis: RedisServer) -> Shared:
    """Ask gateways with one Redis for a route that has room for so many requests a minute, all within one minute."""
    async with AsyncExitStack() as stack:
        good = await stack.enter_async_context(NumberedServer("good"))
        gateways = []
        for number in range(GATEWAYS):
            gateway = GatewayProcess(folder / str(number))
            write(
                gateway,
                [
                    settings(deadlines=LONG, accessLog=False, store=redis.address),
                    resource("Model", "good", engine="openai", endpoint=good.url, upstreamModel="good"),
                    resource("Route", "narrow", backends=[{"model": "good"}], quota={"requestsPerMinute": ROOM}),
                ],
            )
            gateways.append(await stack.enter_async_context(running(gateway)))
        if time.time() % 60.0 > _LATEST:
            await asyncio.sleep(60.0 - time.time() % 60.0)
        began = time.monotonic()
        asked = body("chat", "narrow", streamed=False)
        came = await asyncio.gather(*(ask(gateways[number % GATEWAYS].port, PATHS["chat"], asked) for number in range(count)))
    statuses = Counter(answer.status for answer in came)
    admitted = statuses.pop(200, 0)
    statuses.pop(429, None)
    return Shared(GATEWAYS, count, ROOM, admitted, dict(statuses), time.monotonic() - began)
