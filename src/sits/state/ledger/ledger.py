"""The ledger of one process: what every attempt used and cost, kept before the client has the end of its answer.

    write: a copy into the journal (memory that outlives the process)  ->  drain: batches into the table, once a second

What `write` returned from is never lost by the death of the process, by kill -9 too: the bound is 0 entries. A power failure, or
a crash of the kernel, may take what was written since the last drain, which brings it to a disk: `TICK_SECONDS` and the time that
this takes.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from sits.inner.errors import SitsError
from sits.inner.stuck import Stuck, still
from sits.ports.room import told
from sits.state.ledger.drain import Drain
from sits.state.ledger.entry import Entry
from sits.state.ledger.journal import FOLDER, SEGMENT_BYTES, SEGMENTS, Journal
from sits.state.ledger.table import LedgerTable

TICK_SECONDS = 1.0
ORPHAN_TICKS = 10
"""Every so many ticks somebody looks for the journals of the dead."""
FORGET_SECONDS = 600.0
"""How often it is looked for what is too old to be kept."""
COMPLAINT_SECONDS = 60.0
"""How often the same trouble is logged."""
_log = logging.getLogger("sits.ledger")


class Figures(msgspec.Struct, frozen=True):
    """What the ledger did so far, for metrics: all but `waiting` only ever rise."""

    written: int
    dropped: int
    """Entries that there was no room for: the books are incomplete."""
    drained: int
    damaged: int
    failures: int
    """Times that the table did not take what was drained."""
    waiting: int
    """Bytes in the journal that the table has not got yet."""


class Ledger:
    """Open it after the fork, `start` it, `write` from one thread, `close` it. Several processes may share a data folder."""

    def __init__(
        self,
        data: Path,
        table: LedgerTable,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        segments: int = SEGMENTS,
        tick_seconds: float = TICK_SECONDS,
        keep_days: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """`table` becomes the ledger's own: it is closed with it. What is older than `keep_days` is removed from it.

        Raises:
            SitsError: `state_unavailable` or `internal_error`, the folder cannot be made.
        """
        folder = data / FOLDER
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise told(error, folder) from error
        self._journal = Journal(folder, clock=clock, wall=wall, segment_bytes=segment_bytes, segments=segments, entropy=entropy)
        self._table = table
        self._drain = Drain(folder, table, self._journal)
        self._tick_seconds = tick_seconds
        self._keep_days = keep_days
        self._forget_at = -math.inf
        self._clock = clock
        self._wall = wall
        self._wake = threading.Event()
        self._journal.on_turn = self._wake.set
        self._closing = False
        self._thread: threading.Thread | None = None
        self._failures = 0
        self._complained: dict[str, float] = {}
        self._dropped_told = 0
        self._ticks = 0
        self._proven = False
        self.stuck: Stuck | None = None
        """Why entries do not go where they are to go; those that there is room for in the journal are not lost."""
        self.write: Callable[[Entry], None] = self._journal.write
        """Keep an entry. Never raises, never waits; from its return on the entry outlives the process."""

    def start(self) -> None:
        """Make the first segments ready and begin to drain: first what earlier processes left."""
        self._journal.spare_up()
        self._thread = threading.Thread(target=self._run, name="sits-ledger", daemon=True)
        self._thread.start()

    def tick(self) -> None:
        """One round of the drain; the thread does this. Never raises: what goes wrong is logged, and tried again."""
        orphans = self._ticks % ORPHAN_TICKS == 0
        self._ticks += 1
        why = ""
        try:
            self._drain.own()
            if orphans:
                self._drain.orphans()
            if not self._proven:
                self._table.prove()
                self._proven = True
            self._forget()
        except SitsError as error:
            self._failures += 1
            why = self._complain("table", "the table does not take entries, they stay in the journal", error.message)
        except OSError as error:
            self._failures += 1
            why = self._complain("journal", "the journal is in trouble", str(error))
        except Exception as error:  # A defect in here must not end the drain: the journal would fill up.
            self._failures += 1
            why = f"a defect while draining: {type(error).__name__}: {error}"
            _log.exception("a defect while draining the ledger")
        journal = self._journal
        if journal.dropped != self._dropped_told:
            self._dropped_told = journal.dropped
            why = self._complain(
                "dropped", f"{journal.dropped} entries were dropped so far: the books are incomplete", journal.trouble
            )
        if not why and journal.wanting:
            why = f"the journal gets no room for what is to come: {journal.wanting}"
        self.stuck = still(self.stuck, why, self._wall()) if why else None

    def figures(self) -> Figures:
        """What was done so far."""
        journal = self._journal
        live = [*journal.closed, *([journal.active] if journal.active is not None else [])]
        return Figures(
            journal.written,
            journal.dropped,
            self._drain.drained,
            self._drain.damaged,
            self._failures,
            sum(segment.at - segment.drained for segment in live),
        )

    def close(self) -> None:
        """Take no more entries and drain what there is. What the table does not take now stays for the next start.

        Waits for the disk and the table: call it from a worker thread. Safe to repeat.
        """
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self._journal.close()
        self.tick()
        while self._journal.closed:
            self._journal.closed.popleft().leave()
        self._table.close()

    def _run(self) -> None:
        while not self._closing:
            self.tick()
            self._wake.wait(self._tick_seconds)
            self._wake.clear()

    def _forget(self) -> None:
        """Some of what is too old, now and then; the rest with the next ticks."""
        now = self._clock()
        if self._keep_days is None or now < self._forget_at or self._closing:
            return
        if not self._table.forget(self._wall() - self._keep_days * 86_400.0):
            self._forget_at = now + FORGET_SECONDS

    def _complain(self, kind: str, what: str, why: str) -> str:
        """Say it, though not every second; what is to be said."""
        now = self._clock()
        if now - self._complained.get(kind, -math.inf) >= COMPLAINT_SECONDS:
            self._complained[kind] = now
            _log.error("%s: %s", what, why)
        return f"{what}: {why}"
