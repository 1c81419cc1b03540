"""`sits validate PATH`: whether resources can be used, and everything that is wrong with them."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Sequence

import click
import msgspec

from sits.cli.validate_plugins import folder_problems, installed, plugin_problems
from sits.resources.problem import ConfigError, Fault, Problem, in_order
from sits.resources.reading import read
from sits.resources.snapshot import Snapshot, compile_reading
from sits.resources.warnings import warnings
from sits.routing.scheduling.judging import use_faults


@click.command()
@click.argument("path", type=click.Path(path_type=pathlib.Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@click.option("--no-secrets", is_flag=True, help="Do not ask whether the secrets that are named are there.")
@click.option("--no-plugins", is_flag=True, help="Run no plugin; filters and scores that do not come with SITS are let pass.")
@click.option("--strict", is_flag=True, help="Exit 1 for warnings too: for what can be used and has no effect.")
def validate(path: pathlib.Path, as_json: bool, no_secrets: bool, no_plugins: bool, strict: bool) -> None:
    """Check the resources in PATH, a file or a folder. Plugins are loaded, in a process of their own, and asked whether they can
    use their settings. Exits 0 when all can be used, 1 when not. What can be used and has no effect is a warning."""
    reading = read(path)
    snapshot: Snapshot | None = None
    problems: tuple[Problem, ...] = ()
    try:
        snapshot = compile_reading(reading, 1, secrets=not no_secrets, judge=uses)
        problems = tuple(folder_problems(reading)) or _of_plugins(path, snapshot, no_plugins)
        snapshot = None if problems else snapshot
    except ConfigError as error:
        problems = in_order([*error.problems, *folder_problems(reading)])
    warned = warnings(reading)
    if as_json:
        report = {
            "valid": snapshot is not None,
            "resources": len(reading.declared),
            "hash": snapshot.hash if snapshot else None,
            "problems": msgspec.to_builtins(problems),
            "warnings": msgspec.to_builtins(warned),
        }
        click.echo(json.dumps(report, ensure_ascii=False))
    else:
        _tell(problems, warned)
    if snapshot is not None and not as_json:
        kinds: dict[str, int] = {}
        for declared in reading.declared:
            kinds[declared.kind] = kinds.get(declared.kind, 0) + 1
        found = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "no resource"
        click.echo(f"{click.style('valid', fg='green')}: {found}; hash {snapshot.hash[:12]}")
    if snapshot is None or (strict and warned):
        raise click.exceptions.Exit(1)


def _tell(problems: Sequence[Problem], warned: Sequence[Problem]) -> None:
    """Both by file and line; how many there are goes to stderr."""
    for problem in in_order([*problems, *warned]):
        click.echo(line(problem, warning=problem not in problems))
    said = [_counted(len(problems), "problem")] * bool(problems) + [_counted(len(warned), "warning")] * bool(warned)
    if said:
        click.secho(", ".join(said), fg="red" if problems else "yellow", err=True)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def uses(snapshot: Snapshot) -> Iterator[tuple[str, str, Fault]]:
    """What is wrong with the filters and scores that routes use, as far as that can be said without running a plugin."""
    return use_faults(snapshot, perhaps=True if installed() else None)


def _of_plugins(path: pathlib.Path, snapshot: Snapshot, no_plugins: bool) -> tuple[Problem, ...]:
    """What is wrong with the plugins, and with what routes make of them."""
    if no_plugins or (snapshot.settings.plugins is None and not installed()):
        return ()
    return tuple(plugin_problems(path))


def line(problem: Problem, *, warning: bool = False) -> str:
    """`file:line:column path: message; hint`, coloured where it goes to a terminal; `warning:` before the path of one."""
    place = f"{problem.file}:{problem.line}:{problem.column}" if problem.line else problem.file
    path = f"{click.style(problem.path, fg='cyan')}: " if problem.path else ""
    hint = f"; {click.style(problem.hint, fg='yellow')}" if problem.hint else ""
    sort = f"{click.style('warning:', fg='yellow')} " if warning else ""
    return f"{click.style(place, bold=True)} {sort}{path}{problem.message}{hint}"
