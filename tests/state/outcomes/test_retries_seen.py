"""Asking nearly the same again is seen, as long as it means something; of texts of which that is not known nothing is said."""

from __future__ import annotations

from math import inf

import pytest
from outcomes_kit import DECISION

from sits.state.outcomes import Pending, Retries
from sits.state.outcomes.awaiting import NOTHING


def pending(request_id: str, ended: float = inf) -> Pending:
    return Pending(request_id, "k", DECISION, 0, ended)


@pytest.mark.parametrize(
    ("first", "second", "after", "seen"),
    [
        ("How do I reset my router at home", "how do i reset my router at home?", 30.0, True),
        ("How do I reset my router at home", "How do I reset my router at home please", 30.0, True),
        ("怎么重置家里的路由器", "怎么重置家里的路由器?", 30.0, True),
        ("How do I reset my router at home", "What is the capital of France today", 30.0, False),
        ("How do I reset my router at home", "How do I reset my router at home", 121.0, False),
        ("yes", "yes", 1.0, False),
    ],
    ids=["the same", "nearly", "chinese", "something else", "much later", "too short"],
)
def test_asking_nearly_the_same_again_soon_is_a_retry(first: str, second: str, after: float, seen: bool) -> None:
    retries = Retries()
    one, other, two = (pending(name) for name in ("one", "x", "two"))
    assert retries.asked("k", one, first, 0.0) is None
    one.ended = 0.0
    assert retries.asked("other", other, second, after) is None
    assert retries.asked("k", two, second, after) is (one if seen else None)


def test_the_time_to_ask_again_begins_when_the_answer_is_over() -> None:
    retries = Retries()
    first, second, third = (pending(name) for name in ("1", "2", "3"))
    retries.asked("k", first, "how do I reset my router", 0.0)
    assert retries.asked("k", second, "how do I reset my router", 500.0) is first, "it is under way still"
    second.ended = 900.0
    assert retries.asked("k", third, "how do I reset my router please", 1020.0) is second


def test_an_answer_that_failed_is_not_asked_for_again() -> None:
    retries = Retries()
    first, failed, third = (pending(name) for name in ("1", "2", "3"))
    retries.asked("k", first, "how do I reset my router", 0.0)
    first.ended = 1.0
    retries.asked("k", failed, "what is the capital of France", 2.0)
    failed.ended = NOTHING
    assert retries.asked("k", third, "what is the capital of France", 3.0) is None


def test_a_program_that_sends_the_same_text_all_the_time_is_no_person() -> None:
    retries = Retries()
    sent = [pending(str(at), at + 0.5) for at in range(10)]
    found = [retries.asked("k", one, "count the items of this list", at + 0.0) for at, one in enumerate(sent)]
    assert found == [None, sent[0], sent[1], *[None] * 7]
    assert [one.watched for one in sent] == [False] * 10, "nor does it mean anything that it asked so often"


def test_what_went_out_of_sight_too_soon_is_not_watched() -> None:
    retries = Retries(most=2)
    texts = ["where is my order", "cancel all my orders", "how late is it", "who are you then", "what is for dinner", "ok"]
    sent = [pending(str(at), 0.0) for at in range(len(texts))]
    for one, text in zip(sent, texts, strict=True):
        retries.asked("k", one, text, 1.0)
    assert [one.watched for one in sent] == [False, True, True, True, True, False]
    late = pending("late", 0.0)
    retries.asked("k", late, "something new under the sun", 121.0)
    assert (sent[1].watched, late.watched) == (True, True), "of these there was time to know"
    busy = [pending(f"busy{at}", 200.0) for at in range(3)]
    for at, one in enumerate(busy):
        retries.asked(f"k{at}", one, "one two three four", 200.0)
    assert [one.watched for one in busy] == [False, True, True]


def test_keys_have_a_cap_and_those_that_ask_no_more_are_gone_soon() -> None:
    retries = Retries(most=3)
    for at in range(10):
        retries.asked(f"k{at}", pending("r", 0.0), "one two three four", 0.0)
    assert len(retries) == 3
    retries.asked("new", pending("r"), "one two three four", 1000.0)
    retries.asked("newer", pending("r"), "one two three four", 1000.0)
    assert len(retries) == 2
