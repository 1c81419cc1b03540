"""`sits intent`: how well requests are understood, and the figures that decide it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from sits.cli.intent_config import Tried, Tuned, configured, of_these, only_declared, try_by, tune_by
from sits.cli.intent_progress import Shown
from sits.inner.errors import SitsError
from sits.state.intent.doubts import doubts
from sits.state.intent.labelled import Labelled, Query, domains_of, look, nobodys, too_few

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
    with _shown(quiet=as_json) as shown:
        given = _load(file)
        kept = None if tuning is None else _read(tuning)
        found = _evaluated(given, data, kept, shown) if config is None else _configured(config, given, data, kept, shown)
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    counts = (
        _count(found.domains, "domain", "domains"),
        _count(found.examples, "example", "examples"),
        _count(found.queries, "query", "queries"),
    )
    click.echo(f"{', '.join(counts)}, read by {found.embedder}")
    rows = [("both stages", found.both), ("deep alone", found.deep), ("quick alone", found.quick), *found.by_language.items()]
    for name, marks in rows:
        click.echo(f"{name:<12} {_told(marks)}")
    click.echo(f"deep stage asked for {found.asked:.1%}; quick {found.quick_ms:.3f} ms, deep {found.deep_ms:.2f} ms")


@intent.command("tune")
@_FILE
@_CONFIG
@_DATA
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write it there, for `eval --tuning`.")
@click.option(
    "--use",
    is_flag=True,
    help="Put it into the data folder of the gateway with this --config, unless what it reads by is better.",
)
@click.option("--even-if-worse", is_flag=True, help="With --use: put it there whatever comes of the comparison.")
def tune(file: Path, config: Path | None, data: Path, out: Path | None, use: bool, even_if_worse: bool) -> None:
    """Set temperatures, thresholds and penalties by cross-validation on the queries of FILE whose split is not `test`; print them
    as JSON. Queries of the split `test` are not read.

    With --config the examples of its Domains are among them, by its embedder; what is found is of that embedder only. With --use
    it is compared with what the gateway reads by now, on queries that it was not set by, and a gateway reads by it from its next
    start. Exits 1 where it is worse."""
    if use and config is None:
        raise click.UsageError(
            "--use needs --config, the configuration of the gateway: figures for other domains make it read worse"
        )
    if even_if_worse and not use:
        raise click.UsageError("--even-if-worse says what --use does")
    with _shown() as shown:
        tuned = _tuned(_load(file), config, data, shown, compare=use)
    text = msgspec.json.encode(tuned.figures).decode()
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")
    click.echo(text)
    for doubt in doubts(tuned.figures, tuned.queries):
        click.echo(f"warning: {doubt}", err=True)
    if not use:
        click.echo(f"tuned for {tuned.embedder}", err=True)
        return
    if tuned.compared is not None and tuned.compared.doubt:
        click.echo(f"warning: {tuned.compared.doubt}", err=True)
    why = "no query of the file can be held out to compare it" if tuned.compared is None else str(tuned.compared)
    if (tuned.compared is None or tuned.compared.worse) and not even_if_worse:
        worse = "" if tuned.compared is None else ", which is worse"
        raise click.ClickException(f"not put into {data / 'intent'}: {why}{worse}; --even-if-worse puts it there all the same")
    click.echo(why, err=True)
    try:
        path = _put(data, tuned)
    except SitsError as error:
        raise click.ClickException(error.message) from error
    click.echo(f"tuned for {tuned.embedder}, kept in {path}", err=True)


def _put(data: Path, tuned: Tuned) -> Path:
    """Put it where a gateway finds it."""
    from sits.state.intent.tunings import write

    return write(data / "intent", tuned.figures, built_in=tuned.built_in)


def _tuned(given: Labelled, config: Path | None, data: Path, shown: Shown, *, compare: bool) -> Tuned:
    from sits.state.intent import trial, tunings
    from sits.state.intent.embedders import MODEL, weights_named

    if config is not None:
        snapshot, known = configured(config), given.only("examples", "tune")
        only_declared(known, snapshot)
        return tune_by(snapshot, known.queries, data, shown, compare=compare)
    known, _ = _parts(given)
    figures = trial.tune(known.queries, _vectors(known.queries, data, shown), shown)
    return Tuned(tunings.kept(figures, weights_named()), True, MODEL, len(known.queries))


@contextmanager
def _shown(*, quiet: bool = False) -> Iterator[Shown]:
    """What is shown on the way; what goes wrong is told in its own words."""
    shown = Shown(quiet=quiet)
    try:
        yield shown
    except SitsError as error:
        raise click.ClickException(error.message) from error
    finally:
        shown.close()


def _load(file: Path) -> Labelled:
    """The queries of a file, once it is told what is odd about them. What is wrong with them is told together with what is wrong
    with their labels, by whoever knows which there are."""
    given = look(file)
    for doubt in given.doubts():
        click.echo(f"warning: {doubt}", err=True)
    return given


def _parts(given: Labelled) -> tuple[Labelled, Labelled]:
    """What is fitted on, and what is tried.

    Raises:
        SitsError: `invalid_request`: something is wrong with some lines, or some label is most likely misspelt.
    """
    from sits.state.intent.trial import FEWEST

    known, test = given.only("examples", "tune"), given.only("test")
    domains = domains_of(known.labels)
    if not domains_of([label for label in known.labels if label.split is not None]):
        given.refuse(whole="no query has the split `examples` or `tune`: there is nothing to fit on")
    given.refuse([*too_few(known, FEWEST), *nobodys(test, domains, "no query of the split `examples` or `tune`")])
    return known, test


def _read(path: Path) -> Kept:
    from sits.state.intent.tunings import read

    return read(path)


def _configured(config: Path, given: Labelled, data: Path, tuning: Kept | None, shown: Shown) -> Evaluated:
    snapshot, test = configured(config), given.only("test")
    only_declared(test, snapshot)
    if not test.queries:
        raise click.ClickException("no query of the file has the split `test`")
    tried = try_by(snapshot, test.queries, data, tuning, shown)
    if tried.trouble:
        click.echo(tried.trouble, err=True)
    return _told_of(tried, test.queries)


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


def _vectors(queries: Sequence[Query], data: Path, shown: Shown) -> Vectors:
    from sits.state.cache.semantic.embedder import WordLlama
    from sits.state.intent.embedders import open_e5
    from sits.state.intent.trial import embedded

    return embedded(queries, WordLlama(), open_e5(data), shown)


def _evaluated(given: Labelled, data: Path, tuning: Kept | None, shown: Shown) -> Evaluated:
    from sits.state.cache.semantic.embedder import WordLlama
    from sits.state.intent import trial
    from sits.state.intent.embedders import MODEL, open_e5, weights_named

    known, test = (part.queries for part in _parts(given))
    if not test:
        raise click.ClickException("no query of the file has the split `test`")
    if tuning is not None:
        of_these(tuning, weights_named(), built_in=True)
    quick, deep = WordLlama(), open_e5(data)
    vectors = trial.embedded(known, quick, deep, shown)
    made = trial.fitted(known, vectors, trial.tune(known, vectors, shown) if tuning is None else tuning.figures())
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


def _count(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _told(marks: Marks) -> str:
    parts = [
        ("accuracy", marks.accuracy),
        ("macro F1", marks.macro_f1),
        ("unknown recall", marks.unknown_recall),
        ("calibration error", marks.calibration_error),
    ]
    return ", ".join(f"{name} {'–' if value is None else format(value, '.3f')}" for name, value in parts) + f" ({marks.count})"
