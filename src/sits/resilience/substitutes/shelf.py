"""Embeddings that were made, in a file, so that a restart costs nothing. A file that cannot be read is none: it is made anew."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from blake3 import blake3

from sits.ports.room import told

_log = logging.getLogger("sits.substitutes")

EMBEDDER = "multilingual-e5-small:q4:1571fc98"
"""What makes the embeddings that `space` was fitted on: the model and its weights. Those of others say nothing there."""
MOST = 4096
"""Embeddings kept: 6 MB. Beyond, what is not asked for any more goes."""


class _File(msgspec.Struct, frozen=True, array_like=True):
    embedder: str
    vectors: dict[bytes, bytes]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_File).decode


class Shelf:
    """The embeddings of one embedder. Its calls wait for the disk: from a worker thread."""

    __slots__ = ("_embedder", "_path")

    def __init__(self, path: Path, embedder: str) -> None:
        self._path = path
        self._embedder = embedder

    def take(self, texts: Iterable[str]) -> dict[str, bytes]:
        """What there is of these texts."""
        held = self._read()
        return {text: held[key] for text in texts if (key := _key(text)) in held}

    def keep(self, vectors: Mapping[str, bytes]) -> None:
        """Keep these, and what is there already as far as there is room.

        Raises:
            SitsError: `state_unavailable` or `internal_error`, the folder cannot be written.
        """
        kept = {_key(text): vector for text, vector in vectors.items()}
        for key, vector in self._read().items():
            if len(kept) >= MOST:
                break
            kept.setdefault(key, vector)
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._path.parent, prefix=self._path.name, delete=False) as file:
                file.write(_encode(_File(self._embedder, kept)))
            os.replace(file.name, self._path)
        except OSError as error:
            raise told(error, self._path) from error

    def _read(self) -> dict[bytes, bytes]:
        try:
            found = _decode(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            _log.warning("%s cannot be read, and is made anew: %s", self._path, error)
            return {}
        return found.vectors if found.embedder == self._embedder else {}


def _key(text: str) -> bytes:
    return blake3(text.encode("utf-8", "surrogatepass")).digest(16)
