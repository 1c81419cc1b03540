"""JSON lines, decoded incrementally: one JSON text a line (https://jsonlines.org), as Ollama streams them.

Lines end with LF or CRLF; blank lines are skipped. Unlike in server-sent events the last line counts even without its end,
so `close` gives it. The search for a line end looks only at what is new, so that one long line in small pieces stays linear.
"""

from __future__ import annotations

MAX_LINE = 16 * 1024 * 1024
"""Bytes that one line may take before the stream is taken for garbage."""


class LineTooLong(ValueError):
    """One line is longer than `MAX_LINE`."""


class LineDecoder:
    """Bytes in, complete lines out, however the bytes are cut."""

    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that `piece` completes, without their ends.

        Raises:
            LineTooLong: the stream holds no line end within `MAX_LINE` bytes.
        """
        head, end, rest = piece.partition(b"\n")
        if not end:
            self._keep(piece)
            return []
        self._keep(head)
        lines = [b"".join(self._parts)]
        *more, tail = rest.split(b"\n")
        lines += more
        self._parts, self._size = [], 0
        self._keep(tail)
        return [line for raw in lines if (line := raw.strip(b" \t\r"))]

    def close(self) -> list[bytes]:
        """The last line, once the body has ended, if there is one."""
        line = b"".join(self._parts).strip(b" \t\r")
        self._parts, self._size = [], 0
        return [line] if line else []

    def _keep(self, part: bytes) -> None:
        if not part:
            return
        self._parts.append(part)
        self._size += len(part)
        if self._size > MAX_LINE:
            raise LineTooLong(f"no end of a line within {MAX_LINE} bytes")
