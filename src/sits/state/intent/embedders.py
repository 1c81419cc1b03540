"""The embedding model of the deep stage in this process: for evaluation and benches, where nothing else needs the processor.

A gateway asks its own local model instead (an engine of its own process), by the same `Embed`.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sits.engines.local.aside import aside
from sits.engines.local.e5_host import Library
from sits.engines.local.engine import local_plan
from sits.engines.local.fetch import fetch
from sits.engines.local.hosting import CannotServe
from sits.inner.errors import Code, SitsError
from sits.resources.defaults import DEFAULT_FOLDER
from sits.resources.reading import read
from sits.resources.snapshot import compile_reading

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from sits.state.intent.seat import Seat

    Matrix = npt.NDArray[np.float32]

MODEL = "multilingual-e5-small"
BATCH = 32
"""Texts of one call: a quarter of a second of one thread."""

Embed = Callable[[Sequence[str]], "Awaitable[Matrix]"]
"""Embeds texts without holding the loop up; a row of length 1 for each."""


def weights_named() -> str:
    """The embedding model and its weights, as what was embedded by it is named."""
    local = compile_reading(read(DEFAULT_FOLDER), 0).models[MODEL].spec.local
    assert local is not None
    return f"{MODEL}-{(local.sha256 or '')[:8]}"


class Deep(Protocol):
    """An embedding model that is asked from a thread."""

    name: str
    dimension: int

    def embed(self, texts: Sequence[str]) -> Matrix:
        """One row of length 1 for each text."""
        ...


class E5:
    """multilingual-e5-small (Wang et al. 2024) in this process."""

    name = MODEL

    def __init__(self, library: Library) -> None:
        self._library = library
        self.dimension = library.size

    def embed(self, texts: Sequence[str]) -> Matrix:
        import numpy as np

        rows: list[bytes] = []
        for at in range(0, len(texts), BATCH):
            # A C string ends at a NUL, so one inside would cut the text off.
            rows += self._library.embed([text.replace("\0", " ") for text in texts[at : at + BATCH]], query=True)[0]
        found = np.frombuffer(b"".join(rows), "<f4").reshape(len(texts), self.dimension)
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        scaled: Matrix = (found / np.maximum(lengths, 1e-12)).astype(np.float32)
        return scaled


def open_e5(data: Path, threads: int = 1) -> E5:
    """The built-in model, fetched into the data folder unless it is there.

    Raises:
        SitsError: `model_unavailable`: it cannot be had, or not be run here.
    """
    store = data / "models"
    store.mkdir(parents=True, exist_ok=True, mode=0o700)
    wanted = local_plan(compile_reading(read(DEFAULT_FOLDER), 0).models[MODEL]).wanted
    weights, library = fetch(wanted, store, lambda done, total, what: None)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # read by OpenMP when its library is loaded
    try:
        return E5(Library([str(path) for path in library], str(weights[0])))
    except (OSError, CannotServe) as error:
        raise SitsError(Code.MODEL_UNAVAILABLE, f"{MODEL} cannot be run here: {error}") from error


def steady(name: str, embed: Embed, size: int, changed: Callable[[], None] = lambda: None) -> Embed:
    """`embed` as long as its rows have `size` numbers: what was made from such rows reads no others. `changed` hears of it.

    What is returned raises SitsError `upstream_broken` then.
    """

    async def same(texts: Sequence[str]) -> Matrix:
        rows = await embed(texts)
        if rows.shape[1] != size:
            changed()
            message = f"{name} answers with embeddings of {rows.shape[1]} numbers, and had {size} before"
            raise SitsError(Code.UPSTREAM_BROKEN, message)
        return rows

    return same


def laid(embed: Embed, seat: Seat | None) -> Embed:
    """`embed`, its rows laid where those of the built-in model lie; as they are without a seat."""
    if seat is None:
        return embed

    async def placed(texts: Sequence[str]) -> Matrix:
        return seat.place(await embed(texts))

    return placed


def threaded(model: Deep) -> Embed:
    """`model` asked from a thread of its own, so that a loop goes on meanwhile."""

    async def embed(texts: Sequence[str]) -> Matrix:
        return await aside(lambda: model.embed(texts), "intent")

    return embed
