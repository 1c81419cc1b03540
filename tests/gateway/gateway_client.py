"""A client that sees everything: status, fields, body as it grows, and how the answer ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

import httptools

PATIENCE = 60.0
"""Seconds after which a test gives up waiting for what must happen."""


class Asking(asyncio.Protocol):
    """One request on a connection of its own, and its answer so far."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._parser = httptools.HttpResponseParser(self)
        self._changed = asyncio.Event()
        self._transport: asyncio.Transport
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.whole = False
        """The answer ended as its framing says; False: it was cut, or is not over."""
        self.over = False
        """No more bytes will come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        with contextlib.suppress(httptools.HttpParserError):
            self._parser.feed_data(data)
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = True
        self._changed.set()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        self.whole = self.over = True
        self._transport.close()

    def leave(self) -> None:
        """Go away without a word."""
        self._transport.abort()

    def deaf(self) -> None:
        """Read no more until `hear`."""
        self._transport.pause_reading()

    def hear(self) -> None:
        self._transport.resume_reading()

    async def until(self, met: Callable[[Asking], bool], seconds: float = PATIENCE) -> Asking:
        """Wait until something is true of the answer.

        Raises:
            AssertionError: the answer ended without, or it took too long.
        """
        try:
            async with asyncio.timeout(seconds):
                while not met(self):
                    assert not self.over, f"the answer ended: {self!r}"
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"not within {seconds} s: {self!r}") from None
        return self

    async def ended(self, seconds: float = PATIENCE) -> Asking:
        return await self.until(lambda one: one.over, seconds)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of the error in the body or, of a stream, in its last event; empty when there is none."""
        found = re.findall(rb'"sits_code":"([a-z_]+)"', self.body)
        return found[-1].decode() if found else ""

    def __repr__(self) -> str:
        end = "whole" if self.whole else "cut" if self.over else "..."
        return f"{self.status} {self.headers} {self.body[-600:].decode('utf-8', 'replace')} ({end})"


async def begin(port: int, path: str, body: Any = None, headers: Mapping[str, str] | None = None, method: str = "") -> Asking:
    """Send a request; its answer comes while others do."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    fields = {"host": "test", "content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    request = f"{method or ('GET' if body is None else 'POST')} {path} HTTP/1.1\r\n{head}\r\n".encode() + data
    loop = asyncio.get_running_loop()
    _, asking = await loop.create_connection(lambda: Asking(request), "127.0.0.1", port)
    return asking


async def ask(port: int, path: str, body: Any = None, headers: Mapping[str, str] | None = None, method: str = "") -> Asking:
    """Send a request and wait for the end of its answer."""
    return await (await begin(port, path, body, headers, method)).ended()


async def eventually(met: Callable[[], bool], what: str = "", seconds: float = PATIENCE) -> None:
    """Look again and again until it is so."""
    try:
        async with asyncio.timeout(seconds):
            while not met():  # noqa: ASYNC110 - what is looked at is in another process, or sends no event
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {seconds} s: {what or met}") from None
