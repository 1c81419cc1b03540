"""Benches that are made of parts: which of them run, and what is said of those that did not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sits.bench import BenchError, Plan
from sits.bench.figure import Figure
from sits.bench.page import QUICK_RUN, Section
from sits.inner.errors import SitsError

Part = Callable[[Plan], tuple[list[Figure], list[Section]]]


def run_parts(bench: str, parts: Mapping[str, Part], plan: Plan) -> tuple[list[Figure], list[Section]]:
    """Run all parts, or those in `plan.only`, in their order.

    Raises:
        BenchError: there is no such part, or something that one needs is not there.
    """
    unknown = sorted(set(plan.only) - set(parts))
    if unknown:
        raise BenchError(f"the bench has no part {', '.join(map(repr, unknown))}; there are: {', '.join(parts)}")
    figures: list[Figure] = []
    sections: list[Section] = []
    for name, part in parts.items():
        if plan.only and name not in plan.only:
            continue
        plan.say(f"{bench}: {name}")
        try:
            found, told = part(plan)
        except SitsError as error:
            raise BenchError(error.message) from error
        figures += found
        sections += told
    return figures, sections


def intro_of(text: str, plan: Plan) -> str:
    """The introduction, and what the reader must know of a run that was not whole."""
    if plan.only:
        text += f"\n\n**Only a part: {', '.join(plan.only)}.**"
    return text + (QUICK_RUN if plan.quick else "")
