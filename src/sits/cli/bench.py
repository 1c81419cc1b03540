"""`sits bench`: measure, and hold the figures against their bounds."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from sits.bench import BENCHES, BenchError, Outcome, Plan, find, prepare
from sits.bench.figure import Figure, exit_code, line
from sits.bench.page import number, write


@click.command()
@click.argument("name", required=False)
@click.option("--list", "as_list", is_flag=True, help="Print the benches there are.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each figure; with --list, for each bench.")
@click.option("--quick", is_flag=True, help="Short rounds that prove the harness; not for quoting.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write the bench's page into this folder.")
@click.option("--only", multiple=True, help="A part to run (for gateway: one of the gateways); may be repeated.")
@click.option("--setup", is_flag=True, help="Install what the bench needs beside the project, and end.")
@click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    default=lambda: Path(os.environ.get("SITS_BENCH_CACHE", ".cache/bench")),
    show_default=".cache/bench, or SITS_BENCH_CACHE",
    help="Where that is installed.",
)
@click.pass_context
def bench(
    ctx: click.Context,
    name: str | None,
    as_list: bool,
    as_json: bool,
    quick: bool,
    out: Path | None,
    only: tuple[str, ...],
    setup: bool,
    cache: Path,
) -> None:
    """Run the bench NAME; exit 0 only when every bounded figure holds.

    Exit code 1: a bound does not hold. Exit code 2: it could not be measured.
    """
    if as_list:
        for key, row in BENCHES.items():
            about = {"name": key, "summary": row.summary}
            click.echo(json.dumps(about, ensure_ascii=False) if as_json else f"{key:<12} {row.summary}")
        return
    if name is None:
        raise click.UsageError("which one? `sits bench --list` names them")
    plan = Plan(say=_say, cache=cache, quick=quick, only=only)
    try:
        if setup:
            prepare(name, plan)
            return
        outcome = find(name).run(plan)
    except BenchError as error:
        click.secho(f"Error: {error}", err=True, fg="red")
        ctx.exit(2)
    _show(outcome, as_json, out)
    ctx.exit(exit_code(outcome.figures))


def _show(outcome: Outcome, as_json: bool, out: Path | None) -> None:
    for figure in outcome.figures:
        click.echo(line(figure) if as_json else _readable(figure))
    if out is not None:
        written = write(outcome.page, outcome.figures, out)
        _say(f"wrote {written[0]}")


def _readable(figure: Figure) -> str:
    mark = {True: "holds", False: "FAILS", None: ""}[figure.ok]
    bound = f"{figure.bound} {mark}" if figure.bound else ""
    return f"{figure.name:<34} {number(figure.value):>9} {figure.unit:<6} {bound:<16} {figure.detail}".rstrip()


def _say(text: str) -> None:
    """Progress, where a person sees it and a pipe does not."""
    click.echo(text, err=True)
