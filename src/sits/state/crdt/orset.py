"""A set in which an add wins over a concurrent remove (OR-set, without tombstones: Bieniusa et al. 2012, Almeida et al. 2018)."""

from __future__ import annotations

from collections.abc import Set

import msgspec

from sits.state.crdt.context import Context, check_name
from sits.state.crdt.kernel import Kernel


class ORSet(msgspec.Struct, frozen=True):
    """Immutable. Mutators return deltas: join each before the next one is made. A remove takes away the adds that were seen."""

    kernel: Kernel[str, None] = Kernel({}, {}, Context())

    @property
    def elements(self) -> Set[str]:
        """What is in, as a view."""
        return self.kernel.where.keys()

    def __contains__(self, element: str) -> bool:
        return element in self.kernel.where

    def __len__(self) -> int:
        return len(self.kernel.where)

    def add(self, element: str, node: str) -> ORSet:
        """The delta that puts `element` in; it takes the place of the adds that were seen.

        Raises:
            SitsError: `invalid_request`, the element is empty, too long or no text.
        """
        check_name("element", element)
        check_name("node", node)
        return ORSet(self.kernel.put(element, None, node, self.kernel.where.get(element, ())))

    def remove(self, element: str) -> ORSet:
        """The delta that takes `element` out; one that changes nothing when it is not in."""
        return ORSet(self.kernel.drop(self.kernel.where.get(element, ())))

    def clear(self) -> ORSet:
        """The delta that takes all out."""
        return ORSet(self.kernel.drop(self.kernel.rows))

    def merge(self, other: ORSet) -> ORSet:
        """The join; this very object when the other adds nothing."""
        kernel = self.kernel.merge(other.kernel)
        return self if kernel is self.kernel else ORSet(kernel)

    def weight(self) -> int:
        """Not less than the bytes of its wire form."""
        context = self.kernel.context
        rows = sum(len(key.encode()) + 22 for key, _ in self.kernel.rows.values())
        return 32 + rows + context_weight(context)


def context_weight(context: Context) -> int:
    """Not less than the bytes of the context's part of a wire form."""
    nodes = {node for node, _ in context.cloud} | context.seen.keys()
    return 16 + sum(len(node.encode()) + 12 for node in nodes) + 16 * len(context.cloud)
