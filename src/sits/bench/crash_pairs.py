"""Records with vectors under kill -9: written through an outbox, and, as most begin, one after the other.

Both have the same steps over the same store and index (SQLite and the embedded one), which takes no item whose id begins with
`bad`: the record of such a one has to be taken back.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

import numpy as np

from sits.bench.crash_nursery import Found, Story
from sits.inner.errors import Code, SitsError
from sits.ports.store import Delete, Put, Store, every, open_store
from sits.ports.vectors import Item, Vectors, open_vectors
from sits.state.outbox import Audit, Outbox, Terms, audit
from sits.state.outbox.faulty import HookedVectors, refusing

T = TypeVar("T")

COLLECTION = "notes"
PARTITION = "租户"
DIMENSION = 16
GOOD = tuple(f"id-{number}" for number in range(6))
BAD = ("bad-0", "bad-1")
TERMS = Terms(lease=0.15, tick=0.005, rest=0.01, sweep=0.02, sweep_page=4, batch=8)
"""Everything small and often, so that kills hit all of it; the dead are followed soon."""
_RECOVERY_SECONDS = 60.0
_TIMEOUT = 30.0
"""Of one call: a machine that is busy with killing makes the disk slow, which is no outage."""


class Step(NamedTuple):
    """Write a text under an id; remove it for None."""

    id: str
    text: str | None


def step_of(seed: int, number: int) -> Step:
    dice = random.Random(f"{seed}/{number}")  # noqa: S311 - no secrets
    if dice.random() < 0.2:
        return Step(dice.choice(GOOD), None)
    return Step(dice.choice(BAD if dice.random() < 0.3 else GOOD), f"文本 {number}")


def after(seed: int, steps: int) -> dict[str, str]:
    """What is to be held after so many steps: id -> text."""
    held: dict[str, str] = {}
    for step in (step_of(seed, number) for number in range(steps)):
        if step.text is None:
            held.pop(step.id, None)
        elif step.id in GOOD:
            held[step.id] = step.text
    return held


class Pair(NamedTuple):
    store: Store
    vectors: Vectors


@asynccontextmanager
async def _opened(story: Story) -> AsyncIterator[Pair]:
    store = await open_store("sqlite", story.folder, timeout=_TIMEOUT)
    vectors = await open_vectors("embedded", story.folder, timeout=_TIMEOUT)
    try:
        yield Pair(store, HookedVectors(vectors, refusing(Code.INVALID_REQUEST, "bad")))
    finally:
        await vectors.aclose()
        await store.aclose()


def _outbox(pair: Pair) -> Outbox:
    return Outbox(pair.store, pair.vectors, COLLECTION, DIMENSION, owner=f"{os.getpid()}-{os.urandom(4).hex()}", terms=TERMS)


class OutboxPart:
    """A step is acknowledged when the outbox has it."""

    def write(self, story: Story, say: Callable[[], None]) -> None:
        _run(lambda: self._write(story, say))

    async def _write(self, story: Story, say: Callable[[], None]) -> None:
        async with _opened(story) as pair:
            outbox = _outbox(pair)
            await outbox.start()

            async def take(step: Step) -> None:
                if step.text is None:
                    await outbox.remove(PARTITION, step.id)
                else:
                    await outbox.write(PARTITION, _item(step.id, step.text), _record(step.id, step.text))

            await _take_all(story, say, take)

    def look(self, story: Story) -> Found:
        """Look, recover, look again."""
        return _run(lambda: self._look(story))

    async def _look(self, story: Story) -> Found:
        async with _opened(story) as pair:
            before = await self._audit(pair)
            held, _ = await _held(pair)
            due = sum(id in held for id in BAD)
            outbox = _outbox(pair)
            await outbox.start()
            left = await outbox.settle(seconds=_RECOVERY_SECONDS)
            await outbox.aclose()
            told = await self._audit(pair)
            notes = [f"after recovery: {told.faults}"] if told.faults else []
            refused = {step_of(story.seed, number).id for number in range(story.acknowledged)} & set(BAD)
            if not refused <= {undoing.id for undoing in told.undoings}:
                notes.append(f"of {sorted(refused)} some were taken back without a word: {told.undoings}")
            if left or told.waiting:
                notes.append(f"{left} changes still wait after recovery")
            found = await _compared(pair, story)
        return Found(found.lost, 0, found.apart, len(before.faults), due, found.kept, (*found.notes, *notes))

    async def _audit(self, pair: Pair) -> Audit:
        return await audit(pair.store, pair.vectors, COLLECTION, now=time.time(), terms=TERMS)


class NaivePart:
    """The record, then the vector; when the index refuses it, the record is taken back. A restart knows of nothing."""

    def write(self, story: Story, say: Callable[[], None]) -> None:
        _run(lambda: self._write(story, say))

    async def _write(self, story: Story, say: Callable[[], None]) -> None:
        async with _opened(story) as pair:
            await pair.vectors.create(COLLECTION, DIMENSION)

            async def take(step: Step) -> None:
                if step.text is None:
                    await pair.store.commit([Delete(_key(step.id))])
                    await pair.vectors.delete(COLLECTION, PARTITION, [step.id])
                    return
                await pair.store.commit([_record(step.id, step.text)])
                try:
                    await pair.vectors.upsert(COLLECTION, PARTITION, [_item(step.id, step.text)])
                except SitsError:
                    await pair.store.commit([Delete(_key(step.id))])

            await _take_all(story, say, take)

    def look(self, story: Story) -> Found:
        """Look, and then mend by hand, so that the next life begins with both agreeing."""
        return _run(lambda: self._look(story))

    async def _look(self, story: Story) -> Found:
        async with _opened(story) as pair:
            await pair.vectors.create(COLLECTION, DIMENSION)
            found = await _compared(pair, story)
            held, _ = await _held(pair)
            due = sum(id in held for id in BAD)
            should = after(story.seed, story.acknowledged)
            await pair.store.commit([Delete(_key(id)) for id in (*GOOD, *BAD) if id not in should])
            await pair.store.commit([_record(id, text) for id, text in should.items()])
            await pair.vectors.drop(COLLECTION, PARTITION)
            await pair.vectors.upsert(COLLECTION, PARTITION, [_item(id, text) for id, text in should.items()])
        return Found(found.lost, 0, found.apart, 0, due, found.kept, found.notes)


async def _take_all(story: Story, say: Callable[[], None], take: Callable[[Step], Awaitable[None]]) -> None:
    say()
    number = story.acknowledged
    while True:
        await take(step_of(story.seed, number))
        say()
        number += 1


async def _held(pair: Pair) -> tuple[dict[str, str], dict[str, str]]:
    """The texts of the records, and those of the vectors, by id."""
    records = {row.key.removeprefix("note/"): row.value.decode() async for row in every(pair.store, "note/")}
    try:
        items = await pair.vectors.get(COLLECTION, PARTITION, (*GOOD, *BAD))
    except SitsError as error:
        if error.code is not Code.NOT_FOUND:
            raise
        items = []
    vectors = {item.id: str(item.fields["text"]) for item in items if item is not None}
    return records, vectors


async def _compared(pair: Pair, story: Story) -> Found:
    records, vectors = await _held(pair)
    apart = [id for id in (*GOOD, *BAD) if records.get(id) != vectors.get(id)]
    possible = [after(story.seed, story.acknowledged + more) for more in (0, 1)]
    lost = min(sum(records.get(id) != held.get(id) for id in GOOD) for held in possible)
    kept = sum(id in records for id in BAD)
    return Found(lost=lost, apart=len(apart), kept=kept)


def _key(id: str) -> str:
    return f"note/{id}"


def _record(id: str, text: str) -> Put:
    return Put(_key(id), text.encode())


def _item(id: str, text: str) -> Item:
    dice = np.random.default_rng(list(text.encode()))
    return Item(id, dice.standard_normal(DIMENSION).astype(np.float32), {"text": text})


def _run(work: Callable[[], Awaitable[T]]) -> T:
    async def told() -> T:
        return await work()

    return asyncio.run(told())
