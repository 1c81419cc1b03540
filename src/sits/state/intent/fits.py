"""Fitted intents in files of the data folder: fitted once on a machine, by a process of its own, and read by all that serve.

A file is named by a digest of everything that the fit is made from, is written whole and put in place by one rename. It begins
with a digest of what it holds: figures that a disk has changed would be read as others. One that cannot be read is none, and is
made anew.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from blake3 import blake3

from sits.ports.room import told
from sits.routing.intent.head import Head
from sits.routing.intent.intent import Bare, Intent
from sits.routing.intent.spread import Spread
from sits.routing.intent.tune import Tuning
from sits.routing.intent.verdict import Scale
from sits.state.intent.shelf import put

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

_log = logging.getLogger("sits.intent")

VERSION = b"5"
"""Of what fitting does and of these files: another one makes all anew."""
SEAL = 32
"""Bytes of a digest."""
MOST = 4
"""Fits that are kept: of the configurations that were in force last."""


class Held(msgspec.Struct, frozen=True, array_like=True):
    """An array as bytes."""

    shape: tuple[int, ...]
    kind: str
    data: bytes


class _Head(msgspec.Struct, frozen=True, array_like=True):
    weights: Held
    bias: Held


class _Spread(msgspec.Struct, frozen=True, array_like=True):
    mean: Held
    along: Held
    off: Held


class Fitted(msgspec.Struct, frozen=True, array_like=True):
    """An intent, and which rows of what was given it is made of: those that are not left out, and of these the examples."""

    domains: tuple[str, ...]
    least: tuple[float | None, ...]
    quick: _Head
    deep: _Head
    bare: _Head | None
    bare_scale: Scale | None
    examples: Held
    classes: Held
    weights: Held
    tuning: Tuning
    covered: tuple[bool, ...]
    taken: Held | None
    of_none: float
    spread: _Spread | None
    left: Held


def hold(array: Array) -> Held:
    """An array for a file."""
    return Held(array.shape, array.dtype.str, array.tobytes())


def held(found: Held) -> Array:
    """The array, as it was."""
    import numpy as np

    return np.frombuffer(found.data, np.dtype(found.kind)).reshape(found.shape)


def pack(intent: Intent, left: Array) -> bytes:
    """An intent with both stages, for a file."""
    assert intent.deep is not None
    assert intent.weights is not None
    import numpy as np

    spread = intent.spread
    fitted = Fitted(
        intent.domains,
        intent.least,
        _head(intent.quick),
        _head(intent.deep),
        None if intent.bare is None else _head(intent.bare.head),
        None if intent.bare is None else intent.bare.scale,
        hold(intent.examples.astype(np.float16)),
        hold(intent.classes.astype(np.int32)),
        hold(intent.weights),
        intent.tuning,
        intent.covered,
        None if intent.taken is None else hold(intent.taken),
        intent.of_none,
        None if spread is None else _Spread(hold(spread.mean), hold(spread.along), hold(spread.off)),
        hold(left.astype(np.int32)),
    )
    return msgspec.msgpack.encode(fitted)


def unpack(raw: bytes) -> tuple[Intent, Array]:
    """The intent, and the rows that are not left out.

    Raises:
        MsgspecError, ValueError: it is none.
    """
    import numpy as np

    found = msgspec.msgpack.decode(raw, type=Fitted)
    bare = None
    if found.bare is not None and found.bare_scale is not None:
        bare = Bare(_read(found.bare), found.bare_scale)
    spread = found.spread
    intent = Intent(
        found.domains,
        found.least,
        _read(found.quick),
        _read(found.deep),
        held(found.examples).astype(np.float32),
        held(found.classes).astype(np.intp),
        found.tuning,
        found.covered,
        None if found.taken is None else held(found.taken),
        held(found.weights),
        bare,
        found.of_none,
        None if spread is None else Spread(held(spread.mean), held(spread.along), held(spread.off)),
    )
    return intent, held(found.left).astype(np.intp)


def digest(*parts: bytes) -> str:
    """A name for what is made from these parts."""
    made = blake3(VERSION)
    for part in parts:
        made.update(len(part).to_bytes(8, "little"))
        made.update(part)
    return made.hexdigest(16)


class Fits:
    """The files. Its calls wait for the disk: from a worker thread."""

    __slots__ = ("folder",)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def take(self, name: str) -> tuple[Intent, Array] | None:
        """What was fitted, if it is there."""
        path = self._path(name)
        try:
            raw = path.read_bytes()
            if blake3(raw[SEAL:]).digest(SEAL) != raw[:SEAL]:
                raise ValueError("it is not what was written")
            return unpack(raw[SEAL:])
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            _log.warning("%s cannot be read, and is made anew: %s", path, error)
            return None

    def keep(self, name: str, raw: bytes) -> None:
        """Keep it, and `MOST` in all.

        Raises:
            SitsError: `state_unavailable` or `internal_error`, the folder cannot be written.
        """
        path = self._path(name)
        try:
            put(path, blake3(raw).digest(SEAL) + raw)
            others = sorted(self.folder.glob("fit-*.bin"), key=lambda one: one.stat().st_mtime, reverse=True)
        except OSError as error:
            raise told(error, path) from error
        for other in others[MOST:]:
            with contextlib.suppress(OSError):  # another process tidies up, too
                other.unlink()

    def _path(self, name: str) -> Path:
        return self.folder / f"fit-{name}.bin"


def _head(head: Head) -> _Head:
    return _Head(hold(head.weights), hold(head.bias))


def _read(found: _Head) -> Head:
    return Head(held(found.weights), held(found.bias))
