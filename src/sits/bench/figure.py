"""A figure: one thing that was measured and whether it is what it must be."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable

import msgspec

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
}


class Figure(msgspec.Struct, frozen=True):
    """One line of `sits bench --json`. The name of a bounded figure is stable: others watch it over time."""

    name: str
    value: float | None
    """None when it could not be measured; `detail` says why."""
    unit: str
    bound: str | None = None
    """Readable and exact: "<= 1.0"; None when the figure only informs."""
    ok: bool | None = None
    """Whether the bound holds; None when there is none. A bounded figure without a value does not hold."""
    detail: str = ""


def holds(value: float | None, bound: str) -> bool:
    """Whether `value` keeps `bound` ("<= 1.0"). None keeps nothing.

    Raises:
        ValueError: the bound is not an operator and a number.
    """
    sign, _, limit = bound.partition(" ")
    if sign not in _COMPARE:
        raise ValueError(f"a bound is one of {' '.join(_COMPARE)}, a space and a number, not {bound!r}")
    ceiling = float(limit)
    return value is not None and _COMPARE[sign](value, ceiling)


def bounded(name: str, value: float | None, unit: str, bound: str, detail: str = "") -> Figure:
    """A figure that is held against a bound."""
    # The unrounded value is judged, and what is shown has the digits to agree with the verdict.
    return Figure(name, _rounded(value), unit, bound, holds(value, bound), detail)


def measured(name: str, value: float | None, unit: str, detail: str = "") -> Figure:
    """A figure that only informs."""
    return Figure(name, _rounded(value), unit, detail=detail)


def line(figure: Figure) -> str:
    """The figure as one line of JSON."""
    return msgspec.json.encode(figure).decode()


def exit_code(figures: Iterable[Figure]) -> int:
    """0 when every bounded figure holds, 1 otherwise; a bench that measured nothing has not held."""
    seen = list(figures)
    return 0 if seen and all(figure.ok is not False for figure in seen) else 1


def _rounded(value: float | None) -> float | None:
    """Five significant digits: more than any of our clocks gives."""
    return None if value is None else float(f"{value:.5g}")
