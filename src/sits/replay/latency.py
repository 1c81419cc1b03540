"""How long an answer would have taken elsewhere: a line for each target, fitted to the answers in the trace.

    milliseconds = a + b * tokens of the answer + c * requests under way there when it was chosen + d * bytes of the prompt

Simple on purpose, and it says itself how good it is: by cross-validation on the same trace, how far off it is beside what is far
off by always saying the mean. It does not know what moving requests does to the load of others: the simulator (`sits bench
routing`) does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import msgspec

from sits.observe.trace_row import Row, outcome
from sits.routing.estimate.regression import FOLDS, Regression

FEWEST = 20
"""Answers of a target, below which nothing is said of it."""
NEW = -1
"""The fold of a row that is not in the trace's own folds: expected by all rows."""


class Fit(msgspec.Struct, frozen=True):
    """How good the line of a target is."""

    answers: int
    off_ms: float
    """How far off it is for an answer that it was not fitted to, mean of the absolute."""
    off_mean_ms: float
    """How far off the mean of that target is."""

    @property
    def better(self) -> float:
        """Share of the error of the mean that it saves."""
        return 1.0 - self.off_ms / self.off_mean_ms if self.off_mean_ms > 0.0 else 0.0


class Latencies:
    """The lines. `add` all rows, then `close`."""

    def __init__(self) -> None:
        self._regression = Regression(3)
        self._seen: dict[str, list[tuple[tuple[float, ...], float, int]]] = {}
        self._left: dict[str, list[float]] = {}
        self.fits: dict[str, Fit] = {}
        self._count = 0

    def add(self, row: Row) -> None:
        """A row of the trace; counts where its answer came whole, from the target that was asked first."""
        found = outcome(row)
        features = features_of(row, found.asked) if found.ok and len(row.record.attempts) == 1 else None
        if features is None or found.latency_ms is None:
            return
        fold = self._count % FOLDS
        self._count += 1
        self._regression.add(found.asked, features, found.latency_ms, fold)
        self._seen.setdefault(found.asked, []).append((features, found.latency_ms, fold))

    def close(self) -> None:
        """Judge the lines; what was kept of the rows goes."""
        for name, rows in self._seen.items():
            mean = sum(took for _, took, _ in rows) / len(rows)
            left = [took - self._regression.expected(name, features, fold) for features, took, fold in rows]
            self._left[name] = sorted(left)
            off = sum(abs(one) for one in left) / len(left)
            self.fits[name] = Fit(len(rows), off, sum(abs(took - mean) for _, took, _ in rows) / len(rows))
        self._seen.clear()

    def expected(self, row: Row, target: str) -> float | None:
        """Milliseconds, on average; None where too little is known."""
        fit = self.fits.get(target)
        features = features_of(row, target)
        if fit is None or fit.answers < FEWEST or features is None:
            return None
        return max(0.0, self._regression.expected(target, features, NEW))

    def unknown(self, target: str) -> str:
        """Why `expected` is None for a target."""
        fit = self.fits.get(target)
        answers = fit.answers if fit is not None else 0
        if answers >= FEWEST:
            return f"what a prediction for {target} looks at was not recorded"
        recorded = "no answers were" if not answers else f"{answers} answer was" if answers == 1 else f"{answers} answers were"
        return f"nothing can be predicted for {target}, of which {recorded} recorded: {FEWEST} are needed"

    def likely(self, row: Row, target: str, place: float) -> float | None:
        """The same with the error of the line at `place` of its errors, 0 to 1: over many rows and places alike these are spread
        as answers are, so that percentiles may be taken of them."""
        expected = self.expected(row, target)
        if expected is None:
            return None
        left = self._left[target]
        return max(0.0, expected + left[min(len(left) - 1, int(place * len(left)))])


def features_of(row: Row, target: str) -> tuple[float, ...] | None:
    """What tells how long an answer of this target takes; None where it is not known."""
    record, state = row.record, row.states.get(target)
    if record.usage is None or record.usage.output is None or state is None:
        return None
    return (float(record.usage.output), float(state[0] + state[1]), record.bytes_in / 1000.0)


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest rank of `values`, which are sorted and not empty: so many of them are no larger."""
    # 0.95 * 20 may be a little more than 19.
    return values[max(0, ceil(share * len(values) - 1e-9) - 1)]
