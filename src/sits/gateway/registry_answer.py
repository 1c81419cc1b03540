"""What a search of the registry answers, and what it says of services that have no vector."""

from __future__ import annotations

import msgspec

from sits.routing.registry import Found


class Answered(msgspec.Struct, frozen=True):
    """What was found, and whether meaning was asked."""

    data: list[Found]
    left_out: str = ""
    """Why meaning was not asked, or not of all services; empty where it was."""
    lacking: int = 0
    """Where it was asked: so many services had no vector, and could be found by their names and words alone,"""
    among: int = 0
    """of so many that were looked among."""


def lacking_words(lacking: int, of: int, why: str = "") -> str:
    """That so many services have no vector."""
    if of == 1:
        found = "the service has no vector yet, and is found by its name and words alone"
    elif lacking == 1:
        found = f"1 of {of:,} services has no vector yet, and is found by its name and words alone"
    else:
        found = f"{lacking:,} of {of:,} services have no vectors yet, and are found by their names and words alone"
    return f"{found}: {why}" if why else found
