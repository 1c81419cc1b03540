"""Leaving targets alone that are not well: breakers, rests that servers ask for, and outliers."""

from __future__ import annotations

from sits.resilience.breakers.breaker import Breaker, State, Why
from sits.resilience.breakers.breakers import BreakerRow, Breakers, Change, Declared
from sits.resilience.breakers.counts import Verdict, counts

__all__ = ["Breaker", "BreakerRow", "Breakers", "Change", "Declared", "State", "Verdict", "Why", "counts"]
