"""`sits validate PATH`: whether resources can be used, and everything that is wrong with them."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import click
import msgspec

from sits.cli.validate_plugins import folder_problems, installed, plugin_problems
from sits.resources.problem import ConfigError, Fault, Problem, in_order
from sits.resources.reading import read
from sits.resources.snapshot import Snapshot, compile_reading
from sits.routing.scheduling.judging import use_faults


@click.command()
@click.argument("path", type=click.Path(path_type=pathlib.Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@click.option("--no-secrets", is_flag=True, help="Do not ask whether the secrets that are named are there.")
@click.option("--no-plugins", is_flag=True, help="Run no plugin; filters and scores that do not come with SITS are let pass.")
def validate(path: pathlib.Path, as_json: bool, no_secrets: bool, no_plugins: bool) -> None:
    """Check the resources in PATH, a file or a folder. Plugins are loaded, in a process of their own, and asked whether they can
    use their settings. Exits 0 when all can be used, 1 when not."""
    reading = read(path)
    snapshot: Snapshot | None = None
    problems: tuple[Problem, ...] = ()
    try:
        snapshot = compile_reading(reading, 1, secrets=not no_secrets, judge=_uses)
        problems = tuple(folder_problems(reading)) or _of_plugins(path, snapshot, no_plugins)
        snapshot = None if problems else snapshot
    except ConfigError as error:
        problems = in_order([*error.problems, *folder_problems(reading)])
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


def _uses(snapshot: Snapshot) -> Iterator[tuple[str, str, Fault]]:
    """What is wrong with the filters and scores that routes use, as far as that can be said without running a plugin."""
    return use_faults(snapshot, perhaps=True if installed() else None)


def _of_plugins(path: pathlib.Path, snapshot: Snapshot, no_plugins: bool) -> tuple[Problem, ...]:
    """What is wrong with the plugins, and with what routes make of them."""
    if no_plugins or (snapshot.settings.plugins is None and not installed()):
        return ()
    return tuple(plugin_problems(path))


def line(problem: Problem) -> str:
    """`file:line:column path: message; hint`, coloured where it goes to a terminal."""
    place = f"{problem.file}:{problem.line}:{problem.column}" if problem.line else problem.file
    path = f"{click.style(problem.path, fg='cyan')}: " if problem.path else ""
    hint = f"; {click.style(problem.hint, fg='yellow')}" if problem.hint else ""
    return f"{click.style(place, bold=True)} {path}{problem.message}{hint}"
