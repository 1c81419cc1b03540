"""Where the answers of the semantic cache lie: a room of their own, with its own limit, eviction and clock.

`HeldAnswers` is this process's, `SharedAnswers` that of all nodes over the store port. Each wraps an instance of the exact
cache's classes that nothing else uses, so that what happens to one cache never cools the other.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from sits.inner.errors import Code, SitsError
from sits.state.cache.answer import Answer
from sits.state.cache.eviction import Eviction, Limit
from sits.state.cache.exact import ExactCache
from sits.state.cache.rules import ANY, Wish
from sits.state.cache.shared import SharedCache
from sits.state.cache.tinylfu import TinyLfu


class Answers(Protocol):
    """Answers by key. Times are unix seconds and passed in."""

    durable: bool
    """Whether answers outlive this process."""

    @property
    def moment(self) -> Any:
        """To be noted when an answer is asked for, and given to `put` with it: an answer that a purge meant is not kept."""
        ...

    def held(self, key: bytes, now: float, wish: Wish = ANY) -> Answer | None:
        """What this process has, without asking anybody. Misses are learnt from."""
        ...

    async def get(self, key: bytes, now: float, wish: Wish = ANY) -> Answer | None:
        """What there is, fresh and as wished for.

        Raises:
            SitsError: `state_unavailable`: it is not known.
        """
        ...

    async def put(self, key: bytes, answer: Answer, now: float, since: Any) -> bool:
        """Keep an answer; whether it is kept."""
        ...

    async def delete(self, key: bytes) -> None:
        """Forget an answer; one that is not there is no error."""
        ...

    async def purge(self, *tags: str) -> int:
        """Forget all answers with all these tags, all answers for none; how many this process held."""
        ...

    async def soften(self, at: float, *tags: str) -> int:
        """Make all answers with all these tags, all answers for none, stale from `at` on; how many this process held."""
        ...

    def sweep(self, now: float) -> int:
        """Give back the space of some stale answers of this process; returns how many."""
        ...

    def gone(self, limit: int) -> list[bytes]:
        """At most `limit` keys that this process let go of since the last call: evicted, stale, purged."""
        ...


class Watched:
    """An eviction that remembers what went: `cap` keys at the most, the newest."""

    def __init__(self, inner: Eviction, cap: int) -> None:
        self._inner = inner
        self.limit = inner.limit
        self.weight = inner.weight
        self.gone: deque[bytes] = deque(maxlen=cap)

    def touch(self, key: bytes, now: float) -> bool:
        return self._inner.touch(key, now)

    def add(self, key: bytes, weight: int, now: float) -> list[bytes]:
        went = self._inner.add(key, weight, now)
        self.weight = self._inner.weight
        self.gone.extend(went)
        return went

    def remove(self, key: bytes) -> None:
        self._inner.remove(key)
        self.weight = self._inner.weight
        self.gone.append(key)

    def __contains__(self, key: bytes) -> bool:
        return key in self._inner

    def __len__(self) -> int:
        return len(self._inner)


class HeldAnswers:
    """The answers of one process, within a limit; W-TinyLFU chooses what goes."""

    durable = False

    def __init__(self, limit: Limit) -> None:
        self._eviction = Watched(TinyLfu(limit), 2 * limit.entries)
        self.cache = ExactCache(self._eviction)

    @property
    def moment(self) -> int:
        return self.cache.moment

    def held(self, key: bytes, now: float, wish: Wish = ANY) -> Answer | None:
        return self.cache.lookup(key, now, wish)

    async def get(self, key: bytes, now: float, wish: Wish = ANY) -> Answer | None:
        return self.cache.lookup(key, now, wish)

    async def put(self, key: bytes, answer: Answer, now: float, since: int) -> bool:
        return self.cache.store(key, answer, now, since)

    async def delete(self, key: bytes) -> None:
        self.cache.discard(key)

    async def purge(self, *tags: str) -> int:
        return self.cache.purge(*tags)

    async def soften(self, at: float, *tags: str) -> int:
        return self.cache.soften(at, *tags)

    def sweep(self, now: float) -> int:
        return self.cache.sweep(now)

    def gone(self, limit: int) -> list[bytes]:
        return _drained(self._eviction, limit, self.cache)


class SharedAnswers:
    """The answers of all nodes: a small room in this process and the store behind it."""

    durable = True

    def __init__(self, shared: SharedCache) -> None:
        self.cache = shared

    @property
    def moment(self) -> Any:
        return self.cache.moment

    def held(self, key: bytes, now: float, wish: Wish = ANY) -> Answer | None:
        return self.cache.lookup(key, now, wish)

    async def get(self, key: bytes, now: float, wish: Wish = ANY) -> Answer | None:
        held = self.cache.lookup(key, now, wish)
        if held is not None:
            return held
        tally = self.cache.tally
        unanswered = tally.failures + tally.skipped
        found = await self.cache.fetch(key, now, wish)
        if found is None and tally.failures + tally.skipped > unanswered:
            raise SitsError(Code.STATE_UNAVAILABLE, "the store of the semantic cache does not answer")
        return found

    async def put(self, key: bytes, answer: Answer, now: float, since: Any) -> bool:
        return self.cache.store(key, answer, now, since)

    async def delete(self, key: bytes) -> None:
        # The store's copy ends with its time to live; without a vector nothing leads to it but its own question.
        self.cache.own.discard(key)

    async def purge(self, *tags: str) -> int:
        return await self.cache.purge(*tags)

    async def soften(self, at: float, *tags: str) -> int:
        return await self.cache.soften(at, *tags)

    def sweep(self, now: float) -> int:
        return self.cache.own.sweep(now)

    def gone(self, limit: int) -> list[bytes]:
        # What this process let go of may be in the store still: its vector stays, until a lookup finds nothing behind it.
        return []


def _drained(watched: Watched, limit: int, cache: ExactCache) -> list[bytes]:
    found = [watched.gone.popleft() for _ in range(min(limit, len(watched.gone)))]
    return [key for key in found if key not in watched]
