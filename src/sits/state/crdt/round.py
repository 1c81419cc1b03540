"""Rounds of facts: what was noted in the latest round, each fact by the greatest of its notes.

The lattice is a lexicographic one: rounds are a chain, and within a round it is a map whose values only grow. So a message of an
earlier round changes nothing, and one of the same round can add or raise but never take back.
"""

from __future__ import annotations

import msgspec

from sits.inner.errors import Code, SitsError
from sits.state.crdt.context import LARGEST_COUNT, check_name

LARGEST_NOTE = 16 * 1024
"""Bytes of one note."""


class Round(msgspec.Struct, frozen=True):
    """The facts of one round. Immutable: nobody writes to `facts`. Before the first round it has number 0 and no facts."""

    number: int = 0
    facts: dict[str, bytes] = {}
    """Name -> note. Of two notes the greater one stays, byte by byte: whoever wants the later one begins it with a time."""

    def note(self, name: str, content: bytes) -> Round:
        """The delta of a fact in this round.

        Raises:
            SitsError: `invalid_request`, there is no round yet; `request_too_large`.
        """
        if self.number < 1:
            raise SitsError(Code.INVALID_REQUEST, "there is no round yet to note a fact in", param="number")
        check_note(name, content)
        return Round(self.number, {name: content})

    def next(self, name: str, content: bytes) -> Round:
        """The delta that opens the next round with a first fact; what was noted before is over.

        Raises:
            SitsError: `invalid_request`, there are no numbers left; `request_too_large`.
        """
        if self.number >= LARGEST_COUNT:
            raise SitsError(Code.INVALID_REQUEST, "there are no rounds left", param="number")
        check_note(name, content)
        return Round(self.number + 1, {name: content})

    def merge(self, other: Round) -> Round:
        """The join; this very object when the other adds nothing."""
        if other.number != self.number:
            return self if other.number < self.number else other
        mine = self.facts
        news = {name: content for name, content in other.facts.items() if name not in mine or content > mine[name]}
        return Round(self.number, {**mine, **news}) if news else self

    def weight(self) -> int:
        """Not less than the bytes of its wire form."""
        return 24 + sum(len(name.encode()) + len(content) + 10 for name, content in self.facts.items())


def check_note(name: str, content: bytes) -> None:
    """Raise `invalid_request` or `request_too_large` unless this can be a fact."""
    check_name("fact", name)
    if len(content) > LARGEST_NOTE:
        raise SitsError(Code.TOO_LARGE, f"a note of {len(content)} bytes; {LARGEST_NOTE} are the most", param="content")
