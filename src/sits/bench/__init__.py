"""The benches of the project, by name, and the convention that all of them keep.

A bench is a module with `run(plan) -> Outcome`; one that needs things installed beside the project also has
`setup(plan) -> None`, which may be repeated. It measures, judges by bounds written next to the figure, and hands back a page.
`sits bench NAME` prints the figures, writes the page and exits 0 only when every bounded figure holds.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, cast

import msgspec

from sits.bench.figure import Figure
from sits.bench.page import Page


class Row(msgspec.Struct, frozen=True):
    """One bench of the registry."""

    module: str
    """Import path of a module that is a `Bench`; imported when it is asked for."""
    summary: str


BENCHES: Mapping[str, Row] = {
    "gateway": Row("sits.bench.gateway", "CPU, rate, latency and memory beside the other gateways of the field."),
    "cache": Row("sits.bench.cache", "What the caches find and cost, beside other rules; a staleness storm."),
    "state": Row("sits.bench.state", "Gateways that share state: partitions healed, workers, what a call of each port costs."),
    "crash": Row(
        "sits.bench.crash", "kill -9 at 1,000 random moments: nothing acknowledged lost, beside the naive double write."
    ),
    "faults": Row(
        "sits.bench.faults",
        "Model servers that fail in every way on every endpoint; servers killed, budgets raced, clients gone.",
    ),
    "switch": Row(
        "sits.bench.switch",
        "A family of models replaced under 200 streams, a gateway killed: nothing failed, lost or doubled.",
    ),
    "substitutes": Row(
        "sits.bench.substitutes",
        "Who stands in for whom: intents that a substitute cannot serve; how quick the rungs below a model are.",
    ),
    "complexity": Row("sits.bench.complexity", "How much requests ask: tiers, cost, learning from outcomes."),
    "decision": Row("sits.bench.decision", "What a decision costs: filters and scores, beside a plain scorer and a policy."),
    "intent": Row("sits.bench.intent", "What requests want: accuracy, unknown, two stages, beside semantic-router."),
    "registry": Row("sits.bench.registry", "Services found by what they are for, beside a search of their names."),
    "replay": Row(
        "sits.bench.replay",
        "Recorded requests decided again: the same choices, and by other weights exactly those that must move.",
    ),
    "routing": Row(
        "sits.bench.routing",
        "Who should answer: policies simulated on the same traffic, and before real servers.",
    ),
    "overload": Row(
        "sits.bench.overload",
        "Four times as many requests as the model can take: with classes of service, and first come first served.",
    ),
    "units": Row(
        "sits.bench.units", "Two units of a real model merged and split by real load: how long that takes, what it saves."
    ),
    "soak": Row("sits.bench.soak", "Minutes of mixed load and reloads: memory, threads, tasks and open files stay."),
}


class BenchError(Exception):
    """The bench could not measure; the message says what is missing and the command that mends it."""


class Plan(msgspec.Struct, frozen=True):
    """How a bench is to be run."""

    say: Callable[[str], None]
    """Told one line of progress at a time."""
    cache: Path
    """Where what a bench installs for itself lives, one folder a bench."""
    quick: bool = False
    """Short rounds that prove the harness; the figures are not for quoting."""
    only: tuple[str, ...] = ()
    """Parts to run (what a part is, the bench says); all when empty."""


class Outcome(msgspec.Struct, frozen=True):
    """What a bench hands back."""

    figures: list[Figure]
    page: Page


class Bench(Protocol):
    """What a module of the registry offers."""

    def run(self, plan: Plan) -> Outcome:
        """Measure.

        Raises:
            BenchError: something it needs is not there.
        """


def find(name: str) -> Bench:
    """The bench of that name.

    Raises:
        BenchError: there is none; the message lists those that exist.
    """
    row = BENCHES.get(name)
    if row is None:
        raise BenchError(f"no bench is called {name!r}; there are: {', '.join(BENCHES)}")
    return cast("Bench", importlib.import_module(row.module))


def prepare(name: str, plan: Plan) -> None:
    """Install what the bench needs beside the project; does nothing for one that needs nothing.

    Raises:
        BenchError: it could not be installed.
    """
    setup = getattr(find(name), "setup", None)
    if setup is not None:
        setup(plan)
