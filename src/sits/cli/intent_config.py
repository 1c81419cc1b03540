"""`sits intent eval` and `tune` with `--config`: by the Domains and the embedder of a configuration, as its gateway reads."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from sits.cli.validate import line
from sits.inner.errors import Code, SitsError
from sits.resources.problem import ConfigError
from sits.resources.reading import read
from sits.resources.snapshot import Snapshot, compile_reading
from sits.state.intent.doubts import Compared
from sits.state.intent.labelled import UNKNOWN, Labelled, Query, nobodys

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from sits.gateway.embedding import Embedder
    from sits.routing.intent.intent import Intent
    from sits.routing.intent.tune import Tuning
    from sits.routing.intent.verdict import Verdict
    from sits.state.cache.semantic.embedder import WordLlama
    from sits.state.intent.embedders import Embed
    from sits.state.intent.material import Material
    from sits.state.intent.shelf import Shelf
    from sits.state.intent.trial import Scored, Told, Trial
    from sits.state.intent.tunings import Kept

    Matrix = npt.NDArray[np.float32]

T = TypeVar("T")

PROBE = "hello"
PARTS = 3
"""Of the queries of a file: each is read by figures that were set by the others."""
CLOCKED = 200
"""Queries that are asked about one at a time, to see how long that takes."""


class Tried(msgspec.Struct, frozen=True):
    """What became of the queries of a file."""

    intent: Intent
    examples: int
    trial: Trial
    embedder: str
    quick_ms: float
    deep_ms: float
    trouble: str


def configured(path: Path) -> Snapshot:
    """The configuration in a file or a folder, with at least one domain."""
    try:
        snapshot = compile_reading(read(path), 1, secrets=False)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(line(problem), err=True)
        raise click.ClickException(f"{path} cannot be used") from error
    if not snapshot.domains:
        raise click.ClickException(f"{path} has no Domain; `sits domains export DIR` writes those that come with the package")
    return snapshot


def only_declared(given: Labelled, snapshot: Snapshot) -> None:
    """Refuse lines with something wrong, and labels that no Domain has: they would all count as wrong.

    Raises:
        SitsError: `invalid_request`: there are some; the message names their lines.
    """
    given.refuse(nobodys(given, snapshot.domains, "no Domain of the configuration"))


class Asked(msgspec.Struct, frozen=True):
    """An embedder that has answered, and how its embeddings are made and kept."""

    embedder: Embedder
    size: int
    embed: Embed
    shelf: Shelf
    each: int

    @property
    def told(self) -> str:
        return f"{self.embedder.name} ({self.size} numbers)"

    async def rows(self, texts: Sequence[str], told: Callable[[int, int], None]) -> Matrix:
        """The embeddings of texts that are not kept."""
        import numpy as np

        parts = []
        for at in range(0, len(texts), self.each):
            told(at, len(texts))
            parts.append(await self.embed(texts[at : at + self.each]))
        told(len(texts), len(texts))
        return np.concatenate(parts) if parts else np.zeros((0, self.size), np.float32)


async def asked(embedder: Embedder, data: Path) -> Asked:
    """The embedder of a configuration, once it has said how many numbers its embeddings have.

    Raises:
        SitsError: it does not answer, or answers no embedding.
    """
    from sits.gateway.embedding import BATCH, shelf_of
    from sits.state.intent.embedders import steady

    try:
        size = int((await embedder.embed([PROBE])).shape[1])
    except SitsError as error:
        raise SitsError(error.code, f"the embedder {embedder.name} cannot be asked: {error.message}") from error
    return Asked(embedder, size, steady(embedder.name, embedder.embed, size), shelf_of(data / "intent", embedder, size), BATCH)


class Tuned(msgspec.Struct, frozen=True):
    """Figures, whose they are, and whether they are to be trusted."""

    figures: Kept
    built_in: bool
    embedder: str
    queries: int
    """That they were set by, the examples of the Domains among them."""
    compared: Compared | None = None
    """With those in force, on queries of the file that neither was set by; None where nobody asked, or there are none."""


def tune_by(snapshot: Snapshot, queries: Sequence[Query], data: Path, told: Told, *, compare: bool) -> Tuned:
    """The figures of most right verdicts, by cross-validation on the examples of the Domains and these queries; `compare` them
    with those that a gateway would take now.

    Raises:
        SitsError: what the embedder failed of; `invalid_request`, too few or too many queries.
    """
    import numpy as np

    from sits.routing.intent.head import MOST_EXAMPLES
    from sits.state.intent import trial
    from sits.state.intent.building import examples, load_quick
    from sits.state.intent.material import material, sample
    from sits.state.intent.tunings import kept

    whole = material(snapshot.domains)
    # Other kinds of task are leant against when heads are fitted; what is tuned is told from what is general.
    given = msgspec.structs.replace(whole, examples=tuple(one for one in whole.examples if one.kind is None))
    texts = [query.text for query in queries]

    async def tuned(embedder: Embedder) -> Tuned:
        here = await asked(embedder, data)
        hears = partial(told, "embedding examples")
        left, rows, seat = await examples(given, here.embed, here.shelf, anew=not embedder.built_in, each=here.each, told=hears)
        own = await here.rows(texts, partial(told, "embedding queries"))
        # What the file says of a text goes before an example of the same words.
        places = [at for at, one in enumerate(left.examples) if one.text not in set(texts)]
        part = msgspec.structs.replace(left, examples=tuple(left.examples[at] for at in places))
        some = sample(part, max(1, MOST_EXAMPLES - len(queries)))
        known = [Query(part.examples[at].text, part.examples[at].domain or UNKNOWN, split="examples") for at in some]
        known += queries
        laid = own if seat is None else seat.place(own)
        embeddings = np.concatenate([rows[[places[at] for at in some]], laid])
        vectors = trial.vectors([query.text for query in known], load_quick(), embeddings)
        scored = trial.scored(known, vectors, told)
        figures = kept(scored.figures(), embedder.weights)
        found = await _compared(whole, queries, scored, here, own, data, told) if compare else None
        return Tuned(figures, embedder.built_in, here.told, len(known), found)

    return _with(snapshot, data, tuned)


async def _compared(
    whole: Material, queries: Sequence[Query], scored: Scored, here: Asked, own: Matrix, data: Path, told: Told
) -> Compared | None:
    """The queries by the figures in force, and each part of them by figures that were set without it; all read as a gateway does,
    by heads that are fitted on the examples of the Domains alone."""
    import numpy as np

    from sits.routing.intent.tune import folds
    from sits.state.intent import trial
    from sits.state.intent.building import built_apart, load_quick

    listed = {one.text for one in whole.examples}
    held = [at for at, query in enumerate(queries) if query.text not in listed]
    parts = folds([queries[at].group or queries[at].text for at in held], PARTS)
    names = np.unique(parts)
    if len(names) < 2:
        return None
    before, tunings = len(scored.labels) - len(queries), [_in_force(here.embedder, data)]
    for name in names:
        of = np.ones(len(scored.labels), dtype=bool)
        of[[before + at for at, part in zip(held, parts, strict=True) if part == name]] = False
        tunings.append((scored.figures(of), True))
    quick, steps = load_quick(), trial.Steps("comparing with what is in force", len(tunings), told)
    trials: list[Trial] = []
    built = built_apart(whole, quick, here.embed, here.shelf, tunings, anew=not here.embedder.built_in, each=here.each)
    places = [held, *([at for at, part in zip(held, parts, strict=True) if part == name] for name in names)]
    async for made in built:
        those = places[len(trials)]
        rows = own[those] if made.seat is None else made.seat.place(own[those])
        read = [queries[place] for place in those]
        verdicts, _ = _verdicts(made.intent, [query.text for query in read], rows, quick)
        trials.append(trial.read_one_by_one(made.intent, read, verdicts))
        steps.next()
    none, after = len(whole.domains), trial.joined(trials[1:])
    return Compared(
        trials[0].marks(trials[0].both, None, none), after.marks(after.both, None, none), trials[0].asked, after.asked
    )


def _in_force(embedder: Embedder, data: Path) -> tuple[Tuning, bool]:
    """What a gateway would read by, and whether it was made with this embedder. What cannot be read is as good as not there."""
    from sits.state.intent.building import load_tuning
    from sits.state.intent.tunings import find

    try:
        found = find(data / "intent", embedder.name, embedder.weights, built_in=embedder.built_in)
    except SitsError:
        return load_tuning(data / "intent" / "none"), embedder.built_in
    return found.tuning, found.own


def try_by(snapshot: Snapshot, queries: Sequence[Query], data: Path, tuning: Kept | None, told: Told) -> Tried:
    """What a gateway with this configuration makes of these queries; with `tuning` in place of the figures that it would take.

    Raises:
        SitsError: what the embedder failed of; `conflict`, `tuning` was made with other weights.
    """
    from sits.state.intent import trial
    from sits.state.intent.building import build, load_quick
    from sits.state.intent.material import material
    from sits.state.intent.tunings import Found, find

    texts = [query.text for query in queries]

    async def tried(embedder: Embedder) -> Tried:
        own = embedder.built_in
        if tuning is None:
            found = find(data / "intent", embedder.name, embedder.weights, built_in=own)
        else:
            of_these(tuning, embedder.weights, built_in=own)
            found = Found(tuning.figures(), True)
        here, quick = await asked(embedder, data), load_quick()
        given, figures = material(snapshot.domains), found.tuning
        hears = partial(told, "embedding examples")
        built = await build(
            given, quick, here.embed, here.shelf, figures, None, hears, anew=not own, tuned=found.own, each=here.each
        )
        rows = await here.rows(texts, partial(told, "embedding queries"))
        if built.seat is not None:
            rows = built.seat.place(rows)
        verdicts, quick_ms = _verdicts(built.intent, texts, rows, quick)
        read = trial.read_one_by_one(built.intent, queries, verdicts)
        deep_ms = [await _clocked(here.embed, text) for text in texts[:CLOCKED]]
        count = len(built.material.examples)
        return Tried(built.intent, count, read, here.told, quick_ms, statistics.median(deep_ms), found.trouble)

    return _with(snapshot, data, tried)


async def _clocked(embed: Embed, text: str) -> float:
    begun = time.perf_counter()
    await embed([text])
    return 1000 * (time.perf_counter() - begun)


def of_these(tuning: Kept, weights: str, *, built_in: bool) -> None:
    """Refuse figures that were made with other embeddings.

    Raises:
        SitsError: `conflict`: they were.
    """
    if tuning.weights != weights and not (built_in and not tuning.weights):
        made_with = tuning.weights or "the built-in model"
        raise SitsError(Code.CONFLICT, f"the tuning was made with {made_with}, and says nothing about {weights}")


def _verdicts(
    intent: Intent, texts: Sequence[str], rows: Matrix, quick: WordLlama
) -> tuple[list[tuple[Verdict, Verdict]], float]:
    """What both stages say of each text, and the median milliseconds of the quick one."""
    found, quick_ms = [], []
    for text, row in zip(texts, rows, strict=True):
        begun = time.perf_counter()
        tokens = quick.embed((text,))[0]
        first = intent.quickly(text, tokens)
        quick_ms.append(1000 * (time.perf_counter() - begun))
        found.append((first, intent.deeply(text, tokens, row)))
    return found, statistics.median(quick_ms)


def _with(snapshot: Snapshot, data: Path, work: Callable[[Embedder], Awaitable[T]]) -> T:
    """What `work` makes of the embedder of this configuration."""
    from sits.gateway.embedding_alone import opened

    async def worked() -> T:
        async with opened(snapshot, data) as embedder:
            return await work(embedder)

    return asyncio.run(worked())
