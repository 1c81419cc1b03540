"""Writing recorded traffic: nothing waits, nothing leaks, what is lost is said."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from sits.bench import replay_world
from sits.bench.replay_world import World
from sits.inner.stuck import Stuck
from sits.observe import trace_file
from sits.observe.record import Record
from sits.observe.redact import Redactor
from sits.observe.trace_file import RETRY_SECONDS, TraceFile, key_of
from sits.observe.trace_row import Feedback, Gap, Head, Line, Row, read
from sits.observe.trace_sample import Sample, headers_looked_at, kept_of, keyed
from sits.resources.snapshot import Snapshot
from sits.resources.tracing import SECRET_HEADERS, TraceSpec, trace_faults
from sits.routing.scheduling.base import Facts
from sits.routing.semantics import HEADERS as GROUNDS

SECRET = "exact-secret-of-an-upstream"


@cache
def snapshot() -> Snapshot:
    return replay_world.snapshot()


@cache
def world() -> World:
    return World(snapshot(), None)


def sample(session: bytes = b"", body: bytes = b"{}", headers: dict[str, str] | None = None) -> Sample:
    configuration = snapshot()
    choice = world().choices["drawn"]
    facts = Facts("chat", frozenset(("chat",)), {}, body)
    facts.session = session
    made = Sample(choice, facts, configuration, headers or {})
    made.plan = choice.plan("chat", frozenset(("chat",)), 0.5, 0.0)
    return made


def record(name: str = "r-1", requested: str = "drawn") -> Record:
    return Record(name, 1.7e9, "chat", requested=requested, snapshot=snapshot().hash)


def lines(folder: Path) -> Sequence[Line]:
    return [line for line in read(folder) if isinstance(line, Head | Row | Feedback | Gap)]


def test_a_file_is_for_its_owner_alone_and_begins_with_its_head(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "trace", Redactor())
    file.put(sample(), record())
    file.feedback("r-1", 0.5, "k")
    file.stop()
    (written,) = (tmp_path / "trace").glob("*.jsonl")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (written, tmp_path / "trace" / ".key")] == [0o600, 0o600]
    assert [type(line).__name__ for line in lines(tmp_path / "trace")] == ["Head", "Row", "Feedback"]
    assert (file.rows, file.missing) == (1, 0)


def test_nothing_that_is_secret_or_was_said_is_written(tmp_path: Path) -> None:
    file = TraceFile(tmp_path, Redactor([SECRET]))
    asked = sample(b"session-of-alice", b'{"messages":"private words"}', {"x-tier": f"gold {SECRET}"})
    file.put(asked, record(requested=f"sk-{'a' * 30}"))
    file.stop()
    text = b"".join(path.read_bytes() for path in tmp_path.glob("*.jsonl")).decode()
    for word in (SECRET, "alice", "private", "sk-aaa"):
        assert word not in text
    (row,) = [line for line in lines(tmp_path) if isinstance(line, Row)]
    assert row.asked.headers == {"x-tier": "gold [redacted]"}
    assert row.asked.session == keyed(b"session-of-alice", key_of(tmp_path))
    assert row.body is None


def test_bodies_that_are_asked_for_are_scrubbed_and_long_ones_left_out(tmp_path: Path) -> None:
    file = TraceFile(tmp_path, Redactor([SECRET]), body_bytes=200)
    for body in (b'{"messages":[{"content":"write to bob@example.com, key %b"}]}' % SECRET.encode(), b"[" + b"1," * 200 + b"1]"):
        one = sample()
        one.body = body
        file.put(one, record())
    file.stop()
    short, long = [line for line in lines(tmp_path) if isinstance(line, Row)]
    assert short.body is not None
    assert "bob" not in short.body
    assert SECRET not in short.body
    assert "write to" in short.body
    assert long.body is None


def test_bodies_that_wait_to_be_written_are_left_out_once_that_is_said(tmp_path: Path) -> None:
    file = TraceFile(tmp_path, Redactor())
    for number in range(2):
        one = sample()
        one.body = b'{"messages":[]}'
        file.put(one, record(f"r-{number}"))
        file.flush()
        file.bodies = False
    file.stop()
    assert [line.body for line in read(tmp_path) if isinstance(line, Row)] == ['{"messages":[]}', None]


def test_what_does_not_fit_is_counted_and_the_file_says_so_where_it_is_missing(tmp_path: Path) -> None:
    file = TraceFile(tmp_path, Redactor(), capacity=2)
    for number in range(5):
        file.put(sample(), record(f"r-{number}"))
    file.flush()
    file.put(sample(), record("later"))
    file.stop()
    found = lines(tmp_path)
    assert [line.missing for line in found if isinstance(line, Gap)] == [3]
    assert [line.record.request_id for line in found if isinstance(line, Row)] == ["r-0", "r-1", "later"]
    assert (file.rows, file.missing) == (3, 3)


def test_a_full_file_is_followed_by_another_with_its_own_head_and_old_ones_go(tmp_path: Path) -> None:
    file = TraceFile(tmp_path, Redactor(), largest=1, keep=2)
    for number in range(40):
        file.put(sample(), record(f"r-{number}"))
        file.flush()
    file.stop()
    left = sorted(tmp_path.glob("*.jsonl"))
    assert len(left) == 2
    found = lines(tmp_path)
    assert [type(line).__name__ for line in found] == ["Head", "Row"] * 2
    assert isinstance(found[-1], Row)
    assert found[-1].record.request_id == "r-39"


@pytest.mark.parametrize("kind", ["a folder", "a link to nowhere else than itself"])
def test_an_old_file_that_cannot_be_removed_stays_and_what_comes_is_recorded(
    tmp_path: Path, kind: str, told: pytest.LogCaptureFixture
) -> None:
    # Whoever is root may open and remove all that is a file.
    old = tmp_path / "trace-20000101T000000-1-000001.jsonl"
    if kind == "a folder":
        old.mkdir()
    else:
        old.symlink_to(old)
    file = TraceFile(tmp_path, Redactor(), largest=1, keep=2)
    for number in range(3):
        file.put(sample(), record(f"r-{number}"))
        file.flush()
    file.stop()
    left = sorted(tmp_path.glob("*.jsonl"))
    assert (left[0], len(left), file.rows, file.missing) == (old, 3, 3, 0)
    assert {one.getMessage().partition(":")[0] for one in told.records} == {"old traffic stays, more than is to be kept"}


def test_a_request_that_cannot_be_made_a_row_of_costs_itself_alone(tmp_path: Path, told: pytest.LogCaptureFixture) -> None:
    file = TraceFile(tmp_path, Redactor())
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    for number, requested in enumerate(("drawn", deep, "drawn")):
        file.put(sample(), record(f"r-{number}", requested))
    file.stop()
    rows = [line for line in lines(tmp_path) if isinstance(line, Row)]
    assert [row.record.request_id for row in rows] == ["r-0", "r-2"]
    assert (file.rows, file.missing) == (2, 1)
    (said,) = told.records
    assert said.getMessage().startswith("a request cannot be recorded: RecursionError: ")


def test_a_head_that_could_not_be_made_is_made_for_the_next_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = TraceFile(tmp_path, Redactor())
    with monkeypatch.context() as patch:
        patch.setattr(trace_file, "head_of", lambda *_: [][0])
        file.put(sample(), record("r-0"))
        file.flush()
    file.put(sample(), record("r-1"))
    file.stop()
    head, row, gap = lines(tmp_path)
    assert isinstance(head, Head)
    assert isinstance(row, Row)
    assert isinstance(gap, Gap)
    assert (head.snapshot, row.record.request_id, gap.missing) == (row.record.snapshot, "r-1", 1)


def test_the_thread_survives_a_defect_and_counts_what_it_cost(tmp_path: Path) -> None:
    times: Iterator[Any] = chain((1.7e9, 1.7e9, "no time"), repeat(1.7e9))
    file = TraceFile(tmp_path, Redactor(), largest=1, wall=lambda: next(times))
    for number in range(3):
        file.put(sample(), record(f"r-{number}"))
        file.flush()
    file.stop()
    assert (file.rows, file.missing) == (2, 1)


def test_a_file_that_another_process_writes_is_not_removed(tmp_path: Path) -> None:
    held = tmp_path / "trace-20000101T000000-1-000001.jsonl"
    other = os.open(held, os.O_WRONLY | os.O_CREAT, 0o600)
    fcntl.flock(other, fcntl.LOCK_EX)
    file = TraceFile(tmp_path, Redactor(), largest=1, keep=2)
    for number in range(5):
        file.put(sample(), record(f"r-{number}"))
        file.flush()
    assert held.exists()
    os.close(other)
    file.put(sample(), record())
    file.flush()
    file.stop()
    assert not held.exists()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message.message for message in caplog.records if message.name == "sits.trace"]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO", "sits.trace")
    return caplog


def test_what_a_disk_does_not_take_waits_for_it_and_only_what_has_no_room_is_dropped(
    tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    place, clock = tmp_path / "录制", Clock()
    place.write_text("a file stands where the folder should be")
    file = TraceFile(place, Redactor(), capacity=2, clock=clock, wall=lambda: 1000.0 + clock.now)
    for number in range(5):
        file.put(sample(), record(f"r-{number}"))
        file.flush()
        clock.now += RETRY_SECONDS
    assert (file.rows, file.missing) == (0, 3)
    why = f"the disk does not take recorded traffic, it stays in memory: {place}: File exists"
    assert file.stuck == Stuck(1000.0, why)
    place.unlink()
    clock.now -= 0.5 * RETRY_SECONDS
    file.flush()
    assert file.rows == 0  # Not yet: it is tried once a second.
    clock.now += RETRY_SECONDS
    file.flush()
    assert file.stuck is None
    file.put(sample(), record("later"))
    file.stop()
    found = lines(place)
    assert [line.record.request_id if isinstance(line, Row) else type(line).__name__ for line in found] == [
        "Head", "r-0", "r-1", "Gap", "later"
    ]  # fmt: skip
    assert [line.missing for line in found if isinstance(line, Gap)] == [3]
    (written,) = place.glob("*.jsonl")
    assert said(told) == [
        f"the disk does not take recorded traffic, it stays in memory: {place}: File exists",
        f"traffic is recorded again, in {written}: 3 requests were dropped meanwhile",
    ]


def moved_away(place: Path) -> None:
    place.rename(place.with_name("elsewhere"))


GOING = [
    pytest.param(shutil.rmtree, id="its folder is removed"),
    pytest.param(moved_away, id="its folder is moved"),
    pytest.param(lambda place: next(place.glob("*.jsonl")).unlink(), id="it is removed"),
]


@pytest.mark.parametrize("go", GOING)
def test_a_file_that_goes_away_is_noticed_with_the_next_row_and_followed_by_another(
    tmp_path: Path, told: pytest.LogCaptureFixture, go: Callable[[Path], None]
) -> None:
    place = tmp_path / "数据" / "trace"
    file = TraceFile(place, Redactor())
    file.put(sample(b"s"), record("gone"))
    file.flush()
    key = key_of(place)
    (old,) = place.glob("*.jsonl")
    go(place)
    for name in ("kept", "kept too"):
        file.put(sample(b"s"), record(name))
        file.flush()
    file.stop()
    (written,) = place.glob("*.jsonl")
    rows = [line for line in lines(place) if isinstance(line, Row)]
    assert [row.record.request_id for row in rows] == ["kept", "kept too"]
    assert {row.asked.session for row in rows} == {keyed(b"s", key)}
    assert (key_of(place), stat.S_IMODE(place.stat().st_mode), file.missing) == (key, 0o700, 0)
    assert said(told) == [
        f"{old} is gone, and what was recorded in it; traffic is recorded in {written}",
    ]


def test_a_folder_that_cannot_be_made_again_is_told_once_until_it_can(tmp_path: Path, told: pytest.LogCaptureFixture) -> None:
    place, clock = tmp_path / "trace", Clock()
    file = TraceFile(place, Redactor(), clock=clock)
    file.put(sample(), record("gone"))
    file.flush()
    (old,) = place.glob("*.jsonl")
    shutil.rmtree(place)
    place.write_text("a file stands where the folder should be")
    for _ in range(3):
        file.put(sample(), record("kept"))
        clock.now += RETRY_SECONDS
        file.flush()
    place.unlink()
    file.stop()
    (written,) = place.glob("*.jsonl")
    assert (sum(isinstance(line, Row) for line in lines(place)), file.missing) == (3, 0)
    why = f"{place}: File exists"
    assert said(told) == [
        f"{old} is gone, and what was recorded in it; the disk does not take recorded traffic, it stays in memory: {why}",
        f"traffic is recorded again, in {written}: no request was dropped meanwhile",
    ]


def test_a_full_disk_gets_no_half_of_a_line_and_what_it_does_not_take_in_the_end_is_counted(
    tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    file = TraceFile(tmp_path, Redactor())
    file.put(sample(), record("r-0"))
    file.flush()
    (written,) = tmp_path.glob("*.jsonl")
    whole = written.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The kernel takes some of the next row, and then no more: as a full disk does.
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 100, limits[1]))
    try:
        file.put(sample(), record("r-1"))
        file.flush()
        file.flush()
        assert (written.read_bytes(), file.rows, file.missing) == (whole, 1, 0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        file.stop()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.read_bytes() for path in tmp_path.glob("*.jsonl")] == [whole]
    assert (file.rows, file.missing) == (1, 1)
    assert said(told) == [
        f"the disk does not take recorded traffic, it stays in memory: {tmp_path}: File too large",
        f"recording ends in trouble ({tmp_path}: File too large): 1 request was dropped meanwhile",
    ]


def test_what_is_missing_in_the_end_is_said_in_the_end_and_feedback_begins_no_file(tmp_path: Path) -> None:
    file = TraceFile(tmp_path, Redactor(), capacity=1)
    file.feedback("unknown", 1.0, None)
    file.flush()
    for number in range(3):
        file.put(sample(), record(f"r-{number}"))
    file.stop()
    found = lines(tmp_path)
    assert [type(line).__name__ for line in found] == ["Head", "Row", "Gap"]


def test_the_thread_writes_what_is_left_when_it_ends(tmp_path: Path) -> None:
    file = TraceFile(tmp_path, Redactor())
    file.start(every=60.0)
    for number in range(20):
        file.put(sample(), record(f"r-{number}"))
    file.stop()
    assert sum(isinstance(line, Row) for line in lines(tmp_path)) == 20


def test_the_hash_of_a_session_is_the_same_in_a_folder_and_another_elsewhere(tmp_path: Path) -> None:
    assert key_of(tmp_path) == key_of(tmp_path)
    (tmp_path / "other").mkdir()
    assert keyed(b"s", key_of(tmp_path)) != keyed(b"s", key_of(tmp_path / "other"))
    assert keyed(b"", key_of(tmp_path)) == ""


HEADERS = [
    pytest.param("金".encode(), "金", False, id="text"),
    pytest.param(b"", "", False, id="nothing"),
    pytest.param(b"l" * 4096, "l" * 4096, False, id="as long as it may be"),
    pytest.param(b"l" * 4097, "l" * 4096, True, id="longer"),
    pytest.param(b"l" * 4095 + "金".encode(), "l" * 4095, True, id="cut in the middle of a character"),
    pytest.param(b"v\xffw", "v", True, id="no text from the second byte on"),
]


@pytest.mark.parametrize(("said", "kept", "cut"), HEADERS)
def test_what_is_kept_of_a_header_is_all_of_it_or_its_beginning_and_that_is_said(said: bytes, kept: str, cut: bool) -> None:
    names = (b"x-a", b"x-none")
    assert kept_of({b"x-a": said, b"x-else": b"no"}, names) == ({"x-a": kept}, ("x-a",) if cut else ())


def test_headers_that_the_route_looks_at_are_kept_and_credentials_never() -> None:
    route = snapshot().routes["ruled"]
    always = (b"x-sits-zone", *GROUNDS)
    assert headers_looked_at(None) == tuple(sorted(always))
    assert headers_looked_at(route, ["X-More", *SECRET_HEADERS]) == tuple(sorted((*always, b"x-more", b"x-tier")))
    assert [fault.path for fault in trace_faults(TraceSpec(headers=["x-a", "Cookie"]), ("spec", "trace"))] == [
        ("spec", "trace", "headers", 1)
    ]
