"""From declared domains to an intent that reads requests: everything is embedded once, and fitted aside.

Heads are fitted on up to `MOST_EXAMPLES` examples. Where there are more - or `index` says so - they are fitted on a part of them,
and the deep stage asks the nearest of all examples for their votes.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from sits.engines.local.aside import aside
from sits.inner.errors import Code, SitsError
from sits.routing.intent.head import MOST_EXAMPLES
from sits.routing.intent.intent import Intent, fit_intent, quick_seen
from sits.routing.intent.tune import Tuning
from sits.state.cache.semantic.embedder import Embedder, WordLlama
from sits.state.intent.embedders import Embed
from sits.state.intent.material import Material, sample, without_near
from sits.state.intent.shelf import Shelf

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]

_log = logging.getLogger("sits.intent")

Index = Literal["heads", "vectors"]
SAMPLED = 4000
"""Examples that heads are fitted on where votes decide."""
EACH = 8
"""Texts of one call: short ones, so that a request that is read meanwhile waits some 60 ms for its turn at the most."""
KEPT = 1024
"""Embeddings made until they are put on the shelf, so that a restart goes on near where this one ended."""
WAIT_SECONDS = 1.0
"""How often the shelf is looked at while another process makes the embeddings."""
NEAR = 0.95
"""Background this near to an example is left out."""


class Built(msgspec.Struct, frozen=True):
    """An intent, and what it was made of."""

    material: Material
    embeddings: Matrix
    """Of its examples, row by row."""
    intent: Intent
    index: Index
    """What the deep stage goes by."""


def load_quick() -> WordLlama:
    """The embedder of the quick stage.

    Raises:
        SitsError: `unsupported`: what it needs is not installed.
    """
    try:
        return WordLlama()
    except SitsError as error:
        if error.code is not Code.UNSUPPORTED:
            raise
        raise SitsError(Code.UNSUPPORTED, "reading what requests want needs wordllama: pip install 'sits[local]'") from error


def load_tuning(path: Path) -> Tuning:
    """What `sits intent tune --use` wrote there; without such a file what was tuned on the labelled set of the bench.

    Raises:
        SitsError: `invalid_request`: it is there and cannot be read.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raw = importlib.resources.files("sits.state.intent").joinpath("tuning.json").read_bytes()
    except OSError as error:
        raise SitsError(Code.INVALID_REQUEST, f"{path}: {error.strerror}") from error
    try:
        return msgspec.json.decode(raw, type=Tuning)
    except msgspec.DecodeError as error:
        raise SitsError(Code.INVALID_REQUEST, f"{path}: {error}; `sits intent tune --use` writes it anew") from error


async def build(
    given: Material, quick: Embedder, embed: Embed, shelf: Shelf, tuning: Tuning, index: Index | None = None
) -> Built:
    """The intent for this material. `index` as the count of examples says when not given.

    Raises:
        SitsError: what the embedding model failed of; `internal_error`, the shelf cannot be written.
    """
    rows = await embedded(given.texts, embed, shelf)
    return await aside(lambda: _built(*without_near(given, rows, NEAR), quick, tuning, index), "intent")


async def embedded(
    texts: Sequence[str], embed: Embed, shelf: Shelf, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> Matrix:
    """The embeddings of texts, from the shelf as far as they are there; the others are made and put there.

    Raises:
        SitsError: as `build`.
    """
    import numpy as np

    held = await aside(lambda: shelf.take(texts), "intent")
    while len(held) < len(set(texts)):
        with shelf.alone() as alone:
            # Whoever had it before may have made them.
            held = await aside(lambda: shelf.take(texts), "intent")
            if alone:
                await _make([text for text in dict.fromkeys(texts) if text not in held], held, embed, shelf)
        if not alone:
            await sleep(WAIT_SECONDS)
    flat = np.frombuffer(b"".join(held[text] for text in texts), "<f4")
    found: Matrix = flat.reshape(len(texts), -1).astype(np.float32)
    return found


async def _make(missing: Sequence[str], held: dict[str, bytes], embed: Embed, shelf: Shelf) -> None:
    """Embed what is missing, into `held` and onto the shelf."""
    for at in range(0, len(missing), EACH):
        texts = missing[at : at + EACH]
        rows = await embed(texts)
        held |= {text: row.astype("<f4").tobytes() for text, row in zip(texts, rows, strict=True)}
        done = at + len(texts)
        if done % KEPT == 0 or done == len(missing):
            await aside(partial(shelf.keep, held), "intent")
            _log.info("%d of %d examples are embedded", done, len(missing))


def _built(given: Material, rows: Matrix, quick: Embedder, tuning: Tuning, index: Index | None) -> Built:
    index = index or ("heads" if len(given.examples) <= MOST_EXAMPLES else "vectors")
    places = sample(given, MOST_EXAMPLES if index == "heads" else SAMPLED)
    texts = [given.examples[at].text for at in places]
    tokens = quick.embed(texts)
    intent = fit_intent(
        given.domains,
        given.least,
        quick_seen(texts, tokens),
        rows[places],
        given.labels()[places],
        tuning,
    )
    return Built(given, rows, intent, index)
