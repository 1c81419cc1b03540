from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.dialects.base import UpstreamDialect
from sits.dialects.openai_chat import CHAT
from sits.dialects.openai_completions import COMPLETIONS
from sits.dialects.openai_embeddings import EMBEDDINGS
from sits.dialects.openai_upstream import LLAMACPP, OPENAI, SGLANG, VLLM
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
from sits.inner.event import Finish, Reasoning, Refusal, Started, Text, ToolCall, Usage, Used, Vector

from .cuts import CUTS, cut
from .wires import HELLO, ROLE, STOP, USAGE_CHUNK, WORLD, chunk, sse, text_chunk

HI = Message("user", (TextPart("hi"),))
PIXEL = "data:image/png;base64,AA=="
SCHEMA = {"type": "object"}


def ask(**fields: Any) -> Ask:
    return Ask(**{"operation": "chat", "model": "asked", "messages": (HI,), **fields})


def written(dialect: UpstreamDialect, asked: Ask) -> dict[str, Any]:
    body = json.loads(dialect.write(asked, "up").body)
    assert body.pop("model") == "up"
    return body


PLAIN = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("dialect", "asked", "expected"),
    [
        pytest.param(VLLM, ask(), PLAIN, id="least"),
        pytest.param(
            VLLM, ask(stream=True), {**PLAIN, "stream": True, "stream_options": {"include_usage": True}}, id="usage is asked for"
        ),
        pytest.param(
            VLLM,
            ask(stream=True, extra={"stream_options": {"continuous_usage_stats": True}}),
            {**PLAIN, "stream": True, "stream_options": {"continuous_usage_stats": True, "include_usage": True}},
            id="beside other options",
        ),
        pytest.param(
            VLLM, ask(sampling=Sampling(max_tokens=5, top_k=3)), {**PLAIN, "max_tokens": 5, "top_k": 3}, id="vllm tokens"
        ),
        pytest.param(OPENAI, ask(sampling=Sampling(max_tokens=5)), {**PLAIN, "max_completion_tokens": 5}, id="openai tokens"),
        pytest.param(
            SGLANG,
            ask(sampling=Sampling(None, 0.0, 0.5, None, ("a",), 0, 2, 0.0, 1.0, True, 2), user="u"),
            {
                **PLAIN,
                "temperature": 0.0,
                "top_p": 0.5,
                "stop": ["a"],
                "seed": 0,
                "n": 2,
                "frequency_penalty": 0.0,
                "presence_penalty": 1.0,
                "logprobs": True,
                "top_logprobs": 2,
                "user": "u",
            },
            id="zeros are said",
        ),
        pytest.param(
            LLAMACPP,
            ask(tools=(Tool("f", None, SCHEMA),), tool_choice=ToolChoice("named", "f"), parallel_tool_calls=False),
            {
                **PLAIN,
                "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
                "tool_choice": {"type": "function", "function": {"name": "f"}},
                "parallel_tool_calls": False,
            },
            id="tools",
        ),
        pytest.param(
            VLLM,
            ask(output=OutputFormat("json_schema", None, SCHEMA)),
            {**PLAIN, "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}},
            id="schema",
        ),
        pytest.param(OPENAI, ask(thinking=Thinking(effort="low")), {**PLAIN, "reasoning_effort": "low"}, id="effort"),
        pytest.param(OPENAI, ask(thinking=Thinking(budget_tokens=20000)), {**PLAIN, "reasoning_effort": "high"}, id="budget"),
        pytest.param(OPENAI, ask(thinking=Thinking(enabled=False)), {**PLAIN, "reasoning_effort": "none"}, id="no thinking"),
        pytest.param(
            VLLM,
            ask(thinking=Thinking(enabled=False)),
            {**PLAIN, "chat_template_kwargs": {"enable_thinking": False}},
            id="by template",
        ),
        pytest.param(
            VLLM,
            ask(extra={"guided_regex": "a+", "functions": [], "function_call": "auto"}),
            {**PLAIN, "guided_regex": "a+"},
            id="extra",
        ),
        pytest.param(
            VLLM,
            ask(operation="messages", extra={"metadata": {"user_id": "x"}}),
            PLAIN,
            id="extra of another family stays behind",
        ),
    ],
)
def test_a_chat_request_is_written(dialect: UpstreamDialect, asked: Ask, expected: dict[str, Any]) -> None:
    assert dialect.write(asked, "up").path == "/v1/chat/completions"
    assert written(dialect, asked) == expected


@pytest.mark.parametrize(
    ("dialect", "messages", "expected"),
    [
        pytest.param(
            OPENAI,
            [Message("system", (TextPart("s"),), extra={"role": "developer"})],
            [{"role": "developer", "content": "s"}],
            id="developer goes out as it came",
        ),
        pytest.param(
            VLLM,
            [Message("system", (TextPart("s"),), extra={"role": "developer"})],
            [{"role": "system", "content": "s"}],
            id="no developer",
        ),
        pytest.param(
            VLLM,
            [Message("user", (TextPart("a"), ImagePart(PIXEL, "low")), "n")],
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "a"},
                        {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
                    ],
                    "name": "n",
                }
            ],
            id="image",
        ),
        pytest.param(
            VLLM,
            [Message("assistant", (ReasoningPart("hm"), ToolUsePart("a", "f", "{}")))],
            [
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "hm",
                    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                }
            ],
            id="reasoning and call",
        ),
        pytest.param(
            OPENAI,
            [Message("assistant", (ReasoningPart("hm"), TextPart("a")))],
            [{"role": "assistant", "content": "a"}],
            id="no reasoning",
        ),
        pytest.param(
            OPENAI,
            [Message("assistant", (TextPart("no"),), extra={"refusal": "no"})],
            [{"role": "assistant", "content": None, "refusal": "no"}],
            id="refusal",
        ),
        pytest.param(
            VLLM,
            [
                Message("tool", (ToolResultPart("a", (TextPart("1"), ImagePart(PIXEL))),)),
                Message("tool", (ToolResultPart("b", (TextPart("2"), TextPart("3"))),)),
                Message("user", (TextPart("and?"),)),
            ],
            [
                {"role": "tool", "tool_call_id": "a", "content": "1"},
                {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "2"}, {"type": "text", "text": "3"}]},
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]},
                {"role": "user", "content": "and?"},
            ],
            id="an image in a tool's result follows the results",
        ),
        pytest.param(
            VLLM,
            [Message("user", (ToolResultPart("a", (TextPart("1"),)), TextPart("and?")))],
            [{"role": "tool", "tool_call_id": "a", "content": "1"}, {"role": "user", "content": "and?"}],
            id="a result inside a user turn",
        ),
    ],
)
def test_messages_are_written(dialect: UpstreamDialect, messages: list[Message], expected: list[dict[str, Any]]) -> None:
    assert written(dialect, ask(messages=tuple(messages)))["messages"] == expected


CHAT_BODIES = [
    {
        "model": "up",
        "messages": [{"role": "developer", "content": "s"}, {"role": "user", "content": "你好", "name": "n"}],
        "logit_bias": {"5": 1},
    },
    {
        "model": "up",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": PIXEL}}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}],
                "annotations": [],
            },
            {"role": "tool", "tool_call_id": "a", "content": "1"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}],
        "tool_choice": "auto",
        "max_completion_tokens": 5,
        "temperature": 0.5,
        "stop": ["x"],
        "response_format": {"type": "json_object"},
        "reasoning_effort": "low",
        "stream": True,
        "stream_options": {"include_obfuscation": False, "include_usage": True},
        "metadata": {"a": "b"},
        "user": "u",
    },
]


@pytest.mark.parametrize("body", CHAT_BODIES, ids=["plain", "everything"])
def test_what_chat_reads_goes_out_to_the_same_family_as_it_came(body: dict[str, Any]) -> None:
    assert json.loads(OPENAI.write(CHAT.read(json.dumps(body).encode()), "up").body) == body


@pytest.mark.parametrize(
    "body",
    [
        {"model": "up", "prompt": ["a", "b"], "logprobs": 0, "echo": True, "max_tokens": 0},
        {"model": "up", "prompt": "a", "stream": True, "stream_options": {"include_usage": True}, "suffix": "中"},
        {"model": "up", "prompt": [[1, 2], [3]]},
    ],
    ids=["texts", "stream", "token ids"],
)
def test_what_completions_reads_goes_out_as_it_came(body: dict[str, Any]) -> None:
    prepared = VLLM.write(COMPLETIONS.read(json.dumps(body).encode()), "up")
    assert (prepared.path, json.loads(prepared.body)) == ("/v1/completions", body)


@pytest.mark.parametrize(
    "body",
    [
        {"model": "up", "input": "中"},
        {"model": "up", "input": ["a", "b"], "dimensions": 3, "encoding_format": "base64", "user": "u", "truncate": 1},
        {"model": "up", "input": [1, 2]},
    ],
    ids=["text", "everything", "token ids"],
)
def test_what_embeddings_reads_goes_out_as_it_came(body: dict[str, Any]) -> None:
    prepared = OPENAI.write(EMBEDDINGS.read(json.dumps(body).encode()), "up")
    assert (prepared.path, json.loads(prepared.body)) == ("/v1/embeddings", body)


@pytest.mark.parametrize(
    ("dialect", "asked", "param"),
    [
        pytest.param(OPENAI, ask(sampling=Sampling(top_k=3)), "top_k", id="top_k"),
        pytest.param(VLLM, ask(operation="count_tokens"), "model", id="count tokens"),
    ],
)
def test_what_has_no_form_here_is_refused(dialect: UpstreamDialect, asked: Ask, param: str) -> None:
    with pytest.raises(SitsError) as caught:
        dialect.write(asked, "up")
    assert (caught.value.code, caught.value.param) == (Code.UNSUPPORTED, param)


def test_only_openai_itself_gets_responses_unchanged_and_only_llamacpp_counts_tokens() -> None:
    paths = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "embeddings": "/v1/embeddings"}
    assert [row.relays for row in (VLLM, SGLANG)] == [paths] * 2
    assert LLAMACPP.relays == {**paths, "count_tokens": "/v1/messages/count_tokens"}
    assert OPENAI.relays == {**paths, "responses": "/v1/responses"}


STARTED = Started("c1", "up", 1700000000)
USED = Used(Usage(input=9, output=4, cached=2, reasoning=0))


@pytest.mark.parametrize(
    ("wire", "events", "skipped"),
    [
        pytest.param(
            sse(ROLE, HELLO, WORLD, STOP, USAGE_CHUNK),
            [STARTED, Text("你好"), Text(" world"), Finish("stop"), USED],
            0,
            id="text",
        ),
        pytest.param(
            sse(chunk({"reasoning_content": "a"}), chunk({"reasoning": "b"}), HELLO, STOP),
            [STARTED, Reasoning("a"), Reasoning("b"), Text("你好"), Finish("stop")],
            0,
            id="reasoning in both fields",
        ),
        pytest.param(
            sse(
                chunk(
                    {
                        "content": [
                            {"type": "thinking", "thinking": [{"type": "text", "text": "a"}]},
                            {"type": "text", "text": "b"},
                        ]
                    }
                ),
                STOP,
            ),
            [STARTED, Reasoning("a"), Text("b"), Finish("stop")],
            0,
            id="content as parts",
        ),
        pytest.param(sse(chunk({"refusal": "no"}), STOP), [STARTED, Refusal("no"), Finish("stop")], 0, id="refusal"),
        pytest.param(
            sse(HELLO, chunk({"content": "b"}, "length", index=1), STOP),
            [STARTED, Text("你好"), Text("b", 1), Finish("length", 1), Finish("stop")],
            0,
            id="two choices",
        ),
        pytest.param(
            sse(
                chunk({"function_call": {"name": "f", "arguments": "{"}}),
                chunk({"function_call": {"arguments": "}"}}),
                chunk({}, "function_call"),
            ),
            [STARTED, ToolCall(0, "call_c1_0_0", "f", "{"), ToolCall(0, arguments="}"), Finish("tool_calls")],
            0,
            id="function call",
        ),
        pytest.param(
            sse(chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}), STOP),
            [STARTED, ToolCall(0, "a", "f", "{}"), Finish("tool_calls")],
            0,
            id="a call that ends with stop",
        ),
        pytest.param(
            sse(
                chunk({"content": "a"}, None, logprobs=None)
                | {"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [{"token": "a"}]}}]},
                STOP,
            ),
            [STARTED, Text("a", 0, {"content": [{"token": "a"}]}), Finish("stop")],
            0,
            id="logprobs",
        ),
        pytest.param(
            sse(text_chunk("a"), text_chunk("", "eos_token")),
            [Started("t1", "up", 1700000000), Text("a"), Finish("stop")],
            0,
            id="completions",
        ),
        pytest.param(
            sse(HELLO, done=False) + b'data: {oops\n\ndata: 3\n\ndata: {"choices": 5}\n\n' + sse(STOP),
            [STARTED, Text("你好"), Finish("stop")],
            3,
            id="broken events",
        ),
        pytest.param(
            b'data: {"id":"c1","model":"up","created":1700000000,"choices":[{"index":0,"delta":{"content":"\\ud83c"}}]}\n\n'
            + sse(STOP),
            [STARTED, Text("\ufffd"), Finish("stop")],
            0,
            id="half a surrogate pair",
        ),
        pytest.param(sse(HELLO, STOP, STOP), [STARTED, Text("你好"), Finish("stop")], 0, id="a finish said twice"),
        pytest.param(sse(HELLO, STOP) + sse(WORLD), [STARTED, Text("你好"), Finish("stop")], 0, id="nothing counts after [DONE]"),
    ],
)
def test_a_stream_becomes_events(wire: bytes, events: list[Any], skipped: int) -> None:
    decoder = VLLM.decoder(ask())
    assert [*decoder.feed(wire), *decoder.close()] == events
    assert decoder.skipped == skipped


def test_events_before_an_error_in_the_same_piece_are_handed_over() -> None:
    wire = sse(HELLO, chunk({"content": "a"}, "error"))
    with pytest.raises(SitsError) as caught:
        VLLM.decoder(ask()).feed(wire)
    assert (caught.value.code, caught.value.args[1]) == (Code.UPSTREAM_ERROR, [STARTED, Text("你好"), Text("a")])


@given(
    pieces=st.lists(
        st.binary(max_size=30) | st.sampled_from([sse(HELLO), b"data: [[]]\n\n", b'data: {"choices":[{}]}\n\n']), max_size=6
    )
)
def test_any_bytes_give_events_or_an_error(pieces: list[bytes]) -> None:
    decoder = VLLM.decoder(ask())
    try:
        for piece in pieces:
            decoder.feed(piece)
        decoder.close()
        code = None
    except SitsError as error:
        code = error.code
    assert code in (None, Code.UPSTREAM_BROKEN, Code.UPSTREAM_ERROR)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "message",
                    "content",
                    "tool_calls",
                    "function",
                    "id",
                    "index",
                    "usage",
                    "error",
                    "finish_reason",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(value=JUNK, cuts=CUTS)
def test_any_json_gives_events_or_an_error(value: Any, cuts: list[int]) -> None:
    outcomes: list[Any] = []
    decoder = VLLM.decoder(ask())
    for read in (
        lambda: [event for piece in cut(sse(value), cuts) for event in decoder.feed(piece)],
        lambda: VLLM.whole(ask(), json.dumps(value).encode()),
        lambda: VLLM.whole(ask(operation="embeddings"), json.dumps(value).encode()),
    ):
        try:
            outcomes.append(read())
        except SitsError as error:
            outcomes.append(error.code.value)
    assert all(isinstance(each, list) or each.startswith(("upstream", "context")) for each in outcomes)


def test_a_whole_answer_becomes_events() -> None:
    body = {
        "id": "c1",
        "model": "up",
        "created": 1700000000,
        "choices": [
            {
                "index": 0,
                "message": {"content": "a", "reasoning_content": "hm"},
                "finish_reason": "stop",
                "logprobs": {"content": []},
            },
            {
                "index": 1,
                "message": {
                    "content": None,
                    "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                },
                "finish_reason": None,
            },
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 0},
    }
    assert VLLM.whole(ask(), json.dumps(body).encode()) == [
        STARTED,
        Reasoning("hm"),
        Text("a", 0, {"content": []}),
        Finish("stop"),
        ToolCall(0, "x", "f", "{}", 1),
        Finish("stop", 1),
        Used(Usage(input=1, output=0)),
    ]


@pytest.mark.parametrize("vector", [pytest.param([0.5, -2], id="numbers"), pytest.param("AAAAPwAAAMA=", id="base64")])
def test_vectors_are_read_in_both_encodings(vector: Any) -> None:
    body = {"object": "list", "data": [{"index": 0, "embedding": vector}], "usage": {"prompt_tokens": 3, "total_tokens": 3}}
    assert VLLM.whole(ask(operation="embeddings"), json.dumps(body).encode()) == [
        Started(),
        Vector(0, (0.5, -2.0)),
        Used(Usage(input=3)),
    ]


@pytest.mark.parametrize("vector", [None, [], "???", ["a"], [10**400]], ids=["null", "empty", "not base64", "text", "huge"])
def test_a_vector_that_cannot_be_read_is_broken(vector: Any) -> None:
    with pytest.raises(SitsError) as caught:
        VLLM.whole(ask(operation="embeddings"), json.dumps({"data": [{"embedding": vector}]}).encode())
    assert caught.value.code is Code.UPSTREAM_BROKEN
