"""The index without a server: SQLite keeps the items, memory answers.

A search asks SQLite whether anybody has written (2 us), reads what is new in its partition if so, and compares. Up to
`EXACT_FLOATS` floats it compares with every vector, on the loop, because a thread would cost more than it takes; a larger
partition is searched in a thread, by a graph once there is one. Partitions come into memory when they are first searched, and
leave it, the longest unused first, when together they pass `memory` bytes.

Several processes of one machine may open one folder: each follows what the others commit, so all see every write that
returned. The folder must lie on a local disk, as SQLite's write-ahead log wants.
"""

from __future__ import annotations

import asyncio
import importlib.util
import pathlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from sits.inner.errors import Code, SitsError
from sits.ports.vectors import rules
from sits.ports.vectors.base import Clause, Hit, Item, Vector
from sits.ports.vectors.gardener import Gardener
from sits.ports.vectors.opening import MEMORY, MOST_ITEMS, Opening, wrong_address
from sits.ports.vectors.part import Part
from sits.ports.vectors.rows import Entry, Rows

if TYPE_CHECKING:
    from sits.ports.vectors.graph import Graph

if importlib.util.find_spec("usearch") is None:
    # Only imported when a partition is large; that it is missing is said when the index is opened.
    raise ModuleNotFoundError("No module named 'usearch'", name="usearch")

CONSISTENCY = {
    "upsert": "all items or none; seen by every later call of every process of the machine",
    "search": "sees every write before it, of any process; exact up to 4 million floats of a partition, by a graph beyond",
    "get": "sees every write before it, of any process",
    "delete": "all items or none; seen by every later call of every process of the machine",
    "ids": "sees every write before it, of any process",
    "durability": "outlives a kill when it returns; a loss of power from the next flush; the folder on a local disk",
    "outage": "a full disk, or a file that others hold for too long: state_unavailable within the timeout",
}

EXACT_FLOATS = 4_000_000
"""Of a partition that is compared whole, on the loop: 10,400 vectors of 384, 0.2 ms. There the graph begins to be faster."""

_FOLDER = "vectors"
_FILTERED_ON_LOOP = 4096
"""Items beyond which a filter goes to a thread: the first look at a field costs 0.3 us an item."""
_AT_ONCE = 256
"""Entries that are read from the file on the loop at one go, 1 ms; a partition with more is first read in a thread."""
_LOAD_BATCH = 4096
_READ_WAIT = 0.05
"""Seconds for which a read may stand for a lock on the loop. The write-ahead log has readers wait for nobody but a recovery."""
_MOST_PARTS = 4096
_MOST_WAITING = 1000
"""Calls in the line to the disk; more would only wait for their timeout."""

T = TypeVar("T")
Key = tuple[str, str]


class Held:
    """A partition that is in memory: `number` and `part.seen` say what of the file it is, `version` when that was so."""

    __slots__ = ("graph", "number", "part", "version")

    def __init__(self, number: int | None, part: Part) -> None:
        self.number = number
        self.part = part
        self.version: int | None = None
        self.graph: Graph | None = None


class EmbeddedVectors:
    """See `sits.ports.vectors.base`. Made by `open`."""

    name = "embedded"

    def __init__(
        self, reader: Rows, disk: Rows, gardener: Gardener, *, timeout: float, most: int, memory: int, exact: int
    ) -> None:
        self._reader = reader
        self._disk = disk
        self._timeout = timeout
        self._most = most
        self._memory = memory
        self._exact = exact
        self._parts: OrderedDict[Key, Held] = OrderedDict()
        self._bytes = 0
        self._loads: dict[Key, asyncio.Task[None]] = {}
        self._waiting = 0
        self._closed = False
        # One thread for the file, so that its connection is used by one at a time; two for what only thinks.
        self._disk_thread = ThreadPoolExecutor(1, thread_name_prefix="vectors-disk")
        self._search_threads = ThreadPoolExecutor(2, thread_name_prefix="vectors-search")
        self._gardener = gardener

    @classmethod
    async def open(
        cls,
        data: pathlib.Path,
        *,
        timeout: float = 2.0,  # noqa: ASYNC109 - the bound of every later call
        most: int = MOST_ITEMS,
        memory: int = MEMORY,
        exact: int = EXACT_FLOATS,
    ) -> EmbeddedVectors:
        """Open the index in a data folder, made when missing.

        `most` items of a collection, `memory` bytes of vectors in memory, `exact` floats of a partition up to which it has no
        graph.

        Raises:
            SitsError: `state_unavailable`, the file cannot be used; the message says why.
        """
        folder = data / _FOLDER
        gardener = Gardener(folder, exact)
        disk = await asyncio.to_thread(Rows, folder, wait=timeout)
        try:
            await asyncio.to_thread(lambda: gardener.sweep(disk.numbers()))
            reader = await asyncio.to_thread(Rows, folder, wait=_READ_WAIT)
        except OSError as error:
            disk.close()
            raise SitsError(Code.STATE_UNAVAILABLE, f"{error.filename or folder}: {error.strerror}") from error
        except BaseException:
            disk.close()
            raise
        return cls(reader, disk, gardener, timeout=timeout, most=most, memory=memory, exact=exact)

    async def create(self, collection: str, dimension: int) -> None:
        rules.collection_name(collection), rules.dimension(dimension)
        await self._on_disk(lambda disk: disk.create(collection, dimension))

    async def upsert(self, collection: str, partition: str, items: Sequence[Item]) -> None:
        _named(collection, partition)
        dimension = await self._dimension(collection)
        ready = rules.items(items, dimension)
        await self._on_disk(lambda disk: disk.upsert(collection, partition, ready, self._most))

    async def search(
        self,
        collection: str,
        partition: str,
        vector: Vector,
        *,
        k: int,
        floor: float = -1.0,
        where: Sequence[Clause] = (),
    ) -> list[Hit]:
        rules.hits(k), rules.clauses(where)
        held = await self._held((collection, partition))
        question = rules.unit(vector, held.part.dimension)
        view = held.part.view()
        if view.matrix.size <= self._exact:
            if not where or len(view) <= _FILTERED_ON_LOOP:
                return view.search(question, k, floor, where)
            return await self._in_thread(self._search_threads, lambda: view.search(question, k, floor, where))
        self._gardener.look((collection, partition), held)
        graph = held.graph
        if graph is None:
            return await self._in_thread(self._search_threads, lambda: view.search(question, k, floor, where))
        return await self._in_thread(self._search_threads, lambda: graph.search(view, question, k, floor, where))

    async def get(self, collection: str, partition: str, ids: Sequence[str]) -> list[Item | None]:
        _named(collection, partition, *ids)
        rows = await self._on_disk(lambda disk: disk.get(collection, partition, ids))
        return [row and _item(key, *row) for key, row in zip(ids, rows, strict=True)]

    async def delete(self, collection: str, partition: str, ids: Sequence[str]) -> None:
        _named(collection, partition, *ids)
        await self._on_disk(lambda disk: disk.delete(collection, partition, ids))

    async def ids(self, collection: str, partition: str, *, after: str = "", limit: int = 1000) -> list[str]:
        _named(collection, partition)
        rules.page(limit)
        return await self._on_disk(lambda disk: disk.ids(collection, partition, after, limit))

    async def partitions(self, collection: str) -> list[str]:
        rules.collection_name(collection)
        return await self._on_disk(lambda disk: disk.partitions(collection))

    async def count(self, collection: str, partition: str) -> int:
        _named(collection, partition)
        return await self._on_disk(lambda disk: disk.count(collection, partition))

    async def drop(self, collection: str, partition: str | None = None) -> None:
        _named(collection, *() if partition is None else (partition,))
        gone = await self._on_disk(lambda disk: disk.drop(collection, partition))
        for key in [key for key in self._parts if key[0] == collection and partition in (None, key[1])]:
            self._let_go(key)
        await self._in_thread(self._disk_thread, lambda: self._gardener.clear(gone))

    async def flush(self) -> None:
        """What was written is in the file already and outlives this process; now it outlives the machine."""
        await self._on_disk(Rows.flush)

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._gardener.aclose()
        for task in self._loads.values():
            task.cancel()
        await asyncio.to_thread(self._shut)

    def graph_size(self, collection: str, partition: str) -> int:
        """Items of a partition that are in its graph; 0 when it has none (yet)."""
        held = self._parts.get((collection, partition))
        return 0 if held is None or held.graph is None else len(held.graph)

    def in_memory(self) -> tuple[int, int]:
        """How many partitions are in memory, and their bytes."""
        return len(self._parts), self._bytes

    def _shut(self) -> None:
        self._search_threads.shutdown()
        self._disk_thread.shutdown()
        try:
            self._disk.flush()
        finally:
            self._disk.close()
            self._reader.close()

    # What is in memory

    async def _dimension(self, collection: str) -> int:
        self._open()
        return self._reader.dimension(collection)

    async def _held(self, key: Key) -> Held:
        """The partition as the file has it now."""
        self._open()
        while True:
            version = self._reader.version()
            held = self._parts.get(key)
            if held is not None and held.version == version:
                self._parts.move_to_end(key)
                return held
            if held is None:
                _named(*key)
            number, seen = (held.number, held.part.seen) if held else (None, 0)
            try:
                head, entries = self._reader.news(*key, number, seen, _AT_ONCE)
            except SitsError as error:
                if error.code is Code.NOT_FOUND:
                    self._let_go(key)
                raise
            anew = held is None or head.number != number or seen < head.forgotten or head.dimension != held.part.dimension
            if anew and head.held > _AT_ONCE:
                await self._load(key)
                continue
            if held is None or anew:
                held = Held(head.number, Part(head.dimension))
            self._take_in(key, held, entries)
            if len(entries) < _AT_ONCE:
                held.version = version
                return held
            await asyncio.sleep(0)

    def _take_in(self, key: Key, held: Held, entries: Sequence[Entry]) -> None:
        """Bring a partition up to date and keep it, making room if need be."""
        old = self._parts.pop(key, None)
        if old is not None:
            self._bytes -= old.part.memory
        _apply(held.part, entries)
        self._bytes += held.part.memory
        self._parts[key] = held
        while len(self._parts) > 1 and (self._bytes > self._memory or len(self._parts) > _MOST_PARTS):
            self._let_go(next(iter(self._parts)))

    def _let_go(self, key: Key) -> None:
        held = self._parts.pop(key, None)
        if held is not None:
            self._bytes -= held.part.memory

    async def _load(self, key: Key) -> None:
        """Read a partition in a thread, once for all who wait for it. It goes on when they give up: the next find it there."""
        task = self._loads.get(key)
        if task is None:
            task = self._loads[key] = asyncio.create_task(self._loaded(key))
            task.add_done_callback(lambda done: (self._loads.pop(key, None), done.cancelled() or done.exception()))
        await self._bounded(task)

    async def _loaded(self, key: Key) -> None:
        loop = asyncio.get_running_loop()
        number, part = await loop.run_in_executor(self._disk_thread, _read, self._disk, *key)
        self._take_in(key, Held(number, part), ())

    # Threads

    def _open(self) -> None:
        if self._closed:
            raise SitsError(Code.STATE_UNAVAILABLE, "the embedded vectors are closed")

    async def _on_disk(self, job: Callable[[Rows], T]) -> T:
        self._open()
        return await self._in_thread(self._disk_thread, lambda: job(self._disk))

    async def _in_thread(self, threads: ThreadPoolExecutor, job: Callable[[], T]) -> T:
        if self._waiting >= _MOST_WAITING:
            raise SitsError(
                Code.STATE_UNAVAILABLE, f"{_MOST_WAITING} calls wait for the embedded vectors already", retry_after=1.0
            )
        self._waiting += 1
        future = asyncio.get_running_loop().run_in_executor(threads, job)
        future.add_done_callback(self._done)
        return await self._bounded(future)

    def _done(self, future: asyncio.Future[T]) -> None:
        self._waiting -= 1
        if not future.cancelled():
            # Whoever waited may have given up; an error is then nobody's.
            future.exception()

    async def _bounded(self, future: asyncio.Future[T]) -> T:
        await asyncio.wait({future}, timeout=self._timeout)
        if not future.done():
            raise SitsError(Code.STATE_UNAVAILABLE, f"the embedded vectors did not answer in {self._timeout:g} s")
        return future.result()


async def open_embedded(opening: Opening) -> EmbeddedVectors:
    """The opener of `embedded`."""
    if opening.address != "embedded":
        raise wrong_address(opening.address, "embedded")
    return await EmbeddedVectors.open(opening.data, timeout=opening.timeout, most=opening.most, memory=opening.memory)


def _named(collection: str, *texts: str) -> None:
    rules.collection_name(collection)
    for value in texts:
        rules.text(value, "partition or id")


def _item(key: str, vector: bytes, fields: bytes) -> Item:
    return Item(key, np.frombuffer(vector, dtype=np.float32), rules.unpacked(fields))


def _apply(part: Part, entries: Sequence[Entry]) -> None:
    for seq, key, vector, fields in entries:
        if vector is None or fields is None:
            part.take(seq, key)
        else:
            part.put(seq, key, vector, fields)


def _read(rows: Rows, collection: str, partition: str) -> tuple[int | None, Part]:
    """A whole partition, in batches. Begins again when the partition did."""
    number: int | None = None
    part = Part(1)
    while True:
        head, entries = rows.news(collection, partition, number, part.seen, _LOAD_BATCH)
        if number is None or head.number != number or part.seen < head.forgotten:
            number, part = head.number, Part(head.dimension)
        _apply(part, entries)
        if len(entries) < _LOAD_BATCH:
            return number, part
