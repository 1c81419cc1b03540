"""Who is asked next: the one owner of retries, fallbacks, hedges and continuations."""

from __future__ import annotations

from sits.resilience.attempts.budget import ShareBudget
from sits.resilience.attempts.course import Course, Kind, Rules, Step
from sits.resilience.attempts.lateness import Lateness

__all__ = ["Course", "Kind", "Lateness", "Rules", "ShareBudget", "Step"]
