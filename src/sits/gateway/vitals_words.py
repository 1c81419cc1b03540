"""What is said of the values of a health query: the figures, and which of many series is meant."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

MOST_LABELS = 3
LONGEST_LABEL = 64
"""Characters of a label's value that are shown."""

Labels = Mapping[str, str]
Redact = Callable[[str], str]


def figure(value: float) -> str:
    """A value as Prometheus writes it where it is not finite, and in six digits."""
    return f"{value:g}" if math.isfinite(value) else shown(value)  # type: ignore[return-value]  # not finite: a string


def shown(value: float) -> float | str:
    """A value for JSON, which knows no infinity: `+Inf` and `-Inf` as Prometheus writes them."""
    if math.isfinite(value):
        return value
    return "+Inf" if value > 0 else "-Inf"


def which(worst: float, values: Sequence[float], labels: Sequence[Labels], beyond: int, redact: Redact) -> str:
    """What stands behind a reason: whose value the worst is, and how many are beyond where there are several. Empty for one
    series without labels."""
    named = _named(labels, values.index(worst), redact) if len(labels) == len(values) else ""
    counted = f"{beyond} of {len(values)} are" if len(values) > 1 else ""
    return (f" ({named})" if named else "") + (f", {counted}" if counted else "")


def _named(labels: Sequence[Labels], at: int, redact: Redact) -> str:
    """The labels of one series, those first that tell it from the others; the name of the metric only where that does."""
    mine = labels[at]
    telling = [name for name in sorted(mine) if any(other.get(name) != mine[name] for other in labels)]
    rest = [name for name in sorted(mine) if name not in telling and name != "__name__"]
    # Redacted before it is cut: half a secret is not known as one.
    return ", ".join(f"{name[:LONGEST_LABEL]}={_quoted(redact(mine[name]))}" for name in (*telling, *rest)[:MOST_LABELS])


def _quoted(text: str) -> str:
    cut = text if len(text) <= LONGEST_LABEL else f"{text[:LONGEST_LABEL]}…"
    return msgspec.json.encode(cut).decode()
