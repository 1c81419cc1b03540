"""The index of examples, on every adapter that keeps anything: it has what is declared and no more, and says who is near."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from sits.inner.errors import Code, SitsError
from sits.ports.servers.milvus import MilvusServer
from sits.ports.servers.redis import RedisServer
from sits.ports.vectors import Vectors, open_vectors
from sits.ports.vectors.memory import MemoryVectors
from sits.routing.intent.votes import VOTERS, tally
from sits.state.intent.material import Example, Material
from sits.state.intent.nearest import SHOWN, Near, Nearest


@pytest.fixture(scope="module")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusServer]:
    with MilvusServer(tmp_path_factory.mktemp("intent-milvus")) as server:
        yield server


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("intent-redis")) as server:
        yield server


@pytest.fixture(params=["embedded", "redis", "milvus"])
def address(request: pytest.FixtureRequest) -> str:
    if request.param == "embedded":
        return "embedded"
    server: RedisServer | MilvusServer = request.getfixturevalue(request.param)
    return server.address


def given(*examples: tuple[str, str | None]) -> Material:
    names = sorted({domain for _, domain in examples if domain is not None})
    return Material(tuple(names), (None,) * len(names), tuple(Example(text, domain) for text, domain in examples))


def rows(*angles: float) -> np.ndarray:
    """Unit vectors at angles."""
    return np.array([[np.cos(angle), np.sin(angle), 0.0] for angle in angles], dtype=np.float32)


def test_the_index_follows_what_is_declared(address: str, tmp_path: Path) -> None:
    async def story() -> None:
        vectors = await open_vectors(address, tmp_path, timeout=20.0)
        try:
            nearest = Nearest(vectors, "multilingual-e5-small:1571fc98", 3)
            first = given(("房东不退押金", "law"), ("sue", "law"), ("hello", None))
            assert await nearest.keep(first, rows(0.0, 0.5, 1.0)) == (3, 0)
            assert await nearest.keep(first, rows(0.0, 0.5, 1.0)) == (0, 0)
            found = await nearest.near(rows(0.1)[0], 2)
            assert [(one.domain, one.text) for one in found] == [("law", "房东不退押金"), ("law", "sue")]
            assert found[0].cosine == pytest.approx(np.cos(0.1), abs=0.01)
            # Another gateway that serves by the next configuration: one example goes, one comes, one is of another domain now.
            other = Nearest(vectors, "multilingual-e5-small:1571fc98", 3)
            after = given(("房东不退押金", "law"), ("sue", "court"), ("integral", "maths"))
            assert await other.keep(after, rows(0.0, 0.5, 0.3)) == (2, 2)
            assert {(one.domain, one.text) for one in await nearest.near(rows(0.4)[0], 10)} == {
                ("law", "房东不退押金"),
                ("court", "sue"),
                ("maths", "integral"),
            }
        finally:
            await vectors.drop("level_multilingual_e5_small_1571fc98")
            await vectors.aclose()

    asyncio.run(story())


def test_votes_of_the_index_are_those_of_the_examples_in_memory(address: str, tmp_path: Path) -> None:
    async def story() -> None:
        chance = np.random.default_rng(4)
        embeddings = chance.normal(size=(60, 8)).astype(np.float32)
        embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
        material = given(*((f"example {at}", ("a", "b", None)[at % 3]) for at in range(60)))
        vectors = await open_vectors(address, tmp_path, timeout=20.0)
        try:
            nearest = Nearest(vectors, "votes", 8)
            await nearest.keep(material, embeddings)
            question = embeddings[7] + 0.1 * embeddings[8]
            question /= np.linalg.norm(question)
            votes = await nearest.votes(question)
            assert len(votes) == VOTERS
            columns = np.array([{"a": 0, "b": 1, None: 2}[domain] for domain, _ in votes])
            own = tally(np.ones((1, 1), dtype=np.float32), np.array([[cosine] for _, cosine in votes], np.float32), columns, 3)
            assert own == pytest.approx(tally(question[None], embeddings, material.labels(), 3), abs=0.05)
        finally:
            await vectors.drop("level_votes")
            await vectors.aclose()

    asyncio.run(story())


def test_a_large_set_is_written_in_pieces_and_a_long_text_is_shown_in_part() -> None:
    class Counting(MemoryVectors):
        pieces: list[int] = []  # noqa: RUF012

        async def upsert(self, collection: str, partition: str, items: Sequence[object]) -> None:
            Counting.pieces.append(len(items))
            await super().upsert(collection, partition, items)  # type: ignore[arg-type]

    async def story() -> None:
        vectors: Vectors = Counting()
        nearest = Nearest(vectors, "m", 3)
        many = given(*((f"{at}" + "甲" * 5000, "a") for at in range(1100)))
        assert await nearest.keep(many, rows(*np.linspace(0, 1, 1100))) == (1100, 0)
        assert Counting.pieces == [500, 500, 100]
        (found,) = await nearest.near(rows(-0.5)[0], 1)
        assert found == Near("a", "0" + "甲" * (SHOWN - 1), pytest.approx(np.cos(0.5), abs=1e-5))
        assert await nearest.keep(given(("a", "a")), rows(0.0)) == (1, 1100)

    asyncio.run(story())


def test_an_index_that_is_away_says_so() -> None:
    async def story() -> None:
        vectors = MemoryVectors()
        vectors.away = True
        nearest = Nearest(vectors, "m", 3)
        for call in (nearest.keep(given(("a", "a")), rows(0.0)), nearest.near(rows(0.0)[0])):
            with pytest.raises(SitsError) as caught:
                await call
            assert caught.value.code is Code.STATE_UNAVAILABLE

    asyncio.run(story())


def test_examples_of_two_models_lie_apart_whatever_their_names_and_sizes(address: str, tmp_path: Path) -> None:
    async def story() -> None:
        vectors = await open_vectors(address, tmp_path, timeout=20.0)
        try:
            long = "m" * 40
            models = ((f"3_0123456789abcdef-{long}", 3), (f"4_0123456789abcdef-{long}", 4), (f"3_fedcba9876543210-{long}", 3))
            apart = [Nearest(vectors, name, size) for name, size in models]
            for at, (_, size) in enumerate(models):
                row = np.zeros((1, size), dtype=np.float32)
                row[0, at % size] = 1.0
                assert await apart[at].keep(given((f"text {at}", "law")), row) == (1, 0)
            for at, (_, size) in enumerate(models):
                found = await apart[at].near(np.eye(size, dtype=np.float32)[at % size], 5)
                assert [(one.text, round(one.cosine, 2)) for one in found] == [(f"text {at}", 1.0)]
        finally:
            await vectors.aclose()

    asyncio.run(story())
