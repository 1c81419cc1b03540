"""From the journal into the table, in batches, off the hot path.

A batch and the note of how far its segment is drained are one transaction, and rows are known by their place in the journal: a
batch that is added twice, because a crash came between the table's commit and our own, is there once. A segment is deleted only
when the table has all of it on its disk.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path

import msgspec

from sits.state.ledger.entry import Row, row_of, unpack
from sits.state.ledger.journal import Journal
from sits.state.ledger.segment import HEAD, MAGIC, SUFFIX, UNBORN, Orphan, Scan, Segment, adopt, scan
from sits.state.ledger.table import LedgerTable, Progress

BATCH = 512
"""Records for one transaction."""
BREATH = 32
BREATH_SECONDS = 0.0001
"""How often, in records, and for how long the interpreter is let go of, for the thread that serves requests."""
UNBORN_SECONDS = 60.0
"""After which a file that never got its name belongs to nobody."""
_log = logging.getLogger("sits.ledger")


class Drain:
    """Moves what the journals of `folder` hold into `table`. For one thread."""

    def __init__(self, folder: Path, table: LedgerTable, journal: Journal | None = None) -> None:
        self.drained = 0
        """Entries that the table has got from us."""
        self.damaged = 0
        """Records that could not be read."""
        self._folder = folder
        self._table = table
        self._journal = journal
        self._seen: Segment | None = None
        self._left: set[str] = set()

    def own(self) -> None:
        """Secure and drain what this process has written; make the next segment ready.

        Raises:
            SitsError: `state_unavailable`, the table does not take anything now; nothing is lost.
        """
        journal = self._journal
        if journal is None:
            return
        self.secure()
        journal.spare_up()
        while journal.closed:
            segment = journal.closed[0]
            self._drain(segment)
            segment.remove()
            journal.closed.popleft()
        if journal.active is not None:
            self._drain(journal.active)

    def secure(self) -> None:
        """Bring what is written to the disk, so that it outlives a power failure as well."""
        journal = self._journal
        if journal is None:
            return
        for segment in [*journal.closed, journal.active]:
            if segment is not None:
                segment.sync()
        if journal.active is not self._seen:
            self._seen = journal.active
            _sync_folder(self._folder)

    def orphans(self) -> int:
        """Drain the segments whose writers are gone; how many there were.

        Raises:
            SitsError: `state_unavailable`, as for `own`.
        """
        done = 0
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            if path.name in self._left:
                continue
            orphan = adopt(path)
            if orphan is None:
                continue
            try:
                self._drain_orphan(orphan)
            except BaseException:
                orphan.leave()
                raise
            done += 1
        for path in self._folder.glob(f"*{UNBORN}"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > UNBORN_SECONDS:
                    path.unlink()
        return done

    def _drain(self, segment: Segment) -> None:
        while segment.drained < segment.at:
            part = segment.fresh(BATCH)
            rows = self._rows(segment.name, part)
            progress = Progress(segment.name, segment.records + len(rows), part.end)
            self._table.add(rows, progress)
            segment.records = progress.records
            segment.drained = part.end if part.records else segment.at
            self.drained += len(rows)

    def _drain_orphan(self, orphan: Orphan) -> None:
        """All of it, from the front: what its writer had drained already is simply there."""
        if orphan.data[: len(MAGIC)] != MAGIC and orphan.data.strip(b"\0"):
            _log.error("%s is no journal segment; it is left where it is", orphan.path)
            self._left.add(orphan.path.name)
            orphan.leave()
            return
        records, at, skipped, state = 0, HEAD, 0, "clean"
        while True:
            part = scan(orphan.data, orphan.seed, at, BATCH)
            skipped += part.skipped
            if not part.records:
                state = part.state
                break
            rows = self._rows(orphan.name, part)
            records += len(rows)
            at = part.end
            self._table.add(rows, Progress(orphan.name, records, at))
            self.drained += len(rows)
        if state == "damaged" or skipped:
            self.damaged += max(1, skipped)
            _log.error("%s has records that cannot be read; those that can are in the ledger, the file is kept", orphan.path)
            orphan.set_aside()
        else:
            orphan.remove()

    def _rows(self, name: str, part: Scan) -> list[Row]:
        rows: list[Row] = []
        for number, (position, payload) in enumerate(part.records, 1):
            if number % BREATH == 0:
                time.sleep(BREATH_SECONDS)
            try:
                rows.append(row_of(name, position, unpack(payload)))
            except msgspec.DecodeError as error:
                self.damaged += 1
                _log.error("the record at %d of segment %s is not an entry: %s", position, name, error)
        return rows


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
