"""A model server whose every token has a number: `python -m sits.bench.switch_upstream --port N --name a --gap S`.

It answers a question with a number N in it with "w1 w2 ... wN ", one word a piece. A conversation that ends with an answer which
has begun (vLLM's `continue_final_message`) is gone on with from the next number, so a client that sees every number once, in
order, has lost nothing and got nothing twice, whoever served it. `GET /arrivals` tells when requests for streams came, in unix
seconds.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from typing import Any

import click
import msgspec
import uvloop

from sits.bench.connection import BenchConnection

MOST_ARRIVALS = 100_000


class Arrivals(msgspec.Struct):
    """What `GET /arrivals` answers."""

    streams: list[float]
    """When each came, the last of them."""
    continued: int
    """How many of them were gone on with."""


class Served:
    """What one server knows of itself."""

    def __init__(self, name: str, gap: float) -> None:
        self.name = name
        self.gap = gap
        self.streams: deque[float] = deque(maxlen=MOST_ARRIVALS)
        self.continued = 0


class _Connection(BenchConnection):
    """One connection of a gateway."""

    def __init__(self, served: Served) -> None:
        super().__init__()
        self._served = served
        self._next = 1
        self._last = 0

    def answer(self, url: bytes, body: bytes) -> None:
        if url == b"/arrivals":
            self._whole(msgspec.json.encode(Arrivals(list(self._served.streams), self._served.continued)))
        elif not body:
            self._whole(b'{"object":"list","data":[]}')
        else:
            self._answer(msgspec.json.decode(body))

    def _answer(self, asked: dict[str, Any]) -> None:
        if not asked.get("stream"):
            text = "".join(f"w{number} " for number in range(1, 4))
            message = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            self._whole(msgspec.json.encode({**self._label("chat.completion"), "choices": [message]}))
            return
        self._served.streams.append(time.time())
        self._next, self._last = begun(asked) + 1, wanted(asked)
        if self._next > 1:
            self._served.continued += 1
        self._write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        self._event(self._delta({"role": "assistant", "content": ""}))
        self._timer = self._loop.call_later(self._served.gap, self._token)

    def _token(self) -> None:
        if self._transport is None:
            return
        if self._next <= self._last:
            self._event(self._delta({"content": f"w{self._next} "}))
            self._next += 1
            self._timer = self._loop.call_later(self._served.gap, self._token)
            return
        self._event(self._delta({}, "stop"))
        self._chunk(b"data: [DONE]\n\n")
        self._write(b"0\r\n\r\n")

    def _delta(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**self._label("chat.completion.chunk"), "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    def _label(self, kind: str) -> dict[str, Any]:
        return {"id": "numbered", "object": kind, "created": 1, "model": self._served.name}

    def _event(self, value: dict[str, Any]) -> None:
        self._chunk(b"data: " + msgspec.json.encode(value) + b"\n\n")

    def _chunk(self, piece: bytes) -> None:
        self._write(b"%x\r\n%b\r\n" % (len(piece), piece))

    def _whole(self, body: bytes) -> None:
        self._write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    def _write(self, piece: bytes) -> None:
        if self._transport is not None:
            self._transport.write(piece)


def wanted(asked: dict[str, Any]) -> int:
    """How many words the first message asks for."""
    found = re.search(r"\d+", str((asked.get("messages") or [{}])[0].get("content")))
    return int(found.group()) if found else 3


def begun(asked: dict[str, Any]) -> int:
    """How many words of the answer are there already."""
    messages = asked.get("messages") or []
    if not messages or messages[-1].get("role") != "assistant":
        return 0
    content = messages[-1].get("content") or ""
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    return len(text.split())


@click.command()
@click.option("--port", type=int, required=True)
@click.option("--name", required=True)
@click.option("--gap", type=float, required=True, help="Seconds between two words.")
def main(port: int, name: str, gap: float) -> None:
    """Serve until ended."""
    uvloop.run(_serve(port, Served(name, gap)))


async def _serve(port: int, served: Served) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(served), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    main()
