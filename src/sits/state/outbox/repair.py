"""The repair of a collection: everything that is apart gets an intent, and what is parked is tried again.

There is one way in which the index is changed, the relay's, so a repair beside working nodes does no harm.
"""

from __future__ import annotations

import msgspec

from sits.ports.store import Put, every
from sits.state.outbox import layout
from sits.state.outbox.outbox import Outbox
from sits.state.outbox.relay import commit_each
from sits.state.outbox.walk import Walk


class Repair(msgspec.Struct, frozen=True):
    """What a repair came to."""

    collection: str
    records: int
    vectors: int
    restored: int
    """Records that had no vector, or another's."""
    removed: int
    """Vectors that had no record."""
    dropped: int
    """Wanted vectors whose record was gone."""
    retried: int
    """Intents that had been parked."""
    pending: int
    """Apart, and known before."""
    left: int
    """Intents that were still waiting in the end; not those that were parked again."""


async def repair(outbox: Outbox, *, now: float, seconds: float = 60.0) -> Repair:
    """Mend the collection of `outbox`, and wait up to `seconds` until it is done. Safe to repeat. `now` is unix time.

    Raises:
        SitsError: `state_unavailable`.
    """
    place = outbox.place
    retried = await _retry(outbox, now)
    walk = Walk(place.store, place.vectors, place.collection, now=now, page=outbox.terms.sweep_page)
    records = vectors = pending = 0
    kinds: dict[str, int] = {}
    while (page := await walk.step()) is not None:
        records += page.records
        vectors += page.vectors
        pending += sum(one.pending for one in page.apart)
        for one in page.apart:
            kinds[one.kind] = kinds.get(one.kind, 0) + (not one.pending)
        await outbox.relay.mark(page.apart)
    left = await outbox.settle(seconds=seconds)
    restored = kinds.get("missing", 0) + kinds.get("different", 0)
    removed = kinds.get("orphan", 0) + kinds.get("expired", 0)
    return Repair(place.collection, records, vectors, restored, removed, kinds.get("halved", 0), retried, pending, left)


async def _retry(outbox: Outbox, now: float) -> int:
    """Make new intents of the parked ones; how many."""
    place = outbox.place
    changes = []
    async for row in every(place.store, layout.todo_prefix(place.collection)):
        todo = layout.read_todo(row)
        if todo is not None and todo.parked:
            again = layout.Todo(todo.partition, todo.id, now)
            changes.append(Put(row.key, layout.encode(again), expect=row.version))
    others = 0
    for start in range(0, len(changes), outbox.terms.batch):
        others += len(await commit_each(place.store, changes[start : start + outbox.terms.batch]))
    return len(changes) - others
