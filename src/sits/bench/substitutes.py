"""`sits bench substitutes`: how often a substitute cannot serve what its primary was asked for, and how quick the rungs below a
model are."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from pathlib import Path

from sits.bench import BenchError, Outcome, Plan, substitutes_rungs
from sits.bench.environment import environment, load_before
from sits.bench.figure import Figure, bounded, measured
from sits.bench.page import Page, Section, Table
from sits.bench.parts import Part, intro_of, run_parts
from sits.bench.substitutes_set import (
    Chosen,
    Labelled,
    Split,
    by_embedding,
    cards,
    choices,
    embeddings,
    pools,
    share,
    texts,
)
from sits.inner.errors import SitsError
from sits.resilience.substitutes.space import space

LEAST = 0.92
"""The least cosine of `substitutes` in a Route, when nothing is said."""
INTENT_ERROR = "< 1.3"
RAW_LEAST = 0.92
POOLS = (6, 12, 24)
POOL_COUNT = 100
SEED = 1


def run(plan: Plan) -> Outcome:
    """Measure all parts, or those in `plan.only`: cards, rungs."""
    busy = load_before()
    figures, sections = run_parts("substitutes", PARTS, plan)
    ran = environment({}, busy)
    return Outcome(
        figures, Page("substitutes", "Substitutes: who stands in for whom", intro_of(_INTRO, plan), COMMAND, ran, sections)
    )


def setup(plan: Plan) -> None:
    """Fetch the embedding model, 91 MB."""
    try:
        embeddings(_folder(plan), ["ready"])
    except SitsError as error:
        raise BenchError(error.message) from error


COMMAND = "sits bench substitutes --out docs"


def _folder(plan: Plan) -> Path:
    return plan.cache / "substitutes"


def _cards(plan: Plan) -> tuple[list[Figure], list[Section]]:
    everything = cards()
    vectors = embeddings(_folder(plan), texts(everything))
    figures: list[Figure] = []
    wrong: list[Chosen] = []
    kept: list[Chosen] = []
    for split in ("test", "later", "tune"):
        chosen = [one for one in everything if one.split == split]
        found = choices(chosen, vectors, space())
        figures += _split(split, chosen, found, by_embedding(chosen, vectors))
        if split != "tune":
            kept += found
            wrong += [one for one in found if one.wrong]
            if not plan.quick:
                figures += _small(split, chosen, vectors)
    taken, bad = share(kept, LEAST)
    said = f"one-sided 95 % limit for {bad} of {taken} (Clopper and Pearson 1934): so few prove no more"
    figures.append(measured("substitute_intent_error_at_the_most", 100 * at_the_most(bad, taken), "%", said))
    return figures, [_method(), _nearest_wrong(wrong)]


def at_the_most(wrong: int, taken: int) -> float:
    """The share of errors that so few out of so many are still likely for, with 95 %: the exact limit of the binomial."""
    low, high = wrong / taken if taken else 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        chance = sum(comb(taken, k) * middle**k * (1 - middle) ** (taken - k) for k in range(wrong + 1))
        low, high = (middle, high) if chance > 0.05 else (low, middle)
    return high


def _split(split: Split, chosen: Sequence[Labelled], found: Sequence[Chosen], raw: Sequence[Chosen]) -> list[Figure]:
    taken, wrong = share(found, LEAST)
    asked = sum(len(one.intents) for one in chosen)
    every, raw_every = share(found, 0.0), share(raw, 0.0)
    raw_taken, raw_wrong = share(raw, RAW_LEAST)
    error = 100 * wrong / taken if taken else None
    said = f"{wrong} of {taken} intents of primaries that get a substitute; {len(chosen)} cards"
    name = f"substitute_intent_error_{split}"
    judged = split != "tune"
    figures = [bounded(name, error, "%", INTENT_ERROR, said) if judged else measured(name, error, "%", said)]
    figures.append(measured(f"substitute_coverage_{split}", 100 * taken / asked, "%", f"{taken} of {asked} intents"))
    figures.append(
        measured(
            f"substitute_intent_error_{split}_embedding",
            100 * raw_wrong / raw_taken if raw_taken else None,
            "%",
            f"{raw_wrong} of {raw_taken}: the cosine of the embeddings as they come, at {RAW_LEAST:g} too",
        )
    )
    figures.append(
        measured(
            f"substitute_intent_error_{split}_nearest",
            100 * every[1] / every[0],
            "%",
            f"{every[1]} of {every[0]}: whoever is nearest, however far; by the embeddings {raw_every[1]} of {raw_every[0]}",
        )
    )
    return figures


def _small(split: Split, chosen: Sequence[Labelled], vectors: dict[str, bytes]) -> list[Figure]:
    figures = []
    for size in POOLS:
        taken = wrong = 0
        for pool in pools(chosen, size, POOL_COUNT, SEED):
            more, bad = share(choices(pool, vectors, space()), LEAST)
            taken, wrong = taken + more, wrong + bad
        said = f"{wrong} of {taken}, over {POOL_COUNT} draws of at most {size} models, half of them of one domain"
        figures.append(measured(f"substitute_intent_error_{split}_of_{size}", 100 * wrong / taken if taken else None, "%", said))
    return figures


def _nearest_wrong(wrong: Sequence[Chosen]) -> Section:
    rows = [
        [f"{one.cosine:.3f}", one.primary.card.whole, one.substitute.card.whole]
        for one in sorted(wrong, key=lambda one: -one.cosine)[:10]
    ]
    return Section("The wrong ones that come nearest", _NEAR, [Table(["cosine", "primary", "nearest"], rows)])


def _method() -> Section:
    return Section("How it is measured", _METHOD)


def _rungs(plan: Plan) -> tuple[list[Figure], list[Section]]:
    return substitutes_rungs.rows(40 if plan.quick else 200), [Section("The rungs below a model", _RUNGS)]


PARTS: dict[str, Part] = {"cards": _cards, "rungs": _rungs}

_INTRO = """\
When none of the models that a route names is up, it may still be answered: by another model that is said to be good at the same
(`substitutes`), by a kept answer, or by a text (`ladder`). [The ladder](ladder.md) says how to declare that. Here is how well the
choice of a substitute does, and how quick the rungs are."""
_METHOD = """\
`substitutes_cards.jsonl` has cards of models as operators would write them, half of them Chinese, each with the intents
that a model of which the card is true can serve. For every card as a primary, the gateway's own choice among all other
cards of its split is taken if its capability cosine is at least 0.92. An error is an intent of the primary that the chosen
one cannot serve; the share is of all intents of primaries for which one is chosen. `tune` (8 domains) is what guards and
calibration were made with. `test` has 15 other domains; it was in view when the last constants were chosen. `later` has
five more and was written after the method, of which then only one constant was set, the stricter way. Whoever wrote the
method wrote the cards.

The capability cosine: descriptions are embedded by multilingual-e5-small, and a linear map takes out of the embeddings what is no
ability (language, wording). It was fitted on sentences put together from 30 tasks and 80 subjects in English and Chinese, none of
them a subject of `test`. From the cosine of two cards two things are taken off: how much of what the primary has beyond the other
one is what some third model, or a task on a subject, is good at; and how much better than the other one some third fits a single
part of what the primary is said to do. (5 + that) / 6 is the capability cosine: 5 of 6 are what all models have in common.
Translations of another direction, other programming languages and other endpoints are left out by rule.

`_embedding`: the plain cosine of the same embeddings. `_nearest`: no least cosine. `_of_6`, `_of_12`, `_of_24`: gateways
with so few models, drawn from the split. Where no other model there is good at what a card has beyond another one, it is
seen less well."""
_NEAR = "Of `test` and `later`, whether above 0.92 or below."
_RUNGS = """\
`sits serve` before a model that has gone: one connection, one request after the other, the attempt to reach the model included.
`cache`: the answer was kept for the same question; `semantic`: for other words; `template`: none was kept."""
