"""A map of CRDTs: keys to counters, sets and registers, removed as observed.

A key has its kind: `(GROW, "hits")` and `(SET, "hits")` are two entries, so that nodes never disagree on what a key is. All
entries share one context. Removing a key removes what was seen of it; what is written at the same time elsewhere stays:

- a set keeps the elements that were added at the same time, a register the write, and the key is there again;
- a counter keeps the whole count, since its last removal seen there, of each node that counted at the same time, because a node's
  count is one row; the counts of the others start from zero. For exact totals do not remove counters that are still counted.

A set without elements and a key that was removed are the same: not there.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Set

import msgspec

from sits.inner.errors import Code, SitsError
from sits.state.clocks.hybrid import Stamp
from sits.state.crdt.context import LONGEST_NAME, Context, Dot, check_name, check_step
from sits.state.crdt.kernel import Kernel
from sits.state.crdt.orset import context_weight
from sits.state.crdt.register import LWWRegister, check_content


class Kind(enum.IntEnum):
    """What a key is; the numbers are those of the wire."""

    GROW = 1
    COUNT = 2
    SET = 3
    REGISTER = 4


Key = tuple[Kind, str]
Fragment = int | tuple[int, int] | str | tuple[Stamp, bytes]
"""One row: a node's count, its ups and downs, an element, a write."""


class ORMap(msgspec.Struct, frozen=True):
    """Immutable. Mutators return deltas: join each before the next one is made."""

    kernel: Kernel[Key, Fragment] = Kernel({}, {}, Context())

    @property
    def keys(self) -> Set[Key]:
        """What is there, as a view."""
        return self.kernel.where.keys()

    def grown(self, name: str) -> int:
        """The G-counter of that name; 0 when there is none."""
        total = 0
        for fragment in self._latest((Kind.GROW, name)).values():
            assert isinstance(fragment, int)
            total += fragment
        return total

    def count(self, name: str) -> int:
        """The PN-counter of that name; 0 when there is none."""
        total = 0
        for fragment in self._latest((Kind.COUNT, name)).values():
            up, down = _pair(fragment)
            total += up - down
        return total

    def members(self, name: str) -> frozenset[str]:
        """The elements of the set of that name."""
        return frozenset(element for _, element in self._elements(name))

    def register(self, name: str) -> LWWRegister:
        """The register of that name, with the latest of the writes that are there."""
        latest = LWWRegister()
        for dot in self.kernel.where.get((Kind.REGISTER, name), ()):
            stamp, content = _write(self.kernel.rows[dot][1])
            latest = latest.merge(LWWRegister(content, stamp))
        return latest

    def increment(self, name: str, node: str, by: int = 1) -> ORMap:
        """The delta of `by` more on the G-counter `name`.

        Raises:
            SitsError: `invalid_request`.
        """
        key = (Kind.GROW, name)
        now = self._own(key, node)
        assert now is None or isinstance(now, int)
        check_step(by, now or 0)
        return self._put(key, (now or 0) + by, node, self._dots_of(key, node))

    def adjust(self, name: str, node: str, by: int) -> ORMap:
        """The delta of `by`, which may be negative, on the PN-counter `name`.

        Raises:
            SitsError: `invalid_request`.
        """
        key = (Kind.COUNT, name)
        now = self._own(key, node)
        up, down = (0, 0) if now is None else _pair(now)
        check_step(abs(by), up if by > 0 else down)
        return self._put(key, (up + max(by, 0), down + max(-by, 0)), node, self._dots_of(key, node))

    def add(self, name: str, element: str, node: str) -> ORMap:
        """The delta that puts `element` into the set `name`.

        Raises:
            SitsError: `invalid_request`.
        """
        check_name("element", element)
        return self._put((Kind.SET, name), element, node, [dot for dot, one in self._elements(name) if one == element])

    def discard(self, name: str, element: str) -> ORMap:
        """The delta that takes `element` out of the set `name`; it changes nothing when it is not in."""
        return ORMap(self.kernel.drop([dot for dot, one in self._elements(name) if one == element]))

    def write(self, name: str, content: bytes, node: str, stamp: Stamp) -> ORMap:
        """The delta of a write to the register `name`; `stamp` as in `LWWRegister.write`.

        Raises:
            SitsError: `invalid_request`, `request_too_large`.
        """
        check_content(content)
        check_name("node", stamp.node)
        before = self.register(name).stamp
        if before is not None and stamp <= before:
            raise SitsError(Code.INVALID_REQUEST, "the stamp of a write must be later than that of the register", param="stamp")
        key = (Kind.REGISTER, name)
        return self._put(key, (stamp, content), node, self.kernel.where.get(key, ()))

    def remove(self, kind: Kind, name: str) -> ORMap:
        """The delta that takes a key away, as far as it was seen; it changes nothing when there is none."""
        return ORMap(self.kernel.drop(self.kernel.where.get((kind, name), ())))

    def merge(self, other: ORMap) -> ORMap:
        """The join; this very object when the other adds nothing."""
        kernel = self.kernel.merge(other.kernel)
        return self if kernel is self.kernel else ORMap(kernel)

    def stamps(self) -> Iterator[Stamp]:
        """The stamps of all writes in it."""
        for (kind, _), fragment in self.kernel.rows.values():
            if kind is Kind.REGISTER:
                yield _write(fragment)[0]

    def weight(self) -> int:
        """Not less than the bytes of its wire form."""
        rows = sum(len(key[1].encode()) + 40 + _size(fragment) for key, fragment in self.kernel.rows.values())
        return 48 + rows + context_weight(self.kernel.context)

    def _put(self, key: Key, fragment: Fragment, node: str, over: Set[Dot] | list[Dot] | tuple[()]) -> ORMap:
        check_name("key", key[1])
        check_name("node", node)
        return ORMap(self.kernel.put(key, fragment, node, over))

    def _dots_of(self, key: Key, node: str) -> list[Dot]:
        return [dot for dot in self.kernel.where.get(key, ()) if dot[0] == node]

    def _own(self, key: Key, node: str) -> Fragment | None:
        return self._latest(key).get(node)

    def _latest(self, key: Key) -> dict[str, Fragment]:
        """The last row of each node. A node's count includes what it counted before, and an older row of it may still be
        there, when the delta between the two was lost."""
        last: dict[str, int] = {}
        for node, number in self.kernel.where.get(key, ()):
            if number > last.get(node, 0):
                last[node] = number
        return {dot[0]: self.kernel.rows[dot][1] for dot in last.items()}

    def _elements(self, name: str) -> Iterator[tuple[Dot, str]]:
        for dot in self.kernel.where.get((Kind.SET, name), ()):
            element = self.kernel.rows[dot][1]
            assert isinstance(element, str)
            yield dot, element


def _pair(fragment: Fragment) -> tuple[int, int]:
    assert isinstance(fragment, tuple)
    up, down = fragment
    assert isinstance(up, int)
    assert isinstance(down, int)
    return up, down


def _write(fragment: Fragment) -> tuple[Stamp, bytes]:
    assert isinstance(fragment, tuple)
    stamp, content = fragment
    assert isinstance(stamp, Stamp)
    assert isinstance(content, bytes)
    return stamp, content


def _size(fragment: Fragment) -> int:
    if isinstance(fragment, str):
        return len(fragment.encode())
    if isinstance(fragment, tuple) and isinstance(fragment[1], bytes):
        return len(fragment[1]) + LONGEST_NAME
    return 0
