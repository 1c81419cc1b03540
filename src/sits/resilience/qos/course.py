"""What a request is given while its route is overloaded, by its class."""

from __future__ import annotations

import msgspec

from sits.resilience.qos.classes import P0, P1
from sits.resilience.qos.gate import Gate


class Course(msgspec.Struct, frozen=True):
    """What is tried for a request, before and instead of waiting in line."""

    replace: bool = False
    """Ask the replacement, if there is one, rather than wait."""
    shorten: bool = False
    """Answer in no more than the route's `shortenTokens`."""
    later: bool = False
    """Give a kept answer, as old as the route's ladder allows, if there is one; the model's own is made when there is room."""


ORDINARY = Course()
LESS = Course(replace=True, shorten=True)
LATER = Course(later=True)


def degrade(priority: int, gate: Gate) -> Course:
    """The course of a request that has just come, before it enters: as always where there is room, and for P0 in any case."""
    if not gate.overloaded or priority == P0 or gate.free:
        return ORDINARY
    return LESS if priority == P1 else LATER
