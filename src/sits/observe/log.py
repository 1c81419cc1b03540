"""Logs as JSON, one object a line, written off the path.

Whoever logs appends to a bounded queue; a thread encodes, redacts and writes in small batches, so a slow or stuck reader of
stderr costs lines (they are counted), never requests. Everything that is written passes the redactor.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from typing import Any

from sits.inner.seldom import Seldom
from sits.inner.utf8 import encoded, utf8
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
EACH_SECONDS, EACH_AT_ONCE = 30.0, 10
"""How often the log says the same of the same subject."""
PLACE_SECONDS, PLACE_AT_ONCE = 2.0, 300
"""How often one place in the source speaks, of whatever: 300 models may go away at once."""
LONGEST = 16 * 1024
"""Characters of what is said in one line."""
_CORRELATION = ("request_id", "trace_id", "span_id")


class LineWriter:
    """A bounded queue of lines to be, and the thread that writes them.

    `write` is called with whole lines, from the thread; what it raises costs that batch, counted as dropped.
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
                except Exception:  # The reader of stderr is gone or full, say: there is nobody to tell but the metric.
                    self._dropped.value += len(batch)
        return taken

    def _encode(self, item: Record | dict[str, Any]) -> bytes:
        """The line, or nothing (and one more dropped) for what cannot be said in JSON at all."""
        try:
            if isinstance(item, Record):
                return self._access.line(item) + b"\n"
            said = item.get("msg")
            if isinstance(said, str) and len(said) > LONGEST:
                item = {**item, "msg": self._redactor.message(said, LONGEST)}
            return self._redactor.line(encoded(item, str)) + b"\n"
        except Exception:  # Of whatever kind: it would end the thread, and the log with it. Nobody but the metric can be told.
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


class Repeats:
    """Leaves out of the log what comes again and again: a line that a client can cause with each request is told a few times, and
    then now and then with how many more there were. What is said for debugging is never left out."""

    __slots__ = ("_clock", "_each", "_held", "_place")

    def __init__(self, held: Counter, clock: Callable[[], float] = time.monotonic) -> None:
        """`held` counts the lines that are left out."""
        self._held = held
        self._clock = clock
        self._each = Seldom(EACH_SECONDS, EACH_AT_ONCE, most=4096)
        self._place = Seldom(PLACE_SECONDS, PLACE_AT_ONCE, most=4096)

    def due(self, record: logging.LogRecord) -> int | None:
        """How many like it were left out since the last one; None where this one is left out too."""
        if record.levelno < logging.INFO:
            return 0
        place, now = (record.pathname, record.lineno), self._clock()
        each = self._each.due((*place, _subject(record)), now)
        # Subjects can be made up by clients without end, places cannot.
        both = None if each is None else self._place.due(place, now)
        if each is None or both is None:
            self._held.value += 1
            return None
        return each + both


def _subject(record: logging.LogRecord) -> Hashable:
    """What a line is about: where the defect is, or what the line names first."""
    trace = record.exc_info[2] if record.exc_info else None
    if trace is not None:
        while trace.tb_next is not None:
            trace = trace.tb_next
        return (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    first = record.args[0] if isinstance(record.args, tuple) and record.args else None
    return first[:200] if isinstance(first, str) else None


class JsonHandler(logging.Handler):
    """Hands records of the logging module to a `LineWriter`, with the ids of the exchange where they are known."""

    def __init__(self, lines: LineWriter, repeats: Repeats | None = None) -> None:
        super().__init__()
        self._lines = lines
        self._repeats = repeats if repeats is not None else Repeats(Counter())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            left_out = self._repeats.due(record)
            if left_out is not None:
                line = _object(record)
                if left_out:
                    line["left_out"] = left_out
                self._lines.put(line)
        except (TypeError, ValueError):  # The caller's format and arguments do not fit; logging reports whose fault it is.
            self.handleError(record)


def _object(record: logging.LogRecord) -> dict[str, Any]:
    line: dict[str, Any] = {
        "ts": rfc3339(record.created),
        "level": record.levelname.lower(),
        "logger": record.name,
        "msg": utf8(record.getMessage()),
    }
    context = current_trace.get()
    for name in _CORRELATION:
        value = getattr(record, name, None) or getattr(context, name, None)
        if value:
            line[name] = utf8(str(value))
    if record.exc_info and record.exc_info[0] is not None:
        line["error"] = record.exc_info[0].__name__
        line["stack"] = utf8("".join(traceback.format_exception(*record.exc_info)))
    return line


def log_to(lines: LineWriter, level: str, held: Counter | None = None) -> Callable[[], None]:
    """Send what the logging module gets, from `level` up, to `lines`, without what comes again and again, which `held` counts;
    call what is returned to undo it."""
    root = logging.getLogger()
    handler = JsonHandler(lines, Repeats(held if held is not None else Counter()))
    before = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())

    def undo() -> None:
        root.removeHandler(handler)
        root.setLevel(before)

    return undo
