"""The index of a large partition: an HNSW graph (Malkov and Yashunin 2018, arXiv 1603.09320) that may lag behind its partition.

The graph knows items by their sequence number, up to `seen`. What was written later is compared one by one, what was taken away
is passed over, and the nearest that the graph names are scored again from the full vectors, so a graph is never wrong about an
item; it may only miss one. That makes it safe to build late, to keep in a file, and to throw away.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import struct
import threading
from collections.abc import Callable, Sequence

import blake3
import numpy as np
import numpy.typing as npt
from usearch.index import Index

from sits.inner.errors import Code, SitsError
from sits.ports.vectors.base import Clause, Hit, Vector
from sits.ports.vectors.part import View
from sits.ports.vectors.where import meets

Seqs = npt.NDArray[np.int64]

_CONNECTIVITY = 16
_EXPANSION_ADD = 128
_EXPANSION_SEARCH = 96
_FEWEST = 32
"""The least that is asked of the graph: some of it may be dead or filtered out."""
_MOST = 768
"""Where a filter makes more than this necessary, the rows that it leaves are compared one by one."""
_FEW_FLOATS = 1_000_000
"""And where it leaves no more than this, too: 0.1 ms."""
_BATCH = 16
"""Items that are added under one lock: a search waits 5 ms for it."""
_HALF = 0.002
"""The graph keeps half floats: its cosines are this near."""

_MAGIC = b"sits graph 1\n"
_HEAD = struct.Struct("<IQ")


class Graph:
    """May be used by several threads, but extended by one at a time."""

    __slots__ = ("_index", "_keys", "_lock", "dimension", "seen")

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.seen = 0
        self._index = Index(
            ndim=dimension,
            metric="ip",
            dtype="f16",
            connectivity=_CONNECTIVITY,
            expansion_add=_EXPANSION_ADD,
            expansion_search=_EXPANSION_SEARCH,
        )
        self._keys: Seqs = np.zeros(0, dtype=np.int64)
        # usearch gives its threads work space by number, and every call from Python is number 0.
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._keys)

    def search(self, view: View, question: Vector, k: int, floor: float, where: Sequence[Clause]) -> list[Hit]:
        """The nearest in a partition; exact where the graph would be slower."""
        mask = view.mask(where)
        chosen = len(view) if mask is None else int(np.count_nonzero(mask))
        if chosen * self.dimension <= _FEW_FLOATS:
            return view.search_masked(question, k, floor, where, mask)
        wanted = max(_FEWEST, 2 * k) * len(view) // chosen
        if wanted > _MOST:
            return view.search_masked(question, k, floor, where, mask)
        # Read before the graph is asked: what is added meanwhile is then found twice, not missed.
        tail = int(np.searchsorted(view.seqs, self.seen, side="right"))
        keys, lowest = self._nearest(question, wanted)
        rows = view.rows(np.sort(keys))
        rows = np.concatenate([rows[rows < tail], np.arange(tail, len(view))])
        hits = view.hits(question, k, floor, rows if mask is None else rows[mask[rows]])
        complete = len(hits) == k or len(keys) < wanted or lowest < floor - _HALF
        if complete and all(meets(hit.fields, where) for hit in hits):
            return hits
        return view.search_masked(question, k, floor, where, mask)

    def extend(self, view: View, stop: Callable[[], bool]) -> None:
        """Take in what a partition has, as far as `stop` lets it. 0.3 ms to 0.6 ms an item of 384 floats: not for the loop."""
        living = view.living()
        gone = np.setdiff1d(self._keys, living, assume_unique=True)
        if len(gone):
            with self._lock:
                self._index.remove(gone.astype(np.uint64))
            self._keys = np.setdiff1d(self._keys, gone, assume_unique=True)
        new = living[living > self.seen]
        for start in range(0, len(new), _BATCH):
            if stop():
                return
            batch = new[start : start + _BATCH]
            with self._lock:
                self._index.add(batch.astype(np.uint64), view.matrix[view.rows(batch)], threads=1)
            self._keys = np.concatenate([self._keys, batch])
            self.seen = int(batch[-1])

    def _nearest(self, question: Vector, count: int) -> tuple[Seqs, float]:
        """Sequence numbers, and the cosine of the farthest."""
        with self._lock:
            found = self._index.search(question, count, threads=1)
        lowest = 1.0 - float(found.distances[-1]) if len(found.distances) else -1.0
        return found.keys.astype(np.int64), lowest

    def save(self, path: pathlib.Path) -> None:
        """Write the file of this graph, whole or not at all. Several processes may: the last one's stays."""
        with self._lock:
            body = bytes(self._index.save() or b"")
            head = _HEAD.pack(self.dimension, self.seen)
        draft = path.with_name(f"{path.name}.{os.getpid()}.new")
        try:
            with draft.open("wb") as file:
                file.write(_MAGIC + blake3.blake3(head + body).digest() + head)
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise SitsError(Code.STATE_UNAVAILABLE, f"{path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: pathlib.Path, dimension: int) -> Graph | None:
        """What `save` wrote; None when there is nothing, or nothing whole and of this dimension: build it again."""
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        start = len(_MAGIC) + 32
        digest, rest = raw[len(_MAGIC) : start], raw[start:]
        # Checked first: usearch does not survive every damaged file.
        if not raw.startswith(_MAGIC) or blake3.blake3(rest).digest() != digest:
            return None
        graph = cls(dimension)
        has, graph.seen = _HEAD.unpack_from(rest)
        if has != dimension:
            return None
        graph._index.load(rest[_HEAD.size :])
        graph._keys = np.sort(np.asarray(graph._index.keys, dtype=np.int64))
        return graph
