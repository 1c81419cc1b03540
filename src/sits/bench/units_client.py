"""A client of the bench of units: streams answers of a real model and counts their tokens against what the model says it made.

It waits for nobody: a request is sent when it is due, whether the ones before are answered or not. llama.cpp names every token
that it sends (`logprobs`) and says at the end how many it made, and how much of the prompt it knew already (`usage`), so that a
token that got lost or came twice on the way is seen.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import httptools
import msgspec

PATIENCE = 120.0
"""Seconds after which an answer has failed. A prompt of 400 tokens takes 5 s where others want the cores too."""
_WORDS = (
    *("river", "stone", "window", "market", "garden", "letter", "engine", "winter"),
    *("bridge", "candle", "planet", "forest", "mirror", "harbor", "silver", "basket"),
)


class Ask(msgspec.Struct, frozen=True):
    """One request."""

    name: str
    """Of the route or model that is asked."""
    prompt: str
    tokens: int
    """Of the answer: so many are made."""


class Took(msgspec.Struct):
    """How it went. Times are seconds since the epoch."""

    name: str
    sent: float
    first: float = 0.0
    """When the first token came."""
    over: float = 0.0
    target: str = ""
    """Who answered."""
    status: int = 0
    seen: int = 0
    """Tokens that came."""
    made: int = -1
    """Tokens that the model says it made, but for the one that ends an answer: nobody is sent that."""
    read: int = 0
    """Tokens of the prompt that the model computed, because it had not read them before."""
    prompt: int = 0
    """Tokens of the prompt."""
    done: bool = False
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.done and not self.error and self.status == 200 and self.made >= 0


class Load:
    """All requests of a bench. In an `async with`: those that are still under way at its end are ended."""

    def __init__(self, port: int, seed: int) -> None:
        self.took: list[Took] = []
        self._port = port
        self._dice = random.Random(seed)  # noqa: S311 - no secrets
        self._tasks: set[asyncio.Task[Took]] = set()

    async def __aenter__(self) -> Load:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def words(self, count: int) -> str:
        """Words that nobody has read before."""
        return " ".join(self._dice.choice(_WORDS) for _ in range(count))

    def send(self, ask: Ask) -> asyncio.Task[Took]:
        """Send it now; the task gives how it went, and never fails."""
        task = asyncio.create_task(self._one(ask))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def settled(self) -> None:
        """Return when nothing is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _one(self, ask: Ask) -> Took:
        took = await answer(self._port, ask)
        self.took.append(took)
        return took


async def answer(port: int, ask: Ask) -> Took:
    """One streamed answer, read to its end."""
    took = Took(ask.name, time.time())
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(_wire(ask))
                await _Reading(took).read(reader)
            finally:
                writer.close()
    except (OSError, TimeoutError, httptools.HttpParserError, msgspec.DecodeError) as error:
        took.error = took.error or f"{type(error).__name__}: {error}"
    took.over = time.time()
    return took


def _wire(ask: Ask) -> bytes:
    body = msgspec.json.encode(
        {
            "model": ask.name,
            "messages": [{"role": "user", "content": ask.prompt}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "logprobs": True,
            "top_logprobs": 1,
            "temperature": 0,
            "max_tokens": ask.tokens,
        }
    )
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n"
    return head + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


class _Reading:
    """Reads one answer off a connection."""

    __slots__ = ("_over", "_parser", "_rest", "_stopped", "_took")

    def __init__(self, took: Took) -> None:
        self._stopped = False
        self._took = took
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""
        self._over = False

    async def read(self, reader: asyncio.StreamReader) -> None:
        while not self._over:
            data = await reader.read(65536)
            if not data:
                self._took.error = self._took.error or "the connection ended"
                return
            self._parser.feed_data(data)

    # What the parser finds

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-sits-target":
            self._took.target = value.decode()

    def on_body(self, piece: bytes) -> None:
        took = self._took
        took.status = self._parser.get_status_code()
        if took.status != 200:
            took.error += piece[:300].decode("utf-8", "replace")
            return
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line == b"data: [DONE]":
                took.done = True
            elif line.startswith(b"data: "):
                self._event(msgspec.json.decode(line[6:]))

    def on_message_complete(self) -> None:
        self._over = True

    def _event(self, event: dict[str, Any]) -> None:
        took = self._took
        if "error" in event:
            took.error = str(event["error"])
            return
        for choice in event["choices"]:
            came = len((choice.get("logprobs") or {}).get("content") or ())
            if came and not took.seen:
                took.first = time.time()
            took.seen += came
            self._stopped = self._stopped or choice["finish_reason"] == "stop"
        if usage := event.get("usage"):
            took.made, took.prompt = usage["completion_tokens"] - self._stopped, usage["prompt_tokens"]
            took.read = took.prompt - usage["prompt_tokens_details"]["cached_tokens"]
