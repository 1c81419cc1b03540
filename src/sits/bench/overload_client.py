"""Sends requests when they are due, answered or not the earlier ones: `python -m sits.bench.overload_client ORDER ROWS`.

An open loop: clients do not wait for each other, which is what makes an overload one. Arrivals are Poisson, of three classes and
several keys. Each takes an idle connection or makes one. A client that has waited as long as its patience goes away. A file is
written with a `Row` for each request.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from pathlib import Path
from typing import cast

import click
import httptools
import msgspec
import uvloop

from sits.bench import bodies
from sits.bench.child import Child
from sits.bench.overload_upstream import said


class Phase(msgspec.Struct, frozen=True):
    """So many requests a second for so long."""

    rate: float
    seconds: float


class Order(msgspec.Struct, frozen=True):
    """What is sent to whom."""

    port: int
    phases: list[Phase]
    mix: tuple[float, float, float]
    """Shares of the classes."""
    keys: list[str]
    """Requests are of all of these alike; no key is sent when empty."""
    patience: float
    seed: int


class Row(msgspec.Struct, frozen=True, array_like=True):
    """How a request fared. Times in seconds; those that say when, since the start."""

    at: float
    """When it was due."""
    late: float
    """How much later it was sent: the client's own delay."""
    priority: int
    status: int
    """Of HTTP; 0: the client went away or the connection broke."""
    took: float
    """From being sent to the end of the answer."""
    worked: float = 0.0
    """How long the model worked on it."""
    waited: float = 0.0
    """How long it was in the model's line."""
    retry_after: int = -1
    """As the answer says; -1 when it does not."""
    overhead: float = 0.0
    """Milliseconds that the gateway says it took itself."""


class _Choice(msgspec.Struct):
    message: dict[str, str | None]


class _Answer(msgspec.Struct):
    choices: list[_Choice]


_decode = msgspec.json.Decoder(_Answer)


class _Load:
    """All of one order."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.loop = asyncio.get_running_loop()
        self.rows: list[Row] = []
        self.idle: list[_Client] = []
        self.dice = random.Random(order.seed)  # noqa: S311 - no secrets
        self.open: set[_Client] = set()
        self.under_way = 0
        self.done = asyncio.Event()
        self.closed = asyncio.Event()
        self._ends = False
        self._requests = [[_request(priority, key) for key in order.keys or [""]] for priority in range(3)]

    def start(self) -> None:
        # uvloop's clock stands still within a turn and counts milliseconds: good for timers, not for measuring.
        self.began = time.perf_counter()
        self._timers = self.loop.time() - self.began
        self._due = self._phase_end = self.began
        self._phase = -1
        self._next()

    def _next(self) -> None:
        """Wait for the next arrival."""
        phases = self.order.phases
        while True:
            if self._phase >= 0 and phases[self._phase].rate > 0.0:
                due = self._due + self.dice.expovariate(phases[self._phase].rate)
                if due < self._phase_end:
                    self._due = due
                    self.loop.call_at(due + self._timers, self._arrive)
                    return
            self._phase += 1
            if self._phase == len(phases):
                self._ends = True
                self.left()
                return
            self._due = self._phase_end
            self._phase_end += phases[self._phase].seconds

    def _arrive(self) -> None:
        due = self._due
        priority = self.dice.choices((0, 1, 2), self.order.mix)[0]
        request = self.dice.choice(self._requests[priority])
        client = self.idle.pop() if self.idle else _Client(self)
        self.under_way += 1
        client.ask(request, priority, due)
        self._next()

    async def close(self) -> None:
        """Close all connections."""
        if self.open:
            self.closed.clear()
            for client in self.open:
                client.abort()
            await self.closed.wait()

    def left(self) -> None:
        """One less is under way."""
        if self._ends and not self.under_way:
            self.done.set()


class _Client(asyncio.Protocol):
    """A connection, and the request that it carries."""

    def __init__(self, load: _Load) -> None:
        self._load = load
        self._transport: asyncio.Transport | None = None
        self._request = b""
        self._patience: asyncio.TimerHandle | None = None

    def ask(self, request: bytes, priority: int, due: float) -> None:
        load = self._load
        self._priority, self._due = priority, due
        self._body = b""
        self._retry_after = -1
        self._overhead = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._patience = load.loop.call_later(load.order.patience, self._give_up)
        self._sent = time.perf_counter()
        self._request = request
        if self._transport is not None:
            self._transport.write(request)
        else:
            self._connecting = load.loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            await self._load.loop.create_connection(lambda: self, "127.0.0.1", self._load.order.port)
        except OSError:
            self._over(0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._load.open.add(self)
        if self._patience is None:
            self._transport.abort()
        else:
            self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._over(0)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._load.open.discard(self)
        if not self._load.open:
            self._load.closed.set()
        if self in self._load.idle:
            self._load.idle.remove(self)
        self._over(0)

    def abort(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == b"retry-after":
            self._retry_after = int(value)
        elif name == b"x-sits-overhead":
            self._overhead = float(value)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        keep = self._parser.should_keep_alive()
        self._over(self._parser.get_status_code(), keep=keep)

    def _give_up(self) -> None:
        self._over(0)

    def _over(self, status: int, *, keep: bool = False) -> None:
        if self._patience is None:
            return
        self._patience.cancel()
        self._patience = None
        load = self._load
        now = time.perf_counter()
        worked, waited = _said(self._body) if status == 200 else (0.0, 0.0)
        at, late, took = self._due - load.began, self._sent - self._due, now - self._sent
        load.rows.append(Row(at, late, self._priority, status, took, worked, waited, self._retry_after, self._overhead))
        load.under_way -= 1
        if keep:
            load.idle.append(self)
        else:
            self.abort()
        load.left()


def _said(body: bytes) -> tuple[float, float]:
    return said(_decode.decode(body).choices[0].message["content"] or "")


def _request(priority: int, key: str) -> bytes:
    body = msgspec.json.encode({"model": bodies.MODEL, "messages": [{"role": "user", "content": "How are you? 你好吗?"}]})
    fields = {"host": "bench", "content-type": "application/json", "content-length": str(len(body))}
    if key:
        fields |= {"authorization": f"Bearer {key}", "x-sits-priority": f"P{priority}"}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {bodies.PATH} HTTP/1.1\r\n{head}\r\n".encode() + body


async def _drive(order: Order) -> list[Row]:
    load = _Load(order)
    load.start()
    await load.done.wait()
    await load.close()
    return load.rows


class Running:
    """A client at work: a process of its own on one core."""

    def __init__(self, order: Order, folder: Path, core: int, name: str) -> None:
        path = folder / f"{name}.order.json"
        path.write_bytes(msgspec.json.encode(order))
        self._rows = folder / f"{name}.rows.json"
        command = [sys.executable, "-m", "sits.bench.overload_client", str(path), str(self._rows)]
        self.began = time.monotonic()
        self.child = Child("the load", command, core=core, log=folder / f"{name}.log")

    def rows(self) -> list[Row]:
        """What it found, in the order in which requests were due; it has ended.

        Raises:
            OSError, msgspec.DecodeError: it failed.
        """
        return sorted(msgspec.json.decode(self._rows.read_bytes(), type=list[Row]), key=lambda row: row.at)


@click.command()
@click.argument("order", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("rows", type=click.Path(dir_okay=False, path_type=Path))
def main(order: Path, rows: Path) -> None:
    """Do what the file ORDER says and write what came of it to the file ROWS."""
    found = uvloop.run(_drive(msgspec.json.decode(order.read_bytes(), type=Order)))
    hidden = rows.with_suffix(".part")
    hidden.write_bytes(msgspec.json.encode(found))
    os.replace(hidden, rows)


if __name__ == "__main__":
    main()
