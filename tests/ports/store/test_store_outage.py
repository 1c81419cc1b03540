"""A server that is killed, started again, stopped or away: calls end in time, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from granted import Granted
from sits.inner.errors import Code, SitsError
from sits.ports.servers.postgres import PostgresServer
from sits.ports.servers.redis import RedisServer
from sits.ports.store import Add, Added, Put, Store, open_store
from sits.ports.store.checks import outcome, refusal

Server = RedisServer | PostgresServer

_TIMEOUT = 2.0
"""Seconds that a call has. A server that is well must answer within them too, on a machine that is busy."""


@pytest.fixture(scope="module", params=["redis", "postgresql"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of our own, since it is mistreated."""
    folder = tmp_path_factory.mktemp("outage")
    with RedisServer(folder, password="geheim") if request.param == "redis" else PostgresServer(folder) as server:
        assert isinstance(server, Server)
        yield server


async def failures(store: Store, key: str) -> list[SitsError]:
    calls = (store.get(key), store.scan(key), store.commit([Put(key, b"")]), store.add([Add(key, 1)]), store.commit([]))
    return await asyncio.gather(*map(refusal, calls))


def test_nothing_acknowledged_is_lost_when_the_server_is_killed(server: Server, tmp_path: Path) -> None:
    async def run() -> None:
        store = await open_store(server.address, tmp_path, timeout=20.0)
        acknowledged: dict[str, bytes] = {}
        totals: dict[str, int] = {}
        stop, enough, refused = asyncio.Event(), asyncio.Event(), 0

        async def write(lane: int) -> None:
            nonlocal refused
            number = 0
            while not stop.is_set():
                number += 1
                key = f"kill/{lane}/{number}"
                written = await outcome(store.commit([Put(key, key.encode())]))
                added = await outcome(store.add([Add(f"kill/{lane}", 1)]))
                if not isinstance(written, SitsError):
                    acknowledged[key] = key.encode()
                if isinstance(added, Added):
                    totals[f"kill/{lane}"] = added.totals[0]
                errors = [one.code for one in (written, added) if isinstance(one, SitsError)]
                assert set(errors) <= {Code.STATE_UNAVAILABLE}
                if errors:
                    refused += 1
                    await asyncio.sleep(0.01)  # as a gateway's requests would: not in a tight loop
                if len(acknowledged) % 50 == 0:
                    enough.set()

        writers = [asyncio.create_task(write(lane)) for lane in range(6)]
        for _ in range(2):
            enough.clear()
            await enough.wait()
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        before = len(acknowledged)
        while len(acknowledged) < before + 20:  # the writers go on by themselves
            enough.clear()
            await asyncio.wait_for(enough.wait(), 60.0)
        stop.set()
        await asyncio.gather(*writers)
        assert refused > 0
        for key, value in acknowledged.items():
            entry = await store.get(key)
            assert entry is not None, key
            assert entry.value == value
        for key, total in totals.items():
            assert (await store.add([Add(key, 0)])).totals[0] >= total, key
        await store.aclose()

    asyncio.run(run())


def test_after_a_restart_the_next_call_works(server: Server, tmp_path: Path) -> None:
    async def run() -> None:
        store = await open_store(server.address, tmp_path, timeout=20.0)
        versions = [await store.commit([Put("restart", b"1")])]
        for is_loop_held in (False, True):
            await asyncio.gather(*(store.get("restart") for _ in range(5)))  # several connections
            if is_loop_held:  # as a process that was itself stopped: it has heard nothing
                server.kill()
                server.start()
            else:
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            versions.append(await store.commit([Put("restart", b"2", expect=versions[-1])]))
            assert await store.add([Add("restart", 0)])
        assert versions == sorted(set(versions))
        await store.aclose()

    asyncio.run(run())


def test_a_stopped_server_holds_nobody_longer_than_agreed(server: Server, tmp_path: Path) -> None:
    async def run() -> None:
        store = await open_store(server.address, tmp_path, timeout=_TIMEOUT)
        fresh = await open_store(server.address, tmp_path, timeout=_TIMEOUT)
        await store.commit([Put("paused", b"1")])
        server.pause()
        try:
            async with Granted() as waited:
                errors, first = await asyncio.gather(failures(store, "paused"), refusal(fresh.get("paused")))
            assert waited.seconds < _TIMEOUT + 0.3
        finally:
            server.resume()
        for error in (*errors, first):
            assert error.code is Code.STATE_UNAVAILABLE
            assert f"127.0.0.1:{server.port}" in error.message
            assert store.name in error.message
            assert server.password not in error.message
        for node in (store, fresh):
            assert await node.get("paused") is not None
            assert await node.commit([Put("paused", b"2")])
        await store.aclose()
        await fresh.aclose()

    asyncio.run(run())


def test_a_server_that_is_away_is_said_to_be_at_once_and_used_when_it_comes(server: Server, tmp_path: Path) -> None:
    async def run() -> None:
        server.stop()
        store = await open_store(server.address, tmp_path, timeout=20.0)
        try:
            async with Granted() as waited:
                errors = await failures(store, "away")
            assert waited.seconds < 1.0
        finally:
            await asyncio.to_thread(server.start)
        for error in errors:
            assert error.code is Code.STATE_UNAVAILABLE
            assert server.password not in error.message
        version = await store.commit([Put("away", b"1")])
        entry = await store.get("away")
        assert entry is not None
        assert (entry.value, entry.version) == (b"1", version)
        await store.aclose()

    asyncio.run(run())


def test_a_wrong_password_is_no_secret_but_the_right_one_is(server: Server, tmp_path: Path) -> None:
    async def run() -> None:
        store = await open_store(server.address.replace(server.password, "falsch"), tmp_path)
        error = await refusal(store.get("a"))
        assert error.code is Code.STATE_UNAVAILABLE
        assert "falsch" not in error.message
        await store.aclose()

    asyncio.run(run())
