"""What a route without a cache pays for the caches: nothing, and not by measure but by count.

A node in this process serves requests over a socket, and an interpreter's hook counts each call of a function that belongs to the
caches. A route that has one shows that the hook sees them.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import tempfile
from pathlib import Path
from types import FrameType, SimpleNamespace

import msgspec

from sits.bench import BenchError
from sits.bench.declared import declare, resource, settings
from sits.bench.figure import Figure, bounded
from sits.bench.upstream import Paced
from sits.gateway.http.front import Front
from sits.gateway.http.protocol import HttpProtocol
from sits.gateway.node import Node

REQUESTS = 20
ROOMS = ("/state/cache/", "/gateway/recall.py")
"""Whose functions are counted."""


class Watch:
    """Counts calls into the rooms of the caches."""

    def __init__(self) -> None:
        self.calls = 0

    def __enter__(self) -> Watch:
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _seen(self, frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        self.calls += event == "call" and any(room in name for room in ROOMS)


def rows() -> list[Figure]:
    """The calls of requests to a route without a cache."""
    with tempfile.TemporaryDirectory(prefix="sits-bench-") as name:
        folder = Path(name)
        upstream = Paced(folder, max(os.sched_getaffinity(0)))
        with upstream.child:
            upstream.await_ready()
            without, beside, kept = asyncio.run(_counted(folder, upstream.url))
    said = f"{REQUESTS} requests where no route has a cache {without} calls, where another one has {beside}, of that one {kept}"
    return [bounded("cache_off_calls", without + beside if kept else None, "calls", "== 0", said)]


async def _counted(folder: Path, upstream: str) -> tuple[int, int, int]:
    """Calls for the plain route of a node without any cache, of one with a cache on another route, and for that other."""
    counts = []
    for name, cache, asked in (("none", None, ["plain"]), ("some", {"scope": "route"}, ["plain", "kept"])):
        node = Node(_config(folder / name, upstream, cache), folder / name / "data", warm=False)
        await node.start()
        try:
            counts += [await _calls(node, route) for route in asked]
        finally:
            await node.aclose()
    return counts[0], counts[1], counts[2]


def _config(folder: Path, upstream: str, cache: dict[str, str] | None) -> Path:
    config = folder / "config"
    config.mkdir(parents=True)
    backends = [{"model": "upstream"}]
    resources = [
        settings(accessLog=False),
        resource("Model", "upstream", engine="openai", endpoint=upstream, upstreamModel="bench"),
        resource("Route", "plain", backends=backends),
        resource("Route", "kept", backends=backends, **({"cache": cache} if cache else {})),
    ]
    declare(config, "all", resources)
    return config


async def _calls(node: Node, route: str) -> int:
    front = Front(node.service.handle, node.reloader.current.settings.limits, node.sweep, turn=node.turn)
    config, state = SimpleNamespace(loaded_app=SimpleNamespace(front=front)), SimpleNamespace(connections=set())
    server = await asyncio.get_running_loop().create_server(functools.partial(HttpProtocol, config, state), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        await _ask(reader, writer, route)  # What is made once is made now.
        with Watch() as watch:
            for _ in range(REQUESTS):
                await _ask(reader, writer, route)
        return watch.calls
    finally:
        writer.close()
        server.close()
        front.drain()


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, route: str) -> None:
    body = msgspec.json.encode({"model": route, "messages": [{"role": "user", "content": "What is a gateway good for?"}]})
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    answer = await reader.readexactly(int(length))
    if not head.startswith(b"HTTP/1.1 200"):
        raise BenchError(f"the gateway answers {head[:20]!r}: {answer[:300]!r}")
