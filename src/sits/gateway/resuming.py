"""Answers that are gone on with when they are cut by their length: which they are, how much they may still have, and how the
next part is asked for.

Whoever runs it (`sits.gateway.running`) asks for part after part by `Legs`, of an answer that is streamed, or by `Wholes`. A part
is as a request of its own: the target that fails before anything of its part was passed on is replaced by another, and where it
fails later, another goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from sits.dialects.base import Prepared
from sits.dialects.continued import Continued
from sits.gateway.attempt import Attempt
from sits.gateway.chunking_resume import READ_AS, Completing
from sits.gateway.exchange import Exchange
from sits.inner.errors import SitsError
from sits.routing.context.resume import MOST_PARTS, can_resume, room_left
from sits.routing.target import Target

NO_PREFILL = "cannot be given the beginning of an answer"
NO_ROOM = "has no room for more of the answer"
Read = Callable[[Exchange, Attempt], None]
"""Reads a whole answer."""


class Parts(Protocol):
    """An answer that is gone on with."""

    read: Read | None
    """How what has come is read; None: as any answer."""

    @property
    def wanted(self) -> bool:
        """Whether there is to be another part."""

    def lacks(self, target: Target) -> str:
        """Why a target cannot go on with it; empty where it can."""

    def write(self, target: Target) -> Prepared | None:
        """The request for the next part; None: as any request.

        Raises:
            SitsError: `unsupported`, the target's dialect has no words for it.
        """

    def close(self, attempt: Attempt) -> None:
        """Nobody goes on with it; `attempt` was the last that came to its end."""


def parts_of(x: Exchange, attempt: Attempt) -> Parts | None:
    """How the answer of this attempt is gone on with; None where it is complete or cannot be."""
    answer = x.continued
    if answer is not None:
        return Legs(x, answer) if answer.held else None
    if x.stream or x.operation not in READ_AS or attempt.reading is None or attempt.reading.finish != "length":
        return None
    try:
        x.resumed = going = Completing.of(attempt.body, x.ask(), x.client, x.label(attempt.target))
    except SitsError:
        return None  # Only the model server can read it.
    return Wholes(x, going) if going is not None else None


def resumable(x: Exchange, target: Target) -> bool:
    """Whether a streamed answer of this target can be gone on with when it is cut by its length."""
    if x.continued is not None:
        return True
    if not _goes_on(x, target):
        return False
    try:
        return can_resume(x.ask())
    except SitsError:
        return False  # Only the model server can read it.


def room(x: Exchange, answer: Continued, target: Target) -> int:
    """Tokens that an answer that was cut by its length may still have of this target."""
    window = _window(x, target)
    return room_left(answer, x.ask(), x.resumes, window) if x.resumes is not None and window else 0


class Legs:
    """A streamed answer: the client has what came of each part."""

    __slots__ = ("_answer", "_x", "read")

    def __init__(self, x: Exchange, answer: Continued) -> None:
        self._x = x
        self._answer = answer
        self.read: Read | None = None

    @property
    def wanted(self) -> bool:
        return not self._answer.finished and self._answer.parts < MOST_PARTS

    def lacks(self, target: Target) -> str:
        """As `Parts`.

        Raises:
            SitsError: nobody can go on with it.
        """
        if self._answer.onset("prefill" in target.capabilities).mode != "prefill":
            return NO_PREFILL
        return "" if room(self._x, self._answer, target) else NO_ROOM

    def write(self, target: Target) -> Prepared | None:
        return None

    def close(self, attempt: Attempt) -> None:
        if self._answer.finished:
            return
        if attempt.translation is None:
            attempt.body += self._answer.cut_off()
        else:
            self._x.write(self._answer.cut_off())


class Wholes:
    """An answer that is not streamed: nothing of a part is passed on before all of it is there."""

    __slots__ = ("_going", "_x", "read")

    def __init__(self, x: Exchange, going: Completing) -> None:
        self._x = x
        self._going = going
        self.read: Read | None = self._take

    @property
    def wanted(self) -> bool:
        return self._going.finish == "length" and self._going.parts < MOST_PARTS

    def lacks(self, target: Target) -> str:
        if not _goes_on(self._x, target):
            return NO_PREFILL
        return "" if self._room(target) else NO_ROOM

    def write(self, target: Target) -> Prepared | None:
        return self._going.write(target.dialect, self._x.served(target), self._room(target))

    def close(self, attempt: Attempt) -> None:
        going = self._going
        if going.parts > 1:
            attempt.body = going.body()
            assert attempt.reading is not None
            attempt.reading = msgspec.structs.replace(attempt.reading, finish=going.finish or "length")

    def _room(self, target: Target) -> int:
        window, service = _window(self._x, target), self._x.resumes
        return self._going.room(service, window) if service is not None and window else 0

    def _take(self, x: Exchange, attempt: Attempt) -> None:
        attempt.reading = self._going.take(attempt.target.dialect, attempt.body)


def _goes_on(x: Exchange, target: Target) -> bool:
    """Whether a target can be given the beginning of an answer; of a completion it is a part of the prompt."""
    return "prefill" in target.capabilities or x.operation == "completions"


def _window(x: Exchange, target: Target) -> int:
    """What prompt and answer may have together there; 0 where nobody says."""
    row = x.conduct.fitness.rows.get(target.name) if x.conduct is not None and x.conduct.fitness is not None else None
    return row.window if row is not None else 0
