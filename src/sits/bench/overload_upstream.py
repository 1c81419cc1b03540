"""A model server with so many places and a line before them: `python -m sits.bench.overload_upstream --port N ...`.

First come, first served; each request takes a fixed time and a random one more. Its answer says how long it was worked on and how
long it waited in line, in seconds: `0.1312 0.0040`. Whose client goes away while waiting is left out; what is worked on is done.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque

import click
import msgspec
import uvloop

from sits.bench import bodies
from sits.bench.connection import BenchConnection
from sits.bench.upstream import MODELS

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


def said(text: str) -> tuple[float, float]:
    """Seconds of work and in line, of an answer's text."""
    seconds, _, waited = text.partition(" ")
    return float(seconds), float(waited)


def _template() -> bytes:
    value = msgspec.json.decode(bodies.answer())
    value["choices"][0]["message"]["content"] = "%b"
    return msgspec.json.encode(value)


_TEXT = _template()


def answer(seconds: float, waited: float) -> bytes:
    """What is said after so much work and such a wait."""
    return _TEXT % (b"%.4f %.4f" % (seconds, waited))


class _Places:
    """Who is worked on, and who waits."""

    def __init__(self, places: int, fixed: float, more: float, dice: random.Random) -> None:
        self._free = places
        self._fixed, self._more, self._dice = fixed, more, dice
        self._line: deque[tuple[_Connection, float]] = deque()
        self._loop = asyncio.get_running_loop()

    def ask(self, connection: _Connection) -> None:
        self._line.append((connection, self._loop.time()))
        self._fill()

    def _fill(self) -> None:
        while self._line and self._free:
            connection, came = self._line.popleft()
            if connection.gone:
                continue
            self._free -= 1
            began = self._loop.time()
            self._loop.call_later(self._fixed + self._dice.expovariate(1 / self._more), self._over, connection, began, came)

    def _over(self, connection: _Connection, began: float, came: float) -> None:
        self._free += 1
        body = answer(self._loop.time() - began, began - came)
        connection.write(_HEAD % len(body) + body)
        self._fill()


class _Connection(BenchConnection):
    """One connection of a gateway."""

    def __init__(self, places: _Places) -> None:
        super().__init__()
        self._places = places

    @property
    def gone(self) -> bool:
        return self._transport is None

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def answer(self, url: bytes, body: bytes) -> None:
        if url == bodies.PATH.encode():
            self._places.ask(self)
        else:
            self.write(_HEAD % len(MODELS) + MODELS.encode())


async def _serve(port: int, places: int, fixed: float, more: float, seed: int) -> None:
    line = _Places(places, fixed, more, random.Random(seed))  # noqa: S311 - no secrets
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(line), "127.0.0.1", port, backlog=4096)
    async with server:
        await server.serve_forever()


@click.command()
@click.option("--port", type=int, required=True)
@click.option("--places", type=int, required=True)
@click.option("--fixed", type=float, required=True, help="Seconds that each request takes.")
@click.option("--more", type=float, required=True, help="Seconds that it takes more, on average (exponential).")
@click.option("--seed", type=int, default=1)
def main(port: int, places: int, fixed: float, more: float, seed: int) -> None:
    """Serve until killed."""
    uvloop.run(_serve(port, places, fixed, more, seed))


if __name__ == "__main__":
    main()
