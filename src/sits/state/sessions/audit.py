"""Proof that sessions are whole: walks the store, trusts nothing that can be computed again.

For each session: the versions of the deltas have no hole, the snapshot and the deltas after it lead to the hash of every delta
and of the row, each clock has seen all before it and its own change, every fork has its conflict record, the lease is one that a
node could have taken, ids point at their changes. And no part lies about whose session is gone, and what waits in the pending log
is explained.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from sits.inner.errors import Code, SitsError
from sits.ports.store import every
from sits.ports.store.base import Entry, Store
from sits.state.clocks import Order
from sits.state.sessions import layout
from sits.state.sessions.context import Context
from sits.state.sessions.pending import PendingLog, PendingRow
from sits.state.sessions.shapes import Delta, Head, check_session, no_session
from sits.state.sessions.terms import MOST_CONFLICTS, Terms

MOST_FAULTS = 1000
"""Faults that are told; `left_out` counts the rest."""
SKEW = 60.0
"""Seconds that the clocks of two nodes may differ."""
WAITS_TOO_LONG = 300.0
"""A change that waits for so long though the store answers is a fault."""
_TRIES = 3
"""A session that changes while it is looked at is looked at again."""


class Fault(msgspec.Struct, frozen=True):
    """Something that must not be. `session_id` is empty for what belongs to none."""

    session_id: str
    kind: str
    message: str


class Audit(msgspec.Struct, frozen=True):
    """What was found. `notes` explain what is unusual and no fault."""

    sessions: int
    deltas: int
    forks: int
    pending: int
    given_up: int
    faults: list[Fault]
    left_out: int
    notes: list[str]

    @property
    def sound(self) -> bool:
        return not self.faults


async def audit(
    store: Store, terms: Terms, *, now: float, pending: PendingLog | None = None, session_id: str | None = None
) -> Audit:
    """Look at one session or at all of them. Changes nothing; nodes may go on working.

    Raises:
        SitsError: `not_found`, there is no such session; `state_unavailable`.
    """
    walk = _Walk(store, terms, now)
    if session_id is not None:
        check_session(session_id)
        row = await store.get(layout.head_key(session_id))
        if row is None:
            raise no_session(session_id)
        await walk.session(row)
    else:
        async for row in every(store, layout.HEADS):
            await walk.session(row)
        for part in layout.PARTS:
            await walk.orphans(part)
    waiting = given_up = 0
    if pending is not None:
        waiting, given_up = await walk.pending(pending, session_id)
    return Audit(walk.sessions, walk.deltas, walk.forks, waiting, given_up, walk.faults, walk.left_out, walk.notes)


class _Walk:
    def __init__(self, store: Store, terms: Terms, now: float) -> None:
        self._store = store
        self._terms = terms
        self._now = now
        self.sessions = self.deltas = self.forks = self.left_out = 0
        self.faults: list[Fault] = []
        self.notes: list[str] = []

    async def session(self, row: Entry) -> None:
        """Look at the session of one row of the table."""
        session_id = row.key.removeprefix(layout.HEADS)
        self.sessions += 1
        found: list[Fault] = []
        for _ in range(_TRIES):
            try:
                head = layout.read_head(row)
                deltas = [layout.read_delta(one) async for one in every(self._store, f"session/d/{session_id}/")]
                found = [*await self._look(session_id, head, deltas), *self._lease(session_id, head)]
            except SitsError as error:
                if error.code is not Code.INTERNAL:
                    raise
                found, deltas, head = [Fault(session_id, "unreadable", error.message)], [], None
            again = await self._store.get(row.key)
            if again is None:
                return  # It was removed meanwhile.
            if again.version == row.version:
                break
            row = again
        else:
            self._note(f"session {session_id} changes too fast to be looked at as a whole")
            found = []
        for fault in found:
            self._tell(fault)
        self.deltas += len(deltas)
        if head is not None:
            self.forks += head.forks

    async def _look(self, session_id: str, head: Head, deltas: list[Delta]) -> list[Fault]:
        if head.gone:
            self._note(f"session {session_id} is being removed; the next sweep finishes it")
            return []
        entry = await self._store.get(layout.snapshot_key(session_id))
        faults = [Fault(session_id, kind, said) for kind, said in _chain_faults(head, deltas)]
        faults += [Fault(session_id, kind, said) for kind, said in _context_faults(head, deltas, entry)]
        faults += [Fault(session_id, kind, said) for kind, said in await self._fork_faults(session_id, head, deltas)]
        faults += [Fault(session_id, kind, said) for kind, said in await self._id_faults(session_id, head, deltas)]
        return faults

    async def _fork_faults(self, session_id: str, head: Head, deltas: list[Delta]) -> list[tuple[str, str]]:
        records = [layout.read_conflict(one) async for one in every(self._store, f"session/c/{session_id}/")]
        versions = {record.version: record for record in records}
        faults: list[tuple[str, str]] = []
        for delta in deltas:
            record = versions.get(delta.version)
            if delta.fork and record is None and head.forks <= MOST_CONFLICTS:
                faults.append(("fork", f"version {delta.version} is a fork without a conflict record"))
            elif record is not None and (not delta.fork or record.id != delta.id):
                faults.append(("fork", f"the conflict record of version {delta.version} is not that of its change"))
        if len(records) > head.forks or (head.forks <= MOST_CONFLICTS and len(records) < head.forks):
            faults.append(("fork", f"{head.forks} forks and {len(records)} conflict records"))
        if waiting := sum(record.open for record in records):
            self._note(f"session {session_id}: {waiting} conflicts wait for a decision")
        return faults

    async def _id_faults(self, session_id: str, head: Head, deltas: list[Delta]) -> list[tuple[str, str]]:
        faults: list[tuple[str, str]] = []
        for at in range(0, len(deltas), 500):
            page = deltas[at : at + 500]
            keys = [layout.id_key(session_id, delta.id) for delta in page]
            for delta, entry in zip(page, await self._store.get_many(keys), strict=True):
                applied = None if entry is None else layout.read_applied(entry)
                if applied is not None and (applied.version, applied.birth) != (delta.version, head.birth):
                    faults.append(("id", f"the id of version {delta.version} is remembered for version {applied.version}"))
                elif applied is None and delta.at > self._now - self._terms.remembered + SKEW:
                    faults.append(("id", f"the id of version {delta.version} is not remembered"))
        return faults

    def _lease(self, session_id: str, head: Head) -> Iterator[Fault]:
        if head.lease > self._now + self._terms.lease + SKEW:
            ahead = head.lease - self._now
            yield Fault(session_id, "lease", f"{head.owner!r} has it for another {ahead:.0f} s, more than a lease lasts")
        if head.lease > self._now and not head.owner:
            yield Fault(session_id, "lease", "nobody has a lease that runs")
        if head.owner and head.lease <= self._now and head.expires > self._now:
            self._note(f"session {session_id} had {head.owner!r}, whose lease has ended; the next to change it has it")

    async def orphans(self, part: str) -> None:
        """Parts of sessions that have no row."""
        last = ""
        async for entry in every(self._store, part):
            session_id = layout.session_of(entry.key)
            if session_id == last:
                continue
            last = session_id
            # It may be removed just now: then its part goes as well.
            row, still = await self._store.get_many([layout.head_key(session_id), entry.key])
            if row is None and still is not None:
                self._tell(Fault(session_id, "orphan", f"{entry.key} belongs to a session that is not there"))

    async def pending(self, log: PendingLog, session_id: str | None) -> tuple[int, int]:
        """What waits in the log of a data folder, and what was given up."""
        rows = [row for row in await log.all() if session_id in (None, row.session_id)]
        for row in rows:
            await self._waiting(row)
        given_up = [one for one in await log.given_up() if session_id in (None, one.row.session_id)]
        for one in given_up:
            self._note(f"session {one.row.session_id}: change {one.row.id[:80]!r} was given up: {one.why}")
        return len(rows), len(given_up)

    async def _waiting(self, row: PendingRow) -> None:
        age = self._now - row.at
        applied = await self._store.get(layout.id_key(row.session_id, row.id))
        if applied is not None:
            self._note(
                f"session {row.session_id}: change {row.id[:80]!r} of {row.node} is in the store; its row goes with the next sync"
            )
        elif age > WAITS_TOO_LONG:
            self._tell(
                Fault(row.session_id, "pending", f"change {row.id[:80]!r} of {row.node} waits for {age:.0f} s; the store answers")
            )
        else:
            self._note(f"session {row.session_id}: change {row.id[:80]!r} of {row.node} waits for {age:.0f} s")

    def _tell(self, fault: Fault) -> None:
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(fault)
        else:
            self.left_out += 1

    def _note(self, text: str) -> None:
        if len(self.notes) < MOST_FAULTS and text not in self.notes:
            self.notes.append(text)


def _chain_faults(head: Head, deltas: list[Delta]) -> Iterator[tuple[str, str]]:
    """Versions and clocks."""
    versions = [delta.version for delta in deltas]
    wanted = list(range(head.kept, head.version + 1))
    if versions != wanted:
        missing = sorted(set(wanted) - set(versions))
        beyond = sorted(set(versions) - set(wanted))
        yield "hole", f"deltas {missing[:5]} are missing and {beyond[:5]} are too many; {head.kept} to {head.version} are wanted"
    if head.kept > head.snapshot + 1:
        yield "hole", f"the snapshot is at {head.snapshot}, and deltas are kept from {head.kept} on only"
    last: Delta | None = None
    for delta in deltas:
        before = last.clock if last is not None and last.version + 1 == delta.version else None
        counts = dict(delta.clock.counts)
        if counts.get(delta.node) != delta.count:
            yield "clock", f"the clock of version {delta.version} does not count its own change"
        if before is not None and before.compare(delta.clock) is not Order.BEFORE and not delta.clock.floor:
            yield "clock", f"the clock of version {delta.version} has not seen all that the one before has"
        if before is not None and (before.compare(delta.seen) in (Order.EQUAL, Order.BEFORE)) is delta.fork:
            yield "fork", f"version {delta.version} {'is no fork and says so' if delta.fork else 'is a fork and does not say so'}"
        last = delta
    if deltas and deltas[-1].version == head.version and deltas[-1].clock != head.clock:
        yield "clock", "the clock of the row is not that of the last change"


def _context_faults(head: Head, deltas: list[Delta], entry: Entry | None) -> Iterator[tuple[str, str]]:
    """The snapshot, and what the deltas make of it."""
    context, at = Context(), 0
    if head.snapshot:
        if entry is None:
            yield "snapshot", f"the snapshot of version {head.snapshot} is missing"
            return
        snapshot = layout.read_snapshot(entry)
        context, at = Context(snapshot.held), snapshot.version
        if snapshot.version != head.snapshot or snapshot.hash != context.hash:
            yield "snapshot", f"the snapshot of version {snapshot.version} is not what its hash and the row say"
    for delta in deltas:
        if delta.version <= at:
            continue
        context = context.apply(delta, head.rules)
        if context.hash != delta.hash:
            yield "hash", f"version {delta.version} does not lead to its hash"
            return
    if context.hash != head.hash:
        yield "hash", "snapshot and deltas do not lead to the hash of the row"
