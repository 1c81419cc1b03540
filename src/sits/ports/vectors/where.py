"""What a clause means, item by item, and the order of hits: the plain form that every faster one must agree with."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sits.ports.vectors.base import Clause, Hit, Scalar

DECIMALS = 6
"""Of a score. A float32 cosine is good to about seven, so equal vectors tie and a vector scores 1.0 against itself."""

COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def kind(value: Scalar) -> type:
    """`bool`, `str`, or `float` for every number."""
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def meets(fields: Mapping[str, Scalar], where: Iterable[Clause]) -> bool:
    """Whether fields meet every clause."""
    return all(_meets(fields.get(clause.field), clause) for clause in where)


def _meets(value: Scalar | None, clause: Clause) -> bool:
    if isinstance(clause.value, tuple):
        return any(_equal(value, wanted) for wanted in clause.value)
    if clause.op == "eq":
        return _equal(value, clause.value)
    if clause.op == "ne":
        return not _equal(value, clause.value)
    # Text by code points is text by UTF-8 bytes.
    return value is not None and kind(value) is kind(clause.value) and bool(COMPARE[clause.op](value, clause.value))


def _equal(value: Scalar | None, wanted: Scalar) -> bool:
    return value is not None and kind(value) is kind(wanted) and value == wanted


def ranked(found: Iterable[tuple[str, float, Mapping[str, Scalar]]], k: int, floor: float) -> list[Hit]:
    """The best `k` of id, cosine and fields as hits: scores clipped and rounded, those under the floor left out, ties by id."""
    hits = [Hit(key, min(1.0, max(-1.0, round(float(score), DECIMALS))), fields) for key, score, fields in found]
    hits = [hit for hit in hits if hit.score >= floor]
    hits.sort(key=lambda hit: (-hit.score, hit.id))
    return hits[:k]


def best(found: Sequence[Hit], more: Sequence[Hit], k: int) -> list[Hit]:
    """Two rankings of different items as one."""
    return sorted([*found, *more], key=lambda hit: (-hit.score, hit.id))[:k]
