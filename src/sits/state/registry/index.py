"""Cards by meaning, over the vector port: the same for the embedded index, Redis and Milvus.

One collection for each embedder, so that vectors of two are never compared; one partition for all services. Several gateways on
one server write the same vectors for the same cards; a service that only one of them knows yet is passed over by the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from blake3 import blake3

from sits.ports.vectors.base import MOST_HITS, Item, Vectors

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Vector = npt.NDArray[np.float32]

PARTITION = "services"
BATCH = 200


class Index:
    """The vectors of all services."""

    __slots__ = ("_collection", "_dimension", "_names", "_vectors")

    def __init__(self, vectors: Vectors, embedder: str, dimension: int) -> None:
        """`embedder` names what makes the vectors, to the version."""
        self._vectors = vectors
        self._dimension = dimension
        self._names: dict[str, str] = {}
        self._collection = f"services_{blake3(embedder.encode()).hexdigest(8)}_{dimension}"

    async def renew(self, vectors: Mapping[str, Vector]) -> None:
        """Have these vectors, by name of service, and no others.

        Raises:
            SitsError: `state_unavailable`, and what else the port raises.
        """
        port, collection = self._vectors, self._collection
        await port.create(collection, self._dimension)
        names = {blake3(name.encode()).hexdigest(16): name for name in vectors}
        items = [Item(id, vectors[name]) for id, name in names.items()]
        for at in range(0, len(items), BATCH):
            await port.upsert(collection, PARTITION, items[at : at + BATCH])
        after, gone = "", []
        while page := await port.ids(collection, PARTITION, after=after):
            gone += [id for id in page if id not in names]
            after = page[-1]
        if gone:
            await port.delete(collection, PARTITION, gone)
        self._names = names

    async def nearest(self, vector: Vector, most: int) -> list[tuple[str, float]]:
        """Services with their cosines, best first.

        Raises:
            SitsError: as `renew`.
        """
        if most <= 0:
            return []
        hits = await self._vectors.search(self._collection, PARTITION, vector, k=min(most, MOST_HITS))
        names = self._names
        return [(names[hit.id], hit.score) for hit in hits if hit.id in names]

    async def aclose(self) -> None:
        """Let go of the port."""
        await self._vectors.aclose()
