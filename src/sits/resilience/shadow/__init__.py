"""Asking another model too, behind the answer, to see how it would do.

    scrub      personal data is taken out before anything leaves
    reading    what an answer says, as far as it is compared
    compare    whether two answers differ, by a stated rule
    shadows    shares, places, rates, alarms, and the queue of differences

All of it is pure: who asks, and when, is the gateway's affair.
"""

from __future__ import annotations

from sits.resilience.shadow.compare import Comparison, Embed, compare
from sits.resilience.shadow.reading import Said, read
from sits.resilience.shadow.scrub import Scrubber, Unscrubbable
from sits.resilience.shadow.shadows import Lane, Reason, Review, Shadows, Tally, cut

__all__ = [
    "Comparison",
    "Embed",
    "Lane",
    "Reason",
    "Review",
    "Said",
    "Scrubber",
    "Shadows",
    "Tally",
    "Unscrubbable",
    "compare",
    "cut",
    "read",
]
