"""The places that the vector tests use: fresh ones in memory and in files, one server of each kind for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sits.ports.servers.milvus import MilvusServer
from sits.ports.servers.redis import RedisServer
from sits.ports.vectors import Vectors, open_vectors
from sits.ports.vectors.checks import MakeVectors


@pytest.fixture(scope="session")
def vector_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("vector-redis"), password="geheim") as server:
        yield server


@pytest.fixture(scope="session")
def vector_milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusServer]:
    with MilvusServer(tmp_path_factory.mktemp("vector-milvus")) as server:
        yield server


@pytest.fixture(params=["embedded", "redis", "milvus"])
def address(request: pytest.FixtureRequest) -> str:
    """The address of an index that outlives who opens it."""
    if request.param == "embedded":
        return "embedded"
    server: RedisServer | MilvusServer = request.getfixturevalue(f"vector_{request.param}")
    return server.address


@pytest.fixture
def make(address: str, tmp_path: Path) -> MakeVectors:
    """Opens one more index on one place."""

    # An index that is slow since the machine is busy is not away.
    async def opened() -> Vectors:
        return await open_vectors(address, tmp_path, timeout=20.0)

    return opened
