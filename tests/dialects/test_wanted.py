"""What the user said last is found in the body of every dialect; what cannot be read is no text, and never an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.dialects.wanted import PARTS, READ, TURNS, wanted
from sits.inner.ask import Operation

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


FOUND: dict[str, tuple[Operation, dict[str, Any], str | None]] = {
    "a chat": ("chat", {"model": "m", "messages": [{"role": "system", "content": "s"}, user("hi")]}, "hi"),
    "the last turn of the user": (
        "chat",
        {"messages": [user("first"), {"role": "assistant", "content": "a"}, user("房东不退押金"), {"role": "assistant"}]},
        "房东不退押金",
    ),
    "parts with an image": (
        "chat",
        {"messages": [user([IMAGE, {"type": "text", "text": "what is"}, IMAGE, {"type": "text", "text": "这是什么"}])]},
        "what is\n这是什么",
    ),
    "an image alone: what was said before it": ("chat", {"messages": [user("look"), user([IMAGE])]}, "look"),
    "a tool's result is not what the user said": (
        "messages",
        {"messages": [user("weather?"), user([{"type": "tool_result", "tool_use_id": "t", "content": "rain"}])]},
        "weather?",
    ),
    "messages with a system prompt": (
        "messages",
        {"system": [{"type": "text", "text": "s"}], "messages": [user([{"type": "text", "text": "你好"}])]},
        "你好",
    ),
    "a token count": ("count_tokens", {"messages": [user("count")]}, "count"),
    "responses, a string": ("responses", {"input": "hello"}, "hello"),
    "responses, items": (
        "responses",
        {
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "问题"}]},
                {"type": "function_call_output", "call_id": "c", "output": "42"},
            ]
        },
        "问题",
    ),
    "a prompt": ("completions", {"prompt": "once upon"}, "once upon"),
    "several prompts: the first": ("completions", {"prompt": ["one", "two"]}, "one"),
    "tokens": ("completions", {"prompt": [1, 2, 3]}, None),
    "lists of tokens": ("embeddings", {"input": [[1, 2], [3]]}, None),
    "embeddings": ("embeddings", {"input": ["甲", "乙"]}, "甲"),
    "no input": ("embeddings", {"input": []}, None),
    "nothing": ("chat", {}, None),
    "null": ("chat", {"messages": None}, None),
    "blank": ("chat", {"messages": [user("  \n ")]}, None),
    "spaces around it": ("chat", {"messages": [user("  hi \n")]}, "hi"),
    "no content": ("chat", {"messages": [{"role": "user"}]}, None),
    "a null content": ("chat", {"messages": [user(None)]}, None),
    "turns that are none": ("chat", {"messages": [user("hi"), "text", 7, None, [], {"role": 1}]}, "hi"),
    "parts that are none": ("chat", {"messages": [user(["plain", 7, None, {"type": 1}, {"type": "text", "text": 1}])]}, "plain"),
    "an escaped key": ("chat", {"messages": [user('\u2028"\\\n')]}, '"\\'),
    "another dialect's field": ("chat", {"prompt": "p", "input": "i"}, None),
    "a user who spoke long ago": ("chat", {"messages": [user("hi"), *[{"role": "tool", "content": "t"}] * TURNS]}, None),
    "a text behind too many parts": ("chat", {"messages": [user([IMAGE] * PARTS + [{"type": "text", "text": "hi"}])]}, None),
}


@pytest.mark.parametrize(("operation", "body", "text"), FOUND.values(), ids=FOUND)
def test_the_text_is_found(operation: Operation, body: dict[str, Any], text: str | None) -> None:
    assert wanted(json.dumps(body, ensure_ascii=False).encode(), operation) == text
    assert wanted(json.dumps(body).encode(), operation) == text


def test_a_long_text_is_cut_and_a_long_conversation_is_not_read() -> None:
    long = [user("甲" * 5000), {"role": "assistant", "content": "x" * 100_000}]
    assert wanted(json.dumps({"messages": long}).encode(), "chat") == "甲" * READ
    parts = [{"type": "text", "text": "a" * 1500}, {"type": "text", "text": "b" * 1500}, {"type": "text", "text": "c"}]
    found = wanted(json.dumps({"messages": [user(parts)]}).encode(), "chat")
    assert found == ("a" * 1500 + "\n" + "b" * 1500)[:READ]


HOSTILE = {
    "nothing": b"",
    "no JSON": b"{",
    "no object": b"[]",
    "not UTF-8": b'{"messages": [{"role": "user", "content": "\xff"}]}',
    "half a surrogate pair": rb'{"messages": [{"role": "user", "content": "\ud800"}]}',
    "a deep body": b'{"messages": ' + b"[" * 100_000,
    "a deep conversation": b'{"messages": [{"role": "user", "content": ' + b"[" * 5000 + b"]" * 5000 + b"}]}",
    "a deep field": b'{"x": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b', "messages": [{"role": "user", "content": 1}]}',
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_what_cannot_be_read_is_no_text(body: bytes) -> None:
    assert wanted(body, "chat") is None


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["user", "text", "input_text"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["role", "content", "type", "text"]), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(
    body=st.dictionaries(st.sampled_from(["messages", "input", "prompt", "model"]), _VALUES, max_size=4),
    operation=st.sampled_from(["chat", "completions", "embeddings", "responses", "messages", "count_tokens"]),
)
def test_no_body_is_an_error_and_what_is_found_is_text_that_it_holds(body: dict[str, Any], operation: Operation) -> None:
    wire = json.dumps(body).encode()
    found = wanted(wire, operation)
    if found is not None:
        assert 0 < len(found) <= READ
        held = _texts(json.loads(wire))
        assert found in held or all(any(line in text for text in held) for line in found.split("\n"))


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value, value.strip()]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [text for item in value.values() for text in _texts(item)] if isinstance(value, dict) else []
