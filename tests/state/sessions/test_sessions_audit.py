"""The audit finds what is broken, and says nothing of what is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from sessions_kit import TENANT, World, refusal, story

from sits.cli.sync import sync
from sits.ports.store import Delete, Put, open_store
from sits.ports.store.memory import Away, MemoryStore
from sits.state.sessions import Terms, layout
from sits.state.sessions.audit import audit
from sits.state.sessions.shapes import Delta, Head, Snapshot

TERMS = Terms(snapshot_every=4, recent=2)


async def _grown(world: World) -> MemoryStore:
    """A session with a snapshot, deltas on both sides of it, and a fork."""
    for number in range(1, 6):
        await world.kept("a", number, f"{number}", said=b"[%d]" % number)
    await world.kept("b", 5, "fork", said=b'["f"]')
    assert (await world.audit()).faults == []
    return world.nodes["a"].store


async def _edit(store: MemoryStore, key: str, kind: type[Any], **changes: Any) -> None:
    entry = await store.get(key)
    assert entry is not None
    value = msgspec.msgpack.decode(entry.value, type=kind)
    await store.commit([Put(key, layout.encode(msgspec.structs.replace(value, **changes)))])


async def _take(store: MemoryStore, key: str) -> None:
    assert await store.get(key) is not None
    await store.commit([Delete(key)])


Damage = Callable[[MemoryStore, str, float], Any]
DAMAGE: dict[str, tuple[Damage, set[str]]] = {
    "a delta is gone": (lambda store, s, now: _take(store, layout.delta_key(s, 5)), {"hole", "hash"}),
    "the last delta is gone": (lambda store, s, now: _take(store, layout.delta_key(s, 6)), {"hole", "hash"}),
    "a delta says something else": (
        lambda store, s, now: _edit(store, layout.delta_key(s, 5), Delta, updates={"said": b"[6]"}),
        {"hash"},
    ),
    "the snapshot is gone": (lambda store, s, now: _take(store, layout.snapshot_key(s)), {"snapshot"}),
    "the snapshot is another's": (
        lambda store, s, now: _edit(store, layout.snapshot_key(s), Snapshot, held={}),
        {"snapshot", "hash"},
    ),
    "the row is of another hash": (lambda store, s, now: _edit(store, layout.head_key(s), Head, hash=b"x"), {"hash"}),
    "the row is ahead": (lambda store, s, now: _edit(store, layout.head_key(s), Head, version=7), {"hole"}),
    "a change that its clock does not count": (
        lambda store, s, now: _edit(store, layout.delta_key(s, 5), Delta, count=9),
        {"clock", "hash"},
    ),
    "a fork that does not say so": (lambda store, s, now: _edit(store, layout.delta_key(s, 6), Delta, fork=False), {"fork"}),
    "a fork without a record": (lambda store, s, now: _take(store, layout.conflict_key(s, 6)), {"fork"}),
    "a lease beyond reason": (lambda store, s, now: _edit(store, layout.head_key(s), Head, lease=now + 900.0), {"lease"}),
    "nobody's lease": (lambda store, s, now: _edit(store, layout.head_key(s), Head, owner=""), {"lease"}),
    "an id that is forgotten": (lambda store, s, now: _take(store, layout.id_key(s, "5")), {"id"}),
    "a row that cannot be read": (
        lambda store, s, now: store.commit([Put(layout.head_key(s), b"\xc1")]),
        {"unreadable"},
    ),
    "a row that is gone": (lambda store, s, now: _take(store, layout.head_key(s)), {"orphan"}),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_the_audit_finds_what_is_broken(what: str) -> None:
    @story("a", "b", terms=TERMS)
    async def told(world: World) -> None:
        store = await _grown(world)
        damage, kinds = DAMAGE[what]
        await damage(store, world.session_id, world.wall())
        found = await world.audit()
        assert {fault.kind for fault in found.faults} == kinds, found.faults
        assert not found.sound
        assert {fault.session_id for fault in found.faults} <= {world.session_id, ""}

    told()


@story("a", "b", terms=TERMS)
async def test_what_waits_is_explained_until_it_waits_too_long(world: World) -> None:
    await _grown(world)
    world.nodes["a"].store.away = Away.BEFORE
    await world.kept("a", 6, "waits", said=b"[7]", clock={"a": 5})
    found = await world.audit("a")
    assert (found.faults, found.pending) == ([], 1)
    assert "'waits' of a waits for 0 s" in str(found.notes)
    world.network.advance(301.0)
    assert [(fault.kind, fault.session_id) for fault in (await world.audit("a")).faults] == [("pending", world.session_id)]


@story("a")
async def test_one_session_is_looked_at_alone(world: World) -> None:
    other = await world.at("a").create(TENANT)
    store = world.nodes["a"].store
    await _edit(store, layout.head_key(other.session_id), Head, hash=b"x")

    async def one(session_id: str) -> bool:
        return (await audit(store, world.terms, now=world.wall(), session_id=session_id)).sound

    assert (await one(world.session_id), await one(other.session_id)) == (True, False)
    assert await refusal(one("sess_none")) == ("not_found", "session_id")


def test_sitsctl_sync_verify_looks_into_a_data_folder(tmp_path: Path) -> None:
    none = CliRunner().invoke(sync, ["verify", "--data", str(tmp_path)])
    assert (none.exit_code, "there are no sessions in" in none.output) == (1, True)

    @story("a", "b", terms=TERMS)
    async def copied(world: World) -> None:
        await _grown(world)
        file = await open_store("sqlite", tmp_path)
        await file.commit([Put(one.key, one.value) for one in await world.nodes["a"].store.scan("session/")])
        await file.aclose()

    copied()
    # The world's time is long past: ids that are not remembered any more are no fault, nor are leases.
    sound = CliRunner().invoke(sync, ["verify", "--data", str(tmp_path)])
    assert (sound.exit_code, "1 sessions, 4 changes kept, 1 forks settled" in sound.output) == (0, True), sound.output

    @story("a")
    async def broken(world: World) -> None:
        file = await open_store("sqlite", tmp_path)
        (row,) = await file.scan(layout.HEADS)
        await file.commit([Delete(layout.snapshot_key(row.key.removeprefix(layout.HEADS)))])
        await file.aclose()

    broken()
    told = CliRunner().invoke(sync, ["verify", "--json", "--data", str(tmp_path)])
    assert told.exit_code == 1
    assert [fault["kind"] for fault in json.loads(told.output)["faults"]] == ["snapshot"]
    text = CliRunner().invoke(sync, ["verify", "--data", str(tmp_path)])
    assert "the sessions are NOT sound" in text.output
