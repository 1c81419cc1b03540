"""Answers that come as server-sent events: what is the same for all servers that send one JSON value an event."""

from __future__ import annotations

from sits.dialects import sse
from sits.dialects.openai_errors import broken
from sits.inner.errors import SitsError
from sits.inner.event import Event


class EventAnswer:
    """Cuts a stream into events and reads them one by one, until `_read` says that it is `done`."""

    __slots__ = ("_events", "done", "skipped")

    def __init__(self) -> None:
        self._events = sse.EventDecoder()
        self.done = False
        self.skipped = 0

    def feed(self, piece: bytes) -> list[Event]:
        if self.done:
            return []
        try:
            found = self._events.feed(piece)
        except sse.EventTooLong as exc:
            raise broken(f"The model server's answer is not a stream of events: {exc}.") from exc
        return self._all(found)

    def _all(self, found: list[sse.ServerEvent]) -> list[Event]:
        events: list[Event] = []
        for each in found:
            try:
                events += self._read(each.data)
            except SitsError as error:
                error.args = (error.message, events)
                raise
            if self.done:
                break
        return events

    def _read(self, data: bytes) -> list[Event]:
        """What one event says."""
        raise NotImplementedError
