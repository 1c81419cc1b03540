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


@pytest.mark.parametrize(
    ("there", "new", "gone"),
    [
        pytest.param("abcd", "", None, id="nothing: all would go"),
        pytest.param("a", "", None, id="nothing, of one"),
        pytest.param("a", "b", None, id="another, of one"),
        pytest.param("abcd", "dxyz", None, id="as many, and three of four are others"),
        pytest.param("abcd", "cd", 2, id="half may go"),
        pytest.param("abcde", "abcdef", 0, id="one more"),
        pytest.param("", "", 0, id="nothing where nothing was"),
        pytest.param("", "abc", 0, id="the first import"),
    ],
)
def test_what_would_remove_more_than_half_is_refused_with_figures_until_it_is_meant(
    there: str, new: str, gone: int | None, tmp_path: Path
) -> None:
    async def story() -> None:
        store = await open_store("sqlite", tmp_path)
        entries = Entries(store)
        before, after = ([ServiceCard(name, origin="consul") for name in listed] for listed in (there, new))
        mail = ServiceCard("MAIL", origin="eureka")
        await entries.replace("eureka", [mail])
        await entries.replace("consul", before)
        if gone is None:
            with pytest.raises(SitsError) as caught:
                await entries.replace("consul", after)
            removed = len(set(there) - set(new))
            assert (caught.value.code, caught.value.param) == (Code.CONFLICT, "allow_removal")
            assert caught.value.message.startswith(f"{removed} of the {len(there)} entries that came from consul")
            assert await entries.all() == [*before, mail]
            assert await entries.replace("consul", after, allow_removal=True) == removed
        else:
            assert await entries.replace("consul", after) == gone
        assert await entries.all() == [*after, mail]
        await store.aclose()

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
        assert await entries.replace("consul", [], allow_removal=True) == 2
        assert await entries.all() == [mail]
        with pytest.raises(SitsError) as caught:
            await entries.replace("consul", [pay] * (MOST_ENTRIES + 1))
        assert caught.value.code is Code.TOO_LARGE
        await store.aclose()

    asyncio.run(story())
