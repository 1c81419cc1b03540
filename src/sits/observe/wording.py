"""How figures are said to people: shares, differences, money, time.

What is rounded away is not nothing: 0.0004 is `less than 0.1% more`, and 999,999 of a million are `more than 99.99%`. What is no
number at all is `not known`. No figure has a minus sign: a difference says `more` or `less`.
"""

from __future__ import annotations

from math import floor, isfinite, log10

SAME = "the same"
UNKNOWN = "not known"
_NOISE = 1e-12
"""Of a figure: below it two sums differ by the order in which they were added."""
_MOST_DECIMALS = 15
"""Of money."""
_MANY = 1e6
"""Per cent from which nobody reads tenths."""


def share(part: float, decimals: int = 2) -> str:
    """A share, 0 to 1, as per cent: nothing and all are said of nothing and all only."""
    if not isfinite(part):
        return UNKNOWN
    percent = part * 100.0
    text, step = f"{percent:.{decimals}f}", 10.0**-decimals
    if percent > 0.0 and float(text) == 0.0:
        return f"less than {step:g}%"
    if percent < 100.0 and float(text) == 100.0:
        return f"more than {100.0 - step:.{decimals}f}%"
    return f"{float(text) + 0.0:.{decimals}f}%"  # 0.0 is added so that -0 is 0.


def change(before: float | None, after: float | None) -> str:
    """How much more or less `after` is, in per cent of `before`."""
    if before is None or after is None or not isfinite(before) or not isfinite(after):
        return UNKNOWN
    if abs(after - before) <= _NOISE * max(abs(before), abs(after)):
        return SAME
    word = "more" if after > before else "less"
    part = abs(after - before) / abs(before) * 100.0 if before else 0.0
    if not before or not isfinite(part):
        return f"{word}, and it was nothing"
    if part < 0.05:
        return f"less than 0.1% {word}"
    if word == "less" and before > 0.0 and after > 0.0 and part >= 99.95:
        return "more than 99.9% less"
    return f"{part:,.0f}% {word}" if part >= _MANY else f"{part:,.1f}% {word}"


def gap(much: float, unit: str) -> str:
    """A difference that is a figure itself."""
    if not isfinite(much):
        return UNKNOWN
    return f"{amount(abs(much), unit)} {'more' if much > 0.0 else 'less'}" if much else SAME


def amount(much: float | None, unit: str = "") -> str:
    """A figure in six digits with its unit: `ms`, `$`, or none."""
    if much is None or not isfinite(much):
        return UNKNOWN
    return dollars(much) if unit == "$" else f"{much + 0.0:,.6g} {unit}".rstrip()


def dollars(much: float | None) -> str:
    """Money: to a hundredth of a cent, or in three digits where there are fewer than ten of them."""
    if much is None or not isfinite(much):
        return UNKNOWN
    if much == 0.0:
        return "$0"
    decimals = 4 if abs(much) >= 0.001 else min(_MOST_DECIMALS, 2 - floor(log10(abs(much))))
    sign, text = "-" if much < 0.0 else "", f"{abs(much):,.{decimals}f}"
    if float(text.replace(",", "")) == 0.0:
        return f"{'more' if sign else 'less'} than {sign}${10.0**-decimals:.{decimals}f}"
    return f"{sign}${text}"


def milliseconds(much: float | None) -> str:
    """Time without its unit: whole milliseconds, or three digits where there are fewer than a hundred of them."""
    if much is None or not isfinite(much):
        return UNKNOWN
    return f"{much:,.0f}" if abs(much) >= 99.95 else f"{much + 0.0:.3g}"
