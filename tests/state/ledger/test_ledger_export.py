"""The ledger leaves as CSV, JSON lines and Parquet, and comes back the same; and the commands on it."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_kit import NOW, abandon, entry, opened, stretch, wire
from ledger_kit import entries as any_entries

from sits.cli.ledger import ledger as command
from sits.inner.errors import Code, SitsError
from sits.state.ledger import Entry, LedgerTable, Query, open_table
from sits.state.ledger.entry import COLUMNS, FLAGS, REALS, TEXTS, Row, pack, row_of, unpack
from sits.state.ledger.export import FIELDS, FORMATS, Format, export
from sits.state.ledger.segment import scan
from sits.state.ledger.sqlite_table import FILE, SMALL, SqliteTable
from sits.state.ledger.table import Cursor, Page


class Paged:
    """A table of rows that only gives pages, and remembers how large they were."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.asked: list[int] = []

    def entries(self, query: Query, *, after: Cursor | None = None, limit: int = 1000) -> Page:
        start = 0 if after is None else after[2]
        page = self.rows[start : start + limit]
        self.asked.append(len(page))
        return Page(page, (0, "", start + limit) if len(page) == limit else None)


def from_csv(data: bytes) -> list[Row]:
    head, *lines = csv.reader(io.StringIO(data.decode(), newline=""))
    assert tuple(head) == FIELDS

    def value(name: str, text: str) -> Any:
        if name in TEXTS:
            return text
        return None if text == "" else float(text) if name in REALS else int(text)

    return [tuple(value(name, text) for name, text in zip(COLUMNS, line, strict=True)) for line in lines]


def from_jsonl(data: bytes) -> list[Row]:
    return [tuple(int(v) if isinstance(v, bool) else v for v in json.loads(line).values()) for line in data.splitlines()]


def from_parquet(data: bytes) -> list[Row]:
    found = pyarrow.parquet.read_table(io.BytesIO(data))
    assert tuple(found.column_names) == FIELDS
    found = found.set_column(2, "time_us", found.column("time_us").cast("int64"))
    for name in FLAGS:
        found = found.set_column(FIELDS.index(name), name, found.column(name).cast("int64"))
    return [tuple(row.values()) for row in found.to_pylist()]


READERS = {"csv": from_csv, "jsonl": from_jsonl, "parquet": from_parquet}


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=25, deadline=None)
@given(written=st.lists(any_entries, max_size=10), page=st.integers(1, 4))
def test_what_is_exported_can_be_read_again(kind: Format, written: list[Entry], page: int) -> None:
    rows = [row_of("段", number, one) for number, one in enumerate(written)]
    table = Paged(rows)
    out = io.BytesIO()
    assert export(table, Query(), kind, out, page=page) == len(rows)  # type: ignore[arg-type]
    assert READERS[kind](out.getvalue()) == rows
    assert max(table.asked) <= page
    out.write(b"still open")


def test_parquet_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SitsError, match=r"pip install 'sits\[parquet\]'") as refused:
        export(Paged([]), Query(), "parquet", io.BytesIO())  # type: ignore[arg-type]
    assert refused.value.code is Code.UNSUPPORTED


@pytest.fixture
def data(tmp_path: Path) -> Path:
    table: LedgerTable = SqliteTable(tmp_path)
    written = [
        entry(1, key="张三", cost=1_500_000_000, request_id="r1"),
        entry(2, key="李四", cost=None, outcome="upstream_error", request_id="r2"),
        entry(3, key="张三", cost=7, request_id="r3"),
    ]
    table.add([stretch("S", written)])
    table.close()
    return tmp_path


def ask(*words: str | Path) -> tuple[int, str, str]:
    done = CliRunner().invoke(command, list(map(str, words)))
    return done.exit_code, done.stdout, done.stderr


def test_query_sums_up_for_people_and_for_programs(data: Path) -> None:
    code, out, _ = ask("query", "--by", "key", "--data", data)
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["KEY", "REQUESTS", "ATTEMPTS", "ERRORS", "IN", "OUT", "CACHED", "REASONING", "USD", "UNPRICED"],
        ["张三", "2", "2", "0", "200", "40", "0", "0", "1.500000007", "0"],
        ["李四", "1", "1", "1", "100", "20", "0", "0", "0.000000000", "1"],
    ]
    code, out, _ = ask("query", "--by", "day, key", "--key", "张三", "--since", "2025-11-29", "--json", "--data", data)
    (found,) = json.loads(out)["data"]
    assert (found["group"], found["cost"], found["cost_usd"]) == (
        {"day": "2025-11-29", "key": "张三"},
        1_500_000_007,
        "1.500000007",
    )


def test_query_turns_pages(data: Path) -> None:
    _, out, _ = ask("query", "--by", "key", "--limit", "1", "--json", "--data", data)
    first = json.loads(out)
    assert [one["group"] for one in first["data"]] == [{"key": "张三"}]
    _, out, _ = ask("query", "--by", "key", "--limit", "1", "--after", first["next"], "--json", "--data", data)
    assert [one["group"] for one in json.loads(out)["data"]] == [{"key": "李四"}]
    _, out, err = ask("query", "--entries", "--limit", "2", "--data", data)
    assert [line.split()[1] for line in out.splitlines()] == ["REQUEST", "r1", "r2"]
    after = err.partition("--after '")[2].rstrip("'\n")
    _, out, _ = ask("query", "--entries", "--after", after, "--json", "--data", data)
    (last,) = json.loads(out)["data"]
    assert (last["request_id"], last["time"], last["cost"]) == ("r3", NOW + 3, 7)


def test_export_writes_a_file_or_to_a_pipe(data: Path, tmp_path: Path) -> None:
    code, out, err = ask("export", "--key", "张三", "--data", data)
    assert (code, [row[3] for row in from_csv(out.encode())], err) == (0, ["r1", "r3"], "2 entries, to standard output\n")
    target = tmp_path / "账单.parquet"
    code, out, err = ask("export", "--format", "parquet", "--out", target, "--json", "--data", data)
    assert (code, out, json.loads(err)) == (0, "", {"entries": 3, "file": str(target)})
    assert [row[3] for row in from_parquet(target.read_bytes())] == ["r1", "r2", "r3"]


def test_check_proves_agreement_and_tells_what_is_wrong(tmp_path: Path) -> None:
    book = opened(tmp_path, open_table(tmp_path))
    for number in range(5):
        book.write(entry(number))
    book.tick()
    for number in range(5, 8):
        book.write(entry(number))
    code, out, _ = ask("check", "--json", "--data", tmp_path)
    found = json.loads(out)
    assert (code, found["records"], found["agreed"], found["pending"], found["complete"]) == (0, 8, 5, 3, False)
    abandon(book)
    code, out, _ = ask("check", "--drain", "--json", "--data", tmp_path)
    assert (code, json.loads(out)["complete"]) == (0, True)
    table = SqliteTable(tmp_path)
    table._connection.execute("DELETE FROM ledger_stretches")
    table.close()
    code, out, _ = ask("check", "--data", tmp_path)
    assert code == 1
    assert "8 were drained, 0 are there" in out
    assert "NOT sound" in out


def test_check_finds_a_hole_and_a_forgery_while_the_journal_is_there(tmp_path: Path) -> None:
    book = opened(tmp_path, open_table(tmp_path), segment_bytes=1 << 20)
    for number in range(3 * SMALL):
        book.write(entry(number))
        if number % SMALL == SMALL - 1:
            book.tick()
    active = book._journal.active
    assert active is not None
    (at, payload) = scan(active.map[: active.at], active.seed).records[SMALL]
    forged = pack(msgspec.structs.replace(unpack(payload), status=201))
    active.map[at : at + 8 + len(forged)] = wire([forged], active.seed)
    connection = sqlite3.connect(tmp_path / FILE)
    with connection:
        connection.execute("DELETE FROM ledger_stretches WHERE number = 1")
        connection.execute("UPDATE ledger_sums SET cost = cost + 1")
    connection.close()
    code, out, _ = ask("check", "--json", "--data", tmp_path)
    found = json.loads(out)
    assert (code, found["sound"], found["missing"], found["different"], found["agreed"], len(found["examples"])) == (
        1,
        False,
        SMALL,
        1,
        2 * SMALL - 1,
        10,
    )
    assert found["uneven"] == [{"segment": active.name, "drained": 3 * SMALL, "held": 2 * SMALL}]
    assert found["flaws"] == ["the sums of 2025-11-29 hour 7 are not those of its entries"]
    code, out, _ = ask("check", "--data", tmp_path)
    assert (code, "the sums of 2025-11-29 hour 7" in out, out.splitlines()[-1]) == (1, True, "the ledger is NOT sound")
    abandon(book)


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "no such dimension": (("query", "--by", "colour"), "'colour' is none of key"),
    "no time": (("query", "--since", "tomorrow"), "'tomorrow' is no time"),
    "no cursor": (("query", "--entries", "--after", "x"), "as it was printed"),
    "no group": (("query", "--by", "key", "--after", "x"), "as it was printed"),
}


@pytest.mark.parametrize(("words", "told"), WRONG.values(), ids=WRONG.keys())
def test_what_is_not_understood_is_said_in_a_line(data: Path, words: tuple[str, ...], told: str) -> None:
    code, _, err = ask(*words, "--data", data)
    assert code == 2
    assert told in err


def test_a_folder_without_a_ledger_is_said_and_left_empty(tmp_path: Path) -> None:
    code, _, err = ask("query", "--data", tmp_path)
    assert code == 1
    assert "there is no ledger in" in err
    assert list(tmp_path.iterdir()) == []


def test_times_ago_are_understood(data: Path) -> None:
    _, out, _ = ask("query", "--since", "5000w", "--json", "--data", data)
    assert json.loads(out)["data"][0]["attempts"] == 3
    _, out, _ = ask("query", "--until", "5000w", "--json", "--data", data)
    assert json.loads(out)["data"][0]["attempts"] == 0
