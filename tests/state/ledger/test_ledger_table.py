"""Both tables of the ledger give the same answers to the same questions."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_kit import NOW, abandon, entries, entry, opened, stretch

from sits.inner.errors import Code, SitsError
from sits.inner.event import Usage
from sits.ports.servers import free_port
from sits.ports.servers.postgres import PostgresServer
from sits.resources.kinds import Cost
from sits.state.ledger import Entry, LedgerTable, Price, Query, open_table, price_of
from sits.state.ledger.audit import audit
from sits.state.ledger.entry import COLUMNS, Row, entry_of, row_of
from sits.state.ledger.journal import FOLDER
from sits.state.ledger.postgres_table import PostgresTable
from sits.state.ledger.segment import HEAD
from sits.state.ledger.sqlite_table import FILE, MIGRATIONS, SMALL, SqliteTable
from sits.state.ledger.table import DIMENSIONS, Page, Progress, Sums, Uneven

DAY = 86_400.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with PostgresServer(tmp_path_factory.mktemp("postgres")) as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LedgerTable]:
    if request.param == "sqlite":
        opened_table = open_table(tmp_path)
    else:
        opened_table = open_table(tmp_path, request.getfixturevalue("server").address)
        assert isinstance(opened_table, PostgresTable)
        opened_table.rows("SELECT 1", ())
        opened_table.rows("TRUNCATE ledger_entries, ledger_segments", ())
        opened_table.rows("UPDATE ledger_version SET forgotten = 0", ())
    yield opened_table
    opened_table.close()


def fill(table: LedgerTable, written: list[Entry], segment: str = "S") -> list[Row]:
    held = table.progress(segment)
    held = held if held.end else Progress(0, HEAD)
    one = stretch(segment, written, held)
    assert table.add([one]) == Progress(held.records + len(written), one.finish)
    return [row_of(segment, number, one) for number, one in enumerate(written, held.records + 1)]


BOOKS = [
    entry(
        0,
        key="张三",
        model="a",
        final=False,
        outcome="upstream_error",
        status=502,
        input_tokens=None,
        output_tokens=None,
        cost=None,
    ),
    entry(1, key="张三", model="b", attempt=2, cost=10, cached_tokens=7, reasoning_tokens=3),
    entry(2, key="李四", model="a", cost=0, input_tokens=0, output_tokens=0, estimated=True),
    entry(3, key="李四", model="a", team="b", cost=5, time=NOW + 2 * DAY),
]


def test_what_was_added_is_found_again_in_the_order_of_time(table: LedgerTable) -> None:
    rows = fill(table, BOOKS[::-1])
    assert table.entries(Query()) == Page(sorted(rows, key=lambda row: row[2] or 0), None)
    assert [entry_of(row) for row in table.entries(Query()).rows] == BOOKS
    assert table.of_segment("S", 2, 3) == rows[1:3]
    assert table.of_segment("T", 1, 9) == []


FILTERS: dict[str, tuple[Query, list[int]]] = {
    "key": (Query(key="张三"), [0, 1]),
    "key and model": (Query(key="李四", model="a"), [2, 3]),
    "team": (Query(team="b"), [3]),
    "outcome": (Query(outcome="upstream_error"), [0]),
    "request": (Query(request_id="req-2"), [2]),
    "since takes its moment": (Query(since=NOW + 1), [1, 2, 3]),
    "until leaves its moment": (Query(until=NOW + 1), [0]),
    "nobody": (Query(key="王五"), []),
    "a quote is only a quote": (Query(key="' OR 1=1 --"), []),
}


@pytest.mark.parametrize(("query", "found"), FILTERS.values(), ids=FILTERS.keys())
def test_a_query_finds_what_it_means(table: LedgerTable, query: Query, found: list[int]) -> None:
    fill(table, BOOKS)
    assert [entry_of(row) for row in table.entries(query).rows] == [BOOKS[number] for number in found]


def test_a_request_for_which_no_model_was_asked_is_a_request_and_no_attempt(table: LedgerTable) -> None:
    refused = entry(0, attempt=0, model="", outcome="unauthorized", status=401)
    by_a_rung = entry(1, attempt=2, model="")
    fill(table, [refused, by_a_rung, entry(2)])
    found = [(one.group[0], one.requests, one.attempts, one.errors) for one in table.sums(Query(), ("outcome",))]
    assert found == [("ok", 2, 1, 0), ("unauthorized", 1, 0, 1)]


def test_sums_count_what_is_known(table: LedgerTable) -> None:
    fill(table, BOOKS)
    assert table.sums(Query(), ("key",)) == [
        Sums(("张三",), 1, 2, 1, 100, 20, 7, 3, 10, 0, 1, 25_000),
        Sums(("李四",), 2, 2, 0, 100, 20, 0, 0, 5, 1, 0, 25_000),
    ]
    assert table.sums(Query()) == [Sums((), 3, 4, 1, 200, 40, 7, 3, 15, 1, 1, 50_000)]
    assert table.sums(Query(key="王五")) == [Sums((), *[0] * 11)]
    assert table.sums(Query(key="王五"), ("key",)) == []


def test_days_are_days_of_utc(table: LedgerTable) -> None:
    fill(table, BOOKS)
    fill(table, [entry(1, time=1764460799.999999), entry(2, time=1764460800.0)], "T")
    found = table.sums(Query(), ("day", "key"))
    assert [(one.group, one.attempts) for one in found] == [
        (("2025-11-29", "张三"), 2),
        (("2025-11-29", "李四"), 1),
        (("2025-11-29", "爱丽丝"), 1),
        (("2025-11-30", "爱丽丝"), 1),
        (("2025-12-01", "李四"), 1),
    ]


def test_groups_and_entries_are_turned_page_by_page(table: LedgerTable) -> None:
    fill(table, [entry(number // 2, key=f"k{number % 5}", request_id=f"r{number}") for number in range(20)])
    groups, after = [], None
    while page := table.sums(Query(), ("key", "day"), after=after, limit=2):
        groups += page
        after = page[-1].group
    assert [one.group[0] for one in groups] == ["k0", "k1", "k2", "k3", "k4"]
    assert sum(one.attempts for one in groups) == 20
    seen, cursor = [], None
    while True:
        found = table.entries(Query(), after=cursor, limit=3)
        seen += [row[3] for row in found.rows]
        cursor = found.next
        if cursor is None:
            break
    assert seen == [f"r{number}" for number in range(20)]


def test_adding_again_changes_nothing_and_never_goes_back(table: LedgerTable) -> None:
    rows = fill(table, BOOKS)
    held = table.progress("S")
    assert table.add([stretch("S", BOOKS)]) == held
    assert table.add([stretch("S", BOOKS[:2])]) == held
    assert table.add([stretch("S", [entry(99)])]) == held
    assert table.of_segment("S", 0, 9) == rows
    assert (table.uneven(), table.flaws(), table.sums(Query())[0].attempts) == ([], [], 4)


def test_of_a_stretch_that_is_there_in_part_nothing_is_taken(table: LedgerTable) -> None:
    rows = fill(table, BOOKS[:2])
    held = table.progress("S")
    assert table.add([stretch("S", BOOKS)]) == held
    assert table.of_segment("S", 0, 9) == rows
    whole = stretch("S", BOOKS)
    later = stretch("S", BOOKS[2:], held)
    assert table.add([stretch("S", BOOKS[:2]), later]) == Progress(4, whole.finish)
    assert [entry_of(row) for row in table.of_segment("S", 0, 9)] == BOOKS
    assert (table.uneven(), table.sums(Query())[0].attempts) == ([], 4)


def test_a_table_that_lost_or_gained_entries_says_so(table: LedgerTable) -> None:
    fill(table, BOOKS)
    fill(table, BOOKS[:2], "T")
    for segment, held in (("S", 6), ("T", 1)):
        change(table, f"UPDATE ledger_segments SET held = {held} WHERE segment = '{segment}'")
    assert table.uneven() == [Uneven("S", 6, 4), Uneven("T", 1, 2)]


def change(table: LedgerTable, sql: str) -> None:
    if isinstance(table, PostgresTable):
        table.rows(sql, ())
    else:
        assert isinstance(table, SqliteTable)
        table._connection.execute(sql)


_numbers = itertools.count()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(written=st.lists(entries, min_size=1, max_size=12))
def test_any_entry_can_be_kept_and_sums_are_those_of_the_entries(table: LedgerTable, written: list[Entry]) -> None:
    before = table.sums(Query())[0]
    segment = f"S{next(_numbers)}"
    rows = fill(table, written, segment)
    assert table.of_segment(segment, 0, 99) == rows
    assert (table.uneven(), table.flaws()) == ([], [])
    after = table.sums(Query())[0]
    assert (after.cost - before.cost, after.attempts - before.attempts, after.requests - before.requests) == (
        sum(one.cost or 0 for one in written),
        sum(1 for one in written if one.attempt and one.model),
        sum(one.final for one in written),
    )


HOUR = 3_600_000_000
_moments = (
    st.integers(0, 6 * HOUR) | st.integers(0, 6).map(lambda hour: hour * HOUR) | st.integers(1, 6).map(lambda h: h * HOUR - 1)
)
_few = st.sampled_from(["", "甲", "乙"])
_count = st.none() | st.integers(0, 1 << 40)
MIDNIGHT = 1_764_460_800_000_000
timely = st.builds(
    lambda moment, **fields: entry(time=(MIDNIGHT - 3 * HOUR + moment) / 1e6, **fields),
    _moments,
    key=_few,
    team=_few,
    route=_few,
    requested=_few,
    model=_few,
    outcome=st.sampled_from(["ok", "rate_limited"]),
    request_id=st.sampled_from(["a", "b", "c"]),
    final=st.booleans(),
    estimated=st.booleans(),
    input_tokens=_count,
    cached_tokens=_count,
    cost=_count,
    latency_ms=st.floats(0, 1e6),
)
_bound = st.none() | _moments.map(lambda moment: (MIDNIGHT - 3 * HOUR + moment) / 1e6)
_filter = st.none() | _few
queries = st.builds(
    Query,
    since=_bound,
    until=_bound,
    key=_filter,
    model=_filter,
    requested=st.none() | st.none() | _few,
    outcome=st.none() | st.just("ok"),
    request_id=st.none() | st.none() | st.just("a"),
)


def meant(rows: list[Row], query: Query) -> list[Row]:
    """What a table is to find, found by looking at each row."""
    since = 0 if query.since is None else round(query.since * 1e6)
    until = 1 << 62 if query.until is None else round(query.until * 1e6)
    wanted = {name: value for name in COLUMNS[3:] if (value := getattr(query, name, None)) is not None}
    found = [row for row in rows if since <= cast("int", row[2]) < until]
    found = [row for row in found if all(row[COLUMNS.index(name)] == value for name, value in wanted.items())]
    return sorted(found, key=lambda row: (row[2], row[0], row[1]))


def summed(rows: list[Row], by: tuple[str, ...]) -> list[Sums]:
    groups: dict[tuple[str, ...], list[Entry]] = {} if by else {(): []}
    for row in rows:
        day = datetime.fromtimestamp(cast("int", row[2]) / 1e6, UTC).strftime("%Y-%m-%d")
        group = tuple(day if name == "day" else cast("str", row[COLUMNS.index(name)]) for name in by)
        groups.setdefault(group, []).append(entry_of(row))
    return [
        Sums(
            group,
            sum(one.final for one in found),
            sum(1 for one in found if one.attempt and one.model),
            sum(one.outcome != "ok" for one in found),
            sum(one.input_tokens or 0 for one in found),
            sum(one.output_tokens or 0 for one in found),
            sum(one.cached_tokens or 0 for one in found),
            sum(one.reasoning_tokens or 0 for one in found),
            sum(one.cost or 0 for one in found),
            sum(one.estimated for one in found),
            sum(one.cost is None for one in found),
            sum(int(one.latency_ms * 1000) for one in found),
        )
        for group, found in sorted(groups.items())
    ]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    written=st.lists(st.lists(timely, min_size=1, max_size=6), min_size=1, max_size=4),
    query=queries,
    by=st.lists(st.sampled_from(DIMENSIONS), max_size=3, unique=True).map(tuple),
    segments=st.integers(1, 2),
    page=st.integers(1, 5),
)
def test_sums_and_entries_of_any_time_are_what_looking_at_each_entry_gives(
    table: LedgerTable, written: list[list[Entry]], query: Query, by: tuple[str, ...], segments: int, page: int
) -> None:
    for name in ("entries", "stretches", "spans", "sums", "segments"):
        if (name == "entries") == isinstance(table, PostgresTable) or name == "segments":
            change(table, f"DELETE FROM ledger_{name}")
    rows = [row for number, part in enumerate(written) for row in fill(table, part, f"S{number % segments}")]
    wanted = meant(rows, query)
    assert table.sums(query, by) == summed(wanted, by)  # type: ignore[arg-type]
    found: list[Row] = []
    cursor = None
    while True:
        one = table.entries(query, after=cursor, limit=page)
        found += one.rows
        cursor = one.next
        if cursor is None:
            break
    assert found == wanted
    assert (table.uneven(), table.flaws()) == ([], [])


def test_what_is_too_old_is_forgotten_and_the_books_still_agree(table: LedgerTable) -> None:
    at = MIDNIGHT / 1e6
    fill(table, [entry(1, time=at - 7200), entry(2, time=at - 1)], "OLD")
    fill(table, [entry(3, time=at - 3601), entry(4, time=at + 1)], "BOTH")
    fill(table, [entry(5, time=at + 7200)], "NEW")
    assert table.forgotten() == 0
    for _ in range(10):
        if not table.forget(at + 1800, 1):
            break
    else:
        raise AssertionError("there is no end of it")
    assert table.forgotten() == MIDNIGHT
    assert [row[3] for row in table.entries(Query()).rows] == ["req-4", "req-5"]
    assert [(one.group, one.attempts) for one in table.sums(Query(), ("day",))] == [(("2025-11-30",), 2)]
    assert table.sums(Query(since=at - 9000, until=at + 7000))[0].attempts == 1
    assert table.sums(Query(requested="chat"))[0].attempts == 2
    assert (table.uneven(), table.flaws()) == ([], [])
    # What comes late is forgotten in turn, and a bound never goes back.
    fill(table, [entry(6, time=at - 9000), entry(7, time=at + 9000)], "LATE")
    assert table.forget(at - 90_000) or table.forgotten() == MIDNIGHT
    while table.forget(at):
        pass
    assert [row[3] for row in table.entries(Query()).rows] == ["req-4", "req-5", "req-7"]
    assert (table.sums(Query())[0].attempts, table.uneven(), table.flaws()) == (3, [], [])


def test_a_quiet_service_fills_stretches_entry_by_entry(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path)
    written = [entry(number, model=f"m{number % 3}", time=NOW + 100.0 * number) for number in range(2 * SMALL + 44)]
    for one in written:
        fill(table, [one])
    counts = table._connection.execute("SELECT count FROM ledger_stretches ORDER BY number").fetchall()
    assert counts == [(SMALL,), (SMALL,), (44,)]
    assert [entry_of(row) for row in table.entries(Query()).rows] == written
    assert table.sums(Query())[0].attempts == len(written)
    assert (table.uneven(), table.flaws()) == ([], [])
    table.close()


def test_stretches_that_were_tampered_with_are_told(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path)
    for segment in ("A", "B", "C"):
        fill(table, BOOKS, segment)
    fill(table, BOOKS * SMALL, "C")
    change(table, "UPDATE ledger_stretches SET records = zeroblob(50) WHERE segment = 'A'")
    change(table, "UPDATE ledger_stretches SET names = (SELECT names FROM ledger_stretches WHERE number = 5) WHERE segment = 'B'")
    change(table, "UPDATE ledger_stretches SET number = 3 WHERE number = 5")
    told = [
        "segment A: records 1 to 4 cannot be read, or were counted wrong",
        "segment B: records 1 to 4 cannot be read, or were counted wrong",
        "segment C: records from 3 on are there twice",
    ]
    assert table.flaws()[:3] == told
    with pytest.raises(SitsError, match="is damaged") as refused:
        table.entries(Query())
    assert refused.value.code is Code.STATE_UNAVAILABLE
    table.close()


def test_sums_beyond_what_a_database_can_hold_stop_there(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path)
    fill(table, BOOKS)
    change(table, f"UPDATE ledger_sums SET cost = {(1 << 62) - 2}")
    fill(table, [entry(1, key="张三", model="b", cost=10)])
    assert table.sums(Query(key="张三", model="b"))[0].cost == (1 << 62) - 1
    table.close()


REFUSED: dict[str, tuple[Callable[[LedgerTable], object], str]] = {
    "no such dimension": (lambda table: table.sums(Query(), ("secret",)), "'secret' is no dimension"),  # type: ignore[arg-type]
    "too few values": (lambda table: table.sums(Query(), ("key", "day"), after=("a",)), "needs 2 values"),
    "no day": (lambda table: table.sums(Query(), ("day",), after=("soon",)), "'soon' is no day"),
}


@pytest.mark.parametrize(("ask", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_question_without_sense_is_refused(table: LedgerTable, ask: Callable[[LedgerTable], object], words: str) -> None:
    with pytest.raises(SitsError, match=words) as refused:
        ask(table)
    assert refused.value.code is Code.INVALID_REQUEST


def test_threads_take_turns(table: LedgerTable) -> None:
    threads = [threading.Thread(target=fill, args=(table, BOOKS, f"S{number}")) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.sums(Query())[0].attempts == 24


@pytest.mark.parametrize("table", ["postgresql"], indirect=True)
def test_a_ledger_on_postgresql_rides_out_a_killed_server(server: PostgresServer, tmp_path: Path, table: LedgerTable) -> None:
    ledger = opened(tmp_path, open_table(tmp_path, server.address))
    for number in range(50):
        ledger.write(entry(number, key="rides"))
    ledger.tick()
    server.kill()
    for number in range(50, 100):
        ledger.write(entry(number, key="rides"))
    ledger.tick()
    assert (ledger.figures().failures, ledger.figures().drained) == (1, 50)
    server.start()
    ledger.tick()
    other = open_table(tmp_path, server.address)
    assert other.sums(Query(key="rides"))[0].attempts == 100
    assert audit(tmp_path / FOLDER, other).complete
    other.close()
    abandon(ledger)


def test_a_server_that_is_away_is_no_error_until_it_is_asked(tmp_path: Path) -> None:
    table = open_table(tmp_path, f"postgresql://sits@127.0.0.1:{free_port()}/postgres")
    with pytest.raises(SitsError, match="the ledger in PostgreSQL") as refused:
        table.entries(Query())
    assert refused.value.code is Code.STATE_UNAVAILABLE
    table.close()


def test_an_address_of_nothing_we_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SitsError, match="'redis' is no kind of ledger"):
        open_table(tmp_path, "redis://127.0.0.1")


def test_a_ledger_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    with pytest.raises(SitsError, match="use a newer sits"):
        open_table(tmp_path)


def test_sums_that_counted_requests_without_a_model_as_attempts_are_made_right(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path)
    fill(table, [entry(0, attempt=0, model="", outcome="unauthorized", status=401), entry(1)])
    table.close()
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("UPDATE ledger_sums SET attempts = 1")
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()
    table = SqliteTable(tmp_path)
    assert [(one.requests, one.attempts) for one in table.sums(Query())] == [(2, 1)]
    assert table.uneven() == []
    table.close()


def test_a_file_that_is_no_ledger_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("this is no database, it is a text of some length" * 30)
    with pytest.raises(SitsError, match=FILE) as refused:
        open_table(tmp_path)
    assert refused.value.code is Code.STATE_UNAVAILABLE


def test_the_file_is_its_owners_and_safe_against_a_power_failure(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    ask = table._connection.execute
    assert (ask("PRAGMA journal_mode").fetchall(), ask("PRAGMA synchronous").fetchall()) == ([("wal",)], [(2,)])
    table.close()


def test_several_that_open_a_new_ledger_at_once_all_can(tmp_path: Path) -> None:
    tables: list[LedgerTable] = []
    threads = [threading.Thread(target=lambda: tables.append(open_table(tmp_path))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tables) == 6
    for table in tables:
        table.close()


PRICE = price_of(Cost(input_per_million=0.15, output_per_million=0.6))
COSTS: dict[str, tuple[Price, Usage | None, int | None]] = {
    "both kinds of token": (PRICE, Usage(1000, 500), 150_000 + 300_000),
    "cached tokens are part of the input": (Price(1000, 0, 100, 1250), Usage(100, 0, 40, None, 20), 40 + 4 + 25),
    "half up": (Price(1, 0), Usage(500, 0), 1),
    "less than half": (Price(1, 0), Usage(499, 0), 0),
    "an explicit zero is free": (PRICE, Usage(0, 0), 0),
    "unknown output": (PRICE, Usage(10, None), None),
    "unknown output that costs nothing": (Price(1000, 0), Usage(10, None), 10),
    "nothing known": (PRICE, None, None),
    "nothing known of what is free": (Price(), None, 0),
    "more cached than there was": (Price(1000, 0, 0, 0), Usage(10, 0, 40), 0),
}


@pytest.mark.parametrize(("price", "usage", "cost"), COSTS.values(), ids=COSTS.keys())
def test_tokens_cost_whole_nano_dollars(price: Price, usage: Usage | None, cost: int | None) -> None:
    assert price.of(usage) == cost
