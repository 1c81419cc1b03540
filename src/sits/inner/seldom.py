"""What may be said so and so often: the generic cell rate algorithm (ITU-T I.371), one time and one count for each subject.

What is said too often is counted, and whoever says the next one can say how much was left out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class Seldom:
    """At most `burst` of a subject at once, and one more every `seconds`. Of more than `most`, who was quiet longest goes."""

    __slots__ = ("_burst", "_most", "_rows", "_seconds")

    def __init__(self, seconds: float, burst: int = 1, most: int = 1024) -> None:
        self._seconds = seconds
        self._burst = burst
        self._most = most
        self._rows: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()
        """(when all of the burst is there again, how many were left out)."""

    def __len__(self) -> int:
        return len(self._rows)

    def due(self, subject: Hashable, now: float) -> int | None:
        """How many were left out since the last one that was said; None when it is too early, and this one is left out too."""
        rows = self._rows
        whole, left_out = rows.get(subject, (now, 0))
        # A clock that was set back must not keep a subject quiet for longer than one that ran.
        whole = min(max(whole, now), now + self._burst * self._seconds)
        if whole - now > (self._burst - 1) * self._seconds:
            rows[subject] = (whole, left_out + 1)
            said = None
        else:
            rows[subject] = (whole + self._seconds, 0)
            said = left_out
        rows.move_to_end(subject)
        if len(rows) > self._most:
            rows.popitem(last=False)
        return said
