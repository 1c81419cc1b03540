"""A model server that answers at the pace of a model: `python -m sits.bench.paced_upstream --port N --seconds S`.

nginx cannot pace, so this is a small HTTP/1.1 server of our own. It reads what gateways send (a length or chunks, keep-alive)
and nothing more; it must only ever stand behind a gateway that is being measured.
"""

from __future__ import annotations

import asyncio

import click
import uvloop

from sits.bench import bodies
from sits.bench.connection import BenchConnection
from sits.bench.upstream import MODELS


def _fixed(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


_ANSWER = _fixed(bodies.answer())
_MODELS = _fixed(MODELS.encode())
_EMPTY = _fixed(b"{}")
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENTS = [b"%x\r\n" % len(event) + event + b"\r\n" for event in bodies.events()]
_END = b"0\r\n\r\n"


class _Connection(BenchConnection):
    """One connection of a gateway."""

    def __init__(self, gap: float) -> None:
        super().__init__()
        self._gap = gap

    def answer(self, url: bytes, body: bytes) -> None:
        assert self._transport is not None
        if url != bodies.PATH.encode():
            self._transport.write(_MODELS if url == b"/v1/models" else _EMPTY)
        elif b'"stream":true' in body.replace(b" ", b""):
            self._transport.write(_HEAD)
            self._send(0, self._loop.time())
        else:
            self._transport.write(_ANSWER)

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
