"""Large partitions: the graph finds what comparing finds, whatever is written meanwhile; its file may be damaged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from sits.ports.vectors import Clause, Item
from sits.ports.vectors.checks import clustered, names
from sits.ports.vectors.embedded import EmbeddedVectors
from sits.ports.vectors.graph import Graph

_COUNT, _DIMENSION = 5000, 256
_EXACT = 200_000
"""Floats: the partition of these tests has 1.3 million."""

_ROWS = clustered(_COUNT, _DIMENSION, seed=11)
_UNITS = _ROWS / np.linalg.norm(_ROWS, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the partition and the file of its graph."""
    data = tmp_path_factory.mktemp("planted")

    async def play() -> None:
        index = await EmbeddedVectors.open(data, timeout=30.0, exact=_EXACT)
        await index.create("c", _DIMENSION)
        await index.upsert("c", "p", [Item(f"{n:04}", row, {"n": n, "third": n % 3 == 0}) for n, row in enumerate(_ROWS)])
        await has_graph(index, _COUNT)
        await index.aclose()

    asyncio.run(play())
    return data


@pytest.fixture
def data(planted: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    folder = tmp_path / "vectors"
    folder.mkdir()
    for file in (planted / "vectors").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return tmp_path


async def has_graph(index: EmbeddedVectors, size: int) -> None:
    async with asyncio.timeout(60.0):
        while index.graph_size("c", "p") < size:
            await index.search("c", "p", _ROWS[0], k=1)
            await asyncio.sleep(0.02)


async def recall(index: EmbeddedVectors, *where: Clause, alive: np.ndarray | None = None) -> float:
    right = total = 0
    for number in range(0, _COUNT, 100):
        scores = _UNITS @ _UNITS[number]
        if alive is not None:
            scores = np.where(alive, scores, -2.0)
        best = {f"{n:04}" for n in np.argsort(-scores)[:5]}
        found = names(await index.search("c", "p", _ROWS[number], k=5, where=where))
        right += len(best & set(found))
        total += 5
    return right / total


def test_a_graph_finds_the_nearest_and_filters_exactly(planted: Path) -> None:
    async def play() -> None:
        index = await EmbeddedVectors.open(planted, timeout=30.0, exact=_EXACT)
        await has_graph(index, _COUNT)
        assert await recall(index) >= 0.98
        multiples = np.arange(_COUNT) % 3 == 0
        assert await recall(index, Clause("third", "eq", True), alive=multiples) >= 0.98
        few = [Clause("n", "in", (1, 2, 4999))]
        assert sorted(names(await index.search("c", "p", _ROWS[0], k=5, where=few))) == ["0001", "0002", "4999"]
        # A floor under which the graph has looked: it need not be asked for more.
        (hit,) = await index.search("c", "p", _ROWS[3], k=5, floor=0.999)
        assert (hit.id, hit.score) == ("0003", 1.0)
        assert len(await index.search("c", "p", _ROWS[3], k=1000)) == 1000
        await index.aclose()

    asyncio.run(play())


def test_what_is_written_after_the_graph_was_made_is_seen_at_once(data: Path) -> None:
    async def play() -> None:
        index = await EmbeddedVectors.open(data, timeout=30.0, exact=_EXACT)
        await has_graph(index, _COUNT)
        alive = np.ones(_COUNT, dtype=bool)
        gone = list(range(0, _COUNT, 4))
        alive[gone] = False
        await index.delete("c", "p", [f"{n:04}" for n in gone])
        assert await recall(index, alive=alive) >= 0.98
        assert names(await index.search("c", "p", _ROWS[4], k=1, floor=0.9999)) == []
        await index.upsert("c", "p", [Item(f"new {n}", _ROWS[n], {"new": True}) for n in gone[:100]])
        await index.upsert("c", "p", [Item("0001", -_ROWS[1], {"n": -1})])
        for n in gone[:100]:
            assert names(await index.search("c", "p", _ROWS[n], k=1)) == [f"new {n}"]
        (hit,) = await index.search("c", "p", -_ROWS[1], k=1)
        assert (hit.id, dict(hit.fields)) == ("0001", {"n": -1})
        assert "0001" not in names(await index.search("c", "p", _ROWS[1], k=5))
        # Enough new ones for the graph to take them in.
        more = clustered(900, _DIMENSION, seed=12)
        await index.upsert("c", "p", [Item(f"more {n}", row) for n, row in enumerate(more)])
        await has_graph(index, 4700)
        for n in range(0, 900, 30):
            assert names(await index.search("c", "p", more[n], k=1)) == [f"more {n}"]
        assert await recall(index, Clause("n", "ge", 0), alive=alive & (np.arange(_COUNT) != 1)) >= 0.98
        await index.aclose()

    asyncio.run(play())


@pytest.mark.parametrize("damage", ["none", "cut", "one bit", "not ours", "another dimension"])
def test_a_graph_is_read_from_its_file_only_when_that_is_whole(data: Path, damage: str) -> None:
    (path,) = (data / "vectors").glob("*.graph")
    raw = bytearray(path.read_bytes())
    if damage == "cut":
        del raw[len(raw) // 2 :]
    elif damage == "one bit":
        raw[len(raw) // 2] ^= 1
    elif damage == "not ours":
        raw[:4] = b"SITS"
    path.write_bytes(raw)
    graph = Graph.load(path, 128 if damage == "another dimension" else _DIMENSION)
    assert (graph is not None) == (damage == "none")
    assert Graph.load(path.with_name("nothing"), _DIMENSION) is None
    if graph is not None:
        assert len(graph) == _COUNT


def test_a_graph_of_a_partition_that_is_dropped_goes_with_it_and_leftovers_are_swept(data: Path) -> None:
    async def play() -> None:
        folder = data / "vectors"
        (folder / "99.graph").write_bytes(b"of a partition that is no more")
        (folder / "1.graph.77.new").write_bytes(b"of a process that was killed")
        index = await EmbeddedVectors.open(data, timeout=30.0, exact=_EXACT)
        assert [file.name for file in folder.glob("*.graph*")] == ["1.graph"]
        await has_graph(index, _COUNT)
        await index.drop("c", "p")
        assert list(folder.glob("*.graph*")) == []
        assert await index.search("c", "p", _ROWS[0], k=1) == []
        await index.aclose()

    asyncio.run(play())


def test_one_process_makes_a_graph_and_another_takes_it_from_the_file(tmp_path: Path) -> None:
    async def play() -> None:
        one = await EmbeddedVectors.open(tmp_path, timeout=30.0, exact=20_000)
        two = await EmbeddedVectors.open(tmp_path, timeout=30.0, exact=20_000)
        await one.create("c", _DIMENSION)
        await one.upsert("c", "p", [Item(f"{n:04}", row) for n, row in enumerate(_ROWS[:600])])
        await has_graph(one, 600)
        await has_graph(two, 600)
        for index in (one, two):
            assert names(await index.search("c", "p", _ROWS[5], k=1)) == ["0005"]
            await index.aclose()

    asyncio.run(play())
