"""Small servers for the tests, whose connections end with them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(serve: Serve, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A loopback port where `serve` is called for each connection."""
    tasks: set[asyncio.Task[None]] = set()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await serve(reader, writer)
        writer.close()
        # One that is ended in the middle of closing closes all the same.
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await writer.wait_closed()

    async with await asyncio.start_server(served, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)


class Front:
    """Stands in front of a server, with TLS or without. It can go silent as when a machine is gone from the network: what is
    connected then hears nothing any more, and is not closed; what connects later is served."""

    def __init__(self, port: int) -> None:
        self.dialed = 0
        self._port = port
        self._era = 0

    def silence(self) -> None:
        self._era += 1

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.dialed += 1
        era = self._era
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)

        async def relay(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while piece := await source.read(65536):
                if era == self._era:
                    sink.write(piece)
            sink.close()

        try:
            await asyncio.gather(relay(reader, inner_writer), relay(inner_reader, writer))
        finally:
            inner_writer.close()
