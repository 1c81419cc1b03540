"""Who plants and tends the graphs of large partitions, while searches go on without them.

One task, one partition after the other, the work itself in a thread. A new graph takes minutes of a core for a hundred
thousand items, so on one machine one process makes it and puts it in a file; the others read the file. Every process then
extends its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import pathlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from sits.inner.errors import SitsError
from sits.ports.vectors.part import Part, View

if TYPE_CHECKING:
    from sits.ports.vectors.graph import Graph

_LOG = logging.getLogger(__name__)

_LOCK = "graphs.lock"
_TAIL = 4
"""A graph is extended when a quarter of `exact` floats came since: they are compared one by one meanwhile."""
_ASK_AGAIN = 5.0
"""Seconds until another process's graph is looked for again."""

Key = tuple[str, str]


class Bed(Protocol):
    """A partition in memory, and where its graph belongs."""

    number: int | None
    part: Part
    graph: Graph | None


class Gardener:
    """Belongs to the loop. `exact` floats are searched without a graph."""

    def __init__(self, folder: pathlib.Path, exact: int) -> None:
        self._folder = folder
        self._exact = exact
        self._beds: dict[Key, Bed] = {}
        self._not_before = 0.0
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vectors-graph")

    def look(self, key: Key, bed: Bed) -> None:
        """Have a look at a large partition, soon. Cheap: every search calls it."""
        if self._stopped or key in self._beds or not self._due(bed):
            return
        loop = asyncio.get_running_loop()
        if bed.graph is None and loop.time() < self._not_before:
            return
        self._beds[key] = bed
        if self._task is None:
            self._task = loop.create_task(self._tend())

    def sweep(self, numbers: Iterable[int]) -> None:
        """Take away the files of partitions that are no more, and what a process left that was killed while it wrote."""
        kept = {self._path(number) for number in numbers}
        with self._locked() as mine:
            if mine:
                for path in [*self._folder.glob("*.graph"), *self._folder.glob("*.graph.*.new")]:
                    if path not in kept:
                        path.unlink(missing_ok=True)

    def clear(self, numbers: Iterable[int]) -> None:
        """Take the graphs of partitions away that are no more."""
        for number in numbers:
            # One that cannot be taken away is swept later.
            with contextlib.suppress(OSError):
                self._path(number).unlink(missing_ok=True)

    async def aclose(self) -> None:
        """Stop soon: a graph that is half made is kept as far as it is."""
        self._stopped = True
        if self._task is not None:
            await asyncio.wait({self._task})
        await asyncio.to_thread(self._thread.shutdown)

    def _due(self, bed: Bed) -> bool:
        if bed.graph is None:
            return True
        change = max(bed.part.newer(bed.graph.seen), len(bed.graph) - len(bed.part))
        return change * bed.part.dimension > self._exact // _TAIL

    async def _tend(self) -> None:
        """Until nothing is left to do."""
        loop = asyncio.get_running_loop()
        try:
            while self._beds and not self._stopped:
                key, bed = next(iter(self._beds.items()))
                try:
                    await loop.run_in_executor(self._thread, self._grow, bed, bed.part.view())
                except (SitsError, OSError) as error:
                    _LOG.warning("graph of %s: %s", "/".join(key), error)
                if bed.graph is None:
                    self._not_before = loop.time() + _ASK_AGAIN
                del self._beds[key]
        finally:
            self._task = None

    def _grow(self, bed: Bed, view: View) -> None:
        """Bring the graph of a partition to where the partition is. It stays None when another process is making it."""
        assert bed.number is not None, "what is large is in the file"
        path = self._path(bed.number)
        with self._locked() as mine:
            # 160 ms to import, which an index without large partitions need not pay.
            from sits.ports.vectors.graph import Graph

            graph = bed.graph or Graph.load(path, bed.part.dimension)
            if graph is None and not mine:
                return
            # In use from the start: a graph that has only a part of its partition is right, the rest is compared.
            bed.graph = graph = graph or Graph(bed.part.dimension)
            before = graph.seen
            graph.extend(view, lambda: self._stopped)
            if mine and graph.seen != before:
                graph.save(path)

    def _path(self, number: int) -> pathlib.Path:
        return self._folder / f"{number}.graph"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[bool]:
        """Whether this process is the one that makes graph files, for the time of the block. Nobody waits."""
        lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(lock)
