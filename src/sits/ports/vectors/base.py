"""The contract of a vector index: items with a vector and a few fields, found by cosine similarity.

What every adapter promises:

- A collection has one dimension, given when it is first used, and partitions; a search never leaves its partition.
- Vectors are float32 of shape `(dimension,)`, of any length but zero: they are normalised on the way in. Scores are cosines,
  -1 to 1, to six decimals, within 0.01 of the exact value. Beyond a few thousand items the nearest may be missed: recall of the
  top 5 is at least 0.95 for vectors that lie in clusters, as embeddings do (not for noise of many dimensions).
- `upsert` and `delete` have returned: every later call sees them, and they outlive a kill -9 of the gateway (of the embedded
  adapter: from the next `flush`, at the latest a second later).
- An item is whole: vector and fields change together. A call with several items may stop between two of them.
- Filters are exact: what `where` excludes never comes back.
- Text, numbers and truth values are three kinds; a clause is met only by a value of its own kind (`ne` by the others too).
  Text is ordered by its UTF-8 bytes, truth values are not ordered. Numbers are doubles: finite, whole ones at most 2**53 from
  zero.
- Names of collections are `[a-z][a-z0-9_]{0,40}`; partitions and ids are text without NUL of 1 to 256 bytes, names of fields of
  1 to 64; the fields of an item are at most 8 KiB as JSON.
- No call takes longer than the index's `timeout`; then, or when the server is away, it raises `state_unavailable`. When the
  server is back the next call works.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Vector = npt.NDArray[np.float32]
else:
    # The base install has no numpy, and a gateway that uses no vectors need not import it.
    Vector = object

Scalar = str | int | float | bool
Operator = Literal["eq", "ne", "lt", "le", "gt", "ge", "in"]

LONGEST_TEXT = 256
"""Bytes of a partition or id in UTF-8."""
LONGEST_FIELD = 64
"""Bytes of the name of a field."""
LARGEST_FIELDS = 8 * 1024
"""Bytes of an item's fields as JSON."""
LARGEST_DIMENSION = 8192
MOST_HITS = 1000
"""The largest `k`."""
LARGEST_PAGE = 10_000
"""The largest `limit` of `ids`."""


class Item(msgspec.Struct, frozen=True):
    """One entry: `vector` is float32 of shape `(dimension,)`."""

    id: str
    vector: Vector
    fields: Mapping[str, Scalar] = {}


class Hit(msgspec.Struct, frozen=True):
    """One entry that was found; `score` is the cosine to what was searched for."""

    id: str
    score: float
    fields: Mapping[str, Scalar]


class Clause(msgspec.Struct, frozen=True):
    """A condition on a field; an item without the field meets `ne` alone. `in` takes several values, the others one."""

    field: str
    op: Operator
    value: Scalar | tuple[Scalar, ...]


class Vectors(Protocol):
    """An index. Made by `sits.ports.vectors.open_vectors`; belongs to the loop that it was opened in."""

    name: str
    """What the adapter is called in settings, logs and metrics: `embedded`, `redis`, `milvus`."""

    async def create(self, collection: str, dimension: int) -> None:
        """Make a collection, unless it is there.

        Raises:
            SitsError: `conflict`, it is there with another dimension; `invalid_request`; `state_unavailable`.
        """
        ...

    async def upsert(self, collection: str, partition: str, items: Sequence[Item]) -> None:
        """Put items in, over those of the same ids; of two with one id the later wins.

        Raises:
            SitsError: `invalid_request`, a wrong dimension, a zero or not finite vector, a bad name; `not_found`, no such
                collection; `request_too_large`, the collection would pass the cap that the index was opened with;
                `state_unavailable`: repeat it, nothing is doubled.
        """
        ...

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
        """The `k` nearest items that meet every clause and score at least `floor`, best first; ties in the order of ids."""
        ...

    async def get(self, collection: str, partition: str, ids: Sequence[str]) -> list[Item | None]:
        """Items by id, in the order asked; their vectors come back normalised."""
        ...

    async def delete(self, collection: str, partition: str, ids: Sequence[str]) -> None:
        """Take items away; ids that are not there are no error."""
        ...

    async def ids(self, collection: str, partition: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """At most `limit` ids of a partition that come after the id `after`, in the order of their UTF-8 bytes."""
        ...

    async def partitions(self, collection: str) -> list[str]:
        """The partitions that hold anything, in order."""
        ...

    async def count(self, collection: str, partition: str) -> int:
        """Items in a partition."""
        ...

    async def drop(self, collection: str, partition: str | None = None) -> None:
        """Take away a partition, or the whole collection. One that is not there is no error."""
        ...

    async def flush(self) -> None:
        """What was written until now outlives a kill -9 when this returns."""
        ...

    async def aclose(self) -> None:
        """Flush and let go of the index. Safe to repeat."""
        ...
