"""The same sessions over every store that nodes share, with real servers; and killed nodes."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions_kit import RULES, TENANT

from sits.ports.bus.memory import MemoryBus
from sits.ports.servers.redis import RedisServer
from sits.ports.store import open_store
from sits.state.sessions import Committed, ContextDelta, Sessions, Terms, open_pending
from sits.state.sessions.audit import audit
from sits.state.sessions.killing import Killed, Killing

TERMS = Terms(snapshot_every=5, recent=2)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["sqlite", "redis"])
def address(request: pytest.FixtureRequest) -> str:
    return "sqlite" if request.param == "sqlite" else str(request.getfixturevalue("redis").address)


@asynccontextmanager
async def nodes(address: str, folder: Path, *names: str, timeout: float = 20.0) -> AsyncIterator[list[Sessions]]:  # noqa: ASYNC109
    """Nodes with a store connection each, one bus, and pending logs in one data folder."""
    bus = MemoryBus()
    made = []
    stores = [await open_store(address, folder, timeout=timeout) for _ in names]
    for name, store in zip(names, stores, strict=True):
        pending = await open_pending(folder, name, TERMS)
        made.append(Sessions(name, store, bus, pending, wall=time.time, token=lambda: os.urandom(12).hex(), terms=TERMS))
        await made[-1].start(beat=False)
    try:
        yield made
    finally:
        for sessions in made:
            await sessions.aclose()
        for store in stores:
            await store.aclose()


def test_nodes_share_a_session_over_a_real_store(address: str, tmp_path: Path) -> None:
    async def told() -> None:
        async with nodes(address, tmp_path, "a", "乙") as (a, b):
            session_id = (await a.create(TENANT, rules=RULES)).session_id

            async def talk(node: Sessions, who: str) -> list[str]:
                said, version = [], 0
                for number in itertools.count():
                    if len(said) == 12:
                        return said
                    id = f"{who}{number}"
                    delta = ContextDelta(
                        session_id, version + 1, {"said": json.dumps([id]).encode(), f"last/{who}": id.encode()}, id
                    )
                    answer = await node.commit(delta, TENANT)
                    if isinstance(answer, Committed):
                        said.append(id)
                        version = answer.version
                    else:
                        assert answer.reason == "forgotten"
                        version = (await node.read(session_id, TENANT, fresh=True)).version
                raise AssertionError

            spoken = await asyncio.gather(talk(a, "甲"), talk(b, "乙"))
            views = [await node.read(session_id, TENANT, fresh=True) for node in (a, b)]
            assert views[0].hash == views[1].hash
            heard = json.loads(views[0].context["said"])
            assert sorted(heard) == sorted([*spoken[0], *spoken[1]])
            assert [[one for one in heard if one[0] == who] for who in "甲乙"] == list(spoken)
            first = ContextDelta(session_id, 1, {"said": json.dumps(["甲0"]).encode(), "last/甲": "甲0".encode()}, "甲0")
            again = await b.commit(first, TENANT)
            assert isinstance(again, Committed)
            assert again.repeated
            found = await audit(a.chain.store, TERMS, now=time.time(), pending=a.pending)
            assert (found.faults, found.sessions >= 1, found.forks) == ([], True, views[0].forks)
            await a.remove(session_id, TENANT)
            assert await b.chain.store.get(f"session/h/{session_id}") is None

    asyncio.run(told())


def test_changes_wait_while_a_real_server_is_down_and_are_brought_in_when_it_is_back(tmp_path: Path) -> None:
    async def told(server: RedisServer) -> None:
        async with nodes(server.address, tmp_path / "data", "a", timeout=1.0) as (a,):
            session_id = (await a.create(TENANT, rules=RULES)).session_id
            kept = await a.commit(ContextDelta(session_id, 1, {"said": b"[1]"}), TENANT)
            server.kill()
            waits = await a.commit(ContextDelta(session_id, 2, {"said": b"[2]"}), TENANT)
            more = await a.commit(ContextDelta(session_id, 3, {"said": b"[3]"}), TENANT)
            states = [one.state for one in (kept, waits, more) if isinstance(one, Committed)]
            assert states == ["synced", "pending", "pending"]
        # The node has died as well; its log and the server's file are all that there is.
        server.start()
        async with nodes(server.address, tmp_path / "data", "a", timeout=20.0) as (a,):
            assert a.pending.count == 2
            assert await a.sync() == 0
            assert (await a.read(session_id, TENANT, fresh=True)).context == {"said": b"[1,2,3]"}
            assert (await audit(a.chain.store, TERMS, now=time.time(), pending=a.pending)).faults == []

    (tmp_path / "data").mkdir()
    with RedisServer(tmp_path / "redis") as server:
        asyncio.run(told(server))


_killings: list[Killing] = []


@pytest.fixture(scope="module")
def killing() -> Iterator[None]:
    with Killing() as one:
        _killings.append(one)
        yield
        _killings.clear()


@settings(max_examples=10, deadline=None)
@given(writers=st.integers(1, 2), acks=st.integers(0, 30), spin=st.integers(0, 3000), offline=st.booleans())
@pytest.mark.usefixtures("killing")
def test_what_a_killed_node_had_acknowledged_is_there_once(writers: int, acks: int, spin: int, offline: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        told = _killings[0].round(Path(folder), writers=writers, acks=acks, spin=spin, offline=offline)
    assert told == Killed(told.acknowledged, 0, 0, told.forks, ())
    assert told.acknowledged >= acks
