"""Sentence embeddings -> vectors in which only abilities count. Computes with numpy: imported when substitutes are chosen.

Embeddings of multilingual-e5-small lie close together (any two texts have a cosine of 0.75 and more), and what sets them apart
is the language first, then the subject, then what is done with it. A linear map mends that. It was fitted so that sentences which
say the same ability in other words or in another language are near, and sentences with another task on the same subject, or
another subject of the same task, are not (InfoNCE with such negatives; van den Oord, Li and Vinyals 2018), on sentences that were
put together from 30 tasks and 80 subjects; `sits.bench.substitutes_fit` makes it again.

Beside the map the file has the background, a vector for each task on each subject: what any model could be good at beside what
another one is good at.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from functools import cache

import msgspec
import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]

FILE = "space.bin"
GRAIN = 200
"""No number of the background is above 127 / 200."""


class Fitted(msgspec.Struct, frozen=True, array_like=True):
    """The file: numbers as little-endian bytes, row by row."""

    embedder: str
    dimension: int
    rank: int
    mean: bytes
    """float32."""
    rows: bytes
    """The map, float16."""
    background: bytes
    """Vectors of length 1, int8: `GRAIN` is 1."""


class Space:
    """The map. `background` are vectors in it."""

    __slots__ = ("_map", "_mean", "background", "dimension")

    def __init__(self, fitted: Fitted) -> None:
        self.dimension = fitted.dimension
        self._mean: Matrix = np.frombuffer(fitted.mean, "<f4").astype(np.float64)
        self._map: Matrix = np.frombuffer(fitted.rows, "<f2").astype(np.float64).reshape(fitted.dimension, fitted.rank)
        self.background = unit(np.frombuffer(fitted.background, np.int8).astype(np.float64).reshape(-1, fitted.rank))

    def place(self, embeddings: Sequence[bytes]) -> Matrix:
        """The vectors of texts, of length 1, from their embeddings (float32, little-endian)."""
        raw = np.frombuffer(b"".join(embeddings), "<f4").astype(np.float64).reshape(-1, self.dimension)
        return unit((raw - self._mean) @ self._map)


@cache
def space() -> Space:
    """The map that we ship."""
    raw = importlib.resources.files("sits.resilience.substitutes").joinpath(FILE).read_bytes()
    return Space(msgspec.msgpack.decode(raw, type=Fitted))


def unit(rows: Matrix) -> Matrix:
    """The rows with length 1; zeros stay zeros."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    lengths[lengths == 0] = 1.0
    found: Matrix = rows / lengths
    return found
