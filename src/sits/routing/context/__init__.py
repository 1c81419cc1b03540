"""Context fit: whether a prompt fits a model, from certain bounds first and an exact count only where they do not settle it.

    bounds   how many tokens a request has at the least and at the most, from its bytes
    fit      whether that fits a window, with the figures
    stages   what is done with a prompt of that length
    split    a long text in pieces that do fit
    resume   whether an answer that was cut by its length is gone on with

Pure: exact counts come from `sits.state.tokens`, asking models from `sits.gateway.chunking`.
"""

from __future__ import annotations

from sits.routing.context.bounds import Bounds, Shape
from sits.routing.context.fit import FITS, Fit, Verdict, fit, refusal
from sits.routing.context.resume import Cut, answer_room, can_resume, room_left
from sits.routing.context.split import cutting, split
from sits.routing.context.stages import Context, Stage

__all__ = [
    "FITS",
    "Bounds",
    "Context",
    "Cut",
    "Fit",
    "Shape",
    "Stage",
    "Verdict",
    "answer_room",
    "can_resume",
    "cutting",
    "fit",
    "refusal",
    "room_left",
    "split",
]
