"""Clocks without a leader: which of two versions came first (vector), and stamps that respect cause and effect (hybrid)."""

from __future__ import annotations

from sits.state.clocks.hybrid import DRIFT, HybridClock, Stamp
from sits.state.clocks.vector import MOST_CARRIED, MOST_MEMBERS, Order, VectorClock

__all__ = ["DRIFT", "MOST_CARRIED", "MOST_MEMBERS", "HybridClock", "Order", "Stamp", "VectorClock"]
