"""Logs as JSON, one object a line, written off the path.

Whoever logs appends to a bounded queue; a thread encodes, redacts and writes in small batches, so a slow or stuck reader of
stderr costs lines (they are counted), never requests. Everything that is written passes the redactor.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import msgspec

from sits.observe.access import AccessLines
from sits.observe.metrics import Counter
from sits.observe.record import Record
from sits.observe.redact import Redactor
from sits.observe.stamp import rfc3339
from sits.observe.trace import Trace

current_trace: ContextVar[Trace | None] = ContextVar("current_trace", default=None)
"""The trace that code without an exchange at hand logs under; an explicit `extra={"trace_id": ...}` wins."""

_BATCH = 32
"""Lines encoded in one go: about 0.08 ms (2.5 us each) for which the event loop waits; each write lets it in."""
_CORRELATION = ("request_id", "trace_id", "span_id")


class LineWriter:
    """A bounded queue of lines to be, and the thread that writes them.

    `write` is called with whole lines, from the thread; what it raises as OSError costs that batch, counted as dropped.
    """

    __slots__ = ("_access", "_capacity", "_dropped", "_queue", "_redactor", "_stop", "_thread", "_write", "_writing")

    def __init__(self, write: Callable[[bytes], object], redactor: Redactor, dropped: Counter, capacity: int = 16384) -> None:
        self._write = write
        self._redactor = redactor
        self._access = AccessLines(redactor)
        self._dropped = dropped
        self._capacity = capacity
        self._queue: deque[Record | dict[str, Any]] = deque()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._writing = threading.Lock()

    def put(self, item: Record | dict[str, Any]) -> None:
        """Have a finished record or a log object written; it must not change any more. 0.1 us; drops when full."""
        if len(self._queue) < self._capacity:
            self._queue.append(item)
        else:
            self._dropped.value += 1

    def flush(self, limit: int | None = None) -> int:
        """Write what is queued, or `limit` lines of it, from the calling thread; the number of lines taken."""
        taken = 0
        with self._writing:
            while self._queue and (limit is None or taken < limit):
                room = _BATCH if limit is None else min(_BATCH, limit - taken)
                batch = [self._queue.popleft() for _ in range(min(room, len(self._queue)))]
                taken += len(batch)
                try:
                    self._write(self._redactor.exact(b"".join(self._encode(item) for item in batch)))
                except OSError:  # The reader of stderr is gone or full: there is nobody to tell but the metric.
                    self._dropped.value += len(batch)
        return taken

    def _encode(self, item: Record | dict[str, Any]) -> bytes:
        """The line, or nothing (and one more dropped) for what JSON cannot say, such as a lone surrogate."""
        try:
            if isinstance(item, Record):
                return self._access.line(item) + b"\n"
            return self._redactor.line(msgspec.json.encode(item, enc_hook=str)) + b"\n"
        except (TypeError, ValueError, msgspec.MsgspecError):
            self._dropped.value += 1
            return b""

    def start(self, every: float = 0.05) -> None:
        """Write what is queued every so many seconds, from a daemon thread. Call it after any fork."""
        if self._thread is not None:
            return
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, args=(every,), name="sits-log", daemon=True)
        self._thread.start()

    def stop(self, patience: float = 2.0) -> None:
        """End the thread and write what is left, waiting at most `patience` seconds for a stuck reader."""
        thread, self._thread = self._thread, None
        if thread is None:
            self.flush()
            return
        self._stop.set()
        thread.join(patience)

    def _run(self, every: float) -> None:
        while not self._stop.wait(every):
            self.flush()
        self.flush()


class JsonHandler(logging.Handler):
    """Hands records of the logging module to a `LineWriter`, with the ids of the exchange where they are known."""

    def __init__(self, lines: LineWriter) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put(_object(record))
        except (TypeError, ValueError):  # The caller's format and arguments do not fit; logging reports whose fault it is.
            self.handleError(record)


def _object(record: logging.LogRecord) -> dict[str, Any]:
    line: dict[str, Any] = {
        "ts": rfc3339(record.created),
        "level": record.levelname.lower(),
        "logger": record.name,
        "msg": _utf8(record.getMessage()),
    }
    context = current_trace.get()
    for name in _CORRELATION:
        value = getattr(record, name, None) or getattr(context, name, None)
        if value:
            line[name] = _utf8(str(value))
    if record.exc_info and record.exc_info[0] is not None:
        line["error"] = record.exc_info[0].__name__
        line["stack"] = _utf8("".join(traceback.format_exception(*record.exc_info)))
    return line


def _utf8(text: str) -> str:
    """The text with lone surrogates (undecodable bytes of a path, say) spelled out, so that it can be encoded."""
    return text.encode("utf-8", "backslashreplace").decode()


def log_to(lines: LineWriter, level: str) -> Callable[[], None]:
    """Send everything that the logging module gets, from `level` up, to `lines`; call what is returned to undo it."""
    root = logging.getLogger()
    handler = JsonHandler(lines)
    before = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())

    def undo() -> None:
        root.removeHandler(handler)
        root.setLevel(before)

    return undo
