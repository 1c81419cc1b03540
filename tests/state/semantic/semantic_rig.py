"""What the tests of the semantic cache share: a cache on the index in memory, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from sits.ports.vectors.memory import MemoryVectors
from sits.state.cache.answer import Answer
from sits.state.cache.eviction import Limit
from sits.state.cache.semantic import HeldAnswers, Query, SemanticCache, WordLlama

NOW = 1_800_000_000.0
HOUR = 3600.0
EMBEDDER = WordLlama(128)
ROOM = Limit(64 * 1024 * 1024, 10_000)


class Rig:
    """A cache, its parts, and a clock."""

    def __init__(self, limit: Limit = ROOM, vectors: MemoryVectors | None = None, **more: object) -> None:
        self.time = 0.0
        self.vectors = vectors or MemoryVectors()
        self.answers = HeldAnswers(limit)
        settings: Mapping[str, object] = {"embedder": EMBEDDER, "vectors": self.vectors, "answers": self.answers} | more
        self.cache = SemanticCache(clock=lambda: self.time, **settings)  # type: ignore[arg-type]

    async def started(self) -> Rig:
        await self.cache.start()
        return self

    async def keep(self, text: str, now: float = NOW, tags: tuple[str, ...] = (), **query: object) -> bool:
        """Store the answer to `text`."""
        return await self.cache.store(asked(text, **query), answered(text, now, tags), now, self.cache.moment)

    async def find(self, text: str, now: float = NOW, **query: object) -> str | None:
        """The question whose answer `text` gets."""
        found = await self.cache.lookup(asked(text, **query), now)
        return None if found is None else found.text

    async def vectors_held(self, partition: str = "p") -> int:
        return await self.vectors.count(self.cache.collection, partition)


def asked(text: str, **query: object) -> Query:
    return Query(text, **{"partition": "p", **query})  # type: ignore[arg-type]


def body(text: str, finish: str = "stop") -> bytes:
    message = {"role": "assistant", "content": text}
    return msgspec.json.encode({"choices": [{"index": 0, "message": message, "finish_reason": finish}]})


def answered(text: str, now: float = NOW, tags: tuple[str, ...] = (), finish: str = "stop") -> Answer:
    return Answer("chat", body("the answer to " + text, finish), made=now, expires=now + HOUR, tags=tags)
