"""What requests want, in a node: read by the domains that are declared, made anew behind each change of them.

A request looks, and waits at the most as long as its route lets it. The quick stage stands within a second or two; while the
examples are embedded for the deep one, and where they cannot be, its verdicts stand. Until then, and where there is nothing to
read by, a request is of none: nothing ever fails of this. A node without a Domain does nothing here.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from sits.dialects.wanted import wanted
from sits.engines.base import Engine
from sits.engines.local.aside import aside
from sits.gateway.substituting import embed, embedding_model
from sits.inner.ask import Operation
from sits.inner.errors import Code, SitsError
from sits.ports.vectors import Vectors
from sits.resources.domains import Domain
from sits.resources.problem import did_you_mean, quoted
from sits.resources.snapshot import Snapshot
from sits.routing.intent.verdict import Verdict

if TYPE_CHECKING:
    # Imported when a domain is declared: they want numpy, which the base install does without.
    import numpy as np
    import numpy.typing as npt

    from sits.state.cache.semantic.embedder import WordLlama
    from sits.state.intent.building import Built, Index
    from sits.state.intent.nearest import Near, Nearest
    from sits.state.intent.reader import Reader

    Matrix = npt.NDArray[np.float32]

_log = logging.getLogger("sits.intent")

HEADER = b"x-sits-domain"
"""Where a client says itself what its request wants."""
UNKNOWN = "unknown"
"""What a request of no domain is called."""
NOTHING = Verdict(None, 0.0, "quick", "")
"""The verdict where nothing can be read."""
DIMENSION = 384
"""Numbers of an embedding of the built-in model."""
AGAIN_SECONDS = (1.0, 5.0, 60.0)
"""After how long what went wrong is tried again; the last one from then on."""

State = Literal["none", "building", "quick", "ready", "failed"]
"""`quick`: the quick stage reads alone, the deep one is being made."""


class Understanding:
    """Reads requests by the domains in force. Belongs to the loop that it is made in; `aclose` ends what it began."""

    __slots__ = (
        "_built",
        "_counted",
        "_data",
        "_domains",
        "_engine",
        "_index",
        "_kept",
        "_nearest",
        "_progress",
        "_quick",
        "_reader",
        "_sleep",
        "_standing",
        "_state",
        "_task",
        "_vectors",
        "active",
        "trouble",
    )

    def __init__(
        self,
        data: Path,
        engine: Callable[[], Engine],
        vectors: Callable[[], Awaitable[Vectors]],
        *,
        index: Index | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`engine` is asked for the engine of `embedding_model` each time it is needed, `vectors` once for an index, which is
        closed here. `index` as the count of examples says when not given. `sleep` is for tests."""
        self._data = data / "intent"
        self._engine = engine
        self._vectors: Vectors | Callable[[], Awaitable[Vectors]] = vectors
        self._index = index
        self._sleep = sleep
        self._domains: Mapping[str, Domain] = {}
        self._task: asyncio.Task[None] | None = None
        self._quick: WordLlama | None = None
        self._reader: Reader | None = None
        self._built: Built | None = None
        self._progress = (0, 0)
        """How many examples are embedded, of those to come into force, and how many there are."""
        self._standing = ""
        """What the quick stage that reads alone was made of."""
        self._nearest: Nearest | None = None
        self._kept = False
        """Whether the index has the examples in force."""
        self._counted = {"quick": 0, "deep": 0, "kept": 0, "shed": 0}
        """Verdicts of readers that are gone."""
        self._state: State = "none"
        self.active = False
        """Whether there is something to read by."""
        self.trouble = ""
        """What went wrong last, if that has not been mended."""

    def apply(self, snapshot: Snapshot) -> None:
        """Read by this configuration as soon as it is ready; by the one before until then. Costs a comparison where the domains
        are as they were."""
        domains = dict(snapshot.domains)
        if domains == self._domains:
            return
        self._domains = domains
        if self._task is not None:
            self._task.cancel()
        self.trouble = ""
        self._state = "building" if domains else "none"
        self._progress = (0, 0)
        self._task = asyncio.get_running_loop().create_task(self._follow(domains, self._task), name="understanding")

    def look(self, body: bytes, operation: Operation) -> Verdict | None:
        """The verdict on a request as far as it can be had at once: kept, or quick and sure enough. None: `read` says."""
        reader = self._reader
        if reader is None:
            return NOTHING
        text = wanted(body, operation)
        return NOTHING if text is None else reader.look(text)

    async def read(self, body: bytes, operation: Operation, seconds: float) -> Verdict:
        """The verdict on a request, in `seconds` at the most: what the quick stage says stands where the deep one has not said
        anything by then. Awaits nothing but a future of the loop; raises nothing."""
        reader = self._reader
        text = wanted(body, operation) if reader is not None else None
        if reader is None or text is None:
            return NOTHING
        found = reader.read(text, seconds)
        return found if isinstance(found, Verdict) else await found

    async def nearest(self, text: str, k: int = 5) -> list[Near]:
        """The examples that are nearest to a text: what its verdict goes by.

        Raises:
            SitsError: `not_found`, no domains are in force, or their examples are not in the index yet; what the model or the
                index failed of.
        """
        if self._nearest is None or not self._kept:
            raise SitsError(Code.NOT_FOUND, f"there are no examples to compare with: {self.trouble or self._state}")
        rows = await self._embed([text])
        row = self._built.intent.levelled(text, rows[0]) if self._built is not None else rows[0]
        return await self._nearest.near(row, k)

    def engines(self) -> list[Engine]:
        """The engines that are to be kept for this."""
        return [self._engine()] if self._domains else []

    def status(self) -> dict[str, Any]:
        """What is in force and what is being made, for the status page."""
        built, declared = self._built, sorted(self._domains)
        return {
            "state": self._state,
            "trouble": self.trouble or (self._reader.trouble if self._reader is not None else ""),
            "declared": declared,
            "domains": list(built.intent.domains) if built is not None else declared if self._state == "quick" else [],
            "examples": len(built.material.examples) if built is not None else 0,
            "embedded": {"done": self._progress[0], "of": self._progress[1]},
            "index": built.index if built is not None else None,
            "indexed": self._kept,
            "verdicts": self._counts(),
            "tuning": msgspec.to_builtins(built.intent.tuning) if built is not None else None,
        }

    async def aclose(self) -> None:
        """End what is under way; whoever waits has the quick verdict. Safe to repeat."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._take(None, None)
        if not callable(self._vectors):
            await self._vectors.aclose()

    # Behind the scene

    async def _follow(self, domains: Mapping[str, Domain], before: asyncio.Task[None] | None) -> None:
        """Make what reads by these domains, however often it has to be tried, and then the index of their examples."""
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
        if not domains:
            await self._take(None, None)
            return
        await self._until_done(lambda: self._make(domains), "domains cannot be read by")
        if self._built is not None and self._state == "ready":
            built = self._built
            await self._until_done(lambda: self._keep(built), "the index of examples is not up to date")

    async def _until_done(self, make: Callable[[], Awaitable[None]], said: str) -> None:
        tried = 0
        while True:
            try:
                await make()
            except SitsError as error:
                self.trouble = error.message
                if self._state == "building":
                    self._state = "failed"
                _log.error("%s: %s", said, error.message)
                if error.code is Code.UNSUPPORTED:
                    return
                await self._sleep(AGAIN_SECONDS[min(tried, len(AGAIN_SECONDS) - 1)])
                tried += 1
                continue
            self.trouble = ""
            return

    async def _make(self, domains: Mapping[str, Domain]) -> None:
        # numpy and its kin take a while to import.
        await aside(lambda: importlib.import_module("sits.state.intent.building"), "intent")
        from sits.state.intent.building import build, build_quick, load_quick, load_tuning, restored
        from sits.state.intent.material import material
        from sits.state.intent.reader import Reader
        from sits.state.intent.shelf import Shelf

        quick = self._quick
        if quick is None:
            quick = self._quick = await aside(load_quick, "intent")
        tuning = await aside(lambda: load_tuning(self._data / "tuning.json"), "intent")
        given = await aside(lambda: material(domains), "intent")
        shelf = Shelf(self._data, _model(), DIMENSION)
        built = await restored(given, shelf, tuning, self._index)
        if built is None:
            if self._built is None and self._standing != given.digest:
                await self._take(Reader(await build_quick(given, quick, tuning), quick, None), None)
                self._state, self._standing = "quick", given.digest
            built = await build(given, quick, self._embed, shelf, tuning, self._index, self._tell)
        self._tell(len(set(given.texts)), len(set(given.texts)))
        await self._take(Reader(built.intent, quick, self._embed, votes=self._votes(built)), built)
        self._state = "ready"
        _log.info("requests are read by %d domains, %d examples", len(domains), len(built.material.examples))

    def _tell(self, done: int, of: int) -> None:
        self._progress = done, of

    async def _keep(self, built: Built) -> None:
        if callable(self._vectors):
            self._vectors = await self._vectors()
        if self._nearest is None:
            from sits.state.intent.nearest import Nearest

            self._nearest = Nearest(self._vectors, _model(), DIMENSION)
        written, removed = await self._nearest.keep(built.material, built.embeddings)
        self._kept = True
        # The index has them; what reads has its own.
        self._built = msgspec.structs.replace(built, embeddings=built.embeddings[:0].copy())
        _log.info("the index of examples is up to date: %d written, %d removed", written, removed)

    async def _take(self, reader: Reader | None, built: Built | None) -> None:
        """Read by this from now on."""
        old, self._reader = self._reader, reader
        self._built = built
        self._kept = False
        self.active = reader is not None
        if old is not None:
            self._counted = self._counts_of(old)
            await old.aclose()

    def _votes(self, built: Built) -> Callable[[Matrix], Awaitable[Sequence[tuple[str | None, float]]]] | None:
        """Who votes for an embedding, where votes decide: nobody, until the index has the examples."""
        if built.index == "heads":
            return None

        async def votes(embedding: Matrix) -> Sequence[tuple[str | None, float]]:
            return await self._nearest.votes(embedding) if self._nearest is not None and self._kept else ()

        return votes

    async def _embed(self, texts: Sequence[str]) -> Matrix:
        """Embeddings by the gateway's own model, of length 1.

        Raises:
            SitsError: what its engine failed of.
        """
        import numpy as np

        # The model refuses a NUL.
        raw = await embed(self._engine(), [text.replace("\0", " ") for text in texts])
        rows = np.frombuffer(b"".join(raw), "<f4").reshape(len(texts), -1)
        if rows.shape[1] != DIMENSION:
            raise SitsError(Code.UPSTREAM_BROKEN, f"embeddings have {rows.shape[1]} numbers, not {DIMENSION}")
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        scaled: Matrix = (rows / np.maximum(lengths, 1e-12)).astype(np.float32)
        return scaled

    def _counts(self) -> dict[str, int]:
        return dict(self._counted) if self._reader is None else self._counts_of(self._reader)

    def _counts_of(self, reader: Reader) -> dict[str, int]:
        own = {"quick": reader.quick, "deep": reader.asked, "kept": reader.kept, "shed": reader.shed}
        return {name: self._counted[name] + count for name, count in own.items()}


def said_domain(headers: Mapping[bytes, bytes], known: Collection[str]) -> str | None:
    """The domain that a client says itself, `unknown` among them; None where it says none.

    Raises:
        SitsError: `invalid_request`: no such domain is declared.
    """
    raw = headers.get(HEADER)
    if raw is None:
        return None
    name = raw.decode("utf-8", "replace").strip()
    if name in known or name == UNKNOWN:
        return name
    hint = did_you_mean(name, [*known, UNKNOWN])
    message = f"no domain is called {quoted(name)}" + (f"; {hint}" if hint else "")
    raise SitsError(Code.INVALID_REQUEST, message, param=HEADER.decode())


def _model() -> str:
    """The embedding model and its weights."""
    local = embedding_model().spec.local
    assert local is not None
    return f"{embedding_model().metadata.name}-{(local.sha256 or '')[:8]}"
