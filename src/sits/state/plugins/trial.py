"""Whether a plugin that was just loaded does anything sensible: a few calls behind a fence, before requests meet it.

`sits plugin check` goes much further; this takes a millisecond or two.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from sits.routing.plugins.fence import Fence
from sits.routing.plugins.limits import Alarm, Limits
from sits.routing.plugins.making import fenced_filter, fenced_score
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
    try:
        if one.kind == "filter":
            sieve = fenced_filter(one.make, made, fence)
            for seed in range(CALLS):
                sieve.asks(facts_of(seed))
        else:
            score = fenced_score(one.make, made, fence)
            for seed in range(CALLS):
                facts = facts_of(seed)
                score.facet(facts)
                score.score(facts, candidates)
                score.reserve(facts, candidates[0])
                score.release(candidates[0], True)
    except ValueError:
        return ""
    for why in fence.unmade.values():
        return f"{one.kind} {one.name} {why}"
    return f"{one.kind} {one.name} {fence.why}" if fence.out else ""
