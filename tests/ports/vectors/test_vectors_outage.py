"""Servers that die, hang and come back; files that others hold or that are damaged."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from granted import Granted
from sits.inner.errors import Code, SitsError
from sits.ports.servers import ServerProcess
from sits.ports.servers.milvus import MilvusServer
from sits.ports.servers.redis import RedisServer
from sits.ports.vectors import Item, Vectors, open_vectors
from sits.ports.vectors.checks import X, Y, refusal, vector

_TIMEOUT = 2.0
"""Seconds that a call has. A server that is well must answer within them too, on a machine that is busy."""
_SLACK = 1.0


async def trouble(call: Awaitable[object]) -> Code | None:
    try:
        await call
    except SitsError as error:
        return error.code
    return None


async def recovered(index: Vectors) -> None:
    """Until a call is answered again; a server that has just come back may refuse a few."""
    async with asyncio.timeout(60.0):
        while (code := await trouble(index.count("c", "p"))) is not None:
            assert code is Code.STATE_UNAVAILABLE
            await asyncio.sleep(0.05)


async def is_away(index: Vectors, seconds: float) -> None:
    """Every call says so, and none takes longer than it may."""
    async with Granted() as waited:
        codes = await asyncio.gather(
            trouble(index.create("d", 3)),
            trouble(index.upsert("c", "p", [Item("x", X)])),
            trouble(index.search("c", "p", X, k=1)),
            trouble(index.get("c", "p", ["x"])),
            trouble(index.delete("c", "p", ["never"])),
            trouble(index.ids("c", "p")),
            trouble(index.count("c", "p")),
            trouble(index.partitions("c")),
            trouble(index.drop("d")),
        )
    assert codes == [Code.STATE_UNAVAILABLE] * 9
    assert waited.seconds < seconds + _SLACK


def _redis(folder: Path) -> tuple[ServerProcess, str]:
    server = RedisServer(folder, password="geheim")
    return server, server.address


def _milvus(folder: Path) -> tuple[ServerProcess, str]:
    server = MilvusServer(folder)
    return server, server.address


@pytest.mark.parametrize("start", [_redis, _milvus], ids=["redis", "milvus"])
def test_a_server_that_is_killed_and_started_again_has_all_that_was_acknowledged(
    start: Callable[[Path], tuple[ServerProcess, str]], tmp_path: Path
) -> None:
    async def play(server: ServerProcess, index: Vectors, seconds: float) -> None:
        await index.create("c", 3)
        acknowledged: list[str] = []
        enough = asyncio.Event()

        async def write() -> None:
            while len(acknowledged) < 10_000:
                key = f"id {len(acknowledged):05}"
                await index.upsert("c", "p", [Item(key, vector(1, len(acknowledged), 0), {"n": len(acknowledged)})])
                acknowledged.append(key)
                if len(acknowledged) == 30:
                    enough.set()

        writer = asyncio.create_task(write())
        await asyncio.wait_for(enough.wait(), 60.0)
        server.kill()
        (ended,) = await asyncio.gather(writer, return_exceptions=True)
        assert isinstance(ended, SitsError), ended
        assert ended.code is Code.STATE_UNAVAILABLE
        assert "geheim" not in ended.message
        await is_away(index, seconds)
        await asyncio.to_thread(server.start)
        await recovered(index)
        # The write that was cut off may have happened.
        kept = await index.ids("c", "p", limit=10_000)
        assert [key for key in kept if key in set(acknowledged)] == acknowledged
        assert len(kept) <= len(acknowledged) + 1
        (hit,) = await index.search("c", "p", vector(1, 7, 0), k=1)
        assert (hit.id, dict(hit.fields)) == ("id 00007", {"n": 7})
        await index.upsert("c", "p", [Item("after", Y)])
        assert await index.get("c", "p", ["after"]) != [None]

    async def run(server: ServerProcess, address: str) -> None:
        seconds = 5.0
        index = await open_vectors(address, tmp_path, timeout=seconds)
        try:
            await play(server, index, seconds)
        finally:
            await index.aclose()

    server, address = start(tmp_path / "server")
    with server:
        asyncio.run(run(server, address))


def test_a_server_that_hangs_is_given_up_in_time_and_is_used_again_when_it_goes_on(tmp_path: Path) -> None:
    async def play(server: ServerProcess, address: str) -> None:
        index = await open_vectors(address, tmp_path, timeout=_TIMEOUT)
        await index.create("c", 3)
        await index.upsert("c", "p", [Item("a", X)])
        server.pause()
        calls = (index.search("c", "p", X, k=1), index.upsert("c", "p", [Item("b", Y)]))
        async with Granted() as waited:
            errors = await asyncio.gather(*map(refusal, calls))
        assert waited.seconds < _TIMEOUT + _SLACK
        assert [error.code for error in errors] == [Code.STATE_UNAVAILABLE] * 2
        server.resume()
        await recovered(index)
        (hit,) = await index.search("c", "p", X, k=1)
        assert (hit.id, hit.score) == ("a", 1.0)
        await index.aclose()

    server, address = _redis(tmp_path / "server")
    with server:
        asyncio.run(play(server, address))


def test_a_file_that_another_process_holds_is_waited_for_in_time_and_searches_go_on(tmp_path: Path) -> None:
    async def play() -> None:
        index = await open_vectors("embedded", tmp_path, timeout=_TIMEOUT)
        await index.create("c", 3)
        await index.upsert("c", "p", [Item("a", X)])
        other = sqlite3.connect(tmp_path / "vectors" / "items.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        async with Granted() as waited:
            error = await refusal(index.upsert("c", "p", [Item("b", Y)]))
        assert error.code is Code.STATE_UNAVAILABLE
        assert waited.seconds < _TIMEOUT + _SLACK
        assert [hit.id for hit in await index.search("c", "p", X, k=5)] == ["a"]
        other.execute("ROLLBACK")
        other.close()
        await recovered(index)
        await index.upsert("c", "p", [Item("b", Y)])
        assert [hit.id for hit in await index.search("c", "p", X, k=5)] == ["a", "b"]
        await index.aclose()

    asyncio.run(play())


@pytest.mark.parametrize("damage", ["not a database", "a newer version", "a folder that is a file"])
def test_what_is_wrong_with_the_files_is_told(damage: str, tmp_path: Path) -> None:
    async def play() -> None:
        index = await open_vectors("embedded", tmp_path)
        await index.create("c", 3)
        await index.aclose()
        file = tmp_path / "vectors" / "items.db"
        data = tmp_path
        if damage == "not a database":
            file.write_bytes(b"x" * 8192)
        elif damage == "a newer version":
            with sqlite3.connect(file, isolation_level=None) as connection:
                connection.execute("PRAGMA user_version = 99")
            connection.close()
        else:
            data = tmp_path / "data"
            data.mkdir()
            (data / "vectors").write_bytes(b"")
        error = await refusal(open_vectors("embedded", data))
        assert error.code is Code.STATE_UNAVAILABLE
        wanted = {
            "not a database": "move it away",
            "a newer version": "use a newer sits",
            "a folder that is a file": "Not a directory",
        }
        assert wanted[damage] in error.message
        assert str(data / "vectors") in error.message

    asyncio.run(play())


def test_pages_that_were_damaged_are_told_by_the_call_that_meets_them(tmp_path: Path) -> None:
    async def play() -> None:
        index = await open_vectors("embedded", tmp_path)
        await index.create("c", 3)
        await index.upsert("c", "p", [Item(f"{n:04}", X, {"text": "x" * 200}) for n in range(2000)])
        await index.aclose()
        file = tmp_path / "vectors" / "items.db"
        raw = bytearray(file.read_bytes())
        raw[16 * 4096 :] = bytes(len(raw) - 16 * 4096)
        file.write_bytes(raw)
        index = await open_vectors("embedded", tmp_path)
        error = await refusal(index.search("c", "p", X, k=1))
        assert error.code is Code.STATE_UNAVAILABLE
        assert "the file is damaged: move it away" in error.message
        await index.aclose()

    asyncio.run(play())
