"""`sits replay TRACE`: recorded traffic decided on again, on its own configuration or on another one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from sits.cli.validate import line as problem_line
from sits.cli.validate import uses
from sits.cli.validate_plugins import folder_problems, plugin_problems
from sits.observe.trace_row import TraceError
from sits.observe.wording import SAME, UNKNOWN, amount, change, dollars, gap, milliseconds, share
from sits.replay.latency import Fit
from sits.replay.replay import Of, Survey, replay
from sits.replay.report import FEWEST, Promise, Report
from sits.resources.problem import ConfigError
from sits.resources.reading import read
from sits.resources.snapshot import Snapshot, compile_reading
from sits.routing.estimate import Estimate, Estimated
from sits.routing.scheduling.judging import use_faults

MOST_SHOWN = 3
"""Requests that are named of those that would be refused with one code; more of them are in the JSON."""
UNITS = {"latency": "ms", "cost": "$", "feedback": ""}


@click.command(name="replay")
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--config", type=click.Path(exists=True, path_type=Path), help="The other configuration, a file or a folder.")
@click.option(
    "--outcome", "outcomes", type=click.Choice(get_args(Of)), multiple=True, help="Estimate this under it, with intervals."
)
@click.option("--limit", type=click.IntRange(min=1), help="The first so many requests only.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with an entry for each recorded configuration.")
@click.option(
    "--fail-on-worse",
    is_flag=True,
    help="Exit 1 where requests would be refused that were not, or more promises are broken than before.",
)
def replay_(
    trace: Path, config: Path | None, outcomes: tuple[Of, ...], limit: int | None, as_json: bool, fail_on_worse: bool
) -> None:
    """Decide again on the requests in TRACE, a file or a folder.

    Without --config the choices are made on the configuration in the trace itself, and each must come out as it was: exit 1 where
    one does not. With --config what differs is told: who is asked, costs, predicted latency, promises. A configuration that a
    gateway would refuse is refused here too, and one without a Model.
    """
    if outcomes and config is None:
        raise click.UsageError("--outcome estimates what another configuration would bring: give --config")
    other = _other(config) if config is not None else None
    surveys: list[Survey] = []
    try:
        with _progress(as_json) as said:
            reports = list(replay(trace, other, outcomes=outcomes, limit=limit, said=said, heard=surveys.append))
    except TraceError as error:
        # Lines that cannot be read are often why.
        for line in (line for found in surveys for line in heard(trace, found)):
            click.echo(line, err=True)
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(as_builtins(trace, surveys[0], reports), ensure_ascii=False))
    else:
        for name, report in reports:
            click.echo("\n".join(told(name, report, other)))
        for line in heard(trace, surveys[0]):
            click.echo(line)
    if any((report.moved or report.undecidable) if other is None else fail_on_worse and report.worse for _, report in reports):
        raise click.exceptions.Exit(1)


def as_builtins(trace: Path, found: Survey, reports: Iterable[tuple[str, Report]]) -> dict[str, Any]:
    """All of it: what is of the trace once, and an entry for each recorded configuration."""
    return {
        "trace": str(trace),
        "rows": found.rows,
        "missing": found.missing,
        "bad_lines": found.bad_lines,
        "bad": [msgspec.to_builtins(bad) for bad in found.bad],
        "configurations": [
            {
                "recorded": name,
                **msgspec.to_builtins(report),
                "promises": [_promise(one) for one in report.promises],
                "worse": report.worse,
                "worse_because": report.worse_because,
                "doubtful": report.doubtful,
            }
            for name, report in reports
        ],
    }


def _promise(one: Promise) -> dict[str, Any]:
    return {**msgspec.to_builtins(one), "worse": one.worse, "doubtful": one.doubtful}


def _other(path: Path) -> Snapshot:
    """The other configuration. What a gateway would refuse is refused here too, a filter or a score that nobody has among it, and
    one with nobody to ask, by which everything would be refused: a figure for it is worth nothing. What a gateway takes and
    `sits validate` refuses, a plugin that is not there, is a warning."""
    reading = read(path)
    try:
        found = compile_reading(reading, 1, judge=uses)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(problem_line(problem), err=True)
        raise click.ClickException(f"{path} cannot be used") from error
    if not found.names:
        what = "declares no Model" if reading.declared else "holds no resource"
        raise click.ClickException(f"{path} {what}: a gateway with it would refuse every request")
    # Plugins are loaded, in a process of their own, only where somebody asks for what does not come with SITS.
    if any(use_faults(found, perhaps=False)):
        for problem in [*folder_problems(reading)] or plugin_problems(path):
            click.echo(problem_line(problem, warning=True), err=True)
    return found


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


def heard(trace: Path, found: Survey) -> Iterator[str]:
    """What is the matter with the trace as a whole, in lines; none where it is sound."""
    if found.missing:
        yield f"{trace}: {_requests(found.missing)} more could not be recorded"
    if found.bad_lines:
        yield f"{trace}: {found.bad_lines:,} line{'s' if found.bad_lines > 1 else ''} cannot be read"
        yield from (f"  {bad.file}:{bad.number}: {bad.why}" for bad in found.bad)
        if found.bad_lines > len(found.bad):
            yield f"  and {found.bad_lines - len(found.bad):,} more"


def told(name: str, report: Report, other: Snapshot | None) -> Iterator[str]:
    """The report in lines."""
    where = "the same configuration"
    if other is not None:
        where = f"configuration {other.hash[:12]}{', the same one' if other.hash == name else ''}"
    part = f", {share(report.share)} of its traffic," if report.share < 1.0 else ","
    yield f"{_requests(report.rows)} recorded on {name[:12]}{part} decided on again by {where}"
    yield f"  as they were  {_of(report.reproduced, report.rows)}"
    if report.behind:
        yield f"                {report.behind:,} of these with another order behind the first choice"
    yield f"  moved         {_of(report.moved, report.rows)}"
    if report.refused or report.answered:
        mark = "  WORSE" if report.refused and other is not None else ""
        yield f"  would be refused {report.refused:,}, would no longer be refused {report.answered:,}{mark}"
        yield from _refused(report)
    for why, count in report.undecidable.items():
        yield f"  undecidable   {_of(count, report.rows)}: {why}"
    for why, count in report.notes.items():
        yield f"  assumed of {count:,}: {why}"
    if report.moves:
        yield f"  {'route':<24} {'from':<20} {'to':<20} {'requests':>9}  share of the route"
        for move in report.moves:
            who = f"{move.of or 'refused':<20} {move.to or 'refused':<20}"
            yield f"  {move.route:<24} {who} {move.count:>9,}  {share(move.share)}"
    if other is None:
        yield from (f"  {request}: {differs}" for request, differs in report.differing)
        return
    yield from _cost(report)
    yield from _latency(report)
    yield from _promises(report.promises)
    for of, estimated in report.estimates.items():
        yield from _estimated(of, estimated, report.excluded.get(of, 0))


def _refused(report: Report) -> Iterator[str]:
    """With which codes, and the first few requests of each."""
    for code, count in report.refused_with.items():
        those = [request for request, own in report.refused_first if own == code][:MOST_SHOWN]
        more = f" and {count - len(those):,} more" if count > len(those) else ""
        yield f"    {code} {count:,}: {', '.join(those)}{more}" if those else f"    {code} {count:,}"


def _cost(report: Report) -> Iterator[str]:
    """By declared prices: of all requests, of some, or of none; and what is missing."""
    before, after = report.cost_before, report.cost_after
    sums = f"{dollars(before)} -> {dollars(after)} ({change(before, after)})"
    yield from _partly("cost", sums, (report.priced, report.priced_elsewhere), report, report.unpriced)


def _latency(report: Report) -> Iterator[str]:
    before, after = report.latency_before, report.latency_after
    figures = f"mean {milliseconds(before)} -> {milliseconds(after)} ms ({change(before, after)})"
    if report.p95_before is not None and report.p95_after is not None:
        p95 = f"{milliseconds(report.p95_before)} -> {milliseconds(report.p95_after)} ms"
        figures += f", p95 {p95} ({change(report.p95_before, report.p95_after)})"
    yield from _partly("latency", figures, (report.timed, report.timed_elsewhere), report, report.untimed)
    for name, count in report.predicted.items():
        yield predicted(name, count, report.fits[name])


def predicted(name: str, count: int, fit: Fit) -> str:
    """How good the predictions for a model are."""
    much = change(fit.off_mean_ms, fit.off_ms)
    than = {SAME: "as far as its mean is", UNKNOWN: UNKNOWN}.get(much, f"{much} than its mean is")
    off = f"off by {milliseconds(fit.off_ms)} ms on average, {than} ({fit.answers:,} answers)"
    return f"    predicted for {count:,} that would go to {name}: {off}"


def _partly(what: str, figures: str, known: tuple[int, int], report: Report, unknown: Mapping[str, int]) -> Iterator[str]:
    """Figures over those requests of which they are known (so many, so many of these moved elsewhere): over how many that is, and
    why not over all."""
    count, moved = known
    if count == report.rows:
        yield f"  {what:<13} {figures}, of all {_requests(report.rows)}"
        return
    if not count:
        yield f"  {what:<13} not known"
    elif report.elsewhere and not moved:
        which = (
            "the one that moved elsewhere cannot"
            if report.elsewhere == 1
            else f"none of the {report.elsewhere:,} that moved elsewhere can"
        )
        yield f"  {what:<13} not known: {which} be told"
    else:
        among = f", {moved:,} of the {report.elsewhere:,} that moved elsewhere among them" if report.elsewhere else ""
        yield f"  {what:<13} not known of all; of {count:,} of {_requests(report.rows)}{among}: {figures}"
    for why, left in unknown.items():
        yield f"    left out {left:,}: {why}"


def _promises(promises: tuple[Promise, ...]) -> Iterator[str]:
    for one in promises:
        if one.broken_before or one.broken_after or one.doubtful:
            mark = "  WORSE" if one.worse else "  whether that is worse cannot be told" if one.perhaps_worse else ""
            yield f"  promise       {one.what} of {one.subject}: {' -> '.join(sides(one))}{mark}"


def sides(one: Promise) -> tuple[str, str]:
    """How a promise is kept, before and after."""
    return (
        _value(one, one.limit_before, one.before, one.known_before, one.unknown_before),
        _value(one, one.limit_after, one.after, one.known_after, one.unknown_after),
    )


def _value(one: Promise, limit: float | None, value: float | None, known: int, unknown: int) -> str:
    """One side of a promise."""
    if limit is None:
        return "nothing promised"
    if not known and not unknown:
        return "nobody asked"
    others = f", not known of {unknown:,} more" if unknown else ""
    if value is None or not known:
        few = f"; a p95 needs {FEWEST}" if one.what == "latency" and 0 < known < FEWEST else ""
        return f"not known (known of {known:,} of {_requests(known + unknown)}{few})"
    if one.what == "latency":
        return f"p95 {milliseconds(value)} of {milliseconds(limit)} ms {'broken' if value > limit else 'kept'}{others}"
    if not value and unknown:
        return f"none of {known:,} broken{others}"
    return f"{f'broken by {value:,.0f} of {_requests(known)}' if value else 'kept'}{others}"


def _estimated(of: str, found: Estimated, excluded: int) -> Iterator[str]:
    unit, what = UNITS[of], f"{of} under it{' at the recorded prices' if of == 'cost' else ''}"
    outcomes = f"{found.rows:,} outcome{'' if found.rows == 1 else 's'}"
    if found.refused:
        yield f"  {what}: no estimate from {outcomes} ({excluded:,} left out): {found.refused}"
    else:
        yield (
            f"  {what}, estimated from {outcomes} ({excluded:,} left out, worth {found.effective:,.0f}, "
            f"largest weight {found.largest:,.1f}, without support {share(found.unsupported)})"
        )
    if found.recorded is not None:
        yield f"    recorded             {_interval(found.recorded, unit, amount)}"
    for label, one in (("ips", found.ips), ("snips", found.snips), ("doubly robust", found.dr)):
        if one is not None:
            yield f"    {label:<20} {_interval(one, unit, amount)}"
    if found.difference is not None:
        yield f"    {'difference':<20} {_interval(found.difference, unit, gap)}"


def _interval(one: Estimate, unit: str, said: Callable[[float, str], str]) -> str:
    low, high, low_boot, high_boot = (said(value, unit) for value in (one.low, one.high, one.low_boot, one.high_boot))
    return f"{said(one.value, unit)}, 95% {low} to {high}, by bootstrap {low_boot} to {high_boot}"


def _of(count: int, total: int) -> str:
    return f"{count:>9,}  {share(count / total)}" if total else f"{count:>9,}"


def _requests(count: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'}"
