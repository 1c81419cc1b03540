"""Every check of the outbox over every pair of store and index that a deployment has."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from sits.ports.servers.redis import RedisServer
from sits.ports.store import Store, open_store
from sits.ports.store.memory import MemoryStore, Shelf
from sits.ports.vectors import Vectors, open_vectors
from sits.ports.vectors.memory import MemoryVectors
from sits.state.outbox.checks import CHECKS, Check, MakePair

_numbers = itertools.count()


@pytest.fixture(scope="module")
def outbox_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("outbox-redis")) as server:
        yield server


@pytest.fixture(params=["memory", "sqlite+embedded", "redis+redis", "sqlite+redis"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> MakePair:
    if request.param == "memory":
        shelf, index = Shelf(), MemoryVectors()

        async def remembered() -> tuple[Store, Vectors]:
            return MemoryStore(shelf=shelf), index

        return remembered
    store, _, vectors = request.param.partition("+")
    if "redis" in request.param:
        server: RedisServer = request.getfixturevalue("outbox_redis")
        store, vectors = (server.address if kind == "redis" else kind for kind in (store, vectors))

    # A server that is slow since the machine is busy is not away.
    async def opened() -> tuple[Store, Vectors]:
        return await open_store(store, tmp_path, timeout=20.0), await open_vectors(vectors, tmp_path, timeout=20.0)

    return opened


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_outbox_conforms(make: MakePair, check: Check) -> None:
    asyncio.run(check(make, f"check_{next(_numbers)}"))
