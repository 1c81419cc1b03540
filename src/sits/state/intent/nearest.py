"""Embeddings of examples in a vector index: to show what a verdict goes by, and for votes where there are too many
examples for heads.

The examples of one installation lie in one partition, by a name that is made of domain and text. So a change of the configuration
writes and removes only what differs, and gateways that serve by the same configuration keep one another's index up to date.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3

from sits.ports.vectors import Item, Vectors
from sits.routing.intent.votes import VOTERS, Vote
from sits.state.intent.material import Example, Material

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]

PARTITION = "examples"
SHOWN = 500
"""Characters of an example that are shown; the fields of an item have a limit."""
BATCH = 500
PAGE = 5000


class Near(msgspec.Struct, frozen=True):
    """An example that is near a query."""

    domain: str | None
    """None: an example of what is of no domain."""
    text: str
    cosine: float


class Nearest:
    """The examples in an index. It does not own the index."""

    __slots__ = ("_collection", "_dimension", "_vectors")

    def __init__(self, vectors: Vectors, model: str, dimension: int) -> None:
        """`model` names the weights, too: what others embedded is never compared."""
        self._vectors = vectors
        # What lay in `intent_...` was as the model has it; these are compared without what is of their language alone.
        self._collection = f"level_{re.sub('[^a-z0-9]', '_', model.lower())}"[:41]
        self._dimension = dimension

    async def keep(self, given: Material, embeddings: Matrix) -> tuple[int, int]:
        """Have these examples in the index and no others; how many were written and how many removed. Safe to repeat.

        Raises:
            SitsError: `state_unavailable`; `request_too_large`, the index has no room.
        """
        vectors, collection = self._vectors, self._collection
        await vectors.create(collection, self._dimension)
        wanted = {_id(example): at for at, example in enumerate(given.examples)}
        there = await self._ids()
        gone = sorted(there - wanted.keys())
        missing = [(key, at) for key, at in wanted.items() if key not in there]
        for begin in range(0, len(gone), BATCH):
            await vectors.delete(collection, PARTITION, gone[begin : begin + BATCH])
        for begin in range(0, len(missing), BATCH):
            items = [_item(key, given.examples[at], embeddings[at]) for key, at in missing[begin : begin + BATCH]]
            await vectors.upsert(collection, PARTITION, items)
        await vectors.flush()
        return len(missing), len(gone)

    async def near(self, embedding: Matrix, k: int = 5) -> list[Near]:
        """The nearest examples, the nearest first.

        Raises:
            SitsError: `not_found`, nothing was kept yet; `state_unavailable`.
        """
        hits = await self._vectors.search(self._collection, PARTITION, embedding, k=k)
        return [Near(str(hit.fields["domain"]) or None, str(hit.fields["text"]), hit.score) for hit in hits]

    async def votes(self, embedding: Matrix) -> list[Vote]:
        """The domains and cosines of the nearest examples, as many as vote.

        Raises:
            SitsError: as `near`.
        """
        return [(one.domain, one.cosine) for one in await self.near(embedding, VOTERS)]

    async def _ids(self) -> set[str]:
        found: set[str] = set()
        after = ""
        while page := await self._vectors.ids(self._collection, PARTITION, after=after, limit=PAGE):
            found.update(page)
            after = page[-1]
        return found


def _id(example: Example) -> str:
    return blake3(f"{example.domain or ''}\0{example.text}".encode("utf-8", "surrogatepass")).hexdigest(16)


def _item(key: str, example: Example, embedding: Matrix) -> Item:
    text = example.text[:SHOWN].encode("utf-8", "replace").decode().replace("\0", " ")
    return Item(key, embedding, {"domain": example.domain or "", "text": text})
