"""A model server that answers at the pace of a model: `python -m sits.bench.paced_upstream --port N --seconds S`.

nginx cannot pace, so this is a small HTTP/1.1 server of our own. It reads what gateways send (a length or chunks, keep-alive)
and nothing more; it must only ever stand behind a gateway that is being measured.
"""

from __future__ import annotations

import asyncio
from typing import cast

import click
import httptools
import uvloop

from sits.bench import bodies
from sits.bench.upstream import MODELS


def _fixed(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


_ANSWER = _fixed(bodies.answer())
_MODELS = _fixed(MODELS.encode())
_EMPTY = _fixed(b"{}")
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENTS = [b"%x\r\n" % len(event) + event + b"\r\n" for event in bodies.events()]
_END = b"0\r\n\r\n"


class _Connection(asyncio.Protocol):
    """One connection of a gateway: a request, its answer, the next request."""

    def __init__(self, gap: float) -> None:
        self._gap = gap
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self._transport is not None:
                self._transport.abort()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._transport is None:
            return
        if self._url != bodies.PATH.encode():
            self._transport.write(_MODELS if self._url == b"/v1/models" else _EMPTY)
        elif b'"stream":true' in self._body.replace(b" ", b""):
            self._transport.write(_HEAD)
            self._send(0, self._loop.time())
        else:
            self._transport.write(_ANSWER)
        self._url = self._body = b""

    def _send(self, index: int, began: float) -> None:
        """Event `index` now, the next when its time has come: by the clock of the stream, so that no delay adds up."""
        if self._transport is None:
            return
        if index == bodies.CHUNKS:
            self._transport.write(_EVENTS[index] + _END)
            return
        self._transport.write(_EVENTS[index])
        self._timer = self._loop.call_at(began + (index + 1) * self._gap, self._send, index + 1, began)


async def _serve(port: int, gap: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(gap), "127.0.0.1", port, backlog=1024)
    async with server:
        await server.serve_forever()


@click.command()
@click.option("--port", type=int, required=True)
@click.option("--seconds", type=float, default=1.0, show_default=True, help="Over which the events of a stream are spread.")
def main(port: int, seconds: float) -> None:
    """Serve until killed."""
    uvloop.run(_serve(port, seconds / bodies.CHUNKS))


if __name__ == "__main__":
    main()
