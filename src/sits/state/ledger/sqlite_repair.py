"""The sums of the ledger in SQLite, made again from its entries: what a stretch holds is the truth, what was counted is not.

Sums and parties are kept for those who ask, in the same transactions as the entries. Where a program did not keep to
that, after a commit that a full disk had refused, sums name parties that are not there, and are lost or booked to others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from itertools import groupby
from zlib import error as ZlibError

import msgspec

from sits.state.ledger.stretch import opened_names, opened_records, sealed_names, uses_of
from sits.state.ledger.table import Repaired, day_text
from sits.state.ledger.tally import FIGURES, HOUR, MOST, PARTY, Party, Totals, by_names, count_in, hourly, tally

ASTRAY = "SELECT count(*) FROM ledger_sums WHERE party NOT IN (SELECT id FROM ledger_parties)"
"""Sums that name a party that is not there. 33 ms for a million of them."""
_STRETCHES = (
    "SELECT segment, id, number, count, start, finish, first, last, names, records FROM ledger_stretches ORDER BY segment, number"
)
_HELD = f"SELECT hour, {', '.join(PARTY)}, {', '.join(FIGURES)} FROM ledger_sums JOIN ledger_parties ON id = party"  # noqa: S608
_PARTIES = f"SELECT id, {', '.join(PARTY)} FROM ledger_parties"  # noqa: S608
_PUT = f"INSERT OR REPLACE INTO ledger_sums VALUES ({', '.join('?' * (2 + len(FIGURES)))})"  # noqa: S608
_MAKE = f"INSERT INTO ledger_parties VALUES ({', '.join('?' * (1 + len(PARTY)))})"  # noqa: S608
_DAMAGE = (ZlibError, msgspec.DecodeError, IndexError)


class Recount:
    """All stretches read and counted anew."""

    def __init__(self, connection: sqlite3.Connection, pause: Callable[[], None]) -> None:
        """`pause` is called after each stretch."""
        self.totals: Totals = {}
        """What the entries come to, by hour and party."""
        self.flaws: list[str] = []
        self.renamed: list[tuple[bytes, int]] = []
        """Names and id of the stretches whose own count was wrong: the names with the right one."""
        self.entries = 0
        self.unreadable = 0
        for segment, stretches in groupby(connection.execute(_STRETCHES), key=lambda row: str(row[0])):
            place = (0, 0)
            for _, stretch, number, count, start, finish, first, last, names, records in stretches:
                if number < place[0] or start < place[1]:
                    self.flaws.append(f"segment {segment}: records from {number} on are there twice")
                place = (number + count, finish)
                hour = first // HOUR if first // HOUR == last // HOUR else None
                if not self._whole(stretch, names, records, count, hour):
                    self.flaws.append(
                        f"segment {segment}: records {number} to {number + count - 1} cannot be read, or were counted wrong"
                    )
                pause()

    def _whole(self, stretch: int, sealed: bytes, records: bytes, count: int, hour: int | None) -> bool:
        try:
            names, tallies = opened_names(sealed)
        except _DAMAGE:
            self.unreadable += count
            return False
        try:
            uses = uses_of(opened_records(records))
            groups = by_names(names, uses)
        except _DAMAGE:
            # The entries cannot be read any more, what they came to can be.
            self.unreadable += count
            if hour is not None and len(names) == len(tallies) and sum(one[0] for one in tallies) == count:
                self._add(hourly(names, [[] for _ in names], tallies, hour))
            return False
        counted = [tally(group) for group in groups]
        self._add(hourly(names, groups, counted, None))
        self.entries += len(uses)
        if counted != tallies:
            self.renamed.append((sealed_names(names, counted), stretch))
        return counted == tallies and len(uses) == count

    def _add(self, totals: Totals) -> None:
        for key, more in totals.items():
            count_in(self.totals, key, more)

    def miscounted(self, connection: sqlite3.Connection, oldest: int) -> list[tuple[int, Party]]:
        """Hours and parties, from hour `oldest` on, of which the sums are not those of the entries."""
        held = held_sums(connection)
        return [
            key
            for key in self.totals.keys() | held.keys()
            if key[0] >= oldest and held.get(key) != [min(figure, MOST) for figure in self.totals.get(key, ())]
        ]

    def told(self, connection: sqlite3.Connection, oldest: int) -> list[str]:
        """All that contradicts itself, in words."""
        hours = sorted({hour for hour, _ in self.miscounted(connection, oldest)})
        wrong = [f"the sums of {day_text(hour // 24)} hour {hour % 24} are not those of its entries" for hour in hours]
        ((astray,),) = connection.execute(ASTRAY)
        return self.flaws + wrong + ([f"{astray} sums name a party that is not there"] if astray else [])


def held_sums(connection: sqlite3.Connection) -> dict[tuple[int, Party], list[int]]:
    """The stored sums of parties that are there."""
    at = 1 + len(PARTY)
    return {(row[0], row[1:at]): list(row[at:]) for row in connection.execute(_HELD)}


def repair(connection: sqlite3.Connection, pause: Callable[[], None]) -> Repaired:
    """Make sums, parties and the stretches' own counts again. In a transaction of the caller's; parties keep their numbers."""
    count = Recount(connection, pause)
    ((forgotten,),) = connection.execute("SELECT forgotten FROM ledger_state")
    oldest = forgotten // HOUR
    wrong = count.miscounted(connection, oldest)
    numbers, made = _parties(connection, {party for hour, party in wrong if (hour, party) in count.totals})
    astray = connection.execute("DELETE FROM ledger_sums WHERE party NOT IN (SELECT id FROM ledger_parties)").rowcount
    connection.executemany(_MAKE, made)
    for hour, party in wrong:
        figured = count.totals.get((hour, party))
        if figured is None:
            connection.execute("DELETE FROM ledger_sums WHERE hour = ? AND party = ?", (hour, numbers[party]))
        else:
            connection.execute(_PUT, (hour, numbers[party], *(min(figure, MOST) for figure in figured)))
    connection.executemany("UPDATE ledger_stretches SET names = ? WHERE id = ?", count.renamed)
    return Repaired(count.entries, astray, len(wrong), len(made), len(count.renamed), count.unreadable)


def _parties(connection: sqlite3.Connection, wanted: set[Party]) -> tuple[dict[Party, int], list[Sequence[str | int]]]:
    """The numbers of all parties, and rows for those wanted that have none yet.

    New numbers are above all that any sum names: a process that still takes one of those for a party's must not hit another's.
    """
    numbers: dict[Party, int] = {row[1:]: row[0] for row in connection.execute(_PARTIES)}
    ((named,),) = connection.execute("SELECT coalesce(max(party), 0) FROM ledger_sums")
    most = max(named, *numbers.values()) if numbers else named
    made: list[Sequence[str | int]] = []
    for number, party in enumerate(sorted(wanted - numbers.keys()), most + 1):
        numbers[party] = number
        made.append((number, *party))
    return numbers, made
