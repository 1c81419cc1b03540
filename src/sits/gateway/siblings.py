"""The workers of one gateway ask each other over unix sockets: for metrics, for a decision record.

One question is a line, one answer is bytes until the end, or a talk of its own. A sibling that does not answer in time is
counted, not waited for.

The path of a unix socket has 107 bytes at the most, data folders may be deeper: sockets are named by way of the open folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pathlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

WAIT_SECONDS = 0.25
_log = logging.getLogger("sits.gateway")

Topic = Callable[[str], bytes]
"""Answers a question about one topic; the argument is what follows the topic in the question."""
Stream = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Talks with a sibling that asked for a topic, as long as both like."""


class Siblings:
    """Our own socket and the others' in the folder `run`."""

    def __init__(self, run: pathlib.Path, topics: Mapping[str, Topic], streams: Mapping[str, Stream] | None = None) -> None:
        self._run = run
        self._topics = topics
        self._streams = streams or {}
        self._path = run / f"worker-{os.getpid()}.sock"
        self._server: asyncio.Server | None = None
        self._folder = -1

    async def start(self) -> None:
        """Open our socket.

        Raises:
            OSError: it cannot be made.
        """
        self._run.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path.unlink(missing_ok=True)
        self._folder = os.open(self._run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._server = await asyncio.start_unix_server(self._answer, self._short(self._path))
        self._path.chmod(0o600)

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    async def ask(self, question: str) -> tuple[list[bytes], int]:
        """What the siblings say, and how many of them did not answer in time. Sockets of dead workers are swept away."""
        answers = await asyncio.gather(*(self._one(path, question) for path in self.others()))
        return [answer for answer in answers if answer], sum(answer is None for answer in answers)

    def others(self) -> Sequence[pathlib.Path]:
        """The sockets of the siblings, those of dead ones among them; none once this is closed."""
        open_ = self._folder >= 0
        return [path for path in self._run.glob("worker-*.sock") if path != self._path] if open_ else []

    async def open(self, path: pathlib.Path, topic: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Talk with a sibling about the topic of one of its streams.

        Raises:
            OSError: it is not there; its socket is swept away then.
        """
        if self._folder < 0:
            raise ConnectionAbortedError("closed")
        try:
            reader, writer = await asyncio.open_unix_connection(self._short(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)  # noqa: ASYNC240 - one system call on a local folder
            raise
        writer.write(topic.encode() + b"\n")
        return reader, writer

    async def _one(self, path: pathlib.Path, question: str) -> bytes | None:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                reader, writer = await asyncio.open_unix_connection(self._short(path))
                try:
                    writer.write(question.encode() + b"\n")
                    return await reader.read()
                finally:
                    writer.close()
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)  # noqa: ASYNC240 - one system call on a local folder
            return b""
        except (TimeoutError, OSError) as error:
            _log.warning("a sibling did not answer: %s: %s", path.name, error or "too late")
            return None

    def _short(self, path: pathlib.Path) -> str:
        return f"/proc/self/fd/{self._folder}/{path.name}"

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError):
            line = await asyncio.wait_for(reader.readline(), WAIT_SECONDS)
            topic, _, rest = line.decode().strip().partition(" ")
            stream = self._streams.get(topic)
            if stream is not None:
                await stream(reader, writer)
            found = self._topics.get(topic)
            if found is not None:
                writer.write(found(rest))
                await writer.drain()
        writer.close()
