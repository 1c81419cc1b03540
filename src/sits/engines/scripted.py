"""A server that plays scripts: the fake upstream for everyone who tests an engine or what stands above one.

A script is what happens on one connection, step by step:

    READ                take one request from the client (it is kept in `requests`)
    b"..."              send these bytes
    asyncio.Event       wait until it is set
    a function          called with the request read last; send the bytes that it returns
    AGAIN               go back to the first step
    CLOSE               close properly
    HALF_CLOSE          send the end of the stream, go on
    RESET               cut the connection with an RST
    DEAF                stop reading from the socket until the next READ

When a script is over, the connection stays open until the client closes it; a client that closes earlier ends its script.
The first connection plays the first script, and so on; the last script serves all that follow.

    async with ScriptedServer([READ, answer(200, b"{}"), AGAIN]) as server:
        ...
        assert server.requests[0].path == "/v1/models"
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from typing import cast

import msgspec


class Mark(enum.Enum):
    READ = "read"
    AGAIN = "again"
    CLOSE = "close"
    HALF_CLOSE = "half_close"
    RESET = "reset"
    DEAF = "deaf"


READ, AGAIN, CLOSE, HALF_CLOSE, RESET, DEAF = Mark


class Received(msgspec.Struct, frozen=True):
    """One request as it came: `path` is the whole request target, `headers` have lower-case names; the last of a name wins."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    """Which connection brought it, counted from 0."""
    fields: tuple[tuple[str, str], ...] = ()
    """The header fields in order, as they were written."""


Step = bytes | Mark | asyncio.Event | Callable[[Received], bytes]
Script = Sequence[Step]


def answer(status: int, body: bytes = b"", *fields: tuple[str, str]) -> bytes:
    """A response with Content-Length."""
    return _head(status, (("content-length", str(len(body))), *fields)) + body


def chunked(status: int, *pieces: bytes, fields: Sequence[tuple[str, str]] = (), end: bool = True) -> bytes:
    """A chunked response; with `end=False` it waits for more, made by `chunk` and closed by `LAST_CHUNK`."""
    head = _head(status, (("transfer-encoding", "chunked"), *fields))
    return head + b"".join(map(chunk, pieces)) + (LAST_CHUNK if end else b"")


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


LAST_CHUNK = b"0\r\n\r\n"


def _head(status: int, fields: Sequence[tuple[str, str]]) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join([*lines, "", ""]).encode()


class ScriptedServer:
    """Listens on loopback while the `async with` block lasts; leaving it cuts what is still open.

    `tls` makes it an HTTPS server. `host` may be "::1".
    """

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        assert scripts, "a server needs a script"
        self._scripts = scripts
        self._tls = tls
        self._host = host
        self._changed = asyncio.Event()
        self._lines: dict[_Line, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self.port = 0
        self.requests: list[Received] = []
        self.connections = 0
        """Connections accepted so far."""
        self.gone = 0
        """Connections that the client ended."""
        self.faults: list[Exception] = []
        """What went wrong in the scripts themselves."""

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._tls is None else 'https'}://{host}:{self.port}"

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return len(self._lines)

    async def until(self, met: Callable[[ScriptedServer], bool], seconds: float = 30.0) -> None:
        """Wait until something is true of this server.

        Raises:
            TimeoutError: it did not become true.
        """
        async with asyncio.timeout(seconds):
            while not met(self):
                self._changed.clear()
                await self._changed.wait()

    async def __aenter__(self) -> ScriptedServer:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Line(self), self._host, 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        tasks = list(self._lines.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _connected(self, line: _Line) -> None:
        number = self.connections
        self.connections += 1
        script = self._scripts[min(number, len(self._scripts) - 1)]
        self._lines[line] = asyncio.get_running_loop().create_task(self._serve(line, script, number))
        self._changed.set()

    async def _serve(self, line: _Line, script: Script, number: int) -> None:
        try:
            await line.play(script, number)
        except EOFError:
            self.gone += 1
        except Exception as error:
            self.faults.append(error)
        finally:
            line.end()
            del self._lines[line]
            self._changed.set()

    def _took(self, request: Received) -> None:
        self.requests.append(request)
        self._changed.set()


class _Line(asyncio.Protocol):
    """One connection to the server."""

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._news = asyncio.Event()
        self._ended = False
        self._choked = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server._connected(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._news.set()

    def eof_received(self) -> None:
        self._ended = True
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.eof_received()

    def pause_writing(self) -> None:
        self._choked = True

    def resume_writing(self) -> None:
        self._choked = False
        self._news.set()

    def end(self) -> None:
        self._transport.abort()

    async def play(self, script: Script, number: int) -> None:
        """Play a script to its end.

        Raises:
            EOFError: the client ended the connection.
        """
        last: Received | None = None
        while True:
            for step in script:
                if step is AGAIN:
                    break
                if step is READ:
                    last = await self._read(number)
                elif step is RESET or step is CLOSE:
                    await self._close(step is RESET)
                    return
                elif callable(step):
                    assert last is not None, "a function needs a request: put READ before it"
                    await self._send(step(last))
                else:
                    await self._do(step)
            else:
                await self._until(lambda: False)

    async def _do(self, step: bytes | Mark | asyncio.Event) -> None:
        if isinstance(step, bytes):
            await self._send(step)
        elif isinstance(step, asyncio.Event):
            waiting = asyncio.ensure_future(step.wait())
            waiting.add_done_callback(lambda _: self._news.set())
            try:
                await self._until(waiting.done)
            finally:
                waiting.cancel()
        elif step is HALF_CLOSE:
            self._transport.write_eof()
        elif step is DEAF:
            self._transport.pause_reading()

    async def _until(self, met: Callable[[], bool]) -> None:
        while not met():
            if self._ended:
                raise EOFError
            self._news.clear()
            await self._news.wait()

    async def _send(self, data: bytes) -> None:
        if self._ended:
            raise EOFError
        self._transport.write(data)
        await self._until(lambda: not self._choked)

    async def _close(self, reset: bool) -> None:
        if reset:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()
        with contextlib.suppress(EOFError):
            await self._until(lambda: False)

    async def _read(self, number: int) -> Received:
        self._transport.resume_reading()
        await self._until(lambda: b"\r\n\r\n" in self._buffer)
        size = self._buffer.index(b"\r\n\r\n")
        first, *lines = self._buffer[:size].decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        fields = tuple((name, value.strip()) for name, _, value in (line.partition(":") for line in lines))
        headers = {name.lower(): value for name, value in fields}
        whole = size + 4 + int(headers.get("content-length", "0"))
        await self._until(lambda: len(self._buffer) >= whole)
        request = Received(method, path, headers, bytes(self._buffer[size + 4 : whole]), number, fields)
        del self._buffer[:whole]
        self._server._took(request)
        return request
