"""Vector clocks: whether one version has seen another (Fidge 1988, Mattern 1989), with a cap that loses no update.

A clock keeps at most `MOST_MEMBERS` members after an increment. The rule for which go: those with the lowest counts, ties by
name; never the member that was just incremented. `floor` remembers the highest count that ever went, and every increment goes
above it, so that a member that was pruned uses no count twice. Counts rise; they need not be without gaps.

Why that is safe: a clock always keeps the members of its latest events, those that no other event of it follows. Whoever is at
or above those has seen all that led to them. So a pruned clock may be called concurrent with one that it has seen - a conflict
that is none, which a merge settles - but never before or equal to one that has not seen it: no update is taken for an old one.
That rests on what every vector clock rests on: a member's own events come one after the other, each on top of its last.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from sits.inner.errors import Code, SitsError

MOST_MEMBERS = 64
"""Members that are kept by an increment."""
MOST_CARRIED = 1024
"""Members that a merge or the wire may bring together, until the next increment prunes them."""
LARGEST_COUNT = 2**63 - 1
LONGEST_MEMBER = 128
"""In bytes of UTF-8."""
_VERSION = 1


class Order(enum.Enum):
    """How one clock stands to another."""

    BEFORE = "before"
    AFTER = "after"
    EQUAL = "equal"
    CONCURRENT = "concurrent"


class VectorClock(msgspec.Struct, frozen=True):
    """How many events of each member a version has seen. Immutable; two with the same `counts` are the same version."""

    counts: tuple[tuple[str, int], ...] = ()
    """Member and count, in the order of the members, without zeros."""
    floor: int = 0
    """The highest count of a member that was pruned."""

    def compare(self, other: VectorClock) -> Order:
        """How this clock stands to `other`: BEFORE when the other has seen all that this one has, and more."""
        mine, theirs = dict(self.counts), dict(other.counts)
        behind = any(theirs.get(member, 0) > count for member, count in mine.items()) or theirs.keys() - mine.keys()
        ahead = any(mine.get(member, 0) > count for member, count in theirs.items()) or mine.keys() - theirs.keys()
        if behind:
            return Order.CONCURRENT if ahead else Order.BEFORE
        return Order.AFTER if ahead else Order.EQUAL

    def increment(self, member: str, *, most: int = MOST_MEMBERS) -> VectorClock:
        """The clock after one more event of `member`, pruned to `most` members.

        Raises:
            SitsError: `invalid_request`, no name for a member.
        """
        _check_member(member)
        counts = dict(self.counts)
        counts[member] = max(counts.get(member, 0), self.floor) + 1
        if len(counts) <= most:
            return VectorClock(tuple(sorted(counts.items())), self.floor)
        others = sorted((count, name) for name, count in counts.items() if name != member)
        gone = others[: len(counts) - most]
        for _, name in gone:
            del counts[name]
        return VectorClock(tuple(sorted(counts.items())), max(self.floor, gone[-1][0]))

    def merge(self, other: VectorClock) -> VectorClock:
        """The clock that has seen what either has. Not pruned: the next increment does that.

        Raises:
            SitsError: `request_too_large`, more than `MOST_CARRIED` members.
        """
        counts = dict(self.counts)
        for member, count in other.counts:
            if count > counts.get(member, 0):
                counts[member] = count
        if len(counts) > MOST_CARRIED:
            raise SitsError(Code.TOO_LARGE, f"the merged clock has {len(counts)} members, more than {MOST_CARRIED}")
        return VectorClock(tuple(sorted(counts.items())), max(self.floor, other.floor))

    def encode(self) -> bytes:
        """The wire form: msgpack of `[version, floor, {member: count}]`, the same bytes for the same clock."""
        return msgspec.msgpack.encode((_VERSION, self.floor, dict(self.counts)))

    @staticmethod
    def decode(wire: bytes) -> VectorClock:
        """Read the wire form.

        Raises:
            SitsError: `invalid_request`, it is none, or one of another version.
        """
        try:
            version, floor, counts = _DECODER.decode(wire)
        except (ValueError, RecursionError) as error:
            raise SitsError(Code.INVALID_REQUEST, f"not a vector clock: {error}") from error
        if version != _VERSION:
            raise SitsError(Code.INVALID_REQUEST, f"a vector clock of version {version}; this SITS reads version {_VERSION}")
        if len(counts) > MOST_CARRIED:
            raise SitsError(Code.INVALID_REQUEST, f"a vector clock of {len(counts)} members; {MOST_CARRIED} are the most")
        for member in counts:
            _check_member(member)
        return VectorClock(tuple(sorted(counts.items())), floor)


def _check_member(member: str) -> None:
    try:
        size = len(member.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= LONGEST_MEMBER:
        raise SitsError(Code.INVALID_REQUEST, f"a member of a clock has a name of 1 to {LONGEST_MEMBER} bytes of UTF-8")


_Count = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_COUNT)]
_Floor = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]
_DECODER = msgspec.msgpack.Decoder(tuple[int, _Floor, dict[str, _Count]])
