"""Calling a plugin and looking closely what that leaves behind: memory, threads, files, tasks, changes of what it saw."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sits.routing.plugins.fence import Fence, dispose
from sits.routing.plugins.limits import Cut, Footprint
from sits.routing.plugins.untouched import Untouched
from sits.routing.scheduling.base import Candidate, Facts, Filter

FINE, USABLE, USELESS = 0, 1, 2
"""How a call went: well; not well, though what it said can be used; not at all."""

LOOKS, LOOK_SECONDS = 4, 0.0005
"""How often it is looked again for what seems to be left behind, and how long is waited before each look."""


def closely(
    fence: Fence,
    control: Callable[..., Any],
    facts: Facts,
    candidates: tuple[Candidate, ...],
    function: Callable[..., Any],
    *more: Any,
) -> tuple[int, Any, float]:
    """Calls a plugin and looks what it leaves behind: how that went, what it said, and how long it took.

    `control` says something of the same form and keeps nothing. The fence has heard of the call unless all is fine.
    """
    footprint = fence.footprint
    footprint.hold(fence.exact)
    try:
        return _looked(fence, control, facts, candidates, function, more)
    finally:
        footprint.free()


def _looked(
    fence: Fence,
    control: Callable[..., Any],
    facts: Facts,
    candidates: tuple[Candidate, ...],
    function: Callable[..., Any],
    more: tuple[Any, ...],
) -> tuple[int, Any, float]:
    limits, footprint = fence.limits, fence.footprint
    untouched = Untouched(facts, candidates)
    others = footprint.others()
    # A number is an object, too: what is kept from here on is kept alike in both looks.
    bare = footprint.memory()
    try:
        nothing = fence.alarm.call(limits.hard, control, facts, candidates, *more)
    except Cut:
        return _unmeasured(fence, untouched, function, facts, candidates, *more)
    noise = footprint.memory() - bare
    del nothing
    said: Any = None
    failed = False
    turns = footprint.turns()
    held = footprint.memory()
    begun = fence.clock()
    try:
        said = fence.alarm.call(limits.hard, function, facts, candidates, *more)
        took = fence.clock() - begun
    except BaseException as error:
        took = fence.clock() - begun
        fence.failed(error, took)
        failed = True
    slow = fence.slow(took, turns, footprint.turns())
    kept, doubt = _kept(fence, held, noise)
    changed = untouched.restored()
    left = fence.sampled(kept, others, _settled(footprint, others))
    if doubt:
        fence.doubted()
    if failed:
        return USELESS, None, took
    if not changed and not left and not slow:
        return FINE, said, took
    fence.took(took)
    fence.trouble("meddled" if changed else "leaked" if left else "slow", changed or left or slow)
    if changed:
        dispose(said)
        return USELESS, None, took
    return USABLE, said, took


def _unmeasured(fence: Fence, untouched: Untouched, function: Callable[..., Any], *shown: Any) -> tuple[int, Any, float]:
    """The machine stood still while nothing was called: what a call leaves behind is looked at the next time."""
    fence.due = 1
    begun = fence.clock()
    try:
        said = fence.alarm.call(fence.limits.hard, function, *shown)
    except BaseException as error:
        took = fence.clock() - begun
        untouched.restored()
        fence.failed(error, took)
        return USELESS, None, took
    took = fence.clock() - begun
    changed = untouched.restored()
    if not changed:
        return FINE, said, took
    fence.took(took)
    fence.trouble("meddled", changed)
    dispose(said)
    return USELESS, None, took


def _settled(footprint: Footprint, before: tuple[int, int, int]) -> tuple[int, int, int]:
    """Threads, files and tasks after a call. Other threads of the gateway have files open for a moment: they get that moment."""
    after = footprint.others()
    for _ in range(LOOKS):
        if after[0] <= before[0] and after[1] <= before[1]:
            break
        time.sleep(LOOK_SECONDS)
        after = footprint.others()
    return after


def _kept(fence: Fence, held: int, noise: int) -> tuple[int, bool]:
    """Bytes that a call has kept, and whether that is in doubt: garbage in circles is not kept, and where others left some, too,
    it cannot be told whose was given back."""
    footprint, most = fence.footprint, fence.limits.call_bytes
    exact = fence.exact
    kept = footprint.memory() - held - noise  # in one go: a number that is kept would be seen
    if kept <= most:
        fence.suspect = False
        return kept, False
    footprint.collect()
    kept = footprint.memory() - held - noise
    if kept > most or exact:
        fence.suspect = kept > most
        return kept, False
    return 0, True


def sift(facts: Facts, candidates: tuple[Candidate, ...], plugin: Any) -> Any:
    """What a filter says of all candidates, in a list: nothing where the request is none of its business. What else it gave than
    True or False comes back in a tuple."""
    asked = plugin.asks(facts)
    if asked is False:
        return []
    if asked is not True:
        return (asked,)
    keep = plugin.keep
    return [keep(facts, one) for one in candidates]


def no_sift(facts: Facts, candidates: tuple[Candidate, ...], plugin: Filter) -> Any:
    """What a filter says that keeps nothing, to see what a look costs."""
    return ["" for one in candidates]


def no_score(facts: Facts, candidates: tuple[Candidate, ...]) -> Any:
    """The same of a score."""
    return [0.5 + one.index for one in candidates]
