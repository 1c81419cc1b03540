"""Estimates of the mean outcome under another way of choosing, from outcomes under this one.

    ips     outcomes weighted by how much likelier the other way makes what was done (Horvitz, Thompson, 1952): right on average
    snips   the same by the sum of the weights (Hajek, 1971): a little off, far less scattered
    dr      what a regression expects of the other way, mended by the weighted errors of it on what was done (Dudik, Langford, Li,
            "Doubly Robust Policy Evaluation and Learning", ICML 2011): right when either part is

All of them need that whatever the other way does was done now and then. Where it was not, nothing is estimated.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import msgspec

from sits.routing.estimate.interval import Estimate, Intervals
from sits.routing.estimate.regression import FOLDS, Regression

ALLOWED = 0.01
"""So much of what the other way would do may have had no chance of being done; beyond, nothing is said."""
FEWEST = 50
"""Rows, and requests that the weights are worth (effective sample size), below which nothing is said."""


class Logged(msgspec.Struct, frozen=True):
    """A decision with its outcome."""

    action: str
    outcome: float
    chances: Mapping[str, float]
    """What each had of being chosen."""
    wanted: Mapping[str, float]
    """What each has under the other way; adds up to 1."""
    features: Mapping[str, Sequence[float]] = {}
    """What was known beforehand that tells of the outcome, for each; the same number for all. Of one without, nothing."""


class Estimated(msgspec.Struct, frozen=True):
    """What can be said."""

    rows: int
    unsupported: float
    """Share of what the other way would do that had no chance of being done."""
    effective: float = 0.0
    """Rows that the weights are worth (Kish, 1965)."""
    largest: float = 0.0
    """The largest weight."""
    recorded: Estimate | None = None
    """The mean outcome of what was done."""
    ips: Estimate | None = None
    snips: Estimate | None = None
    dr: Estimate | None = None
    difference: Estimate | None = None
    """The doubly robust estimate less what was recorded."""
    refused: str = ""
    """Why nothing is estimated."""


def estimated(rows: Sequence[Logged], seed: int = 1) -> Estimated:
    """The estimates; the same rows and seed give the same ones."""
    count = len(rows)
    if not count:
        return Estimated(0, 0.0, refused="there is no outcome")
    unsupported = sum(sum(chance for action, chance in row.wanted.items() if not row.chances.get(action)) for row in rows) / count
    weights = [_weight(row) for row in rows]
    total, squares = sum(weights), sum(one * one for one in weights)
    effective = total * total / squares if squares else 0.0
    intervals = Intervals(count, seed)
    recorded = intervals.mean([row.outcome for row in rows])
    found = Estimated(count, unsupported, effective, max(weights), recorded)
    refused = _refusal(count, unsupported, effective)
    if refused:
        return msgspec.structs.replace(found, refused=refused)
    weighted = [weight * row.outcome for weight, row in zip(weights, rows, strict=True)]
    doubly = _doubly(rows, weights, seed)
    return msgspec.structs.replace(
        found,
        ips=intervals.mean(weighted),
        snips=intervals.ratio(weighted, weights),
        dr=intervals.mean(doubly),
        difference=intervals.mean([one - row.outcome for one, row in zip(doubly, rows, strict=True)]),
    )


def _weight(row: Logged) -> float:
    chance = row.chances.get(row.action, 0.0)
    # What was done had a chance; a zero is a recorded choice that could not be made again.
    return row.wanted.get(row.action, 0.0) / chance if chance > 0.0 else 0.0


def _refusal(count: int, unsupported: float, effective: float) -> str:
    if count < FEWEST:
        return f"{count} outcomes are too few to tell; {FEWEST} at the least"
    if unsupported > ALLOWED:
        return (
            f"{unsupported:.1%} of what the other configuration would do had no chance of being done when this was recorded; "
            "let the route explore (`explore`), record, and try again"
        )
    if effective < FEWEST:
        return f"the {count} outcomes are worth {effective:.0f} under the other configuration; {FEWEST} at the least"
    return ""


def _doubly(rows: Sequence[Logged], weights: Sequence[float], seed: int) -> list[float]:
    size = len(next(iter(rows[0].features.values()), ()))
    nothing = (0.0,) * size
    regression = Regression(size)
    dice = random.Random(seed)  # noqa: S311 - no secrets
    folds = [index % FOLDS for index in range(len(rows))]
    dice.shuffle(folds)
    for row, fold in zip(rows, folds, strict=True):
        regression.add(row.action, row.features.get(row.action, nothing), row.outcome, fold)
    terms = []
    for row, weight, fold in zip(rows, weights, folds, strict=True):
        expected = {action: regression.expected(action, row.features.get(action, nothing), fold) for action in row.wanted}
        direct = sum(chance * expected[action] for action, chance in row.wanted.items())
        left = row.outcome - expected[row.action] if weight else 0.0
        terms.append(direct + weight * left)
    return terms
