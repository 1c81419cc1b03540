"""A client of an experiment: HTTP/1.1 on a connection that is kept, one request at a time, with the time of what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, cast

import httptools
import msgspec

Connect = Callable[[str, Callable[[], asyncio.Protocol]], Awaitable[asyncio.Protocol]]
"""(which gateway, protocol factory) -> the protocol, connected. Raises OSError."""


class Body(Protocol):
    """Takes the body of a good answer, piece by piece."""

    def feed(self, piece: bytes) -> None: ...


class Unread:
    """Takes a body as it is."""

    def __init__(self) -> None:
        self.body = bytearray()

    def feed(self, piece: bytes) -> None:
        self.body += piece


class Got(msgspec.Struct):
    """What came back."""

    gateway: str = ""
    status: int = 0
    """0: nothing that is HTTP."""
    headers: dict[str, str] = {}
    error: bytes = b""
    """The body of an answer that is not 200."""
    whole: bool = False
    """Whether it ended as its framing says."""
    refused: bool = False
    """No gateway took the connection."""
    late: bool = False
    """Nothing came for too long."""


class _Line(asyncio.Protocol):
    """One connection to a gateway."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.got = Got()
        self.body: Body = Unread()
        self.done: asyncio.Future[None] | None = None
        self.heard = 0.0
        self.keep = True
        self._parser = httptools.HttpResponseParser(self)

    def ask(self, request: bytes, body: Body, gateway: str) -> asyncio.Future[None]:
        self.got, self.body = Got(gateway=gateway, headers={}), body
        self.done = self.loop.create_future()
        self.heard = self.loop.time()
        self._parser = httptools.HttpResponseParser(self)
        if self.transport is None:
            self.done.set_result(None)
        else:
            self.transport.write(request)
        return self.done

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._end()

    def data_received(self, data: bytes) -> None:
        self.heard = self.loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def eof_received(self) -> bool:
        return False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.got.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.got.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self.got.status == 200:
            self.body.feed(body)
        else:
            self.got.error += body

    def on_message_complete(self) -> None:
        if self.got.status >= 200:
            self.got.whole = True
            self.keep = self._parser.should_keep_alive()
            self._end()

    def _end(self) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_result(None)


class Caller:
    """One client. It goes to the next gateway when one does not take its connection, as anything that spreads load does."""

    def __init__(self, gateways: Sequence[str], connect: Connect, *, first: int = 0) -> None:
        self._gateways = list(gateways)
        self._connect = connect
        self._turn = first % max(1, len(self._gateways))
        self._line: _Line | None = None

    async def ask(self, request: bytes, body: Body, patience: float) -> Got:
        """Send a request and wait for the end of its answer; `patience` is the longest silence."""
        line = self._line
        if line is None or line.transport is None or not line.keep:
            line = await self._dial(patience)
            if line is None:
                return Got(refused=True, headers={})
        done = line.ask(request, body, self._gateways[self._turn])
        while not done.done():
            left = line.heard + patience - line.loop.time()
            if left <= 0:
                line.got.late = True
                line.close()
                break
            await asyncio.wait([done], timeout=left)
        return line.got

    def move(self) -> None:
        """Use the next gateway from now on."""
        self._turn = (self._turn + 1) % len(self._gateways)
        self.close()

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    async def _dial(self, patience: float) -> _Line | None:
        self.close()
        for _ in self._gateways:
            try:
                async with asyncio.timeout(patience):
                    self._line = cast("_Line", await self._connect(self._gateways[self._turn], _Line))
                return self._line
            except OSError:
                self._turn = (self._turn + 1) % len(self._gateways)
        return None


def request(method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """A request in wire form."""
    fields = {"host": "gateway", "content-type": "application/json", **headers, "content-length": str(len(body))}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body
