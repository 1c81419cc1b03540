"""The mixed load of the soak: what clients of every kind send at once, and what each must get for it.

A client keeps its connection and draws one errand after the other. An errand knows what a good answer to it is, so that whatever
else comes is a failure; refusals that must be are good answers too.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from sits.bench import bodies

ADMIN, USER = "sk-soak-admin", "sk-soak-user"
PLAIN, CACHED = "plain", "cached"
_LIMIT = 1 << 20
_SECONDS = 30.0
_FEW = 20
"""Different questions to the route that keeps answers: most are asked again before they are forgotten."""


class Reply(msgspec.Struct, frozen=True):
    status: int
    body: bytes


class Line:
    """A connection to the gateway, made when it is needed. For one errand at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, method: str, path: str, body: Any = None, key: str = USER) -> Reply:
        """A whole answer.

        Raises:
            OSError, EOFError, TimeoutError: none came.
        """
        async with asyncio.timeout(_SECONDS):
            reader = await self._send(method, path, body, key)
            status, headers = await _head(reader)
            if headers.get("transfer-encoding") == "chunked":
                pieces = []
                while piece := await _chunk(reader):
                    pieces.append(piece)
                answer = b"".join(pieces)
            else:
                answer = await reader.readexactly(int(headers.get("content-length", "0")))
            if headers.get("connection") == "close":
                await self.close()
            return Reply(status, answer)

    async def leave_early(self, path: str, body: Any) -> int:
        """Begin to read a stream and go away after its first piece; its status."""
        async with asyncio.timeout(_SECONDS):
            reader = await self._send("POST", path, body, USER)
            status, _ = await _head(reader)
            await reader.read(1)
        await self.close()
        return status

    async def close(self) -> None:
        writer, self._reader, self._writer = self._writer, None, None
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _send(self, method: str, path: str, body: Any, key: str) -> asyncio.StreamReader:
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=_LIMIT)
        data = b"" if body is None else msgspec.json.encode(body)
        lines = [f"{method} {path} HTTP/1.1", "host: soak", f"authorization: Bearer {key}", f"content-length: {len(data)}"]
        if body is not None:
            lines.append("content-type: application/json")
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        await self._writer.drain()
        return self._reader


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first, *fields = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (field.partition(":") for field in fields if field)
    return int(first.split(" ")[1]), {name.lower(): value.strip().lower() for name, _, value in pairs}


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    size = int(await reader.readline(), 16)
    piece = await reader.readexactly(size)
    await reader.readline()
    return piece


class Load:
    """What was sent and what came of it."""

    def __init__(self, port: int, chance: random.Random) -> None:
        self.sent: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.why = ""
        """Of the first failure."""
        self._port = port
        self._chance = chance
        self._number = 0

    async def client(self, stop: asyncio.Event, pause: float) -> None:
        """Errand after errand until `stop`, with a pause of about so many seconds between them."""
        line = Line(self._port)
        names = list(ERRANDS)
        weights = [ERRANDS[name][0] for name in names]
        while not stop.is_set():
            name = self._chance.choices(names, weights)[0]
            await self.run(name, ERRANDS[name][1](line, self))
            await asyncio.sleep(self._chance.uniform(0, 2 * pause))
        await line.close()

    async def run(self, name: str, errand: Awaitable[str]) -> None:
        """Do an errand and note how it went: it returns what is wrong."""
        self.sent[name] += 1
        try:
            wrong = await errand
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            self.failed[name] += 1
            self.why = self.why or f"{name}: {wrong}"

    def words(self, few: bool) -> str:
        """A question: one of a few, or one that was never asked."""
        self._number += 1
        return f"问题 {self._chance.randrange(_FEW) if few else self._number}: what is a gateway good for?"

    def one_of_ten(self) -> bool:
        return self._chance.random() < 0.1


def _chat(model: str, words: str, *, stream: bool) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": words}], "stream": stream}


async def _plain(line: Line, load: Load) -> str:
    reply = await line.ask("POST", bodies.PATH, _chat(PLAIN, load.words(False), stream=False))
    return _wrong(reply, 200) or bodies.whole_answer(reply.body) or ""


async def _streamed(line: Line, load: Load) -> str:
    reply = await line.ask("POST", bodies.PATH, _chat(PLAIN, load.words(False), stream=True))
    return _wrong(reply, 200) or _wrong_stream(reply.body)


async def _cached(line: Line, load: Load) -> str:
    reply = await line.ask("POST", bodies.PATH, _chat(CACHED, load.words(not load.one_of_ten()), stream=False))
    return _wrong(reply, 200) or _wrong_text(reply.body)


async def _cached_stream(line: Line, load: Load) -> str:
    reply = await line.ask("POST", bodies.PATH, _chat(CACHED, load.words(not load.one_of_ten()), stream=True))
    return _wrong(reply, 200) or ("" if b"[DONE]" in reply.body else "no end mark")


async def _anthropic(line: Line, load: Load) -> str:
    stream = load.one_of_ten()
    messages = [{"role": "user", "content": load.words(False)}]
    reply = await line.ask("POST", "/v1/messages", {"model": PLAIN, "max_tokens": 64, "messages": messages, "stream": stream})
    mark = b"message_stop" if stream else b'"stop_reason"'
    return _wrong(reply, 200) or ("" if mark in reply.body else f"no {mark.decode()}: {reply.body[:200]!r}")


async def _leaver(line: Line, load: Load) -> str:
    status = await line.leave_early(bodies.PATH, _chat(PLAIN, load.words(False), stream=True))
    return "" if status == 200 else f"status {status}"


async def _stranger(line: Line, load: Load) -> str:
    return _wrong(await line.ask("POST", bodies.PATH, _chat(PLAIN, "?", stream=False), "sk-nobody"), 401)


async def _mistaken(line: Line, load: Load) -> str:
    return _wrong(await line.ask("POST", bodies.PATH, _chat("no-such-model", "?", stream=False)), 404)


async def _lister(line: Line, load: Load) -> str:
    return _wrong(await line.ask("GET", "/v1/models"), 200)


ERRANDS: dict[str, tuple[int, Callable[[Line, Load], Awaitable[str]]]] = {
    "chat": (30, _plain),
    "chat, streamed": (15, _streamed),
    "chat, kept answers": (20, _cached),
    "chat, kept answers, streamed": (10, _cached_stream),
    "messages": (13, _anthropic),
    "a client that leaves": (5, _leaver),
    "an unknown key": (3, _stranger),
    "an unknown model": (2, _mistaken),
    "list of models": (2, _lister),
}
"""Name -> weight, and what is done: it returns what is wrong, or nothing."""


def _wrong(reply: Reply, status: int) -> str:
    return "" if reply.status == status else f"status {reply.status}: {reply.body[:200]!r}"


def _wrong_stream(body: bytes) -> str:
    return bodies.whole_stream(body) or ""


def _wrong_text(body: bytes) -> str:
    """A kept answer may have come as a stream or whole; both texts of the model server are right."""
    try:
        text = msgspec.json.decode(body)["choices"][0]["message"]["content"]
    except (msgspec.DecodeError, LookupError, TypeError) as error:
        return f"not a chat completion ({error}): {body[:200]!r}"
    return "" if text else "no text"
