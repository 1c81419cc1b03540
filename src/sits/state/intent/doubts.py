"""Whether figures are to be trusted: what they make of queries that they were not set by, beside those in force, and what they
say of themselves."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, isclose

import msgspec

from sits.routing.intent.judge import Marks
from sits.routing.intent.tune import ALONE, LEASTS, NEVER, TEMPERATURES, Tuning

FEW = ceil(1.0 / ALONE)
"""Queries from which one verdict may be lost to the quick stage. With fewer none may be, and one odd query can keep it from ever
standing alone."""
AMISS = 0.01
"""So much more calibration error is worse, where as many are right."""


class Compared(msgspec.Struct, frozen=True):
    """The same queries by the figures in force and by new ones that were set without them."""

    before: Marks
    after: Marks
    asked_before: float
    """Share of queries that went to the deep stage."""
    asked_after: float

    @property
    def worse(self) -> bool:
        """Whether the new ones are."""
        right, now = self.before.accuracy or 0.0, self.after.accuracy or 0.0
        if not isclose(right, now, abs_tol=1e-9):
            return now < right
        return (self.after.calibration_error or 0.0) > (self.before.calibration_error or 0.0) + AMISS

    @property
    def doubt(self) -> str:
        """What speaks against the comparison; empty when nothing does."""
        count = self.before.count
        return "" if count >= FEW else f"{count} queries held out are few, one of them is {1 / count:.3f}: {FEW} would do"

    def __str__(self) -> str:
        pairs = [
            ("accuracy", self.before.accuracy, self.after.accuracy),
            ("calibration error", self.before.calibration_error, self.after.calibration_error),
        ]
        figures = ", ".join(f"{name} {before or 0.0:.3f} -> {after or 0.0:.3f}" for name, before, after in pairs)
        count = f"{self.before.count} quer{'y' if self.before.count == 1 else 'ies'}"
        asked = f"deep stage asked for {self.asked_before:.1%} -> {self.asked_after:.1%}"
        return f"in force -> tuned, on {count} held out: {figures}, {asked}"


def doubts(figures: Tuning, count: int) -> Iterator[str]:
    """What speaks against figures that were set by so many queries."""
    if count < FEW:
        yield f"{count} queries are too few to tell how sure the quick stage must be: {FEW} would do"
    for name, scale in (("quick", figures.quick), ("deep", figures.deep)):
        if _at(scale.temperature, TEMPERATURES):
            yield f"{name}.temperature {scale.temperature:g} is as far as it goes: the queries do not tell how sure it is"
    if _at(figures.deep.least, LEASTS):
        yield f"deep.least {figures.deep.least:g} is as far as it goes: the queries do not tell what is of none"
    for name, value, whose in (("safe", figures.safe, "for a domain"), ("safe_none", figures.safe_none, "that it is none")):
        if value >= NEVER or isclose(value, NEVER):
            yield f"{name} {value:g} is above 1: no verdict of the quick stage {whose} stands, each is paid for with the deep one"


def _at(value: float, ends: tuple[float, float]) -> bool:
    return any(isclose(value, end, rel_tol=1e-6) for end in ends)
