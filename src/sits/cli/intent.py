"""`sits intent`: how well requests are understood, and the figures that decide it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from sits.cli.intent_config import Tried, configured, of_these, only_declared, try_by, tune_by
from sits.inner.errors import SitsError
from sits.state.intent.labelled import UNKNOWN, Query, load

if TYPE_CHECKING:
    from sits.routing.intent.judge import Marks
    from sits.state.intent.trial import Vectors
    from sits.state.intent.tunings import Kept

_DATA = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="SITS_DATA",
    default=Path("data"),
    show_default=True,
    help="The data folder, where the embedding model is; it is fetched unless it is there.",
)
_CONFIG = click.option(
    "--config",
    type=click.Path(exists=True, path_type=Path),
    help="Resource file or folder: read by its Domains and its `embedder`, as its gateway would.",
)
_FILE = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))


class Evaluated(msgspec.Struct, frozen=True):
    """What `eval` prints."""

    embedder: str
    """Whose embeddings the deep stage saw."""
    domains: int
    examples: int
    queries: int
    quick: Marks
    deep: Marks
    both: Marks
    by_language: dict[str, Marks]
    asked: float
    """Share of queries that went to the deep stage."""
    quick_ms: float
    deep_ms: float
    """Medians of one query at a time, the embedding included."""


@click.group("intent")
def intent() -> None:
    """What requests want: try it on labelled queries, tune it."""


@intent.command("eval")
@_FILE
@_CONFIG
@_DATA
@click.option(
    "--tuning", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="What `tune` wrote; made anew without."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def evaluate(file: Path, config: Path | None, data: Path, tuning: Path | None, as_json: bool) -> None:
    """Fit on the queries of FILE whose split is `examples` or `tune`, try it on `test`: accuracy, macro F1, unknown recall,
    calibration error, latency.

    With --config what is fitted are the Domains of that configuration, by its embedder, and only `test` is read."""
    try:
        queries = load(file)
        kept = None if tuning is None else _read(tuning)
        if config is None:
            known, test = _parts(queries)
            found = _evaluated(known, test, data, kept)
        else:
            found = _configured(config, queries, data, kept)
    except SitsError as error:
        raise click.ClickException(error.message) from error
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    click.echo(f"{found.domains} domains, {found.examples} examples, {found.queries} queries, read by {found.embedder}")
    rows = [("both stages", found.both), ("deep alone", found.deep), ("quick alone", found.quick), *found.by_language.items()]
    for name, marks in rows:
        click.echo(f"{name:<12} {_told(marks)}")
    click.echo(f"deep stage asked for {found.asked:.1%}; quick {found.quick_ms:.3f} ms, deep {found.deep_ms:.2f} ms")


@intent.command("tune")
@_FILE
@_CONFIG
@_DATA
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write it there, for `eval --tuning`.")
@click.option("--use", is_flag=True, help="Put it into the data folder: a gateway reads by it from its next start.")
def tune(file: Path, config: Path | None, data: Path, out: Path | None, use: bool) -> None:
    """Set temperatures, thresholds and penalties by cross-validation on the queries of FILE whose split is not `test`; print them
    as JSON. Queries of the split `test` are not read.

    With --config the examples of its Domains are among them, by its embedder; what is found is of that embedder only."""
    from sits.state.intent import trial, tunings
    from sits.state.intent.embedders import MODEL, weights_named

    try:
        if config is None:
            known, _ = _parts(load(file))
            found, built_in, embedder = tunings.kept(trial.tune(known, _vectors(known, data)), weights_named()), True, MODEL
        else:
            snapshot, queries = configured(config), [query for query in load(file) if query.split != "test"]
            only_declared(queries, snapshot)
            found, built_in, embedder = tune_by(snapshot, queries, data)
        kept = f", kept in {tunings.write(data / 'intent', found, built_in=built_in)}" if use else ""
        click.echo(f"tuned for {embedder}{kept}", err=True)
    except SitsError as error:
        raise click.ClickException(error.message) from error
    text = msgspec.json.encode(found).decode()
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")
    click.echo(text)


def _parts(queries: Sequence[Query]) -> tuple[list[Query], list[Query]]:
    known = [query for query in queries if query.split != "test"]
    if not any(query.domain != UNKNOWN for query in known):
        raise click.ClickException("no query of the file has the split `examples` or `tune`: there is nothing to fit on")
    return known, [query for query in queries if query.split == "test"]


def _read(path: Path) -> Kept:
    from sits.state.intent.tunings import read

    return read(path)


def _configured(config: Path, queries: Sequence[Query], data: Path, tuning: Kept | None) -> Evaluated:
    snapshot, test = configured(config), [query for query in queries if query.split == "test"]
    if not test:
        raise click.ClickException("no query of the file has the split `test`")
    only_declared(test, snapshot)
    tried = try_by(snapshot, test, data, tuning)
    if tried.trouble:
        click.echo(tried.trouble, err=True)
    return _told_of(tried, test)


def _told_of(tried: Tried, test: Sequence[Query]) -> Evaluated:
    """What is printed of a trial."""
    import numpy as np

    found, none = tried.trial, len(tried.intent.domains)
    languages = {
        lang: found.marks(found.both, np.array([query.lang == lang for query in test]), none)
        for lang in sorted({query.lang for query in test if query.lang})
    }
    return Evaluated(
        tried.embedder,
        none,
        tried.examples,
        len(test),
        found.marks(found.quick, None, none),
        found.marks(found.deep, None, none),
        found.marks(found.both, None, none),
        languages,
        found.asked,
        tried.quick_ms,
        tried.deep_ms,
    )


def _vectors(queries: Sequence[Query], data: Path) -> Vectors:
    from sits.state.cache.semantic.embedder import WordLlama
    from sits.state.intent.embedders import open_e5
    from sits.state.intent.trial import embedded

    return embedded(queries, WordLlama(), open_e5(data))


def _evaluated(known: Sequence[Query], test: Sequence[Query], data: Path, tuning: Kept | None) -> Evaluated:
    from sits.state.cache.semantic.embedder import WordLlama
    from sits.state.intent import trial
    from sits.state.intent.embedders import MODEL, open_e5, weights_named

    if not test:
        raise click.ClickException("no query of the file has the split `test`")
    if tuning is not None:
        of_these(tuning, weights_named(), built_in=True)
    quick, deep = WordLlama(), open_e5(data)
    vectors = trial.embedded(known, quick, deep)
    made = trial.fitted(known, vectors, trial.tune(known, vectors) if tuning is None else tuning.figures())
    found = trial.tried(made, test, trial.embedded(test, quick, deep))
    quick_ms, deep_ms = [], []
    for query in test:
        begun = time.perf_counter()
        tokens = quick.embed((query.text,))[0]
        made.quickly(query.text, tokens)
        between = time.perf_counter()
        made.deeply(query.text, tokens, deep.embed((query.text,))[0])
        quick_ms.append(1000 * (between - begun))
        deep_ms.append(1000 * (time.perf_counter() - between))
    return _told_of(Tried(made, len(known), found, MODEL, statistics.median(quick_ms), statistics.median(deep_ms), ""), test)


def _told(marks: Marks) -> str:
    parts = [
        ("accuracy", marks.accuracy),
        ("macro F1", marks.macro_f1),
        ("unknown recall", marks.unknown_recall),
        ("calibration error", marks.calibration_error),
    ]
    return ", ".join(f"{name} {'–' if value is None else format(value, '.3f')}" for name, value in parts) + f" ({marks.count})"
