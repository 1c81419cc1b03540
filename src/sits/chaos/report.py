"""What came of experiments: verdicts with the figures behind them, as lines, JSON and a page."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from sits import __version__
from sits.resources.experiments import Comparison, FaultSpec

Verdict = Literal["holds", "fails", "aborted", "not run"]
COMPARE: dict[Comparison, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b + 1e-9,
    "==": lambda a, b: abs(a - b) <= 1e-9,
    ">=": lambda a, b: a >= b - 1e-9,
    ">": lambda a, b: a > b,
}


class Judged(msgspec.Struct, frozen=True):
    """A probe and what was measured."""

    part: Literal["steady before", "steady after", "verdict", "fault"]
    name: str
    query: str
    is_: Comparison = msgspec.field(name="is")
    value: float
    measured: float | None
    holds: bool


class Report(msgspec.Struct, frozen=True):
    """What came of an experiment."""

    experiment: str
    claim: str
    verdict: Verdict
    why: str = ""
    """For a run without a verdict, or what was not as declared."""
    faults: tuple[str, ...] = ()
    probes: tuple[Judged, ...] = ()
    requests: int = 0
    outcomes: dict[str, int] = {}
    recovery_seconds: float | None = None
    seconds: float = 0.0
    seed: int = 0


def told(judged: Judged) -> str:
    """A probe in a line: what was asked, what was wanted, what was measured."""
    measured = "no value" if judged.measured is None else f"{judged.measured:.4g}"
    name = "" if judged.name == judged.query else f"{judged.name}: "
    return f"{name}{judged.query} {judged.is_} {judged.value:g} (measured {measured})"


def described(fault: FaultSpec) -> str:
    """A fault in a few words."""
    where = f" of {fault.target}" if fault.target is not None else ""
    by = "" if fault.at == "proxy" else f" at the {fault.at}"
    luck = "" if fault.probability >= 1 else f" ({fault.probability:.0%})"
    return f"{fault.type}{where}{by}{luck}"


def exit_code(reports: Sequence[Report]) -> int:
    """0: all verdicts hold; 1: one fails; 3: none fails, but one was aborted or not run."""
    verdicts = {report.verdict for report in reports}
    return 1 if "fails" in verdicts else 3 if verdicts & {"aborted", "not run"} else 0


def page(reports: Sequence[Report], when: str) -> str:
    """All of a run as a page."""
    held = sum(report.verdict == "holds" for report in reports)
    types = sorted({fault.split()[0] for report in reports for fault in report.faults})
    lines = [
        "# Chaos report",
        "",
        "Written by `sits chaos run chaos --report docs/chaos-report.md` (`make chaos`); not edited by hand. What an experiment",
        "is, and how to write one: [chaos.md](chaos.md).",
        "",
        f"{len(reports)} experiments, {held} hold; {len(types)} types of fault: {', '.join(types)}.",
        "",
        f"SITS {__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}, {when}. Loads",
        "are small and everything shares the machine, so times are upper bounds; counts are what matters.",
        "",
        "| experiment | faults | requests | not complete | recovered after | verdict |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for report in reports:
        failed = report.requests - report.outcomes.get("complete", 0)
        recovered = "" if report.recovery_seconds is None else f"{report.recovery_seconds:.2f} s"
        lines.append(
            f"| [{report.experiment}](#{report.experiment}) | {', '.join(report.faults)} | {report.requests} | {failed} "
            f"| {recovered} | {report.verdict} |"
        )
    for report in reports:
        lines += ["", f"## {report.experiment}", "", f"{report.claim} **{report.verdict}**", ""]
        if report.why:
            lines += [report.why, ""]
        if report.outcomes:
            ends = ", ".join(f"{count} {name}" for name, count in sorted(report.outcomes.items()))
            lines += [f"How requests ended: {ends}.", ""]
        if report.probes:
            lines += ["| part | what | wanted | measured | |", "| --- | --- | --- | --- | --- |"]
        for one in report.probes:
            shown = f"`{one.query}`" if one.name == one.query else f"{one.name}: `{one.query}`"
            measured = "no value" if one.measured is None else f"{one.measured:.4g}"
            mark = "holds" if one.holds else "**fails**"
            escaped = shown.replace("|", "\\|")
            lines.append(f"| {one.part} | {escaped} | {one.is_} {one.value:g} | {measured} | {mark} |")
    return "\n".join(lines) + "\n"
