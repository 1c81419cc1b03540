"""The ledger in a SQLite file of the data folder, for all workers of a machine.

Entries lie there as they come, some thousand in a row (`stretch`), and are decoded when somebody asks for them. What is asked
most is answered from sums that are kept by hour and party, in the same transactions.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from zlib import error as ZlibError

import msgspec

from sits.inner.errors import Code, SitsError
from sits.ports.own_file import own_file
from sits.ports.room import told
from sits.ports.sqlite_file import advice, enter_wal, file_version, one_moment, transaction
from sits.state.ledger.entry import Row
from sits.state.ledger.sqlite_reader import Reader
from sits.state.ledger.sqlite_repair import ASTRAY, repair
from sits.state.ledger.stretch import Stretch, joined, opened_names, opened_records, sealed_names, sealed_records
from sits.state.ledger.table import Cursor, Dimension, Page, Progress, Query, Repaired, Sums, Uneven, fresh
from sits.state.ledger.tally import FIGURES, HOUR, MOST, PARTY, Party, Totals, by_names, count_in, hourly, spans, tally

FILE = "ledger.db"
BUSY_SECONDS = 5.0
"""How long a transaction waits for another worker's; they take some milliseconds."""
CACHE_KIB = 256
"""Of the file's pages that SQLite keeps for those who write."""
SMALL = 128
"""Records of a stretch that grows with what comes next: a quiet service would get a stretch a second, of an entry each."""
PARTIES = 32_768
"""Of which the numbers are remembered."""
PART = 64
BREATH_SECONDS = 0.0001
"""After each part of a batch the interpreter is let go of: one that is only ever given up for the microseconds of a step is taken
again before the thread that serves requests has woken up."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE ledger_segments (segment TEXT PRIMARY KEY, taken INTEGER NOT NULL, held INTEGER NOT NULL,"
        " finish INTEGER NOT NULL) STRICT, WITHOUT ROWID",
        "CREATE TABLE ledger_stretches (id INTEGER PRIMARY KEY, segment TEXT NOT NULL, number INTEGER NOT NULL,"
        " count INTEGER NOT NULL, start INTEGER NOT NULL, finish INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,"
        " names BLOB NOT NULL, records BLOB NOT NULL) STRICT",
        "CREATE UNIQUE INDEX ledger_stretches_by_place ON ledger_stretches (segment, number)",
        # In which hours a stretch has entries: most have them in one.
        "CREATE TABLE ledger_spans (hour INTEGER NOT NULL, first INTEGER NOT NULL, stretch INTEGER NOT NULL,"
        " last INTEGER NOT NULL, PRIMARY KEY (hour, first, stretch)) STRICT, WITHOUT ROWID",
        "CREATE INDEX ledger_spans_by_stretch ON ledger_spans (stretch)",
        f"CREATE TABLE ledger_parties (id INTEGER PRIMARY KEY, {', '.join(f'{name} TEXT NOT NULL' for name in PARTY)},"
        f" UNIQUE ({', '.join(PARTY)})) STRICT",
        f"CREATE TABLE ledger_sums (hour INTEGER NOT NULL, party INTEGER NOT NULL,"
        f" {', '.join(f'{name} INTEGER NOT NULL' for name in FIGURES)}, PRIMARY KEY (hour, party)) STRICT, WITHOUT ROWID",
        "CREATE TABLE ledger_state (forgotten INTEGER NOT NULL) STRICT",
        "INSERT INTO ledger_state VALUES (0)",
    ),
    # Requests for which no model was asked were counted as an attempt each.
    ("UPDATE ledger_sums SET attempts = 0 WHERE party IN (SELECT id FROM ledger_parties WHERE model = '')",),
)
"""Each takes the file from version N (its place) to N + 1. Released ones never change."""

_HELD = "SELECT taken, finish FROM ledger_segments WHERE segment = ?"
_NOTE = (
    "INSERT INTO ledger_segments VALUES (?, ?, ?, ?) ON CONFLICT (segment) DO UPDATE "
    "SET taken = excluded.taken, held = held + excluded.held, finish = excluded.finish"
)
_KEEP = (
    "INSERT INTO ledger_stretches (segment, number, count, start, finish, first, last, names, records)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_LATEST = (
    "SELECT id, number, count, start, names, records FROM ledger_stretches "
    "WHERE segment = ? AND number + count = ? AND finish = ? ORDER BY number DESC LIMIT 1"
)
_COUNT = (
    f"INSERT INTO ledger_sums VALUES ({', '.join('?' * (2 + len(FIGURES)))}) ON CONFLICT (hour, party) DO UPDATE SET "  # noqa: S608
    + ", ".join(f"{name} = min({name} + excluded.{name}, {MOST})" for name in FIGURES)
)
_IS = " AND ".join(f"{name} = ?" for name in PARTY)
_OLD = (
    "SELECT p.hour, p.first, p.stretch, s.last, s.segment, s.count FROM ledger_spans AS p "
    "JOIN ledger_stretches AS s ON s.id = p.stretch WHERE p.hour < ? ORDER BY p.hour, p.first LIMIT ?"
)
_log = logging.getLogger("sits.ledger")
T = TypeVar("T")


class _Sealed(msgspec.Struct, frozen=True):
    """A stretch in the form in which it is stored, and what it adds to the sums."""

    stretch: Stretch
    first: int
    last: int
    names: bytes
    records: bytes
    spans: list[tuple[int, int, int]]
    totals: Totals


class SqliteTable:
    """An open `ledger.db`. May be used by several threads, which take turns at writing and at reading; not across a fork."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        """Open `folder/ledger.db`, made when missing (file 0600) and brought to the current version.

        Raises:
            SitsError: `state_unavailable`, the message says what is wrong with which file.
        """
        self.path = folder / FILE
        self._parties: dict[Party, int] = {}
        """Numbers that a committed transaction has read or given out."""
        self._sound = False
        """Whether it was looked for sums of nobody."""
        self._lock = threading.Lock()
        self._reads = threading.Lock()
        with self._told(self._lock):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            own_file(self.path)
            self._connection = self._connect()
            self._asking = self._connect()
        try:
            with self._told(self._lock):
                self._prepare()
                self._asking.execute("PRAGMA query_only = ON")
        except BaseException:
            self._connection.close()
            self._asking.close()
            raise

    def add(self, stretches: Sequence[Stretch]) -> Progress:
        segment = stretches[0].segment
        sealed = [_sealed(one) for one in stretches]
        with self._told(self._lock), self._writing():
            self._proven()
            held = self._progress(segment)
            new = fresh(stretches, held)
            if not new:
                return held
            totals: Totals = {}
            for number, one in enumerate(sealed[-len(new) :]):
                for key, more in one.totals.items():
                    count_in(totals, key, more)
                self._keep(self._grown(one) if number == 0 and len(one.stretch.uses) < SMALL else one)
            self._count(totals)
            last = new[-1]
            after = Progress(last.number + len(last.uses) - 1, last.finish)
            self._connection.execute(_NOTE, (segment, after.records, sum(len(one.uses) for one in new), after.end))
        return after

    def progress(self, segment: str) -> Progress:
        with self._told(self._lock):
            return self._progress(segment)

    def forget(self, before: float, most: int = 64) -> bool:
        hour = round(before * 1e6) // HOUR
        with self._told(self._lock), self._writing():
            execute = self._connection.execute
            execute("UPDATE ledger_state SET forgotten = ? WHERE forgotten < ?", (hour * HOUR, hour * HOUR))
            old = execute(_OLD, (hour, most)).fetchall()
            for at, first, stretch, last, segment, count in old:
                execute("DELETE FROM ledger_spans WHERE hour = ? AND first = ? AND stretch = ?", (at, first, stretch))
                if last < hour * HOUR and execute("DELETE FROM ledger_stretches WHERE id = ?", (stretch,)).rowcount:
                    execute("DELETE FROM ledger_spans WHERE stretch = ?", (stretch,))
                    execute("UPDATE ledger_segments SET held = held - ? WHERE segment = ?", (count, segment))
            sums = execute(
                "DELETE FROM ledger_sums WHERE hour = (SELECT min(hour) FROM ledger_sums) AND hour < ?", (hour,)
            ).rowcount
        return bool(old or sums)

    def forgotten(self) -> int:
        return self._ask(lambda reader: reader.forgotten)

    def entries(self, query: Query, *, after: Cursor | None = None, limit: int = 1000) -> Page:
        return self._ask(lambda reader: reader.entries(query, after, limit))

    def sums(
        self, query: Query, by: Sequence[Dimension] = (), *, after: Sequence[str] | None = None, limit: int = 1000
    ) -> list[Sums]:
        return self._ask(lambda reader: reader.sums(query, by, after, limit))

    def of_segment(self, segment: str, first: int, last: int) -> list[Row]:
        return self._ask(lambda reader: reader.of_segment(segment, first, last))

    def uneven(self) -> list[Uneven]:
        return self._ask(lambda reader: reader.uneven())

    def flaws(self) -> list[str]:
        return self._ask(lambda reader: reader.flaws())

    def astray(self) -> int:
        return self._ask(lambda reader: reader.astray())

    def prove(self) -> None:
        with self._told(self._lock):
            if not self._sound:
                with self._writing():
                    self._proven()

    def repair(self) -> Repaired:
        with self._told(self._lock), self._writing():
            return repair(self._connection, _breathe)

    def close(self) -> None:
        with self._lock:
            self._connection.close()
        with self._reads:
            self._asking.close()

    def _proven(self) -> None:
        """Nothing is counted to sums that are not sound: what came to nobody would come to whoever has that number next."""
        if self._sound:
            return
        ((astray,),) = self._connection.execute(ASTRAY)
        if astray:
            _log.error("%s: %d sums name a party that is not there; the sums are made again from the entries", self.path, astray)
            done = repair(self._connection, _breathe)
            _log.warning(
                "%s: %d entries counted again, %d sums put right, %d parties put back",
                self.path,
                done.entries,
                done.sums,
                done.parties,
            )
        self._sound = True

    def _progress(self, segment: str) -> Progress:
        row = self._connection.execute(_HELD, (segment,)).fetchone()
        return Progress() if row is None else Progress(*row)

    def _grown(self, one: _Sealed) -> _Sealed:
        """The stretch together with the one right before it, which goes, when both are small."""
        new = one.stretch
        row = self._connection.execute(_LATEST, (new.segment, new.number, new.start)).fetchone()
        if row is None or row[2] + len(new.uses) > SMALL:
            return one
        stretch, number, _, start, names, records = row
        self._connection.execute("DELETE FROM ledger_stretches WHERE id = ?", (stretch,))
        self._connection.execute("DELETE FROM ledger_spans WHERE stretch = ?", (stretch,))
        return _sealed(joined(opened_names(names)[0], opened_records(records), number, start, new))

    def _keep(self, one: _Sealed) -> None:
        it = one.stretch
        place = (it.segment, it.number, len(it.uses), it.start, it.finish, one.first, one.last)
        stretch = self._connection.execute(_KEEP, (*place, one.names, one.records)).lastrowid
        spans = [(hour, first, stretch, last) for hour, first, last in one.spans]
        self._connection.executemany("INSERT INTO ledger_spans VALUES (?, ?, ?, ?)", spans)

    def _count(self, totals: Totals) -> None:
        counted = list(totals.items())
        for start in range(0, len(counted), PART):
            part = counted[start : start + PART]
            rows = [(hour, self._party(party), *(one if max(one) <= MOST else _capped(one))) for (hour, party), one in part]
            self._connection.executemany(_COUNT, rows)
            _breathe()

    def _party(self, party: Party) -> int:
        number = self._parties.get(party)
        if number is None:
            if len(self._parties) >= PARTIES:
                self._parties.clear()
            execute = self._connection.execute
            found = execute(f"SELECT id FROM ledger_parties WHERE {_IS}", party).fetchone()  # noqa: S608
            if found is None:
                values = ", ".join("?" * len(PARTY))
                found = execute(f"INSERT INTO ledger_parties VALUES (NULL, {values}) RETURNING id", party).fetchone()  # noqa: S608
            number = self._parties[party] = int(found[0])
        return number

    def _ask(self, question: Callable[[Reader], T]) -> T:
        """An answer from one state of the file, while others write it."""
        with self._told(self._reads):
            try:
                with one_moment(self._asking):
                    return question(Reader(self._asking, _breathe))
            except (ZlibError, msgspec.DecodeError, IndexError) as error:
                raise SitsError(Code.STATE_UNAVAILABLE, f"the ledger {self.path} is damaged: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)

    def _prepare(self) -> None:
        enter_wal(self._connection, BUSY_SECONDS)
        # A segment is deleted once its entries are here: they must be on the disk by then.
        self._connection.execute("PRAGMA synchronous = FULL")
        # What is added is hardly ever looked at again: SQLite's own 2 MiB of pages would only be held.
        self._connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        if file_version(self._connection) == len(MIGRATIONS):
            return
        with self._writing():
            version = file_version(self._connection)
            if version > len(MIGRATIONS):
                message = f"{self.path} has version {version}, this program knows {len(MIGRATIONS)}: use a newer sits"
                raise SitsError(Code.STATE_UNAVAILABLE, message)
            for number, statements in enumerate(MIGRATIONS[version:], version + 1):
                for statement in statements:
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA user_version = {number}")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with transaction(self._connection):
                yield
        except BaseException:
            # The commit may have failed: numbers of parties that are not there after all, and what was mended is not.
            self._parties.clear()
            self._sound = False
            raise

    @contextmanager
    def _told(self, lock: threading.Lock) -> Iterator[None]:
        with lock:
            try:
                yield
            except sqlite3.Error as error:
                name = getattr(error, "sqlite_errorname", type(error).__name__)
                raise SitsError(Code.STATE_UNAVAILABLE, f"the ledger {self.path}: {error} ({name}); {advice(name)}") from error
            except OSError as error:
                raise SitsError(Code.STATE_UNAVAILABLE, f"the ledger {told(error, self.path).message}") from error


def _sealed(stretch: Stretch) -> _Sealed:
    first, last = stretch.times()
    groups = by_names(stretch.names, stretch.uses)
    tallies = [tally(group) for group in groups]
    _breathe()
    hour = first // HOUR if first // HOUR == last // HOUR else None
    return _Sealed(
        stretch,
        first,
        last,
        sealed_names(stretch.names, tallies),
        sealed_records(stretch.records),
        spans(stretch.uses, first, last),
        hourly(stretch.names, groups, tallies, hour),
    )


def _capped(sums: list[int]) -> list[int]:
    return [min(figure, MOST) for figure in sums]


def _breathe() -> None:
    time.sleep(BREATH_SECONDS)
