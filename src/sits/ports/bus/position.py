"""Where a reader is in a log whose offsets have no holes: what it missed shows as a jump."""

from __future__ import annotations


class Position:
    """The offset that comes next."""

    __slots__ = ("next",)

    def __init__(self, start: int) -> None:
        self.next = start

    def take(self, offset: int) -> int | None:
        """Step over a message: how many before it are gone, or None when it was taken before."""
        if offset < self.next:
            return None
        lost = offset - self.next
        self.next = offset + 1
        return lost

    def met(self, last: int) -> None:
        """The log ends at `last`. When we are ahead of that, it is another log than the one we knew: begin with it."""
        if self.next > last + 1:
            self.next = 1
