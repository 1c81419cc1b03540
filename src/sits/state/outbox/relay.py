"""The relay: it makes the index follow what the store says, intent by intent.

An intent says that an id has changed. The relay reads what is wanted of it then - an item, or nothing - and brings the index to
that, so an intent may be relayed twice, late, or after a newer one: the index gets what is wanted now. It takes the intent away
only when it is still the one that was read; a change that came meanwhile keeps its own, and is relayed after.

A node that stood still past its lease may finish a call with what was wanted long ago. When it then finds the intent gone it
makes a new one, and the id is looked at again; when it dies in just that moment, the sweep finds what it left.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import numpy as np

from sits.inner.errors import Code, SitsError
from sits.inner.stuck import Stuck, still
from sits.ports.store import ABSENT, Add, Change, Delete, Entry, Put, Store
from sits.ports.vectors import Item, Vectors, rules
from sits.state.outbox import layout
from sits.state.outbox.layout import Todo, Undone, Wanted
from sits.state.outbox.lease import Lease
from sits.state.outbox.tally import Tally
from sits.state.outbox.terms import Terms
from sits.state.outbox.walk import Apart, Walk

_log = logging.getLogger("sits.outbox")

COMPLAINT_SECONDS = 60.0
_OTHERS = frozenset(("halved", "unreadable"))
_NEVER = frozenset((Code.INVALID_REQUEST, Code.TOO_LARGE))
"""What an index says of an item that it will not take however often it is asked."""


class Place(msgspec.Struct, frozen=True):
    """Which collection, and in which store and index."""

    store: Store
    vectors: Vectors
    collection: str
    dimension: int


class Job(msgspec.Struct, frozen=True):
    """An intent, and what is wanted of its id at the moment."""

    entry: Entry
    todo: Todo
    wanted: Wanted | None
    wanted_entry: Entry | None


class _Wait(msgspec.Struct, frozen=True):
    """Seconds until the next round: `rest` in any case, then `idle` unless something is written."""

    rest: float = 0.0
    idle: float = 0.0


class Relay:
    """`run` is a task of whoever made it; `turn` is one round of it."""

    def __init__(
        self,
        place: Place,
        terms: Terms,
        tally: Tally,
        *,
        owner: str,
        wall: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self.waiting = 0
        """Intents that the last round met, and that are left."""
        self.oldest: float | None = None
        """When the oldest of them was made; unix seconds."""
        self.trouble = ""
        self.stuck: Stuck | None = None
        """Why the last round failed; empty when it did not."""
        self.wake = asyncio.Event()
        self._place = place
        self._store = place.store
        self._vectors = place.vectors
        self._collection = place.collection
        self._terms = terms
        self._tally = tally
        self._wall = wall
        self._clock = clock
        self._lease = Lease(place.store, layout.lease_key(place.collection), owner, seconds=terms.lease, clock=clock)
        self._walk: Walk | None = None
        self._sweep_at = clock() + terms.sweep
        self._failures = 0
        self._complained = -math.inf
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Relay until `stop`. What goes wrong is logged and tried again."""
        while not self._stopped.is_set():
            self.wake.clear()
            began = self._clock()
            wait = await self._round()
            # What waits for long is looked at in no more than half of the time, however often something is written.
            await _within(self._stopped, max(wait.rest, self._clock() - began))
            await _within(self.wake, wait.idle)

    def stop(self) -> None:
        """`run` ends after the call that it is in."""
        self._stopped.set()
        self.wake.set()

    async def release(self) -> None:
        """Let another node relay, at once."""
        await self._lease.release()

    async def turn(self) -> int:
        """Relay all that is due, once; how many intents were done with. None are, when another node relays.

        Raises:
            SitsError: `state_unavailable`.
        """
        done = waiting = 0
        oldest: float | None = None
        after = ""
        while not self._stopped.is_set() and await self._lease.hold():
            rows = await self._store.scan(layout.todo_prefix(self._collection), after=after, limit=self._terms.batch)
            if not rows:
                self.waiting, self.oldest = waiting, oldest
                break
            jobs = await self._jobs(rows)
            ended = await self._apply([job for job in jobs if self._is_due(job)])
            done += len(ended)
            left = [job.todo.since for job in jobs if job.entry.key not in ended]
            waiting += len(rows) - len(ended)
            oldest = min([*left, *([] if oldest is None else [oldest])], default=None)
            after = rows[-1].key
        return done

    async def sweep(self) -> bool:
        """Compare the next page of records and vectors, and make an intent for what is apart; whether most of it was.

        Raises:
            SitsError: `state_unavailable`.
        """
        if self._walk is None:
            page = self._terms.sweep_page
            self._walk = Walk(self._store, self._vectors, self._collection, now=self._wall(), page=page)
        page_seen = await self._walk.step()
        if page_seen is None:
            self._walk = None
            return False
        marked = await self.mark(page_seen.apart)
        self._tally.healed += marked
        return 2 * marked > page_seen.records + page_seen.vectors

    async def mark(self, apart: Sequence[Apart]) -> int:
        """Make an intent for each id that has none; how many that were. A wanted vector whose record is gone is not wanted any
        more."""
        marked = 0
        for one in apart:
            if one.kind == "halved" and one.wanted is not None:
                marked += await self._drop_half(one)
        changes = [self._intent(one.partition, one.id, ABSENT) for one in apart if one.kind not in _OTHERS and not one.pending]
        return marked + len(changes) - len(await commit_each(self._store, changes))

    # One round of the task.

    async def _round(self) -> _Wait:
        try:
            done = await self.turn()
            soon = done > 0
            if self._lease.held and self._clock() >= self._sweep_at:
                soon = await self.sweep() or soon
                # Where most of a page was apart, as after an hour in which much expired, the next one is looked at at once.
                self._sweep_at = self._clock() + (0.0 if soon else self._terms.sweep)
        except SitsError as error:
            return self._failed(error.message, known=True)
        except Exception as error:  # A defect must not end the relay: nothing would become visible any more.
            return self._failed(f"{type(error).__name__}: {error}", known=False)
        self._failures = 0
        self.trouble, self.stuck = "", None
        return _Wait(idle=0.0 if soon else self._terms.tick)

    def _failed(self, why: str, *, known: bool) -> _Wait:
        self.trouble = why
        self.stuck = still(self.stuck, f"the outbox of {self._collection} waits: {why}", self._wall())
        self._tally.failures += 1
        self._failures += 1
        if self._clock() - self._complained >= COMPLAINT_SECONDS:
            self._complained = self._clock()
            _log.error("the outbox of %s waits: %s", self._collection, why, exc_info=not known)
        return _Wait(rest=min(self._terms.longest_rest, self._terms.rest * 2.0 ** min(self._failures - 1, 30)))

    # Intents.

    async def _jobs(self, rows: Sequence[Entry]) -> list[Job]:
        """Those that can be read; a later version's are left to it, and the audit shows them."""
        todos = [(row, todo) for row in rows if (todo := layout.read_todo(row)) is not None]
        keys = [layout.wanted_key(self._collection, todo.partition, todo.id) for _, todo in todos]
        # Read after the intents: what is wanted is never older than they are.
        found = await self._store.get_many(keys)
        jobs = []
        for (row, todo), entry in zip(todos, found, strict=True):
            wanted = None if entry is None else layout.read_wanted(entry)
            if entry is None or wanted is not None:
                jobs.append(Job(row, todo, wanted, entry))
        return jobs

    def _is_due(self, job: Job) -> bool:
        if job.todo.parked:
            return job.wanted is None  # it has been removed, or has expired
        return job.todo.due <= self._wall()

    async def _apply(self, jobs: Sequence[Job]) -> set[str]:
        """Bring the index to what is wanted, and take the intents away; the keys of those that are done with."""
        failed: dict[str, SitsError] = {}
        by_partition: dict[str, list[Job]] = {}
        for job in jobs:
            by_partition.setdefault(job.todo.partition, []).append(job)
        for partition, group in by_partition.items():
            # First what makes room.
            await self._try(partition, [job for job in group if job.wanted is None], self._delete, failed)
            await self._try(partition, [job for job in group if job.wanted is not None], self._upsert, failed)
        good = [job for job in jobs if job.entry.key not in failed]
        if good:
            # An index may keep what it was told in memory for a while; an intent may go only when that is over.
            await self._vectors.flush()
        ended = await self._end(good)
        for job in jobs:
            if job.entry.key in failed:
                await self._retry(job, failed[job.entry.key])
        return ended

    async def _try(
        self,
        partition: str,
        jobs: Sequence[Job],
        work: Callable[[str, Sequence[Job]], Awaitable[None]],
        failed: dict[str, SitsError],
    ) -> None:
        """Do it for all at once; when that fails, for one after the other, so that one cannot keep the others back."""
        if not jobs:
            return
        try:
            await work(partition, jobs)
        except SitsError as error:
            if error.code is Code.STATE_UNAVAILABLE:
                raise
            if len(jobs) > 1:
                for job in jobs:
                    await self._try(partition, [job], work, failed)
            else:
                failed[jobs[0].entry.key] = error
        except Exception as error:  # What an adapter never should: it must not be tried for ever.
            _log.exception("a defect of the index %s", self._vectors.name)
            told = SitsError(Code.INTERNAL, f"{type(error).__name__}: {error}")
            for job in jobs:
                failed[job.entry.key] = told

    async def _delete(self, partition: str, jobs: Sequence[Job]) -> None:
        try:
            await self._vectors.delete(self._collection, partition, [job.todo.id for job in jobs])
        except SitsError as error:
            if error.code is not Code.NOT_FOUND:
                raise
        self._tally.deleted += len(jobs)

    async def _upsert(self, partition: str, jobs: Sequence[Job]) -> None:
        items = [_item(job.wanted) for job in jobs if job.wanted is not None]
        try:
            await self._vectors.upsert(self._collection, partition, items)
        except SitsError as error:
            if error.code is not Code.NOT_FOUND:
                raise
            # Somebody dropped it. What else was in it is found by the sweep.
            await self._vectors.create(self._collection, self._place.dimension)
            await self._vectors.upsert(self._collection, partition, items)
        self._tally.upserted += len(jobs)

    async def _end(self, jobs: Sequence[Job]) -> set[str]:
        """Take intents away, unless they have become others; the keys of those that are gone."""
        changes = [Delete(job.entry.key, expect=job.entry.version) for job in jobs]
        others = await commit_each(self._store, changes)
        doubtful = [job for job in jobs if job.entry.key in others]
        if doubtful:
            # One that is gone was relayed by another node, perhaps before what we did just now: it has to be looked at again.
            rows = await self._store.get_many([job.entry.key for job in doubtful])
            gone = [job for job, row in zip(doubtful, rows, strict=True) if row is None]
            await commit_each(self._store, [self._intent(job.todo.partition, job.todo.id, ABSENT) for job in gone])
            self._tally.doubted += len(gone)
        return {job.entry.key for job in jobs} - others

    async def _retry(self, job: Job, error: SitsError) -> None:
        """Note that an intent could not be relayed: it is tried again later, undone or parked."""
        todo = job.todo
        reason = f"{error.code.value}: {error.message}"[:500]
        if error.code in _NEVER and job.wanted is not None and self._terms.refused == "undo":
            await self._undo(job, job.wanted, reason)
            return
        tries = todo.tries + 1
        parked = error.code in _NEVER or tries >= self._terms.tries
        due = self._wall() + min(self._terms.longest_rest, self._terms.rest * 2.0**tries)
        noted = msgspec.structs.replace(todo, tries=tries, due=due, error=reason, parked=parked)
        await commit_each(self._store, [Put(job.entry.key, layout.encode(noted), expect=job.entry.version)])
        if parked:
            self._tally.parked += 1
            _log.error("the vector of %r in %s is parked: %s", todo.id, self._collection, reason)

    async def _undo(self, job: Job, wanted: Wanted, reason: str) -> None:
        """Take the record back: the index never takes its vector. The intent stays, so that an older vector goes too."""
        assert job.wanted_entry is not None
        todo = job.todo
        number = (await self._store.add([Add(layout.undone_counter(self._collection), 1)])).totals[0]
        undone = Undone(wanted.record, todo.partition, todo.id, self._wall(), reason)
        changes: list[Change] = [
            Delete(wanted.record),
            Delete(job.wanted_entry.key, expect=job.wanted_entry.version),
            Put(job.entry.key, layout.encode(Todo(todo.partition, todo.id, todo.since)), expect=job.entry.version),
            Put(layout.undone_key(self._collection, number), layout.encode(undone), ttl=layout.UNDONE_TTL),
        ]
        try:
            await self._store.commit(changes)
        except SitsError as error:
            if error.code is not Code.CONFLICT:
                raise
            return  # It was written anew, or removed: that has its own intent.
        self._tally.undone += 1
        _log.error("the record %r is undone, since its vector was refused: %s", wanted.record, reason)

    async def _drop_half(self, one: Apart) -> bool:
        assert one.wanted is not None
        wanted = layout.read_wanted(one.wanted)
        if wanted is None:
            return False
        gone = [Delete(wanted.record, expect=ABSENT), Delete(one.wanted.key, expect=one.wanted.version)]
        try:
            await self._store.commit([*gone, self._intent(one.partition, one.id, None)])
        except SitsError as error:
            if error.code is not Code.CONFLICT:
                raise
            return False
        return True

    def _intent(self, partition: str, id: str, expect: int | None) -> Put:
        return intent(self._collection, partition, id, self._wall(), expect)


def intent(collection: str, partition: str, id: str, now: float, expect: int | None = None) -> Put:
    """The change that makes an intent."""
    return Put(layout.todo_key(collection, partition, id), layout.encode(Todo(partition, id, now)), expect=expect)


async def commit_each(store: Store, changes: Sequence[Change]) -> set[str]:
    """Make those changes whose expectations hold, in one commit; the keys of the others."""
    left, others = list(changes), set[str]()
    while left:
        try:
            await store.commit(left)
            break
        except SitsError as error:
            if error.code is not Code.CONFLICT or error.param is None:
                raise
            others.add(error.param)
            left = [change for change in left if change.key != error.param]
    return others


async def _within(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, but no longer."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


def _item(wanted: Wanted) -> Item:
    return Item(wanted.id, np.frombuffer(wanted.vector, dtype=np.float32), rules.unpacked(wanted.fields))
