from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.dialects.base import Identity
from sits.dialects.openai_chat import CHAT
from sits.inner.ask import (
    Ask,
    ImagePart,
    Message,
    OutputFormat,
    ReasoningPart,
    Sampling,
    TextPart,
    Thinking,
    Tool,
    ToolChoice,
    ToolResultPart,
    ToolUsePart,
)
from sits.inner.errors import Code, SitsError
from sits.inner.event import Finish, Reasoning, Refusal, Started, Text, ToolCall, Usage, Used

from .test_bridge import read as read_wire

IDENTITY = Identity("abc", "served", 7)
USER = {"role": "user", "content": "hi"}
HI = Message("user", (TextPart("hi"),))
SCHEMA = {"type": "object", "properties": {"城市": {"type": "string"}}}
FUNCTION = {"name": "f", "description": "does", "parameters": SCHEMA, "strict": True}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def ask(**fields: Any) -> Ask:
    return Ask(**{"operation": "chat", "model": "m", "messages": (HI,), **fields})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, ask(), id="least"),
        pytest.param(
            {"temperature": None, "tools": None, "stop": None, "stream": None, "n": None}, ask(), id="nulls say nothing"
        ),
        pytest.param(
            {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
            ask(stream=True, include_usage=True, extra={"stream_options": {"include_obfuscation": False}}),
            id="stream",
        ),
        pytest.param(
            {
                "max_tokens": 5,
                "temperature": 0,
                "top_p": 0.5,
                "top_k": 4,
                "stop": "x",
                "seed": -3,
                "n": 2,
                "frequency_penalty": 1,
                "presence_penalty": -1.5,
                "logprobs": True,
                "top_logprobs": 0,
            },
            ask(sampling=Sampling(5, 0.0, 0.5, 4, ("x",), -3, 2, 1.0, -1.5, True, 0)),
            id="sampling",
        ),
        pytest.param(
            {"max_tokens": 5, "max_completion_tokens": 6, "stop": ["a", "b"]},
            ask(sampling=Sampling(max_tokens=6, stop=("a", "b"))),
            id="the newer limit wins",
        ),
        pytest.param(
            {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required", "parallel_tool_calls": False},
            ask(tools=(Tool("f", "does", SCHEMA, True),), tool_choice=ToolChoice("required"), parallel_tool_calls=False),
            id="tools",
        ),
        pytest.param(
            {
                "tools": [{"type": "function", "function": {"name": "f"}}],
                "tool_choice": {"type": "function", "function": {"name": "f"}},
            },
            ask(tools=(Tool("f"),), tool_choice=ToolChoice("named", "f")),
            id="named tool",
        ),
        pytest.param(
            {"functions": [{"name": "f"}], "function_call": {"name": "f"}},
            ask(tools=(Tool("f"),), tool_choice=ToolChoice("named", "f"), extra={"functions": [{"name": "f"}]}),
            id="functions",
        ),
        pytest.param({"response_format": {"type": "text"}}, ask(), id="text format"),
        pytest.param({"response_format": {"type": "json_object"}}, ask(output=OutputFormat("json_object")), id="json_object"),
        pytest.param(
            {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}},
            ask(output=OutputFormat("json_schema", "s", SCHEMA, True)),
            id="json_schema",
        ),
        pytest.param({"reasoning_effort": "high"}, ask(thinking=Thinking(effort="high")), id="effort"),
        pytest.param({"reasoning_effort": "none"}, ask(thinking=Thinking(enabled=False, effort="none")), id="no reasoning"),
        pytest.param(
            {"user": "u", "metadata": {"a": "b"}, "logit_bias": {"5": 1}, "x": 10**40},
            ask(user="u", extra={"metadata": {"a": "b"}, "logit_bias": {"5": 1}, "x": 10**40}),
            id="unknown fields stay as they came",
        ),
    ],
)
def test_a_request_is_read(fields: dict[str, Any], expected: Ask) -> None:
    assert CHAT.read(body(**fields)) == expected


PIXEL = "data:image/png;base64,AA=="


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param({"role": "system", "content": "s"}, Message("system", (TextPart("s"),)), id="system"),
        pytest.param(
            {"role": "developer", "content": "s"},
            Message("system", (TextPart("s"),), extra={"role": "developer"}),
            id="developer",
        ),
        pytest.param({"role": "user", "content": "中", "name": "n"}, Message("user", (TextPart("中"),), "n"), id="name"),
        pytest.param({"role": "user", "content": ""}, Message("user", (TextPart(""),)), id="empty text"),
        pytest.param(
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "a"},
                    {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
                    {"type": "image_url", "image_url": "https://x/y.png"},
                ],
            },
            Message("user", (TextPart("a"), ImagePart(PIXEL, "low"), ImagePart("https://x/y.png"))),
            id="parts",
        ),
        pytest.param(
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}],
            },
            Message("assistant", (ReasoningPart("hm"), ToolUsePart("a", "f", '{"x": 1}'))),
            id="tool call",
        ),
        pytest.param(
            {"role": "assistant", "content": "a", "reasoning": "hm"},
            Message("assistant", (ReasoningPart("hm"), TextPart("a"))),
            id="reasoning",
        ),
        pytest.param(
            {"role": "assistant", "refusal": "no"}, Message("assistant", (TextPart("no"),), extra={"refusal": "no"}), id="refusal"
        ),
        pytest.param(
            {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}]},
            Message("assistant", (TextPart("a"), TextPart("no")), extra={"refusal": "no"}),
            id="refusal part",
        ),
        pytest.param(
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            Message("tool", (ToolResultPart("a", (TextPart("1"),)),)),
            id="tool",
        ),
        pytest.param(
            {"role": "user", "content": "x", "cache": {"a": 1}},
            Message("user", (TextPart("x"),), extra={"cache": {"a": 1}}),
            id="unknown field",
        ),
    ],
)
def test_a_message_is_read(message: dict[str, Any], expected: Message) -> None:
    assert CHAT.read(body(messages=[message])).messages == (expected,)


def test_legacy_function_messages_belong_to_the_call_before_them() -> None:
    messages = [
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "1"},
    ]
    assert CHAT.read(body(messages=messages)).messages[1:] == (
        Message("assistant", (ToolUsePart("call_legacy_1", "f", "{}"),)),
        Message("tool", (ToolResultPart("call_legacy_1", (TextPart("1"),)),), "f"),
    )


@pytest.mark.parametrize(
    ("fields", "code", "param", "message"),
    [
        pytest.param(
            {"messages": None},
            Code.INVALID_REQUEST,
            "messages",
            "Invalid type for 'messages': expected an array, but got null instead.",
            id="null",
        ),
        pytest.param(
            {"messages": []}, Code.INVALID_REQUEST, "messages", "Invalid value for 'messages': it must not be empty.", id="empty"
        ),
        pytest.param(
            {"messages": [USER, 3]},
            Code.INVALID_REQUEST,
            "messages[1]",
            "Invalid type for 'messages[1]': expected an object, but got an integer instead.",
            id="no object",
        ),
        pytest.param(
            {"messages": [{"content": "x"}]},
            Code.INVALID_REQUEST,
            "messages[0].role",
            "Missing required parameter: 'messages[0].role'.",
            id="no role",
        ),
        pytest.param(
            {"messages": [{"role": "user"}]},
            Code.INVALID_REQUEST,
            "messages[0].content",
            "Missing required parameter: 'messages[0].content'.",
            id="no content",
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": 3}]},
            Code.INVALID_REQUEST,
            "messages[0].content",
            "Invalid type for 'messages[0].content': expected a string or an array, but got an integer instead.",
            id="content is a number",
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            Code.INVALID_REQUEST,
            "messages[0].content[0].text",
            "Missing required parameter: 'messages[0].content[0].text'.",
            id="part without text",
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
            Code.UNSUPPORTED,
            "messages[0].content[0].type",
            "Content of type 'input_audio' cannot be translated for this model.",
            id="audio",
        ),
        pytest.param(
            {"messages": [{"role": "bot", "content": "x"}]}, Code.INVALID_REQUEST, "messages[0].role", None, id="unknown role"
        ),
        pytest.param(
            {"messages": [{"role": "tool", "content": "x"}]},
            Code.INVALID_REQUEST,
            "messages[0].tool_call_id",
            None,
            id="no call id",
        ),
        pytest.param(
            {"temperature": "hot"},
            Code.INVALID_REQUEST,
            "temperature",
            "Invalid type for 'temperature': expected a number, but got a string instead.",
            id="type",
        ),
        pytest.param(
            {"max_tokens": -1}, Code.INVALID_REQUEST, "max_tokens", "Invalid value for 'max_tokens': it must be >= 0.", id="range"
        ),
        pytest.param({"max_tokens": 10**30}, Code.INVALID_REQUEST, "max_tokens", None, id="huge"),
        pytest.param({"seed": 10**30}, Code.INVALID_REQUEST, "seed", None, id="huge seed"),
        pytest.param({"stop": ["a", 1]}, Code.INVALID_REQUEST, "stop[1]", None, id="stop"),
        pytest.param(
            {"tools": [{"type": "function"}]}, Code.INVALID_REQUEST, "tools[0].function", None, id="tool without function"
        ),
        pytest.param(
            {"tools": [{"type": "function", "function": {}}]},
            Code.INVALID_REQUEST,
            "tools[0].function.name",
            None,
            id="tool without name",
        ),
        pytest.param(
            {"tools": [{"type": "custom", "custom": {"name": "c"}}]}, Code.UNSUPPORTED, "tools[0].type", None, id="custom tool"
        ),
        pytest.param({"tool_choice": "always"}, Code.INVALID_REQUEST, "tool_choice", None, id="tool choice"),
        pytest.param({"tool_choice": "required"}, Code.INVALID_REQUEST, "tool_choice", None, id="tool choice without tools"),
        pytest.param({"response_format": {"type": "xml"}}, Code.INVALID_REQUEST, "response_format.type", None, id="format"),
        pytest.param(
            {"response_format": {"type": "json_schema"}},
            Code.INVALID_REQUEST,
            "response_format.json_schema",
            None,
            id="no schema",
        ),
        pytest.param(
            {"stream_options": {"include_usage": "x"}}, Code.INVALID_REQUEST, "stream_options.include_usage", None, id="options"
        ),
        pytest.param(
            {"model": ""}, Code.INVALID_REQUEST, "model", "Invalid value for 'model': it must not be empty.", id="model"
        ),
    ],
)
def test_a_mistake_is_named_by_its_place(fields: dict[str, Any], code: Code, param: str, message: str | None) -> None:
    with pytest.raises(SitsError) as caught:
        CHAT.read(body(**fields))
    assert (caught.value.code, caught.value.param) == (code, param)
    assert message is None or caught.value.message == message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    "messages",
    "tools",
    "tool_choice",
    "stop",
    "response_format",
    "functions",
    "function_call",
    "stream_options",
    "n",
    "logprobs",
)


@given(fields=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4), message=JSON)
def test_any_json_is_read_or_refused(fields: dict[str, Any], message: Any) -> None:
    for wire in (body(**fields), body(messages=[USER, message], **{key: fields[key] for key in fields if key != "messages"})):
        try:
            outcome: object = CHAT.read(wire)
        except SitsError as error:
            outcome = error.code
        assert isinstance(outcome, Ask) or outcome in (Code.INVALID_REQUEST, Code.UNSUPPORTED)


def message(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "refusal": None, **fields}


@pytest.mark.parametrize(
    ("events", "fields", "expected", "finish"),
    [
        pytest.param([Text("a"), Text("中"), Finish("stop")], {}, message(content="a中"), "stop", id="text"),
        pytest.param([Finish("length")], {}, message(content=""), "length", id="nothing said"),
        pytest.param(
            [Reasoning("hm"), Text("a"), Finish("stop")], {}, message(content="a", reasoning_content="hm"), "stop", id="reasoning"
        ),
        pytest.param([Refusal("no"), Finish("refusal")], {}, message(refusal="no"), "content_filter", id="refusal"),
        pytest.param(
            [ToolCall(0, "a", "f", "{"), ToolCall(0, arguments="}"), ToolCall(1, None, "g", "{}"), Finish("tool_calls")],
            {},
            message(
                tool_calls=[
                    {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                    {"id": "call_abc_0_1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
                ]
            ),
            "tool_calls",
            id="tool calls",
        ),
        pytest.param(
            [ToolCall(0, "a", "f", "{}"), Finish("tool_calls")],
            {"functions": [{"name": "f"}]},
            message(function_call={"name": "f", "arguments": "{}"}),
            "function_call",
            id="a client of functions",
        ),
    ],
)
def test_a_whole_answer_is_written(events: Any, fields: dict[str, Any], expected: dict[str, Any], finish: str) -> None:
    asked = CHAT.read(body(**fields))
    wire = json.loads(CHAT.whole(asked, [Started(), *events, Used(Usage(input=3, output=0))], IDENTITY))
    assert wire == {
        "id": "chatcmpl-abc",
        "object": "chat.completion",
        "created": 7,
        "model": "served",
        "choices": [{"index": 0, "message": expected, "logprobs": None, "finish_reason": finish}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3},
    }


def test_choices_and_logprobs_keep_their_order() -> None:
    events = [
        Text("b", 1, {"content": [{"token": "b"}]}),
        Text("a", 0, {"content": [{"token": "a"}], "refusal": None}),
        Text("c", 0, {"content": [{"token": "c"}]}),
        Finish("stop", 1),
        Finish("length", 0),
    ]
    choices = json.loads(CHAT.whole(ask(), events, IDENTITY))["choices"]
    assert [(each["index"], each["message"]["content"], each["logprobs"], each["finish_reason"]) for each in choices] == [
        (0, "ac", {"content": [{"token": "a"}, {"token": "c"}], "refusal": None}, "length"),
        (1, "b", {"content": [{"token": "b"}]}, "stop"),
    ]


def test_usage_that_nobody_said_is_left_out() -> None:
    assert "usage" not in json.loads(CHAT.whole(ask(), [Text("a"), Finish("stop")], IDENTITY))
    partly = json.loads(CHAT.whole(ask(), [Text("a"), Finish("stop"), Used(Usage(output=2))], IDENTITY))
    assert partly["usage"] == {"completion_tokens": 2}


def test_each_choice_of_a_stream_opens_with_its_role() -> None:
    encoder = CHAT.encoder(ask(stream=True), IDENTITY)
    events = [Started("up"), Text("a"), Text("b", 1), Finish("stop", 1), Finish("stop")]
    wire = b"".join([*(encoder.feed(event) for event in events), encoder.close()])
    choices = [(c["id"], c["choices"][0]["index"], c["choices"][0]["delta"]) for c in read_wire(wire)[:-1]]
    role = {"role": "assistant", "content": ""}
    assert choices == [
        ("up", 0, role),
        ("up", 0, {"content": "a"}),
        ("up", 1, role),
        ("up", 1, {"content": "b"}),
        ("up", 1, {}),
        ("up", 0, {}),
    ]


def test_a_client_of_functions_gets_function_call_deltas() -> None:
    asked = CHAT.read(body(stream=True, functions=[{"name": "f"}]))
    encoder = CHAT.encoder(asked, IDENTITY)
    events = [ToolCall(0, "a", "f", "{"), ToolCall(0, arguments="}"), Finish("tool_calls")]
    chunks = read_wire(b"".join([*(encoder.feed(event) for event in events), encoder.close()]))
    assert [chunk["choices"][0]["delta"] for chunk in chunks[1:3]] == [
        {"function_call": {"name": "f", "arguments": "{"}},
        {"function_call": {"arguments": "}"}},
    ]
    assert chunks[3]["choices"][0]["finish_reason"] == "function_call"
