"""A share of good or bad over a rolling window, and the alarm that it sounds once for each episode.

Pure: time is passed in. The window is a ring of slices, so that counting costs the same whatever the traffic is, and what is
older than the window is forgotten a slice at a time.
"""

from __future__ import annotations

SLICES = 20


class Share:
    """How many of those counted in the last `seconds` were marked."""

    __slots__ = ("_at", "_marked", "_slice", "_total", "marked", "total")

    def __init__(self, seconds: float) -> None:
        self._slice = seconds / SLICES
        self._total = [0] * SLICES
        self._marked = [0] * SLICES
        self._at = -1
        self.total = 0
        self.marked = 0

    def count(self, marked: bool, now: float) -> None:
        """Count one. `now` in seconds; a clock that goes back counts into the newest slice."""
        self.look(now)
        place = self._at % SLICES
        self._total[place] += 1
        self.total += 1
        if marked:
            self._marked[place] += 1
            self.marked += 1

    def look(self, now: float) -> Share:
        """The same, with what is too old by `now` forgotten."""
        at = int(now / self._slice)
        if at > self._at:
            for passed in range(max(self._at + 1, at - SLICES + 1), at + 1) if self._at >= 0 else ():
                place = passed % SLICES
                self.total -= self._total[place]
                self.marked -= self._marked[place]
                self._total[place] = self._marked[place] = 0
            self._at = at
        return self

    @property
    def rate(self) -> float:
        """The share that is marked; 0 when nothing was counted."""
        return self.marked / self.total if self.total else 0.0


class Alarm:
    """Sounds when a share is above `limit`, once, and is over when it is at half of that or below, or nothing is known any more.

    Coming down to the limit alone does not end an episode: a rate that swings about it would sound again and again.
    """

    __slots__ = ("_least", "limit", "on", "sounded")

    def __init__(self, limit: float, least: int) -> None:
        """`least`: so many must have been counted before anything is concluded."""
        self._least = least
        self.limit = limit
        self.on = False
        self.sounded = 0
        """Episodes so far."""

    def judge(self, share: Share) -> bool:
        """Whether an episode begins with this share."""
        if share.total < self._least:
            self.on = self.on and share.total > 0
            return False
        rate = share.rate
        if self.on:
            self.on = rate > self.limit / 2
            return False
        if rate > self.limit:
            self.on = True
            self.sounded += 1
            return True
        return False
