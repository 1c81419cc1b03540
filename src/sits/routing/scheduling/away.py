"""Filters and scores that a route declares and that said nothing: not there, fenced off, or in trouble just then."""

from __future__ import annotations

from typing import Literal

import msgspec


class Away(msgspec.Struct, frozen=True, gc=False):
    """One of them, as it was for one decision."""

    kind: Literal["filter", "score"]
    name: str
    why: str
    """Words that go on from its name."""
    since: float = 0.0
    """Unix seconds; 0 where nobody knows, or where it is not away for longer than this decision."""
