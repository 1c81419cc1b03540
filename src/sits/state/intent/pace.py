"""How long an embedding model takes for so much text, by what it took before: pure, of one reader.

Text is counted in bytes, in classes of which each has twice as much as the one before. Of a class is known the less of what came
last and of an average that follows, so that one slow answer does not count for long; of one that nothing is known of, that it
takes no less than smaller ones.
"""

from __future__ import annotations

CLASSES = 24
NEW = 0.3
"""The weight of what came last."""
AGAIN = 1.0
"""Seconds after which something is asked again that would have come too late: it may have become quicker."""


class Pace:
    """Of one model. Times are seconds of one monotonic clock."""

    __slots__ = ("_again_at", "_average", "_begun_at", "_last", "_size")

    def __init__(self) -> None:
        self._average: list[float] = [0.0] * CLASSES
        self._last: list[float] = [0.0] * CLASSES
        self._begun_at = 0.0
        self._size = 0
        self._again_at = float("-inf")

    def begin(self, size: int, now: float) -> None:
        """It is asked about so many bytes."""
        self._size, self._begun_at = size, now

    def end(self, now: float) -> None:
        """It has answered."""
        at, took = _class(self._size), now - self._begun_at
        before = self._average[at]
        self._average[at] = took if before == 0.0 else (1.0 - NEW) * before + NEW * took
        self._last[at] = took
        self._size = 0

    def left(self) -> None:
        """It has failed, or is not waited for."""
        self._size = 0

    def seconds(self, size: int, now: float) -> float:
        """When an answer about so many bytes is to be expected that is asked for behind what is under way; 0 where nothing is
        known."""
        first = 0.0
        if self._size:
            first = max(0.0, self._expected(self._size) - (now - self._begun_at))
        return first + self._expected(size)

    def again(self, now: float) -> bool:
        """Whether what would come too late is asked all the same, for nobody to wait for; true once in a while."""
        if self._size or now < self._again_at:
            return False
        self._again_at = now + AGAIN
        return True

    def _expected(self, size: int) -> float:
        return max(min(self._average[at], self._last[at]) for at in range(_class(size) + 1))


def _class(size: int) -> int:
    return min(size.bit_length(), CLASSES - 1)
