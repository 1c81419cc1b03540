"""Who waits in one class of service: tenants take turns, so that the flood of one does not starve the others.

Deficit round robin (Shreedhar and Varghese, SIGCOMM 1995) in its surplus form: who is in credit has a turn and pays what the
request costs, also beyond what was left. Each round gives everybody who waits one unit of credit, so a tenant of requests that
cost 8 has one turn for 8 of a tenant whose requests cost 1. Credit lasts as long as somebody of the tenant waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from sits.resilience.qos.waiter import Waiter

DEAREST: Final = 16
"""The most that a request costs: it bounds the rounds of a turn."""


class Tenant:
    """Those of one tenant who wait, first come first, and what it is in credit."""

    __slots__ = ("credit", "name", "waiters")

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiters: deque[Waiter] = deque()
        self.credit = 1


class Line:
    """The waiting of one class. It holds whom it is given: how many that may be is the gate's business."""

    __slots__ = ("_round", "_tenants", "size")

    def __init__(self) -> None:
        self.size = 0
        self._tenants: dict[str, Tenant] = {}
        self._round: deque[Tenant] = deque()

    def __iter__(self) -> Iterator[Waiter]:
        for tenant in self._round:
            yield from tenant.waiters

    @property
    def tenants(self) -> int:
        """How many have somebody waiting."""
        return len(self._round)

    def waiting_of(self, name: str) -> int:
        """How many of this tenant wait."""
        tenant = self._tenants.get(name)
        return len(tenant.waiters) if tenant is not None else 0

    def add(self, waiter: Waiter) -> None:
        tenant = self._tenants.get(waiter.tenant)
        if tenant is None:
            tenant = self._tenants[waiter.tenant] = Tenant(waiter.tenant)
            self._round.append(tenant)
        tenant.waiters.append(waiter)
        self.size += 1

    def take(self) -> Waiter:
        """Whose turn it is, taken out; there must be somebody."""
        turns = self._round
        tenant = turns[0]
        while tenant.credit <= 0:
            tenant.credit += 1
            turns.rotate(-1)
            tenant = turns[0]
        waiter = tenant.waiters.popleft()
        self.size -= 1
        if not tenant.waiters:
            del self._tenants[tenant.name]
            turns.popleft()
            return waiter
        cost = waiter.cost
        tenant.credit -= cost if cost < DEAREST else DEAREST
        if tenant.credit <= 0:
            tenant.credit += 1
            turns.rotate(-1)
        return waiter

    def remove(self, waiter: Waiter) -> None:
        """Take out one who waits here."""
        tenant = self._tenants[waiter.tenant]
        tenant.waiters.remove(waiter)
        self._left(tenant)

    def largest(self) -> str:
        """The tenant with the most waiting; of equals the one that came first. There must be somebody."""
        return max(self._round, key=_size).name

    def newest_of(self, name: str) -> Waiter:
        """The last to come of a tenant that has somebody waiting, taken out."""
        tenant = self._tenants[name]
        waiter = tenant.waiters.pop()
        self._left(tenant)
        return waiter

    def _left(self, tenant: Tenant) -> None:
        self.size -= 1
        if not tenant.waiters:
            del self._tenants[tenant.name]
            self._round.remove(tenant)


def _size(tenant: Tenant) -> int:
    return len(tenant.waiters)
