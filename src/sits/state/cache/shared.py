"""The exact cache of all nodes: a small one in each process, and the store port behind it.

    lookup   this process's own cache: a plain call, as in `ExactCache`
    fetch    the store, one round trip; what it has is taken into the own cache
    store    both; the store's part is done behind the answer
    purge    the store's part first, so that when it has returned no node gets a purged answer from the store

Purges go by versions, which rise through the whole store: `cache/purge/...` rows say what was purged, and one row,
`cache/purges`, changes with each. `fetch` reads that row in the same round trip as the answer, so it needs no more than that
to know whether it has heard of every purge. An answer is stored with the version that was known when it was asked for; one
that a later purge means is not given out. Other nodes' own caches learn of a purge when they next look (`refresh`, every
second), or fetch. A soft purge is a row of the same kind with its moment in it: what it means is stale from then on, wherever it
lies. Another one of the same tags takes its place, and what lies in the store is stale from that one on.

A store that does not answer is not waited for: each call is bounded, and after a failure nothing is asked of it for a while.
What happens then is what happens without a cache. No call here raises for it, except `purge`, whose caller must know.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any

import msgspec
from blake3 import blake3

from sits.inner.errors import SitsError
from sits.ports.store import LARGEST_VALUE, Put, Store, every
from sits.state.cache.answer import Answer
from sits.state.cache.exact import ExactCache
from sits.state.cache.rules import ANY, Wish

_log = logging.getLogger("sits.cache")

ANSWERS = "cache/answer/"
PURGE = "cache/purge/"
PURGES = "cache/purges"
LONGEST_TTL = 7 * 24 * 3600.0
"""Seconds that an answer may lie in the store."""
PURGE_TTL = LONGEST_TTL + 3600.0
"""Seconds that a purge is remembered there: longer than any answer that was asked for before it."""
MOST_WRITES = 256
"""Answers on their way to the store at once; more are kept by this process only."""


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """An answer as it lies in the store."""

    known: int
    """The newest purge that had been heard of when the answer was asked for."""
    answer: Answer


class _Purge(msgspec.Struct, frozen=True, array_like=True):
    tags: tuple[str, ...]
    soft: float | None = None
    """From when on what it means is stale; None: forget it, as versions without this field do."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Kept).decode
_decode_purge = msgspec.msgpack.Decoder(_Purge).decode


class Moment(msgspec.Struct, frozen=True):
    """What was known when an answer was asked for; `store` is given it."""

    own: int
    known: int


class SharedTally(msgspec.Struct):
    hits: int = 0
    misses: int = 0
    stored: int = 0
    unwritten: int = 0
    """Answers that the store did not get: too many on their way, too large, or no store."""
    unreadable: int = 0
    failures: int = 0
    """Calls that the store did not answer, or not in time."""
    skipped: int = 0
    """Calls not made because of a failure just before."""


class SharedCache:
    """Two levels. Belongs to the loop that it is made in; ended by `aclose`."""

    def __init__(
        self,
        own: ExactCache,
        store: Store,
        *,
        loop: asyncio.AbstractEventLoop,
        patience: float = 0.05,
        rest: float = 1.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`patience`: seconds that a request waits for the store. `rest`: seconds, on `clock`, that nothing is asked of it after
        a failure."""
        self._clock = clock
        self.own = own
        self.tally = SharedTally()
        self._store = store
        self._loop = loop
        self._patience = patience
        self._rest = rest
        self._rests_until = float("-inf")
        self._known = 0
        """The newest purge that we have heard of: a version."""
        self._purges: list[tuple[int, _Purge]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writes = 0

    def sibling(self, own: ExactCache) -> SharedCache:
        """Another cache with the same store, patience and clock; what happens to one never cools the other."""
        return SharedCache(own, self._store, loop=self._loop, patience=self._patience, rest=self._rest, clock=self._clock)

    @property
    def moment(self) -> Moment:
        """To be noted when an answer is asked for."""
        return Moment(self.own.moment, self._known)

    @property
    def resting(self) -> bool:
        """Whether the store is left alone after a failure."""
        return self._clock() < self._rests_until

    def lookup(self, fingerprint: bytes, now: float, wish: Wish = ANY) -> Answer | None:
        """From this process's own cache."""
        return self.own.lookup(fingerprint, now, wish)

    async def fetch(self, fingerprint: bytes, now: float, wish: Wish = ANY) -> Answer | None:
        """From the store; None when it has nothing, or does not answer in time."""
        if not wish.read:
            return None
        moment = self.own.moment
        kept: _Kept | None = await self._bounded(self._read(fingerprint), self._patience)
        answer = self._left(kept) if kept is not None else None
        if answer is None or answer.expires <= now or not wish.accepts(answer, now):
            self.tally.misses += 1
            return None
        self.tally.hits += 1
        self.own.store(fingerprint, answer, now, moment)
        return answer

    def store(self, fingerprint: bytes, answer: Answer, now: float, since: Moment) -> bool:
        """Keep an answer here and, behind the scenes, in the store; whether it is kept here."""
        held = self.own.store(fingerprint, answer, now, since.own)
        row = put(fingerprint, answer, now, since)
        if row is None or self._writes >= MOST_WRITES or self.resting:
            self.tally.unwritten += 1
            return held
        self._writes += 1
        self._task(self._write(row))
        return held

    async def purge(self, *tags: str) -> int:
        """Forget all answers with all these tags (without any: all answers), on all nodes; returns how many this process held.

        Raises:
            SitsError: `state_unavailable`: this process has forgotten them, whether the others will is not known. Safe to repeat.
        """
        return await self._purge(_Purge(_sorted(tags)))

    async def soften(self, at: float, *tags: str) -> int:
        """Make all answers with all these tags (without any: all answers) stale from `at` on, on all nodes; returns how many this
        process held.

        Raises:
            SitsError: as `purge`.
        """
        return await self._purge(_Purge(_sorted(tags), at))

    async def _purge(self, purge: _Purge) -> int:
        # One row for the same tags, however often: a soft purge's moment is no part of its name.
        name = _encode(_Purge(purge.tags) if purge.soft is None else _Purge(purge.tags, 0.0))
        changes = [Put(PURGE + blake3(name).hexdigest(), _encode(purge), PURGE_TTL), Put(PURGES, b"", PURGE_TTL)]
        try:
            version = await self._store.commit(changes)
        finally:
            count = self._forget(purge)
        try:
            await self._hear(version)
        except SitsError as error:
            self._failed(error.message)  # The purge itself is done; `refresh` will hear of it.
        return count

    def _forget(self, purge: _Purge) -> int:
        """Do to our own cache what a purge means."""
        return self.own.purge(*purge.tags) if purge.soft is None else self.own.soften(purge.soft, *purge.tags)

    async def refresh(self) -> None:
        """Hear of purges made elsewhere. To be called about once a second; does nothing while the store does not answer."""
        await self._bounded(self._hear_if_new(), self._patience)

    async def settle(self) -> None:
        """Wait until all that is on its way to the store has got there or failed."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def aclose(self) -> None:
        """End what is under way. The store itself belongs to whoever opened it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # What is asked of the store.

    async def _read(self, fingerprint: bytes) -> _Kept | None:
        entry, purges = await self._store.get_many([_key(fingerprint), PURGES])
        if purges is not None and purges.version > self._known:
            await self._hear(purges.version)
        if entry is None:
            return None
        try:
            return _decode(entry.value)
        except (msgspec.MsgspecError, RecursionError):
            self.tally.unreadable += 1
            return None

    def _left(self, kept: _Kept) -> Answer | None:
        """What the purges since have left of it: the answer, the answer gone stale, or nothing."""
        own, answer = set(kept.answer.tags), kept.answer
        for version, purge in self._purges:
            if version > kept.known and own.issuperset(purge.tags):
                if purge.soft is None or not answer.stale:
                    return None
                answer = answer.softened(purge.soft)
        return answer

    async def _hear_if_new(self) -> None:
        purges = await self._store.get(PURGES)
        if purges is not None and purges.version > self._known:
            await self._hear(purges.version)

    async def _hear(self, version: int) -> None:
        """Learn of all purges up to that version, and purge our own cache of what is new in them."""
        purges = [(row.version, _purge_in(row.value)) async for row in every(self._store, PURGE)]
        before = self._known
        if version < before:
            return  # Another call has heard of more meanwhile.
        self._known, self._purges = version, purges
        for made, purge in purges:
            if made > before:
                self._forget(purge)

    async def _write(self, put: Put) -> None:
        try:
            await self._store.commit([put])
            self.tally.stored += 1
        except SitsError:
            self.tally.unwritten += 1
            raise
        finally:
            self._writes -= 1

    # How long, and by whom.

    async def _bounded(self, work: Coroutine[Any, Any, Any], seconds: float) -> Any:
        """What the work returns; None when it fails or takes too long, or when the store rests.

        The work gets a task, as stores need one; what waits here need not be one.
        """
        if self.resting:
            work.close()
            self.tally.skipped += 1
            return None
        task = self._task(work)
        done: asyncio.Future[None] = self._loop.create_future()
        timer = self._loop.call_later(seconds, _set, done)
        task.add_done_callback(lambda _: _set(done))
        try:
            await done
        finally:
            timer.cancel()
            late = not task.done()
            if late:
                task.cancel()
        if late:
            self._failed(f"no answer within {seconds:g} s")
            return None
        if task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    def _failed(self, said: str) -> None:
        self.tally.failures += 1
        if not self.resting:
            _log.warning("the shared cache is left alone for %g s: %s", self._rest, said)
        self._rests_until = self._clock() + self._rest

    def _task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, SitsError):
            self._failed(error.message)
        elif error is not None:
            _log.error("a defect in the shared cache", exc_info=error)


def put(fingerprint: bytes, answer: Answer, now: float, since: Moment) -> Put | None:
    """The change that keeps an answer in the store; None for one that is stale or too large."""
    ttl = min(answer.expires - now, LONGEST_TTL)
    value = _encode(_Kept(since.known, answer))
    return Put(_key(fingerprint), value, ttl) if ttl > 0 and len(value) <= LARGEST_VALUE else None


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _sorted(tags: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(tags)))


def _purge_in(value: bytes) -> _Purge:
    """What a purge meant; everything where that cannot be read, as it may be a later version's."""
    try:
        return _decode_purge(value)
    except (msgspec.MsgspecError, RecursionError):
        return _Purge(())


def _key(fingerprint: bytes) -> str:
    return ANSWERS + fingerprint.hex()
