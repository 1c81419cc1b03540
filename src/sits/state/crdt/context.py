"""Dots and the contexts that remember which of them were seen (Almeida et al. 2018, "Delta state replicated data types").

A dot names one change: the node that made it and the how-many-eth of that node's it is. A context is a set of dots: the dots of a
node without gaps as one number, the rest one by one. So deltas may come in any order, twice, or never.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from sits.inner.errors import Code, SitsError

Dot = tuple[str, int]

LONGEST_NAME = 200
"""Bytes of a node id, a name or a key."""
LARGEST_COUNT = 2**63 - 1


class Context(msgspec.Struct, frozen=True):
    """A set of dots. Immutable, though made of dicts; equal sets are equal contexts."""

    seen: dict[str, int] = {}
    """Of each node, how many of its first dots are in without a gap."""
    cloud: frozenset[Dot] = frozenset()
    """The dots beyond a gap."""

    @staticmethod
    def of(dots: Iterable[Dot]) -> Context:
        """The context of just these."""
        return _compact({}, frozenset(dots))

    def __contains__(self, dot: Dot) -> bool:
        return dot[1] <= self.seen.get(dot[0], 0) or dot in self.cloud

    @property
    def size(self) -> int:
        """How many dots are in."""
        return sum(self.seen.values()) + len(self.cloud)

    def dots(self) -> Iterator[Dot]:
        """Each of them; look at `size` first."""
        for node, count in self.seen.items():
            for number in range(1, count + 1):
                yield node, number
        yield from self.cloud

    def next(self, node: str) -> Dot:
        """A dot that this node has not used, as far as this context knows.

        Raises:
            SitsError: `invalid_request`, there is none left: nobody counts that far, but the wire may claim it.
        """
        beyond = max((number for name, number in self.cloud if name == node), default=0)
        last = max(self.seen.get(node, 0), beyond)
        if last >= LARGEST_COUNT:
            raise SitsError(Code.INVALID_REQUEST, f"node {node!r} has no dots left", param="node")
        return node, last + 1

    def merge(self, other: Context) -> Context:
        """Both sets as one; this very object when the other adds nothing."""
        have = self.seen
        if all(have.get(node, 0) >= count for node, count in other.seen.items()) and all(dot in self for dot in other.cloud):
            return self
        seen = dict(have)
        for node, count in other.seen.items():
            if count > seen.get(node, 0):
                seen[node] = count
        return _compact(seen, self.cloud | other.cloud)


def _compact(seen: dict[str, int], cloud: frozenset[Dot]) -> Context:
    left: list[Dot] = []
    for dot in sorted(cloud):
        node, number = dot
        have = seen.get(node, 0)
        if number == have + 1:
            seen[node] = number
        elif number > have:
            left.append(dot)
    return Context(seen, frozenset(left))


def check_name(what: str, name: str) -> None:
    """Raise `invalid_request` unless `name` can be a node id, a name or a key: 1 to `LONGEST_NAME` bytes of UTF-8."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise SitsError(Code.INVALID_REQUEST, f"{what} is not text that can be encoded: {error.reason}", param=what) from error
    if not 0 < size <= LONGEST_NAME:
        raise SitsError(Code.INVALID_REQUEST, f"{what} has {size} bytes; 1 to {LONGEST_NAME} are taken", param=what)


def check_step(by: int, total: int) -> None:
    """Raise `invalid_request` unless a counter at `total` can rise by `by`."""
    if not 0 < by <= LARGEST_COUNT - total:
        raise SitsError(Code.INVALID_REQUEST, f"a counter at {total} cannot rise by {by}; it ends at {LARGEST_COUNT}", param="by")
