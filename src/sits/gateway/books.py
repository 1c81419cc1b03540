"""Finished exchanges on their way into record, metrics and log: kept for a moment and dealt with in batches.

One at a time, between two requests, an exchange costs 11 us here, because its code and data have left the caches; 32 in a row
cost 3 us each. Whoever reads what comes out (`ring`, `settle`) has everything dealt with first, so nobody can see the difference.
"""

from __future__ import annotations

import asyncio
import logging

from sits.gateway.account import account
from sits.gateway.exchange import Exchange
from sits.observe.log import LineWriter
from sits.observe.metrics import Registry
from sits.observe.record import Ring

BATCH = 32
WAIT_SECONDS = 0.02
"""How long a finished exchange waits for others at the most."""
_log = logging.getLogger("sits.gateway")


class Books:
    """Takes finished exchanges. `registry` is up to date after `settle`."""

    __slots__ = ("_done", "_lines", "_loop", "_registry", "_ring", "_timer")

    def __init__(self, registry: Registry, ring: Ring, lines: LineWriter, loop: asyncio.AbstractEventLoop) -> None:
        self._registry = registry
        self._ring = ring
        self._lines = lines
        self._loop = loop
        self._done: list[Exchange] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def ring(self) -> Ring:
        """The records of everything that is finished."""
        self.settle()
        return self._ring

    def resize(self, capacity: int) -> None:
        """Keep that many records, the newest ones, from now on."""
        ring = Ring(capacity)
        for record in reversed(list(self.ring)[:capacity]):
            ring.put(record)
        self._ring = ring

    def take(self, x: Exchange) -> None:
        """Account for a finished exchange soon."""
        self._done.append(x)
        if len(self._done) >= BATCH:
            self.settle()
        elif self._timer is None:
            self._timer = self._loop.call_later(WAIT_SECONDS, self._due)

    def settle(self) -> None:
        """Account for what is finished now."""
        done, self._done = self._done, []
        for x in done:
            try:
                account(x, self._registry, self._ring, self._lines if x.table.snapshot.settings.access_log else None)
            except Exception:  # The client has its answer; a defect in the books of one must not hurt those of the others.
                _log.exception("a defect while accounting for a request", extra={"request_id": x.id})
            # An exchange and its attempts point at each other: taken apart here, they are freed at once, not by the collector.
            x.attempts.clear()

    def _due(self) -> None:
        self._timer = None
        self.settle()
