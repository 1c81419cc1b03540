"""Hits as a client sees them: `sits serve` on a socket, one connection, one request after the other."""

from __future__ import annotations

import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import msgspec

from sits.bench import BenchError
from sits.bench.child import Child, answers
from sits.bench.declared import declare, resource
from sits.bench.figure import Figure, bounded, measured
from sits.bench.load import percentile
from sits.bench.upstream import Paced
from sits.ports.servers.process import free_port

EXACT = "<= 1"
SEMANTIC = "<= 3"
STORED_SECONDS = 30.0


class Reply(msgspec.Struct, frozen=True):
    """An answer, and the milliseconds it took."""

    status: int
    fields: dict[str, str]
    body: bytes
    took: float


class Line:
    """One connection that asks and waits."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30.0)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, path: str, body: bytes = b"", method: str = "POST") -> Reply:
        """Send a request and read its answer."""
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\ncontent-type: application/json\r\n"
        start = time.perf_counter()
        self._socket.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        data = self._socket.recv(65536)
        while b"\r\n\r\n" not in data:
            data += self._more()
        top, _, rest = data.partition(b"\r\n\r\n")
        first, *lines = top.decode().split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        while len(rest) < int(fields.get("content-length", "0")):
            rest += self._more()
        return Reply(int(first.split()[1]), fields, rest, 1e3 * (time.perf_counter() - start))

    def close(self) -> None:
        self._socket.close()

    def _more(self) -> bytes:
        piece = self._socket.recv(65536)
        if not piece:
            raise BenchError("the gateway closed the connection before its answer was complete")
        return piece


class Served:
    """A gateway with a cached route, `kept`, before a model that answers at once. Use it in a `with`."""

    def __init__(self, folder: Path) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self._stack = ExitStack()
        self._folder = folder
        self._core = cores[0]
        self._upstream = Paced(folder, cores[-1])

    def __enter__(self) -> Served:
        stack = self._stack
        try:
            stack.enter_context(self._upstream.child)
            self._upstream.await_ready()
            port = free_port()
            command = [sys.executable, "-c", "from sits.cli.sits import main; main()", "serve", "--host", "127.0.0.1"]
            command += ["--port", str(port), "--config", str(self._config()), "--data", str(self._folder / "data")]
            child = stack.enter_context(Child("sits", command, core=self._core, log=self._folder / "log"))
            child.await_ready(answers(f"http://127.0.0.1:{port}/readyz"), seconds=30.0)
            self.line = Line(port)
            stack.callback(self.line.close)
        except BaseException:
            stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _config(self) -> Path:
        config = self._folder / "config"
        config.mkdir()
        resources = [
            resource("Model", "upstream", engine="openai", endpoint=self._upstream.url, upstreamModel="bench"),
            resource("Route", "kept", backends=[{"model": "upstream"}], cache={"semantic": {}}),
        ]
        declare(config, "all", resources)
        return config

    def say(self, text: str) -> Reply:
        """Ask the cached route.

        Raises:
            BenchError: it refuses.
        """
        messages = [{"role": "system", "content": "You answer questions about our products in one sentence."}]
        body = msgspec.json.encode({"model": "kept", "messages": [*messages, {"role": "user", "content": text}]})
        reply = self.line.ask("/v1/chat/completions", body)
        if reply.status != 200:
            raise BenchError(f"the gateway answers {reply.status}: {reply.body[:300].decode(errors='replace')}")
        return reply

    def await_stored(self, count: int) -> None:
        """Wait until the semantic cache has that many answers: they are stored behind the answers.

        Raises:
            BenchError: it has not in time.
        """
        until = time.monotonic() + STORED_SECONDS
        while True:
            told = msgspec.json.decode(self.line.ask("/v1/admin/cache", method="GET").body)
            semantic = told.get("semantic")
            if semantic is None:
                raise BenchError(f"the gateway has no semantic cache: {told.get('trouble') or told}")
            if semantic["stored"] + semantic["unfit"] >= count:
                return
            if time.monotonic() > until:
                raise BenchError(f"of {count} answers the semantic cache has {semantic['stored']}")
            time.sleep(0.02)


def rows(wordings: Iterable[tuple[str, str]], rounds: int) -> list[Figure]:
    """Hits of both caches, and misses beside them. `wordings`: pairs of which the first is kept and the second asked for."""
    chosen = list(wordings)
    with tempfile.TemporaryDirectory(prefix="sits-bench-") as folder, Served(Path(folder)) as served:
        first = [served.say(kept) for kept, _ in chosen]
        # A question that means the same as one before is answered by that one's answer.
        misses = [reply for reply in first if reply.fields.get("x-sits-cache") == "miss"]
        served.await_stored(len(misses))
        exact = [served.say(kept) for _ in range(rounds) for kept, _ in chosen]
        alike = [served.say(asked) for _ in range(rounds) for _, asked in chosen]
    return [
        _figure("cache_hit_exact_ms", exact, "hit", EXACT),
        _figure("cache_hit_semantic_ms", alike, "semantic", SEMANTIC),
        measured("cache_miss_ms", statistics.median(reply.took for reply in misses), "ms", "a model that answers at once"),
    ]


def _figure(name: str, replies: list[Reply], how: str, bound: str) -> Figure:
    """The median of those that were answered so; none when fewer than half were, for then it is another thing's time."""
    took = sorted(reply.took for reply in replies if reply.fields.get("x-sits-cache") == how)
    said = f"{len(took)} of {len(replies)} answers were {how}; p99 {percentile(took, 0.99):.2f}"
    return bounded(name, statistics.median(took) if 2 * len(took) > len(replies) else None, "ms", bound, said)
