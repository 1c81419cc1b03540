from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.dialects.checks import HOSTILE
from sits.dialects.openai_chat import CHAT
from sits.dialects.peek import Peek, answer_limit, has_image, peek
from sits.inner.ask import Operation
from sits.inner.errors import Code, SitsError

NOTHING: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        pytest.param({}, Peek("m", False, False, NOTHING), id="plain"),
        pytest.param({"stream": True}, Peek("m", True, False, NOTHING), id="stream"),
        pytest.param({"stream": None, "stream_options": None, "tools": None}, Peek("m", False, False, NOTHING), id="nulls"),
        pytest.param({"stream": True, "stream_options": {"include_usage": True}}, Peek("m", True, True, NOTHING), id="usage"),
        pytest.param({"tools": [{"type": "function"}]}, Peek("m", False, False, frozenset({"tools"})), id="tools"),
        pytest.param({"tools": []}, Peek("m", False, False, NOTHING), id="no tools"),
        pytest.param({"functions": [{"name": "f"}]}, Peek("m", False, False, frozenset({"tools"})), id="functions"),
        pytest.param({"response_format": {"type": "text"}}, Peek("m", False, False, NOTHING), id="text format"),
        pytest.param(
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            Peek("m", False, False, frozenset({"json_schema"})),
            id="schema",
        ),
        pytest.param(
            {"text": {"format": {"type": "json_schema", "schema": {}}, "verbosity": "low"}},
            Peek("m", False, False, frozenset({"json_schema"})),
            id="schema of responses",
        ),
        pytest.param(
            {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
            Peek("m", False, False, frozenset({"json_schema"})),
            id="schema of messages",
        ),
        pytest.param(
            {"response_format": {"type": "structural_tag"}}, Peek("m", False, False, NOTHING), id="a server's own format"
        ),
        pytest.param({"logprobs": True, "top_logprobs": 2}, Peek("m", False, False, frozenset({"logprobs"})), id="logprobs"),
        pytest.param({"logprobs": False}, Peek("m", False, False, NOTHING), id="logprobs off"),
        pytest.param({"logprobs": 0}, Peek("m", False, False, frozenset({"logprobs"})), id="logprobs of completions"),
    ],
)
def test_peek_finds_what_routing_needs(fields: dict[str, Any], found: Peek) -> None:
    assert peek(json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}).encode()) == found


@pytest.mark.parametrize(
    ("body", "param"),
    [
        pytest.param(b"{}", "model", id="no model"),
        pytest.param(b'{"model":null}', "model", id="null model"),
        pytest.param(b'{"model":""}', "model", id="empty model"),
        pytest.param(b'{"model":3}', "model", id="model is a number"),
        pytest.param(b'{"model":"m","stream":"yes"}', "stream", id="stream is a string"),
        pytest.param(
            b'{"model":"m","stream_options":{"include_usage":1}}', "stream_options.include_usage", id="usage is a number"
        ),
        pytest.param(b'{"model":"m","tools":{}}', "tools", id="tools is an object"),
        pytest.param(b'{"model":"m","response_format":"json"}', "response_format", id="format is a string"),
        pytest.param(b'{"model":"m","text":{"format":3}}', "text.format", id="text format is a number"),
        pytest.param(b"[]", None, id="array"),
        pytest.param(b'{"model":"m"', None, id="cut"),
        pytest.param(b'{"model":"m","x":"\xff"}', None, id="not UTF-8 in a field that is skipped"),
        pytest.param(b'{"model":"m","x":"\\ud800"}', "x", id="half a surrogate pair in a field that is skipped"),
        pytest.param(b'{"model":"m","x":NaN}', None, id="NaN"),
        pytest.param(b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None, id="deep"),
    ],
)
def test_what_no_dialect_would_take_is_refused_with_its_place(body: bytes, param: str | None) -> None:
    with pytest.raises(SitsError) as caught:
        peek(body)
    assert (caught.value.code, caught.value.param) == (Code.INVALID_REQUEST, param)


@given(body=st.binary(max_size=60) | st.sampled_from(HOSTILE))
def test_whatever_the_bytes_peek_answers_or_refuses(body: bytes) -> None:
    try:
        found = peek(body).model
    except SitsError as error:
        found = error.code
    assert found
    assert not isinstance(found, Code) or found is Code.INVALID_REQUEST


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        pytest.param({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, IMAGE]}]}, True, id="chat"),
        pytest.param(
            {"messages": [{"role": "user", "content": 'an "image_url" of type "image"'}]}, False, id="only talked about"
        ),
        pytest.param({"messages": [{"role": "user", "content": [{"type": "text", "text": "image"}]}]}, False, id="text part"),
        pytest.param({"tools": [{"type": "image_url"}], "messages": []}, False, id="not in the conversation"),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "u"}}]}]},
            True,
            id="messages",
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image", "source": {}}]}]}]},
            True,
            id="in a tool's result",
        ),
        pytest.param({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}]}, True, id="responses"),
        pytest.param(
            {"input": [{"type": "function_call_output", "output": [{"type": "input_image", "image_url": "u"}]}]},
            True,
            id="output",
        ),
        pytest.param({"input": "an image"}, False, id="input is text"),
        pytest.param({"messages": [3, {"role": "user", "content": [4, IMAGE]}]}, True, id="beside what is not valid"),
        pytest.param({"messages": {"content": IMAGE}}, False, id="messages is no list"),
        pytest.param({"messages": [{"content": [{"type": ["image_url"]}, {"type": {}}]}]}, False, id="type is no text"),
    ],
)
@pytest.mark.parametrize("padding", [0, 4000], ids=["short", "long"])
def test_an_image_is_found_exactly_where_one_is(fields: dict[str, Any], found: bool, padding: int) -> None:
    body = json.dumps({"model": "m", **fields, "padding": "x" * padding}).encode()
    assert has_image(body) is found
    assert has_image(body.replace(b"image", b"im\\u0061ge")) is found


def test_has_image_says_what_the_inner_form_says() -> None:
    for content in ("text", [{"type": "text", "text": "image"}], [IMAGE]):
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
        assert has_image(body) is ("vision" in CHAT.read(body).needs())


@pytest.mark.parametrize(
    ("operation", "fields", "limit"),
    [
        pytest.param("chat", {"max_tokens": 7}, 7, id="chat"),
        pytest.param("chat", {"max_tokens": 7, "max_completion_tokens": 9}, 9, id="chat, by the newer name"),
        pytest.param("chat", {"max_tokens": 7, "max_completion_tokens": None}, 7, id="chat, by the newer name nothing"),
        pytest.param("completions", {"max_tokens": 7, "max_completion_tokens": 9}, 7, id="completions"),
        pytest.param("messages", {"max_tokens": 64_000}, 64_000, id="messages"),
        pytest.param("responses", {"max_output_tokens": 8, "max_tokens": 9}, 8, id="responses"),
        pytest.param("embeddings", {"max_tokens": 7}, 0, id="embeddings have no answer"),
        pytest.param("count_tokens", {"max_tokens": 7}, 0, id="nor have counts"),
        pytest.param("chat", {}, 0, id="nothing said"),
        pytest.param("chat", {"max_tokens": -1}, 0, id="no limit"),
        pytest.param("chat", {"max_tokens": 10.0}, 10, id="a whole number with a point"),
        pytest.param("chat", {"max_tokens": 10**30}, 2**31 - 1, id="more than anybody reads"),
        pytest.param("chat", {"max_tokens": "10"}, 0, id="no number"),
        pytest.param("chat", {"max_tokens": True}, 0, id="nor is this one"),
    ],
)
def test_how_long_an_answer_may_be_is_read_as_each_dialect_says_it(
    operation: Operation, fields: dict[str, Any], limit: int
) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "你好, max_tokens: 3"}], **fields}).encode()
    assert answer_limit(body, operation) == limit


def test_what_is_no_json_limits_nothing() -> None:
    assert {answer_limit(body, "chat") for body in (b"", b"[]", b'{"max_tokens": 5', b'{"max_tokens": \xff}')} == {0}
