"""A node of the state bench beside its gateway: `python -m sits.bench.state_node NODE BUS STORE DATA`.

It holds a replica of CRDTs and the sessions of the node, as a gateway does, and does what it is told: a line of JSON with `do`
and the arguments on the input, a line with the answer on the output. The end of the input ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3

from sits.inner.errors import SitsError
from sits.ports.bus import open_bus
from sits.ports.store import Store, open_store
from sits.state.crdt import GCounter, LWWRegister, ORSet, Replica
from sits.state.sessions import Committed, ContextDelta, RuleRow, Sessions, Terms, open_pending
from sits.state.sessions.audit import audit

TENANT = "bench"
TURNS, TITLE = "turns", "title"
RULES = [RuleRow(TURNS, "append")]
COUNTER, SET, REGISTER = "requests", "names", "note"
_SECONDS = 2.0
_LINE = 1 << 20


class Node:
    """What the node holds. A method for each word that may stand under `do`."""

    def __init__(self, replica: Replica, sessions: Sessions, store: Store) -> None:
        self._replica = replica
        self._sessions = sessions
        self._store = store
        self._session = ""

    async def count(self, by: int) -> int:
        """Count up, here and now."""
        me = self._replica.id
        return self._replica.change(COUNTER, GCounter, lambda counter: counter.increment(me, by)).value

    async def put(self, name: str) -> int:
        """Put a name into the set; how many it has here."""
        me = self._replica.id
        return len(self._replica.change(SET, ORSet, lambda names: names.add(name, me)))

    async def note(self, text: str) -> str:
        """Write the register."""
        stamp = self._replica.stamp()
        self._replica.change(REGISTER, LWWRegister, lambda register: register.write(text.encode(), stamp))
        return text

    async def replicated(self) -> dict[str, Any]:
        """What the replica holds now, and the hash of all of it."""
        replica = self._replica
        note = replica.get(REGISTER, LWWRegister).content or b""
        values = {
            "count": replica.get(COUNTER, GCounter).value,
            "names": sorted(replica.get(SET, ORSet).elements),
            "note": note.decode(),
        }
        return {**values, "hash": blake3(msgspec.json.encode(values)).hexdigest(8), "pending": replica.status.pending}

    async def create(self) -> str:
        """Make the session that all nodes write to."""
        self._session = (await self._sessions.create(TENANT, rules=RULES)).session_id
        return self._session

    async def join(self, session: str) -> int:
        """Take part in a session."""
        self._session = session
        return (await self._sessions.read(session, TENANT, fresh=True)).version

    async def commit(self, turn: str) -> dict[str, Any]:
        """Append a turn and set the title, from what is known here, as a client of this node does."""
        view = await self._sessions.read(self._session, TENANT)
        updates: dict[str, bytes | None] = {TURNS: msgspec.json.encode([turn]), TITLE: turn.encode()}
        clock = dict(view.clock.counts)
        answer = await self._sessions.commit(ContextDelta(self._session, view.version + 1, updates, turn, clock), TENANT)
        if not isinstance(answer, Committed):
            return {"kept": False}
        return {"kept": True, "state": answer.state, "conflict": answer.conflict is not None}

    async def session(self) -> dict[str, Any]:
        """The session as it is in the store, and how many changes still wait here."""
        waiting = self._sessions.pending.count
        view = await self._sessions.read(self._session, TENANT, fresh=True)
        turns = msgspec.json.decode(view.context.get(TURNS, b"[]"))
        return {"version": view.version, "hash": view.hash.hex(), "turns": turns, "forks": view.forks, "waiting": waiting}

    async def forks(self) -> dict[str, Any]:
        """The ids of changes that were recorded as forks, and what the audit of the session found wrong."""
        records = await self._sessions.conflicts(self._session, TENANT, limit=1000)
        found = await audit(self._store, self._sessions.terms, now=time.time(), session_id=self._session)
        return {"recorded": [one.id for one in records], "faults": [f"{one.kind}: {one.message}" for one in found.faults]}


async def serve(node: str, bus_address: str, store_address: str, data: Path) -> None:
    """Until the input ends."""
    store = await open_store(store_address, data, timeout=_SECONDS)
    bus = await open_bus(bus_address, timeout=_SECONDS)
    terms = Terms()
    pending = await open_pending(data, node, terms)
    sessions = Sessions(node, store, bus, pending, wall=time.time, token=lambda: secrets.token_urlsafe(16), terms=terms)
    await sessions.start()
    replica = Replica(bus, "bench", node=node, incarnation=secrets.token_hex(4), wall=time.time)
    stop = asyncio.Event()
    running = asyncio.create_task(replica.run(stop))
    try:
        await _obey(Node(replica, sessions, store))
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await sessions.aclose()
        await bus.aclose()
        await store.aclose()


async def _obey(node: Node) -> None:
    reader = asyncio.StreamReader(limit=_LINE)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print('{"ready":true}', flush=True)
    while line := await reader.readline():
        order: dict[str, Any] = msgspec.json.decode(line)
        act: Callable[..., Awaitable[Any]] = getattr(node, order.pop("do"))
        try:
            answer = {"answer": await act(**order)}
        except SitsError as error:
            answer = {"error": f"{error.code.value}: {error.message}"}
        print(msgspec.json.encode(answer).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])))
