"""Counting what entries come to, without looking at more than is counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from sits.state.ledger.entry import Names, Use, micros

HOUR = 3_600_000_000
DAY = 24 * HOUR
"""In microseconds, of UTC."""
MOST = (1 << 62) - 1
"""Sums stop here, 4.6 billion dollars: two of them still fit the 64 bits of a database."""
PARTY = ("key", "team", "route", "model", "provider", "operation", "outcome")
"""What stored sums are kept by. All of it is bounded by what is configured; `requested`, a client's own text, is not."""
FIGURES = (
    "requests",
    "attempts",
    "errors",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "cost",
    "estimated",
    "unpriced",
    "latency_us",
)
"""What is summed up, in the order of `Sums`."""
NOTHING = (0,) * len(FIGURES)
K = TypeVar("K")
Party = tuple[str, ...]
Totals = dict[tuple[int, Party], list[int]]
"""By hour and party."""


def tally(uses: Iterable[Use]) -> list[int]:
    """How many they are and what they used: entries, tokens (input, output, cached, of reasoning), cost, unpriced, latency."""
    entries = given = made = cached = thought = cost = unpriced = latency = 0
    for use in uses:
        entries += 1
        given += use.input_tokens or 0
        made += use.output_tokens or 0
        cached += use.cached_tokens or 0
        thought += use.reasoning_tokens or 0
        price = use.cost
        if price is None:
            unpriced += 1
        else:
            cost += price
        latency += int(use.latency_ms * 1e3)
    return [entries, given, made, cached, thought, cost, unpriced, latency]


def figures(names: Names, counted: Sequence[int]) -> tuple[int, ...]:
    """What was counted for these names, as `FIGURES`."""
    entries, given, made, cached, thought, cost, unpriced, latency = counted
    return (
        entries if names.final else 0,
        # Who was refused before, or answered from a cache or a lower rung, made nobody's attempt.
        entries if names.attempt and names.model else 0,
        0 if names.outcome == "ok" else entries,
        given,
        made,
        cached,
        thought,
        cost,
        entries if names.estimated else 0,
        unpriced,
        latency,
    )


def by_names(names: Sequence[Names], uses: Iterable[Use]) -> list[list[Use]]:
    """The uses that have each of the names."""
    sorted_out: list[list[Use]] = [[] for _ in names]
    for use in uses:
        sorted_out[use.names].append(use)
    return sorted_out


def party_of(names: Names) -> Party:
    return (names.key, names.team, names.route, names.model, names.provider, names.operation, names.outcome)


def hour_of(use: Use) -> int:
    return micros(use.time) // HOUR


def count_in(totals: dict[K, list[int]], key: K, more: Sequence[int]) -> None:
    """Add to the sums of a group."""
    held = totals.get(key)
    if held is None:
        totals[key] = list(more)
    else:
        totals[key] = [a + b for a, b in zip(held, more, strict=True)]


def hourly(names: Sequence[Names], groups: Sequence[list[Use]], tallies: Sequence[Sequence[int]], one: int | None) -> Totals:
    """The sums by hour and party of uses that are sorted by names and tallied; `one` is their hour when all have the same."""
    totals: Totals = {}
    for who, group, counted in zip(names, groups, tallies, strict=True):
        party = party_of(who)
        if one is not None:
            count_in(totals, (one, party), figures(who, counted))
            continue
        hours: dict[int, list[Use]] = {}
        for use in group:
            hours.setdefault(hour_of(use), []).append(use)
        for hour, part in hours.items():
            count_in(totals, (hour, party), figures(who, tally(part)))
    return totals


def spans(uses: Iterable[Use], first: int, last: int) -> list[tuple[int, int, int]]:
    """Each hour that has some of the uses, with the first and the last moment of them; all lie between `first` and `last`."""
    if first // HOUR == last // HOUR:
        return [(first // HOUR, first, last)]
    moments: dict[int, list[int]] = {}
    for use in uses:
        moment = micros(use.time)
        moments.setdefault(moment // HOUR, []).append(moment)
    return [(hour, min(part), max(part)) for hour, part in sorted(moments.items())]
