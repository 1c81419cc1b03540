"""`sits bench cache`: what the caches find, what they must not find, what they cost, and what a staleness storm does to them."""

from __future__ import annotations

from sits.bench import Outcome, Plan, cache_costs, cache_off, cache_policy, cache_served, semantic_pairs, staleness
from sits.bench.environment import environment, installed, load_before
from sits.bench.figure import Figure
from sits.bench.page import Page, Section, Table, number
from sits.bench.parts import Part, intro_of, run_parts


def run(plan: Plan) -> Outcome:
    """Measure all parts, or those in `plan.only`: costs, served, off, semantic, policy, storm."""
    busy = load_before()
    figures, sections = run_parts("cache", PARTS, plan)
    ran = environment(installed("theine", "wordllama"), busy)
    return Outcome(
        figures,
        Page("performance-cache", "Caches: what they find and what they cost", intro_of(_INTRO, plan), COMMAND, ran, sections),
    )


COMMAND = "sits bench cache --out docs"


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

_INTRO = "What the [caches](caches.md) find and must not find, what they cost, and what happens when most of one goes stale."
_PAIRS = """\
`semantic_pairs.jsonl` has labelled pairs of questions in English and Chinese. In half of them the answer to the one answers the
other; the rest are as alike and are not the same: another number, a denial, another name, another tenant. The bounds are held
on the split `test`; `later` was written after the rules were frozen. Beside ours: the cosine alone at the same threshold
(vector), and GPTCache's default rule (gptcache), both with the same embedder."""
_POLICY = """\
Hit ratios of our W-TinyLFU beside theine (W-TinyLFU in Rust), LRU-2 and LRU, each with the same number of entries on the same
requests. `behind_theine`: points that ours is behind; `scan_cost`: points that scans take from everybody else."""
