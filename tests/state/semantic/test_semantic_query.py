"""What of a request is compared by meaning, what to the letter, what by rule."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.inner.ask import Operation
from sits.inner.errors import Code, SitsError
from sits.state.cache import fingerprint, rules
from sits.state.cache.semantic import Facet, Freshness, Policy, Query, bucket, sources, threshold, turn
from sits.state.cache.semantic.reading import LONGEST

HERE = fingerprint.partition(rules.Policy(), "chat", "route", "models", "north")
ASK: dict[str, Any] = {
    "model": "m",
    "temperature": 0,
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "How do I pay?"},
    ],
}


def text_of(operation: str, **fields: Any) -> str | None:
    found = turn(HERE, operation, msgspec.json.encode(fields))  # type: ignore[arg-type]
    return None if found is None else found.text


QUESTION = {"role": "user", "content": "How do I pay?"}
PARTS = {
    "role": "user",
    "content": [
        {"type": "text", "text": "How do"},
        {"type": "image_url", "image_url": {"url": "u"}},
        {"type": "text", "text": "I pay?"},
    ],
}
RESULT = {"role": "user", "content": [{"type": "tool_result"}, {"type": "text", "text": "x"}]}
TURNS = [
    ("chat", "chat", {"messages": [QUESTION]}, "How do I pay?"),
    ("messages", "messages", {"system": "s", "messages": [QUESTION]}, "How do I pay?"),
    ("responses, text", "responses", {"input": "How do I pay?"}, "How do I pay?"),
    ("responses, items", "responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Pay?"}]}]}, "Pay?"),
    ("parts", "chat", {"messages": [PARTS]}, "How do\nI pay?"),
    ("the assistant was last", "chat", {"messages": [QUESTION, {"role": "assistant", "content": "By"}]}, None),
    ("a tool was last", "chat", {"messages": [QUESTION, {"role": "tool", "content": "1"}]}, None),
    ("a tool's result", "messages", {"messages": [RESULT]}, None),
    ("an image alone", "chat", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None),
    ("no text", "chat", {"messages": [{"role": "user", "content": " "}]}, None),
    ("too long", "chat", {"messages": [{"role": "user", "content": "x" * (LONGEST + 1)}]}, None),
    ("embeddings", "embeddings", {"input": "How do I pay?"}, None),
    ("completions", "completions", {"prompt": "How do I pay?"}, None),
    ("tied to a conversation", "responses", {"input": "How do I pay?", "previous_response_id": "r"}, None),
    ("no messages", "chat", {}, None),
    ("messages of another type", "chat", {"messages": 3}, None),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "fields", "text"), [row[1:] for row in TURNS], ids=[row[0] for row in TURNS])
def test_the_last_turn_is_the_question_where_it_is_one(operation: str, fields: dict[str, Any], text: str | None) -> None:
    assert text_of(operation, **fields) == text


def test_what_is_not_json_is_no_question() -> None:
    assert turn(HERE, "chat", b"[1") is None
    assert turn(HERE, "chat", b"[1]") is None


def test_long_conversations_are_left_alone() -> None:
    body = msgspec.json.encode(ASK)
    assert turn(HERE, "chat", body, Policy(turns=2)) is not None
    assert turn(HERE, "chat", body, Policy(turns=1)) is None


def partition_of(ask: dict[str, Any], where: bytes = HERE) -> str:
    found = turn(where, "chat", msgspec.json.encode(ask))
    assert found is not None
    return found.partition


def said(*contents: Any) -> list[dict[str, Any]]:
    return [message | {"content": content} for message, content in zip(ASK["messages"], contents, strict=True)]


def test_the_question_alone_leaves_the_partition() -> None:
    other = ASK | {"messages": said("Be brief.", "Hello", "Hi", "Where is the bank?"), "stream": True, "model": "alias"}
    assert partition_of(other) == partition_of(ASK)


IMAGE = [{"type": "text", "text": "How do I pay?"}, {"type": "image_url", "image_url": {"url": "u"}}]
CHANGES = [
    ("system prompt", {"messages": said("Be kind.", "Hello", "Hi", "How do I pay?")}),
    ("earlier turn", {"messages": said("Be brief.", "Hallo", "Hi", "How do I pay?")}),
    ("earlier answer", {"messages": said("Be brief.", "Hello", "Ho", "How do I pay?")}),
    ("image", {"messages": said("Be brief.", "Hello", "Hi", IMAGE)}),
    ("temperature", {"temperature": 1}),
    ("length", {"max_tokens": 5}),
    ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
    ("format", {"response_format": {"type": "json_object"}}),
    ("a field of later days", {"verbosity": "low"}),
    ("the marker as text", {"messages": said("Be brief.", "Hello", "Hi", [{"type": "text", "text": "x", "asked": True}])}),
]


@pytest.mark.parametrize("change", [row[1] for row in CHANGES], ids=[row[0] for row in CHANGES])
def test_all_else_is_compared_to_the_letter(change: dict[str, Any]) -> None:
    assert partition_of(ASK | change) != partition_of(ASK)


SCOPES = [
    ("tenant", fingerprint.partition(rules.Policy(), "chat", "route", "models", "south")),
    ("no tenant", fingerprint.partition(rules.Policy(), "chat", "route", "models", None)),
    ("route", fingerprint.partition(rules.Policy(), "chat", "other", "models", "north")),
    ("models", fingerprint.partition(rules.Policy(), "chat", "route", "models 2", "north")),
    ("policy scope", fingerprint.partition(rules.Policy(scope="route"), "chat", "route", "models", "north")),
    ("words", fingerprint.partition(rules.Policy(), "chat", "route", "models", "north", b"beta")),
]


@pytest.mark.parametrize("scope", [row[1] for row in SCOPES], ids=[row[0] for row in SCOPES])
def test_tenant_route_models_and_scope_are_borders(scope: bytes) -> None:
    assert partition_of(ASK, scope) != partition_of(ASK)


NAMES = st.none() | st.text(max_size=12) | st.sampled_from(["null", "north", "north\n", '["north"]', "North", ""])


@given(NAMES, NAMES, st.sampled_from(["chat", "messages"]), st.text(min_size=1, max_size=20).filter(str.strip))
@settings(max_examples=100, deadline=None)
def test_two_tenants_share_a_partition_only_when_they_are_one(
    one: str | None, other: str | None, operation: Operation, text: str
) -> None:
    body = msgspec.json.encode({"messages": [{"role": "user", "content": text}]})
    parts = []
    for tenant in (one, other):
        found = turn(fingerprint.partition(rules.Policy(), operation, "route", "models", tenant), operation, body)
        assert found is not None
        parts.append(found.partition)
    assert (parts[0] == parts[1]) == (one == other)


KEYS = [
    ("partition", Query("How do I pay?", "q")),
    ("text", Query("How do I pay!", "p")),
    ("facets", Query("How do I pay?", "p", facets=(Facet("domain", "law"),))),
    ("value of a facet", Query("How do I pay?", "p", facets=(Facet("domain", "1"),))),
    ("type of a facet", Query("How do I pay?", "p", facets=(Facet("domain", 1),))),
    ("intent", Query("How do I pay?", "p", freshness=Freshness(intent="faq"))),
    ("grounding", Query("How do I pay?", "p", freshness=Freshness(grounding="faq"))),
]


def test_one_key_holds_text_partition_facets_and_contract_apart() -> None:
    keys = {query.key for _, query in KEYS} | {Query("How do I pay?", "p").key}
    assert len(keys) == len(KEYS) + 1
    one, two = (Facet("a", 1), Facet("b", 2)), (Facet("b", 2), Facet("a", 1))
    assert Query("x", "p", facets=one).key == Query("x", "p", facets=two).key


def test_sources_are_compared_as_a_set() -> None:
    assert sources(["b@2", "a@1", "b@2"]) == sources(["a@1", "b@2"])
    assert sources(["a@1"]) != sources(["a@2"])


def test_a_bucket_is_a_stretch_of_time() -> None:
    assert bucket(86_400 * 3 + 5, 86_400) == bucket(86_400 * 4 - 1, 86_400) != bucket(86_400 * 4, 86_400)


def test_a_distance_needs_a_number() -> None:
    with pytest.raises(SitsError) as caught:
        Query("x", "p", facets=(Facet("domain", "law", within=1.0),)).where(0.0)
    assert (caught.value.code, caught.value.param) == (Code.INVALID_REQUEST, "domain")


def test_a_callers_threshold_is_a_number_from_0_to_1() -> None:
    assert (threshold(None), threshold(b"0.95"), threshold(b"1")) == (None, 0.95, 1.0)


@pytest.mark.parametrize("header", [b"", b"high", b"1.5", b"-1", b"nan"])
def test_another_threshold_is_refused(header: bytes) -> None:
    with pytest.raises(SitsError) as caught:
        threshold(header)
    assert caught.value.code is Code.INVALID_REQUEST
