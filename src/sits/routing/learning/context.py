"""What a choice is made by, as numbers that rewards can be linear in."""

from __future__ import annotations

from typing import Final

KNOTS: Final = 5
SIZE: Final = KNOTS + 1


def context(load: float, complexity: float) -> tuple[float, ...]:
    """Complexity between two of five points on a line (piecewise linear in it is linear in them), and load less a half."""
    place = min(1.0, max(0.0, complexity)) * (KNOTS - 1)
    at = min(KNOTS - 2, int(place))
    found = [0.0] * SIZE
    found[at + 1] = place - at
    found[at] = 1.0 - found[at + 1]
    found[KNOTS] = min(1.0, max(0.0, load)) - 0.5
    return tuple(found)
