"""Hybrid logical clocks (Kulkarni, Demirbas et al., "Logical Physical Clocks", 2014).

A stamp is close to wall time, yet greater than every stamp that its maker had seen: later in cause is later in order, even where
wall clocks differ. Drift is bounded by refusal: a stamp further in the future than `drift` raises, and nothing is learnt from it.
A broken clock elsewhere can thus never drag ours along; what carries the stamp may be offered again when its time has come.
"""

from __future__ import annotations

import msgspec

from sits.inner.errors import Code, SitsError

DRIFT = 60.0
"""Seconds that another node's stamp may be ahead of our wall clock."""
LARGEST_COUNT = 2**31 - 1


class Stamp(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A moment. Stamps are in total order: by `wall`, then `count`, then `node`."""

    wall: int
    """Milliseconds since 1970."""
    count: int
    """Tells events within one millisecond apart."""
    node: str


class HybridClock:
    """One node's clock. `wall` is always passed in, in unix seconds; it may stand still or jump back, stamps never do.

    A node id must not come back with an earlier `last`: give each incarnation of a node its own id, or keep `last`.
    """

    __slots__ = ("_count", "_wall", "drift", "node")

    def __init__(self, node: str, *, last: Stamp | None = None, drift: float = DRIFT) -> None:
        self.node = node
        self.drift = drift
        self._wall, self._count = (0, -1) if last is None else (last.wall, last.count)

    @property
    def last(self) -> Stamp | None:
        """The latest moment that this clock knows of, for a successor; None before the first."""
        return Stamp(self._wall, self._count, self.node) if self._count >= 0 else None

    def tick(self, wall: float) -> Stamp:
        """The stamp of a new event: greater than every one made or received before."""
        now = int(wall * 1000)
        if now > self._wall:
            self._wall, self._count = now, 0
        else:
            self._advance()
        return Stamp(self._wall, self._count, self.node)

    def receive(self, remote: Stamp, wall: float) -> None:
        """Learn of a stamp that came from elsewhere; the stamps made from now on are greater. Safe to repeat.

        Raises:
            SitsError: `invalid_request`, it is more than `drift` seconds ahead of `wall`; the clock is as before.
        """
        ahead = (remote.wall - int(wall * 1000)) / 1000
        if ahead > self.drift:
            raise SitsError(
                Code.INVALID_REQUEST,
                f"the stamp of node {remote.node!r} is {ahead:.3f} s ahead of us, more than {self.drift:g} s: check the clocks",
            )
        self.resume(remote)

    def resume(self, last: Stamp) -> None:
        """Go on after a stamp of one's own, as from a snapshot: not checked for drift, since our wall clock was its source."""
        if (last.wall, last.count) > (self._wall, self._count):
            self._wall, self._count = last.wall, last.count

    def _advance(self) -> None:
        # A full count borrows from the next millisecond: order stays, and the next real millisecond gives it back.
        if self._count >= LARGEST_COUNT:
            self._wall, self._count = self._wall + 1, 0
        else:
            self._count += 1
