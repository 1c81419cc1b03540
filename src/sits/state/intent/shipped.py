"""Embeddings that come with the package: of the background, and of the examples of the domains that come with it, so that a first
start embeds what a user wrote and nothing else.

Each number is a byte, beside a scale for each row: a row is off by less than 0.01 of its length.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from sits.state.intent.shelf import key_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]

FILE = "shipped.bin"
KEY = 8
"""Bytes of a text's digest: of some thousand texts no two share them."""


class _File(msgspec.Struct, frozen=True, array_like=True):
    model: str
    dimension: int
    keys: bytes
    scales: bytes
    numbers: bytes


def pack(model: str, texts: Sequence[str], rows: Matrix) -> bytes:
    """The file for these texts; `model` names the weights, too."""
    import numpy as np

    scales = (np.abs(rows).max(axis=1) / 127).astype("<f4")
    numbers = np.round(rows / scales[:, None]).astype(np.int8)
    keys = b"".join(key_of(text)[:KEY] for text in texts)
    return msgspec.msgpack.encode(_File(model, rows.shape[1], keys, scales.tobytes(), numbers.tobytes()))


def take(texts: Iterable[str], model: str) -> dict[str, bytes]:
    """What there is of these texts, as little-endian float32 of length 1; nothing for another model. Reads a file."""
    import numpy as np

    file = msgspec.msgpack.decode(importlib.resources.files("sits.state.intent").joinpath(FILE).read_bytes(), type=_File)
    if file.model != model:
        return {}
    scales = np.frombuffer(file.scales, "<f4")
    numbers = np.frombuffer(file.numbers, np.int8).reshape(len(scales), file.dimension)
    places = {file.keys[KEY * at : KEY * at + KEY]: at for at in range(len(scales))}
    found = {}
    for text in texts:
        at = places.get(key_of(text)[:KEY])
        if at is not None:
            row = numbers[at] * scales[at]
            found[text] = (row / np.linalg.norm(row)).astype("<f4").tobytes()
    return found
