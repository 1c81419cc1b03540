"""Long prompts: queries of the labelled set before, behind and within texts of some 2,000 characters - a contract, a program, a
Chinese article - as people paste them."""

from __future__ import annotations

import importlib.resources
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from sits.bench.figure import Figure, bounded, measured
from sits.routing.intent.cut import cut
from sits.state.intent import trial
from sits.state.intent.labelled import UNKNOWN

if TYPE_CHECKING:
    from sits.routing.intent.intent import Intent
    from sits.state.cache.semantic.embedder import Embedder
    from sits.state.intent.embedders import Deep
    from sits.state.intent.labelled import Query

TEXTS = ("contract", "code", "article")
APART = "\n\n"
EVERY = 5
"""Of the queries every fifth is asked in each text: all of them would take minutes."""
BEFORE = 12
"""Prompts that are read as they were before: a second each."""
ACCURACY, P50, P99 = ">= 0.9", "<= 40", "<= 100"


def prompts(queries: Sequence[Query], where: str) -> list[Query]:
    """Each query in each of the texts, at the `begin`, the `end` or in the `middle`."""
    found = []
    for name in TEXTS:
        text = importlib.resources.files("sits.bench").joinpath(f"intent_data/{name}.txt").read_text(encoding="utf-8").strip()
        for query in queries:
            parts = {"begin": (query.text, text, text), "end": (text, text, query.text), "middle": (text, query.text, text)}
            found.append(msgspec.structs.replace(query, text=APART.join(parts[where])))
    return found


def figures(made: Intent, test: Sequence[Query], quick: Embedder, deep: Deep) -> list[Figure]:
    """How often long prompts are read right, and what they cost."""
    some = test[::EVERY]
    found, times = [], []
    for where in ("begin", "end"):
        right, took = _read(made, prompts(some, where), quick, deep, cut)
        times += took
        said = f"{len(took)} prompts of some 2,000 characters, what is wanted at that end, apart from the rest"
        found.append(bounded(f"intent_long_{where}", sum(right) / len(right), "", ACCURACY, said))
    wanted = [query for query in prompts(some[::4], "middle") if query.domain != UNKNOWN]
    right, took = _read(made, wanted, quick, deep, cut)
    found.append(
        measured("intent_long_middle", sum(right) / len(right), "", f"{len(took)} prompts, what is wanted between two texts")
    )
    both = [*prompts(some, "begin"), *prompts(some, "end")]
    right, took = _read(made, both[:: max(1, len(both) // BEFORE)], quick, deep, lambda text: text[:2000])
    times.sort()
    whole = f"; with the first 2,000 characters {statistics.median(took):.0f} ms, and {sum(right)} of {len(took)} right"
    return [
        *found,
        bounded(
            "intent_long_p50", statistics.median(times), "ms", P50, "both stages, one at a time, each asked the deep one" + whole
        ),
        bounded("intent_long_p99", times[int(0.99 * len(times))], "ms", P99, f"of {len(times)}"),
    ]


def _read(
    made: Intent, queries: Sequence[Query], quick: Embedder, deep: Deep, by: Callable[[str], str]
) -> tuple[list[bool], list[float]]:
    """Whether each is read right, and in how many milliseconds."""
    verdicts, times = [], []
    for query in queries:
        begun = time.perf_counter()
        text = by(query.text)
        tokens = quick.embed((text,))[0]
        verdict = made.quickly(text, tokens)
        said = made.deeply(text, tokens, deep.embed((text,))[0])
        times.append(1000 * (time.perf_counter() - begun))
        verdicts.append((verdict, said))
    read = trial.read_one_by_one(made, queries, verdicts)
    return (read.both.classes == read.labels).tolist(), times
