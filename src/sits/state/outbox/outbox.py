"""A record in the store and its vector in an index, written as if they were one: a transactional outbox.

    write    record, wanted vector and intent in one commit of the store: all of it is there, or nothing
    relay    one node brings the index to what is wanted, and takes the intent away                          (`relay`)
    sweep    the same node compares the two all the while, a page at a time, and makes intents for what is apart

The store is the truth and the index follows it. The wanted vector lies beside the record (4 bytes for each dimension), so that an
index that was lost is filled again without asking whoever made the vectors. The pattern: Richardson, "Microservices Patterns",
2018, ch. 3; to relay the state instead of the step is what makes it safe to relay twice, late, and by two.

What is seen in between, from `write` until the relay has done it, a few milliseconds on the node that relays, a `tick` more on
others, longer while the index is away:

- A new record is in the store and is not found by its vector.
- A record that was written over is found by its old vector. What is read is the new record.
- A record that was removed may be found by its vector. Then nothing is in the store: a reader treats it as not found, and calls
  `heal`. The same holds for a record that has expired, until the sweep gets to it.

So a reader that takes what the index says as a proposal, and reads the record, sees no record that is not there, and none that is
only half there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from sits.inner.errors import Code, SitsError
from sits.ports.store import ABSENT, Change, Delete, Put, Store
from sits.ports.vectors import Item, Vectors, rules
from sits.state.outbox import layout
from sits.state.outbox.layout import Collection, Wanted
from sits.state.outbox.relay import Place, Relay, commit_each, intent
from sits.state.outbox.tally import Tally
from sits.state.outbox.terms import Terms
from sits.state.outbox.walk import EXPIRES

LOOK_SECONDS = 1.0
"""How often it is counted what waits, while something is written."""
_WAIT_SECONDS = 0.05


class Outbox:
    """The pairs of one collection. Belongs to the loop that it is used in; `start` before anything else, ended by `aclose`.

    Store and index belong to whoever opened them, and must outlive it. An id keeps the key of its record for ever.
    """

    def __init__(
        self,
        store: Store,
        vectors: Vectors,
        collection: str,
        dimension: int,
        *,
        owner: str,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        terms: Terms | None = None,
    ) -> None:
        """`owner` is unlike that of every process there is and was; `wall` is unix time, `clock` counts seconds from anywhere.

        Raises:
            SitsError: `invalid_request`, such a collection cannot be.
        """
        self.tally = Tally()
        self.terms = terms or Terms()
        self.place = Place(store, vectors, rules.collection_name(collection), rules.dimension(dimension))
        self.relay = Relay(self.place, self.terms, self.tally, owner=owner, wall=wall, clock=clock)
        self._store = store
        self._collection = collection
        self._wall = wall
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._counted = 0
        self._counted_at = float("-inf")

    async def start(self, *, relay: bool = True) -> None:
        """Make the collection, and begin to relay. Without `relay` it only writes: for a process that ends soon.

        Raises:
            SitsError: `conflict`, it is there with another dimension; `state_unavailable`.
        """
        place = self.place
        await place.vectors.create(place.collection, place.dimension)
        key, value = layout.collection_key(place.collection), layout.encode(Collection(place.dimension))
        row = await self._store.get(key)
        if row is None or row.value != value:
            await self._store.commit([Put(key, value)])
        if relay and self._task is None:
            self._task = asyncio.create_task(self.relay.run(), name=f"outbox {place.collection}")

    async def write(self, partition: str, item: Item, record: Put) -> None:
        """Keep a record and its vector. When it has returned both will be there, come what may; see above for when.

        An `expect` and a `ttl` of the record hold for the record, and the vector goes as it does: with a `ttl` the item has a
        field `expires`, in unix seconds. Safe to repeat.

        Raises:
            SitsError: `invalid_request`, the record or the item is not one that may be; `conflict`, the `expect` did not hold;
                `overloaded`, too much waits for the index; `state_unavailable`: it is not known whether it is kept.
        """
        rules.text(partition, "partition")
        if record.ttl is not None:
            item = Item(item.id, item.vector, {**item.fields, EXPIRES: self._wall() + record.ttl})
        ((id, vector, fields),) = rules.items([item], self.place.dimension)
        await self._room()
        wanted = Wanted(record.key, partition, id, vector.tobytes(), fields)
        await self._store.commit(
            [
                record,
                Put(layout.wanted_key(self._collection, partition, id), layout.encode(wanted), ttl=record.ttl),
                intent(self._collection, partition, id, self._wall()),
            ]
        )
        self.tally.written += 1
        self._counted += 1
        self.relay.wake.set()

    async def remove(self, partition: str, id: str) -> None:
        """Take a record and its vector away; what is not there is no error. Always taken, also when too much waits.

        Raises:
            SitsError: `invalid_request`; `state_unavailable`: it is not known whether it is there. Safe to repeat.
        """
        rules.text(partition, "partition"), rules.text(id, "id")
        key = layout.wanted_key(self._collection, partition, id)
        row = await self._store.get(key)
        changes: list[Change] = [intent(self._collection, partition, id, self._wall())]
        if row is not None:
            wanted = layout.read_wanted(row)
            if wanted is None:
                raise SitsError(Code.CONFLICT, f"{id!r} was written by a later version, which has to remove it")
            changes += [Delete(wanted.record), Delete(key)]
        await self._store.commit(changes)
        self.tally.removed += 1
        self.relay.wake.set()

    async def heal(self, partition: str, ids: Sequence[str]) -> None:
        """Have ids looked at that a reader found apart. Harmless where they are not.

        Raises:
            SitsError: `invalid_request`; `state_unavailable`.
        """
        rules.text(partition, "partition")
        named = dict.fromkeys(rules.text(id, "id") for id in ids)
        now = self._wall()
        await commit_each(self._store, [intent(self._collection, partition, id, now, ABSENT) for id in named])
        self.relay.wake.set()

    async def settle(self, *, seconds: float) -> int:
        """Wait until nothing waits that is not parked, or until `seconds` have passed; how many intents are left then.

        Relays by itself where there is no task that does.

        Raises:
            SitsError: `state_unavailable`, and there is no task that would try again.
        """
        until = self._clock() + seconds
        while True:
            if self._task is None:
                await self.relay.turn()
            left = await self._count(parked=False)
            if left == 0 or self._clock() >= until:
                return left
            self.relay.wake.set()
            await asyncio.sleep(_WAIT_SECONDS)

    async def aclose(self) -> None:
        """Stop relaying; what waits is relayed by another node, or after the next start. Safe to repeat."""
        task, self._task = self._task, None
        if task is not None:
            self.relay.stop()
            await task
        await self.relay.release()

    async def _room(self) -> None:
        """Return when there is room for an intent, or raise."""
        until = self._clock() + (self.terms.patience if self.terms.full == "wait" else 0.0)
        while not await self._has_room():
            if self._clock() >= until:
                self.tally.refused += 1
                message = f"{self._counted} changes wait for the index {self.place.vectors.name} already"
                raise SitsError(Code.OVERLOADED, message, retry_after=LOOK_SECONDS)
            await asyncio.sleep(_WAIT_SECONDS)

    async def _has_room(self) -> bool:
        now = self._clock()
        full = self._counted >= self.terms.backlog
        if now - self._counted_at >= (_WAIT_SECONDS if full else LOOK_SECONDS):
            self._counted = await self._count(parked=True)
            self._counted_at = now
        return self._counted < self.terms.backlog

    async def _count(self, *, parked: bool) -> int:
        """How many intents wait; it is not counted far beyond what may."""
        prefix = layout.todo_prefix(self._collection)
        count, after = 0, ""
        while count <= self.terms.backlog and (page := await self._store.scan(prefix, after=after)):
            if parked:
                count += len(page)
            else:
                count += sum((todo := layout.read_todo(row)) is None or not todo.parked for row in page)
            after = page[-1].key
        return count
