"""`sits intent eval` and `tune` with `--config`: by the Domains and the embedder of a configuration, as its gateway reads."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from sits.cli.validate import line
from sits.inner.errors import Code, SitsError
from sits.resources.problem import ConfigError, did_you_mean, quoted
from sits.resources.reading import read
from sits.resources.snapshot import Snapshot, compile_reading
from sits.state.intent.labelled import UNKNOWN, Query

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from sits.gateway.embedding import Embedder
    from sits.routing.intent.intent import Intent
    from sits.routing.intent.verdict import Verdict
    from sits.state.cache.semantic.embedder import WordLlama
    from sits.state.intent.embedders import Embed
    from sits.state.intent.shelf import Shelf
    from sits.state.intent.trial import Trial
    from sits.state.intent.tunings import Kept

    Matrix = npt.NDArray[np.float32]

T = TypeVar("T")

PROBE = "hello"
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


def only_declared(queries: Sequence[Query], snapshot: Snapshot) -> None:
    """Refuse labels that no Domain has: they would all count as wrong."""
    missing = Counter(one.domain for one in queries if one.domain != UNKNOWN and one.domain not in snapshot.domains)
    if missing:
        said = ", ".join(
            f"{quoted(name)} ({count} queries{f'; {hint}' if (hint := did_you_mean(name, list(snapshot.domains))) else ''})"
            for name, count in missing.most_common(5)
        )
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise click.ClickException(f"the configuration has no Domain for {said}{more}")


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

    async def rows(self, texts: Sequence[str]) -> Matrix:
        """The embeddings of texts that are not kept."""
        import numpy as np

        parts = [await self.embed(texts[at : at + self.each]) for at in range(0, len(texts), self.each)]
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


def tune_by(snapshot: Snapshot, queries: Sequence[Query], data: Path) -> tuple[Kept, bool, str]:
    """The figures of most right verdicts, by cross-validation on the examples of the Domains and these queries; whether they are
    of the built-in model, and what the embedder is called.

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

    async def tuned(embedder: Embedder) -> tuple[Kept, bool, str]:
        here = await asked(embedder, data)
        left, rows, seat = await examples(given, here.embed, here.shelf, anew=not embedder.built_in, each=here.each)
        own = await here.rows(texts)
        # What the file says of a text goes before an example of the same words.
        places = [at for at, one in enumerate(left.examples) if one.text not in set(texts)]
        part = msgspec.structs.replace(left, examples=tuple(left.examples[at] for at in places))
        some = sample(part, max(1, MOST_EXAMPLES - len(queries)))
        known = [Query(part.examples[at].text, part.examples[at].domain or UNKNOWN, split="examples") for at in some]
        known += queries
        laid = own if seat is None else seat.place(own)
        embeddings = np.concatenate([rows[[places[at] for at in some]], laid])
        vectors = trial.vectors([query.text for query in known], load_quick(), embeddings)
        return kept(trial.tune(known, vectors), embedder.weights), embedder.built_in, here.told

    return _with(snapshot, data, tuned)


def try_by(snapshot: Snapshot, queries: Sequence[Query], data: Path, tuning: Kept | None) -> Tried:
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
        built = await build(given, quick, here.embed, here.shelf, figures, anew=not own, tuned=found.own, each=here.each)
        rows = await here.rows(texts)
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
