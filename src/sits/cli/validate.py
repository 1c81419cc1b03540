"""`sits validate PATH`: whether resources can be used, and everything that is wrong with them."""

from __future__ import annotations

import json
import pathlib

import click
import msgspec

from sits.resources.problem import ConfigError, Problem
from sits.resources.reading import read
from sits.resources.snapshot import Snapshot, compile_reading
from sits.routing.scheduling.judging import use_faults


@click.command()
@click.argument("path", type=click.Path(path_type=pathlib.Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@click.option("--no-secrets", is_flag=True, help="Do not ask whether the secrets that are named are there.")
def validate(path: pathlib.Path, as_json: bool, no_secrets: bool) -> None:
    """Check the resources in PATH, a file or a folder. Exits 0 when they can be used, 1 when not."""
    reading = read(path)
    snapshot: Snapshot | None = None
    problems: tuple[Problem, ...] = ()
    try:
        snapshot = compile_reading(reading, 1, secrets=not no_secrets, judge=use_faults)
    except ConfigError as error:
        problems = error.problems
    if as_json:
        report = {
            "valid": snapshot is not None,
            "resources": len(reading.declared),
            "hash": snapshot.hash if snapshot else None,
            "problems": msgspec.to_builtins(problems),
        }
        click.echo(json.dumps(report, ensure_ascii=False))
    elif snapshot is None:
        for problem in problems:
            click.echo(line(problem))
        click.secho(f"{len(problems)} problem{'s' if len(problems) != 1 else ''}", fg="red", err=True)
    else:
        kinds: dict[str, int] = {}
        for declared in reading.declared:
            kinds[declared.kind] = kinds.get(declared.kind, 0) + 1
        found = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "no resource"
        click.echo(f"{click.style('valid', fg='green')}: {found}; hash {snapshot.hash[:12]}")
    if snapshot is None:
        raise click.exceptions.Exit(1)


def line(problem: Problem) -> str:
    """`file:line:column path: message; hint`, coloured where it goes to a terminal."""
    place = f"{problem.file}:{problem.line}:{problem.column}" if problem.line else problem.file
    path = f"{click.style(problem.path, fg='cyan')}: " if problem.path else ""
    hint = f"; {click.style(problem.hint, fg='yellow')}" if problem.hint else ""
    return f"{click.style(place, bold=True)} {path}{problem.message}{hint}"
