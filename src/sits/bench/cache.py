"""`sits bench cache`: what the caches find, what they must not find, what they cost, and what a staleness storm does to them."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable

from sits.bench import BenchError, Outcome, Plan, cache_costs, cache_off, cache_policy, cache_served, semantic_pairs, staleness
from sits.bench.environment import environment
from sits.bench.figure import Figure
from sits.bench.page import Page, Section, Table, number
from sits.inner.errors import SitsError

Part = Callable[[Plan], tuple[list[Figure], list[Section]]]


def run(plan: Plan) -> Outcome:
    """Measure all parts, or those in `plan.only`: costs, served, off, semantic, policy, storm."""
    unknown = sorted(set(plan.only) - set(PARTS))
    if unknown:
        raise BenchError(f"the bench has no part {', '.join(map(repr, unknown))}; there are: {', '.join(PARTS)}")
    busy = os.getloadavg()[0]
    figures: list[Figure] = []
    sections: list[Section] = []
    for name, part in PARTS.items():
        if plan.only and name not in plan.only:
            continue
        plan.say(f"cache: {name}")
        try:
            found, told = part(plan)
        except SitsError as error:
            raise BenchError(error.message) from error
        figures += found
        sections += told
    ran = environment({name: version for name in ("theine", "wordllama") if (version := _version(name)) is not None})
    ran.append(("Load of the machine before", f"{busy:.1f} (anything above 0.5 makes times worse)"))
    return Outcome(
        figures, Page("performance-cache", "Caches: what they find and what they cost", _intro(plan), COMMAND, ran, sections)
    )


COMMAND = "sits bench cache --out docs"


def _intro(plan: Plan) -> str:
    text = "What the [caches](caches.md) find and must not find, what they cost, and what happens when most of one goes stale."
    if plan.only:
        text += f"\n\n**Only a part: {', '.join(plan.only)}.**"
    if plan.quick:
        text += "\n\n**A quick run: it shows that the harness works. The figures are not for quoting.**"
    return text


def _costs(plan: Plan) -> tuple[list[Figure], list[Section]]:
    return cache_costs.rows(batch=100 if plan.quick else 1000), []


def _served(plan: Plan) -> tuple[list[Figure], list[Section]]:
    wordings = staleness.questions()
    return cache_served.rows(wordings[:30] if plan.quick else wordings, rounds=1 if plan.quick else 5), []


def _off(plan: Plan) -> tuple[list[Figure], list[Section]]:
    return cache_off.rows(), []


def _semantic(plan: Plan) -> tuple[list[Figure], list[Section]]:
    found = semantic_pairs.rows(trials=500, crowd=100) if plan.quick else semantic_pairs.rows()
    return found, [Section("Other words for the same question", _PAIRS)]


def _policy(plan: Plan) -> tuple[list[Figure], list[Section]]:
    found = cache_policy.rows(length=4000, size=100) if plan.quick else cache_policy.rows()
    rows = [[figure.name.removeprefix("cache_"), number(figure.value), figure.detail] for figure in found]
    return found, [
        Section("What is kept when there is no room", _POLICY, [Table(["trace", "points behind or lost", "hit ratios"], rows)])
    ]


def _storm(plan: Plan) -> tuple[list[Figure], list[Section]]:
    found = staleness.simulate(plan.quick, plan.say)
    return staleness.figures(found), staleness.sections(found)


PARTS: dict[str, Part] = {
    "costs": _costs,
    "served": _served,
    "off": _off,
    "semantic": _semantic,
    "policy": _policy,
    "storm": _storm,
}

_PAIRS = """\
`semantic_pairs.jsonl` has labelled pairs of questions in English and Chinese. In half of them the answer to the one answers the
other; the rest are as alike and are not the same: another number, a denial, another name, another tenant. The bounds are held
on the split `test`; `later` was written after the rules were frozen. Beside ours: the cosine alone at the same threshold
(vector), and GPTCache's default rule (gptcache), both with the same embedder."""
_POLICY = """\
Hit ratios of our W-TinyLFU beside theine (W-TinyLFU in Rust), LRU-2 and LRU, each with the same number of entries on the same
requests. `behind_theine`: points that ours is behind; `scan_cost`: points that scans take from everybody else."""


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
