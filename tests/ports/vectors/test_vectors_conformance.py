"""Every adapter passes every check, and answers random scripts as the exact one does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sits.ports.servers.redis import RedisServer
from sits.ports.vectors import Clause, Item, Scalar, Vectors, open_vectors
from sits.ports.vectors.checks import CHECKS, LASTING, Check, MakeVectors, Step, clustered, compare
from sits.ports.vectors.memory import MemoryVectors


@pytest.mark.parametrize("check", CHECKS + LASTING, ids=lambda check: check.__name__)
def test_an_adapter_conforms(check: Check, make: MakeVectors) -> None:
    asyncio.run(check(make))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_fake_conforms(check: Check) -> None:
    async def made() -> Vectors:
        return MemoryVectors()

    asyncio.run(check(made))


_PARTS = st.sampled_from(["p", "租户"])
_IDS = st.sampled_from(["a", "b", "c", "中", "文"])
_FIELDS = st.sampled_from(["n", "语"])
_TEXTS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=4)
_NUMBERS = st.integers(-3, 3) | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)
_ORDERED: st.SearchStrategy[Scalar] = st.sampled_from(["中文", "en", ""]) | _TEXTS | _NUMBERS
_VALUES: st.SearchStrategy[Scalar] = _ORDERED | st.booleans()
_VECTORS = st.lists(st.integers(-3, 3), min_size=3, max_size=3).filter(any).map(lambda row: np.array(row, dtype=np.float32))
_ITEMS = st.builds(Item, _IDS, _VECTORS, st.dictionaries(_FIELDS, _VALUES, max_size=2))
_CLAUSES = (
    st.builds(Clause, _FIELDS, st.sampled_from(["eq", "ne"]), _VALUES)
    | st.builds(Clause, _FIELDS, st.sampled_from(["lt", "le", "gt", "ge"]), _ORDERED)
    | st.builds(Clause, _FIELDS, st.just("in"), st.lists(_VALUES, max_size=3).map(tuple))
)
_STEPS = st.one_of(
    st.builds(Step, st.just("put"), _PARTS, items=st.lists(_ITEMS, max_size=4).map(tuple)),
    st.builds(Step, st.just("delete"), _PARTS, ids=st.lists(_IDS, max_size=2).map(tuple)),
    st.builds(Step, st.just("drop"), _PARTS),
    *[
        st.builds(
            Step,
            st.just("search"),
            _PARTS,
            vector=_VECTORS,
            k=st.integers(1, 6),
            floor=st.sampled_from([-1.0, 0.0, 0.5]),
            where=st.lists(_CLAUSES, max_size=2).map(tuple),
        )
    ]
    * 3,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(_STEPS, min_size=4, max_size=14))
def test_an_adapter_answers_as_the_exact_one_does(make: MakeVectors, steps: Sequence[Step]) -> None:
    async def play() -> None:
        index, exact = await make(), MemoryVectors()
        try:
            await index.drop("likeness", "p")
            await index.drop("likeness", "租户")
            for one in (index, exact):
                await one.create("likeness", 3)
            await compare(index, exact, "likeness", steps)
        finally:
            await index.aclose()

    asyncio.run(play())


def test_a_partition_that_redis_searches_by_its_graph_is_found_too(vector_redis: RedisServer, tmp_path: Path) -> None:
    rows = clustered(3300, 16, seed=4)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)

    async def play() -> None:
        index = await open_vectors(vector_redis.address, tmp_path, timeout=20.0)
        await index.drop("large")
        await index.create("large", 16)
        await index.upsert("large", "p", [Item(f"{n:04}", row, {"n": n}) for n, row in enumerate(rows)])
        # The first search learns the size.
        await index.search("large", "p", rows[0], k=1)
        right = 0
        for number in range(0, 3300, 33):
            hits = await index.search("large", "p", rows[number], k=5)
            assert (hits[0].id, hits[0].score) == (f"{number:04}", 1.0)
            right += len({hit.id for hit in hits} & {f"{n:04}" for n in np.argsort(-(units @ units[number]))[:5]})
        assert right >= 0.95 * 500, f"{right} of 500"
        days = [Clause("n", "ge", 3298), Clause("n", "ge", 1e-9)]
        assert sorted(hit.id for hit in await index.search("large", "p", rows[0], k=5, where=days)) == ["3298", "3299"]
        await index.drop("large")
        await index.aclose()

    asyncio.run(play())
