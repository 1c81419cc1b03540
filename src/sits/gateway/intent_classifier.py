"""What a request wants, read by the domains in force: `IntentTraining` makes what reads, and puts it here.

A request looks, and waits at the most as long as its route lets it. Where there is nothing to read by, a request is of none:
nothing ever fails of this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from sits.dialects.wanted import wanted
from sits.gateway.embedding import DIMENSION, Embedder
from sits.inner.ask import Operation
from sits.inner.errors import Code, SitsError
from sits.resources.problem import did_you_mean, quoted
from sits.routing.intent.cut import cut
from sits.routing.intent.verdict import Verdict

if TYPE_CHECKING:
    # Imported when a domain is declared: they want numpy, which the base install does without.
    import numpy as np
    import numpy.typing as npt

    from sits.state.intent.building import Built
    from sits.state.intent.embedders import Embed
    from sits.state.intent.nearest import Near, Nearest
    from sits.state.intent.patience import Patience
    from sits.state.intent.reader import Reader

    Matrix = npt.NDArray[np.float32]

HEADER = b"x-sits-domain"
"""Where a client says itself what its request wants."""
UNKNOWN = "unknown"
"""What a request of no domain is called."""
NOTHING = Verdict(None, 0.0, "quick", "")
"""The verdict where nothing can be read."""
NEAREST_SECONDS = 5.0
"""How long a person waits for the nearest examples."""


class InForce(msgspec.Struct, frozen=True):
    """Both stages, and whom they ask."""

    reader: Reader
    built: Built
    embedder: Embedder
    asked: Embed
    """Embeddings as what reads takes them."""
    patience: Patience


class IntentClassifier:
    """Reads requests by the domains in force. Belongs to the loop that it is made in."""

    __slots__ = (
        "_asked",
        "_counted",
        "_lacking",
        "_nearest",
        "_patience",
        "_reader",
        "active",
        "built",
        "embedder",
        "indexed",
    )

    def __init__(self, lacking: Callable[[], str]) -> None:
        """`lacking` says why there are no examples to compare with."""
        self._lacking = lacking
        self._reader: Reader | None = None
        self._asked: Embed | None = None
        self._patience: Patience | None = None
        self._nearest: Nearest | None = None
        self._counted = {"quick": 0, "deep": 0, "kept": 0, "shed": 0, "rested": 0}
        """Verdicts of readers that are gone."""
        self.built: Built | None = None
        self.embedder: Embedder | None = None
        """Whom requests are read by; another one than is wanted while all is made anew."""
        self.indexed = False
        """Whether the index has the examples in force."""
        self.active = False
        """Whether there is something to read by."""

    def look(self, body: bytes, operation: Operation) -> Verdict | None:
        """The verdict on a request as far as it can be had at once: kept, or quick and sure enough. None: `read` says."""
        reader = self._reader
        if reader is None:
            return NOTHING
        text = wanted(body, operation, None)
        return NOTHING if text is None else reader.look(text)

    async def read(self, body: bytes, operation: Operation, seconds: float) -> Verdict:
        """The verdict on a request, in `seconds` at the most: what the quick stage says stands where the deep one has not said
        anything by then. Awaits nothing but a future of the loop; raises nothing."""
        reader = self._reader
        text = wanted(body, operation, None) if reader is not None else None
        if reader is None or text is None:
            return NOTHING
        found = reader.read(text, seconds)
        return found if isinstance(found, Verdict) else await found

    async def nearest(self, text: str, k: int = 5) -> list[Near]:
        """The examples that are nearest to a text: what its verdict goes by.

        Raises:
            SitsError: `not_found`, no domains are in force, or their examples are not in the index yet; what the model or the
                index failed of; `model_unavailable`, the model is left alone; `upstream_timeout`, it says nothing.
        """
        asked = self._asked
        if self._nearest is None or not self.indexed or asked is None or self._patience is None:
            raise SitsError(Code.NOT_FOUND, f"there are no examples to compare with: {self._lacking()}")
        text = cut(text)
        # Whoever had it read just now has it embedded.
        row = self._reader.row(text) if self._reader is not None else None
        if row is None:
            row = (await self._patience.within(lambda: asked([text]), NEAREST_SECONDS))[0]
        row = self.built.intent.levelled(text, row) if self.built is not None else row
        return await self._nearest.near(row, k)

    async def votes(self, embedding: Matrix) -> Sequence[tuple[str | None, float]]:
        """Who votes for an embedding: nobody, until the index has the examples."""
        return await self._nearest.votes(embedding) if self._nearest is not None and self.indexed else ()

    # What is in force

    async def put(self, made: InForce) -> None:
        """Read by this from now on, with both stages."""
        await self._take(made.reader, made)

    async def put_quick(self, reader: Reader) -> None:
        """Read by this, the quick stage alone."""
        await self._take(reader, None)

    async def clear(self) -> None:
        """Read nothing any more; whoever waits has the quick verdict. Safe to repeat."""
        await self._take(None, None)

    def put_index(self, nearest: Nearest, built: Built) -> None:
        """The examples of what was built are in this index; what reads has its own, so the embeddings are let go."""
        self._nearest, self.indexed = nearest, True
        self.built = msgspec.structs.replace(built, embeddings=built.embeddings[:0].copy())

    async def _take(self, reader: Reader | None, made: InForce | None) -> None:
        old, self._reader = self._reader, reader
        patience, self._patience = self._patience, None if made is None else made.patience
        self.built = None if made is None else made.built
        self.embedder = None if made is None else made.embedder
        self._asked = None if made is None else made.asked
        self.indexed = False
        self.active = reader is not None
        try:
            if old is not None:
                await self._leave(old)
        finally:
            if patience is not None:
                await patience.aclose()

    async def _leave(self, reader: Reader) -> None:
        """This one is not read by any more; its verdicts count, those among them with which whoever still waits has to do."""
        counted = _counts_of(reader)
        self._counted = {name: count + counted[name] for name, count in self._counted.items()}
        try:
            await reader.aclose()
        finally:
            late = _counts_of(reader)
            self._counted = {name: count + late[name] - counted[name] for name, count in self._counted.items()}

    # For people

    def counts(self) -> dict[str, int]:
        """Verdicts, by where they are from."""
        if self._reader is None:
            return dict(self._counted)
        return {name: self._counted[name] + count for name, count in _counts_of(self._reader).items()}

    def dimension(self, embedder: Embedder) -> int | None:
        """How many numbers embeddings of this one have, as far as what is in force says."""
        if self.built is not None and self.built.seat is not None:
            return len(self.built.seat.mean)
        return DIMENSION if embedder.built_in else None


def _counts_of(reader: Reader) -> dict[str, int]:
    """Its verdicts, as `counts` has them."""
    own = {"quick": reader.quick, "deep": reader.asked, "kept": reader.kept}
    return own | {"shed": reader.shed, "rested": reader.rested}


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
