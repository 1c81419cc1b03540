"""Counts over the last so many seconds, in whole numbers: twelve cells, of which the oldest is dropped when a new one begins.

What the window holds is kept as one list of totals, so that an answer costs an increment or two; cells are made of differences,
and only when one ends.
"""

from __future__ import annotations

from collections import deque

CELLS = 12
GOOD, BAD, TIMED, SLOW, FIRST = range(5)
"""Places in `figures`; from FIRST on, times of first content by class."""
BOUNDS = tuple(1.25**power for power in range(62))
"""Upper bounds in milliseconds, from 1 ms to 13 minutes: a percentile is read off to a quarter above."""
_SIZE = FIRST + len(BOUNDS) + 1


class Window:
    """The figures of the last `seconds`, to a twelfth. Whoever counts calls `turn` first when `turn_at` has come."""

    __slots__ = ("_cells", "_done", "_index", "_width", "figures", "turn_at")

    def __init__(self, seconds: float, now: float) -> None:
        self._width = seconds / CELLS
        self.clear(now)

    def clear(self, now: float) -> None:
        """Forget everything."""
        self.figures = [0] * _SIZE
        self._done = [0] * _SIZE
        """What `figures` was when the present cell began."""
        self._cells: deque[list[int] | None] = deque()
        """Ended cells, oldest first; None for one in which nothing was counted."""
        self._begin(int(now / self._width))

    def turn(self, now: float) -> None:
        """Begin the cell of `now`; what is older than the window is gone from `figures`."""
        index = int(now / self._width)
        passed = index - self._index
        if passed >= CELLS:
            self.clear(now)
            return
        if passed <= 0:
            return
        figures = self.figures
        ended = [whole - before for whole, before in zip(figures, self._done, strict=True)]
        self._cells.append(ended if any(ended) else None)
        self._cells.extend([None] * (passed - 1))
        while len(self._cells) >= CELLS:
            oldest = self._cells.popleft()
            if oldest is not None:
                for place, count in enumerate(oldest):
                    figures[place] -= count
        self._done = list(figures)
        self._begin(index)

    @property
    def volume(self) -> int:
        return self.figures[GOOD] + self.figures[BAD]

    @property
    def share(self) -> float | None:
        """The share of good answers; None when there were none at all."""
        volume = self.volume
        return self.figures[GOOD] / volume if volume else None

    @property
    def p99_ms(self) -> float | None:
        """At the most so long took the first content of 99 of 100 answers; None when none was timed."""
        figures = self.figures
        left = -(-99 * figures[TIMED] // 100)
        if not left:
            return None
        for place, bound in enumerate(BOUNDS):
            left -= figures[FIRST + place]
            if left <= 0:
                return bound
        return float("inf")

    def _begin(self, index: int) -> None:
        self._index = index
        self.turn_at = (index + 1) * self._width
