"""Addresses, and what is said about those that cannot be opened."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sits.inner.errors import Code, SitsError
from sits.ports.servers.redis import RedisServer
from sits.ports.vectors import ADAPTERS, Clause, Item, Vectors, open_vectors
from sits.ports.vectors.checks import X, Y, names, refusal
from sits.ports.vectors.memory import MemoryVectors


def test_what_milvus_needs_writes_no_lines_of_its_own_and_a_verbosity_that_is_set_stays() -> None:
    look = (
        "import os, logging, sits.ports.vectors.milvus; names = ('pymilvus', 'pymilvus.milvus_client', 'pymilvus.bulk_writer');"
        "loggers = [logging.getLogger(name) for name in names];"
        "print(os.environ['GRPC_VERBOSITY'], [one.handlers for one in loggers], [one.propagate for one in loggers])"
    )
    plain = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    for environment, verbosity in ((plain, "NONE"), ({**plain, "GRPC_VERBOSITY": "ERROR"}, "ERROR")):
        done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, env=environment, timeout=60)
        assert (done.stdout, done.stderr) == (f"{verbosity} [[], [], []] [True, True, True]\n", "")


def opened(address: str, data: Path, **more: object) -> str:
    """The name of what was opened, closed again."""

    async def play() -> str:
        index = await open_vectors(address, data, **more)  # type: ignore[arg-type]
        await index.aclose()
        return index.name

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("memory", "memory"),
        ("embedded", "embedded"),
        ("redis://127.0.0.1:1/0", "redis"),
        ("rediss://user:geheim@example.org:1", "redis"),
        ("milvus://127.0.0.1:1", "milvus"),
        ("milvus://user:geheim@[::1]:1", "milvus"),
        ("milvus:/nowhere/vectors.db", "milvus"),
    ],
)
def test_an_address_names_its_adapter_and_no_server_is_asked(address: str, name: str, tmp_path: Path) -> None:
    assert opened(address, tmp_path) == name


@pytest.mark.parametrize(
    "address",
    [
        "",
        "faiss",
        "memory:x",
        "embedded://x",
        "redis",
        "redis:x",
        "http://127.0.0.1:1",
        "milvus",
        "milvus://",
        "milvus:/a.txt",
        "milvus://h:x",
    ],
)
def test_an_address_that_is_none_is_refused_with_what_it_may_be(address: str, tmp_path: Path) -> None:
    with pytest.raises(SitsError, match="wanted") as caught:
        opened(address, tmp_path)
    assert (caught.value.code, caught.value.param) == (Code.INVALID_REQUEST, "vectors")


def test_a_namespace_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SitsError, match="namespace"):
        opened("memory", tmp_path, namespace="a:b")


def test_a_missing_extra_is_named_with_the_command_that_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme, (_, extra) in sorted(ADAPTERS.items()):
        monkeypatch.setitem(ADAPTERS, scheme, ("a_package_that_is_not_installed:opener", extra))
        with pytest.raises(SitsError) as caught:
            opened(f"{scheme}://user:geheim@h:1", tmp_path)
        assert caught.value.code is Code.UNSUPPORTED
        assert caught.value.message.endswith(f"a_package_that_is_not_installed: pip install 'sits[{extra}]'")
        assert "geheim" not in caught.value.message


def test_the_port_costs_no_numpy_until_an_index_is_opened() -> None:
    code = "import sys, sits.ports.vectors; print([m for m in ('numpy', 'redis', 'pymilvus', 'usearch') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert (ran.stdout.strip(), ran.stderr) == ("[]", "")


def test_an_embedded_index_without_its_graphs_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    code = (
        "import asyncio, pathlib, sys, importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'usearch' else find(name, *rest)\n"
        "from sits.ports.vectors import open_vectors\n"
        "asyncio.run(open_vectors('embedded', pathlib.Path(sys.argv[1])))"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert "the vectors embedded need usearch: pip install 'sits[local]'" in ran.stderr


def test_two_namespaces_on_one_server_do_not_meet(vector_redis: RedisServer, tmp_path: Path) -> None:
    async def play() -> None:
        one = await open_vectors(vector_redis.address, tmp_path, timeout=20.0, namespace="one")
        two = await open_vectors(vector_redis.address, tmp_path, timeout=20.0, namespace="two")
        await one.create("apart", 3)
        await two.create("apart", 2)
        await one.upsert("apart", "p", [Item("a", X)])
        assert await two.ids("apart", "p") == []
        for index in (one, two):
            await index.drop("apart")
            await index.aclose()

    asyncio.run(play())


@pytest.mark.parametrize("address", ["memory", "embedded"])
def test_a_collection_that_is_full_refuses_new_items_and_takes_new_values_of_old_ones(address: str, tmp_path: Path) -> None:
    async def play(index: Vectors) -> None:
        await index.create("c", 3)
        await index.upsert("c", "p", [Item("a", X), Item("b", X)])
        error = await refusal(index.upsert("c", "q", [Item("c", X), Item("d", X)]))
        assert (error.code, error.param) == (Code.TOO_LARGE, "items")
        assert "3" in error.message
        assert await index.partitions("c") == ["p"]
        await index.upsert("c", "p", [Item("a", Y)])
        await index.upsert("c", "q", [Item("c", X)])
        await index.delete("c", "p", ["a"])
        await index.upsert("c", "p", [Item("d", X)])
        assert await index.ids("c", "p") == ["b", "d"]
        await index.drop("c", "p")
        await index.upsert("c", "q", [Item("e", X), Item("f", X)])
        assert (await refusal(index.upsert("c", "q", [Item("g", X)]))).code is Code.TOO_LARGE
        await index.aclose()

    asyncio.run(_with(address, tmp_path, play))


async def _with(address: str, data: Path, play: object) -> None:
    await play(await open_vectors(address, data, timeout=20.0, most=3))  # type: ignore[operator]


def test_a_fake_that_is_away_says_so_and_has_lost_nothing_when_it_is_back() -> None:
    async def play() -> None:
        index = MemoryVectors()
        await index.create("c", 3)
        await index.upsert("c", "p", [Item("a", X, {"n": 1})])
        index.away = True
        for call in (index.search("c", "p", X, k=1), index.upsert("c", "p", [Item("b", X)]), index.flush()):
            assert (await refusal(call)).code is Code.STATE_UNAVAILABLE
        index.away = False
        assert names(await index.search("c", "p", X, k=3, where=[Clause("n", "eq", 1)])) == ["a"]
        (item,) = await index.get("c", "p", ["a"])
        assert item is not None
        np.testing.assert_array_equal(item.vector, X)

    asyncio.run(play())
