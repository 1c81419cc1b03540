"""`sits chaos`: run experiments, and say what came of them."""

from __future__ import annotations

import asyncio
import json
import pathlib
import time

import click
import msgspec

from sits.chaos.figures import understood
from sits.chaos.report import Report, exit_code, page, told
from sits.chaos.runner import run as run_experiment
from sits.cli.service import sendable
from sits.cli.validate import line
from sits.resources.checks_experiments import EXPERIMENT_RULES
from sits.resources.experiments import Experiment
from sits.resources.problem import Problem
from sits.resources.query import QueryError
from sits.resources.reading import read

BAD_FILE = 2
_COLOURS = {"holds": "green", "fails": "red", "aborted": "yellow", "not run": "yellow"}


@click.group()
def chaos() -> None:
    """Experiments: what clients see while things go wrong."""


@chaos.command()
@click.argument("path", type=click.Path(path_type=pathlib.Path))
@click.option("--only", multiple=True, help="The name of an experiment to run; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each experiment.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=pathlib.Path), help="Write a page of Markdown.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of everything that happens by chance.")
@click.option("--url", help="A running gateway (`sits serve --chaos`) to try them on; for experiments without `config`.")
@click.option("--key", envvar="SITS_API_KEY", help="An admin key of that gateway; also by SITS_API_KEY.")
@click.option(
    "--keep", type=click.Path(file_okay=False, path_type=pathlib.Path), help="A folder in which logs and configurations stay."
)
def run(
    path: pathlib.Path,
    only: tuple[str, ...],
    as_json: bool,
    report: pathlib.Path | None,
    seed: int,
    url: str | None,
    key: str | None,
    keep: pathlib.Path | None,
) -> None:
    """Run the experiments in PATH, a file or a folder, one after the other.

    Exit code 0: every verdict holds. 1: one does not. 2: a file cannot be run. 3: none fails, but one was aborted or could not
    be tried here.
    """
    key = sendable(key) if key is not None else None
    experiments = _read(path, only, outside=url is not None)
    reports = []
    for experiment in experiments:
        name = experiment.metadata.name
        click.secho(f"{name}: {experiment.spec.claim}", err=True, bold=True)
        kept = None if keep is None else keep.resolve() / name
        if kept is not None:
            kept.mkdir(parents=True, exist_ok=True)
        coming = run_experiment(experiment, seed=seed, url=url, key=key, say=_say, keep=kept)
        done = asyncio.run(coming)
        reports.append(done)
        click.echo(msgspec.json.encode(done).decode() if as_json else _readable(done))
    if report is not None:
        report.write_text(page(reports, time.strftime("%Y-%m-%d", time.gmtime())))
        _say(f"wrote {report}")
    raise click.exceptions.Exit(exit_code(reports))


@chaos.command()
@click.argument("path", type=click.Path(path_type=pathlib.Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def ls(path: pathlib.Path, as_json: bool) -> None:
    """List the experiments in PATH: what each claims, what goes wrong, how long it takes."""
    for experiment in _read(path, ()):
        spec = experiment.spec
        seconds = spec.before_seconds + spec.seconds + spec.after_seconds
        types = list(dict.fromkeys(fault.type for fault in spec.faults))
        if as_json:
            row = {"name": experiment.metadata.name, "claim": spec.claim, "faults": types, "seconds": seconds}
            click.echo(json.dumps(row, ensure_ascii=False))
        else:
            click.echo(f"{experiment.metadata.name:<28} {seconds:>4.1f} s  {', '.join(types)}\n    {spec.claim}")


def _read(path: pathlib.Path, only: tuple[str, ...], *, outside: bool = False) -> list[Experiment]:
    """The experiments of a file or folder; ends the command with code 2 when one cannot be run as it is."""
    reading = read(path)
    problems: list[Problem] = list(reading.problems)
    found: list[Experiment] = []
    for declared in reading.declared:
        if not isinstance(declared.resource, Experiment):
            continue
        experiment = declared.resource
        found.append(experiment)
        problems += [declared.problem(fault) for rule in EXPERIMENT_RULES for fault in rule(experiment)]
        spec = experiment.spec
        groups = (("steady", spec.steady), ("verdict", spec.verdict), ("abort", spec.abort.probes))
        for where, probes in groups:
            for index, probe in enumerate(probes):
                try:
                    understood(probe.query)
                except QueryError as error:
                    problems.append(Problem(declared.place, 0, 0, f"spec.{where}[{index}].query", str(error)))
        if outside is bool(spec.config):
            hint = "leave out --url" if outside else "give --url, or `config`"
            message = "has servers of its own" if outside else "is for a running gateway"
            problems.append(Problem(declared.place, 0, 0, "spec.config", message, hint))
    unknown = set(only) - {one.metadata.name for one in found}
    if not found or unknown:
        what = f"no experiment is called {', '.join(sorted(unknown))}" if unknown else "there is no experiment here"
        problems.append(Problem(str(path), 0, 0, "", what))
    if problems:
        for problem in dict.fromkeys(problems):
            click.echo(line(problem), err=True)
        raise click.exceptions.Exit(BAD_FILE)
    return [one for one in found if not only or one.metadata.name in only]


def _readable(report: Report) -> str:
    lines = [
        click.style(f"  {report.verdict}", fg=_COLOURS[report.verdict], bold=True) + (f": {report.why}" if report.why else "")
    ]
    ends = ", ".join(f"{count} {name}" for name, count in sorted(report.outcomes.items()))
    if ends:
        recovered = "" if report.recovery_seconds is None else f"; recovered after {report.recovery_seconds:.2f} s"
        lines.append(f"  requests: {ends}{recovered}")
    lines += [f"  {'holds' if one.holds else 'FAILS'}  {one.part}: {told(one)}" for one in report.probes]
    return "\n".join(lines)


def _say(text: str) -> None:
    click.echo(f"  {text}", err=True)
