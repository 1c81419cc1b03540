"""The figures that `sits intent tune --use` puts into the data folder, each beside the weights that it was made with.

Those of the built-in model are in `tuning.json`, those of a declared one in a file of their own, named by its weights: figures of
one say nothing about another.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from sits.inner.errors import Code, SitsError
from sits.ports.room import told
from sits.routing.intent.tune import Tuning
from sits.state.intent.building import load_tuning
from sits.state.intent.figures import decode
from sits.state.intent.shelf import plain, put

FILE = "tuning.json"


class Kept(Tuning, frozen=True):
    """Figures, and by whose embeddings they were set."""

    weights: str = ""
    """Empty in what was written before it was said: of the built-in model."""

    def figures(self) -> Tuning:
        """These alone."""
        return Tuning(**{name: getattr(self, name) for name in Tuning.__struct_fields__})


class Found(msgspec.Struct, frozen=True):
    """What there is to read by."""

    tuning: Tuning
    own: bool
    """Whether it was set with these weights. If not, only the quick stage's figures count."""
    trouble: str = ""
    """Why what is there is not used."""


def kept(tuning: Tuning, weights: str) -> Kept:
    """`tuning`, with the weights that it was made with."""
    return Kept(**{name: getattr(tuning, name) for name in Tuning.__struct_fields__}, weights=weights)


def read(path: Path) -> Kept:
    """What is in a file.

    Raises:
        SitsError: `invalid_request`: it cannot be read, or is no tuning.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise SitsError(Code.INVALID_REQUEST, f"{path}: {error.strerror}") from error
    return decode(raw, path, Kept)


def write(folder: Path, tuning: Kept, *, built_in: bool) -> Path:
    """Keep it where `find` finds it.

    Raises:
        SitsError: `state_unavailable` or `internal_error`: the folder cannot be written.
    """
    path = folder / _file(tuning.weights, built_in)
    try:
        put(path, msgspec.json.encode(tuning) + b"\n")
    except OSError as error:
        raise told(error, path) from error
    return path


def find(folder: Path, name: str, weights: str, *, built_in: bool) -> Found:
    """The figures for a model of this name and these weights. Reads files.

    Raises:
        SitsError: `invalid_request`: one is there and cannot be read.
    """
    path = folder / _file(weights, built_in)
    start = load_tuning(folder / FILE)
    if not path.exists():
        others = [] if built_in else sorted(folder.glob(f"tuning-*-{plain(name[:40])}.json"))
        return Found(start, built_in, _unused(others[0].name, f"other weights of {name}") if others else "")
    made = read(path)
    if made.weights == weights or (built_in and not made.weights):
        return Found(made.figures(), True)
    trouble = _unused(path.name, made.weights or "other weights")
    return Found(load_tuning(folder / "none"), True, trouble) if built_in else Found(start, False, trouble)


def _file(weights: str, built_in: bool) -> str:
    return FILE if built_in else f"tuning-{plain(weights)}.json"


def _unused(file: str, made_with: str) -> str:
    return f"intent/{file} was made with {made_with} and is not used; `sits intent tune --use` makes one for these"
