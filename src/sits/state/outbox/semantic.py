"""The `Writer` of a semantic cache whose answers are in the store that all nodes share: answer and vector through an outbox."""

from __future__ import annotations

from sits.inner.errors import Code, SitsError
from sits.ports.vectors.base import Item
from sits.state.cache import shared
from sits.state.cache.semantic import Place, Record
from sits.state.cache.shared import SharedCache
from sits.state.outbox.outbox import Outbox


class OutboxWriter:
    """Give it to `SemanticCache(writer=...)`, with the `SharedCache` that its `SharedAnswers` have and an outbox of its
    collection: `semantic.cache.collection(embedder)`, of the embedder's dimension."""

    def __init__(self, outbox: Outbox, answers: SharedCache) -> None:
        self._outbox = outbox
        self._answers = answers

    async def write(self, record: Record, place: Place, item: Item, now: float) -> bool:
        """Keep an answer and its vector; not when it is stale or too large, nor while too much waits for the index."""
        row = shared.put(record.key, record.answer, now, record.since)
        if row is None:
            return False
        try:
            await self._outbox.write(place.partition, item, row)
        except SitsError as error:
            if error.code is Code.OVERLOADED:
                return False
            raise
        self._answers.own.store(record.key, record.answer, now, record.since.own)
        return True

    async def remove(self, place: Place) -> None:
        """Take an answer and its vector away."""
        await self._outbox.remove(place.partition, place.id)
        self._answers.own.discard(bytes.fromhex(place.id))
