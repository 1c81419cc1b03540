"""Clients of two gateways that read numbered streams and hold every one against what it must be.

A client that cannot reach its gateway goes to the other one, as a load balancer would send it: that is no failure. One whose
connection dies in the middle because its gateway was killed asks the other gateway from the start; what it had got is held
against the numbers too, and it is counted by itself, because no gateway can finish what another one took along. Anything else
that is not a whole answer is a failure.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

import httptools
import msgspec

_CONNECT_SECONDS = 2.0
_ANSWER_SECONDS = 60.0
"""An answer that takes longer has failed."""
MOST_REASONS = 20


class Reading(msgspec.Struct):
    """One answer as it came."""

    status: int = 0
    words: list[int] = []
    whole: bool = False
    error: str = ""
    longest: float = 0.0
    """Seconds of the longest silence between two words."""


class Counts(msgspec.Struct):
    """What all clients saw."""

    complete: int = 0
    tokens: int = 0
    failed: int = 0
    lost: int = 0
    doubled: int = 0
    broken_by_kill: int = 0
    """Answers that died with the gateway that was killed; each was asked again elsewhere."""
    elsewhere: int = 0
    """Requests that went to the other gateway since theirs did not take connections."""
    silence: float = 0.0
    """Seconds of the longest silence between two words of a complete answer."""
    reasons: list[str] = []

    def note(self, reading: Reading, words: int) -> None:
        """An answer that is whole, or should have been."""
        self.check(reading.words)
        self.tokens += len(reading.words)
        if reading.status == 200 and reading.whole and reading.words[-1:] == [words]:
            self.complete += 1
            self.silence = max(self.silence, reading.longest)
            return
        self.failed += 1
        if len(self.reasons) < MOST_REASONS:
            self.reasons.append(f"status {reading.status}, {len(reading.words)} words, {reading.error or 'not whole'}")

    def check(self, words: Sequence[int]) -> None:
        """Every number once and in order, as far as it goes."""
        seen: set[int] = set()
        for number in words:
            if number in seen:
                self.doubled += 1
            seen.add(number)
        self.lost += max(seen, default=0) - len(seen)


class Stage:
    """The two gateways as clients see them. `killed` is the port of one that was killed, and is not there just now."""

    def __init__(self, ports: Sequence[int], model: str) -> None:
        self.ports = list(ports)
        self.model = model
        self.killed: set[int] = set()
        self.counts = Counts()
        self.live = 0
        """Streams under way."""

    async def client(self, number: int, words: int, stop: asyncio.Event) -> None:
        """Ask for about so many words again and again, each time of its own gateway first."""
        chance = random.Random(number)  # noqa: S311 - clients that differ, the same in each run
        own = self.ports[number % len(self.ports)]
        others = [port for port in self.ports if port != own]
        while not stop.is_set():
            # All of one length would come in bursts, and between two of these nobody could tell whether requests still go astray.
            await self._request([own, *others], chance.randint(words // 2, words + words // 2))

    async def _request(self, ports: Sequence[int], words: int) -> None:
        """One request, to its end: at another gateway when the first one is not there or dies."""
        for place, port in enumerate(ports):
            reading = Reading(words=[])
            try:
                reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), _CONNECT_SECONDS)
            except OSError as error:
                if place + 1 < len(ports):
                    self.counts.elsewhere += 1
                    continue
                reading.error = f"no gateway takes connections: {error}"
                self.counts.note(reading, words)
                return
            self.live += 1
            try:
                await Answer(reading).read(reader, writer, self.model, words)
            finally:
                self.live -= 1
                writer.close()
            if not reading.whole and port in self.killed and place + 1 < len(ports):
                self.counts.broken_by_kill += 1
                self.counts.check(reading.words)
                continue
            self.counts.note(reading, words)
            return


class Answer:
    """Reads one streamed answer off a connection."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""
        self._done = False
        self._over = False
        self._last = 0.0

    async def read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, model: str, words: int) -> None:
        """Ask for so many words, and read to the end; what goes wrong is in `reading.error`."""
        question = {"role": "user", "content": f"数到 {words}"}
        body = msgspec.json.encode({"model": model, "messages": [question], "stream": True})
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\n%b\r\n\r\n"
        fields = b"content-type: application/json\r\ncontent-length: %d" % len(body)
        try:
            writer.write(head % fields + body)
            async with asyncio.timeout(_ANSWER_SECONDS):
                while not self._over:
                    data = await reader.read(65536)
                    if not data:
                        self.reading.error = self.reading.error or "the connection ended"
                        return
                    self._parser.feed_data(data)
        except (OSError, TimeoutError, httptools.HttpParserError) as error:
            self.reading.error = f"{type(error).__name__}: {error}"
            return
        self.reading.whole = self._done and not self.reading.error

    # What the parser finds

    def on_body(self, piece: bytes) -> None:
        if self.reading.status == 0:
            self.reading.status = self._parser.get_status_code()
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line == b"data: [DONE]":
                self._done = True
            elif line.startswith(b"data: "):
                self._event(msgspec.json.decode(line[6:]))
        if self.reading.status != 200:
            self.reading.error = (self._rest or piece)[:300].decode("utf-8", "replace")

    def on_message_complete(self) -> None:
        self._over = True

    def _event(self, event: dict[str, object]) -> None:
        if "error" in event:
            self.reading.error = str(event["error"])
            return
        choices = event.get("choices")
        assert isinstance(choices, list)
        for choice in choices:
            text = choice["delta"].get("content") or ""
            for word in text.split():
                now = time.monotonic()
                if self._last:
                    self.reading.longest = max(self.reading.longest, now - self._last)
                self._last = now
                self.reading.words.append(int(word[1:]))
