"""What counts as the same question."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.state.cache.fingerprint import IGNORED, REMEMBERED_FROM, Fingerprinter, partition, question
from sits.state.cache.rules import Policy

HERE = partition(Policy(), "chat", "assistant", "models-1", "alice")
ASK = {"model": "assistant", "messages": [{"role": "user", "content": "法国的首都是哪里?"}], "max_tokens": 16, "temperature": 0.5}


def mark(body: Any, where: bytes = HERE) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    found = question(where, raw)
    assert found is not None
    return found.fingerprint


def schema(*names: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}}


SAME = {
    "white space": json.dumps(ASK, indent=4).encode(),
    "key order": dict(reversed(ASK.items())),
    "key order inside": {**ASK, "messages": [{"content": "法国的首都是哪里?", "role": "user"}]},
    "escapes or none": json.dumps(ASK, ensure_ascii=False).encode(),
    "an integer written as a fraction": json.dumps(ASK).replace("16", "16.0").encode(),
    "an integer with an exponent": json.dumps(ASK).replace("16", "1.6e1").encode(),
    "a fraction with more digits": json.dumps(ASK).replace("0.5", "0.500").encode(),
    "null for nothing": {**ASK, "top_p": None},
    "an alias": {**ASK, "model": "helper"},
    "streamed": {**ASK, "stream": True, "stream_options": {"include_usage": True}},
    "another end user": {**ASK, "user": "u-1", "safety_identifier": "s", "metadata": {"run": "7"}},
    "another price": {**ASK, "service_tier": "flex", "prompt_cache_key": "k", "prompt_cache_retention": "24h", "store": False},
    "the last of a repeated key": b'{"temperature": 9, ' + json.dumps(ASK).encode()[1:],
}
OTHER = {
    "another word": {**ASK, "messages": [{"role": "user", "content": "法国的首都是哪里?!"}]},
    "another role": {**ASK, "messages": [{"role": "system", "content": "法国的首都是哪里?"}]},
    "another turn order": {**ASK, "messages": [*ASK["messages"], {"role": "user", "content": "x"}][::-1]},
    "another temperature": {**ASK, "temperature": 0.25},
    "another limit": {**ASK, "max_tokens": 17},
    "a limit as text": {**ASK, "max_tokens": "16"},
    "a seed": {**ASK, "seed": 1},
    "a large seed": {**ASK, "seed": 2**64 + 1},
    "a seed next to it": {**ASK, "seed": 2**64 + 2},
    "a field nobody knows": {**ASK, "cache_salt": "x"},
    "metadata inside a message": {**ASK, "messages": [{**ASK["messages"][0], "metadata": 1}]},
    "an image": {**ASK, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,a"}}]}]},
    "another image": {**ASK, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,b"}}]}]},
    "a tool": {**ASK, "tools": [{"type": "function", "function": {"name": "f", "parameters": schema("a", "b")}}]},
    "a tool with its fields in another order": {
        **ASK,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema("b", "a")}}],
    },
    "a form": {**ASK, "response_format": {"type": "json_schema", "json_schema": {"schema": schema("reasoning", "verdict")}}},
    "a form in another order": {
        **ASK,
        "response_format": {"type": "json_schema", "json_schema": {"schema": schema("verdict", "reasoning")}},
    },
    "a list where a form has properties": {
        **ASK,
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": [["a", 1]]}}},
    },
    "what that list would be as properties": {
        **ASK,
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {"a": 1}}}},
    },
    "the same number as true": {**ASK, "logprobs": True},
    "as one": {**ASK, "logprobs": 1},
}


@pytest.mark.parametrize("body", SAME.values(), ids=SAME)
def test_it_is_the_same_question_with(body: Any) -> None:
    assert mark(body) == mark(ASK)


def test_each_of_these_is_a_question_of_its_own() -> None:
    marks = {name: mark(body) for name, body in {"as it was": ASK, **OTHER}.items()}
    assert len(set(marks.values())) == len(marks)


def test_the_order_of_a_schemas_other_keys_does_not_count() -> None:
    def form(keywords: dict[str, Any]) -> dict[str, Any]:
        return {**ASK, "response_format": {"type": "json_schema", "json_schema": {"schema": keywords}}}

    assert mark(form(schema("a"))) == mark(form(dict(reversed(schema("a").items()))))


WHERE = {
    "here": (Policy(), "chat", "assistant", "models-1", "alice", b""),
    "another tenant": (Policy(), "chat", "assistant", "models-1", "bob", b""),
    "nobody": (Policy(), "chat", "assistant", "models-1", None, b""),
    "a tenant called null": (Policy(), "chat", "assistant", "models-1", "null", b""),
    "a tenant called nothing": (Policy(), "chat", "assistant", "models-1", "", b""),
    "another route": (Policy(), "chat", "writer", "models-1", "alice", b""),
    "other models": (Policy(), "chat", "assistant", "models-2", "alice", b""),
    "another operation": (Policy(), "messages", "assistant", "models-1", "alice", b""),
    "a beta": (Policy(), "chat", "assistant", "models-1", "alice", b"beta-1"),
    "the whole route": (Policy(scope="route"), "chat", "assistant", "models-1", "alice", b""),
    "all routes": (Policy(scope="global"), "chat", "assistant", "models-1", "alice", b""),
    "a route named like the tenant": (Policy(), "chat", "alice", "models-1", "assistant", b""),
}


def test_no_two_partitions_ever_share_a_question() -> None:
    marks = {name: mark(ASK, partition(*place)) for name, place in WHERE.items()}
    assert len(set(marks.values())) == len(marks)


@pytest.mark.parametrize(
    ("scope", "tenants", "routes"), [("tenant", 2, 2), ("route", 1, 2), ("global", 1, 1)], ids=["tenant", "route", "global"]
)
def test_a_scope_says_who_shares(scope: Any, tenants: int, routes: int) -> None:
    policy = Policy(scope=scope)
    assert len({partition(policy, "chat", "r", "m", tenant) for tenant in ("alice", "bob")}) == tenants
    assert len({partition(policy, "chat", route, "m", "alice") for route in ("r", "s")}) == routes


@pytest.mark.parametrize(
    ("fields", "drawn"),
    [
        ({"temperature": 0}, "greedy"),
        ({"temperature": 0.0}, "greedy"),
        ({"temperature": 1, "top_k": 1}, "greedy"),
        ({"temperature": 1, "seed": 7}, "greedy"),
        ({}, "unsaid"),
        ({"temperature": None}, "unsaid"),
        ({"temperature": 0.7}, "random"),
        ({"temperature": 0, "n": 2}, "random"),
    ],
    ids=str,
)
def test_how_tokens_are_drawn_is_read(fields: dict[str, Any], drawn: str) -> None:
    found = question(HERE, json.dumps({"messages": [], **fields}).encode())
    assert found is not None
    assert found.drawn == drawn


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, False),
        ({"store": False}, False),
        ({"store": True}, True),
        ({"previous_response_id": "resp_1"}, True),
        ({"previous_response_id": None}, False),
        ({"conversation": {"id": "conv_1"}}, True),
        ({"background": True}, True),
        ({"background": False}, False),
    ],
    ids=str,
)
def test_what_is_kept_elsewhere_is_known(fields: dict[str, Any], kept: bool) -> None:
    found = question(HERE, json.dumps({"input": "x", **fields}).encode())
    assert found is not None
    assert found.kept is kept


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"a": NaN}', b'{"a": 1e999}', b'{"a": "\xff"}', b"[" * 5000, b'{"tools":' + b"[" * 5000],
    ids=["empty", "cut", "list", "null", "nan", "too large", "not UTF-8", "deep", "deep tools"],
)
def test_no_cache_answers_what_is_not_a_json_object(body: bytes) -> None:
    assert question(HERE, body) is None
    assert Fingerprinter().read(HERE, body + b" " * REMEMBERED_FROM) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)
bodies = st.dictionaries(
    st.text(max_size=8) | st.sampled_from(["tools", "text", "messages", "temperature"]), json_values, max_size=5
)


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same value with its keys in another order."""
    if isinstance(value, list):
        return [shuffled(item, chance) for item in value]
    if not isinstance(value, dict):
        return value
    items = list(value.items())
    chance.shuffle(items)
    return {name: held if name == "properties" else shuffled(held, chance) for name, held in items}


@settings(max_examples=80, deadline=None)
@given(
    body=bodies, seed=st.integers(0, 2**16), ignored=st.sampled_from(IGNORED), value=json_values.filter(lambda v: v is not True)
)
def test_spelling_never_changes_a_question(body: dict[str, Any], seed: int, ignored: str, value: Any) -> None:
    said = {**body, ignored: value}
    again = shuffled(said, random.Random(seed))
    spelled = json.dumps(again, indent=seed % 5, ensure_ascii=bool(seed % 2)).encode("utf-8", "surrogatepass")
    try:
        spelled.decode()
    except UnicodeDecodeError:
        return
    body.pop(ignored, None)
    assert mark(json.dumps(body).encode()) == mark(spelled)


def normal(value: Any) -> Any:
    """A value in a form that Python compares as the promise does: 1 is 1.0 but not true, and nulls at the top say nothing."""
    if isinstance(value, list):
        return [normal(item) for item in value]
    if isinstance(value, dict):
        return {name: normal(item) for name, item in value.items()}
    return (type(value).__name__, value) if isinstance(value, bool) else value


@settings(max_examples=80, deadline=None)
@given(one=bodies, two=bodies)
def test_two_questions_are_the_same_only_when_their_values_are(one: dict[str, Any], two: dict[str, Any]) -> None:
    def counted(body: dict[str, Any]) -> Any:
        return normal({name: held for name, held in body.items() if held is not None and name not in IGNORED})

    assert (mark(one) == mark(two)) == (counted(one) == counted(two))


def test_a_large_body_is_read_once_and_its_fingerprint_is_the_same_as_ever() -> None:
    reader = Fingerprinter(cap=2)
    large = [json.dumps({**ASK, "messages": [{"role": "user", "content": str(n) * REMEMBERED_FROM}]}).encode() for n in range(3)]
    first = reader.read(HERE, large[0])
    assert first == question(HERE, large[0])
    assert reader.read(HERE, large[0]) is first
    assert reader.read(partition(Policy(), "chat", "assistant", "models-1", "bob"), large[0]) != first
    reader.read(HERE, large[1])
    reader.read(HERE, large[2])
    assert reader.read(HERE, large[0]) == first
    assert len(reader) == 2
