"""Proof that records and vectors agree: looks at every one of both, and trusts nothing that was counted.

What an intent explains is pending and no fault, unless it has waited for too long. What seemed apart is looked at again, intent
first, so that a node which works meanwhile is not called a liar.
"""

from __future__ import annotations

import msgspec

from sits.ports.store import Store, every
from sits.ports.vectors.base import Vectors
from sits.state.outbox import layout
from sits.state.outbox.terms import Terms
from sits.state.outbox.walk import Apart, Walk, compared, found

MOST_TOLD = 100
"""Faults, parked intents and undone records that are told one by one."""
_TRIES = 3
_TERMS = Terms()


class Fault(msgspec.Struct, frozen=True):
    kind: str
    """A kind of `walk.Kind`, or: `old`, an intent has waited for too long; `parked`, it waits for a person."""
    partition: str
    id: str
    message: str = ""


class Undoing(msgspec.Struct, frozen=True):
    """A record that was taken back since the index refused its vector. `at` is in unix seconds."""

    record: str
    partition: str
    id: str
    at: float
    reason: str


class Audit(msgspec.Struct, frozen=True):
    """What was found in one collection."""

    collection: str
    records: int
    vectors: int
    pending: int
    """Apart, and an intent says that it is known."""
    expired: int
    """Vectors whose records have expired: the sweep takes them away."""
    waiting: int
    """Intents, parked ones among them."""
    parked: int
    oldest: float
    """Seconds that the oldest intent has waited that is not parked."""
    undone: int
    """Records that were taken back, of which is remembered."""
    faults: list[Fault]
    left_out: int
    """Faults that are not told."""
    undoings: list[Undoing]

    @property
    def sound(self) -> bool:
        """Records and vectors agree, or it is known why not and will be mended."""
        return not self.faults


async def audit(store: Store, vectors: Vectors, collection: str, *, now: float, terms: Terms = _TERMS, page: int = 500) -> Audit:
    """Look at a collection. Changes nothing; nodes may go on working. `now` is unix time.

    Raises:
        SitsError: `state_unavailable`.
    """
    faults: list[Fault] = []
    waiting = parked = 0
    oldest = now
    # First, so that an intent which is relayed during the walk counts as having been there.
    async for row in every(store, layout.todo_prefix(collection)):
        waiting += 1
        todo = layout.read_todo(row)
        if todo is None:
            faults.append(Fault("unreadable", "", row.key))
        elif todo.parked:
            parked += 1
            faults.append(Fault("parked", todo.partition, todo.id, todo.error))
        else:
            oldest = min(oldest, todo.since)
            if now - todo.since > terms.old:
                message = f"for {now - todo.since:.0f} s" + (f": {todo.error}" if todo.error else "")
                faults.append(Fault("old", todo.partition, todo.id, message))
    walk = Walk(store, vectors, collection, now=now, page=page)
    records = seen = pending = expired = 0
    while (looked := await walk.step()) is not None:
        records += looked.records
        seen += looked.vectors
        for one in looked.apart:
            if one.pending:
                pending += 1
            elif one.kind == "expired":
                expired += 1
            elif one.kind == "unreadable" or await _stays(store, vectors, collection, one):
                faults.append(Fault(one.kind, one.partition, one.id))
    undoings = await _undoings(store, collection)
    return Audit(
        collection,
        records,
        seen,
        pending,
        expired,
        waiting,
        parked,
        round(now - oldest, 3),
        len(undoings),
        faults[:MOST_TOLD],
        max(0, len(faults) - MOST_TOLD),
        undoings[:MOST_TOLD],
    )


async def audit_all(store: Store, vectors: Vectors, *, now: float, terms: Terms = _TERMS) -> list[Audit]:
    """Look at every collection that ever had an outbox on this store. Raises as `audit` does."""
    names = [row.key.removeprefix(layout.COLLECTIONS) async for row in every(store, layout.COLLECTIONS)]
    return [await audit(store, vectors, name, now=now, terms=terms) for name in names]


async def _stays(store: Store, vectors: Vectors, collection: str, one: Apart) -> bool:
    """Whether an id is apart while nothing changes about it in the store."""
    keys = [layout.todo_key(collection, one.partition, one.id), layout.wanted_key(collection, one.partition, one.id)]
    for _ in range(_TRIES):
        todo, before = await store.get_many(keys)
        if todo is not None:
            return False
        (item,) = await found(vectors, collection, [(one.partition, one.id)])
        wanted = None if before is None else layout.read_wanted(before)
        record = None if wanted is None else await store.get(wanted.record)
        todo, after = await store.get_many(keys)
        if todo is not None:
            return False
        if before != after:
            continue
        if wanted is None:
            return item is not None
        return record is None or compared(wanted, item) is not None
    return False  # It changes too fast to be looked at, and each change has its intent.


async def _undoings(store: Store, collection: str) -> list[Undoing]:
    """What is remembered, the newest first."""
    rows = [layout.read_undone(row) async for row in every(store, layout.undone_prefix(collection))]
    told = [Undoing(row.record, row.partition, row.id, row.at, row.reason) for row in rows if row is not None]
    return sorted(told, key=lambda one: -one.at)
