"""The sessions that a node has in memory, within bounds; the least lately used go first."""

from __future__ import annotations

from collections import OrderedDict

from sits.state.sessions.placing import Loaded


class Known:
    """A session as this node knows it. `ahead` is it with the changes that wait for the store, None when none do."""

    __slots__ = ("ahead", "checked", "loaded", "stale")

    def __init__(self, loaded: Loaded, checked: float) -> None:
        self.loaded = loaded
        self.ahead: Loaded | None = None
        self.checked = checked
        """When the store last said that this is the newest."""
        self.stale = False
        """A newer one was announced."""

    @property
    def local(self) -> Loaded:
        return self.loaded if self.ahead is None else self.ahead


class Memory:
    """At most so many sessions and bytes; one that is ahead of the store stays, whatever the bounds say."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._known: OrderedDict[str, Known] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._known)

    def get(self, session_id: str) -> Known | None:
        known = self._known.get(session_id)
        if known is not None:
            self._known.move_to_end(session_id)
        return known

    def take(self, session_id: str, loaded: Loaded, now: float) -> Known:
        """The store has said that this is the newest."""
        known = self._known.get(session_id)
        if known is None:
            known = self._known[session_id] = Known(loaded, now)
        else:
            self.bytes -= known.loaded.context.size
            known.loaded, known.checked, known.stale = loaded, now, False
            self._known.move_to_end(session_id)
        self.bytes += loaded.context.size
        self._shed(session_id)
        return known

    def drop(self, session_id: str) -> None:
        known = self._known.pop(session_id, None)
        if known is not None:
            self.bytes -= known.loaded.context.size

    def doubt(self) -> None:
        """Announcements were lost: everything may be old."""
        for known in self._known.values():
            known.stale = True

    def _shed(self, keep: str) -> None:
        if len(self._known) <= self._most and self.bytes <= self._most_bytes:
            return
        for session_id in [name for name, known in self._known.items() if known.ahead is None and name != keep]:
            self.drop(session_id)
            if len(self._known) <= self._most and self.bytes <= self._most_bytes:
                return
