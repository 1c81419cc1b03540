"""A gateway inside the test's own loop: a real node behind the real front on a socket, with its internals in reach."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import json
import pathlib
from collections.abc import Callable, Coroutine, Mapping
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import uvloop
from gateway_client import Asking, begin, eventually

from sits.gateway.http.front import Front
from sits.gateway.http.protocol import HttpProtocol
from sits.gateway.node import Node
from sits.observe.record import Record
from sits.resources import watch

QUICK = {"connect": 30.0, "headers": 30.0, "firstToken": 30.0, "idle": 30.0, "total": 60.0}
"""Deadlines that a test never waits for, and that end a test that hangs."""
# Each end of a node waits for the next step: 45 ms less for each of some 1,500 gateways.
watch.STEP_MS = 5


ASKED = ("vllm", "sglang", "tgi", "llamacpp")
"""Engines whose servers are asked for their metrics unless told otherwise: a script has no line for that."""


def inside_loop(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on the loop that the service runs on."""

    @functools.wraps(story)
    def test(*args: Any, **kwargs: Any) -> None:
        uvloop.run(story(*args, **kwargs))

    return test


def model(name: str, endpoint: str, engine: str = "openai", **spec: Any) -> dict[str, Any]:
    """A Model resource; its server knows it as `NAME-upstream`."""
    spec = {"engine": engine, "endpoint": endpoint, "upstreamModel": f"{name}-upstream", **spec}
    if spec["engine"] in ASKED:
        spec.setdefault("vitals", {"off": True})
    return {"apiVersion": "sits/v1", "kind": "Model", "metadata": {"name": name}, "spec": spec}


def llama2() -> str:
    """Where the tokenizer.json of Llama 2 is that lies in wordllama."""
    spec = importlib.util.find_spec("wordllama")
    assert spec is not None
    assert spec.origin is not None
    return f"file:{pathlib.Path(spec.origin).parent / 'tokenizers' / 'l2_supercat_tokenizer_config.json'}"


def route(name: str, *backends: str | tuple[str, float], fallbacks: tuple[str, ...] = (), **spec: Any) -> dict[str, Any]:
    pairs = [(one, 1.0) if isinstance(one, str) else one for one in backends]
    spec = {"backends": [{"model": one, "weight": weight} for one, weight in pairs], "fallbacks": list(fallbacks), **spec}
    return {"apiVersion": "sits/v1", "kind": "Route", "metadata": {"name": name}, "spec": spec}


def settings(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "sits/v1", "kind": "Settings", "spec": {"deadlines": QUICK, **spec}}


def key(name: str, **spec: Any) -> dict[str, Any]:
    """A Key resource; `bearer` shows its secret."""
    spec = {"sha256": sha256(f"secret-of-{name}".encode()).hexdigest(), **spec}
    return {"apiVersion": "sits/v1", "kind": "Key", "metadata": {"name": name}, "spec": spec}


def bearer(name: str, **more: str) -> dict[str, str]:
    """The headers of a request by that key, and others."""
    return {"authorization": f"Bearer secret-of-{name}", **more}


def write(folder: pathlib.Path, *resources: Mapping[str, Any]) -> pathlib.Path:
    """The resources as one file in a folder of their own, put there in one move."""
    config = folder / "config"
    config.mkdir(exist_ok=True)
    draft = folder / "draft.json"
    draft.write_text(json.dumps(resources, ensure_ascii=False))
    draft.replace(config / "all.json")
    return config


class Gateway:
    """One node that takes requests on `port` for as long as the `async with` block lasts."""

    def __init__(self, folder: pathlib.Path, *resources: Mapping[str, Any]) -> None:
        if not any(one["kind"] == "Settings" for one in resources):
            resources = (*resources, settings())
        self.folder = folder
        self.node = Node(write(folder, *resources), folder / "data", warm=False)
        self.port = 0
        self._asked: list[Asking] = []

    async def __aenter__(self) -> Gateway:
        node = self.node
        await node.start()
        self._front = Front(node.service.handle, node.reloader.current.settings.limits, node.sweep, turn=node.turn)
        config = SimpleNamespace(loaded_app=SimpleNamespace(front=self._front))
        state = SimpleNamespace(connections=set())
        make = functools.partial(HttpProtocol, config, state)
        self._server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        for asking in self._asked:
            asking.leave()
        self._server.close()
        self._front.drain()
        await self.node.service.drain(0.0)
        await eventually(lambda: not self._front.connections, "client connections end")
        await self.node.aclose()

    async def ask(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None, method: str = "") -> Asking:
        return await (await self.begin(path, body, headers, method)).ended()

    async def begin(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None, method: str = "") -> Asking:
        asking = await begin(self.port, path, body, headers, method)
        self._asked.append(asking)
        return asking

    def record(self, asking: Asking | None = None) -> Record:
        """The decision record of an answer, or the newest one."""
        ring = self.node.service.books.ring
        found = next(iter(ring)) if asking is None else ring.get(asking.headers["x-request-id"])
        assert found is not None
        return found
