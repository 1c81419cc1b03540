"""`sits replay TRACE`: recorded traffic decided on again, on its own configuration or on another one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import click
import msgspec

from sits.cli.validate import line as problem_line
from sits.observe.trace_row import TraceError
from sits.replay.replay import Of, replay
from sits.replay.report import Promise, Report
from sits.resources.problem import ConfigError
from sits.resources.reading import read
from sits.resources.snapshot import Snapshot, compile_reading
from sits.routing.estimate import Estimate, Estimated

UNITS = {"latency": "ms", "cost": "$", "feedback": ""}


@click.command(name="replay")
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--config", type=click.Path(exists=True, path_type=Path), help="The other configuration, a file or a folder.")
@click.option(
    "--outcome", "outcomes", type=click.Choice(get_args(Of)), multiple=True, help="Estimate this under it, with intervals."
)
@click.option("--limit", type=click.IntRange(min=1), help="The first so many requests only.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each recorded configuration.")
@click.option("--fail-on-worse", is_flag=True, help="Exit 1 where more promises are broken than before.")
def replay_(
    trace: Path, config: Path | None, outcomes: tuple[Of, ...], limit: int | None, as_json: bool, fail_on_worse: bool
) -> None:
    """Decide again on the requests in TRACE, a file or a folder.

    Without --config the choices are made on the configuration in the trace itself, and each must come out as it was: exit 1 where
    one does not. With --config what differs is told: who is asked, costs, predicted latency, promises.
    """
    if outcomes and config is None:
        raise click.UsageError("--outcome estimates what another configuration would bring: give --config")
    other = _other(config) if config is not None else None
    failed = False
    try:
        with _progress(as_json) as said:
            reports = list(replay(trace, other, outcomes=outcomes, limit=limit, said=said))
    except TraceError as error:
        raise click.ClickException(str(error)) from error
    for name, report in reports:
        failed |= bool(report.moved or report.undecidable) if other is None else fail_on_worse and report.worse
        if as_json:
            click.echo(json.dumps({"recorded": name, **msgspec.to_builtins(report), "worse": report.worse}, ensure_ascii=False))
        else:
            click.echo("\n".join(told(name, report, other)))
    if failed:
        raise click.exceptions.Exit(1)


def _other(path: Path) -> Snapshot:
    try:
        return compile_reading(read(path), 1)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(problem_line(problem), err=True)
        raise click.ClickException(f"{path} cannot be used") from error


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Progress where somebody watches."""
    if quiet or not sys.stderr.isatty():
        yield None
        return

    def said(done: int, count: int) -> None:
        if done % 200 == 0 or done == count:
            click.echo(f"\r{done:,} of {count:,} requests", nl=done == count, err=True)

    yield said


def told(name: str, report: Report, other: Snapshot | None) -> Iterator[str]:
    """The report in lines."""
    where = f"configuration {other.hash[:12]}" if other is not None else "the same configuration"
    yield f"{report.rows:,} requests recorded on {name[:12]}, decided on again by {where}"
    if report.missing or report.bad_lines:
        yield f"  {report.missing:,} more could not be recorded, {report.bad_lines:,} lines cannot be read"
    yield f"  as they were  {_of(report.reproduced, report.rows)}"
    if report.behind:
        yield f"                {report.behind:,} of these with another order behind the first choice"
    yield f"  moved         {_of(report.moved, report.rows)}"
    if report.refused or report.answered:
        yield f"  would be refused {report.refused:,}, would no longer be refused {report.answered:,}"
    for why, count in report.undecidable.items():
        yield f"  undecidable   {_of(count, report.rows)}: {why}"
    for why, count in report.notes.items():
        yield f"  assumed of {count:,}: {why}"
    if report.moves:
        yield f"  {'route':<24} {'from':<20} {'to':<20} {'requests':>9} {'share':>7}"
        for move in report.moves:
            yield f"  {move.route:<24} {move.of or 'refused':<20} {move.to or 'refused':<20} {move.count:>9,} {move.share:>7.2%}"
    if other is None:
        yield from (f"  {request}: {differs}" for request, differs in report.differing)
        return
    yield from _worth(report)
    yield from _promises(report.promises)
    for of, estimated in report.estimates.items():
        yield from _estimated(of, estimated, report.excluded)


def _worth(report: Report) -> Iterator[str]:
    if report.priced:
        yield (
            f"  cost          ${report.cost_before:,.4f} -> ${report.cost_after:,.4f}"
            f"{_change(report.cost_before, report.cost_after)}  ({report.priced:,} requests)"
        )
    if report.latency_before is not None and report.latency_after is not None:
        yield (
            f"  latency       mean {report.latency_before:,.0f} -> {report.latency_after:,.0f} ms"
            f"{_change(report.latency_before, report.latency_after)}, p95 {report.p95_before or 0:,.0f} -> "
            f"{report.p95_after or 0:,.0f} ms  ({report.timed:,} requests; of those that moved it is predicted)"
        )
    for name, fit in report.fits.items():
        yield (
            f"    predicting {name}: off by {fit.off_ms:,.0f} ms on average, {fit.better:.0%} less than its mean "
            f"({fit.answers:,} answers)"
        )


def _promises(promises: tuple[Promise, ...]) -> Iterator[str]:
    for one in promises:
        if one.broken_before or one.broken_after:
            mark = "  WORSE" if one.worse else ""
            before, after = (_value(one, value, broken) for value, broken in _sides(one))
            yield f"  promise       {one.what} of {one.subject}: {before} -> {after}{mark}"


def _sides(one: Promise) -> tuple[tuple[float | None, bool], tuple[float | None, bool]]:
    return (one.before, one.broken_before), (one.after, one.broken_after)


def _value(one: Promise, value: float | None, broken: bool) -> str:
    if value is None:
        return "unknown"
    text = f"p95 {value:,.0f} ms" if one.what == "latency" else f"{value:,.0f} requests"
    return f"{text} {'broken' if broken else 'kept'}"


def _estimated(of: str, found: Estimated, excluded: int) -> Iterator[str]:
    unit = UNITS[of]
    yield (
        f"  {of} under it, estimated from {found.rows:,} outcomes ({excluded:,} left out, worth {found.effective:,.0f}, largest "
        f"weight {found.largest:,.1f}, without support {found.unsupported:.2%})"
    )
    if found.recorded is not None:
        yield f"    recorded             {_interval(found.recorded, unit)}"
    if found.refused:
        yield f"    no estimate: {found.refused}"
        return
    for label, one in (("ips", found.ips), ("snips", found.snips), ("doubly robust", found.dr), ("difference", found.difference)):
        if one is not None:
            yield f"    {label:<20} {_interval(one, unit)}"


def _interval(one: Estimate, unit: str) -> str:
    boot = f"by bootstrap {one.low_boot:,.6g} to {one.high_boot:,.6g}"
    return f"{one.value:,.6g} {unit}  95 % {one.low:,.6g} to {one.high:,.6g}, {boot}"


def _of(count: int, total: int) -> str:
    return f"{count:>9,}  {count / total:.2%}" if total else f"{count:>9,}"


def _change(before: float, after: float) -> str:
    return f" ({(after - before) / before:+.1%})" if before else ""
