"""Counters that only rise (G), and that rise and fall (PN) (Shapiro, Preguiça, Baquero, Zawirski 2011).

Each node has its own entry, which only it raises; the join takes the higher one. Mutators return deltas: join them to what they
came from before the next one is made. Entries of nodes that are gone stay: they are part of the sum.
"""

from __future__ import annotations

import msgspec

from sits.state.crdt.context import check_name, check_step


class GCounter(msgspec.Struct, frozen=True):
    """A sum that never falls. Immutable: nobody writes to `counts`."""

    counts: dict[str, int] = {}

    @property
    def value(self) -> int:
        return sum(self.counts.values())

    def increment(self, node: str, by: int = 1) -> GCounter:
        """The delta of `by` more, counted by `node`.

        Raises:
            SitsError: `invalid_request`, `by` is not positive or too much for one node.
        """
        check_name("node", node)
        return GCounter(_raised(self.counts, node, by))

    def merge(self, other: GCounter) -> GCounter:
        """The join; this very object when the other adds nothing."""
        counts = _higher(self.counts, other.counts)
        return self if counts is self.counts else GCounter(counts)

    def weight(self) -> int:
        """Not less than the bytes of its wire form."""
        return _weight(self.counts)


class PNCounter(msgspec.Struct, frozen=True):
    """A sum that rises and falls. Immutable: nobody writes to its dicts."""

    up: dict[str, int] = {}
    down: dict[str, int] = {}

    @property
    def value(self) -> int:
        return sum(self.up.values()) - sum(self.down.values())

    def increment(self, node: str, by: int = 1) -> PNCounter:
        """The delta of `by` more.

        Raises:
            SitsError: `invalid_request`, `by` is not positive or too much for one node.
        """
        check_name("node", node)
        return PNCounter(_raised(self.up, node, by), {})

    def decrement(self, node: str, by: int = 1) -> PNCounter:
        """The delta of `by` less.

        Raises:
            SitsError: `invalid_request`, `by` is not positive or too much for one node.
        """
        check_name("node", node)
        return PNCounter({}, _raised(self.down, node, by))

    def merge(self, other: PNCounter) -> PNCounter:
        """The join; this very object when the other adds nothing."""
        up, down = _higher(self.up, other.up), _higher(self.down, other.down)
        return self if up is self.up and down is self.down else PNCounter(up, down)

    def weight(self) -> int:
        """Not less than the bytes of its wire form."""
        return _weight(self.up) + _weight(self.down)


def _raised(counts: dict[str, int], node: str, by: int) -> dict[str, int]:
    now = counts.get(node, 0)
    check_step(by, now)
    return {node: now + by}


def _higher(mine: dict[str, int], theirs: dict[str, int]) -> dict[str, int]:
    """The higher of each; `mine` itself when nothing in `theirs` is higher."""
    news = {node: count for node, count in theirs.items() if count > mine.get(node, 0)}
    return {**mine, **news} if news else mine


def _weight(counts: dict[str, int]) -> int:
    return 16 + sum(len(node.encode()) + 14 for node in counts)
