"""Changes that were acknowledged while the store was away, in a file of the data folder until they are synced.

The file is the embedded store: what it has answered is on the disk and outlives a kill -9. Several processes of one data folder
share it; each brings in its own rows, and those of processes that are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from sits.inner.errors import Code, SitsError
from sits.ports.store import Delete, Put, Store, every, open_store
from sits.ports.store.base import ABSENT
from sits.state.clocks import Stamp, VectorClock
from sits.state.sessions.layout import encode
from sits.state.sessions.placing import Draft
from sits.state.sessions.terms import Terms

FILE = "sessions-pending.db"
_WAITING = "waiting/"
_GIVEN_UP = "given-up/"
_SPENT = "spent/"
MOST_GIVEN_UP = 1000


class PendingRow(msgspec.Struct, frozen=True):
    """A change that waits, by the order in which it was acknowledged. `version` is the provisional one."""

    number: int
    session_id: str
    tenant: str
    id: str
    node: str
    version: int
    seen: VectorClock
    stamp: Stamp
    at: float
    updates: dict[str, bytes | None]
    also: tuple[Put, ...] = ()
    count: int = 1
    """The one in its dot, which later changes say that they have seen."""

    @property
    def key(self) -> str:
        return f"{_WAITING}{self.number:016d}/{self.node}"

    @property
    def size(self) -> int:
        return (
            200
            + sum(len(path) + len(value or b"") for path, value in self.updates.items())
            + sum(len(p.value) for p in self.also)
        )

    def draft(self) -> Draft:
        """The change as it goes into the chain now."""
        return Draft(
            self.session_id,
            self.tenant,
            self.id,
            self.node,
            self.version,
            self.seen,
            self.stamp,
            self.at,
            self.updates,
            also=self.also,
            least=self.count,
            late=True,
        )


class GivenUp(msgspec.Struct, frozen=True):
    """A change that could not be brought in, and why: its session was removed, say. Kept for whoever asks."""

    row: PendingRow
    why: str
    at: float


class PendingLog:
    """Not for several loops. `rows` are our own, in order; made by `open_pending`."""

    def __init__(self, file: Store, node: str, terms: Terms) -> None:
        self._file = file
        self._terms = terms
        self.node = node
        self.rows: dict[str, list[PendingRow]] = {}
        """By session, oldest first."""
        self.spent: dict[str, int] = {}
        """By session, the highest count that a dot of a change of ours had here: no other change may have it, whatever becomes
        of this one, since clients say by it what they have seen."""
        self.count = 0
        self.bytes = 0
        self._next = 1

    async def read(self) -> None:
        """Take over what this node left behind earlier."""
        for row in await self.all():
            self._next = max(self._next, row.number + 1)
            if row.node == self.node:
                self._hold(row)
        async for entry in every(self._file, f"{_SPENT}{self.node}/"):
            self.spent[entry.key.rpartition("/")[2]] = msgspec.msgpack.decode(entry.value, type=int)

    async def add(self, draft: Draft, seen: VectorClock, version: int, count: int) -> PendingRow:
        """Keep a change; it is on the disk when this returns.

        Raises:
            SitsError: `overloaded`, the log is full; `state_unavailable`, its file cannot be written.
        """
        row = PendingRow(
            self._next,
            draft.session_id,
            draft.tenant,
            draft.id,
            draft.node,
            version,
            seen,
            draft.stamp,
            draft.at,
            draft.updates,
            draft.also,
            count,
        )
        if self.count >= self._terms.most_pending or self.bytes + row.size > self._terms.pending_bytes:
            message = f"the store is away and the pending log is full: {self.count} changes, {self.bytes} bytes"
            raise SitsError(Code.OVERLOADED, message, retry_after=self._terms.retry)
        self._next += 1
        spent = Put(f"{_SPENT}{self.node}/{row.session_id}", encode(count), ttl=self._terms.remembered)
        await self._file.commit([Put(row.key, encode(row), expect=ABSENT), spent])
        self.spent[row.session_id] = count
        while len(self.spent) > self._terms.most_pending:
            del self.spent[next(iter(self.spent))]
        self._hold(row)
        return row

    async def done(self, row: PendingRow, amended: Sequence[PendingRow] = ()) -> None:
        """The change is in the store; `amended` are later rows that are to say something else from now on."""
        await self._file.commit([Delete(row.key), *(Put(one.key, encode(one)) for one in amended)])
        self._let_go(row)
        by_key = {one.key: one for one in amended}
        rows = self.rows.get(row.session_id, [])
        rows[:] = [by_key.get(one.key, one) for one in rows]

    async def give_up(self, row: PendingRow, why: str, at: float) -> None:
        """The change can never be in the store: keep it aside with the reason, the latest `MOST_GIVEN_UP` of them."""
        aside = Put(f"{_GIVEN_UP}{row.number:016d}/{row.node}", encode(GivenUp(row, why, at)))
        kept = await self._file.scan(_GIVEN_UP, limit=1000)
        gone = [Delete(entry.key) for entry in kept[: max(0, len(kept) + 1 - MOST_GIVEN_UP)] if entry.key != aside.key]
        await self._file.commit([aside, Delete(row.key), *gone[:900]])
        self._let_go(row)

    async def orphans(self, before: float) -> list[PendingRow]:
        """Rows of other nodes that were acknowledged before `before`: they would have been brought in by now."""
        return [row for row in await self.all() if row.node != self.node and row.at < before]

    async def all(self) -> list[PendingRow]:
        """Every row in the file, oldest first of each node."""
        return [msgspec.msgpack.decode(entry.value, type=PendingRow) async for entry in every(self._file, _WAITING)]

    async def given_up(self) -> list[GivenUp]:
        return [msgspec.msgpack.decode(entry.value, type=GivenUp) async for entry in every(self._file, _GIVEN_UP)]

    async def aclose(self) -> None:
        await self._file.aclose()

    def of(self, session_id: str) -> tuple[PendingRow, ...]:
        """Our own rows of a session, oldest first."""
        return tuple(self.rows.get(session_id, ()))

    def _hold(self, row: PendingRow) -> None:
        self.rows.setdefault(row.session_id, []).append(row)
        self.count += 1
        self.bytes += row.size

    def _let_go(self, row: PendingRow) -> None:
        rows = self.rows.get(row.session_id, [])
        left = [one for one in rows if one.key != row.key]
        if len(left) < len(rows):
            rows[:] = left
            self.count -= 1
            self.bytes -= row.size
        if not rows:
            self.rows.pop(row.session_id, None)


async def open_pending(data: Path, node: str, terms: Terms) -> PendingLog:
    """The pending log of a data folder, with what this node left there.

    Raises:
        SitsError: `state_unavailable`, the file cannot be used.
    """
    log = PendingLog(await open_store(f"sqlite://{quote(str((data / FILE).absolute()))}", data, timeout=10.0), node, terms)
    await log.read()
    return log
