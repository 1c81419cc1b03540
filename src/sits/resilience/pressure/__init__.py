"""What is done while the machine or a model is under pressure: watches over metrics, and what is in force because of them."""

from __future__ import annotations

from sits.resilience.pressure.evict import evict
from sits.resilience.pressure.pressures import PressureChange, PressureRow, Pressures
from sits.resilience.pressure.relief import NO_RELIEF, Relief, downscaled
from sits.resilience.pressure.watch import Watch

__all__ = ["NO_RELIEF", "PressureChange", "PressureRow", "Pressures", "Relief", "Watch", "downscaled", "evict"]
