"""The kept messages of an in-process bus: read by offset, so a subscriber that does not read costs nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from sits.inner.errors import Code, SitsError
from sits.ports.bus.base import KEPT, KEPT_BYTES, KEPT_SECONDS, MOST_ROWS, MOST_SUBJECTS, Message, Pair
from sits.ports.bus.bell import Bell
from sits.ports.bus.recent import RecentIds
from sits.ports.bus.rows import Rows


class Channel:
    """The messages of one subject: `messages` has those from `first` to below `next` without a hole."""

    __slots__ = ("bell", "first", "messages", "next", "size")

    def __init__(self) -> None:
        self.bell = Bell()
        self.messages: dict[int, Message] = {}
        self.first = 1
        self.next = 1
        self.size = 0

    def drop_oldest(self) -> None:
        self.size -= len(self.messages.pop(self.first).payload)
        self.first += 1

    def read(self, offset: int) -> Message | None:
        """The first kept message from `offset` on; it tells how many before it are gone."""
        if offset >= self.next:
            return None
        if offset >= self.first:
            return self.messages[offset]
        return msgspec.structs.replace(self.messages[self.first], lost=self.first - offset)

    def start(self, after: int | None) -> int:
        """Where a subscription begins. One that is ahead of us remembers a log that is gone, so it gets all of this one."""
        if after is None:
            return self.next
        return after + 1 if after < self.next else 1


class Log:
    """Channels and the table of an in-process bus; several handles may share one."""

    __slots__ = ("_channels", "_ids", "_kept", "_kept_bytes", "_kept_seconds", "_revision", "rows", "wall")

    def __init__(
        self,
        *,
        wall: Callable[[], float] = time.time,
        kept: int = KEPT,
        kept_bytes: int = KEPT_BYTES,
        kept_seconds: float = KEPT_SECONDS,
    ) -> None:
        self.wall = wall
        self.rows = Rows()
        self._kept = kept
        self._kept_bytes = kept_bytes
        self._kept_seconds = kept_seconds
        self._channels: dict[str, Channel] = {}
        self._ids = RecentIds()
        self._revision = 0

    def channel(self, subject: str) -> Channel:
        """The messages of a subject."""
        channel = self._channels.get(subject)
        if channel is None:
            if len(self._channels) >= MOST_SUBJECTS:
                raise SitsError(Code.OVERLOADED, f"the bus has {MOST_SUBJECTS} subjects already")
            channel = self._channels[subject] = Channel()
        return channel

    def publish(self, subject: str, payload: bytes, id: str) -> int:
        """Keep a message, unless its id was seen; returns its offset."""
        now = self.wall()
        seen = self._ids.offset(subject, id, now=now)
        if seen is not None:
            return seen
        channel = self.channel(subject)
        offset = channel.next
        channel.messages[offset] = Message(subject, payload, offset, now, id)
        channel.next += 1
        channel.size += len(payload)
        self._ids.remember(subject, id, offset, now=now)
        while len(channel.messages) > 1 and self._is_over(channel, now):
            channel.drop_oldest()
        channel.bell.ring()
        return offset

    def change(self, key: str, value: bytes | None, expect: int | None) -> int:
        """Set a row, or take it away (None), when `expect` holds; returns the revision.

        Raises:
            SitsError: `conflict`; `overloaded`, too many rows.
        """
        if not self.rows.holds(key, expect):
            raise SitsError(Code.CONFLICT, f"{key} is not at revision {expect}")
        if value is not None and self.rows.get(key) is None and len(self.rows) >= MOST_ROWS:
            raise SitsError(Code.OVERLOADED, f"the table has {MOST_ROWS} rows already")
        self._revision += 1
        self.rows.change(Pair(key, value, self._revision))
        return self._revision

    def _is_over(self, channel: Channel, now: float) -> bool:
        return (
            len(channel.messages) > self._kept
            or channel.size > self._kept_bytes
            or now - channel.messages[channel.first].at > self._kept_seconds
        )
