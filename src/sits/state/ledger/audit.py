"""Proof that the ledger is whole: each record of the journal is in the table exactly once, and the table agrees with itself."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sits.state.ledger.entry import Row, row_of, unpack
from sits.state.ledger.segment import DAMAGED, SUFFIX, Scan, scan, seed_of
from sits.state.ledger.table import LedgerTable, Uneven

_PART = 1024
_EXAMPLES = 10


class Audit(msgspec.Struct, frozen=True):
    """What was found. `sound`: nothing contradicts anything; `complete`: the table has everything that the journal has."""

    segments: int
    """Files of the journal."""
    records: int
    """In them."""
    agreed: int
    """Of these, in the table exactly once and the same."""
    forgotten: int
    """Of these, not in the table any more: older than what is kept."""
    pending: int
    """Not in the table yet: behind the last record that was drained."""
    missing: int
    """Not in the table though a later record of their segment is."""
    different: int
    """In the table with another content."""
    unreadable: int
    """Damaged records, and files that were set aside because of some."""
    uneven: list[Uneven]
    """Segments, deleted ones too, of which the table does not hold as many entries as it took in."""
    flaws: list[str]
    """What contradicts itself in the table."""
    examples: list[str]
    """Some of the places that are wrong."""

    @property
    def sound(self) -> bool:
        return not (self.missing or self.different or self.unreadable or self.uneven or self.flaws)

    @property
    def complete(self) -> bool:
        return self.sound and not self.pending


class _Count:
    """The figures of an audit under way."""

    def __init__(self) -> None:
        self.segments = self.records = self.agreed = self.forgotten = 0
        self.pending = self.missing = self.different = self.unreadable = 0
        self.examples: list[str] = []

    def compare(self, name: str, row: Row, kept: Row) -> None:
        if row == kept:
            self.agreed += 1
        else:
            self.different += 1
            self.wrong(f"{name}: record {row[1]} is another one in the table")

    def wrong(self, place: str) -> None:
        if len(self.examples) < _EXAMPLES:
            self.examples.append(place)


def audit(folder: Path, table: LedgerTable) -> Audit:
    """Compare the journals in `folder` with `table`; changes nothing, and may run beside a live service.

    The journals are read first: what is drained and deleted meanwhile is in the table by the time it is asked.

    Raises:
        SitsError: `state_unavailable`, the table does not answer.
    """
    count = _Count()
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            with path.open("rb") as file:
                data = file.read()
                abandoned = _is_abandoned(file.fileno())
        except FileNotFoundError:
            continue
        count.segments += 1
        _compare(path.stem, data, abandoned, table, count)
    for path in sorted(folder.glob(f"*{DAMAGED}")):
        count.unreadable += 1
        count.wrong(f"{path.name} was set aside: it has records that cannot be read")
    uneven, flaws = table.uneven(), table.flaws()
    return Audit(
        count.segments,
        count.records,
        count.agreed,
        count.forgotten,
        count.pending,
        count.missing,
        count.different,
        count.unreadable,
        uneven,
        flaws,
        count.examples,
    )


def _compare(name: str, data: bytes, abandoned: bool, table: LedgerTable, count: _Count) -> None:
    whole = scan(data, seed_of(name))
    count.records += len(whole.records)
    # The last record of a live writer may be half written at this very moment; what follows a hole is damage in any case.
    damaged = whole.skipped + (whole.state == "damaged" and abandoned)
    if damaged:
        count.unreadable += damaged
        count.wrong(f"{name}: damaged at {whole.end}" if not whole.skipped else f"{name}: {whole.skipped} damaged records")
    rows = list(_rows(name, whole, count))
    # Asked for after the journal was read, as the rows are: what was forgotten before that is known to be.
    absent: list[Row] = []
    for start in range(0, len(rows), _PART):
        part = rows[start : start + _PART]
        held = {row[1]: row for row in table.of_segment(name, start + 1, start + len(part))}
        forgotten = table.forgotten()
        for row in part:
            kept = held.get(row[1])
            if kept is None and int(row[2] or 0) < forgotten:
                count.forgotten += 1
            elif kept is None:
                absent.append(row)
            else:
                count.missing += len(absent)
                for hole in absent:
                    count.wrong(f"{name}: record {hole[1]} is not in the table, later ones are")
                absent.clear()
                count.compare(name, row, kept)
    beyond = table.of_segment(name, len(rows) + 1, 1 << 62) if abandoned else []
    for extra in beyond:
        count.different += 1
        count.wrong(f"{name}: the table has a record {extra[1]}, which the journal has not")
    count.pending += len(absent)


def _rows(name: str, whole: Scan, count: _Count) -> Iterator[Row]:
    """What the records should be in the table: those that are entries have numbers, from 1."""
    number = 0
    for at, payload in whole.records:
        try:
            yield row_of(name, number + 1, unpack(payload))
            number += 1
        except msgspec.DecodeError:
            count.unreadable += 1
            count.wrong(f"{name}: the record at {at} is no entry")


def _is_abandoned(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True
