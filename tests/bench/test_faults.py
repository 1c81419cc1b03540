"""`sits bench faults`: some of every part against a real gateway, and proof that its readers and judges see what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sits.bench import BenchError, Plan, faults, faults_kill
from sits.bench.faults_budget import Shared, Spent
from sits.bench.faults_cells import CLASSES, OPERATIONS, TOKENS, TROUBLES, WAYS, Cell, cells, few
from sits.bench.faults_client import Answer
from sits.bench.faults_judge import (
    TEXT,
    Asked,
    Booked,
    Found,
    heard,
    judge_answer,
    judge_asked,
    judge_ledger,
    judge_metrics,
    judge_record,
    judge_said,
)
from sits.bench.faults_leave import LEAVINGS, Left
from sits.bench.faults_page import Showed, figures, page
from sits.bench.faults_wire import FINISHES, Said, read, read_error
from sits.bench.figure import exit_code
from sits.bench.page import render
from sits.chaos import speech
from sits.inner.errors import Code

RELAYED = WAYS[0]


# The matrix itself


def test_every_class_is_tried_on_every_endpoint_whole_and_streamed() -> None:
    tried = {(one.trouble.number, one.operation, one.streamed) for one in cells(RELAYED)}
    assert tried == {(number, operation, kind) for number in CLASSES for operation in OPERATIONS for kind in (False, True)}


def test_cells_have_names_of_their_own_and_outcomes_that_the_product_knows() -> None:
    every = [cell for way in WAYS for cell in cells(way)]
    assert len({cell.name for cell in every}) == len(every)
    codes = {code.value for code in Code} | {"ok"}
    for cell in every:
        right = cell.right
        assert set(right.outcomes) <= codes, cell.name
        assert right.code in codes | {""}, cell.name
        assert len(right.outcomes) == len(right.statuses), cell.name
        assert right.complete == (right.outcomes[-1] == "ok"), cell.name


def test_few_cells_still_have_every_way_to_fail() -> None:
    for way in WAYS:
        wanted = {one.name for one in TROUBLES if not way.continues or one.on_continue is not None}
        assert {cell.trouble.name for cell in few(way)} == wanted
    assert {(cell.operation, cell.streamed) for cell in few(RELAYED)} == {
        (one, kind) for one in OPERATIONS for kind in (False, True)
    }


# Against a real gateway


def test_some_of_every_part_is_right_on_a_real_gateway(tmp_path: Path) -> None:
    said: list[str] = []
    outcome = faults.run(Plan(say=said.append, cache=tmp_path, quick=True, only=("matrix", "leave", "budget")))
    assert [figure for figure in outcome.figures if figure.ok is False] == []
    assert exit_code(outcome.figures) == 0
    cells_judged = {figure.name: figure.detail for figure in outcome.figures}["faults_all_wrong"]
    assert cells_judged == f"of {sum(len(few(way)) for way in WAYS)}"
    text = render(outcome.page, outcome.figures)["reliability.md"]
    assert "not for quoting" in text
    assert all(trouble.words in text for trouble in TROUBLES)


def test_streams_whose_server_is_killed_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "QUICK_STREAMS", 8)
    monkeypatch.setattr(faults_kill, "MODES", ("prefill",))
    outcome = faults.run(Plan(say=lambda line: None, cache=tmp_path, quick=True, only=("kill",)))
    held = {figure.name: (figure.ok, figure.detail) for figure in outcome.figures if figure.bound}
    assert held == {
        "kill_none_prefill_incomplete": (True, "of 8 streams, 0 of them broken off"),
        "kill_process_prefill_incomplete": (True, "of 8 streams, 8 of them broken off"),
        "kill_process_prefill_hit": (True, "streams whose first server died"),
        "kill_token_prefill_incomplete": (True, "of 8 streams, 8 of them broken off"),
        "kill_token_prefill_hit": (True, "streams whose first server died"),
    }


def test_a_part_that_is_none_is_said() -> None:
    with pytest.raises(BenchError, match="no part of this bench is called 'caches'; there are: matrix, leave"):
        faults.run(Plan(say=print, cache=Path(), only=("caches",)))


# What readers see


def told(operation: str, *, streamed: bool) -> bytes:
    """A good answer, as the numbered server gives it."""
    asked: dict[str, Any] = {"model": "m", "stream": streamed, "max_tokens": 4096}
    asked |= {"messages": [{"role": "user", "content": f"count to {TOKENS}"}]}
    asked |= {"input": f"count to {TOKENS}", "prompt": f"count to {TOKENS}:\n"}
    telling = speech.telling(operation, msgspec.json.encode(asked), "m", 1)
    if not streamed:
        return speech.whole(telling)
    return b"".join(
        [*speech.opening(telling), *(speech.token(telling, number) for number in telling.tokens), *speech.closing(telling)]
    )


BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
EACH = pytest.mark.parametrize("operation", OPERATIONS)


@BOTH
@EACH
def test_a_good_answer_is_read_without_complaint(operation: str, streamed: bool) -> None:
    said = read(operation, told(operation, streamed=streamed), streamed=streamed)
    assert (said.text.strip(), said.end, said.finish, said.wrong) == (TEXT, "complete", FINISHES[operation], [])


@EACH
def test_a_stream_that_is_cut_anywhere_is_never_taken_for_complete(operation: str) -> None:
    stream = told(operation, streamed=True)
    for size in range(0, len(stream) - 1, 7):
        said = read(operation, stream[:size], streamed=True)
        assert said.end == "cut"
        assert said.wrong or size == 0 or stream[:size].endswith(b"\n\n"), "half an event is a complaint"


@EACH
def test_an_event_that_is_left_out_doubled_or_moved_is_seen(operation: str) -> None:
    blocks = told(operation, streamed=True).split(b"\n\n")[:-1]

    def sound(changed: list[bytes]) -> bool:
        said = read(operation, b"".join(block + b"\n\n" for block in changed), streamed=True)
        return said.end == "complete" and not said.wrong and said.text.strip() == TEXT

    assert sound(blocks)
    for place, block in enumerate(blocks):
        if b"ping" in block or b"output_item.added" in block or b"in_progress" in block:
            continue  # These may be there or not.
        assert not sound(blocks[:place] + blocks[place + 1 :]), f"left out: {block!r}"
        assert not sound([*blocks[:place], block, *blocks[place:]]), f"doubled: {block!r}"


@pytest.mark.parametrize("after", [b"data: [DONE]\n\n", b'event: message_stop\ndata: {"type":"message_stop"}\n\n'])
@EACH
def test_a_terminator_after_an_error_is_seen(operation: str, after: bytes) -> None:
    fault = {"type": "error", "error": {"type": "server_error", "message": "broke", "sits_code": "stream_broken"}}
    event = b"event: error\n" if operation in ("responses", "messages") else b""
    error = event + b"data: " + msgspec.json.encode(fault) + b"\n\n"
    opening = told(operation, streamed=True).split(b"\n\n")[:6]
    stream = b"".join(block + b"\n\n" for block in opening) + error
    alone = read(operation, stream, streamed=True)
    assert (alone.end, alone.code, alone.wrong) == ("error", "stream_broken", [])
    assert "after the end" in read(operation, stream + after, streamed=True).wrong[0]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"<html>", "not JSON"),
        (b"[]", "not an object"),
        (b"{}", "there is no error object"),
        (b'{"error":{"message":"m","type":"t"}}', "the error has no sits_code"),
        (b'{"error":{"sits_code":"c","type":"t"}}', "the error has no message"),
    ],
)
def test_an_error_that_is_none_of_ours_is_seen(body: bytes, complaint: str) -> None:
    assert any(complaint in line for line in read_error("chat", body).wrong)


# What judges see


def cell(name: str) -> Cell:
    return next(one for way in WAYS for one in cells(way) if one.name == name)


COMPLETE = cell("relayed.503.chat.stream")
"""The second target answers."""
A, B = f"{COMPLETE.name}.a", f"{COMPLETE.name}.b"
HEADS = {
    "content-type": "text/event-stream",
    "x-sits-attempts": "2",
    "x-sits-target": B,
    "x-sits-requested": f"{COMPLETE.name}.alias",
}
RECORD: dict[str, Any] = {
    "attempts": [{"target": A, "outcome": "upstream_error", "status": 503}, {"target": B, "outcome": "ok", "status": 200}],
    "status": 200,
    "stream": True,
}
BOOKS = [Booked(1, False, "upstream_error", A, None), Booked(2, True, "ok", B, TOKENS)]
COUNTED = {(A, "upstream_error"): 1.0, (B, "ok"): 1.0, ("elsewhere", "ok"): 5.0}
ASKED = [[Asked(A, COMPLETE.name, [])], [Asked(B, COMPLETE.name, [])]]


def good() -> Answer:
    body = told("chat", streamed=True).replace(b'"model":"m"', f'"model":"{B}"'.encode()).replace(b'" w1"', b'"w1"')
    return Answer(200, dict(HEADS), body, True)


def judged(
    answer: Answer | None = None,
    record: dict[str, Any] | None = None,
    books: list[Booked] | None = None,
    counted: dict[tuple[str, str], float] | None = None,
    asked: list[list[Asked]] | None = None,
) -> list[str]:
    answer = answer or good()
    said = heard(COMPLETE, answer)
    return [
        *judge_answer(COMPLETE, answer, said),
        *judge_said(COMPLETE, said),
        *judge_record(COMPLETE, RECORD if record is None else record),
        *judge_ledger(COMPLETE, BOOKS if books is None else books),
        *judge_metrics(COMPLETE, COUNTED if counted is None else counted),
        *judge_asked(COMPLETE, ASKED if asked is None else asked),
    ]


def test_what_is_right_is_judged_right() -> None:
    assert judged() == []


def changed(**fields: Any) -> Callable[[], Answer]:
    return lambda: msgspec.structs.replace(good(), **fields)


def said_otherwise(old: bytes, new: bytes) -> Callable[[], Answer]:
    return lambda: msgspec.structs.replace(good(), body=good().body.replace(old, new))


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (changed(status=502, body=b"{}"), "status: expected 200, came 502"),
        (changed(whole=False), "the answer was cut"),
        (changed(headers={**HEADS, "x-sits-attempts": "1"}), "x-sits-attempts: expected '2', came '1'"),
        (changed(headers={**HEADS, "x-sits-target": A}), f"x-sits-target: expected {B!r}, came {A!r}"),
        (changed(headers={**HEADS, "x-sits-error": "upstream_error"}), "x-sits-error: expected '', came 'upstream_error'"),
        (changed(headers={**HEADS, "content-type": "application/json"}), "content-type: expected 'text/event-stream'"),
        (changed(headers={**HEADS, "retry-after": "7"}), "retry-after: expected '', came '7'"),
        (said_otherwise(b' w7"', b' w7 w7"'), "tokens: expected"),
        (said_otherwise(b'"finish_reason":"stop"', b'"finish_reason":"length"'), "finish: expected 'stop', came 'length'"),
        (said_otherwise(B.encode(), A.encode()), "model: expected"),
    ],
)
def test_an_answer_that_is_not_right_is_seen(answer: Callable[[], Answer], complaint: str) -> None:
    assert any(line.startswith(complaint) for line in judged(answer())), judged(answer())


@pytest.mark.parametrize(
    ("part", "value", "complaint"),
    [
        ("record", {}, "record: targets"),
        ("record", {**RECORD, "status": 502}, "record: status: expected 200, came 502"),
        ("record", {**RECORD, "code": "stream_broken"}, "record: code"),
        ("record", {**RECORD, "skipped": 1}, "record: skipped"),
        ("record", {**RECORD, "attempts": RECORD["attempts"][::-1]}, "record: outcomes"),
        ("books", [], "ledger: expected"),
        ("books", [*BOOKS, BOOKS[1]], "ledger: expected"),
        ("books", [BOOKS[0], msgspec.structs.replace(BOOKS[1], output_tokens=59)], "ledger: output tokens"),
        ("counted", {**COUNTED, (A, "upstream_error"): 2.0}, "sits_attempts_total"),
        ("counted", {}, "sits_attempts_total"),
        ("asked", [ASKED[0] * 2, ASKED[1]], "requests at the servers: expected [1, 1], came [2, 1]"),
        ("asked", [[Asked("alias", COMPLETE.name, [])], ASKED[1]], "model that a server was asked for"),
        ("asked", [ASKED[0], [Asked(B, COMPLETE.name, ["cookie"])]], "a server was sent the client's cookie"),
    ],
)
def test_books_that_are_not_right_are_seen(part: str, value: Any, complaint: str) -> None:
    lines = judged(**{part: value})
    assert any(line.startswith(complaint) for line in lines), lines


# Figures and page


def test_a_figure_fails_where_anything_is_wrong_and_the_page_says_what() -> None:
    showed = Showed(
        found=[Found(COMPLETE, ["status: expected 200, came 500"], "500")],
        left=[Left(LEAVINGS[0], None, []), Left(LEAVINGS[1], 0.3, ["record: status"])],
        rounds=[],
        spent=[Spent(1, looks=9, most=451_000_000, reserved=5, spent=449_000_000, booked=450_000_000)],
        seconds={},
        shared=Shared(3, 300, 77, 78, {}, 1.0),
    )
    failed = {figure.name for figure in figures(showed) if figure.ok is False}
    assert {
        "faults_14_503_wrong",
        "faults_all_wrong",
        "faults_way_relayed_wrong",
        "leave_cancelled_ms",
        "leave_wrong",
        "budget_1_gateway_most_dollars",
        "budget_1_gateway_left_reserved_dollars",
        "budget_1_gateway_books_apart_dollars",
        "gateways_limit_missed_by",
    } <= failed
    text = render(page(showed, []), figures(showed))["reliability.md"]
    assert "**500**" in text
    assert "| relayed.503.chat.stream | status: expected 200, came 500 |" in text


def test_what_a_library_heard_is_judged_like_the_bytes() -> None:
    one = cell("library.503.chat.stream")
    said = Said(text=TEXT, end="complete", finish="stop", model=f"{one.name}.b", error={}, wrong=[])
    assert list(judge_said(one, said)) == []
    assert list(judge_said(one, msgspec.structs.replace(said, text=TEXT[:-1]))) != []
