"""`sits plugin`: write a filter or a score of one's own, and see whether it keeps what it must."""

from __future__ import annotations

import contextlib
import keyword
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

if TYPE_CHECKING:
    from sits.routing.plugins.fence import Kind
    from sits.routing.plugins.limits import Alarm
    from sits.state.plugins.loading import Offered

_SECONDS = 60.0
"""That each check of a plugin may take."""
_QUICK_SECONDS = 2.0
"""The one that it is quick: 21 calls, which may take 5 ms each."""
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class Checked(msgspec.Struct, frozen=True):
    """What one check found."""

    kind: str
    name: str
    check: str
    ok: bool
    said: str = ""
    """What was found instead."""


class Listed(msgspec.Struct, frozen=True):
    """A plugin that is installed."""

    kind: str
    name: str
    entry: str
    package: str
    problem: str = ""
    """Why it cannot be used."""


@click.group("plugin")
def plugin() -> None:
    """Filters and scores of your own: write one, check it, see what is installed."""


@plugin.command("new")
@click.argument("name")
@click.option("--kind", type=click.Choice(["score", "filter"]), default="score", show_default=True, help="What it is.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Where to write it; the current folder when not given.",
)
def new(name: str, kind: Kind, folder: Path) -> None:
    """Write a plugin that works, and its test, to be changed."""
    from sits.state.plugins.template import written

    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise click.UsageError("a name is of lower case ASCII letters, digits and -, and begins with a letter")
    if name in _built_in(kind):
        raise click.UsageError(f"there is a built-in {kind} {name}")
    files = written(kind, name)
    for file, _ in files:
        if (folder / file).exists():
            raise click.ClickException(f"{folder / file} is there already")
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files:
        (folder / file).write_text(text, encoding="utf-8")
        click.echo(f"wrote {folder / file}")
    click.echo(f"next: sits plugin check {folder / files[0][0]}")


@plugin.command("check")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--settings", default="{}", help="Its settings, as JSON: for one that cannot do without.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON for each check.")
def check(file: Path, settings: str, as_json: bool) -> None:
    """Run on FILE what is run on every filter and score that comes with SITS. Exit code 0: all is kept; 1: something is not;
    2: it cannot be loaded."""
    from sits.state.plugins.alarm import best_alarm
    from sits.state.plugins.loading import Refused, load_file

    given = _settings(settings)
    with contextlib.closing(best_alarm()) as alarm:
        try:
            loaded = load_file(file.resolve(), 0, alarm, 10.0)
        except Refused as error:
            click.echo(f"{file} {error}", err=True)
            raise SystemExit(2) from error
        found = [row for one in loaded.offered for row in _checked(one, given, alarm)]
        loaded.forget()
    for row in found:
        if as_json:
            click.echo(msgspec.json.encode(row).decode())
        else:
            mark = click.style("ok  ", fg="green") if row.ok else click.style("FAIL", fg="red")
            click.echo(f"{mark} {row.kind} {row.name}: {row.check}" + ("" if row.ok else f": {row.said}"))
    bad = sum(not row.ok for row in found)
    if not as_json:
        click.echo(f"{len(found)} checks, " + (f"{bad} failed" if bad else "all kept"))
    raise SystemExit(1 if bad else 0)


@plugin.command("list")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON for each.")
def list_(as_json: bool) -> None:
    """The plugins that are installed, as entry points of the group `sits.plugins`. A gateway has those of its folder, too."""
    rows = _installed()
    for row in rows:
        if as_json:
            click.echo(msgspec.json.encode(row).decode())
        else:
            what = f"{row.entry}: {row.problem}" if row.problem else f"{row.kind} {row.name}"
            click.echo(f"{what} ({row.package})")
    if not rows and not as_json:
        click.echo("none is installed")


def _settings(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise click.UsageError(f"--settings: {error}") from error


def _built_in(kind: str) -> frozenset[str]:
    from sits.routing.scheduling.builtin import FILTERS, SCORES

    return frozenset(FILTERS if kind == "filter" else SCORES)


def _checked(one: Offered, settings: dict[str, Any], alarm: Alarm) -> list[Checked]:
    from sits.routing.scheduling.checks import FILTER_CHECKS, SCORE_CHECKS
    from sits.state.plugins.trial import tried

    taken = f"there is a built-in {one.kind} of that name" if one.name in _built_in(one.kind) else ""
    fence = tried(one, alarm, settings)
    rows = [
        Checked(one.kind, one.name, "has a name of its own", not taken, taken),
        Checked(one.kind, one.name, "gets by the fence of the gateway", not fence, fence),
    ]
    checks = FILTER_CHECKS if one.kind == "filter" else SCORE_CHECKS
    # Whether it is quick comes first: the others call it some thousand times.
    quick = next(check for check in checks if check.__name__.endswith("is_quick"))
    too_slow = False
    for check in (quick, *(other for other in checks if other is not quick)):
        name = check.__name__.replace("_", " ")
        if too_slow:
            rows.append(Checked(one.kind, one.name, name, False, "was not looked at: calls take too long"))
            continue
        click.echo(f"checking {one.kind} {one.name}: {name}", err=True)
        said, too_slow = _failure(check, one, settings, alarm, quick=check is quick)
        rows.append(Checked(one.kind, one.name, name, not said, said))
    return rows


def _failure(
    check: Callable[..., None], one: Offered, settings: dict[str, Any], alarm: Alarm, *, quick: bool
) -> tuple[str, bool]:
    """What a check found, empty where all is well, and whether other checks would take too long."""
    from sits.routing.plugins.fence import described
    from sits.routing.plugins.limits import Cut

    seconds = _QUICK_SECONDS if quick else _SECONDS
    try:
        alarm.call(seconds, check, one.make, settings)
    except AssertionError as error:
        return str(error).partition("\nassert ")[0] or described(error, alarm, 1.0), quick
    except Cut:
        return f"was cut: it did not come to an end within {seconds:g} s", True
    except BaseException as error:  # SystemExit of a plugin is a finding, not the end
        return described(error, alarm, 1.0), False
    return "", False


def _installed() -> list[Listed]:
    from sits.state.plugins.alarm import best_alarm
    from sits.state.plugins.loading import Refused, entries, load_entry

    rows = []
    with contextlib.closing(best_alarm()) as alarm:
        for entry in entries():
            package = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "unknown package"
            try:
                loaded = load_entry(entry, alarm, 10.0)
            except Refused as error:
                rows.append(Listed("", "", entry.name, package, str(error)))
                continue
            rows += [Listed(one.kind, one.name, entry.name, package) for one in loaded.offered]
    return rows
