"""The semantic cache: an answer to the same question in other words.

    read      the question's ideas, numbers, names, polarity ...       (`reading`)
    recall    the nearest questions of its partition, by vector        (the vectors port)
    guard     those that say something else are dropped                (`guards`)
    rank      the rest by score; the best above the threshold is it    (`score`)

False hits are worse than none, so the vector only proposes. Where the index or the store does not answer, a lookup is a miss and
nothing is stored: no call here raises for it, except `purge`. After a failure nothing is asked for a while.

What lies in two places (answer and vector) is written through one interface, `Writer`. An answer without a vector is only found
by its own words and ends with its time; a vector without an answer is a miss that is taken away when it is met.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from blake3 import blake3

from sits.inner.errors import Code, SitsError
from sits.ports.vectors.base import Hit, Item, Vectors
from sits.state.cache.answer import Answer
from sits.state.cache.rules import ANY, Wish, fault
from sits.state.cache.semantic.answers import Answers
from sits.state.cache.semantic.embedder import Embedder
from sits.state.cache.semantic.guards import contradiction
from sits.state.cache.semantic.lexicon import LANGUAGES, sections
from sits.state.cache.semantic.query import Policy, Query
from sits.state.cache.semantic.reading import Reading, read
from sits.state.cache.semantic.score import score

_log = logging.getLogger("sits.cache.semantic")

READING = 1
"""Raised when readings come out otherwise by the code; a change of the tables is seen without it."""
PAGE = 256
"""Vectors that one `sweep` looks through."""
TIDIED = 64
"""Vectors without an answer that one call takes away at the most."""


_POLICY = Policy()


class Found(msgspec.Struct, frozen=True):
    """A hit: the answer, the question that it was given to, and how alike the two are."""

    answer: Answer
    score: float
    text: str
    key: bytes


class Record(msgspec.Struct, frozen=True):
    """What is kept of an answer beside its vector. `since` is the answers' `moment` of when it was asked for."""

    key: bytes
    answer: Answer
    since: Any = None


class Place(msgspec.Struct, frozen=True):
    """Where a vector lies."""

    collection: str
    partition: str
    id: str


class Writer(Protocol):
    """Writes to both places; an outbox may stand behind it. Both calls are safe to repeat."""

    async def write(self, record: Record, place: Place, item: Item, now: float) -> bool:
        """Keep an answer and its vector; whether both are kept."""
        ...

    async def remove(self, place: Place) -> None:
        """Take a vector and its answer away."""
        ...


class Straight:
    """Writes the answer, then the vector; removes the vector, then the answer: what a crash leaves is harmless."""

    def __init__(self, answers: Answers, vectors: Vectors) -> None:
        self._answers = answers
        self._vectors = vectors

    async def write(self, record: Record, place: Place, item: Item, now: float) -> bool:
        if not await self._answers.put(record.key, record.answer, now, record.since):
            return False
        await self._vectors.upsert(place.collection, place.partition, [item])
        return True

    async def remove(self, place: Place) -> None:
        await self._vectors.delete(place.collection, place.partition, [place.id])
        await self._answers.delete(bytes.fromhex(place.id))


class Tally(msgspec.Struct):
    """What happened so far: plain counters that metrics read out."""

    hits: int = 0
    worded: int = 0
    """Hits that had the very same words."""
    misses: int = 0
    guarded: dict[str, int] = {}
    """Neighbours that a guard dropped, by guard."""
    below: int = 0
    """Neighbours that passed the guards below the threshold."""
    dangling: int = 0
    """Vectors met without an answer, and taken away."""
    stored: int = 0
    unfit: int = 0
    """Answers not stored because they are not good ones, or the question cannot be compared."""
    failures: int = 0
    """Calls that index or store did not answer."""
    skipped: int = 0
    """Calls not made because of a failure just before."""


class SemanticCache:
    """Answers by the meaning of questions. Belongs to the loop that it is used in; `start` before anything else."""

    def __init__(
        self,
        *,
        embedder: Embedder,
        vectors: Vectors,
        answers: Answers,
        writer: Writer | None = None,
        clock: Callable[[], float],
        rest: float = 1.0,
        entries: int = 65536,
        owner: str = "",
    ) -> None:
        """`clock` counts seconds; `rest`: seconds that nothing is asked for after a failure. `entries`: of how many entries this
        process remembers where their vectors lie, so that it can take them away with the answers. `owner`: who has a collection
        of his own, where processes share an index but not their answers."""
        self.tally = Tally()
        self._embedder = embedder
        self._vectors = vectors
        self._answers = answers
        self._writer = writer or Straight(answers, vectors)
        self._clock = clock
        self._rest = rest
        self._rests_until = float("-inf")
        self._entries = entries
        self._places: OrderedDict[bytes, Place] = OrderedDict()
        self._walk: list[tuple[str, str]] = []
        """Partitions that `sweep` has still to look through, and from where on; the next one last."""
        self.collection = collection(embedder, owner)

    @property
    def moment(self) -> Any:
        """To be noted when an answer is asked for; `store` is given it."""
        return self._answers.moment

    async def start(self) -> None:
        """Make the collection ready. Where answers end with the process, so do their vectors.

        Raises:
            SitsError: `state_unavailable`.
        """
        if not self._answers.durable:
            await self._vectors.create(self.collection, self._embedder.dimension)
            await self._vectors.drop(self.collection)
        await self._vectors.create(self.collection, self._embedder.dimension)

    async def lookup(self, query: Query, now: float, policy: Policy = _POLICY, wish: Wish = ANY) -> Found | None:
        """The answer to this question or to one that means the same."""
        if not wish.read:
            return None
        key = query.key
        reading = read(query.text)
        answer = self._answers.held(key, now, wish)
        if answer is not None and _young(query, answer, now):
            self.tally.worded += 1
            return self._hit(Found(answer, 1.0, query.text, key))
        if reading.language == "long" or self._resting():
            self.tally.misses += 1
            return None
        try:
            for mark, hit in await self._ranked(query, reading, now, policy):
                found = bytes.fromhex(hit.id)
                answer = await self._answers.get(found, now, wish)
                if answer is not None:
                    return self._hit(Found(answer, mark, str(hit.fields["text"]), found))
                if wish is ANY:
                    await self._heal(Place(self.collection, query.partition, hit.id))
        except SitsError as error:
            self._failed(error)
        self.tally.misses += 1
        return None

    async def store(self, query: Query, answer: Answer, now: float, since: Any) -> bool:
        """Keep an answer to this question; whether it is kept. `since` is the `moment` of when it was asked for.

        Only what the exact cache's rule takes for a complete good answer is; one with tool calls is not.
        """
        reading = read(query.text)
        good = answer.status == 200 and answer.expires > now and fault(answer.operation, answer.body) is None
        if not good or reading.language == "long":
            self.tally.unfit += 1
            return False
        if self._resting():
            return False
        key = query.key
        place = Place(self.collection, query.partition, key.hex())
        vector = self._embedder.embed([reading.canonical])[0]
        if not vector.any():
            self.tally.unfit += 1
            return False
        fields = {"text": query.text, "made": answer.made, "expires": answer.expires, **query.fields}
        try:
            kept = await self._writer.write(Record(key, answer, since), place, Item(place.id, vector, fields), now)
            if kept:
                self.tally.stored += 1
                self._remember(key, place)
            await self.tidy()
        except SitsError as error:
            self._failed(error)
            return False
        return kept

    async def purge(self, *tags: str) -> int:
        """Forget all answers with all these tags (all, for none); returns how many this process held.

        Raises:
            SitsError: `state_unavailable`: safe to repeat.
        """
        count = await self._answers.purge(*tags)
        await self.tidy(limit=self._entries)
        return count

    async def soften(self, at: float, *tags: str) -> int:
        """Make all answers with all these tags (all, for none) stale from `at` on; returns how many this process held.

        Raises:
            SitsError: `state_unavailable`: safe to repeat.
        """
        count = await self._answers.soften(at, *tags)
        await self.tidy(limit=self._entries)
        return count

    async def tidy(self, limit: int = TIDIED) -> int:
        """Take away the vectors of answers that this process let go of; returns how many.

        Raises:
            SitsError: `state_unavailable`: what is left over is taken away when a lookup meets it.
        """
        places = [place for key in self._answers.gone(limit) if (place := self._places.pop(key, None)) is not None]
        for place in places:
            await self._vectors.delete(place.collection, place.partition, [place.id])
        return len(places)

    async def sweep(self, now: float) -> int:
        """Give back some space of what is stale; returns how many vectors went. To be called about once a second.

        Vectors of answers that all nodes share are looked through a page at a time, since any node may have made them. Does
        nothing while index or store do not answer.
        """
        self._answers.sweep(now)
        if self._resting():
            return 0
        try:
            return await self.tidy() + (await self._look_through(now) if self._answers.durable else 0)
        except SitsError as error:
            self._failed(error)
            return 0

    async def _look_through(self, now: float) -> int:
        """Take away what is stale in the next page of the collection."""
        if not self._walk:
            self._walk = [(name, "") for name in reversed(await self._vectors.partitions(self.collection))]
        if not self._walk:
            return 0
        partition, after = self._walk.pop()
        ids = await self._vectors.ids(self.collection, partition, after=after, limit=PAGE)
        if len(ids) == PAGE:
            self._walk.append((partition, ids[-1]))
        items = await self._vectors.get(self.collection, partition, ids)
        stale = [item.id for item in items if item is not None and float(item.fields["expires"]) <= now]
        await self._vectors.delete(self.collection, partition, stale)
        return len(stale)

    async def _ranked(self, query: Query, reading: Reading, now: float, policy: Policy) -> list[tuple[float, Hit]]:
        """The neighbours that mean the same, the most alike first."""
        vector = self._embedder.embed([reading.canonical])[0]
        if not vector.any():
            return []
        least = max(policy.threshold, query.threshold or 0.0)
        hits = await self._vectors.search(
            self.collection, query.partition, vector, k=policy.candidates, floor=policy.floor, where=query.where(now)
        )
        ranked = []
        for hit in hits:
            other = read(str(hit.fields["text"]))
            reason = contradiction(reading, other)
            if reason is not None:
                self.tally.guarded[reason] = self.tally.guarded.get(reason, 0) + 1
                continue
            mark = score(reading, other, hit.score)
            if mark < least:
                self.tally.below += 1
                continue
            ranked.append((mark, hit))
        return sorted(ranked, key=lambda pair: (-pair[0], pair[1].id))

    async def _heal(self, place: Place) -> None:
        self.tally.dangling += 1
        self._places.pop(bytes.fromhex(place.id), None)
        await self._writer.remove(place)

    def _remember(self, key: bytes, place: Place) -> None:
        self._places[key] = place
        self._places.move_to_end(key)
        if len(self._places) > self._entries:
            self._places.popitem(last=False)

    def _hit(self, found: Found) -> Found:
        self.tally.hits += 1
        return found

    def _resting(self) -> bool:
        resting = self._clock() < self._rests_until
        self.tally.skipped += resting
        return resting

    def _failed(self, error: SitsError) -> None:
        if error.code is not Code.STATE_UNAVAILABLE:
            raise error
        self.tally.failures += 1
        self._rests_until = self._clock() + self._rest
        _log.warning("the semantic cache is left alone for %g s: %s", self._rest, error.message)


def _young(query: Query, answer: Answer, now: float) -> bool:
    oldest = query.freshness.max_age
    return oldest is None or now - answer.made <= 3600 * oldest


def collection(embedder: Embedder, owner: str = "") -> str:
    """The collection of an embedder: its name, version, dimension, and the tables by which texts are read before."""
    tables = [sections(language) for language in LANGUAGES]
    made = repr((embedder.name, embedder.version, embedder.dimension, READING, tables, owner))
    return "semantic_" + blake3(made.encode()).hexdigest(16)
