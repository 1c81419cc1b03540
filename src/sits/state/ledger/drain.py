"""From the journal into the table, in stretches, off the hot path.

A round's stretches and the note of how far their segment is drained are one transaction, and the table takes nothing that lies
before that: what is added twice, because a crash came between the table's commit and our own, is there once. A segment is deleted
only when the table has all of it on its disk.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from mmap import mmap
from pathlib import Path

from sits.state.ledger.journal import Journal
from sits.state.ledger.segment import HEAD, MAGIC, SUFFIX, UNBORN, Orphan, Segment, adopt, scan
from sits.state.ledger.stretch import Stretch, cut
from sits.state.ledger.table import LedgerTable, Progress

ROUND = 2
"""Stretches for one transaction: 4,000 entries, some 10 ms. With eight an entry costs the same, and 5 MiB more are held."""
BREATH_SECONDS = 0.0001
"""How long the interpreter is let go of, again and again, for the thread that serves requests."""
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
        """Drain what this process has written, or at least secure it; make the next segment ready.

        Raises:
            SitsError: `state_unavailable`, the table does not take anything now; nothing is lost.
        """
        journal = self._journal
        if journal is None:
            return
        journal.spare_up()
        try:
            while journal.closed:
                segment = journal.closed[0]
                self._drain(segment)
                segment.remove()
                journal.closed.popleft()
            if journal.active is not None:
                self._drain(journal.active)
        except BaseException:
            # What the table has is on its disk: only what it does not take must be brought to ours.
            self.secure()
            raise

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
        held, damaged = Progress(segment.records, segment.drained), self.damaged
        # What comes meanwhile waits for the next time: after a moving end one would run for ever, for a few entries each round.
        end = segment.at
        while held.end < end:
            held = self._round(segment.name, segment.map, segment.seed, held, end)
            segment.records, segment.drained = held.records, held.end
            segment.shed()
        if self.damaged > damaged:
            _log.error("segment %s has %d records that are no entries, or cannot be read", segment.name, self.damaged - damaged)

    def _drain_orphan(self, orphan: Orphan) -> None:
        """All of it that the table has not got yet. What it has is not read again: a power failure may have taken that away."""
        held = self._table.progress(orphan.name)
        if not held.end and orphan.data[: len(MAGIC)] != MAGIC and orphan.data.strip(b"\0"):
            _log.error("%s is no journal segment; it is left where it is", orphan.path)
            self._left.add(orphan.path.name)
            orphan.leave()
            return
        held, damaged = held if held.end else Progress(0, HEAD), self.damaged
        whole = scan(orphan.data, orphan.seed, held.end)
        while held.end < whole.end:
            held = self._round(orphan.name, orphan.data, orphan.seed, held, whole.end)
        if whole.state == "damaged" or whole.skipped or self.damaged > damaged:
            self.damaged = damaged + max(1, whole.skipped, self.damaged - damaged)
            _log.error("%s has records that cannot be read; those that can are in the ledger, the file is kept", orphan.path)
            orphan.set_aside()
        else:
            orphan.remove()

    def _round(self, name: str, data: bytes | mmap, seed: int, held: Progress, end: int) -> Progress:
        """Drain some of a segment's bytes before `end`; how far it is drained then."""
        stretches: list[Stretch] = []
        at, number = held.end, held.records + 1
        while at < end and len(stretches) < ROUND:
            one = cut(name, data, seed, at, end, number, _breathe)
            self.damaged += one.damaged
            if not one.uses:
                at = end
                break
            stretches.append(one)
            at, number = one.finish, number + len(one.uses)
        if not stretches:
            return Progress(held.records, at)
        after = self._table.add(stretches)
        self.drained += max(0, after.records - held.records)
        return after


def _breathe() -> None:
    time.sleep(BREATH_SECONDS)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
