"""The limits of a machine: exact over processes, whole after a kill, bounded."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from limits_worker import FEW, MANY, NOW, ROUNDS, SLOTS, TOKENS, drive

from sits.inner.errors import Code, SitsError
from sits.state.limits import mapped, open_limits
from sits.state.limits.base import Limit, Reservation, Standing
from sits.state.limits.counted import Change, CountedLimits
from sits.state.limits.mapped import FOLDER, WORKERS, MappedLines, mapped_limits

WORKER = Path(__file__).with_name("limits_worker.py")
_nurseries: list[subprocess.Popen[str]] = []


@pytest.fixture(scope="module", autouse=True)
def nursery() -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, str(WORKER), "nursery"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as one:
        _nurseries.append(one)
        yield
        _nurseries.clear()
        assert one.stdin is not None
        one.stdin.close()
        assert one.wait(20) == 0


def figures(limits: CountedLimits, *asked: Limit) -> list[tuple[int, int]]:
    return [(found.spent, found.reserved) for found in drive(limits.standings(asked, now=NOW))]


def held(limits: CountedLimits, asked: Sequence[Limit], amounts: Sequence[int]) -> Reservation:
    answer = drive(limits.reserve(asked, amounts, now=NOW, ttl=60.0))
    assert isinstance(answer, Reservation)
    return answer


def test_four_processes_together_admit_exactly_the_cap(tmp_path: Path) -> None:
    command = [sys.executable, str(WORKER), "admit", str(tmp_path), "6000"]
    workers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        print("go", file=worker.stdin, flush=True)
    admitted = [int(worker.communicate(timeout=60)[0]) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 4
    assert sum(admitted) == FEW.cap
    limits = mapped_limits(tmp_path, slots=SLOTS)
    assert figures(limits, FEW, MANY) == [(FEW.cap, 0), (FEW.cap, 0)]
    drive(limits.aclose())


@settings(max_examples=40, deadline=None)
@given(acks=st.integers(0, 300), spin=st.integers(0, 300))
def test_a_killed_worker_leaves_whole_figures_and_reserves_nothing(acks: int, spin: int) -> None:
    (nursery,) = _nurseries
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        beside = mapped_limits(Path(folder), slots=SLOTS)
        mine = held(beside, (TOKENS,), (7,))
        print(json.dumps([folder, acks, spin]), file=nursery.stdin, flush=True)
        acknowledged = int(nursery.stdout.readline())
        drive(beside.sweep(NOW))
        (rounds, none), (tokens, reserved) = figures(beside, ROUNDS, TOKENS)
        assert (none, reserved, tokens) == (0, 7, 3 * rounds), "both limits moved together, and only what lives is held"
        assert rounds in (acknowledged, acknowledged + 1)
        drive(beside.settle(mine, (0,), now=NOW))
        assert figures(beside, TOKENS) == [(tokens, 0)]
        drive(beside.aclose())


class Dies(MappedLines):
    """Dies in its next write: after so many of the lines are made, or in the midst of the note."""

    made: int | None = None
    noted: int | None = None

    def write_alone(self, changes: Sequence[Change]) -> None:
        self.enter()
        try:
            self.write(changes)
        finally:
            self.leave()

    def _make(self, worker: int, changes: Iterable[Change]) -> None:
        if self.noted is not None:
            start = mapped._REDO + self.noted
            self._map[start : mapped._FIRST] = bytes(mapped._FIRST - start)
            raise KeyboardInterrupt
        if self.made is not None:
            super()._make(worker, list(changes)[: self.made])
            raise KeyboardInterrupt
        super()._make(worker, changes)


@pytest.mark.parametrize("made", range(4))
def test_who_comes_after_a_death_among_lines_makes_the_change_whole(tmp_path: Path, made: int) -> None:
    limits = [Limit(f"l{number}", 10, "forever") for number in range(3)]
    dying, after = Dies(tmp_path, slots=SLOTS), CountedLimits("after", MappedLines(tmp_path, slots=SLOTS))
    doomed = CountedLimits("doomed", dying)
    held(doomed, limits, (1, 1, 1))
    dying.made = made
    with pytest.raises(KeyboardInterrupt):
        held(doomed, limits, (2, 2, 2))
    assert figures(after, *limits) == [(0, 3)] * 3
    dying._abandon()
    assert drive(after.sweep(NOW)) == 1
    assert figures(after, *limits) == [(0, 0)] * 3
    drive(after.aclose())


@pytest.mark.parametrize("noted", range(8, 16 + 3 * 32))
def test_a_death_in_the_note_has_changed_nothing(tmp_path: Path, noted: int) -> None:
    limits = [Limit(f"l{number}", 1000, "forever") for number in range(3)]
    dying, after = Dies(tmp_path, slots=SLOTS), CountedLimits("after", MappedLines(tmp_path, slots=SLOTS))
    doomed = CountedLimits("doomed", dying)
    first = held(doomed, limits, (1, 1, 1))
    dying.noted = noted
    # Negative, so that none of the note's bytes is zero by itself, up to the last.
    changes = [(dying.read(limit.name, NOW)[0], -2, -2, -2) for limit in limits]
    with pytest.raises(KeyboardInterrupt):
        dying.write_alone(changes)
    assert figures(after, *limits) == [(0, 1)] * 3
    dying.noted = None
    drive(doomed.release(first, now=NOW))
    drive(doomed.aclose())
    drive(after.aclose())


def test_a_slot_is_used_again_when_its_window_is_over(tmp_path: Path) -> None:
    limits = mapped_limits(tmp_path, slots=4)
    for number in range(4):
        drive(limits.reserve([Limit(f"minute {number}", 5)], [1], now=NOW, ttl=60.0))
    with pytest.raises(SitsError) as refused:
        drive(limits.reserve([Limit("one more", 5)], [1], now=NOW, ttl=60.0))
    assert refused.value.code is Code.OVERLOADED
    again = [Limit(f"next {number}", 5) for number in range(4)]
    answers = [drive(limits.reserve([limit], [2], now=NOW + 60.0, ttl=60.0)) for limit in again]
    assert all(isinstance(answer, Reservation) for answer in answers)
    assert [found.reserved for found in drive(limits.standings(again, now=NOW + 60.0))] == [2] * 4
    drive(limits.aclose())


def test_a_slot_that_was_given_to_another_limit_is_not_mistaken_for_the_old_one(tmp_path: Path) -> None:
    one, other = mapped_limits(tmp_path, slots=1), mapped_limits(tmp_path, slots=1)
    old = drive(one.reserve([Limit("old", 5)], [3], now=NOW, ttl=600.0))
    assert isinstance(old, Reservation)
    new = drive(other.reserve([Limit("new", 5)], [4], now=NOW + 61.0, ttl=600.0))
    assert isinstance(new, Reservation)
    drive(one.settle(old, (3,), now=NOW + 62.0))
    with pytest.raises(SitsError, match="no room"):
        drive(one.reserve([Limit("old", 5)], [1], now=NOW + 62.0, ttl=1.0))
    assert drive(one.standings([Limit("new", 5)], now=NOW + 62.0)) == [Standing(Limit("new", 5), 0, 4, NOW + 120.0)]
    drive(one.aclose())
    drive(other.aclose())


def test_who_is_alone_finds_nothing_reserved_whatever_a_power_failure_left(tmp_path: Path) -> None:
    limits = mapped_limits(tmp_path, slots=SLOTS)
    held(limits, (FEW,), (5,))
    lines = limits._lines
    assert isinstance(lines, MappedLines)
    place = lines.read(FEW.name, NOW)[0]
    # A page that reached the disk at another moment than the head: reserved, and no column that says by whom.
    lines._map[place + mapped._PARTS_AT : place + mapped._SLOT] = bytes(mapped._SLOT - mapped._PARTS_AT)
    lines._map[mapped._DIRTY : mapped._DIRTY + WORKERS] = bytes(WORKERS)
    lines._abandon()
    after = mapped_limits(tmp_path, slots=SLOTS)
    assert figures(after, FEW) == [(0, 0)]
    drive(after.aclose())


def test_a_worker_that_is_stopped_in_its_turn_holds_nobody_up_for_long(tmp_path: Path) -> None:
    limits = mapped_limits(tmp_path, slots=SLOTS)
    fd = os.open(tmp_path / FOLDER / "table", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(SitsError, match="does not go on") as refused:
        drive(limits.reserve((FEW,), (1,), now=NOW, ttl=60.0))
    assert refused.value.code is Code.STATE_UNAVAILABLE
    os.close(fd)
    held(limits, (FEW,), (1,))
    drive(limits.aclose())


def test_there_is_room_for_so_many_workers_and_their_places_are_used_again(tmp_path: Path) -> None:
    workers = [MappedLines(tmp_path, slots=SLOTS) for _ in range(WORKERS)]
    with pytest.raises(SitsError, match=f"room for {WORKERS} workers"):
        MappedLines(tmp_path, slots=SLOTS)
    workers.pop(5).close()
    workers.append(MappedLines(tmp_path, slots=SLOTS))
    for worker in workers:
        worker.close()
        worker.close()


FILES = {
    "of another size": (b"x" * 100, "not as large"),
    "of another version": (b"SITSLIM9" + bytes(8192 + SLOTS * 512 - 8), "of another version"),
}


@pytest.mark.parametrize(("content", "words"), FILES.values(), ids=FILES.keys())
def test_a_file_that_is_not_ours_is_named_and_left(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "table").write_bytes(content)
    with pytest.raises(SitsError, match=words) as refused:
        MappedLines(tmp_path, slots=SLOTS)
    assert refused.value.code is Code.INTERNAL
    assert (tmp_path / "table").read_bytes() == content


def resident(path: Path) -> int:
    """KiB of a mapped file that this process holds in memory, as proc(5) tells it."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(maxsplit=1)[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


def test_slots_that_nobody_uses_take_no_memory_also_once_columns_were_cleared(tmp_path: Path) -> None:
    first = mapped_limits(tmp_path)
    limits = [Limit(f"tokens:{number}", 1000, 60.0) for number in range(8)]
    held(first, limits, [7] * 8)
    second = mapped_limits(tmp_path)
    assert isinstance(first._lines, MappedLines)
    first._lines._abandon()
    assert drive(second.sweep(NOW)) == 1
    assert resident(tmp_path / FOLDER / mapped.FILE) < 2048
    assert figures(second, *limits) == [(0, 0)] * 8
    drive(second.aclose())


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(SitsError, match="data"):
        mapped_limits(tmp_path / "data")


def test_the_files_belong_to_their_owner_alone_and_spending_outlives_the_process(tmp_path: Path) -> None:
    limits = open_limits(tmp_path)
    assert isinstance(limits, CountedLimits)
    drive(limits.settle(held(limits, (FEW,), (5,)), (4,), now=NOW))
    drive(limits.aclose())
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / FOLDER).iterdir()} == {0o600}
    again = open_limits(tmp_path)
    assert isinstance(again, CountedLimits)
    assert figures(again, FEW) == [(4, 0)]
    drive(again.aclose())
