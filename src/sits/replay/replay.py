"""A whole trace against a configuration, in two passes: what answers took is learned first, then every row is decided on again.

A trace may hold several configurations, one after the other; each row is compared with the one that it was recorded on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from sits.observe.trace_row import Bad, Feedback, Gap, Head, Row, TraceError, outcome, read, snapshot_of
from sits.replay.chances import chances
from sits.replay.latency import Latencies
from sits.replay.prices import NANO, Prices
from sits.replay.replayer import Redecision, Replayer
from sits.replay.report import Adding, Report
from sits.replay.unusable import unusable
from sits.resources.snapshot import Snapshot
from sits.routing.estimate import Estimated, Logged, estimated

Of = Literal["latency", "cost", "feedback"]
MOST_LOGGED = 200_000
"""Outcomes that estimates are made of; of a longer trace, the first ones."""


class Survey(msgspec.Struct):
    """What the first pass found."""

    rows: int = 0
    bad: list[Bad] = []
    """The first few lines that cannot be read."""
    bad_lines: int = 0
    """So many there are."""
    missing: int = 0
    """Requests that the gateway could not record, as far as the files say."""
    heads: dict[str, Head] = {}
    feedback: dict[tuple[str, str | None], float] = {}
    """By id and key of the request."""


MOST_BAD = 20


def survey(path: Path, latencies: Latencies, limit: int | None = None) -> Survey:
    """Read it once.

    Raises:
        TraceError: it is no trace, or one of another version.
    """
    found = Survey()
    for line in read(path):
        if isinstance(line, Row):
            if limit is None or found.rows < limit:
                found.rows += 1
                latencies.add(line)
        elif isinstance(line, Head):
            found.heads.setdefault(line.snapshot, line)
        elif isinstance(line, Feedback):
            found.feedback[line.request_id, line.key] = line.score
        elif isinstance(line, Gap):
            found.missing += line.missing
        else:
            found.bad_lines += 1
            if len(found.bad) < MOST_BAD:
                found.bad.append(line)
    latencies.close()
    return found


class Comparison:
    """The rows of one recorded configuration, against another."""

    def __init__(self, head: Head, other: Snapshot | None, latencies: Latencies) -> None:
        """Raises:
        TraceError: the recorded configuration cannot be used by this version.
        """
        self.recorded = snapshot_of(head)
        self.snapshot = other if other is not None else self.recorded
        try:
            self._as_it_was = Replayer(self.recorded, self.recorded, head.share)
        except ValueError as error:  # A setting of a filter or score.
            raise TraceError(f"the configuration in the trace cannot be used: {error}") from error
        self.replayer = Replayer(other, self.recorded, head.share) if other is not None else self._as_it_was
        self.adding = Adding(self.recorded, self.snapshot, latencies, head.share)
        self._prices = Prices(self.recorded)
        self.unpriced: set[str] = set()
        """Models that answered or would have a chance, and of which no price is declared."""

    def logged(self, row: Row, made: Redecision, worth: float | None) -> Logged | None:
        """The row for an estimate; None where it tells nothing of the choice."""
        found = outcome(row)
        if worth is None or not found.ok or not made.plan or found.asked != row.first:
            return None
        wanted = chances(self.replayer, row, made)
        before = self._as_it_was.again(row)
        if before.differs or not before.plan:
            return None
        had = chances(self._as_it_was, row, before)
        names = {*wanted, *had}
        # What came of the one that was asked is known.
        self.unpriced.update(name for name in wanted if wanted[name] and name != row.first and not self._prices.known(name))
        features = {name: _features(row, name) for name in names}
        return Logged(row.first, worth, had, wanted, features)

    def dollars(self, row: Row) -> float | None:
        """What a row cost: as it was billed, else by the declared prices; None where nobody knows."""
        if row.dollars is not None:
            return row.dollars
        target = row.record.target
        if target and not self._prices.known(target):
            self.unpriced.add(target)
        nano = self._prices.of(target, row.record.usage)
        return nano * NANO if nano is not None else None

    def estimate(self, of: Of, rows: list[Logged]) -> Estimated:
        """What can be said of an outcome: of costs nothing, where somebody has no price, for what is known would be taken for
        all."""
        found = estimated(rows)
        if of == "cost" and self.unpriced:
            why = f"no price is declared for {' and '.join(sorted(self.unpriced))} in the recorded configuration"
            found = Estimated(found.rows, found.unsupported, refused=why)
        return found


def replay(
    path: Path,
    other: Snapshot | None = None,
    *,
    outcomes: tuple[Of, ...] = (),
    limit: int | None = None,
    said: Callable[[int, int], None] | None = None,
    heard: Callable[[Survey], None] | None = None,
) -> Iterator[tuple[str, Report]]:
    """The report of each recorded configuration, with its hash. Without `other` each is held against itself. `said` hears of rows
    done and of all, `heard` once of the trace as a whole: what is the matter with it is no business of one configuration.

    Raises:
        TraceError: it is no trace, one of another version, or of a configuration that this version cannot use.
    """
    latencies = Latencies()
    found = survey(path, latencies, limit)
    if heard is not None:
        heard(found)
    if not found.rows:
        raise TraceError(f"{path} holds no requests")
    comparisons: dict[str, Comparison] = {}
    logged: dict[str, dict[Of, list[Logged]]] = {}
    excluded: dict[str, dict[str, int]] = {}
    done = 0
    for line in read(path):
        if not isinstance(line, Row):
            continue
        if done >= found.rows:
            break
        done += 1
        name = line.record.snapshot
        comparison = comparisons.get(name)
        if comparison is None:
            head = found.heads.get(name)
            if head is None:
                raise TraceError(f"{path} holds requests of configuration {name[:12]}, and not that configuration")
            try:
                comparison = comparisons[name] = Comparison(head, other, latencies)
            except TraceError as error:
                raise unusable(path, head, error) from error
        made = comparison.replayer.again(line)
        comparison.adding.add(line, made)
        for of in outcomes:
            kept = logged.setdefault(name, {}).setdefault(of, [])
            row = comparison.logged(line, made, _worth(of, comparison, line, found.feedback)) if len(kept) < MOST_LOGGED else None
            if row is None:
                left = excluded.setdefault(name, {})
                left[of] = left.get(of, 0) + 1
            else:
                kept.append(row)
        if said is not None:
            said(done, found.rows)
    for name, comparison in comparisons.items():
        yield (
            name,
            msgspec.structs.replace(
                comparison.adding.report(),
                estimates={of: comparison.estimate(of, rows) for of, rows in logged.get(name, {}).items()},
                excluded={of: excluded.get(name, {}).get(of, 0) for of in outcomes},
            ),
        )


def _worth(of: Of, comparison: Comparison, row: Row, feedback: Mapping[tuple[str, str | None], float]) -> float | None:
    if of == "latency":
        return outcome(row).latency_ms
    if of == "cost":
        return comparison.dollars(row)
    own = row.record.request_id, row.record.key
    return feedback.get(own, feedback.get((row.record.request_id, None)))


def _features(row: Row, target: str) -> tuple[float, ...]:
    """What was known beforehand: how long the prompt is, and how many are under way there."""
    state = row.states.get(target)
    return (row.record.bytes_in / 1000.0, float(state[0] + state[1]) if state is not None else 0.0)
