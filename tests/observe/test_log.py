"""Logs: one JSON object a line, off the path, redacted, never in the way."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Iterator

import pytest

from sits.inner.event import Usage
from sits.observe.anatomy import Anatomy
from sits.observe.log import (
    EACH_AT_ONCE,
    EACH_SECONDS,
    LONGEST,
    PLACE_AT_ONCE,
    PLACE_SECONDS,
    JsonHandler,
    LineWriter,
    Repeats,
    current_trace,
    log_to,
)
from sits.observe.metrics import Counter
from sits.observe.record import Attempt, Record
from sits.observe.redact import MASK, Redactor
from sits.observe.stamp import rfc3339
from sits.observe.trace import Trace

CANARY = "canary-4711-secret"


class Lines(list[bytes]):
    """Keeps what was written, as decoded objects."""

    def objects(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in b"".join(self).splitlines()]


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def writer(lines: Lines) -> LineWriter:
    return LineWriter(lines.append, Redactor([CANARY]), Counter(), capacity=8)


@pytest.fixture
def logged(writer: LineWriter) -> Iterator[logging.Logger]:
    undo = log_to(writer, "info")
    yield logging.getLogger("sits.test")
    undo()


RECORD = Record(
    request_id="r-1",
    time=1_700_000_000.25,
    operation="chat",
    trace_id="0af7651916cd43dd8448eb211c80319c",
    span_id="00f067aa0ba902b7",
    key="team-a",
    requested="聪明",
    route="smart",
    served="large",
    target="large-v2",
    stream=True,
    attempts=[Attempt("small", "upstream_error"), Attempt("large", "ok")],
    usage=Usage(input=12, output=0, estimated=True),
    finish="stop",
    status=200,
    anatomy=Anatomy(0.0002, 0.0, 0.0035, 0.0, 0.0455, 0.2545, 0.3037),
    bytes_in=400,
    bytes_out=9000,
)


def test_a_request_is_one_line(writer: LineWriter, lines: Lines) -> None:
    writer.put(RECORD)
    assert writer.flush() == 1
    assert lines.objects() == [
        {
            "ts": "2023-11-14T22:13:20.250Z",
            "level": "info",
            "msg": "request",
            "request_id": "r-1",
            "operation": "chat",
            "status": 200,
            "stream": True,
            "attempts": 2,
            "bytes_in": 400,
            "bytes_out": 9000,
            "trace_id": "0af7651916cd43dd8448eb211c80319c",
            "span_id": "00f067aa0ba902b7",
            "key": "team-a",
            "requested": "聪明",
            "route": "smart",
            "served": "large",
            "target": "large-v2",
            "finish": "stop",
            # An explicit zero stays; what was not said is absent.
            "tokens": {"input": 12, "output": 0, "estimated": True},
            "anatomy": {
                "gateway": 0.2,
                "queue": 0.0,
                "retry": 3.5,
                "connect": 0.0,
                "first_token": 45.5,
                "decode": 254.5,
                "total": 303.7,
            },
        }
    ]


@pytest.mark.parametrize(("status", "level"), [(200, "info"), (404, "info"), (499, "info"), (500, "error"), (502, "warning")])
def test_the_level_says_whose_fault_it_was(writer: LineWriter, lines: Lines, status: int, level: str) -> None:
    writer.put(Record("r", 0.0, "chat", status=status, code="some_code"))
    writer.flush()
    assert [(one["level"], one["status"], one["code"]) for one in lines.objects()] == [(level, status, "some_code")]


def test_a_client_cannot_smuggle_a_secret_or_a_line_into_the_access_log(writer: LineWriter, lines: Lines) -> None:
    writer.put(Record(f"id-{CANARY}", 0.0, "chat", requested="sk-abcdefgh12345678"))
    writer.put(Record("sk-abcdefgh12345678", 0.0, "chat", requested=f'x\n{{"level":"error"}} {CANARY}'))
    writer.flush()
    assert [(one["request_id"], one["requested"]) for one in lines.objects()] == [
        (f"id-{MASK}", MASK),
        (MASK, f'x\n{{"level":"error"}} {MASK}'),
    ]


def test_other_modules_log_in_the_same_form_with_the_ids_they_know(
    logged: logging.Logger, writer: LineWriter, lines: Lines
) -> None:
    token = current_trace.set(Trace("a" * 32, "b" * 16))
    logged.warning("loaded %s with %s", "模型", CANARY, extra={"request_id": "r-9"})
    current_trace.reset(token)
    logged.debug("not at this level")
    logged.info("later")
    writer.flush()
    first, second = lines.objects()
    assert {key: first[key] for key in first if key != "ts"} == {
        "level": "warning",
        "logger": "sits.test",
        "msg": f"loaded 模型 with {MASK}",
        "request_id": "r-9",
        "trace_id": "a" * 32,
        "span_id": "b" * 16,
    }
    assert {key: second[key] for key in second if key != "ts"} == {"level": "info", "logger": "sits.test", "msg": "later"}


def test_an_exception_keeps_its_stack_and_loses_its_secrets(writer: LineWriter, lines: Lines) -> None:
    # Given to the handler itself: pytest keeps what is logged, and workers cannot send it a lone surrogate.
    try:
        raise RuntimeError(f"sent Bearer {CANARY} and \udcff")
    except RuntimeError:
        record = logging.LogRecord("sits.test", logging.ERROR, __file__, 1, "a defect", (), sys.exc_info())
    JsonHandler(writer).emit(record)
    writer.flush()
    (line,) = lines.objects()
    assert (line["error"], line["msg"]) == ("RuntimeError", "a defect")
    assert f"RuntimeError: sent Bearer {MASK} and \\udcff" in str(line["stack"])
    assert CANARY.encode() not in b"".join(lines)


def test_a_full_queue_drops_and_counts() -> None:
    lines, dropped = Lines(), Counter()
    writer = LineWriter(lines.append, Redactor(), dropped, capacity=8)
    for number in range(20):
        writer.put({"n": number})
    assert dropped.value == 12
    assert writer.flush(3) == 3
    assert writer.flush() == 5
    assert [one["n"] for one in lines.objects()] == list(range(8))


class Unsayable:
    def __str__(self) -> str:
        raise ZeroDivisionError


def test_what_json_cannot_say_costs_only_its_own_line() -> None:
    lines, dropped = Lines(), Counter()
    writer = LineWriter(lines.append, Redactor(), dropped)
    writer.put({"n": 1})
    writer.put({"n": Unsayable()})
    writer.put({"n": 3})
    writer.flush()
    assert [one["n"] for one in lines.objects()] == [1, 3]
    assert dropped.value == 1


def test_what_cannot_be_said_at_all_costs_only_its_own_line_whatever_it_raises() -> None:
    lines, dropped = Lines(), Counter()
    writer = LineWriter(lines.append, Redactor(), dropped)
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    for number, more in enumerate((1, deep, 1)):
        writer.put({"n": number, "more": more})
    writer.flush()
    assert [one["n"] for one in lines.objects()] == [0, 2]
    assert dropped.value == 1


def test_a_write_that_fails_in_any_way_costs_its_lines_and_the_next_ones_are_written() -> None:
    lines, dropped = Lines(), Counter()
    writer = LineWriter(lambda data: lines.append(data) if b"2" in data else {}[0], Redactor(), dropped)
    for number in (1, 2):
        writer.put({"n": number})
        writer.flush()
    assert ([one["n"] for one in lines.objects()], dropped.value) == ([2], 1)


def test_what_is_said_at_length_is_cut_and_no_secret_with_it() -> None:
    lines = Lines()
    writer = LineWriter(lines.append, Redactor(["a-secret-of-the-house"]), Counter())
    writer.put({"msg": "模" * LONGEST})
    writer.put({"msg": "x" * (LONGEST - 9) + " a-secret-of-the-house " + "y" * 100_000})
    writer.flush()
    whole, cut = [one["msg"] for one in lines.objects()]
    assert (whole, cut) == ("模" * LONGEST, "x" * (LONGEST - 9) + " [redact…")


def test_a_reader_that_has_gone_costs_lines_not_the_process() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    dropped = Counter()
    writer = LineWriter(lambda data: os.write(writing, data), Redactor(), dropped)
    writer.put({"n": 1})
    writer.put({"n": 2})
    assert writer.flush() == 2
    assert dropped.value == 2
    os.close(writing)


def test_a_thread_writes_and_stopping_it_loses_nothing() -> None:
    seen, lines = threading.Event(), Lines()

    def write(data: bytes) -> None:
        lines.append(data)
        seen.set()

    writer = LineWriter(write, Redactor(), Counter())
    writer.start(every=0.001)
    writer.put({"n": 0})
    assert seen.wait(30)
    for number in range(1, 200):
        writer.put({"n": number})
    writer.stop()
    assert [one["n"] for one in lines.objects()] == list(range(200))


def test_a_stuck_reader_never_blocks_who_logs_or_the_shutdown() -> None:
    entered, release = threading.Event(), threading.Event()

    def write(data: bytes) -> None:
        entered.set()
        release.wait(60)

    dropped = Counter()
    writer = LineWriter(write, Redactor(), dropped, capacity=4)
    writer.start(every=0.001)
    writer.put({"n": 0})
    assert entered.wait(30)
    for number in range(10):
        writer.put({"n": number})
    assert dropped.value == 6
    writer.stop(patience=0.01)
    release.set()


class Told:
    """A log of its own, on a clock that we turn; `said` is what is in it since the last look, with how much was left out."""

    def __init__(self) -> None:
        self.now, self.held, self._lines = 0.0, Counter(), Lines()
        self._writer = LineWriter(self._lines.append, Redactor(), Counter())
        self._handler = JsonHandler(self._writer, Repeats(self.held, lambda: self.now))

    def log(self, line: int, message: str, *args: object, level: int = logging.INFO, defect: bool = False) -> None:
        error = sys.exc_info() if defect else None
        self._handler.emit(logging.LogRecord("sits.test", level, __file__, line, message, args, error))

    def said(self) -> list[tuple[object, object]]:
        self._writer.flush()
        found = [(one["msg"], one.get("left_out")) for one in self._lines.objects()]
        self._lines.clear()
        return found


def test_what_comes_with_every_request_is_told_a_few_times_and_then_how_often_it_came() -> None:
    here = Told()
    for number in range(1000):
        here.log(7, f"GET /{number} -> 404")
    assert here.said() == [(f"GET /{number} -> 404", None) for number in range(EACH_AT_ONCE)]
    assert here.held.value == 1000 - EACH_AT_ONCE
    here.now += EACH_SECONDS
    here.log(7, "GET /late -> 404")
    here.log(7, "GET /later -> 404")
    here.log(8, "another place")
    assert here.said() == [("GET /late -> 404", 1000 - EACH_AT_ONCE), ("another place", None)]


def test_all_models_are_heard_when_they_go_away_at_once_and_names_that_clients_make_up_are_not() -> None:
    here = Told()
    for number in range(10 * PLACE_AT_ONCE):
        here.log(7, "%s is away", f"model-{number}")
    assert here.said() == [(f"model-{number} is away", None) for number in range(PLACE_AT_ONCE)]
    here.now += PLACE_SECONDS
    here.log(7, "%s is away", "another")
    assert here.said() == [("another is away", 9 * PLACE_AT_ONCE)]
    assert max(len(here._handler._repeats._each), len(here._handler._repeats._place)) <= 4096


def test_two_defects_at_one_place_do_not_hide_each_other_and_debugging_is_never_left_out() -> None:
    here = Told()
    for _ in range(2 * EACH_AT_ONCE):
        try:
            _ = 1 // 0
        except ZeroDivisionError:
            here.log(7, "a defect", level=logging.ERROR, defect=True)
        here.log(9, "for debugging", level=logging.DEBUG)
    try:
        _ = int("x")
    except ValueError:
        here.log(7, "another", level=logging.ERROR, defect=True)
    found = here.said()
    told = {name: found.count((name, None)) for name in ("a defect", "another", "for debugging")}
    assert told == {"a defect": EACH_AT_ONCE, "another": 1, "for debugging": 2 * EACH_AT_ONCE}


@pytest.mark.parametrize(
    ("unix", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000.9999, "2023-11-14T22:13:20.999Z"),
        (1_700_000_001.0, "2023-11-14T22:13:21.000Z"),
        (1_700_000_000.5, "2023-11-14T22:13:20.500Z"),
    ],
)
def test_times_are_rfc_3339_in_utc(unix: float, text: str) -> None:
    assert rfc3339(unix) == text
