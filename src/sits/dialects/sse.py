"""Server-sent events, decoded incrementally (WHATWG HTML, section 9.2.6).

Lines end with CR, LF or CRLF; a lone CR at the end of the buffer may be half of a CRLF, so it waits for the next piece.
Events are only complete at a blank line: what is left at the end of the body is incomplete and is dropped, as the standard
says. The search for a line end resumes where it stopped, so that one long line in small pieces stays linear.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_EVENT = 16 * 1024 * 1024
"""Bytes that one event may take before the stream is taken for garbage."""


class ServerEvent(NamedTuple):
    event: str
    """The event's type; "message" where the stream names none."""
    data: bytes
    """The data lines joined by LF."""


class EventTooLong(ValueError):
    """One event is longer than `MAX_EVENT`."""


class EventDecoder:
    """Bytes in, complete events out, however the bytes are cut."""

    __slots__ = ("_buffer", "_data", "_event", "_first", "_scanned", "_size")

    def __init__(self) -> None:
        self._buffer = b""
        self._scanned = 0
        self._data: list[bytes] = []
        self._event = ""
        self._first = True
        self._size = 0

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """The events that `piece` completes.

        Raises:
            EventTooLong: the stream holds no event end within `MAX_EVENT` bytes.
        """
        buffer = self._buffer + piece if self._buffer else piece
        if self._first:
            if len(buffer) < 3 and b"\xef\xbb\xbf".startswith(buffer):
                self._buffer = buffer
                return []
            self._first = False
            if buffer.startswith(b"\xef\xbb\xbf"):
                buffer = buffer[3:]
        events: list[ServerEvent] = []
        start, scan = 0, self._scanned
        while True:
            end, after = _line_end(buffer, scan)
            if end < 0:
                break
            self._line(buffer[start:end], events)
            start = scan = after
        self._buffer = buffer[start:]
        self._scanned = max(0, len(self._buffer) - 1)
        if self._size + len(self._buffer) > MAX_EVENT:
            raise EventTooLong(f"no end of an event within {MAX_EVENT} bytes")
        return events

    def _line(self, line: bytes, events: list[ServerEvent]) -> None:
        if not line:
            if self._data:
                events.append(ServerEvent(self._event or "message", b"\n".join(self._data)))
                self._data = []
            self._event = ""
            self._size = 0
            return
        name, colon, value = line.partition(b":")
        if colon and value[:1] == b" ":
            value = value[1:]
        if name == b"data":
            self._data.append(value)
            self._size += len(value) + 1
            if self._size > MAX_EVENT:
                raise EventTooLong(f"an event of more than {MAX_EVENT} bytes")
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")


def _line_end(buffer: bytes, scan: int) -> tuple[int, int]:
    """Where the next line ends and the one after it starts; (-1, -1) when its end is not in the buffer yet."""
    feed = buffer.find(b"\n", scan)
    carriage = buffer.find(b"\r", scan, feed if feed >= 0 else len(buffer))
    if carriage < 0:
        return (feed, feed + 1) if feed >= 0 else (-1, -1)
    if carriage + 1 == len(buffer):
        return (-1, -1)
    return (carriage, carriage + 2 if buffer[carriage + 1] == 10 else carriage + 1)


def encode(data: bytes, event: str | None = None) -> bytes:
    """One event; `data` must hold no line end (JSON text has none)."""
    if event is None:
        return b"data: %b\n\n" % data
    return b"event: %b\ndata: %b\n\n" % (event.encode(), data)
