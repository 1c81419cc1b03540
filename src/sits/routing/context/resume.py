"""Whether an answer that was cut by its length is gone on with, and how the cut is hidden from the client.

An answer ends by its length for one of two reasons. The client said how long it may be: then that is what it wanted, and nothing
is gone on with. Or the server's own limit or window was met: then a service with `resume` has the model go on, as with a stream
that broke off (`sits.dialects.continued`), up to the route's `most`.
"""

from __future__ import annotations

import msgspec

from sits.dialects.base import Decoder
from sits.inner.errors import Code, SitsError
from sits.inner.event import Event, Finish
from sits.resources.context import ServiceSpec

FEWEST = 16
"""Tokens of room below which going on is not worth an ask."""
CUT = "the answer was cut by its length"


class Cut(msgspec.Struct, frozen=True):
    """An answer that ended, as far as it has come."""

    finish: str | None
    prompt: int
    """Tokens of the prompt that was asked first."""
    made: int
    """Tokens of the answer over all its parts."""
    asked: int | None = None
    """The longest answer that the client asked for."""


def answer_room(cut: Cut, service: ServiceSpec, window: int) -> int:
    """Tokens that the answer may still have; 0 where it is not gone on with.

    `window` is what prompt and answer may have together (`Context.window`).
    """
    if cut.finish != "length" or not service.resume or cut.made <= 0:
        return 0
    left = window - cut.prompt - cut.made
    if cut.asked is not None:
        left = min(left, cut.asked - cut.made)
    return left if left >= FEWEST else 0


class Uncut:
    """A `Decoder` that says of a finish by length that the answer broke off: `Continued` then goes on with it.

    Whoever wraps it has decided that there is room (`answer_room`), and sees by `cut` that it was used.
    """

    __slots__ = ("_decoder", "cut")

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.cut = False

    @property
    def skipped(self) -> int:
        return self._decoder.skipped

    @skipped.setter
    def skipped(self, value: int) -> None:
        self._decoder.skipped = value

    @property
    def done(self) -> bool:
        return bool(getattr(self._decoder, "done", False))

    def feed(self, piece: bytes) -> list[Event]:
        events = self._seen(self._decoder.feed(piece))
        if self.cut and self.done:
            raise _broke_off(events)
        return events

    def close(self) -> list[Event]:
        events = self._seen(self._decoder.close())
        if self.cut:
            raise _broke_off(events)
        return events

    def _seen(self, events: list[Event]) -> list[Event]:
        """The events without a finish by length. What follows it (usage, mostly) is still told."""
        kept = [event for event in events if not (isinstance(event, Finish) and event.reason == "length" and event.index == 0)]
        self.cut = self.cut or len(kept) < len(events)
        return kept


def _broke_off(events: list[Event]) -> SitsError:
    error = SitsError(Code.STREAM_BROKEN, CUT)
    error.args = (CUT, events)  # See `dialects.base.Decoder.feed`.
    return error
