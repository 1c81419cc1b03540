"""What services and queries mean: their vectors by one embedding model, and the index of the services'.

A query is given up when the model takes too long; the answer is kept all the same when it comes. While the model fails or says
nothing it is left alone, and queries are told so at once.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pathlib
import random
import tempfile
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from sits.engines.local.aside import aside
from sits.gateway.embedding import BATCH, Declared, Embedder
from sits.inner.errors import Code, SitsError
from sits.ports.vectors import Vectors, open_vectors
from sits.resilience.substitutes.shelf import EMBEDDER, Shelf
from sits.routing.registry import ServiceCard
from sits.state.intent.patience import Patience, watched
from sits.state.intent.pulse import Pulse

if TYPE_CHECKING:
    from sits.state.registry.index import Index
    from sits.state.registry.placing import Placing

MOST_KEPT = 1024
"""Queries whose vectors are kept."""
QUERY_SECONDS = 2.0
"""How long a query waits for the model."""
LOCK_SECONDS = 0.1
"""How often it is asked whether another worker has embedded what it was about to."""
FOLDER = "registry"


class Sense:
    """Of one embedder. Nothing is opened before `renew`; `aclose` ends it."""

    __slots__ = (
        "_clock",
        "_data",
        "_index",
        "_kept",
        "_lock",
        "_open",
        "_patience",
        "_placing",
        "_pulse",
        "_scratch",
        "_shelf",
        "changed",
        "embedder",
    )

    def __init__(
        self,
        embedder: Embedder,
        data: pathlib.Path,
        vectors: Callable[[], Awaitable[Vectors]] | None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`vectors` opens an index that is shared; one of this process without."""
        self.embedder = embedder
        self._clock = clock
        self._pulse = Pulse(embedder.name, chance)
        self._patience = Patience(self._pulse, clock)
        self.changed = False
        """Whether the model answers with other embeddings than it did, so that all is to be made anew."""
        self._data = data
        self._open = vectors
        # What the built-in one embedded has a name that is older than there being others.
        name, made_by = ("embeddings", EMBEDDER) if embedder.built_in else (f"embeddings-{embedder.weights}", embedder.weights)
        self._shelf = Shelf(data / FOLDER / f"{name.replace('/', '-').replace(':', '-')}.bin", made_by)
        self._lock = data / FOLDER / ".lock"
        self._placing: Placing | None = None
        self._index: Index | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._kept: OrderedDict[str, Any] = OrderedDict()

    async def renew(self, cards: Mapping[str, ServiceCard]) -> None:
        """Have the vectors of these cards, and no others.

        Raises:
            SitsError: what the model or the index failed of; `unsupported`, what they need is not installed.
        """
        index = await self._opened()
        texts = list(dict.fromkeys(card.text for card in cards.values()))
        placed = dict(zip(texts, await self._placed(texts), strict=True))
        await index.renew({name: placed[card.text] for name, card in cards.items()})

    async def nearest(self, text: str, most: int) -> list[tuple[str, float]]:
        """Services with how near they are to a query, best first; 0.3 is the same for every model.

        Raises:
            SitsError: as `renew`; `upstream_timeout`, the model takes too long; `model_unavailable`, it is left alone.
        """
        assert self._index is not None
        assert self._placing is not None
        vector: Any = self._kept.get(text)
        if vector is None:
            vector = await self._patience.within(lambda: self._vector(text), QUERY_SECONDS)
        scale = self._placing.scale
        return [(name, min(1.0, scale * cosine)) for name, cosine in await self._index.nearest(vector, most)]

    async def aclose(self) -> None:
        """Let go of the index. Safe to repeat."""
        await self._patience.aclose()
        index, self._index = self._index, None
        if index is not None:
            await index.aclose()
        if self._scratch is not None:
            await asyncio.to_thread(self._scratch.cleanup)

    async def _vector(self, text: str) -> Any:
        rows, placing = await self._embed([text], query=True), self._placing
        assert placing is not None
        vector = (await aside(lambda: placing.place([text], rows).astype("<f4"), "registry"))[0]
        self._kept[text] = vector
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return vector

    async def _placed(self, texts: Sequence[str]) -> list[Any]:
        """The vectors of cards; their embeddings are kept over restarts."""
        import numpy as np

        if not texts:
            return []
        held = await self._held(texts)
        if len(held) < len(texts):
            async with _alone(self._lock):
                held = await self._held(texts)
                if missing := [text for text in texts if text not in held]:
                    rows = await self._embed(missing, query=False)
                    held |= {text: row.astype("<f4").tobytes() for text, row in zip(missing, rows, strict=True)}
                    await aside(lambda: self._shelf.keep(held), "registry")
        placing = self._placing
        assert placing is not None
        flat = np.frombuffer(b"".join(held[text] for text in texts), "<f4").reshape(len(texts), -1)
        return list(await aside(lambda: placing.place(texts, flat).astype("<f4"), "registry"))

    async def _held(self, texts: Sequence[str]) -> dict[str, bytes]:
        """The embeddings that are kept of these."""
        held, size = await aside(lambda: self._shelf.take(texts), "registry"), self._size()
        return {text: row for text, row in held.items() if size is None or len(row) == 4 * size}

    def _size(self) -> int | None:
        """How many numbers embeddings have; the built-in model's always have as many."""
        return None if self.embedder.built_in or self._placing is None else self._placing.dimension

    async def _embed(self, texts: Sequence[str], *, query: bool) -> Any:
        return await watched(lambda these: self._asked(these, query=query), self._pulse, self._clock)(texts)

    async def _asked(self, texts: Sequence[str], *, query: bool) -> Any:
        rows, size = await self.embedder.embed(texts, query=query), self._size()
        if size is not None and rows.shape[1] != size:
            self.changed = True
            message = f"{self.embedder.name} answers with embeddings of {rows.shape[1]} numbers, and had {size} before"
            raise SitsError(Code.UPSTREAM_BROKEN, message)
        return rows

    async def _opened(self) -> Index:
        """The index, opened when it is first needed.

        Raises:
            SitsError: as `renew`.
        """
        if self._index is not None:
            return self._index
        try:
            from sits.state.registry.index import Index

            placing = await self._made()
        except ImportError as error:
            raise SitsError(Code.UNSUPPORTED, "services are found by meaning with numpy: pip install 'sits[local]'") from error
        if self._open is not None:
            vectors = await self._open()
        else:
            # Made anew from kept embeddings in a moment, so that workers need not share them.
            scratch = tempfile.TemporaryDirectory(prefix="sits-registry-", ignore_cleanup_errors=True)
            try:
                vectors = await open_vectors("embedded", pathlib.Path(scratch.name))
            except BaseException:  # It is tried again.
                scratch.cleanup()
                raise
            self._scratch = scratch
        self._placing = placing
        self._index = Index(vectors, EMBEDDER if self.embedder.built_in else self.embedder.weights, placing.dimension)
        return self._index

    async def _made(self) -> Placing:
        """How embeddings are compared; for a declared model from its embeddings of what comes with the package, which domains are
        read by, too."""
        from sits.state.registry.placing import Centred, Mapped, yardstick

        embedder = self.embedder
        if not isinstance(embedder, Declared):
            from sits.resilience.substitutes.space import space

            found = await aside(space, "registry")
            return Mapped(found.place, int(found.background.shape[1]))
        from sits.state.intent.building import embedded
        from sits.state.intent.embedders import steady
        from sits.state.intent.shelf import Shelf as Examples
        from sits.state.intent.shelf import sized

        texts = await aside(yardstick, "registry")
        size = (await embedder.embed(texts[:1])).shape[1]
        shelf = Examples(self._data / "intent", sized(embedder.weights, size), size)
        rows = await embedded(texts, steady(embedder.name, embedder.embed, size), shelf, each=BATCH)
        return await aside(lambda: Centred(rows), "registry")


@asynccontextmanager
async def _alone(path: pathlib.Path) -> AsyncIterator[None]:
    """While nobody else with this data folder embeds cards: workers hear of the same ones in the same moment, and one of them is
    to embed them. The lock goes with its holder; where there can be none, each embeds them."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield  # What cannot be kept here is told by the shelf.
        return
    try:
        while not _locked(file):  # noqa: ASYNC110 - another process sends no event
            await asyncio.sleep(LOCK_SECONDS)
        yield
    finally:
        os.close(file)


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
