"""Embeddings of examples that were made, in a file of the data folder, so that a restart embeds nothing anew.

The file is written whole and put in place by one rename. One that cannot be read is none: it is made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from blake3 import blake3

from sits.ports.room import told

_log = logging.getLogger("sits.intent")

MOST_FILES = 6
"""Models whose embeddings are kept: those that were embedded by last."""
MOST = 40_000
"""Embeddings kept: 61 MB of 384 numbers. Beyond, what is not asked for any more goes."""


class _File(msgspec.Struct, frozen=True, array_like=True):
    model: str
    vectors: dict[bytes, bytes]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_File).decode


class Shelf:
    """The embeddings of one model, as little-endian float32. Its calls wait for the disk: from a worker thread."""

    __slots__ = ("_bytes", "_most", "model", "path")

    def __init__(self, folder: Path, model: str, dimension: int, most: int = MOST) -> None:
        """`model` names the weights, too: vectors of others say nothing there."""
        self.path = folder / f"examples-{plain(model)}.bin"
        self.model = model
        self._bytes = 4 * dimension
        self._most = most

    def take(self, texts: Iterable[str]) -> dict[str, bytes]:
        """What there is of these texts."""
        held = self._read()
        return {text: held[key] for text in texts if (key := key_of(text)) in held}

    def keep(self, vectors: Mapping[str, bytes]) -> None:
        """Keep these, and what is there already as far as there is room.

        Raises:
            SitsError: `state_unavailable` or `internal_error`, the folder cannot be written.
        """
        kept = {key_of(text): vector for text, vector in vectors.items()}
        for key, vector in self._read().items():
            if len(kept) >= self._most:
                break
            kept.setdefault(key, vector)
        try:
            put(self.path, _encode(_File(self.model, kept)))
            others = sorted(self.path.parent.glob("examples-*.bin"), key=lambda one: one.stat().st_mtime, reverse=True)
        except OSError as error:
            raise told(error, self.path) from error
        for other in others[MOST_FILES:]:
            with contextlib.suppress(OSError):  # another process tidies up, too
                other.unlink()

    def alone(self) -> contextlib.AbstractContextManager[bool]:
        """Whether no other process of this machine holds it; from then on they find it held, until the end of the block.

        Of several that start together one makes the embeddings, and the others find them.
        """
        return alone(self.path.with_suffix(".lock"))

    def _read(self) -> dict[bytes, bytes]:
        try:
            found = _decode(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            _log.warning("%s cannot be read, and is made anew: %s", self.path, error)
            return {}
        if found.model != self.model:
            return {}
        return {key: vector for key, vector in found.vectors.items() if len(vector) == self._bytes}


def sized(model: str, dimension: int) -> str:
    """What the embeddings of a model are called that may change how many numbers they have."""
    return f"{model}-{dimension}"


def size_kept(folder: Path, model: str) -> int | None:
    """How many numbers embeddings of a model had when they were last put on a shelf, named by `sized`. Reads a folder."""
    found = []
    for path in folder.glob(f"examples-{plain(model)}-*.bin"):
        size = path.stem.rpartition("-")[2]
        with contextlib.suppress(OSError):  # it goes just now
            if size.isdecimal() and path.stem == f"examples-{plain(sized(model, int(size)))}":
                found.append((path.stat().st_mtime, int(size)))
    return max(found)[1] if found else None


def plain(model: str) -> str:
    """The name of a model as files are called by it."""
    return re.sub("[^A-Za-z0-9._-]", "-", model)


@contextlib.contextmanager
def alone(path: Path) -> Iterator[bool]:
    """Whether no other process holds this file; from then on they find it held, until the end of the block.

    Raises:
        SitsError: `state_unavailable` or `internal_error`, the folder cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = path.open("wb")
    except OSError as error:
        raise told(error, path.parent) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def put(path: Path, content: bytes) -> None:
    """Write a file whole, and put it in place by one rename.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            file.write(content)
            file.flush()
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise


def key_of(text: str) -> bytes:
    """By what a text is found."""
    return blake3(text.encode("utf-8", "surrogatepass")).digest(16)
