"""The disk is full just then: what is remembered of the table follows what was committed, and what went wrong once is mended."""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_kit import BLANK, NOW, entry, opened, stretch

from sits.cli.ledger import ledger as ledger_command
from sits.inner.errors import Code, SitsError
from sits.state.ledger import Query
from sits.state.ledger.entry import Entry, entry_of
from sits.state.ledger.sqlite_table import SqliteTable
from sits.state.ledger.table import Repaired

PARTIES = ("甲", "乙", "丙", "丁")


@contextlib.contextmanager
def no_larger(size: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes: writes fail where they pass it, the one of a commit as well."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def log_size(folder: Path) -> int:
    return (folder / "ledger.db-wal").stat().st_size


def attempts(table: SqliteTable) -> dict[str, int]:
    return {one.group[0]: one.attempts for one in table.sums(Query(), ("key",))}


def add(table: SqliteTable, entries: list[Entry]) -> None:
    table.add([stretch("S", entries, table.progress("S") if table.progress("S").end else BLANK)])


@pytest.fixture(scope="module")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a table without entries, as it is made once."""
    folder = tmp_path_factory.mktemp("blank")
    SqliteTable(folder).close()
    return folder


_batches = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=4)
"""Who used something, in which hour."""


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(st.tuples(_batches, st.sampled_from((None, -200, 0, 4_000, 12_000, 24_000, 36_000))), min_size=2, max_size=8),
    full=st.booleans(),
)
def test_wherever_a_write_fails_sums_are_those_of_the_entries_and_of_the_right_parties(
    blank: Path, steps: list[tuple[list[tuple[int, int]], int | None]], full: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "data"
        shutil.copytree(blank, folder)
        table = SqliteTable(folder)
        written: Counter[str] = Counter()
        for batch, room in steps:
            entries = [entry(key=PARTIES[who], time=NOW + 3600.0 * hour) for who, hour in batch]
            if room is None:
                add(table, entries)
                written.update(one.key for one in entries)
                continue
            with contextlib.suppress(SitsError), _scarce(table, folder, room, full):
                add(table, entries)
                written.update(one.key for one in entries)
        assert (attempts(table), table.flaws(), table.uneven(), table.astray()) == (dict(written), [], [], 0)
        table.close()


@contextlib.contextmanager
def _scarce(table: SqliteTable, folder: Path, room: int, full: bool) -> Iterator[None]:
    """Room for so many bytes more: by a limit of the database, which statements find, or of its log, which commits do."""
    if not full:
        with no_larger(log_size(folder) + room):
            yield
        return
    ((pages,),) = table._connection.execute("PRAGMA page_count")
    table._connection.execute(f"PRAGMA max_page_count = {pages + max(0, room) // 8192}").fetchall()
    try:
        yield
    finally:
        table._connection.execute("PRAGMA max_page_count = 1073741823").fetchall()


def test_after_a_commit_that_failed_parties_are_made_anew(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path)
    add(table, [entry(key="甲")])
    with pytest.raises(SitsError, match="make room") as refused, no_larger(log_size(tmp_path)):
        add(table, [entry(key="乙")])
    assert refused.value.code is Code.STATE_UNAVAILABLE
    add(table, [entry(key="丙")])
    add(table, [entry(key="乙")])
    assert attempts(table) == {"甲": 1, "乙": 1, "丙": 1}
    assert (table.flaws(), table.astray()) == ([], 0)
    table.close()


def broken(folder: Path) -> SqliteTable:
    """What programs that forgot nothing after a failed commit have left: sums of parties that were rolled back."""
    table = SqliteTable(folder)
    add(table, [entry(key=key) for key in ("甲", "乙", "甲")])
    table._connection.execute("DELETE FROM ledger_parties")
    return table


def test_sums_of_nobody_are_found_and_made_again_before_anything_is_booked_to_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken(tmp_path).close()
    table = SqliteTable(tmp_path)
    assert table.flaws() == [
        "the sums of 2025-11-29 hour 7 are not those of its entries",
        "2 sums name a party that is not there",
    ]
    assert attempts(table) == {}
    add(table, [entry(key="丙")])
    assert (attempts(table), table.flaws()) == ({"甲": 2, "乙": 1, "丙": 1}, [])
    assert "2 sums name a party that is not there" in caplog.text
    table.close()


def test_a_gateway_that_starts_on_them_mends_them_before_any_request(tmp_path: Path) -> None:
    broken(tmp_path).close()
    table = SqliteTable(tmp_path)
    ledger = opened(tmp_path, table)
    ledger.tick()
    assert (attempts(table), table.flaws()) == ({"甲": 2, "乙": 1}, [])
    ledger.close()


def test_where_they_cannot_be_mended_nothing_is_booked(tmp_path: Path) -> None:
    broken(tmp_path).close()
    table = SqliteTable(tmp_path)
    with pytest.raises(SitsError), no_larger(log_size(tmp_path)):
        add(table, [entry(key="丙")])
    assert [one.key for one in _entries(table)] == ["甲", "乙", "甲"]
    table.close()


def _entries(table: SqliteTable) -> list[Entry]:
    return [entry_of(row) for row in table.entries(Query()).rows]


def test_repair_puts_right_what_was_booked_to_others_and_says_how_much(tmp_path: Path) -> None:
    table = broken(tmp_path)
    # A program that did not look has given the numbers out again, the other way round.
    columns = "key, team, route, model, provider, operation, outcome"
    table._connection.execute(
        f"INSERT INTO ledger_parties (id, {columns}) VALUES "
        "(1, '乙', '搜索', 'chat', 'llama-a', 'vllm', 'chat', 'ok'), (2, '甲', '搜索', 'chat', 'llama-a', 'vllm', 'chat', 'ok')"
    )
    assert (attempts(table), table.astray()) == ({"乙": 2, "甲": 1}, 0)
    assert table.repair() == Repaired(entries=3, sums=2)
    assert (attempts(table), table.flaws()) == ({"甲": 2, "乙": 1}, [])
    assert table.repair() == Repaired(entries=3)
    table.close()


def test_entries_that_cannot_be_read_keep_what_they_came_to(tmp_path: Path) -> None:
    table = broken(tmp_path)
    table._connection.execute("UPDATE ledger_stretches SET records = zeroblob(9)")
    assert table.repair() == Repaired(astray=2, sums=2, parties=2, unreadable=3)
    assert attempts(table) == {"甲": 2, "乙": 1}
    assert table.flaws() == ["segment S: records 1 to 3 cannot be read, or were counted wrong"]
    table.close()


def test_a_number_that_a_sum_has_named_is_nobody_elses_after_a_repair(tmp_path: Path) -> None:
    table = broken(tmp_path)
    table.repair()
    assert table._connection.execute("SELECT min(id) FROM ledger_parties").fetchone() == (3,)
    table.close()


def ask(*words: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(ledger_command, [str(word) for word in words])
    return result.exit_code, result.stdout, result.stderr


def test_commands_say_that_sums_are_nobodys_and_mend_them(tmp_path: Path) -> None:
    broken(tmp_path).close()
    remedy = f"sitsctl ledger repair --data {tmp_path}"
    code, out, err = ask("query", "--by", "key", "--data", tmp_path)
    assert (code, len(out.splitlines()), err) == (0, 1, f"2 sums are nobody's, and missing here: make them again with {remedy}\n")
    code, out, _ = ask("check", "--data", tmp_path)
    assert (code, out.splitlines()[-2:]) == (1, [f"sums are made again from the entries by: {remedy}", "the ledger is NOT sound"])
    code, out, _ = ask("repair", "--json", "--data", tmp_path)
    assert (code, json.loads(out)) == (
        0,
        {"sound": True, "changed": True, "left": []}
        | {"entries": 3, "astray": 2, "sums": 2, "parties": 2, "stretches": 0, "unreadable": 0},
    )
    code, out, _ = ask("repair", "--data", tmp_path)
    assert (code, out.splitlines()[-1]) == (0, "the ledger is sound")
    assert ask("check", "--json", "--data", tmp_path)[0] == 0


def test_sums_that_are_all_that_is_left_of_entries_go_only_when_that_is_meant(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path)
    add(table, [entry(key="甲")])
    table._connection.execute("DELETE FROM ledger_stretches")
    code, _, err = ask("repair", "--data", tmp_path)
    assert (code, "--accept-loss" in err, attempts(table)) == (1, True, {"甲": 1})
    code, out, _ = ask("repair", "--accept-loss", "--data", tmp_path)
    assert (code, "1 were drained, 0 are there" in out, attempts(table)) == (1, True, {})
    table.close()
