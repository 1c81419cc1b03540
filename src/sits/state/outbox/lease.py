"""Which node does something: a row that expires.

It keeps two nodes from doing the same work; it does not keep a node that stood still from finishing a call which it had begun
(Kleppmann, "How to do distributed locking", 2016), so what is done under it must be right if two do it.
"""

from __future__ import annotations

from collections.abc import Callable

from sits.inner.errors import Code, SitsError
from sits.ports.store import ABSENT, Delete, Put, Store


class Lease:
    """A lease on `key`, for `seconds` on `clock`. `owner` must be unlike that of every other process."""

    def __init__(self, store: Store, key: str, owner: str, *, seconds: float, clock: Callable[[], float]) -> None:
        self._store = store
        self._key = key
        self._owner = owner.encode()
        self._seconds = seconds
        self._clock = clock
        self._version = ABSENT
        self._until = float("-inf")

    @property
    def held(self) -> bool:
        """Whether nobody else can have it."""
        return self._clock() < self._until

    async def hold(self) -> bool:
        """Take it, or renew it once half of it has passed; False when another node has it.

        Raises:
            SitsError: `state_unavailable`: it is not known.
        """
        now = self._clock()
        if now < self._until - self._seconds / 2:
            return True
        # What it was is not sure until the call has answered; counted from before, it ends here no later than in the store.
        self._until = float("-inf")
        if not await self._put(self._version) and not await self._again():
            self._version = ABSENT
            return False
        self._until = now + self._seconds
        return True

    async def release(self) -> None:
        """Let the next one have it at once."""
        if self._version == ABSENT:
            return
        version, self._version, self._until = self._version, ABSENT, float("-inf")
        try:
            await self._store.commit([Delete(self._key, expect=version)])
        except SitsError as error:
            # Another has it by now, or it runs out by itself.
            if error.code not in (Code.CONFLICT, Code.STATE_UNAVAILABLE):
                raise

    async def _put(self, expect: int) -> bool:
        try:
            self._version = await self._store.commit([Put(self._key, self._owner, ttl=self._seconds, expect=expect)])
        except SitsError as error:
            if error.code is Code.CONFLICT:
                return False
            raise
        return True

    async def _again(self) -> bool:
        """The row is not as we knew it: it ran out, or an answer was lost and it is ours after all."""
        row = await self._store.get(self._key)
        if row is None:
            return await self._put(ABSENT)
        return row.value == self._owner and await self._put(row.version)
