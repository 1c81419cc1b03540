"""Vectors of cards on every vector port, and imported entries in a store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sits.inner.errors import Code, SitsError
from sits.ports.servers.milvus import MilvusServer
from sits.ports.servers.redis import RedisServer
from sits.ports.store import Put, open_store
from sits.ports.vectors import open_vectors
from sits.routing.registry import ServiceCard
from sits.state.registry.entries import PREFIX, Entries
from sits.state.registry.imported import MOST_ENTRIES
from sits.state.registry.index import Index


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with (
        RedisServer(tmp_path_factory.mktemp("registry-redis")) as redis,
        MilvusServer(tmp_path_factory.mktemp("registry-milvus")) as milvus,
    ):
        yield {"embedded": "embedded", "redis": redis.address, "milvus": milvus.address}


def axis(*numbers: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array([*numbers, *[0.0] * (4 - len(numbers))], dtype=np.float32)


@pytest.mark.parametrize("port", ["embedded", "redis", "milvus"])
def test_the_index_has_what_it_was_renewed_with_and_nothing_else(port: str, servers: dict[str, str], tmp_path: Path) -> None:
    async def story() -> None:
        index = Index(await open_vectors(servers[port], tmp_path, timeout=20.0), "e5:1", 4)
        try:
            await index.renew({"a": axis(1.0), "b": axis(1.0, 1.0), "旧": axis(0.0, 1.0)})
            found = await index.nearest(axis(1.0), 10)
            assert [(name, round(score, 3)) for name, score in found] == [("a", 1.0), ("b", 0.707), ("旧", 0.0)]
            await index.renew({"b": axis(0.0, 0.0, 1.0), "c": axis(1.0)})
            found = await index.nearest(axis(1.0), 10)
            assert [(name, round(score, 3)) for name, score in found] == [("c", 1.0), ("b", 0.0)]
            assert await index.nearest(axis(1.0), 0) == []
            await index.renew({})
            assert await index.nearest(axis(1.0), 10) == []
        finally:
            await index.aclose()

    asyncio.run(story())


def test_vectors_of_two_embedders_are_never_compared(tmp_path: Path) -> None:
    async def story() -> None:
        vectors = await open_vectors("embedded", tmp_path)
        one, two = Index(vectors, "e5:1", 4), Index(vectors, "e5:2", 4)
        await one.renew({"a": axis(1.0)})
        await two.renew({"b": axis(1.0)})
        assert [await index.nearest(axis(1.0), 10) for index in (one, two)] == [[("a", 1.0)], [("b", 1.0)]]
        await one.aclose()

    asyncio.run(story())


def test_entries_are_replaced_origin_by_origin(tmp_path: Path) -> None:
    async def story() -> None:
        store = await open_store("sqlite", tmp_path)
        entries = Entries(store)
        pay = ServiceCard("pay", domains=("退款",), origin="consul", address="http://a:1", healthy=True)
        mail = ServiceCard("MAIL", origin="eureka")
        assert await entries.replace("consul", [pay, ServiceCard("old", origin="consul")]) == 0
        assert await entries.replace("eureka", [mail]) == 0
        assert await entries.replace("consul", [pay]) == 1
        await store.commit([Put(f"{PREFIX}consul/broken", b"{")])
        assert await Entries(store).all() == [pay, mail]
        assert await entries.replace("consul", []) == 2
        assert await entries.all() == [mail]
        with pytest.raises(SitsError) as caught:
            await entries.replace("consul", [pay] * (MOST_ENTRIES + 1))
        assert caught.value.code is Code.TOO_LARGE
        await store.aclose()

    asyncio.run(story())
