"""A walk over a collection, first its records, then its vectors, that tells where the two are apart.

It holds a page in memory and can be left and taken up again. What it tells may have been under way: `pending` says whether an
intent explains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from sits.inner.errors import Code, SitsError
from sits.ports.store import MOST_KEYS, Entry, Store
from sits.ports.vectors import rules
from sits.ports.vectors.base import Item, Vectors
from sits.state.outbox import layout
from sits.state.outbox.layout import Wanted

Kind = Literal["missing", "different", "halved", "orphan", "expired", "unreadable"]
"""A record without its vector; a vector that is not its record's; a wanted vector whose record is gone; a vector without a
record; one whose record has expired; a row of the store that this version cannot read."""

EXPIRES = "expires"
"""The field of an item that says when its record expires, in unix seconds."""
SKEW = 60.0
"""Seconds that the clocks of a node and of the store may differ."""
_ALIKE = 1e-4
"""How far two floats of one vector may be apart: each index brings vectors to length one by itself."""


class Apart(msgspec.Struct, frozen=True):
    """An id whose record and vector do not agree."""

    kind: Kind
    partition: str
    id: str
    """The key of the row, where it is unreadable."""
    pending: bool = False
    wanted: Entry | None = None
    """The row of the store, where there is one."""


class Page(msgspec.Struct, frozen=True):
    """What one step of the walk has seen."""

    records: int
    vectors: int
    apart: list[Apart]


class Walk:
    """One round. `step` until it returns None."""

    def __init__(self, store: Store, vectors: Vectors, collection: str, *, now: float, page: int = 500) -> None:
        """`now` is unix time; `page`: records, or vectors, of one step."""
        self._store = store
        self._vectors = vectors
        self._collection = collection
        self._now = now
        self._size = min(page, MOST_KEYS)
        self._records_done = False
        self._after = ""
        self._partitions: list[str] | None = None

    async def step(self) -> Page | None:
        """Look at the next page; None when the round is over. What raised may be tried again.

        Raises:
            SitsError: `state_unavailable`.
        """
        if not self._records_done:
            page = await self._step_records()
            if page is not None:
                return page
            self._records_done, self._after = True, ""
        return await self._step_vectors()

    async def _step_records(self) -> Page | None:
        prefix = layout.wanted_prefix(self._collection)
        rows = await self._store.scan(prefix, after=self._after, limit=self._size)
        if not rows:
            return None
        read = [(row, layout.read_wanted(row)) for row in rows]
        known = [(row, one) for row, one in read if one is not None]
        records = await self._store.get_many([one.record for _, one in known])
        items = await found(self._vectors, self._collection, [(one.partition, one.id) for _, one in known])
        apart = []
        for (row, one), record, item in zip(known, records, items, strict=True):
            kind = compared(one, item) if record is not None else "halved"
            if kind is not None:
                apart.append(Apart(kind, one.partition, one.id, wanted=row))
        apart = await self._explained(apart)
        apart += [Apart("unreadable", "", row.key) for row, one in read if one is None]
        page = Page(len(rows), 0, apart)
        self._after = rows[-1].key
        return page

    async def _step_vectors(self) -> Page | None:
        try:
            if self._partitions is None:
                self._partitions = await self._vectors.partitions(self._collection)
            while self._partitions:
                partition = self._partitions[0]
                ids = await self._vectors.ids(self._collection, partition, after=self._after, limit=self._size)
                if ids:
                    page = await self._page_of_vectors(partition, ids)
                    self._after = ids[-1]
                    return page
                self._partitions.pop(0)
                self._after = ""
        except SitsError as error:
            if error.code is not Code.NOT_FOUND:
                raise
        return None

    async def _page_of_vectors(self, partition: str, ids: Sequence[str]) -> Page:
        keys = [layout.wanted_key(self._collection, partition, id) for id in ids]
        rows = await self._store.get_many(keys)
        lonely = [id for id, row in zip(ids, rows, strict=True) if row is None]
        apart = []
        if lonely:
            items = await found(self._vectors, self._collection, [(partition, id) for id in lonely])
            apart = [Apart(self._orphan(item), partition, item.id) for item in items if item is not None]
        return Page(0, len(ids), await self._explained(apart))

    def _orphan(self, item: Item) -> Kind:
        expires = item.fields.get(EXPIRES)
        expired = isinstance(expires, int | float) and expires <= self._now + SKEW
        return "expired" if expired else "orphan"

    async def _explained(self, apart: list[Apart]) -> list[Apart]:
        if not apart:
            return apart
        todos = await self._store.get_many([layout.todo_key(self._collection, one.partition, one.id) for one in apart])
        return [msgspec.structs.replace(one, pending=todo is not None) for one, todo in zip(apart, todos, strict=True)]


async def found(vectors: Vectors, collection: str, places: Sequence[tuple[str, str]]) -> list[Item | None]:
    """The items at (partition, id), in the order asked; None for each when there is no such collection."""
    by_partition: dict[str, list[int]] = {}
    for index, (partition, _) in enumerate(places):
        by_partition.setdefault(partition, []).append(index)
    items: list[Item | None] = [None] * len(places)
    for partition, indices in by_partition.items():
        try:
            held = await vectors.get(collection, partition, [places[index][1] for index in indices])
        except SitsError as error:
            if error.code is not Code.NOT_FOUND:
                raise
            return items
        for index, item in zip(indices, held, strict=True):
            items[index] = item
    return items


def compared(wanted: Wanted, item: Item | None) -> Kind | None:
    """How an item of the index is apart from what is wanted; None when they agree."""
    if item is None:
        return "missing"
    vector = np.frombuffer(wanted.vector, dtype=np.float32)
    same = item.vector.shape == vector.shape and np.allclose(item.vector, vector, rtol=0.0, atol=_ALIKE)
    return None if same and rules.unpacked(wanted.fields) == dict(item.fields) else "different"
