"""From declared domains to an intent that reads requests: everything is embedded once, and fitted aside.

Heads are fitted on up to `MOST_EXAMPLES` examples. Where there are more - or `index` says so - they are fitted on a part of them,
and the deep stage asks the nearest of all examples for their votes.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib.resources
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from sits.engines.local.aside import aside
from sits.inner.errors import Code, SitsError
from sits.routing.intent.fitting import fit_intent, known
from sits.routing.intent.head import MOST_EXAMPLES
from sits.routing.intent.intent import Intent
from sits.routing.intent.levels import level, offsets
from sits.routing.intent.script import scripts
from sits.routing.intent.tune import Tuning
from sits.state.cache.semantic.embedder import Embedder, WordLlama
from sits.state.intent import shipped
from sits.state.intent.apart import Task, fit_apart
from sits.state.intent.embedders import Embed
from sits.state.intent.figures import decode
from sits.state.intent.fits import Fits, digest, hold, unpack
from sits.state.intent.material import Material, sample, without_kinds, without_near
from sits.state.intent.seat import Seat, seat
from sits.state.intent.shelf import Shelf, alone

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]
    Labels = npt.NDArray[np.intp]

_log = logging.getLogger("sits.intent")

T = TypeVar("T")
Index = Literal["heads", "vectors"]
Told = Callable[[int, int], None]
"""Hears how many there are, and of how many."""
SAMPLED = 4000
"""Examples that heads are fitted on where votes decide."""
EACH = 8
"""Texts of one call: short ones, so that a request that is read meanwhile waits some 60 ms for its turn at the most."""
KEPT = 1024
"""Embeddings made until they are put on the shelf, so that a restart goes on near where this one ended."""
WAIT_SECONDS = 1.0
"""How often the shelf is looked at while another process makes the embeddings."""
QUICK_OWN, QUICK_BACK = 1000, 400
"""Declared examples, and those of the background, that the quick stage is fitted on while there is nothing else."""
NEAR = 0.95
"""Background this near to an example is left out."""


class Built(msgspec.Struct, frozen=True):
    """An intent, and what it was made of."""

    material: Material
    embeddings: Matrix
    """Of its examples, row by row, as they are compared: what is of their language alone is taken off."""
    intent: Intent
    index: Index
    """What the deep stage goes by."""
    seat: Seat | None = None
    """Where embeddings are laid before they are read; None for those of the built-in model, which lie there."""


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
        SitsError: `invalid_request`: it is there and cannot be read, or is no tuning.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raw = importlib.resources.files("sits.state.intent").joinpath("tuning.json").read_bytes()
    except OSError as error:
        raise SitsError(Code.INVALID_REQUEST, f"{path}: {error.strerror}") from error
    return decode(raw, path, Tuning)


async def build(
    given: Material,
    quick: Embedder,
    embed: Embed,
    shelf: Shelf,
    tuning: Tuning,
    index: Index | None = None,
    told: Told = lambda done, of: None,
    *,
    anew: bool = False,
    tuned: bool = False,
    each: int = EACH,
    fitting: Told = lambda done, of: None,
) -> Built:
    """The intent for this material. `index` as the count of examples says when not given. `told` hears how many examples are
    embedded, `each` of them at a time; `fitting` how many heads are fitted then, where this process does it. `anew`: `embed` is
    not the built-in model, so embeddings are laid where those of that one lie; and unless `tuning` was made with it (`tuned`), of
    this only what is the quick stage's counts, and the rest is set from the examples.

    Of several processes of a machine one fits, in a process of its own, and the others find it done.

    Raises:
        SitsError: what the embedding model failed of; `internal_error`, the folder of the shelf cannot be written, or the fit
            failed.
    """
    found = await restored(given, shelf, tuning, index, anew=anew, tuned=tuned)
    if found is not None:
        return found
    rows = await embedded(given.texts, embed, shelf, told=told, each=each)
    laid, rows = await aside(lambda: _laid(given, rows, anew), "intent")
    fits, name = Fits(shelf.path.parent), _name(given, shelf, tuning, index, anew, tuned)
    while (fitted := await aside(lambda: fits.take(name), "intent")) is None:
        with alone(fits.folder / "fit.lock") as ours:
            if ours and await aside(lambda: fits.take(name), "intent") is None:
                task = await aside(lambda: _task(given, rows, quick, tuning, _index(given, index), anew and not tuned), "intent")
                raw = await fit_apart(task, fitting)
                await aside(partial(fits.keep, name, raw), "intent")
        if not ours:
            await asyncio.sleep(WAIT_SECONDS)
    return await _aside_and_trimmed(partial(_built, given, rows, fitted, _index(given, index), laid))


async def built_apart(
    given: Material,
    quick: Embedder,
    embed: Embed,
    shelf: Shelf,
    tunings: Sequence[tuple[Tuning, bool]],
    *,
    anew: bool,
    each: int = EACH,
) -> AsyncIterator[Built]:
    """The same for some tunings, each with whether it was made with this model, one after the other. What is fitted is kept
    nowhere: a gateway keeps the last few of its own.

    Raises:
        SitsError: as `build`.
    """
    rows = await embedded(given.texts, embed, shelf, each=each)
    laid, rows = await aside(lambda: _laid(given, rows, anew), "intent")
    index = _index(given, None)
    for tuning, tuned in tunings:
        task = await aside(partial(_task, given, rows, quick, tuning, index, anew and not tuned), "intent")
        fitted = unpack(await fit_apart(task))
        yield await _aside_and_trimmed(partial(_built, given, rows, fitted, index, laid))


async def restored(
    given: Material, shelf: Shelf, tuning: Tuning, index: Index | None = None, *, anew: bool = False, tuned: bool = False
) -> Built | None:
    """The same where all of it was made before; None where something is missing."""
    name = _name(given, shelf, tuning, index, anew, tuned)
    fitted = await aside(lambda: Fits(shelf.path.parent).take(name), "intent")
    if fitted is None:
        return None
    found = await aside(lambda: taken(given.texts, shelf), "intent")
    if len(found) < len(set(given.texts)):
        return None
    laid, rows = await aside(lambda: _laid(given, _rows(given.texts, found), anew), "intent")
    found.clear()
    return await _aside_and_trimmed(partial(_built, given, rows, fitted, _index(given, index), laid))


async def examples(
    given: Material, embed: Embed, shelf: Shelf, *, anew: bool, each: int = EACH, told: Told = lambda done, of: None
) -> tuple[Material, Matrix, Seat | None]:
    """What heads are fitted on of this material, its embeddings as they are read, and where others are laid for that.

    Raises:
        SitsError: as `build`.
    """
    rows = await embedded(given.texts, embed, shelf, told=told, each=each)
    laid, rows = await aside(lambda: _laid(given, rows, anew), "intent")
    left = await aside(lambda: _left(given, rows), "intent")
    return msgspec.structs.replace(given, examples=tuple(given.examples[at] for at in left)), rows[left], laid


async def build_quick(given: Material, quick: Embedder, tuning: Tuning) -> Intent:
    """The quick stage alone, which needs no embeddings, from a part of the examples: what there is to read by until there is
    more."""
    import numpy as np

    def made() -> Intent:
        own = [at for at, example in enumerate(given.examples) if example.declared]
        # Whether a declared domain is about a shipped one, the embeddings say.
        back = [at for at, example in enumerate(given.examples) if not example.declared and example.kind is None]
        places = [*_some(own, QUICK_OWN), *_some(back, QUICK_BACK)]
        listed = [given.examples[at] for at in places]
        texts = [example.text for example in listed]
        shared = np.array([not example.declared for example in listed])
        rows = known(texts, quick.embed(texts), given.labels()[places], shared, None)
        return fit_intent(given.domains, given.least, rows, tuning)

    return await _aside_and_trimmed(made)


def _some(places: Sequence[int], most: int) -> list[int]:
    """At most so many of them, evenly spread."""
    count = min(most, len(places))
    return [places[at * len(places) // count] for at in range(count)]


async def _aside_and_trimmed(work: Callable[[], T]) -> T:
    """What `work` returns. What it needed besides goes back to the system: the C library would keep it for what never comes."""
    found = await aside(work, "intent")
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc has it
        await aside(lambda: trim(0), "intent")
    return found


async def embedded(
    texts: Sequence[str],
    embed: Embed,
    shelf: Shelf,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    told: Told = lambda done, of: None,
    each: int = EACH,
) -> Matrix:
    """The embeddings of texts: from the shelf, or as they come with the package; the others are made and put on the shelf.

    Raises:
        SitsError: as `build`.
    """
    held = await aside(lambda: taken(texts, shelf), "intent")
    count = len(set(texts))
    told(len(held), count)
    while len(held) < count:
        with shelf.alone() as ours:
            # Whoever had it before may have made them.
            held = await aside(lambda: taken(texts, shelf), "intent")
            if ours:
                await _make([text for text in dict.fromkeys(texts) if text not in held], held, embed, shelf, told, each)
        if not ours:
            await sleep(WAIT_SECONDS)
            told(len(held), count)
    return _rows(texts, held)


def taken(texts: Sequence[str], shelf: Shelf) -> dict[str, bytes]:
    """What there is of these texts, on the shelf or in the package. Waits for the disk."""
    held = shelf.take(texts)
    missing = [text for text in texts if text not in held]
    return held | shipped.take(missing, shelf.model) if missing else held


async def _make(missing: Sequence[str], held: dict[str, bytes], embed: Embed, shelf: Shelf, told: Told, each: int) -> None:
    """Embed what is missing, into `held` and onto the shelf."""
    made: dict[str, bytes] = {}
    for at in range(0, len(missing), each):
        texts = missing[at : at + each]
        try:
            rows = await embed(texts)
        except SitsError:
            # What is there is not made again: a server far away may fail more often than every thousand texts.
            if made:
                await aside(partial(shelf.keep, dict(made)), "intent")
            raise
        made |= {text: row.astype("<f4").tobytes() for text, row in zip(texts, rows, strict=True)}
        done = at + len(texts)
        told(len(held) + done, len(held) + len(missing))
        if done % KEPT == 0 or done == len(missing):
            await aside(partial(shelf.keep, dict(made)), "intent")
            _log.info("%d of %d examples are embedded", done, len(missing))
    held |= made


def _rows(texts: Sequence[str], found: Mapping[str, bytes]) -> Matrix:
    import numpy as np

    flat = np.frombuffer(b"".join(found[text] for text in texts), "<f4")
    rows: Matrix = flat.reshape(len(texts), -1).astype(np.float32)
    return rows


def _index(given: Material, index: Index | None) -> Index:
    return index or ("heads" if len(given.examples) <= MOST_EXAMPLES else "vectors")


def _name(given: Material, shelf: Shelf, tuning: Tuning, index: Index | None, anew: bool, tuned: bool) -> str:
    """What the fit of all this is kept by."""
    parts = [given.digest.encode(), shelf.model.encode(), msgspec.json.encode(tuning), _index(given, index).encode()]
    return digest(*parts, *([b"tuned" if tuned else b"anew"] if anew else []))


def _laid(given: Material, rows: Matrix, anew: bool) -> tuple[Seat | None, Matrix]:
    """Embeddings as they are read, and where those to come are laid for that."""
    import numpy as np

    if not anew:
        return None, rows
    general = np.array([not one.declared and one.kind is None for one in given.examples])
    made = seat(rows[general], scripts(given.texts)[general])
    return made, made.place(rows)


def _task(given: Material, rows: Matrix, quick: Embedder, tuning: Tuning, index: Index, anew: bool = False) -> Task:
    """What is to be fitted: without the background that is near an example, and no more than can be."""
    import numpy as np

    left = _left(given, rows)
    kept = msgspec.structs.replace(given, examples=tuple(given.examples[at] for at in left))
    places = sample(kept, MOST_EXAMPLES if index == "heads" else SAMPLED)
    listed = [kept.examples[at] for at in places]
    texts = [example.text for example in listed]
    return Task(
        given.domains,
        given.least,
        texts,
        hold(kept.labels()[places]),
        hold(np.array([not example.declared for example in listed])),
        hold(quick.embed(texts)),
        hold(rows[left][places]),
        tuning,
        hold(left),
        any(one.kind is not None for one in listed),
        anew,
    )


def _left(given: Material, rows: Matrix) -> Labels:
    """The examples that are fitted on, by place."""
    import numpy as np

    spoken = scripts(given.texts)
    general = np.array([not one.declared and one.kind is None for one in given.examples])
    levelled = level(rows, spoken, offsets(rows[general], spoken[general]))
    found: Labels = np.intersect1d(without_kinds(given, levelled), without_near(given, rows, NEAR))
    return found


def _built(given: Material, rows: Matrix, fitted: tuple[Intent, Labels], index: Index, laid: Seat | None) -> Built:
    intent, left = fitted
    kept = msgspec.structs.replace(given, examples=tuple(given.examples[at] for at in left))
    return Built(kept, level(rows[left], scripts(kept.texts), intent.taken), intent, index, laid)
