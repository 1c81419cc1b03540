"""What a call of each port costs on each adapter, one call at a time, against real servers on this machine.

These figures only inform: they say what an operator gives for a shared place. A server whose package is not here leaves its
figures without a value.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from sits.bench.figure import Figure, measured
from sits.bench.state_gateway import percentile
from sits.inner.errors import SitsError
from sits.ports.bus import Bus, open_bus
from sits.ports.flows import Context, Flows, Step, open_flows
from sits.ports.servers import ServerProcess
from sits.ports.store import Add, Put, Store, open_store

_TIMEOUT = 10.0
_VALUE = b"x" * 200
_DIMENSION = 384
_ITEMS = 2000


class Times(msgspec.Struct, frozen=True):
    """Milliseconds of each call; `why` when there are none."""

    port: str
    adapter: str
    call: str
    values: list[float] = []
    why: str = ""


Calls = AsyncIterator[tuple[str, list[float]]]
Bench = Callable[[str, Path, int], Calls]
Place = Callable[[Path], AbstractContextManager[str]]


@contextlib.contextmanager
def _word(address: str, folder: Path) -> Iterator[str]:
    """An adapter that needs no server."""
    yield address


@contextlib.contextmanager
def _server(path: str, folder: Path) -> Iterator[str]:
    """The address of a server out of `sits.ports.servers` that runs while the block lasts."""
    import importlib

    module, _, name = path.partition(":")
    server: ServerProcess = getattr(importlib.import_module(f"sits.ports.servers.{module}"), name)(folder)
    with server:
        yield server.address  # type: ignore[attr-defined]  # each of them has one


def _place(word: str, server: str = "") -> Place:
    return functools.partial(_server, server) if server else functools.partial(_word, word)


async def timed(call: Callable[[int], Awaitable[object]], count: int) -> list[float]:
    """Milliseconds that each of `count` calls takes, the first few left out."""
    found = []
    for number in range(count + 5):
        began = time.perf_counter()
        await call(number)
        found.append((time.perf_counter() - began) * 1e3)
    return found[5:]


async def _stores(address: str, data: Path, count: int) -> Calls:
    store: Store = await open_store(address, data, timeout=_TIMEOUT)
    try:
        yield "commit", await timed(lambda number: store.commit([Put(f"bench/{number}", _VALUE)]), count)
        yield "get", await timed(lambda number: store.get(f"bench/{number}"), count)
        yield "add", await timed(lambda _: store.add([Add("bench", 1, cap=10**9)]), count)
    finally:
        await store.aclose()


async def _buses(address: str, data: Path, count: int) -> Calls:
    bus: Bus = await open_bus(address, timeout=_TIMEOUT)
    # Within one process there is one bus; elsewhere a second node is the one that hears.
    other = bus if address == "local" else await open_bus(address, timeout=_TIMEOUT)
    try:
        yield "publish", await timed(lambda _: bus.publish("bench.alone", _VALUE), count)
        heard = await other.subscribe("bench.heard")

        async def deliver(_: int) -> None:
            await asyncio.gather(bus.publish("bench.heard", _VALUE), anext(heard))

        yield "publish to delivery", await timed(deliver, count)
        watch = await other.watch("bench")
        assert await anext(watch) is None

        async def shown(number: int) -> None:
            await asyncio.gather(bus.put("bench.row", b"%d" % number), anext(watch))

        yield "put to watch", await timed(shown, count)
        await heard.aclose()
        await watch.aclose()
    finally:
        if other is not bus:
            await other.aclose()
        await bus.aclose()


async def _vectors(address: str, data: Path, count: int) -> Calls:
    import numpy as np

    from sits.ports.vectors import Item, open_vectors

    rng = np.random.default_rng(7)
    rows = rng.standard_normal((_ITEMS, _DIMENSION), dtype=np.float32)
    index = await open_vectors(address, data, timeout=6 * _TIMEOUT)
    try:
        await index.create("bench", _DIMENSION)
        for start in range(0, _ITEMS, 200):
            batch = [Item(f"id-{number}", rows[number]) for number in range(start, start + 200)]
            await index.upsert("bench", "one", batch)
        yield "search", await timed(lambda number: index.search("bench", "one", rows[number % _ITEMS], k=5), count)
        yield "upsert", await timed(lambda n: index.upsert("bench", "one", [Item(f"new-{n}", rows[n % _ITEMS])]), count)
        await index.drop("bench")
    finally:
        await index.aclose()


async def _flows(address: str, data: Path, count: int) -> Calls:
    async def body(context: Context, input: bytes) -> bytes:
        return await context.step("echo", input)

    async def echo(step: Step) -> bytes:
        return step.input

    flows: Flows = await open_flows(address, data, timeout=_TIMEOUT)
    flows.flow("bench", body)
    flows.action("echo", echo)
    await flows.run()
    try:

        async def through(number: int) -> None:
            await flows.start("bench", f"bench-{number}", _VALUE)
            await flows.result(f"bench-{number}", timeout=_TIMEOUT)

        yield "start to result", await timed(through, max(5, count // 10))
    finally:
        await flows.aclose()


class Row(msgspec.Struct, frozen=True):
    """An adapter that is measured: which calls, and where its place is to be had."""

    port: str
    adapter: str
    bench: Bench
    place: Place
    calls: tuple[str, ...]


_STORE, _BUS = ("commit", "get", "add"), ("publish", "publish to delivery", "put to watch")
_VECTORS, _FLOWS = ("search", "upsert"), ("start to result",)
ROWS = (
    Row("store", "memory", _stores, _place("memory"), _STORE),
    Row("store", "sqlite", _stores, _place("sqlite"), _STORE),
    Row("store", "redis", _stores, _place("", "redis:RedisServer"), _STORE),
    Row("store", "postgresql", _stores, _place("", "postgres:PostgresServer"), _STORE),
    Row("bus", "local", _buses, _place("local"), _BUS),
    Row("bus", "nats", _buses, _place("", "nats:NatsServer"), _BUS),
    Row("bus", "kafka", _buses, _place("", "tansu:TansuServer"), _BUS),
    Row("vectors", "memory", _vectors, _place("memory"), _VECTORS),
    Row("vectors", "embedded", _vectors, _place("embedded"), _VECTORS),
    Row("vectors", "redis", _vectors, _place("", "redis:RedisServer"), _VECTORS),
    Row("vectors", "milvus", _vectors, _place("", "milvus:MilvusServer"), _VECTORS),
    Row("flows", "memory", _flows, _place("memory"), _FLOWS),
    Row("flows", "embedded", _flows, _place("embedded"), _FLOWS),
    Row("flows", "temporal", _flows, _place("", "temporal:TemporalServer"), _FLOWS),
)


def measure(rows: tuple[Row, ...], folder: Path, count: int, say: Callable[[str], None]) -> list[Times]:
    """Every call of every adapter."""
    found: list[Times] = []
    for row in rows:
        say(f"{row.port}: {row.adapter}")
        place = folder / f"{row.port}-{row.adapter}"
        place.mkdir()
        try:
            with row.place(place) as address:
                found += asyncio.run(_all(row, address, place, count))
        except (SitsError, ModuleNotFoundError) as error:
            why = error.message if isinstance(error, SitsError) else str(error)
            found += [Times(row.port, row.adapter, call, why=why) for call in row.calls]
    return found


async def _all(row: Row, address: str, data: Path, count: int) -> list[Times]:
    return [Times(row.port, row.adapter, call, values) async for call, values in row.bench(address, data, count)]


def figures(times: list[Times]) -> list[Figure]:
    """p50 and p99 of each."""
    found = []
    for one in times:
        name = f"{one.port}_{one.adapter}_{one.call.replace(' ', '_')}"
        for share in (50, 99):
            value = percentile(one.values, share / 100) if one.values else None
            found.append(measured(f"{name}_p{share}_ms", value, "ms", one.why))
    return found
