"""A second, plain client behind the `Engine` protocol: one connection and one task a call, on asyncio streams and h11.

It is here to prove that the protocol can be implemented by something that is nothing like our own client.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from urllib.parse import urlsplit

import h11

from sits.engines.base import Call, Deadlines, Headers, Outgoing, Reply
from sits.engines.checks import Recorder
from sits.inner.errors import Code, SitsError

_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"trailer", b"te"}


class StreamsCall:
    def __init__(self, task: asyncio.Task[None] | None) -> None:
        self.task = task
        self.connect_time = 0.0
        self.reused = False
        self.started = False
        self.unpaused = asyncio.Event()
        self.unpaused.set()

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def pause(self) -> None:
        self.unpaused.clear()

    def resume(self) -> None:
        self.unpaused.set()


class StreamsEngine:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._host, self._port = parts.hostname, parts.port or 80
        self._closed = False

    def send(self, request: Outgoing, reply: Reply, deadlines: Deadlines) -> Call:
        call = StreamsCall(None)
        call.task = asyncio.get_running_loop().create_task(self._guarded(call, request, reply, deadlines))
        return call

    async def _guarded(self, call: StreamsCall, request: Outgoing, reply: Reply, deadlines: Deadlines) -> None:
        try:
            if self._closed:
                raise SitsError(Code.UPSTREAM_UNREACHABLE, "closed")
            async with _deadline("total", deadlines.total):
                await self._run(call, request, reply, deadlines)
        except SitsError as error:
            reply.fail(error)
        except (OSError, EOFError) as error:
            code = Code.UPSTREAM_BROKEN if call.started else Code.UPSTREAM_UNREACHABLE
            reply.fail(SitsError(code, f"{self._host}:{self._port}: {error}"))
        except h11.RemoteProtocolError as error:
            reply.fail(SitsError(Code.UPSTREAM_BROKEN, str(error)))

    async def _run(self, call: StreamsCall, request: Outgoing, reply: Reply, deadlines: Deadlines) -> None:
        async with _deadline("connect", deadlines.connect):
            reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=64 * 1024)
            host = f"{self._host}:{self._port}".encode()
            fields = [(b"host", host), (b"content-length", b"%d" % len(request.body)), *request.headers]
            head = connection.send(h11.Request(method=request.method, target=request.path, headers=fields))
            data = connection.send(h11.Data(data=request.body)) if request.body else b""
            assert head is not None
            assert data is not None
            writer.write(head + data)
            connection.send(h11.EndOfMessage())
            call.started = True
            async with _deadline("headers", deadlines.headers):
                event = await self._next(connection, reader)
                while isinstance(event, h11.InformationalResponse):
                    if event.status_code == 101:
                        raise SitsError(Code.UPSTREAM_BROKEN, "an upgrade that nobody asked for")
                    event = await self._next(connection, reader)
            if not isinstance(event, h11.Response):
                raise SitsError(Code.UPSTREAM_BROKEN, "no answer")
            reply.head(event.status_code, self._fields(event))
            await asyncio.sleep(0)  # where a cancel from within head takes hold
            await self._body(call, connection, reader, reply, deadlines)
        finally:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
        reply.end()

    async def _body(
        self, call: StreamsCall, connection: h11.Connection, reader: asyncio.StreamReader, reply: Reply, deadlines: Deadlines
    ) -> None:
        while True:
            await call.unpaused.wait()
            async with _deadline("idle", deadlines.idle):
                event = await self._next(connection, reader)
            if isinstance(event, h11.EndOfMessage):
                return
            if isinstance(event, h11.Data):
                await call.unpaused.wait()
                reply.data(bytes(event.data))

    @staticmethod
    async def _next(connection: h11.Connection, reader: asyncio.StreamReader) -> object:
        while (event := connection.next_event()) is h11.NEED_DATA:
            connection.receive_data(await reader.read(65536))
        return event

    @staticmethod
    def _fields(event: h11.Response) -> Headers:
        fields = [(bytes(name).lower(), bytes(value)) for name, value in event.headers]
        if sum(name == b"content-length" for name, _ in fields) and any(name == b"transfer-encoding" for name, _ in fields):
            raise SitsError(Code.UPSTREAM_BROKEN, "two framings")
        named = {token.strip().lower() for name, value in fields if name == b"connection" for token in value.split(b",")}
        return [field for field in fields if field[0] not in _HOP | named]

    async def probe(self, path: str | None, deadlines: Deadlines) -> None:
        asked = path or "/health"
        reply = await self._get(asked, deadlines)
        if reply.status == 404 and path is None:
            asked = "/v1/models"
            reply = await self._get(asked, deadlines)
        if reply.error is not None:
            raise reply.error
        assert reply.status is not None
        if not 200 <= reply.status < 300:
            raise SitsError(Code.UPSTREAM_ERROR, f"GET {asked} answered {reply.status}: {reply.body.decode()}")

    async def _get(self, path: str, deadlines: Deadlines) -> Recorder:
        reply = Recorder()
        self.send(Outgoing(b"GET", path.encode(), [], b""), reply, deadlines)
        return await reply.over()

    async def aclose(self) -> None:
        self._closed = True


class _deadline(asyncio.Timeout):
    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(asyncio.get_running_loop().time() + seconds)
        self._said = f"the {name} deadline of {seconds:g} s passed"

    async def __aexit__(self, *details: object) -> bool | None:
        try:
            return await super().__aexit__(*details)  # type: ignore[arg-type]
        except TimeoutError as error:
            raise SitsError(Code.UPSTREAM_TIMEOUT, self._said) from error
