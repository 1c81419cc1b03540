"""Who may stand in for whom, in a node: chosen anew behind each change of the configuration, by embeddings of a local model.

A request looks `current` up and waits for nothing. Until the choice is made, and where it cannot be, nobody stands in.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sits.engines.base import Deadlines, Engine, Headers, Outgoing
from sits.engines.local.aside import aside
from sits.engines.local.hosting import OWN
from sits.gateway.strangers import may
from sits.inner.errors import Code, SitsError
from sits.resilience.substitutes import NOBODY, Substitutes, choose, texts_of
from sits.resilience.substitutes.shelf import EMBEDDER, Shelf
from sits.resources.defaults import DEFAULT_FOLDER
from sits.resources.kinds import Model
from sits.resources.reading import read
from sits.resources.snapshot import Snapshot, compile_reading

if TYPE_CHECKING:
    from sits.gateway.exchange import Exchange

_log = logging.getLogger("sits.substitutes")

MODEL = "multilingual-e5-small"
"""The built-in model that makes the embeddings."""
BATCH = 32
"""Texts of one request: half a second of one thread."""
AGAIN_SECONDS = (1.0, 5.0, 60.0)
"""After how long it is tried again; the last one from then on."""
PATIENCE = Deadlines(headers=600.0, first_token=600.0, total=600.0)
"""The model may have to be fetched first."""


class Substituting:
    """Makes the choice. `want` is run aside from requests; whoever runs it ends it."""

    __slots__ = ("_asking", "_engine", "_shelf", "_sleep", "_wanted", "current", "trouble")

    def __init__(
        self,
        data: Path,
        engine: Callable[[], Engine],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`engine` is asked for the engine of `embedding_model` each time it is needed. `sleep` is for tests."""
        self._asking = 0
        """Choices for which embeddings are asked for just now."""
        self._engine = engine
        self._shelf = Shelf(data / "substitutes" / "embeddings.bin", EMBEDDER)
        self._sleep = sleep
        self._wanted: Snapshot | None = None
        self.current: Substitutes = NOBODY
        self.trouble = ""
        """Why there is no choice, if there should be one."""

    def engines(self) -> list[Engine]:
        """The engines that are to be kept for this: while it is chosen, and no longer."""
        return [self._engine()] if self._asking else []

    async def want(self, snapshot: Snapshot) -> None:
        """Choose for this configuration; given up as soon as another one is wanted. Tries until it has succeeded."""
        self._wanted = snapshot
        tried = 0
        while self._wanted is snapshot:
            try:
                chosen = await self._choose(snapshot)
            except SitsError as error:
                self.trouble = error.message
                _log.error("substitutes cannot be chosen, nobody stands in: %s", error.message)
                if error.code is Code.UNSUPPORTED:
                    return
                await self._sleep(AGAIN_SECONDS[min(tried, len(AGAIN_SECONDS) - 1)])
                tried += 1
                continue
            if self._wanted is snapshot:
                self.current, self.trouble = chosen, ""
                for route, found in chosen.rows.items():
                    said = ", ".join(f"{one.name} {one.cosine:.3f}" for one in found) or "nobody is near enough"
                    _log.info("substitutes of %s: %s", route, said)
            return

    async def _choose(self, snapshot: Snapshot) -> Substitutes:
        texts = texts_of(snapshot)
        if not texts:
            return NOBODY
        vectors = await aside(lambda: self._shelf.take(texts), "substitutes")
        missing = [text for text in texts if text not in vectors]
        if missing:
            self._asking += 1
            try:
                vectors |= dict(zip(missing, await embed(self._engine(), missing), strict=True))
            finally:
                self._asking -= 1
            await aside(lambda: self._shelf.keep(vectors), "substitutes")
        return await aside(lambda: choose(snapshot, vectors), "substitutes")


def stand_in(x: Exchange, substitutes: Substitutes, out: frozenset[str]) -> None:
    """Put those who may stand in behind the targets of a request's plan; before them where breakers leave all of these out.

    Asked only for routes that want substitutes.
    """
    assert x.choice is not None
    assert x.plan is not None
    targets, breakers = x.table.targets, x.table.breakers
    found = []
    for name in substitutes.of(x.choice.name):
        target = targets.get(name)  # The choice may be one configuration behind.
        if target is not None and not breakers[name].out and may(x, target):
            found.append(target)
    if not found:
        return
    declared = tuple(x.plan.targets)
    down = bool(out) and all(target.name in out for target in declared)
    x.stand_ins = substitutes.told(x.choice.name)
    x.plan = msgspec.structs.replace(x.plan, targets=(*found, *declared) if down else (*declared, *found))


@cache
def embedding_model() -> Model:
    """The declaration of the model that makes the embeddings."""
    return compile_reading(read(DEFAULT_FOLDER), 0).models[MODEL]


async def embed(engine: Engine, texts: Sequence[str]) -> list[bytes]:
    """The embeddings of texts as the engine of an OpenAI-compatible server makes them: float32, little-endian. Our own server
    cuts a text to its window, and does this before what clients ask.

    Raises:
        SitsError: what the engine failed of; `upstream_broken`, its answer is no list of embeddings.
    """
    found: list[bytes] = []
    for at in range(0, len(texts), BATCH):
        body = {"model": MODEL, "input": list(texts[at : at + BATCH]), "encoding_format": "base64"}
        found += await _ask(engine, msgspec.json.encode(body))
    if len(found) != len(texts):
        raise SitsError(Code.UPSTREAM_BROKEN, f"{len(texts)} texts have {len(found)} embeddings")
    return found


async def _ask(engine: Engine, body: bytes) -> list[bytes]:
    whole = _Whole(asyncio.get_running_loop())
    headers = [(b"content-type", b"application/json"), OWN]
    call = engine.send(Outgoing(b"POST", b"/v1/embeddings", headers, body), whole, PATIENCE)
    try:
        status, answer = await whole.done
    except asyncio.CancelledError:
        call.cancel()
        raise
    if status != 200:
        raise SitsError(Code.UPSTREAM_ERROR, f"the embedding model answers {status}: {answer[:200].decode(errors='replace')}")
    try:
        listed = msgspec.json.decode(answer, type=_List).data
        return [base64.b64decode(one.embedding, validate=True) for one in sorted(listed, key=lambda one: one.index)]
    except (msgspec.MsgspecError, ValueError) as error:
        raise SitsError(Code.UPSTREAM_BROKEN, f"the embedding model's answer cannot be read: {error}") from error


class _Embedding(msgspec.Struct):
    index: int
    embedding: str


class _List(msgspec.Struct):
    data: list[_Embedding]


class _Whole:
    """A `Reply` that waits for the whole answer."""

    __slots__ = ("_pieces", "_status", "done")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.done: asyncio.Future[tuple[int, bytes]] = loop.create_future()
        self._status = 0
        self._pieces: list[bytes] = []

    def head(self, status: int, headers: Headers) -> None:
        self._status = status

    def data(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result((self._status, b"".join(self._pieces)))

    def fail(self, error: SitsError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
