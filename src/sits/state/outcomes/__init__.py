"""What comes of requests - feedback, guards, retries, judges - joined to the decisions that led there, and kept."""

from __future__ import annotations

from sits.state.outcomes.awaiting import Awaiting, Heard, Pending, Room, Settled
from sits.state.outcomes.feedback import Feedback, Words, parse
from sits.state.outcomes.judge import Judge, judged
from sits.state.outcomes.outcome import KINDS, Kind, Outcome, labelled, together
from sits.state.outcomes.outcomes import Declared, Outcomes
from sits.state.outcomes.retries import Retries

__all__ = [
    "KINDS", "Awaiting", "Declared", "Feedback", "Heard", "Judge", "Kind", "Outcome", "Outcomes", "Pending", "Retries", "Room",
    "Settled", "Words", "judged", "labelled", "parse", "together",
]  # fmt: skip
