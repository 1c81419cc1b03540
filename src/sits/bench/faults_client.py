"""A client of the fault bench: one request, a connection of its own, and all that came back, with the time of each piece."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import pairwise
from time import monotonic
from typing import Any, cast

import httptools
import msgspec


class Answer(msgspec.Struct):
    """What came, up to the end or to the moment when the client had enough."""

    status: int = 0
    headers: dict[str, str] = {}
    body: bytes = b""
    whole: bool = False
    """It ended as its framing says; False: it was cut, or did not come."""
    fault: str = ""
    """What was wrong with it as HTTP, or that it did not end in time."""
    asked: float = 0.0
    """Of `time.monotonic`, which all processes of a machine share."""
    ended: float = 0.0
    pieces: list[tuple[float, int]] = []
    """When so many bytes of the body had come."""

    def widest_gap(self) -> float:
        """The longest time, in seconds, between two pieces of the body."""
        times = [at for at, _ in self.pieces]
        return max((later - at for at, later in pairwise(times)), default=0.0)


class _Line(asyncio.Protocol):
    def __init__(self, request: bytes, enough: bytes | None) -> None:
        self._request = request
        self._enough = enough
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self.answer = Answer(headers={}, pieces=[])
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.answer.asked = monotonic()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.answer.fault = f"not HTTP: {error}"
            self._transport.abort()
        if self._enough is not None and self._enough in self.answer.body:
            self.leave()

    def connection_lost(self, exc: Exception | None) -> None:
        self.answer.ended = self.answer.ended or monotonic()
        if not self.over.done():
            self.over.set_result(None)

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.decode("latin-1").lower()
        if key in self.answer.headers:
            self.answer.fault = f"two fields {key}"
        self.answer.headers[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.answer.status = self._parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        self.answer.body += piece
        self.answer.pieces.append((monotonic(), len(self.answer.body)))

    def on_message_complete(self) -> None:
        self.answer.whole = True
        self.answer.ended = monotonic()
        self._transport.close()

    def leave(self) -> None:
        """Go away without a word."""
        self.answer.ended = self.answer.ended or monotonic()
        self._transport.abort()


async def ask(
    port: int,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    *,
    seconds: float = 20.0,
    enough: bytes | None = None,
    leave: float | None = None,
) -> Answer:
    """Ask and wait for the end of the answer: at the most so many seconds, or until `enough` stands in the body, or until the
    client leaves, `leave` seconds after it has asked. Without a body it is a GET."""
    data = b"" if body is None else msgspec.json.encode(body)
    fields = {"host": "bench", "content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    request = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\n{head}\r\n".encode() + data
    loop = asyncio.get_running_loop()
    _, line = await loop.create_connection(lambda: _Line(request, enough), "127.0.0.1", port)
    await asyncio.wait([line.over], timeout=seconds if leave is None else leave)
    if not line.over.done():
        if leave is None:
            line.answer.fault = f"it did not end within {seconds:g} s"
        line.leave()
        await line.over
    return line.answer
