"""W-TinyLFU (Einziger, Friedman and Manes 2017) with LRU-K's memory (O'Neil et al. 1993): how our caches choose.

    new -> window (LRU) -> admission -> probation <-> protected (the two of a segmented LRU) -> gone

New entries live in a small window first, so that a burst of requests for one thing is served. What leaves the window must be
worth more than what would go for it. Worth is how often each was asked for (the sketch's estimate, which remembers what the
cache no longer holds); between equals, it is LRU-2's: whose last but one request is later, and one that was only ever asked
for once is never let in. A scan asks for everything once, so it passes through the window and displaces nothing.

Entries weigh bytes. One that needs the room of several must be worth more than all of them together (aggregated victims,
Einziger et al. 2022, "Lightweight robust size aware cache management"). The window's share climbs to where the hit ratio is
best (Einziger, Eytan, Friedman and Manes 2018, "Adaptive software cache management").
"""

from __future__ import annotations

from collections import OrderedDict

from sits.state.cache.eviction import NEVER, Limit
from sits.state.cache.sketch import Sketch

FIRST_WINDOW = 0.01
"""The window's share to begin with, as in the paper."""
LEAST_WINDOW, MOST_WINDOW = 0.005, 0.8
PROTECTED = 0.8
"""Share of what is not the window."""
FIRST_STEP = 0.03125
"""How far the window's share moves at first; each step is 0.98 of the one before. With twice that, as Caffeine has it, a good
share is found sooner where recency rules (2 points of hit ratio), and steady traffic pays for it (up to 1 on Zipf, 11 on a
loop)."""
RESTART = 0.05
"""A change of the hit ratio that makes the steps large again: the traffic has become another."""
CLIMBS = 5
"""Requests between two moves of the window's share, for each entry of the cache."""
MOST_VICTIMS = 64
"""How many entries one may replace; a bound of the work for one call."""


class _Entry:
    """What is known of a key that is held."""

    __slots__ = ("before", "last", "region", "weight")

    def __init__(self, weight: int, now: float) -> None:
        self.weight = weight
        self.last = now
        self.before = NEVER
        self.region: _Region


class _Region:
    """Entries in the order of their last request, the oldest first."""

    __slots__ = ("bytes", "entries", "held", "weight")

    def __init__(self) -> None:
        self.held: OrderedDict[bytes, _Entry] = OrderedDict()
        self.weight = 0
        self.bytes = 0
        self.entries = 0

    def put(self, key: bytes, entry: _Entry) -> None:
        self.held[key] = entry
        self.weight += entry.weight
        entry.region = self

    def take(self, key: bytes, entry: _Entry) -> None:
        del self.held[key]
        self.weight -= entry.weight

    def oldest(self) -> tuple[bytes, _Entry]:
        key, entry = self.held.popitem(last=False)
        self.weight -= entry.weight
        return key, entry

    @property
    def full(self) -> bool:
        """Whether it holds more than its share."""
        return self.weight > self.bytes or len(self.held) > self.entries


class TinyLfu:
    """W-TinyLFU with LRU-2's tie-break, weighed by bytes, its window adapted to the traffic."""

    __slots__ = (
        "_asked",
        "_hits",
        "_known",
        "_period",
        "_probation",
        "_protected",
        "_ratio",
        "_share",
        "_sketch",
        "_step",
        "_window",
        "limit",
        "weight",
    )

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.weight = 0
        self._known: dict[bytes, _Entry] = {}
        self._window = _Region()
        self._probation = _Region()
        self._protected = _Region()
        self._sketch = Sketch(limit.entries)
        self._hits = 0
        self._asked = 0
        self._period = CLIMBS * max(16, limit.entries)
        self._ratio: float | None = None
        self._step = FIRST_STEP
        self._set_share(FIRST_WINDOW)

    def __contains__(self, key: bytes) -> bool:
        return key in self._known

    def __len__(self) -> int:
        return len(self._known)

    @property
    def window(self) -> float:
        """The window's share at the moment."""
        return self._share

    def touch(self, key: bytes, now: float) -> bool:
        self._asked += 1
        self._sketch.count(key)
        if self._asked == self._period:
            self._climb()
        entry = self._known.get(key)
        if entry is None:
            return False
        self._hits += 1
        entry.before = entry.last
        entry.last = now
        region = entry.region
        if region is self._probation:
            self._promote(key, entry)
        else:
            region.held.move_to_end(key)
        return True

    def add(self, key: bytes, weight: int, now: float) -> list[bytes]:
        entry = self._known.get(key)
        if entry is None:
            entry = _Entry(weight, now)
        else:
            self._forget(key, entry)
            entry.weight = weight
        if weight > self._probation.bytes:
            return [key]
        self._known[key] = entry
        self.weight += weight
        gone: list[bytes] = []
        window = self._window
        if weight > window.bytes:
            # It would push all others out of the window.
            self._offer(key, entry, gone)
            return gone
        window.put(key, entry)
        while window.full:
            self._offer(*window.oldest(), gone)
        return gone

    def remove(self, key: bytes) -> None:
        entry = self._known.get(key)
        if entry is not None:
            self._forget(key, entry)

    def _forget(self, key: bytes, entry: _Entry) -> None:
        del self._known[key]
        entry.region.take(key, entry)
        self.weight -= entry.weight

    def _promote(self, key: bytes, entry: _Entry) -> None:
        """From probation to protected; those that have no room there any more get another probation."""
        protected, probation = self._protected, self._probation
        if entry.weight > protected.bytes:
            probation.held.move_to_end(key)
            return
        probation.take(key, entry)
        protected.put(key, entry)
        while protected.full:
            probation.put(*protected.oldest())

    def _offer(self, key: bytes, entry: _Entry, gone: list[bytes]) -> None:
        """Let an entry that belongs to no region into probation, or let it go; who goes is added to `gone`."""
        victims = self._victims(key, entry)
        if victims is None:
            victims = [key]
            del self._known[key]
            self.weight -= entry.weight
        else:
            for victim in victims:
                self._forget(victim, self._known[victim])
            self._probation.put(key, entry)
        gone += victims

    def _victims(self, key: bytes, entry: _Entry) -> list[bytes] | None:
        """Who must go for this entry; None when it is not worth that."""
        probation, protected = self._probation, self._protected
        excess = probation.weight + protected.weight + entry.weight - probation.bytes
        crowd = len(probation.held) + len(protected.held) + 1 - probation.entries
        if excess <= 0 and crowd <= 0:
            return []
        worth = self._sketch.estimate(key)
        victims: list[bytes] = []
        latest = NEVER
        for region in (probation, protected):
            for victim, held in region.held.items():
                worth -= self._sketch.estimate(victim)
                latest = max(latest, held.before)
                if worth < 0 or (worth == 0 and entry.before <= latest) or len(victims) == MOST_VICTIMS:
                    return None
                victims.append(victim)
                excess -= held.weight
                if excess <= 0 and len(victims) >= crowd:
                    return victims
        return None

    # The window's share.

    def _set_share(self, share: float) -> None:
        """`_probation`'s bounds are those of probation and protected together."""
        limit = self.limit
        window, probation, protected = self._window, self._probation, self._protected
        window.bytes = int(limit.bytes * share)
        window.entries = min(max(1, int(limit.entries * share)), limit.entries - 1)
        probation.bytes, probation.entries = limit.bytes - window.bytes, limit.entries - window.entries
        protected.bytes, protected.entries = int(probation.bytes * PROTECTED), int(probation.entries * PROTECTED)
        self._share = share

    def _climb(self) -> None:
        """Once a period: move the window's share on, in the other direction when the last move did harm.

        A loop a little larger than the cache misleads it, as a move takes more than a period to show there: the hit ratio is then
        up to 14 points below the best share's. A climber that goes back after each vain move had those, and lost up to 6 on
        traffic in which recency rules.
        """
        ratio, before = self._hits / self._asked, self._ratio
        self._ratio = ratio
        self._hits = self._asked = 0
        if before is None:
            return  # While the cache fills, the ratio rises by itself.
        change = ratio - before
        step = self._step if change >= 0 else -self._step
        self._share_to(min(MOST_WINDOW, max(LEAST_WINDOW, self._share + step)))
        self._step = (FIRST_STEP if step > 0 else -FIRST_STEP) if abs(change) >= RESTART else 0.98 * step

    def _share_to(self, share: float) -> None:
        """Another share; entries change sides so that nobody goes. 2 ms at 65,536 entries, once in 327,680 requests."""
        self._set_share(share)
        window, probation, protected = self._window, self._probation, self._protected
        while protected.full:
            probation.put(*protected.oldest())
        while window.full:
            probation.put(*window.oldest())
        while (
            probation.weight + protected.weight > probation.bytes or len(probation.held) + len(protected.held) > probation.entries
        ):
            window.put(*(probation if probation.held else protected).oldest())
