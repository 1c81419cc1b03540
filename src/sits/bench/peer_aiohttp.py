# mypy: disable-error-code="import-not-found"
"""A fair bare proxy to be measured beside: ASGI on uvicorn, aiohttp's pooled client, streaming, and nothing else.

No keys, no routing, no metrics: what a person gets who writes the least that works. It runs in a virtual environment of its
own, so it imports nothing of this project. `UPSTREAM` is the address that it forwards to.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import aiohttp

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_UPSTREAM = os.environ["UPSTREAM"]
_DROP = {b"host", b"content-length", b"connection", b"transfer-encoding", b"accept-encoding"}
_DROP_BACK = {b"connection", b"transfer-encoding", b"keep-alive"}


class Proxy:
    """The ASGI application; the session is made in the loop that will use it."""

    def __init__(self) -> None:
        self._session: Any = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._forward(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60), auto_decompress=False
        )
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._session.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _forward(self, scope: Message, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"] if name not in _DROP]
        async with self._session.request(scope["method"], _UPSTREAM + scope["path"], data=body, headers=headers) as answer:
            back = [(name.lower(), value) for name, value in answer.raw_headers if name.lower() not in _DROP_BACK]
            await send({"type": "http.response.start", "status": answer.status, "headers": back})
            async for piece in answer.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


app = Proxy()
