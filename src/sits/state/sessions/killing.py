"""Writers of sessions are killed at any moment, and what they had acknowledged is looked for: a check for tests and benches.

    with Killing() as killing:
        told = killing.round(folder, writers=2, acks=120, spin=500)
        assert told.lost == 0

`python -m sits.state.sessions.killing` forks the writers and kills them with SIGKILL: it reads a line
`[folder, session, writers, acks, spin, offline]` and answers with a line of the numbers that each writer had acknowledged. A
writer acknowledges a change, by a byte in a pipe, when `commit` has returned. With `offline` the store of the writers is away, so
it is the pending log that has to keep what they said.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sits.inner.errors import Code, SitsError
from sits.ports.store import Add, Added, Change, Entry, Store, open_store
from sits.state.sessions.audit import audit
from sits.state.sessions.pending import open_pending
from sits.state.sessions.rules import RuleRow
from sits.state.sessions.sessions import Sessions
from sits.state.sessions.shapes import Committed, ContextDelta
from sits.state.sessions.terms import Terms

TENANT = "killing"
_TERMS = Terms(snapshot_every=7, recent=3)
"""Snapshots often, so that kills hit them too."""
_MOST = 5000


class Killed(msgspec.Struct, frozen=True):
    """What a round came to: changes that were acknowledged, of these lost and doubled ones, and what the audit said."""

    acknowledged: int
    lost: int
    doubled: int
    forks: int
    faults: tuple[str, ...]

    @property
    def sound(self) -> bool:
        return not (self.lost or self.doubled or self.faults)


class CutStore:
    """A store that goes away when told: every call raises `state_unavailable` from then on."""

    def __init__(self, store: Store) -> None:
        self.name = store.name
        self.is_cut = False
        self._store = store

    def _reach(self) -> Store:
        if self.is_cut:
            raise SitsError(Code.STATE_UNAVAILABLE, "the store was cut off")
        return self._store

    async def get(self, key: str) -> Entry | None:
        return await self._reach().get(key)

    async def get_many(self, keys: Sequence[str]) -> list[Entry | None]:
        return await self._reach().get_many(keys)

    async def commit(self, changes: Sequence[Change]) -> int:
        return await self._reach().commit(changes)

    async def scan(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[Entry]:
        return await self._reach().scan(prefix, after=after, limit=limit)

    async def add(self, adds: Sequence[Add]) -> Added:
        return await self._reach().add(adds)

    async def aclose(self) -> None:
        await self._store.aclose()


class Killing:
    """The process that forks and kills; ends with the `with` block."""

    def __enter__(self) -> Killing:
        command = [sys.executable, "-m", "sits.state.sessions.killing"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=20)

    def round(self, folder: Path, *, writers: int = 1, acks: int = 50, spin: int = 0, offline: bool = False) -> Killed:
        """Let writers change one session in `folder`, an empty one; kill them `spin` steps after one has acknowledged `acks`
        changes; look at what is there."""
        session_id = asyncio.run(_begin(folder))
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(json.dumps([str(folder), session_id, writers, acks, spin, offline]), file=stdin, flush=True)
        acknowledged: list[int] = json.loads(stdout.readline())
        return asyncio.run(_look(folder, session_id, acknowledged))


async def _open(folder: Path, node: str) -> tuple[Sessions, CutStore]:
    # A machine that is busy with killing makes the store slow, which is no outage.
    store = CutStore(await open_store("sqlite", folder, timeout=20.0))
    pending = await open_pending(folder, node, _TERMS)
    return Sessions(node, store, None, pending, wall=time.time, token=lambda: os.urandom(12).hex(), terms=_TERMS), store


async def _begin(folder: Path) -> str:
    sessions, store = await _open(folder, "parent")
    made = await sessions.create(TENANT, rules=[RuleRow("said", "append")])
    await sessions.aclose()
    await store.aclose()
    return made.session_id


async def _look(folder: Path, session_id: str, acknowledged: list[int]) -> Killed:
    """Start the writers' nodes again, let them bring in what waits, and count."""
    for writer in range(len(acknowledged)):
        sessions, store = await _open(folder, f"writer-{writer}")
        left = await sessions.sync()
        assert left == 0, f"{left} changes still wait"
        await sessions.aclose()
        await store.aclose()
    sessions, store = await _open(folder, "parent")
    view = await sessions.read(session_id, TENANT, fresh=True)
    found = Counter(msgspec.json.decode(view.context.get("said", b"[]"), type=list[str]))
    told = await audit(store, _TERMS, now=time.time(), pending=sessions.pending)
    await sessions.aclose()
    await store.aclose()
    wanted = [f"{writer}-{number}" for writer, count in enumerate(acknowledged) for number in range(1, count + 1)]
    lost = sum(one not in found for one in wanted)
    doubled = sum(count > 1 for count in found.values())
    faults = tuple(f"{fault.kind}: {fault.message}" for fault in told.faults)
    return Killed(len(wanted), lost, doubled, view.forks, faults)


async def _write_on(folder: Path, session_id: str, writer: int, acks: int, offline: bool) -> None:
    sessions, store = await _open(folder, f"writer-{writer}")
    version = (await sessions.read(session_id, TENANT, fresh=True)).version
    store.is_cut = offline
    for number in range(1, _MOST + 1):
        said = msgspec.json.encode([f"{writer}-{number}"])
        delta = ContextDelta(session_id, version + 1, {"said": said, f"last/{writer}": said}, id=f"{writer}-{number}")
        while not isinstance(answer := await sessions.commit(delta, TENANT), Committed):
            # The others were so quick that what we built on is forgotten.
            version = (await sessions.read(session_id, TENANT, fresh=True)).version
            delta = msgspec.structs.replace(delta, version=version + 1)
        version = answer.version
        os.write(acks, b".")
    signal.pause()


def _spawn(folder: Path, session_id: str, writer: int, offline: bool) -> tuple[int, int]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            asyncio.run(_write_on(folder, session_id, writer, writing, offline))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writing)
    return pid, reading


def _kill_all(folder: Path, session_id: str, writers: int, acks: int, spin: int, offline: bool) -> list[int]:
    running = [_spawn(folder, session_id, writer, offline) for writer in range(writers)]
    counts = dict.fromkeys((reading for _, reading in running), 0)
    while max(counts.values()) < acks:
        for reading in select.select(list(counts), [], [])[0]:
            piece = os.read(reading, 4096)
            if not piece:
                raise AssertionError("a writer ended by itself")
            counts[reading] += len(piece)
    for _ in range(spin):
        os.getpid()
    for pid, _ in running:
        os.kill(pid, signal.SIGKILL)
    for pid, reading in running:
        os.waitpid(pid, 0)
        while piece := os.read(reading, 65536):
            counts[reading] += len(piece)
        os.close(reading)
    return list(counts.values())


def main() -> None:
    for line in sys.stdin:
        folder, *rest = json.loads(line)
        print(json.dumps(_kill_all(Path(folder), *rest)), flush=True)


if __name__ == "__main__":
    main()
