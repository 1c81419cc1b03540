"""Which streamed answers are gone on with when they are cut by their length, and how much they may still have."""

from __future__ import annotations

from sits.dialects.continued import Continued
from sits.gateway.exchange import Exchange
from sits.inner.errors import SitsError
from sits.routing.context.resume import can_resume, room_left
from sits.routing.target import Target


def resumable(x: Exchange, target: Target) -> bool:
    """Whether a streamed answer of this target can be gone on with when it is cut by its length."""
    if x.continued is not None:
        return True
    if "prefill" not in target.capabilities and x.operation != "completions":
        return False
    try:
        return can_resume(x.ask())
    except SitsError:
        return False  # Only the model server can read it.


def room(x: Exchange, answer: Continued, target: Target) -> int:
    """Tokens that an answer that was cut by its length may still have of this target."""
    row = x.conduct.fitness.rows.get(target.name) if x.conduct is not None and x.conduct.fitness is not None else None
    if row is None or x.resumes is None:
        return 0
    return room_left(answer, x.ask(), x.resumes, row.window)
