"""The places that the store tests use: fresh ones in memory and in files, one server of each kind for all tests of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sits.ports.servers.postgres import PostgresServer
from sits.ports.servers.redis import RedisServer
from sits.ports.store import Store, open_store
from sits.ports.store.checks import MakeStore
from sits.ports.store.memory import MemoryStore, Shelf


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), password="geheim") as server:
        yield server


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with PostgresServer(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture(params=["sqlite", "redis", "postgresql"])
def address(request: pytest.FixtureRequest) -> str:
    """The address of a store that processes share."""
    if request.param == "sqlite":
        return "sqlite"
    server: RedisServer | PostgresServer = request.getfixturevalue({"redis": "redis", "postgresql": "postgres"}[request.param])
    return server.address


@pytest.fixture
def make(address: str, tmp_path: Path) -> MakeStore:
    """Opens another node on one place that outlives its nodes."""

    # A store that is slow since the machine is busy is not away.
    async def opened(wall: Callable[[], float] | None) -> Store:
        return await open_store(address, tmp_path, wall=wall, timeout=20.0)

    return opened


@pytest.fixture
def make_memory() -> MakeStore:
    shelf = Shelf()

    async def opened(wall: Callable[[], float] | None) -> Store:
        return MemoryStore(shelf=shelf) if wall is None else MemoryStore(wall, shelf=shelf)

    return opened
