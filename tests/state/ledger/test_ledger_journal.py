"""The journal: what is written can be read again, whatever is cut off, and nobody ever waits."""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_kit import SMALL, abandon, entries, entry, files, opened, wire

from sits.inner.errors import Code, SitsError
from sits.inner.stuck import Stuck
from sits.state.ledger import Entry, Figures, Query, open_table
from sits.state.ledger.audit import audit
from sits.state.ledger.drain import UNBORN_SECONDS, Drain
from sits.state.ledger.entry import COLUMNS, entry_of, pack, row_of, tamed, unpack
from sits.state.ledger.journal import FOLDER, LARGEST, Journal
from sits.state.ledger.ledger import FORGET_SECONDS, Ledger
from sits.state.ledger.segment import FRAME, HEAD, MAGIC, Segment, adopt, scan, seed_of
from sits.state.ledger.sqlite_table import SqliteTable
from sits.state.ledger.stretch import MOST, Stretch, cut
from sits.state.ledger.table import Progress
from sits.state.ledger.ulid import ulid


def held(data: Path, query: Query | None = None) -> list[Entry]:
    table = open_table(data)
    rows = table.entries(query or Query(), limit=10_000).rows
    table.close()
    return [entry_of(row) for row in rows]


@given(entries)
def test_an_entry_is_read_as_it_was_written(one: Entry) -> None:
    assert unpack(pack(one)) == one
    row = row_of("S", 64, one)
    kept = entry_of(row)
    clean = {name: value.replace("\0", "\ufffd") for name, value in msgspec.structs.asdict(one).items() if isinstance(value, str)}
    assert kept == msgspec.structs.replace(one, time=kept.time, **clean)
    assert abs(kept.time - one.time) < 1e-6
    assert len(row) == len(COLUMNS)


def test_an_older_entry_without_the_newest_fields_can_be_read() -> None:
    short = msgspec.msgpack.encode(msgspec.msgpack.decode(pack(entry()))[:16])
    old = msgspec.structs.replace(entry(), input_tokens=None, output_tokens=None, cost=None, latency_ms=0.0)
    assert unpack(short) == old
    data = wire([short, pack(entry())], 7)
    found = cut("S", data, 7, 0, len(data), 1)
    assert found.rows() == [row_of("S", 1, old), row_of("S", 2, entry())]


payloads = st.lists(st.binary(min_size=1, max_size=60), max_size=8)


@given(records=payloads, cut=st.integers(0, 600), room=st.integers(0, 64), seed=st.integers(0, 2**32 - 1))
def test_a_segment_cut_anywhere_gives_the_records_before_the_cut(records: list[bytes], cut: int, room: int, seed: int) -> None:
    whole = wire(records, seed)
    data = bytes(HEAD) + whole[:cut] + bytes(max(0, len(whole) - cut) + room)
    found = scan(data, seed)
    complete, ends = 0, 0
    for record in records:
        ends += FRAME.size + len(record)
        # A record whose tail is zeros by itself loses nothing when zeros take its place.
        complete += ends <= cut or data[HEAD : HEAD + ends] == whole[:ends]
    assert [payload for _, payload in found.records] == records[:complete]
    assert found.state in ("clean", "torn")
    assert found.skipped == 0


@given(records=st.lists(st.binary(min_size=2, max_size=40), min_size=3, max_size=8), data=st.data())
def test_one_damaged_record_costs_no_other(records: list[bytes], data: st.DataObject) -> None:
    broken = data.draw(st.integers(0, len(records) - 2))
    start = HEAD + sum(FRAME.size + len(record) for record in records[:broken]) + FRAME.size
    image = bytearray(bytes(HEAD) + wire(records, 7))
    image[start + data.draw(st.integers(0, len(records[broken]) - 1))] ^= 0x40
    found = scan(bytes(image), 7)
    assert [payload for _, payload in found.records] == records[:broken] + records[broken + 1 :]
    assert (found.skipped, found.state) == (1, "clean")


def test_a_record_of_another_segment_is_none_of_this_one() -> None:
    assert scan(bytes(HEAD) + wire([b"abc"], 1), 2).records == []


def test_a_segment_has_its_room_reserved_and_belongs_to_its_owner_alone(tmp_path: Path) -> None:
    segment = Segment(tmp_path, "A", SMALL)
    status = segment.path.stat()
    assert (status.st_size, status.st_mode & 0o777, status.st_blocks * 512 >= SMALL) == (SMALL, 0o600, True)
    assert segment.path.read_bytes()[: len(MAGIC)] == MAGIC
    assert adopt(segment.path) is None
    segment.leave()
    orphan = adopt(segment.path)
    assert orphan is not None
    assert adopt(segment.path) is None
    orphan.remove()
    assert adopt(segment.path) is None
    assert list(tmp_path.iterdir()) == []


def test_everything_written_comes_into_the_table_through_many_segments(tmp_path: Path) -> None:
    ledger = opened(tmp_path, open_table(tmp_path))
    written = [entry(number) for number in range(300)]
    for one in written[:200]:
        ledger.write(one)
    ledger.tick()
    for one in written[200:]:
        ledger.write(one)
    ledger.close()
    assert held(tmp_path) == written
    assert files(tmp_path) == []
    assert ledger.figures() == Figures(written=300, dropped=0, drained=300, damaged=0, failures=0, waiting=0)


def test_a_drained_segment_is_gone_and_the_one_in_use_stays(tmp_path: Path) -> None:
    ledger = opened(tmp_path, open_table(tmp_path))
    for number in range(100):
        ledger.write(entry(number))
    ledger.tick()
    assert len([path for path in files(tmp_path) if path.stat().st_size == SMALL]) == 2  # in use, and the spare
    assert ledger.figures().waiting == 0
    ledger.close()


def resident(path: Path) -> int:
    """KiB of a mapped file that this process holds in memory, as proc(5) tells it."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(maxsplit=1)[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


def test_a_segment_holds_no_memory_of_what_the_table_has(tmp_path: Path) -> None:
    ledger = opened(tmp_path, open_table(tmp_path), segment_bytes=1 << 21)
    written = [entry(number) for number in range(2 * MOST)]
    for one in written[:-3]:
        ledger.write(one)
    (path,) = files(tmp_path)
    assert resident(path) > 256
    ledger.tick()
    assert resident(path) <= 64  # The page that is being written, and those that the kernel maps around it.
    for one in written[-3:]:
        ledger.write(one)
    ledger.close()
    assert held(tmp_path) == written


def test_the_thread_drains_by_itself(tmp_path: Path) -> None:
    ledger = opened(tmp_path, open_table(tmp_path), tick_seconds=0.01)
    ledger.start()
    for number in range(200):
        ledger.write(entry(number))
    ledger.close()
    ledger.close()
    assert len(held(tmp_path)) == 200
    ledger.write(entry())
    assert ledger.figures().dropped == 1


def test_a_sibling_drains_what_a_dead_process_left_and_leaves_the_living_alone(tmp_path: Path) -> None:
    dead, living, sibling = (opened(tmp_path, open_table(tmp_path)) for _ in range(3))
    for number in range(100):
        dead.write(entry(number, key="dead"))
        living.write(entry(number, key="living"))
    abandon(dead)
    sibling.tick()
    assert [one.request_id for one in held(tmp_path, Query(key="dead"))] == [f"req-{number}" for number in range(100)]
    assert held(tmp_path, Query(key="living")) == []
    living.close()
    sibling.close()
    assert len(held(tmp_path)) == 200
    assert files(tmp_path) == []


def test_draining_twice_adds_nothing(tmp_path: Path) -> None:
    first = opened(tmp_path, open_table(tmp_path))
    for number in range(20):
        first.write(entry(number))
    first.tick()
    copies = {path: path.read_bytes() for path in files(tmp_path)}
    first.close()
    for path, content in copies.items():
        path.write_bytes(content)
    table = open_table(tmp_path)
    found = audit(tmp_path / FOLDER, table)
    assert (found.records, found.agreed, found.complete) == (20, 20, True)
    assert Drain(tmp_path / FOLDER, table).orphans() == len(copies)
    assert table.sums(Query())[0].attempts == 20
    assert table.uneven() == []
    table.close()


def test_a_torn_tail_is_left_out_and_the_segment_goes(tmp_path: Path) -> None:
    ledger = opened(tmp_path, open_table(tmp_path))
    for number in range(5):
        ledger.write(entry(number))
    active = ledger._journal.active
    assert active is not None
    torn = FRAME.pack(100, 12345) + b"half of a reco"
    active.map[active.at : active.at + len(torn)] = torn
    abandon(ledger)
    table = open_table(tmp_path)
    drain = Drain(tmp_path / FOLDER, table)
    drain.orphans()
    assert (table.sums(Query())[0].attempts, drain.damaged, files(tmp_path)) == (5, 0, [])
    table.close()


def test_a_damaged_segment_is_drained_as_far_as_it_can_be_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ledger = opened(tmp_path, open_table(tmp_path))
    for number in range(5):
        ledger.write(entry(number))
    active = ledger._journal.active
    assert active is not None
    active.map[HEAD + 20] ^= 0xFF
    abandon(ledger)
    table = open_table(tmp_path)
    drain = Drain(tmp_path / FOLDER, table)
    with caplog.at_level(logging.ERROR):
        drain.orphans()
        drain.orphans()
    assert (table.sums(Query())[0].attempts, drain.damaged) == (4, 1)
    assert [path.suffix for path in files(tmp_path)] == [".damaged"]
    assert len(caplog.records) == 1
    found = audit(tmp_path / FOLDER, table)
    assert (found.sound, found.unreadable) == (False, 1)
    table.close()


@pytest.mark.parametrize("lost", [0, HEAD], ids=["with the head", "without the head"])
def test_a_power_failure_that_took_from_the_journal_what_the_table_has_takes_no_more(tmp_path: Path, lost: int) -> None:
    ledger = opened(tmp_path, open_table(tmp_path))
    for number in range(10):
        ledger.write(entry(number))
    ledger.tick()
    active = ledger._journal.active
    assert active is not None
    drained = active.at
    for number in range(10, 15):
        ledger.write(entry(number))
    active.map[lost:drained] = bytes(drained - lost)
    abandon(ledger)
    table = open_table(tmp_path)
    Drain(tmp_path / FOLDER, table).orphans()
    table.close()
    assert [one.request_id for one in held(tmp_path)] == [f"req-{number}" for number in range(15)]
    assert files(tmp_path) == []


def test_a_file_that_is_no_segment_is_named_once_and_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FOLDER).mkdir()
    stray = tmp_path / FOLDER / "notes.seg"
    stray.write_text("not ours")
    table = open_table(tmp_path)
    drain = Drain(tmp_path / FOLDER, table)
    drain.orphans()
    drain.orphans()
    assert stray.read_text() == "not ours"
    assert len(caplog.records) == 1
    table.close()


def test_a_file_that_never_got_its_name_is_cleared_away_in_time(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    old, young = tmp_path / FOLDER / "a.new", tmp_path / FOLDER / "b.new"
    old.touch()
    young.touch()
    long_ago = young.stat().st_mtime - 2 * UNBORN_SECONDS
    os.utime(old, (long_ago, long_ago))
    table = open_table(tmp_path)
    Drain(tmp_path / FOLDER, table).orphans()
    table.close()
    assert files(tmp_path) == [young]


class Away(SqliteTable):
    """A table that takes nothing while `away`."""

    away = True

    def add(self, stretches: Sequence[Stretch]) -> Progress:
        if self.away:
            raise SitsError(Code.STATE_UNAVAILABLE, "away")
        return super().add(stretches)


def test_while_the_table_is_away_entries_wait_and_at_the_cap_they_are_dropped_loudly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = Away(tmp_path)
    ledger = opened(tmp_path, table, segments=3)
    for number in range(500):
        ledger.write(entry(number))
        if number % 50 == 0:
            ledger.tick()
    figures = ledger.figures()
    assert (figures.written + figures.dropped, figures.drained, figures.failures) == (500, 0, 10)
    assert figures.dropped > 0
    assert 2 * SMALL < figures.waiting <= 3 * SMALL
    ledger.tick()
    told = [line for record in caplog.records if "dropped" in (line := record.getMessage())]
    assert len(told) == 1, "said, though not every second"
    assert told[0].endswith("the books are incomplete: all 3 segments are full and the table does not take them")
    table.away = False
    ledger.tick()
    for number in range(500, 510):
        ledger.write(entry(number))
    ledger.close()
    assert [one.request_id for one in held(tmp_path)] == [f"req-{n}" for n in [*range(figures.written), *range(500, 510)]]
    assert ledger.figures().dropped == figures.dropped


def test_what_the_table_does_not_take_is_stuck_since_it_first_was_until_it_is_taken(tmp_path: Path) -> None:
    table, wall = Away(tmp_path), [1000.0]
    ledger = opened(tmp_path, table, wall=lambda: wall[0])
    assert ledger.stuck is None
    seen = []
    for number in range(3):
        ledger.write(entry(number))
        ledger.tick()
        wall[0] += 1.0
        seen.append(ledger.stuck)
    assert seen == [Stuck(1000.0, "the table does not take entries, they stay in the journal: away")] * 3
    table.away = False
    ledger.tick()
    assert ledger.stuck is None
    ledger.close()


def test_a_journal_that_gets_no_more_room_is_stuck_before_anything_is_lost(tmp_path: Path) -> None:
    moments = [0.0]
    ledger = opened(tmp_path, open_table(tmp_path), clock=lambda: moments[0], wall=lambda: 1000.0)
    ledger.tick()
    ledger.write(entry(1))
    (tmp_path / FOLDER).rename(tmp_path / "away")
    ledger.tick()
    why = f"the journal gets no room for what is to come: {tmp_path / FOLDER}: No such file or directory"
    assert (ledger.stuck, ledger.figures().dropped) == (Stuck(1000.0, why), 0)
    (tmp_path / "away").rename(tmp_path / FOLDER)
    moments[0] = 1.0
    ledger.tick()
    assert ledger.stuck is None
    ledger.close()


class Unsure(SqliteTable):
    """A table that takes what it is given, and then says once that it did not."""

    sure = False

    def add(self, stretches: Sequence[Stretch]) -> Progress:
        done = super().add(stretches)
        if not self.sure:
            self.sure = True
            raise SitsError(Code.STATE_UNAVAILABLE, "the answer was lost")
        return done


def test_what_was_taken_without_an_answer_is_there_once(tmp_path: Path) -> None:
    ledger = opened(tmp_path, Unsure(tmp_path))
    for number in range(10):
        ledger.write(entry(number))
    ledger.tick()
    for number in range(10, 25):
        ledger.write(entry(number))
    ledger.tick()
    ledger.close()
    assert [one.request_id for one in held(tmp_path)] == [f"req-{number}" for number in range(25)]
    assert (ledger.figures().failures, ledger.figures().drained, files(tmp_path)) == (1, 25, [])


def test_more_than_a_stretch_and_more_than_a_round_come_in_order(tmp_path: Path) -> None:
    ledger = opened(tmp_path, open_table(tmp_path), segment_bytes=1 << 22)
    written = [
        entry(number, model=f"m{number % 7}", outcome="ok" if number % 5 else "overloaded") for number in range(2 * MOST + 5)
    ]
    for one in written:
        ledger.write(one)
    ledger.tick()
    assert held(tmp_path) == written
    table = open_table(tmp_path)
    assert table.sums(Query(), ("outcome",))[1].attempts == len(written) // 5 + 1
    assert audit(tmp_path / FOLDER, table).complete
    table.close()
    ledger.close()


ODD: dict[str, Entry] = {
    "names with the byte that begins a float": entry(2, model="ˋ˞˂", team="˺" * 20),
    "a status with that byte": entry(2, status=203),
    "a name as long as that byte is": entry(2, team="x" * 203),
    "another number type": entry(2, time=2, latency_ms=1),
    "no name at all": entry(2, **dict.fromkeys(("key", "team", "route", "requested", "model", "provider", "upstream_model"), "")),
    "NUL in names and ids": entry(2, key="a\0b", request_id="\0"),
    "figures beyond all reason": entry(2, input_tokens=1 << 50, cost=1 << 60, attempt=-1, cached_tokens=-7),
    "times beyond all time": entry(2, time=-1.0, latency_ms=float("inf")),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_an_odd_entry_is_kept_between_others_as_it_would_be_alone(tmp_path: Path, odd: Entry) -> None:
    ledger = opened(tmp_path, open_table(tmp_path))
    active = [entry(1), odd, odd, entry(3)]
    for one in active:
        ledger.write(one)
    ledger.tick()
    table = open_table(tmp_path)
    (path,) = (path for path in files(tmp_path) if table.progress(path.stem).records)
    assert table.of_segment(path.stem, 1, 9) == [row_of(path.stem, number, one) for number, one in enumerate(active, 1)]
    assert audit(tmp_path / FOLDER, table).complete
    table.close()
    ledger.close()


NOT_ENTRIES: dict[str, bytes] = {
    "no list": b"\x01",
    "no msgpack": b"\xc1\xcb",
    "a list of something else": msgspec.msgpack.encode(["ok"] * 23),
    "names without a use": msgspec.msgpack.encode(msgspec.msgpack.decode(pack(entry()))[:14]),
    "a use of another kind": msgspec.msgpack.encode([*msgspec.msgpack.decode(pack(entry()))[:15], 7]),
}


@pytest.mark.parametrize("payload", NOT_ENTRIES.values(), ids=NOT_ENTRIES.keys())
def test_a_record_that_is_no_entry_costs_no_other_and_has_no_number(tmp_path: Path, payload: bytes) -> None:
    ledger = opened(tmp_path, open_table(tmp_path))
    ledger.write(entry(1))
    active = ledger._journal.active
    assert active is not None
    assert active.put(payload)
    ledger.write(entry(2))
    ledger.tick()
    assert ledger.figures().damaged == 1
    table = open_table(tmp_path)
    assert table.of_segment(active.name, 1, 9) == [row_of(active.name, number, entry(number)) for number in (1, 2)]
    found = audit(tmp_path / FOLDER, table)
    assert (found.agreed, found.unreadable, found.different, found.missing) == (2, 1, 0, 0)
    table.close()
    abandon(ledger)


def test_what_is_older_than_is_kept_goes_and_the_journal_that_still_has_it_is_no_contradiction(tmp_path: Path) -> None:
    now, moments = [2 * 86_400.0 + 1], [0.0]
    ledger = opened(tmp_path, open_table(tmp_path), keep_days=1, wall=lambda: now[0], clock=lambda: moments[0])
    ledger.write(entry(1, time=86_399.0))
    ledger.write(entry(2, time=86_400.0))
    ledger.tick()
    assert [one.request_id for one in held(tmp_path)] == ["req-2"]
    ledger.tick()  # nothing more to forget
    now[0] += 86_400.0
    ledger.tick()  # too early to look again
    assert len(held(tmp_path)) == 1
    moments[0] = FORGET_SECONDS
    for _ in range(3):
        ledger.tick()
    table = open_table(tmp_path)
    assert (table.entries(Query()).rows, table.sums(Query())[0].attempts) == ([], 0)
    found = audit(tmp_path / FOLDER, table)
    assert (found.records, found.forgotten, found.agreed, found.complete) == (2, 2, 0, True)
    table.close()
    ledger.close()


def test_what_the_table_does_not_take_at_the_end_is_taken_at_the_next_start(tmp_path: Path) -> None:
    ledger = opened(tmp_path, Away(tmp_path))
    for number in range(10):
        ledger.write(entry(number))
    ledger.close()
    assert held(tmp_path) == []
    opened(tmp_path, open_table(tmp_path)).close()
    assert len(held(tmp_path)) == 10


def test_a_folder_that_cannot_be_written_drops_and_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    moments = [0.0]
    ledger = opened(tmp_path, open_table(tmp_path), clock=lambda: moments[0])
    (tmp_path / FOLDER).rmdir()
    ledger.write(entry(1))
    ledger.tick()
    (tmp_path / FOLDER).mkdir()
    ledger.write(entry(2))  # no new attempt within the second
    moments[0] = 1.0
    ledger.write(entry(3))
    ledger.close()
    assert [one.request_id for one in held(tmp_path)] == ["req-3"]
    assert ledger.figures().dropped == 2
    assert "No such file or directory" in caplog.text


def test_entries_that_no_record_can_hold_are_cut_to_fit(tmp_path: Path) -> None:
    ledger = opened(tmp_path, open_table(tmp_path))
    ledger.write(entry(1, requested="长" * LARGEST))
    ledger.write(entry(2, requested="half \ud800 a pair"))
    ledger.write(entry(3, output_tokens=1 << 80, input_tokens=-5))
    ledger.write(entry(4, latency_ms=float("nan"), requested="a\0b"))
    ledger.close()
    first, second, third, fourth = held(tmp_path)
    assert first == entry(1, requested="长" * 200)
    assert second.requested == "half ? a pair"
    assert (third.output_tokens, third.input_tokens) == (1 << 40, 0)
    assert (fourth.latency_ms, fourth.requested) == (0.0, "a\ufffdb")
    assert ledger.figures().dropped == 0


def test_something_that_is_no_entry_is_counted_and_hurts_nobody(tmp_path: Path) -> None:
    ledger = opened(tmp_path, open_table(tmp_path))
    ledger.write(object())  # type: ignore[arg-type]
    ledger.write(entry(1))
    ledger.close()
    assert (ledger.figures().dropped, len(held(tmp_path))) == (1, 1)


def test_a_journal_without_room_for_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one"):
        Journal(tmp_path, clock=lambda: 0.0, wall=lambda: 0.0, segment_bytes=1024)


def test_a_data_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    table = open_table(tmp_path / "good")
    (tmp_path / "data").touch()
    with pytest.raises(SitsError, match="data"):
        Ledger(tmp_path / "data", table)
    table.close()


@settings(max_examples=30)
@given(st.lists(entries, max_size=30), st.integers(1, 7))
def test_any_entries_go_through_journal_and_table_unchanged(written: list[Entry], every: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        ledger = opened(data, open_table(data))
        for number, one in enumerate(written):
            ledger.write(one)
            if number % every == 0:
                ledger.tick()
        ledger.close()
        table = open_table(data)
        rows = table.entries(Query(), limit=100).rows
        fitting = [one if len(pack(one)) <= LARGEST else tamed(one) for one in written]
        # As bags, by their text: None and numbers have no order between them.
        assert sorted(repr(row[2:]) for row in rows) == sorted(repr(row_of("", 0, one)[2:]) for one in fitting)
        assert (table.uneven(), table.flaws()) == ([], [])
        table.close()


def test_names_sort_by_time_and_follow_the_specification() -> None:
    # The moment and its characters are the example of the specification's reference code.
    assert ulid(1469918176.385, b"\xff" * 10) == "01ARYZ6S41" + "Z" * 16
    assert ulid(1.0, b"\xff" * 10) < ulid(1.001, bytes(10))


def test_seeds_differ_by_name() -> None:
    assert seed_of("A") != seed_of("B")


def test_a_reader_holds_up_nobody(tmp_path: Path) -> None:
    ledger = opened(tmp_path, open_table(tmp_path))
    ledger.write(entry())
    table = open_table(tmp_path)
    found = audit(tmp_path / FOLDER, table)
    assert (found.pending, found.agreed, found.sound, found.complete) == (1, 0, True, False)
    path = files(tmp_path)[0]
    with path.open("rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    ledger.tick()
    assert audit(tmp_path / FOLDER, table).complete
    ledger.close()
    table.close()
