"""Answers asked for anew behind one that was given stale (RFC 5861, `stale-while-revalidate` and `stale-if-error`).

What is decided here is when; `spine.renew` does it. A question is asked once at a time, since it leads a flight as any other that
is asked does. How often a route renews is bound to what it asks the models anyway, so that a storm of stale answers, which would
have been a storm of calls, is a small share more of them for a while. What cannot be renewed stays until it expires.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from sits.engines.base import Headers
from sits.gateway.wire import Listener, Request
from sits.inner.errors import Code, SitsError
from sits.state.cache.flight import Flights

if TYPE_CHECKING:
    from sits.gateway.exchange import Exchange

EVERY = 20
"""Calls of models on a route for which one renewal may be begun: 5 % more."""
FLOOR_SECONDS = 1.0
"""A route that asks the models less often may begin one after so long, when no other of it is under way: one slot more."""
MOST = 64
"""Renewals under way in a process."""
REST_SECONDS = 30.0
"""How long a question is left alone whose renewal brought nothing that may be kept."""
MOST_RESTING = 1024
MOST_ROUTES = 4096
LEFT_OUT = frozenset((b"cache-control", b"x-request-id", b"idempotency-key"))
"""What a renewal does not repeat of the request: what it wished of the cache, and what makes it that very request."""


class Pace:
    """How often one route may renew. Nothing is saved up: after a quiet hour it begins one, as after a second."""

    __slots__ = ("_last", "calls", "under_way")

    def __init__(self) -> None:
        self._last = float("-inf")
        self.calls = 0
        """Of models, since the last renewal was begun."""
        self.under_way = 0

    def take(self, now: float) -> bool:
        """Whether one may be begun now; it is taken to be, then."""
        if self.calls < EVERY and (self.under_way > 0 or now - self._last < FLOOR_SECONDS):
            return False
        self._last, self.calls = now, 0
        self.under_way += 1
        return True


class Renewal:
    """One renewal. Whoever took it calls `over` in the end."""

    __slots__ = ("_renewals", "exchange", "fingerprint", "pace")

    def __init__(self, renewals: Renewals, pace: Pace, fingerprint: bytes) -> None:
        self._renewals = renewals
        self.pace = pace
        self.fingerprint = fingerprint
        self.exchange: Exchange | None = None
        """What asks the models."""

    def over(self, kept: bool) -> None:
        """It has ended; whether something came of it."""
        self._renewals.forget(self, kept)


class Tally(msgspec.Struct):
    """What happened so far."""

    begun: int = 0
    kept: int = 0
    failed: int = 0
    """Nothing came that may be kept: what is stale stays."""


class Renewals:
    """The renewals of a process. `clock` counts seconds."""

    __slots__ = ("_clock", "_flights", "_paces", "_resting", "_under_way", "closed", "tally")

    def __init__(self, flights: Flights, clock: Callable[[], float]) -> None:
        self._flights = flights
        self._clock = clock
        self._paces: dict[str, Pace] = {}
        self._under_way: set[Renewal] = set()
        self._resting: OrderedDict[bytes, float] = OrderedDict()
        self.tally = Tally()
        self.closed = False

    def __len__(self) -> int:
        return len(self._under_way)

    def called(self, route: str) -> None:
        """A request of this route asks the models."""
        self._pace(route).calls += 1

    def take(self, route: str, fingerprint: bytes) -> Renewal | None:
        """The renewal of a question if it is to be asked anew now, by whoever gets it; else None."""
        if self.closed or len(self._under_way) >= MOST or fingerprint in self._flights:
            return None
        now = self._clock()
        if self._resting.get(fingerprint, now) > now:
            return None
        pace = self._pace(route)
        if not pace.take(now):
            return None
        renewal = Renewal(self, pace, fingerprint)
        self._under_way.add(renewal)
        self.tally.begun += 1
        return renewal

    def forget(self, renewal: Renewal, kept: bool) -> None:
        """A renewal has ended; safe to repeat."""
        if renewal not in self._under_way:
            return
        self._under_way.discard(renewal)
        renewal.pace.under_way -= 1
        self._resting.pop(renewal.fingerprint, None)
        if kept:
            self.tally.kept += 1
            return
        self.tally.failed += 1
        self._resting[renewal.fingerprint] = self._clock() + REST_SECONDS
        if len(self._resting) > MOST_RESTING:
            self._resting.popitem(last=False)

    def end(self) -> None:
        """Begin none any more and end those under way: nobody waits for them. Safe to repeat."""
        self.closed = True
        for renewal in list(self._under_way):
            x = renewal.exchange
            if x is not None:
                x.gone = True  # No further target is tried, and nothing is kept.
                x.cut(SitsError(Code.DRAINING, "the gateway is shutting down; a renewal is not waited for"))

    def _pace(self, route: str) -> Pace:
        pace = self._paces.get(route)
        if pace is None:
            if len(self._paces) >= MOST_ROUTES:
                self._paces.clear()
            pace = self._paces[route] = Pace()
        return pace


def again(request: Request) -> Request:
    """The request of a client, to be made once more on its behalf, as one that wants nothing from the cache."""
    headers = {name: value for name, value in request.headers.items() if name not in LEFT_OUT}
    headers[b"cache-control"] = b"no-cache"
    return Request(request.method, request.path, request.query, headers, request.body, request.peer, perf_counter())


class Nowhere:
    """A wire to nobody: what is written is gone."""

    __slots__ = ("gone", "listener")

    def __init__(self) -> None:
        self.gone = False
        self.listener: Listener | None = None

    def respond(self, status: int, headers: Headers, body: bytes, lines: bytes = b"") -> None:
        """A whole answer; nobody has it."""

    def open(self, status: int, headers: Headers, first: bytes = b"", lines: bytes = b"") -> None:
        """The head of a stream; nobody has it."""

    def write(self, piece: bytes) -> None:
        """A piece of a stream; nobody has it."""

    def close(self, last: bytes = b"") -> None:
        """The end of a stream that nobody has."""

    def abort(self) -> None:
        """There is no connection to be cut."""
