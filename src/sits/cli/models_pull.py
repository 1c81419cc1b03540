"""`sits models pull`: fetch what local models need, before the first request needs it."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click
import msgspec

from sits.engines.local.engine import local_plan
from sits.engines.local.fetch import fetch, located
from sits.engines.local.memory import size
from sits.engines.local.origins import Progress
from sits.inner.errors import SitsError
from sits.resources.defaults import DEFAULT_FOLDER
from sits.resources.kinds import Model
from sits.resources.problem import ConfigError
from sits.resources.reading import read
from sits.resources.snapshot import compile_reading

if TYPE_CHECKING:
    from click._termui_impl import ProgressBar


class Pulled(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one model."""

    name: str
    ok: bool
    fetched: bool = False
    """False when everything was there already."""
    files: tuple[str, ...] = ()
    bytes: int = 0
    error: str | None = None


def pull_models(models: Iterable[Model], data: pathlib.Path, begin: Callable[[str], Progress]) -> list[Pulled]:
    """Fetch each local model into the data folder; one that fails does not keep the others from being fetched.

    `begin` gives, for the name of a model, what is told how its fetch goes.
    """
    store = data / "models"
    store.mkdir(parents=True, exist_ok=True, mode=0o700)
    return [_pull(model, store, begin(model.metadata.name)) for model in models]


def _pull(model: Model, store: pathlib.Path, progress: Progress) -> Pulled:
    name = model.metadata.name
    try:
        wanted = local_plan(model).wanted
        there = all(located(each, store) is not None for each in wanted)
        files = [path for paths in fetch(wanted, store, progress) for path in paths]
    except SitsError as error:
        return Pulled(name, False, error=error.message)
    return Pulled(name, True, not there, tuple(map(str, files)), sum(path.stat().st_size for path in files))


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--config", type=click.Path(path_type=pathlib.Path), help="Resource file or folder; the built-in default without it."
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    envvar="SITS_DATA",
    default=pathlib.Path("data"),
    show_default=True,
    help="The data folder of the service.",
)
@click.option("--all", "everything", is_flag=True, help="Every local model of the configuration.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each model.")
def pull(names: tuple[str, ...], config: pathlib.Path | None, data: pathlib.Path, everything: bool, as_json: bool) -> None:
    """Fetch the files of the local models NAME; what is there already is left as it is. Exits 1 when one could not be had."""
    models = _local_models(config)
    if not names and not everything:
        raise click.UsageError(f"which ones? {', '.join(models) or 'there is no local model'}; or give --all")
    unknown = [name for name in names if name not in models]
    if unknown:
        raise click.ClickException(f"no local model is called {unknown[0]}; there are {', '.join(models) or 'none'}")
    chosen = [models[name] for name in (models if everything else names)]
    begin: Callable[[str], Progress] = _silence if as_json else _Bars if sys.stderr.isatty() else _lines
    failed = False
    for model in chosen:
        (result,) = pull_models([model], data, begin)
        failed |= not result.ok
        click.echo(msgspec.json.encode(result).decode() if as_json else _told(result), err=not result.ok and not as_json)
    if failed:
        raise click.exceptions.Exit(1)


def _local_models(config: pathlib.Path | None) -> dict[str, Model]:
    try:
        snapshot = compile_reading(read((config or DEFAULT_FOLDER).resolve()), 1, secrets=False)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    return {name: model for name, model in snapshot.models.items() if model.spec.local is not None}


def _told(result: Pulled) -> str:
    if not result.ok:
        return f"{result.name}: {result.error}"
    return f"{result.name}: {'fetched' if result.fetched else 'already there'}, {size(result.bytes)}"


def _silence(name: str) -> Progress:
    return lambda done, total, what: None


def _lines(name: str) -> Progress:
    """A line for each file that is begun."""
    begun: set[str] = set()

    def progress(done: int, total: int | None, what: str) -> None:
        if what not in begun and done == 0 and total:
            begun.add(what)
            click.echo(f"{name}: {what}, {size(total)}", err=True)

    return progress


class _Bars:
    """One bar after the other, each for one file of the model."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bar: ProgressBar[int] | None = None
        self._shown = ("", 0)
        self._done = 0

    def __call__(self, done: int, total: int | None, what: str) -> None:
        if done < 0 or not total:
            return
        if self._bar is None or self._shown != (what, total):
            self._shown, self._done = (what, total), 0
            self._bar = click.progressbar(length=total, label=f"{self._name}: {what}", file=sys.stderr)
            self._bar.render_progress()
        self._bar.update(done - self._done)
        self._done = done
        if done >= total:
            self._bar.render_finish()
            self._bar = None
