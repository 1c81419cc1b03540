from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from sits.dialects.ollama import OLLAMA
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
from sits.inner.event import Event, Finish, Reasoning, Started, Text, ToolCall, Usage, Used, Vector

from .anthropic_wires import OLLAMA_STREAM, line, lines
from .cuts import CUTS, bytewise, cut

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
HI = (Message("user", (TextPart("你好"),)),)
PLAIN = {"model": "up", "messages": [{"role": "user", "content": "你好"}], "stream": False}


def chat(**fields: Any) -> Ask:
    return Ask(**{"operation": "chat", "model": "m", "messages": HI, **fields})


def complete(**fields: Any) -> Ask:
    return Ask(**{"operation": "completions", "model": "m", "prompts": ("从前",), **fields})


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        pytest.param(chat(), PLAIN, id="plain: that it is not streamed is said"),
        pytest.param(chat(operation="messages", stream=True), {**PLAIN, "stream": True}, id="a stream of a messages client"),
        pytest.param(
            chat(
                messages=(
                    Message("system", (TextPart("s"),)),
                    Message("user", (TextPart("what"), ImagePart("data:image/png;base64,aGk="), TextPart("is it?"))),
                    Message(
                        "assistant",
                        (
                            ReasoningPart("嗯"),
                            TextPart("look"),
                            ToolUsePart("t1", "look", '{"q":1}'),
                            ToolUsePart("t2", "go", ""),
                        ),
                    ),
                    Message("tool", (ToolResultPart("t1", (TextPart("晴"),)),)),
                    Message(
                        "user", (ToolResultPart("t2", (TextPart("x"), ImagePart("data:image/png;base64,aGo="))), TextPart("so?"))
                    ),
                )
            ),
            {
                **PLAIN,
                "messages": [
                    {"role": "system", "content": "s"},
                    {"role": "user", "content": "what\nis it?", "images": ["aGk="]},
                    {
                        "role": "assistant",
                        "content": "look",
                        "thinking": "嗯",
                        "tool_calls": [
                            {"id": "t1", "function": {"name": "look", "arguments": {"q": 1}}},
                            {"id": "t2", "function": {"name": "go", "arguments": {}}},
                        ],
                    },
                    {"role": "tool", "content": "晴", "tool_name": "look", "tool_call_id": "t1"},
                    {"role": "tool", "content": "x", "images": ["aGo="], "tool_name": "go", "tool_call_id": "t2"},
                    {"role": "user", "content": "so?"},
                ],
            },
            id="images, reasoning, calls and results",
        ),
        pytest.param(
            chat(tools=(Tool("look", "looks", SCHEMA), Tool("go")), tool_choice=ToolChoice("auto"), parallel_tool_calls=True),
            {
                **PLAIN,
                "tools": [
                    {"type": "function", "function": {"name": "look", "description": "looks", "parameters": SCHEMA}},
                    {
                        "type": "function",
                        "function": {"name": "go", "description": "", "parameters": {"type": "object", "properties": {}}},
                    },
                ],
            },
            id="tools",
        ),
        pytest.param(chat(tools=(Tool("go"),), tool_choice=ToolChoice("none")), PLAIN, id="no tool is none offered"),
        pytest.param(
            chat(
                sampling=Sampling(
                    max_tokens=0,
                    temperature=0.0,
                    top_p=0.5,
                    top_k=3,
                    seed=1,
                    stop=("完",),
                    frequency_penalty=0.1,
                    presence_penalty=0.2,
                    logprobs=True,
                    top_logprobs=2,
                ),
                extra={"keep_alive": "5m", "options": {"num_ctx": 8192, "seed": 9}, "store": True},
            ),
            {
                **PLAIN,
                "logprobs": True,
                "top_logprobs": 2,
                "keep_alive": "5m",
                "options": {
                    "num_ctx": 8192,
                    "seed": 1,
                    "num_predict": 0,
                    "temperature": 0.0,
                    "top_p": 0.5,
                    "top_k": 3,
                    "stop": ["完"],
                    "frequency_penalty": 0.1,
                    "presence_penalty": 0.2,
                },
            },
            id="options, and its own fields by way of ours",
        ),
        pytest.param(chat(output=OutputFormat("json_object")), {**PLAIN, "format": "json"}, id="json object"),
        pytest.param(chat(output=OutputFormat("json_schema", schema=SCHEMA)), {**PLAIN, "format": SCHEMA}, id="json schema"),
        pytest.param(chat(thinking=Thinking(effort="medium")), {**PLAIN, "think": "medium"}, id="an effort"),
        pytest.param(chat(thinking=Thinking(budget_tokens=9)), {**PLAIN, "think": True}, id="a budget"),
        pytest.param(chat(thinking=Thinking(enabled=False)), {**PLAIN, "think": False}, id="no thinking"),
    ],
)
def test_a_conversation_is_written(ask: Ask, expected: dict[str, Any]) -> None:
    prepared = OLLAMA.write(ask, "up")
    assert prepared.path == "/api/chat"
    assert json.loads(prepared.body) == expected


@pytest.mark.parametrize(
    ("ask", "path", "expected"),
    [
        pytest.param(
            complete(stream=True, sampling=Sampling(max_tokens=3), extra={"suffix": "完"}),
            "/api/generate",
            {"model": "up", "prompt": "从前", "stream": True, "options": {"num_predict": 3}, "suffix": "完"},
            id="a completion",
        ),
        pytest.param(
            Ask("embeddings", "m", inputs=("你好", "b"), dimensions=8),
            "/api/embed",
            {"model": "up", "input": ["你好", "b"], "truncate": False, "dimensions": 8},
            id="embeddings, never of half a text",
        ),
    ],
)
def test_a_text_is_written(ask: Ask, path: str, expected: dict[str, Any]) -> None:
    prepared = OLLAMA.write(ask, "up")
    assert prepared.path == path
    assert json.loads(prepared.body) == expected


@pytest.mark.parametrize(
    ("ask", "param"),
    [
        pytest.param(
            chat(messages=(Message("user", (ImagePart("https://x.test/a.png"),)),)), "messages", id="an image elsewhere"
        ),
        pytest.param(chat(sampling=Sampling(n=2)), "n", id="two answers"),
        pytest.param(chat(tools=(Tool("f"),), tool_choice=ToolChoice("required")), "tool_choice", id="a forced call"),
        pytest.param(chat(tools=(Tool("f"),), tool_choice=ToolChoice("named", "f")), "tool_choice", id="a named call"),
        pytest.param(chat(tools=(Tool("f"),), parallel_tool_calls=False), "parallel_tool_calls", id="one call at a time"),
        pytest.param(chat(extra={"logit_bias": {"1": 5}}), "logit_bias", id="logit bias"),
        pytest.param(chat(operation="count_tokens"), "model", id="a token count"),
        pytest.param(complete(prompts=("a", "b")), "prompt", id="two prompts"),
        pytest.param(complete(prompts=((1,),)), "prompt", id="token ids"),
        pytest.param(complete(extra={"echo": True}), "echo", id="echo"),
        pytest.param(Ask("embeddings", "m", inputs=((1, 2),)), "input", id="token ids to embed"),
    ],
)
def test_what_has_no_form_is_refused(ask: Ask, param: str) -> None:
    with pytest.raises(SitsError) as caught:
        OLLAMA.write(ask, "up")
    assert (caught.value.code, caught.value.param) == (Code.UNSUPPORTED, param)


def decode(ask: Ask, pieces: list[bytes]) -> list[Event]:
    decoder = OLLAMA.decoder(ask)
    return [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()


START = Started(model="llama3")
ENTRY = {"token": "你", "logprob": -0.5, "bytes": [228], "top_logprobs": [{"token": "你", "logprob": -0.5}]}
WAYS = {
    "reasoning, text and two calls": (
        chat(),
        OLLAMA_STREAM,
        [
            START,
            Reasoning("想一想"),
            Text("Hello "),
            Text("世界"),
            ToolCall(0, "call_a", "look", '{"q":"x"}'),
            ToolCall(1, "call_b", "walk", "{}"),
            Finish("tool_calls"),
            Used(Usage(input=9, output=7)),
        ],
    ),
    "calls without ids, arguments as text": (
        chat(),
        lines(
            line({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}, {"function": {"name": "g"}}]}),
            line({}, done=True),
        ),
        [START, ToolCall(0, None, "f", "{}"), ToolCall(1, None, "g", "{}"), Finish("tool_calls")],
    ),
    "an explicit zero stays zero, what is not said stays unsaid": (
        chat(),
        lines(line({"content": "x"}), line({}, done=True, done_reason="length", prompt_eval_count=0)),
        [START, Text("x"), Finish("length"), Used(Usage(input=0))],
    ),
    "log probabilities": (
        chat(),
        lines(line({"content": "你"}, logprobs=[ENTRY]), line({}, done=True, done_reason="stop")),
        [START, Text("你", logprobs={"content": [ENTRY], "refusal": None}), Finish("stop")],
    ),
    "a completion": (
        complete(),
        lines(
            {"model": "llama3", "response": "", "thinking": "嗯", "done": False},
            {"model": "llama3", "response": "你", "logprobs": [ENTRY], "done": False},
            {"model": "llama3", "response": "", "done": True, "done_reason": "stop", "eval_count": 2},
        ),
        [
            START,
            Reasoning("嗯"),
            Text("你", logprobs={"tokens": ["你"], "token_logprobs": [-0.5], "top_logprobs": [{"你": -0.5}], "text_offset": [0]}),
            Finish("stop"),
            Used(Usage(output=2)),
        ],
    ),
}


@pytest.mark.parametrize(("ask", "wire", "expected"), WAYS.values(), ids=WAYS)
def test_a_stream_is_read_whole_and_byte_by_byte(ask: Ask, wire: bytes, expected: list[Event]) -> None:
    assert decode(ask, [wire]) == expected
    assert decode(ask, bytewise(wire)) == expected
    assert decode(ask, bytewise(wire.removesuffix(b"\n").replace(b"\n", b"\r\n\r\n"))) == expected


@settings(max_examples=60)
@given(cuts=CUTS)
def test_cuts_never_change_events(cuts: list[int]) -> None:
    assert decode(chat(), cut(OLLAMA_STREAM, cuts)) == decode(chat(), [OLLAMA_STREAM])


@pytest.mark.parametrize(
    ("reason", "finish"), [("stop", "stop"), ("length", "length"), ("load", "stop"), ("unload", "stop"), ("later", "stop")]
)
def test_every_done_reason_is_understood(reason: str, finish: Any) -> None:
    body = json.dumps(line({"content": "x"}, done=True, done_reason=reason)).encode()
    assert OLLAMA.whole(chat(), body) == [START, Text("x"), Finish(finish)]


def test_an_error_in_a_stream_is_raised_with_what_came_before() -> None:
    with pytest.raises(SitsError, match="model runner has stopped") as caught:
        decode(chat(), [lines(line({"content": "half"}), {"error": "model runner has stopped"})])
    assert (caught.value.code, caught.value.args[1]) == (Code.UPSTREAM_ERROR, [START, Text("half")])


@pytest.mark.parametrize("ask", [chat(), complete(), Ask("embeddings", "m", inputs=("x",))], ids=lambda ask: ask.operation)
def test_an_error_with_a_200_is_raised(ask: Ask) -> None:
    with pytest.raises(SitsError) as caught:
        OLLAMA.whole(ask, b'{"error": "the input length exceeds the context length"}')
    assert caught.value.code is Code.CONTEXT_TOO_LONG


def test_unreadable_lines_are_left_out_and_a_cut_stream_is_broken() -> None:
    decoder = OLLAMA.decoder(chat())
    assert decoder.feed(b'{oops\n[]\n{"x": 1}\n' + lines(line({"content": "x"}))) == [START, Text("x")]
    assert decoder.skipped == 3
    with pytest.raises(SitsError) as caught:
        decoder.close()
    assert caught.value.code is Code.UPSTREAM_BROKEN


def test_an_answer_that_is_not_done_is_broken() -> None:
    with pytest.raises(SitsError) as caught:
        OLLAMA.whole(chat(), json.dumps(line({"content": "x"})).encode())
    assert caught.value.code is Code.UPSTREAM_BROKEN


def test_embeddings_are_read_in_order() -> None:
    ask = Ask("embeddings", "m", inputs=("a", "b"))
    body = b'{"model": "e", "embeddings": [[0.5, 1], [0, -1.5]], "prompt_eval_count": 0}'
    assert OLLAMA.whole(ask, body) == [
        Started(model="e"),
        Vector(0, (0.5, 1.0)),
        Vector(1, (0.0, -1.5)),
        Used(Usage(input=0)),
    ]


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"embeddings": []}', b'{"embeddings": [["x"]]}'])
def test_what_is_no_embedding_is_broken(body: bytes) -> None:
    with pytest.raises(SitsError) as caught:
        OLLAMA.whole(Ask("embeddings", "m", inputs=("x",)), body)
    assert caught.value.code is Code.UPSTREAM_BROKEN


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (404, b'{"error": "model \'x\' not found"}', Code.UPSTREAM_REJECTED),
        (400, b'{"error": "the input length exceeds the context length"}', Code.CONTEXT_TOO_LONG),
        (400, b'{"error": "registry.ollama.ai/library/x does not support tools"}', Code.UPSTREAM_REJECTED),
        (503, b'{"error": "server busy, please try again. maximum pending requests exceeded"}', Code.UPSTREAM_ERROR),
        (500, b'{"error": "model requires more system memory"}', Code.UPSTREAM_ERROR),
    ],
)
def test_an_error_answer_is_explained(status: int, body: bytes, code: Code) -> None:
    assert OLLAMA.explain(status, [], body).code is code
