"""Units of one model that are merged and split: when, and what a request's targets are then. Pure.

traffic   what came in the last five seconds: requests a second, tokens of a prompt
units     merge or split? with hysteresis, a hold, and fresh data only
gather    the targets of a request while units are merged away
"""

from __future__ import annotations

from sits.routing.units.gather import gathered, left_out
from sits.routing.units.traffic import Sample, Traffic, prompt_tokens
from sits.routing.units.units import Action, State, Units

__all__ = ["Action", "Sample", "State", "Traffic", "Units", "gathered", "left_out", "prompt_tokens"]
