"""Proof that the ledger is whole: each record of the journal is in the table exactly once, and the table agrees with itself."""

from __future__ import annotations

import fcntl
from pathlib import Path

import msgspec

from sits.state.ledger.entry import row_of, unpack
from sits.state.ledger.segment import DAMAGED, SUFFIX, scan, seed_of
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
    examples: list[str]
    """Some of the places that are wrong."""

    @property
    def sound(self) -> bool:
        return not (self.missing or self.different or self.unreadable or self.uneven)

    @property
    def complete(self) -> bool:
        return self.sound and not self.pending


class _Count:
    """The figures of an audit under way."""

    def __init__(self) -> None:
        self.segments = self.records = self.agreed = self.pending = self.missing = self.different = self.unreadable = 0
        self.examples: list[str] = []

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
    uneven = table.uneven()
    return Audit(
        count.segments,
        count.records,
        count.agreed,
        count.pending,
        count.missing,
        count.different,
        count.unreadable,
        uneven,
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
    absent: list[int] = []
    for start in range(0, len(whole.records), _PART):
        part = whole.records[start : start + _PART]
        held = {row[1]: row for row in table.of_segment(name, part[0][0], part[-1][0])}
        for position, payload in part:
            row = held.pop(position, None)
            if row is None:
                absent.append(position)
                continue
            count.missing += len(absent)
            for hole in absent:
                count.wrong(f"{name}: the record at {hole} is not in the table, later ones are")
            absent.clear()
            if row == row_of(name, position, unpack(payload)):
                count.agreed += 1
            else:
                count.different += 1
                count.wrong(f"{name}: the record at {position} is another one in the table")
        for extra in held:
            count.different += 1
            count.wrong(f"{name}: the table has an entry for {extra}, where the journal has none")
    count.pending += len(absent)


def _is_abandoned(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True
