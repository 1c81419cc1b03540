"""The writing end of the ledger: one process's segments. Writing is a copy into memory, about a microsecond.

When a segment is full the next one is taken, which somebody else has made ready. Requests never wait and never fail because
of the ledger; when there is no room at all (the table has been away for long, the disk is full) entries are counted as dropped.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

from sits.state.ledger.entry import Entry, pack, tamed
from sits.state.ledger.segment import FRAME, HEAD, Segment
from sits.state.ledger.ulid import ulid

FOLDER = "ledger"
SEGMENT_BYTES = 4 * 1024 * 1024
"""About 25,000 entries."""
SEGMENTS = 64
"""For each worker: 256 MiB, about 1.6 million entries, before any is dropped."""
LARGEST = 4096
"""Bytes of a record; a longer one has its texts cut."""
RETRY_SECONDS = 1.0
"""How long no new segment is tried for after one could not be made."""
_log = logging.getLogger("sits.ledger")


class Journal:
    """Written by one thread; `spare_up` and `closed` are for the thread that drains."""

    __slots__ = (
        "_clock",
        "_entropy",
        "_retry_at",
        "_segment_bytes",
        "_segments",
        "_wall",
        "active",
        "closed",
        "dropped",
        "folder",
        "on_turn",
        "spare",
        "trouble",
        "wanting",
        "written",
    )

    def __init__(
        self,
        folder: Path,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        segment_bytes: int = SEGMENT_BYTES,
        segments: int = SEGMENTS,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """`clock` counts seconds from anywhere, `wall` is unix time; `folder` must exist."""
        if segment_bytes < HEAD + FRAME.size + LARGEST or segments < 1:
            raise ValueError("a journal has at least one segment, with room for at least one record")
        self.folder = folder
        self.active: Segment | None = None
        self.spare: Segment | None = None
        self.closed: deque[Segment] = deque()
        self.written = 0
        self.dropped = 0
        self.trouble = ""
        """Why the last segment that was needed could not be had."""
        self.wanting = ""
        """Why the next segment is not ready; empty when it is, or when it is the table that must make room."""
        self.on_turn: Callable[[], None] = _nothing
        """Called when a segment was filled."""
        self._clock = clock
        self._wall = wall
        self._entropy = entropy
        self._segment_bytes = segment_bytes
        self._segments = segments
        self._retry_at = 0.0

    def write(self, entry: Entry) -> None:
        """Keep an entry: from here on it outlives this process. Never raises, never waits."""
        try:
            payload = pack(entry)
            size = len(payload)
            segment = self.active
            if segment is not None and size <= LARGEST:
                # `Segment.put` by hand: the call is a tenth of it all.
                at = segment.at
                end = at + 8 + size
                if end <= segment.capacity:
                    segment.map[at:end] = FRAME.pack(size, crc32(payload, segment.seed)) + payload
                    segment.at = end
                    self.written += 1
                    return
        except Exception:  # Whatever it is that cannot be written down: `_write_anyway` finds a form, or counts it.
            payload = b""
        self._write_anyway(entry, payload)

    def spare_up(self) -> None:
        """Make the next segment ready, unless there is one or the cap is reached."""
        if self.spare is None and len(self.closed) + (self.active is not None) < self._segments:
            self.spare = self._made()
            self.wanting = "" if self.spare is not None else self.trouble

    def close(self) -> None:
        """Take no more entries: what is written stands in `closed`."""
        active, self.active = self.active, None
        self._segments = 0
        if active is not None:
            self.closed.append(active)
        spare, self.spare = self.spare, None
        if spare is not None:
            spare.remove()

    def _write_anyway(self, entry: Entry, payload: bytes) -> None:
        try:
            if not payload or len(payload) > LARGEST:
                payload = pack(tamed(entry))
            segment = self.active
            if (segment is not None and segment.put(payload)) or ((segment := self._turn()) and segment.put(payload)):
                self.written += 1
                return
        except Exception as error:  # The request must not be hurt by its book-keeping; `dropped` and the drain tell.
            self.trouble = f"an entry could not be written: {type(error).__name__}: {error}"
        self.dropped += 1

    def _turn(self) -> Segment | None:
        """Leave the full segment for a new one; None when there is none to be had."""
        following, self.spare = self.spare, None
        if following is None:
            if len(self.closed) + (self.active is not None) >= self._segments:
                self.trouble = f"all {self._segments} segments are full and the table does not take them"
                return None
            if (following := self._made()) is None:
                return None
        full, self.active = self.active, following
        if full is not None:
            self.closed.append(full)
        self.on_turn()
        return following

    def _made(self) -> Segment | None:
        if self._clock() < self._retry_at:
            return None
        try:
            return Segment(self.folder, ulid(self._wall(), self._entropy(10)), self._segment_bytes)
        except OSError as error:
            self._retry_at = self._clock() + RETRY_SECONDS
            self.trouble = f"{self.folder}: {error.strerror}"
            return None


def _nothing() -> None:
    """Until somebody wants to know."""
