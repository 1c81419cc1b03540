"""Makes load with whole streams: `python -m sits.bench.paced_client URL BODY_FILE ...` prints one line of JSON.

wrk counts answers; this client looks into them: the time of the first byte, the gaps between events, and whether each stream
came to its end mark. Connections start spread over one stream's length, so that they do not all beat at once, and each
sends its next request when its last answer is complete, until the time is up; what is under way then is waited for.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import click
import httptools
import msgspec
import uvloop

from sits.bench import BenchError, bodies
from sits.bench.load import Ask, Load, percentile

_GRACE = 90.0
"""Seconds that streams under way when the time is up may still take."""


class _Tally:
    """What all connections found."""

    def __init__(self, gap: float) -> None:
        self.gap = gap
        self.whole: list[float] = []
        self.first: list[float] = []
        self.jitter: list[float] = []
        self.refused = 0
        self.broken = 0
        self.bytes_read = 0


class _Client(asyncio.Protocol):
    """One connection that asks again and again."""

    def __init__(self, request: bytes, stream: bool, until: float, tally: _Tally) -> None:
        self._request, self._stream, self._until, self._tally = request, stream, until, tally
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def _ask(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._sent = time.perf_counter()
        self._first = self._last = 0.0
        self._tail = b""
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._tally.bytes_read += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self._tally.broken += 1
            self.done.set_result(None)

    def on_body(self, body: bytes) -> None:
        now = time.perf_counter()
        if not self._first:
            self._first = now
            self._tally.first.append(now - self._sent)
        elif self._stream and b"data:" in body:
            self._tally.jitter.append(abs(now - self._last - self._tally.gap))
        self._last = now
        self._tail = (self._tail + body)[-64:]

    def on_message_complete(self) -> None:
        now = time.perf_counter()
        if not 200 <= self._parser.get_status_code() < 300:
            self._tally.refused += 1
        elif self._stream and b"[DONE]" not in self._tail:
            self._tally.broken += 1
        else:
            self._tally.whole.append(now - self._sent)
        if now < self._until and self._parser.should_keep_alive():
            # The parser is in the middle of its own callback: it may only be replaced after it has returned.
            asyncio.get_running_loop().call_soon(self._ask)
            return
        self.done.set_result(None)
        self._transport.close()


async def _drive(ask: Ask, pace: float) -> Load:
    """Run all connections to their end."""
    target = urlsplit(ask.url)
    host, port = target.hostname or "127.0.0.1", target.port or 80
    request = wire(ask, target.netloc)
    tally = _Tally(pace / bodies.CHUNKS)
    began = time.perf_counter()
    until = began + ask.seconds
    loop = asyncio.get_running_loop()

    async def one(index: int) -> None:
        await asyncio.sleep(pace * index / ask.connections)
        client = _Client(request, ask.stream, until, tally)
        try:
            await loop.create_connection(lambda: client, host, port)
        except OSError:
            tally.broken += 1
            return
        await client.done

    tasks = [asyncio.create_task(one(index)) for index in range(ask.connections)]
    _, late = await asyncio.wait(tasks, timeout=ask.seconds + _GRACE)
    for task in late:
        task.cancel()
        tally.broken += 1
    whole, first, jitter = sorted(tally.whole), sorted(tally.first), sorted(tally.jitter)
    return Load(
        requests=len(whole),
        seconds=time.perf_counter() - began,
        p50=percentile(whole, 0.5) * 1e3,
        p99=percentile(whole, 0.99) * 1e3,
        bytes_read=tally.bytes_read,
        refused=tally.refused,
        broken=tally.broken,
        first_p50=percentile(first, 0.5) * 1e3,
        first_p99=percentile(first, 0.99) * 1e3,
        jitter_p99=percentile(jitter, 0.99) * 1e3 if ask.stream else None,
    )


def wire(ask: Ask, host: str) -> bytes:
    """The request as it goes over the wire."""
    fields = {"host": host, "content-type": "application/json", "content-length": str(len(ask.body)), **ask.headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {ask.path} HTTP/1.1\r\n{head}\r\n".encode() + ask.body


class PacedClient:
    """The same as a source of load: a process of its own on one core."""

    def __init__(self, folder: Path, core: int, *, pace: float = 1.0) -> None:
        self._folder, self._core, self._pace = folder, core, pace

    def __call__(self, ask: Ask) -> Load:
        """Send for `ask.seconds` and wait for what is under way. Blocks.

        Raises:
            BenchError: the client failed.
        """
        order = self._folder / "ask.json"
        order.write_bytes(msgspec.json.encode(ask))
        done = subprocess.run(  # noqa: S603 - the command is ours
            [sys.executable, "-m", "sits.bench.paced_client", str(order), "--pace", str(self._pace)],
            capture_output=True,
            check=False,
            timeout=ask.seconds + _GRACE + 30,
            preexec_fn=lambda: os.sched_setaffinity(0, {self._core}),
        )
        if done.returncode:
            raise BenchError(f"the load client failed:\n{done.stderr.decode(errors='replace')[-2000:]}")
        return msgspec.json.decode(done.stdout, type=Load)


@click.command()
@click.argument("order", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--pace", type=float, default=1.0, help="Seconds that the upstream takes for a stream.")
def main(order: Path, pace: float) -> None:
    """Do what the file ORDER says and print the result."""
    ask = msgspec.json.decode(order.read_bytes(), type=Ask)
    click.echo(msgspec.json.encode(uvloop.run(_drive(ask, pace))))


if __name__ == "__main__":
    main()
