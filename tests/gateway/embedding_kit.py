"""A scripted server of embeddings, and nodes that read domains by it: what the tests of both sides share."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import pathlib
import struct
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from gateway_rig import model

from sits import dialects
from sits.engines.base import Call, Deadlines, Outgoing, Reply, field_lines
from sits.engines.scripted import Received, answer
from sits.gateway.embedding import BuiltIn, Declared, Embedder
from sits.gateway.intent_training import IntentTraining
from sits.inner.errors import SitsError
from sits.ports.vectors import Vectors
from sits.ports.vectors.memory import MemoryVectors
from sits.resources.embedding import EmbedderSpec
from sits.resources.kinds import Model
from sits.resources.reading import read_value
from sits.resources.snapshot import Snapshot, compile
from sits.routing.target import Target
from sits.state.intent import material, shipped
from sits.state.intent.material import Kind, Unasked

BACKGROUND = ("hello there", "tell me a joke", "what a nice day", "how are you", "你好", "讲个笑话", "今天天气真好", "你是谁")
LAW = (
    "can I sue my landlord",
    "is this contract valid",
    "我能起诉房东吗",
    "这份合同有效吗",
    "who pays the damages",
    "赔偿由谁承担",
)
MATHS = (
    "solve this integral",
    "what is the square root of 17",
    "求这个积分",
    "十七的平方根是多少",
    "factor the polynomial",
    "把多项式分解因式",
)
KINDS = (*(Kind(text, "legal") for text in LAW[:3]), *(Kind(text, "maths") for text in MATHS[:3]))


class Server:
    """An engine whose server makes embeddings of `size` numbers: texts that are told alike here lie near each other."""

    def __init__(self, size: int = 12) -> None:
        self.size = size
        self.fault: SitsError | None = None
        self.status = 200
        self.spoil: Callable[[list[Any]], Any] = lambda data: {"data": data}
        self.hold: asyncio.Event | None = None
        """Answers wait for it, if it is there when they are asked for."""
        self.asked = 0
        """How often it was."""
        self.sent: list[tuple[Outgoing, Any]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def texts(self) -> list[str]:
        found: list[str] = []
        for _, body in self.sent:
            found += [body["input"]] if isinstance(body["input"], str) else body["input"]
        return found

    def send(self, request: Outgoing, reply: Reply, deadlines: Deadlines) -> Call:
        self.asked += 1
        task = asyncio.get_running_loop().create_task(self._answer(request, reply))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task  # type: ignore[return-value]  # only `cancel` is called

    async def _answer(self, request: Outgoing, reply: Reply) -> None:
        if self.hold is not None:
            await self.hold.wait()
        if self.fault is not None:
            reply.fail(self.fault)
            return
        body = json.loads(request.body)
        self.sent.append((request, body))
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        if "encoding_format" in body:
            data = [{"index": at, "embedding": base64.b64encode(vector(text, 384)).decode()} for at, text in enumerate(texts)]
        else:
            data = [{"index": at, "embedding": floats(text, self.size)} for at, text in enumerate(texts)]
        reply.head(self.status, [(b"content-type", b"application/json")])
        reply.data(json.dumps(self.spoil(data)).encode())
        reply.end()


def vector(text: str, size: int) -> bytes:
    kind = next((at for at, some in enumerate((LAW, MATHS, BACKGROUND)) if text in some), 3)
    own = np.frombuffer(hashlib.sha256(text.encode()).digest() * 12, dtype=np.uint8)[:size].astype("<f4") / 2550
    own[kind] += 3.0
    return own.tobytes()


def floats(text: str, size: int) -> list[float]:
    return list(struct.unpack(f"<{size}f", vector(text, size)))


def embeddings(received: Received) -> bytes:
    """What a server on a socket answers: the same in 12 numbers."""
    given = json.loads(received.body)["input"]
    listed = [given] if isinstance(given, str) else given
    data = [{"index": at, "embedding": floats(text, 12)} for at, text in enumerate(listed)]
    return answer(200, json.dumps({"data": data}).encode(), ("content-type", "application/json"))


def declared(server: Server, name: str = "bge-m3", engine: str = "vllm", prefix: str = "", **spec: Any) -> Declared:
    """`server` as a Model of the configuration."""
    made = read_value(model(name, "http://127.0.0.1:1", engine, **spec)).resource
    assert isinstance(made, Model)
    fixed = field_lines([(b"authorization", b"Bearer k")])
    dialect, can = dialects.upstream(engine), frozenset({"embeddings"})
    target = Target(name, f"{name}-upstream", engine, dialect, server, can, Deadlines(), fixed, b"", made)  # type: ignore[arg-type]
    return Declared(target, EmbedderSpec(name, query_prefix=prefix))


def built_in(server: Server) -> BuiltIn:
    """`server` as the built-in model."""
    return BuiltIn(lambda: server)  # type: ignore[arg-type, return-value]


def shrink(monkeypatch: pytest.MonkeyPatch, *kinds: Kind) -> list[str]:
    """A few texts in place of those that come with the package, and none of their embeddings: those are of the real model. Gives
    the list of those whose embeddings of them were asked for."""
    asked: list[str] = []

    def take(texts: Sequence[str], model: str) -> dict[str, bytes]:
        asked.append(model)
        return {}

    monkeypatch.setattr(material, "background", lambda: tuple(Unasked(text, "en") for text in BACKGROUND))
    monkeypatch.setattr(material, "kinds", lambda: kinds)
    monkeypatch.setattr(shipped, "take", take)
    return asked


class House:
    """A data folder and an index, for nodes that are started in it one after the other."""

    def __init__(self, data: pathlib.Path) -> None:
        self.data = data
        self.server = Server()
        self.embedder: Embedder = built_in(self.server)
        self.vectors = MemoryVectors()
        self.slept: list[float] = []
        self.again: Callable[[], None] = lambda: None

    def node(self, embedder: Embedder | None = None, **more: Any) -> IntentTraining:
        self.embedder = embedder or self.embedder

        async def vectors() -> Vectors:
            return self.vectors

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            self.again()

        return IntentTraining(self.data, lambda: self.embedder, vectors, **{"sleep": sleep, **more})

    @property
    def shelves(self) -> list[str]:
        return sorted(path.name for path in (self.data / "intent").glob("examples-*.bin"))


def domain(name: str, *examples: str) -> dict[str, Any]:
    return {"apiVersion": "sits/v1", "kind": "Domain", "metadata": {"name": name}, "spec": {"examples": list(examples)}}


def snapshot(*resources: Mapping[str, Any]) -> Snapshot:
    return compile([read_value(dict(one)) for one in resources], 1)


BOTH = snapshot(domain("law", *LAW), domain("maths", *MATHS))


def chat(text: str) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}, ensure_ascii=False).encode()


async def until(true: Callable[[], bool]) -> None:
    """Wait for what a thread or a process does: no event of ours tells of it."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "it did not happen in a minute"
        await asyncio.sleep(0.005)


async def ready(node: IntentTraining) -> None:
    await until(lambda: node.status()["state"] == "ready" and bool(node.status()["indexed"]))


def story(play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(play())


def unit(rows: Sequence[Sequence[float]]) -> np.ndarray:
    found = np.array(rows)
    return found / np.linalg.norm(found, axis=1, keepdims=True)
