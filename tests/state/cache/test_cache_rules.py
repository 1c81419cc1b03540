"""What may be kept, and what a client may ask of a cache."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sits.inner.ask import Operation
from sits.state.cache.answer import LONGEST_TAG, Answer, expiry, tags
from sits.state.cache.fingerprint import Question
from sits.state.cache.rules import ANY, Policy, Wish, bypass, fault, wish


def chat(*, finish: Any = "stop", **message: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": "你好", **message}
    return {"choices": [{"index": 0, "message": said, "finish_reason": finish}]}


def completion(text: str = "x", finish: str | None = "stop") -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}


def response(*items: dict[str, Any], status: str = "completed", **more: Any) -> dict[str, Any]:
    return {"id": "resp_1", "status": status, "output": list(items), **more}


def said(text: str = "x", kind: str = "output_text", status: str = "completed") -> dict[str, Any]:
    part = {"type": kind, "refusal" if kind == "refusal" else "text": text}
    return {"type": "message", "status": status, "content": [part]}


def message(*blocks: dict[str, Any], stop: Any = "end_turn") -> dict[str, Any]:
    return {"type": "message", "content": list(blocks), "stop_reason": stop}


TEXT = {"type": "text", "text": "x"}
THOUGHT = {"type": "thinking", "thinking": "x", "signature": "s"}
CALL = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
TWO = {"choices": [*chat()["choices"], *chat(finish="length")["choices"]]}

ANSWERS: dict[str, tuple[Operation, Any, str | None]] = {
    "chat": ("chat", chat(), None),
    "chat with empty extras": ("chat", chat(refusal=None, tool_calls=[], audio=None, annotations=[]), None),
    "chat cut at a limit": ("chat", chat(finish="length"), "truncated"),
    "chat filtered": ("chat", chat(finish="content_filter"), "filtered"),
    "chat refused by its reason": ("chat", chat(finish="refusal"), "refused"),
    "chat refused by its field": ("chat", chat(content=None, refusal="no"), "refused"),
    "chat without a reason": ("chat", chat(finish=None), "unfinished"),
    "chat with a reason nobody knows": ("chat", chat(finish="abort"), "unfinished"),
    "chat that says nothing": ("chat", chat(content=""), "empty"),
    "chat that only thinks": ("chat", chat(content=None, reasoning_content="hm"), "empty"),
    "chat that calls": ("chat", chat(content=None, tool_calls=CALL, finish="tool_calls"), "tools"),
    "chat that calls and says stop": ("chat", chat(tool_calls=CALL), "tools"),
    "chat that calls the old way": ("chat", chat(content=None, function_call={"name": "f"}, finish="function_call"), "tools"),
    "chat whose second choice is cut": ("chat", TWO, "truncated"),
    "chat without choices": ("chat", {"choices": []}, "unreadable"),
    "chat with an error": ("chat", {**chat(), "error": {"message": "x"}}, "unreadable"),
    "an error instead": ("chat", {"error": {"message": "x"}}, "unreadable"),
    "completions": ("completions", completion(), None),
    "completions cut": ("completions", completion(finish="length"), "truncated"),
    "completions empty": ("completions", completion(""), "empty"),
    "responses": ("responses", response({"type": "reasoning", "summary": []}, said()), None),
    "responses cut": ("responses", response(said(status="incomplete"), status="incomplete"), "truncated"),
    "responses failed": ("responses", response(status="failed"), "unfinished"),
    "responses with an error": ("responses", response(said(), error={"code": "x"}), "unreadable"),
    "responses refused": ("responses", response(said("no", "refusal")), "refused"),
    "responses that call": ("responses", response({"type": "function_call", "status": "completed"}), "tools"),
    "responses that searched": ("responses", response({"type": "web_search_call", "status": "completed"}, said()), "tools"),
    "responses with half an item": ("responses", response(said(status="in_progress")), "unfinished"),
    "responses that say nothing": ("responses", response(), "empty"),
    "messages": ("messages", message(THOUGHT, TEXT), None),
    "messages stopped at a word": ("messages", message(TEXT, stop="stop_sequence"), None),
    "messages cut": ("messages", message(TEXT, stop="max_tokens"), "truncated"),
    "messages refused": ("messages", message(TEXT, stop="refusal"), "refused"),
    "messages paused": ("messages", message(TEXT, stop="pause_turn"), "unfinished"),
    "messages without a reason": ("messages", message(TEXT, stop=None), "unfinished"),
    "messages that call": (
        "messages",
        message({"type": "tool_use", "id": "t", "name": "f", "input": {}}, stop="tool_use"),
        "tools",
    ),
    "messages that searched": ("messages", message({"type": "server_tool_use"}, TEXT), "tools"),
    "messages that say nothing": ("messages", message(), "empty"),
    "an error message": ("messages", {"type": "error", "content": []}, "unreadable"),
    "embeddings": ("embeddings", {"data": [{"embedding": [0.5]}, {"embedding": "AAAA"}]}, None),
    "embeddings with a hole": ("embeddings", {"data": [{"embedding": [0.5]}, {"embedding": []}]}, "empty"),
    "no embeddings": ("embeddings", {"data": []}, "empty"),
    "a count": ("count_tokens", {"input_tokens": 3}, "unreadable"),
}


@pytest.mark.parametrize(("operation", "body", "why"), ANSWERS.values(), ids=ANSWERS)
def test_only_a_complete_good_answer_is_kept(operation: Operation, body: Any, why: str | None) -> None:
    assert fault(operation, json.dumps(body).encode()) == why


@pytest.mark.parametrize(("operation", "body", "why"), ANSWERS.values(), ids=ANSWERS)
def test_a_policy_may_keep_tool_calls_and_nothing_else_more(operation: Operation, body: Any, why: str | None) -> None:
    assert fault(operation, json.dumps(body).encode(), tools=True) == (None if why == "tools" else why)


@pytest.mark.parametrize("body", [b"", b"{", b"null", b"[" * 5000], ids=["empty", "cut", "null", "deep"])
def test_what_cannot_be_read_is_not_kept(body: bytes) -> None:
    assert fault("chat", body) == "unreadable"


@pytest.mark.parametrize(
    ("sampled", "drawn", "why"),
    [
        ("unsaid", "greedy", None),
        ("unsaid", "unsaid", None),
        ("unsaid", "random", "sampled"),
        ("never", "greedy", None),
        ("never", "unsaid", "sampled"),
        ("never", "random", "sampled"),
        ("always", "random", None),
    ],
)
def test_the_policy_says_whether_a_draw_is_kept(sampled: Any, drawn: Any, why: str | None) -> None:
    assert bypass(Policy(sampled=sampled), "chat", Question(b"", drawn, False)) == why


@pytest.mark.parametrize("sampled", ["never", "unsaid", "always"])
def test_what_belongs_to_a_conversation_kept_elsewhere_never_meets_a_cache(sampled: Any) -> None:
    assert bypass(Policy(sampled=sampled), "responses", Question(b"", "greedy", True)) == "stateful"


def test_embeddings_are_never_drawn_and_counts_never_kept() -> None:
    question = Question(b"", "unsaid", False)
    assert bypass(Policy(sampled="never"), "embeddings", question) is None
    assert bypass(Policy(sampled="always"), "count_tokens", question) == "operation"


INF = float("inf")


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (None, ANY),
        (b"", Wish()),
        (b"no-store", Wish(read=False, keep=False)),
        (b"No-Cache", Wish(read=False)),
        (b"max-age=60", Wish(max_age=60)),
        (b'max-age="60", min-fresh=5', Wish(max_age=60, min_fresh=5)),
        (b"max-age=60, max-age=30", Wish(max_age=30)),
        (b"max-age=soon", Wish(max_age=0)),
        (b"max-age", Wish(max_age=0)),
        (b"max-age=-1", Wish(max_age=0)),
        (b"min-fresh=x", Wish(min_fresh=INF)),
        (b"only-if-cached , max-stale=9, private, x=y", Wish(max_stale=9, only=True)),
        (b"max-stale", Wish(max_stale=INF)),
        (b"max-stale=x", Wish(max_stale=0)),
        (b"max-stale=9, max-stale=7", Wish(max_stale=7)),
        (b"min-fresh=0", Wish(max_stale=0)),
    ],
    ids=str,
)
def test_cache_control_is_read_as_rfc_9111_has_it(header: bytes | None, found: Wish) -> None:
    assert wish(header) == found


@pytest.mark.parametrize(
    ("asked", "now", "accepted"),
    [
        (Wish(), 199, True),
        (Wish(read=False), 100, False),
        (Wish(max_age=10), 110, True),
        (Wish(max_age=10), 111, False),
        (Wish(min_fresh=50), 150, True),
        (Wish(min_fresh=50), 151, False),
    ],
    ids=str,
)
def test_a_wish_is_held_against_the_age_of_the_answer(asked: Wish, now: float, accepted: bool) -> None:
    assert asked.accepts(Answer("chat", b"", 100.0, 200.0), now) is accepted


@pytest.mark.parametrize(
    ("asked", "now", "accepted"),
    [
        (Wish(), 290, True),
        (Wish(max_stale=0), 199, True),
        (Wish(max_stale=0), 201, False),
        (Wish(max_stale=9), 209, True),
        (Wish(max_stale=9), 210, False),
        (Wish(max_stale=INF), 290, True),
        (Wish(max_age=1000), 199, True),
        (Wish(max_age=1000), 201, False),
        (Wish(max_age=1000, max_stale=9), 209, True),
        (Wish(max_age=50, max_stale=9), 159, True),
        (Wish(max_age=50, max_stale=9), 160, False),
        (Wish(min_fresh=1), 199, True),
        (Wish(min_fresh=1), 200, False),
        (Wish(min_fresh=1, max_stale=9), 200, False),
        (Wish(only=True), 290, True),
        (Wish(read=False), 290, False),
    ],
    ids=str,
)
def test_a_stale_answer_is_for_whoever_did_not_ask_for_a_fresh_one(asked: Wish, now: float, accepted: bool) -> None:
    assert asked.accepts(Answer("chat", b"", 100.0, 300.0, stale=100.0), now) is accepted


def test_an_answer_that_goes_stale_sooner_is_given_no_longer_than_it_would_have_been() -> None:
    answer = Answer("chat", b"", 100.0, 300.0, stale=100.0)
    assert (answer.fresh, answer.softened(150.0).fresh, answer.softened(150.0).expires) == (200.0, 150.0, 250.0)
    assert answer.softened(200.0) is answer
    assert answer.softened(150.0).softened(180.0) == answer.softened(150.0)


def test_an_answer_goes_stale_by_the_policy_or_by_its_grounding_whichever_is_sooner() -> None:
    assert (expiry(100.0, 60), expiry(100.0, 60, 3600), expiry(100.0, 60, 30)) == (160.0, 160.0, 130.0)


def test_tags_name_what_an_answer_can_be_purged_by() -> None:
    found = tags(route="r", model="m", tenant="t", version="v2", sources=["kb/手册", "kb/手册"])
    assert found == ("route:r", "model:m", "tenant:t", "version:v2", "source:kb/手册")
    assert tags(route="r", model="m", tenant=None) == ("route:r", "model:m")
    assert len(tags(route="r" * 500, model="m", tenant=None)[0]) == LONGEST_TAG
