"""Feedback: read or refused with its field, taken by whoever decided, from whoever may give it, and not without end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outcomes_kit import decide, declared

from sits.gateway.feedback_pages import TOPIC, FeedbackPages, Given
from sits.gateway.pages import Visit
from sits.gateway.wire import Request
from sits.inner.errors import Code, SitsError
from sits.security.keys import KeyIdentity
from sits.state.outcomes import Words, parse
from sits.state.outcomes.awaiting import MOST_CHANGES

KEY = KeyIdentity("k")
ALICE, BOB, BOSS = KeyIdentity("alice"), KeyIdentity("bob"), KeyIdentity("boss", admin=True)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b'{"score": 1}', "request_id"),
        (b'{"request_id": "", "score": 1}', "request_id"),
        (b'{"request_id": 5, "score": 1}', "request_id"),
        (b'{"request_id": "r"}', "score"),
        (b'{"request_id": "r", "score": 1, "thumbs": "up"}', "score"),
        (b'{"request_id": "r", "score": 1.01}', "score"),
        (b'{"request_id": "r", "score": true}', "score"),
        (b'{"request_id": "r", "score": "1"}', "score"),
        (b'{"request_id": "r", "thumbs": "sideways"}', "thumbs"),
        (b'{"request_id": "r", "thumbs": ["up"]}', "thumbs"),
        (b'{"request_id": "r", "score": 1, "rating": 5}', "rating"),
        (b'{"request_id": "r", "score": 1, "comment": 5}', "comment"),
        (b'{"request_id": "r", "score": 1, "key": ""}', "key"),
        (b'{"request_id": "r", "score": 1, "key": 5}', "key"),
    ],
)
def test_feedback_that_cannot_be_read_says_which_field(body: bytes, param: str | None) -> None:
    with pytest.raises(SitsError) as caught:
        parse(body)
    assert (caught.value.code, caught.value.status, caught.value.param) == (Code.INVALID_REQUEST, 400, param)


@settings(max_examples=60, deadline=None)
@given(body=st.binary(max_size=60))
def test_any_body_is_feedback_or_a_clear_refusal(body: bytes) -> None:
    try:
        score, status = parse(body).score, 200
    except SitsError as error:
        score, status = 0.0, error.status
    assert status in (200, 400)
    assert -1.0 <= score <= 1.0


@pytest.mark.parametrize(("given", "score"), [({"score": 0.5}, 0.5), ({"score": -1}, -1.0), ({"thumbs": "down"}, -1.0)])
def test_feedback_is_read(given: dict[str, object], score: float) -> None:
    assert parse(msgspec.json.encode({"request_id": "r", "comment": "太长", **given})).score == score


class _Others:
    def __init__(self, *others: Callable[[str], bytes]) -> None:
        self.others = others
        self.asked: list[str] = []

    async def ask(self, question: str) -> tuple[list[bytes], int]:
        self.asked.append(question)
        topic, _, rest = question.partition(" ")
        return [other(rest) for other in self.others if topic == TOPIC], 0


def visit(body: bytes, key: KeyIdentity | None) -> Visit:
    return Visit(Request(b"POST", b"/v1/feedback", b"", {}, body, "", 0.0), "id", key, "")


def test_feedback_is_taken_here_or_by_the_worker_that_decided() -> None:
    async def story() -> None:
        mine, others = declared(), declared()
        decide(mine, "here")
        decide(others, "there")
        there = FeedbackPages(others, lambda: _Others())  # type: ignore[arg-type, return-value]
        siblings = _Others(lambda question: b"-", there.here)
        pages = FeedbackPages(mine, lambda: siblings, lambda: 1.0)  # type: ignore[arg-type, return-value]
        owner, thief = KEY, msgspec.structs.replace(KEY, name="thief")
        answers = [
            await pages.give(visit(f'{{"request_id":"{name}","thumbs":"up"}}'.encode(), owner)) for name in ("here", "there")
        ]
        assert [(answer.status, msgspec.json.decode(answer.body)["status"]) for answer in answers] == [(200, "counted")] * 2
        again = await pages.give(visit(b'{"request_id":"there","thumbs":"up"}', owner))
        assert msgspec.json.decode(again.body) == {"request_id": "there", "status": "repeated"}
        assert len(siblings.asked) == 2
        for key, name in ((thief, "here"), (owner, "nowhere")):
            with pytest.raises(SitsError) as caught:
                await pages.give(visit(f'{{"request_id":"{name}","score":0.5}}'.encode(), key))
            assert (caught.value.code, caught.value.status) == (Code.NOT_FOUND, 404)
        shown = await pages.show(visit(b"", owner))
        assert msgspec.json.decode(shown.body)["routes"]["chat"]["tally"]["counted"] == 1

    asyncio.run(story())


def rated(pages: FeedbackPages, by: KeyIdentity | None, /, **body: Any) -> tuple[int, str, str | None]:
    """Status, what became of it or the code, and the field at fault."""
    try:
        answer = asyncio.run(pages.give(visit(msgspec.json.encode({"request_id": "r", **body}), by)))
    except SitsError as error:
        return error.status, error.code.value, error.param
    return answer.status, msgspec.json.decode(answer.body)["status"], None


@pytest.mark.parametrize("apart", [False, True], ids=["in one worker", "in two"])
def test_an_administrator_says_whose_request_it_is_where_several_keys_use_one_id(apart: bool) -> None:
    mine, others = declared(), declared()
    there = FeedbackPages(others, lambda: _Others(), lambda: 1.0)  # type: ignore[arg-type, return-value]
    pages = FeedbackPages(mine, lambda: _Others(there.here), lambda: 1.0)  # type: ignore[arg-type, return-value]
    decide(mine, "r", key="alice")
    assert rated(pages, BOSS, score=0.5) == (200, "counted", None), "there is one only"
    decide(others if apart else mine, "r", key="bob")
    assert rated(pages, BOSS, score=-0.5) == (409, "conflict", "key")
    assert rated(pages, BOSS, score=-0.5, key="bob") == (200, "counted", None)
    assert rated(pages, BOSS, score=-0.5, key="alice") == (200, "changed", None)
    assert rated(pages, BOSS, score=-0.5, key="eve") == (404, "not_found", "request_id")
    assert rated(pages, ALICE, score=1.0, key="bob") == (400, "invalid_request", "key")
    assert rated(pages, ALICE, score=1.0, key="alice") == (200, "changed", None)
    assert rated(pages, BOB, score=1.0) == (200, "changed", None)
    decide(others if apart else mine, "r", key="boss")
    assert rated(pages, BOSS, score=0.0) == (200, "counted", None), "its own comes first"


@pytest.mark.parametrize("learns", [False, True], ids=["of a route that does not learn", "of one that does"])
def test_feedback_is_changed_so_often_and_recorded_no_more(learns: bool) -> None:
    noted: list[tuple[float | None, bool]] = []

    def note(given: Given, known: bool) -> bool:
        noted.append((given.score, known))
        return given.key != "eve"

    outcomes = declared()
    pages = FeedbackPages(outcomes, lambda: _Others(), lambda: 1.0, noted=note)  # type: ignore[arg-type, return-value]
    if learns:
        decide(outcomes, "r", key="alice")
    said = [rated(pages, ALICE, score=float(at % 2)) for at in range(MOST_CHANGES + 3)]
    refused, repeated = (409, "conflict", "score"), (200, "repeated", None)
    assert said == [(200, "counted", None), *[(200, "changed", None)] * MOST_CHANGES, refused, repeated]
    assert noted == [(float(at % 2), learns) for at in range(MOST_CHANGES + 1)]
    assert rated(pages, BOSS, score=0.25, key="alice") == (200, "changed", None), "administrators may still"
    assert rated(pages, ALICE, score=0.5) == refused
    assert rated(pages, KeyIdentity("eve"), score=0.5) == (404, "not_found", "request_id")


def test_the_words_that_are_remembered_have_a_cap() -> None:
    words = Words(2)
    for name in ("a", "b", "c"):
        words.heard("k", name, 1.0)
    assert len(words) == 2
    assert [words.said("k", name, 1.0) for name in ("a", "b", "c")] == ["counted", "repeated", "repeated"]
