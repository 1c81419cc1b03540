"""One connection of a small HTTP/1.1 server of a bench: it reads what gateways send, a length or chunks, keep-alive, and no more.

It must only ever stand behind a gateway that is being measured.
"""

from __future__ import annotations

import asyncio
from typing import cast

import httptools


class BenchConnection(asyncio.Protocol):
    """A request, its answer, the next request. Whoever derives from it says what `answer` does; `_timer` ends with it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = b""

    def answer(self, url: bytes, body: bytes) -> None:
        """A request is complete."""
        raise NotImplementedError

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

    def on_body(self, piece: bytes) -> None:
        self._body += piece

    def on_message_complete(self) -> None:
        url, body = self._url, self._body
        self._url = self._body = b""
        if self._transport is not None:
            self.answer(url, body)
