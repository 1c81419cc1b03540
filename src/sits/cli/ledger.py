"""`sitsctl ledger`: what was used and what it cost. Works on the data folder, whether the service runs or not."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import click
import msgspec

from sits.inner.errors import SitsError
from sits.security.keys import moment
from sits.state.ledger import LedgerTable, Query, open_table
from sits.state.ledger.audit import audit
from sits.state.ledger.drain import Drain
from sits.state.ledger.entry import entry_of
from sits.state.ledger.export import FORMATS, Format, export
from sits.state.ledger.journal import FOLDER
from sits.state.ledger.sqlite_table import FILE
from sits.state.ledger.table import DIMENSIONS, Cursor, Dimension, Page, Sums

F = TypeVar("F", bound=Callable[..., Any])
_AGO = re.compile(r"([0-9]+)([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_FILTERS = ("key", "team", "route", "requested", "model", "provider", "operation", "outcome", "request_id")


def _where(command: F) -> F:
    """Which ledger."""
    for option in (
        click.option(
            "--table",
            envvar="SITS_LEDGER",
            default="sqlite",
            show_default=True,
            help="Where the entries are: sqlite, in the data folder, or postgresql://...; also by SITS_LEDGER.",
        ),
        click.option(
            "--data",
            "folder",
            type=click.Path(file_okay=False, path_type=Path),
            envvar="SITS_DATA",
            default=Path("data"),
            show_default=True,
            help="The data folder of the service; also by SITS_DATA.",
        ),
    ):
        command = option(command)
    return command


def _which(command: F) -> F:
    """Which entries."""
    for name in reversed(_FILTERS):
        command = click.option(f"--{name.replace('_', '-')}", help=f"Only entries with this {name.replace('_', ' ')}.")(command)
    command = click.option("--until", help="Before this time; like --since.")(command)
    return click.option("--since", help="From this time on: 2026-11-29, an RFC 3339 time, or a span ago such as 12h, 30d.")(
        command
    )


@contextmanager
def _opened(folder: Path, address: str) -> Iterator[LedgerTable]:
    """The table; what goes wrong is one line on stderr and exit code 1."""
    if address == "sqlite" and not (folder / FILE).exists() and not (folder / FOLDER).exists():
        raise click.ClickException(f"there is no ledger in {folder}; say which data folder with --data")
    try:
        table = open_table(folder, address)
        try:
            yield table
        finally:
            table.close()
    except SitsError as error:
        raise click.ClickException(error.message) from error


@click.group("ledger")
def ledger() -> None:
    """Usage and cost of every attempt: ask, export, check."""


@ledger.command("query")
@click.option("--by", help=f"Sum up by these, separated by commas: {', '.join(DIMENSIONS)}.")
@click.option("--entries", is_flag=True, help="The entries themselves, oldest first, instead of sums.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many rows.")
@click.option("--after", help="Where the last page ended; it is printed with each page that has a next one.")
@click.option("--json", "as_json", is_flag=True, help="One object.")
@_which
@_where
def query(
    by: str | None, entries: bool, limit: int, after: str | None, as_json: bool, folder: Path, table: str, **which: Any
) -> None:
    """Sums of requests, attempts, tokens and cost, or the entries. Figures that are not known count as nothing in the sums."""
    meant = _query(which)
    with _opened(folder, table) as opened:
        if entries:
            page = opened.entries(meant, after=_cursor(after), limit=limit)
            _show_entries(page, as_json)
            return
        names = _dimensions(by)
        if astray := opened.astray():
            click.secho(
                f"{astray} sums are nobody's, and missing here: make them again with {_remedy(folder, table)}", fg="red", err=True
            )
        sums = opened.sums(meant, names, after=None if after is None else _group(after), limit=limit)
        following = json.dumps(sums[-1].group, ensure_ascii=False) if names and len(sums) == limit else None
        _show_sums(names, sums, following, as_json)


@ledger.command("export")
@click.option("--format", "kind", type=click.Choice(FORMATS), default="csv", show_default=True, help="Of the file.")
@click.option(
    "--out", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="The file; standard output when not given."
)
@click.option("--json", "as_json", is_flag=True, help="Say what was done as one object, on standard error.")
@_which
@_where
def export_command(kind: Format, out: Path | None, as_json: bool, folder: Path, table: str, **which: Any) -> None:
    """Write the entries to a file, oldest first. Times are microseconds since 1970, cost is in nano-dollars (10^-9 USD)."""
    meant = _query(which)
    with _opened(folder, table) as opened:
        if out is None:
            stream = cast("BinaryIO", sys.stdout.buffer)
            count = export(opened, meant, kind, stream)
            stream.flush()
        else:
            with out.open("wb") as file:
                count = export(opened, meant, kind, file)
    where = "standard output" if out is None else str(out)
    click.echo(json.dumps({"entries": count, "file": where}) if as_json else f"{count} entries, to {where}", err=True)


@ledger.command("check")
@click.option("--drain", is_flag=True, help="First bring the journals of processes that are gone into the table.")
@click.option("--json", "as_json", is_flag=True, help="One object.")
@_where
def check(drain: bool, as_json: bool, folder: Path, table: str) -> None:
    """Prove that each record of the journal is in the table exactly once. Exit 1 when it is not.

    Records that a running service has not drained yet are pending, which is no fault.
    """
    journals = folder / FOLDER
    with _opened(folder, table) as opened:
        if drain:
            Drain(journals, opened).orphans()
        found = audit(journals, opened)
    if as_json:
        remedy = _remedy(folder, table) if found.flaws else None
        told = {"sound": found.sound, "complete": found.complete, "remedy": remedy, **msgspec.to_builtins(found)}
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        click.echo(
            f"{found.records} records in {found.segments} journal segments: {found.agreed} in the table exactly once, "
            f"{found.pending} pending, {found.forgotten} too old to be kept, {found.missing} missing, "
            f"{found.different} different, {found.unreadable} unreadable"
        )
        for uneven in found.uneven:
            click.secho(f"segment {uneven.segment}: {uneven.drained} were drained, {uneven.held} are there", fg="red")
        for example in [*found.flaws, *found.examples]:
            click.secho(example, fg="red")
        if found.flaws:
            click.echo(f"sums are made again from the entries by: {_remedy(folder, table)}")
        click.secho("the ledger is sound" if found.sound else "the ledger is NOT sound", fg="green" if found.sound else "red")
    if not found.sound:
        raise SystemExit(1)


@ledger.command("repair")
@click.option("--accept-loss", is_flag=True, help="Also where entries are gone: what they came to goes from the sums as well.")
@click.option("--json", "as_json", is_flag=True, help="One object.")
@_where
def repair(accept_loss: bool, as_json: bool, folder: Path, table: str) -> None:
    """Make sums and parties again from the entries, which stay as they are. Exit 1 when something is left that this cannot mend.

    May run beside a service, which waits with what it drains meanwhile. Safe to repeat.
    """
    with _opened(folder, table) as opened:
        left = [f"segment {one.segment}: {one.drained} were drained, {one.held} are there" for one in opened.uneven()]
        if left and not accept_loss:
            lines = "\n".join(left)
            raise click.ClickException(f"{lines}\nthe sums may be all that is left of these: put a backup back, or --accept-loss")
        done = opened.repair()
        left += opened.flaws()
    if as_json:
        told = {"sound": not left, "changed": done.changed, **msgspec.to_builtins(done), "left": left}
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        changed = f"{done.sums} sums put right, {done.astray} of nobody removed, {done.parties} parties put back"
        counted = f"{done.entries} entries counted again, {done.stretches} groups of them anew, {done.unreadable} unreadable"
        click.echo(f"{counted}: {changed}")
        for one in left:
            click.secho(one, fg="red")
        click.secho("the ledger is NOT sound" if left else "the ledger is sound", fg="red" if left else "green")
    if left:
        raise SystemExit(1)


def _remedy(folder: Path, table: str) -> str:
    """The command that makes the sums again."""
    return f"sitsctl ledger repair --data {folder}" + ("" if table == "sqlite" else " --table ...")


def _query(which: dict[str, Any]) -> Query:
    now = time.time()
    since, until = (None if which[name] is None else _time(which[name], now, f"--{name}") for name in ("since", "until"))
    return Query(since=since, until=until, **{name: which[name] for name in _FILTERS})


def _time(text: str, now: float, option: str) -> float:
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now - int(ago[1]) * _SECONDS[ago[2]]
    try:
        return moment(f"{text}T00:00:00Z" if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else text)
    except (SitsError, ValueError) as error:
        raise click.BadParameter(
            f"{text!r} is no time such as 2026-11-29, 2026-11-29T08:00:00Z or 12h", param_hint=option
        ) from error


def _dimensions(by: str | None) -> tuple[Dimension, ...]:
    names = [name.strip() for name in (by or "").split(",") if name.strip()]
    for name in names:
        if name not in DIMENSIONS:
            raise click.BadParameter(f"{name!r} is none of {', '.join(DIMENSIONS)}", param_hint="--by")
    return cast("tuple[Dimension, ...]", tuple(names))


def _cursor(after: str | None) -> Cursor | None:
    if after is None:
        return None
    try:
        return msgspec.json.decode(after, type=Cursor)
    except msgspec.DecodeError as error:
        raise click.BadParameter("give it as it was printed", param_hint="--after") from error


def _group(after: str) -> list[str]:
    try:
        return msgspec.json.decode(after, type=list[str])
    except msgspec.DecodeError as error:
        raise click.BadParameter("give it as it was printed", param_hint="--after") from error


def _show_entries(page: Page, as_json: bool) -> None:
    following = None if page.next is None else json.dumps(page.next)
    entries = [entry_of(row) for row in page.rows]
    if as_json:
        told = [msgspec.structs.asdict(entry) for entry in entries]
        click.echo(json.dumps({"data": told, "next": following}, ensure_ascii=False))
        return
    table: list[tuple[str, ...]] = [("TIME", "REQUEST", "TRY", "KEY", "MODEL", "OUTCOME", "IN", "OUT", "USD")]
    for entry in entries:
        when = datetime.fromtimestamp(entry.time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        tokens = ["-" if figure is None else str(figure) for figure in (entry.input_tokens, entry.output_tokens)]
        cost = "-" if entry.cost is None else _usd(entry.cost)
        row = (when, entry.request_id, str(entry.attempt), entry.key or "-", entry.model or "-", entry.outcome, *tokens, cost)
        table.append(row)
    _print(table, following)


def _show_sums(names: tuple[str, ...], sums: list[Sums], following: str | None, as_json: bool) -> None:
    if as_json:
        told = []
        for one in sums:
            figures = msgspec.structs.asdict(one)
            group = figures.pop("group")
            told.append({"group": dict(zip(names, group, strict=True)), **figures, "cost_usd": _usd(one.cost)})
        click.echo(json.dumps({"data": told, "next": following}, ensure_ascii=False))
        return
    heads = ("REQUESTS", "ATTEMPTS", "ERRORS", "IN", "OUT", "CACHED", "REASONING", "USD", "UNPRICED")
    table = [(*(name.upper() for name in names), *heads)]
    for one in sums:
        tokens = (one.input_tokens, one.output_tokens, one.cached_tokens, one.reasoning_tokens)
        counts = map(str, (one.requests, one.attempts, one.errors, *tokens))
        table.append((*(value or "-" for value in one.group), *counts, _usd(one.cost), str(one.unpriced)))
    _print(table, following)


def _usd(nano: int) -> str:
    """All of it: nine places after the point."""
    return f"{nano // 1_000_000_000}.{nano % 1_000_000_000:09d}"


def _print(table: list[tuple[str, ...]], following: str | None) -> None:
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    if following is not None:
        click.echo(f"there is more: --after '{following}'", err=True)
