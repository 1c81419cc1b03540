"""A register in which the last write wins, by hybrid logical time."""

from __future__ import annotations

import msgspec

from sits.inner.errors import Code, SitsError
from sits.state.clocks.hybrid import Stamp
from sits.state.crdt.context import check_name

LARGEST_CONTENT = 64 * 1024


class LWWRegister(msgspec.Struct, frozen=True):
    """Bytes and the stamp of who wrote them; before the first write, neither. What the bytes mean is their owner's affair.

    Of two concurrent writes one is lost, by design: use it where that is right, or a set or a counter where it is not.
    """

    content: bytes | None = None
    stamp: Stamp | None = None

    def write(self, content: bytes, stamp: Stamp) -> LWWRegister:
        """The delta of a write. `stamp` must come from a `HybridClock` that has received this register's stamp.

        Raises:
            SitsError: `invalid_request`, the stamp is not later; `request_too_large`.
        """
        check_content(content)
        check_name("node", stamp.node)
        if self.stamp is not None and stamp <= self.stamp:
            raise SitsError(Code.INVALID_REQUEST, "the stamp of a write must be later than that of the register", param="stamp")
        return LWWRegister(content, stamp)

    def merge(self, other: LWWRegister) -> LWWRegister:
        """The later write; this very object when that is its own."""
        if other.stamp is None or other.content is None:
            return self
        if self.stamp is None or self.content is None:
            return other
        # Equal stamps come of a stamp used twice only; the content then decides, so that both sides choose the same.
        return other if (other.stamp, other.content) > (self.stamp, self.content) else self

    def weight(self) -> int:
        """Not less than the bytes of its wire form."""
        return 32 + len(self.content or b"") + (0 if self.stamp is None else 24 + len(self.stamp.node.encode()))


def check_content(content: bytes) -> None:
    """Raise `request_too_large` when a register cannot hold that much."""
    if len(content) > LARGEST_CONTENT:
        raise SitsError(Code.TOO_LARGE, f"content of {len(content)} bytes; a register holds {LARGEST_CONTENT}", param="content")
