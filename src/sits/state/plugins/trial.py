"""Whether a plugin that was just loaded does anything sensible: a few calls behind a fence, before requests meet it.

`sits plugin check` goes much further; this takes a millisecond or two.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from sits.routing.plugins.fence import Fence, described
from sits.routing.plugins.limits import Alarm, Limits
from sits.routing.plugins.making import fenced_filter, fenced_score
from sits.routing.scheduling.base import Made
from sits.routing.scheduling.checks import candidates_of, facts_of, made_for
from sits.state.plugins.loading import Offered

CALLS = 4
SHOWN = 8
"""Candidates that it is shown."""
SECONDS = 0.25
"""For each call: the first ones may take longer, for it may look at much and keep what it found."""


def tried(one: Offered, alarm: Alarm, settings: Mapping[str, Any] | None = None) -> str:
    """Empty, or what is wrong with it. One that cannot be made without settings is not tried."""
    limits = Limits(hard=SECONDS, slow=SECONDS, troubles=1)
    fence = Fence(one.kind, one.name, time.perf_counter, limits, alarm)
    candidates = candidates_of(SHOWN)
    made = made_for(candidates, settings or {})
    why = ""
    try:
        (_sieves if one.kind == "filter" else _scores)(one, made, fence)
    except Exception as error:  # the fence lets nothing out but by a defect: one more reason not to have it meet requests
        why = described(error, alarm, SECONDS)
    for unmade in fence.unmade.values():
        why = unmade
    why = why or (fence.why if fence.out else "")
    return f"{one.kind} {one.name} {why}" if why else ""


def _sieves(one: Offered, made: Made, fence: Fence) -> None:
    try:
        sieve = fenced_filter(one.make, made, fence)
    except ValueError:
        return
    for seed in range(CALLS):
        facts = facts_of(seed)
        if sieve.asks(facts):
            for candidate in made.candidates:
                sieve.keep(facts, candidate)


def _scores(one: Offered, made: Made, fence: Fence) -> None:
    try:
        score = fenced_score(one.make, made, fence)
    except ValueError:
        return
    first = made.candidates[0]
    for seed in range(CALLS):
        facts = facts_of(seed)
        score.facet(facts)
        score.score(facts, made.candidates)
        score.reserve(facts, first)
        score.release(first, True)
