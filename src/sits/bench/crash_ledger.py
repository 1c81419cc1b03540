"""The ledger under kill -9: each life writes entries under a key of its own, and drains all the while."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from contextlib import closing

from sits.bench.crash_nursery import Found, Story
from sits.state.ledger import Entry, Ledger, Query, open_table
from sits.state.ledger.audit import audit
from sits.state.ledger.drain import Drain
from sits.state.ledger.entry import entry_of
from sits.state.ledger.journal import FOLDER

SEGMENT = 8192
"""Bytes: a life goes through many segments."""
MOST = 5000
"""Entries of one life."""


class LedgerPart:
    """A step is an entry."""

    def write(self, story: Story, say: Callable[[], None]) -> None:
        ledger = Ledger(story.folder, open_table(story.folder), segment_bytes=SEGMENT, segments=1000, tick_seconds=0.001)
        ledger.start()
        say()
        key = _key(len(story.lives))
        for number in range(1, MOST + 1):
            ledger.write(_entry(key, number))
            say()
        signal.pause()

    def look(self, story: Story) -> Found:
        """All that was acknowledged is in the table once, and one more at the most for each life."""
        journals = story.folder / FOLDER
        journals.mkdir(exist_ok=True)
        notes: list[str] = []
        lost = doubled = 0
        with closing(open_table(story.folder)) as table:
            before = audit(journals, table)
            if not before.sound:
                notes.append(f"before recovery: {before}")
            Drain(journals, table).orphans()
            after = audit(journals, table)
            if not (after.sound and after.complete):
                notes.append(f"after recovery: {after}")
            for life, acknowledged in enumerate(story.lives):
                rows = table.entries(Query(key=_key(life)), limit=10_000).rows
                found = Counter(entry_of(row).attempt for row in rows)
                lost += sum(number not in found for number in range(1, acknowledged + 1))
                doubled += sum(count - 1 for count in found.values())
                strange = [number for number in found if number > acknowledged + 1]
                if strange:
                    notes.append(f"{strange} were never written")
        return Found(lost=lost, doubled=doubled, notes=tuple(notes))


def _key(life: int) -> str:
    return f"生命-{life}"


def _entry(key: str, number: int) -> Entry:
    words = ("team", "route", "route", "model", "provider", "upstream", "chat")
    return Entry("ok", 200, number, True, False, False, key, *words, float(number), f"request-{number}", cost=number)
