"""Which ids were seen in the last two minutes, and under which offset."""

from __future__ import annotations

from sits.ports.bus.base import SAME_SECONDS

_MOST = 100_000


class RecentIds:
    """Ids with the offset of the message that had them first; the oldest go after `seconds`, or when there are `most`."""

    __slots__ = ("_most", "_seconds", "_seen")

    def __init__(self, *, seconds: float = SAME_SECONDS, most: int = _MOST) -> None:
        self._seconds = seconds
        self._most = most
        self._seen: dict[tuple[str, str], tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def offset(self, subject: str, id: str, *, now: float) -> int | None:
        """The offset of the message that had this id on this subject, None when there was none lately. Never one for ""."""
        seen = self._seen.get((subject, id))
        if seen is None or not id or now - seen[1] >= self._seconds:
            return None
        return seen[0]

    def remember(self, subject: str, id: str, offset: int, *, now: float) -> None:
        """Keep the offset of an id; "" is not kept."""
        if not id:
            return
        self._seen.pop((subject, id), None)
        self._seen[subject, id] = (offset, now)
        # In the order in which they came, so the old ones are in front.
        while self._seen:
            oldest = next(iter(self._seen))
            if len(self._seen) <= self._most and now - self._seen[oldest][1] < self._seconds:
                break
            del self._seen[oldest]
