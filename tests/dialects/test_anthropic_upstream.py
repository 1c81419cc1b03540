from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from sits.dialects.anthropic_client import MESSAGES
from sits.dialects.anthropic_upstream import ANTHROPIC
from sits.dialects.responses_client import RESPONSES
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
from sits.inner.errors import Code, Remedy, SitsError
from sits.inner.event import Event, Finish, Reasoning, Started, Text, ToolCall, Usage, Used

from .anthropic_wires import PING, THINKING, USE_A, USE_B, arguments, block, delta, end, events, start, stop, text
from .cuts import CUTS, bytewise, cut

HI = (Message("user", (TextPart("你好"),)),)
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
PLAIN = {"model": "up", "max_tokens": 4096, "messages": [{"role": "user", "content": "你好"}]}


def chat(**fields: Any) -> Ask:
    return Ask(**{"operation": "chat", "model": "m", "messages": HI, **fields})


def said(ask: Ask) -> Any:
    prepared = ANTHROPIC.write(ask, "up")
    assert (prepared.path, prepared.headers) == ("/v1/messages", ((b"anthropic-version", b"2023-06-01"),))
    return json.loads(prepared.body)


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        pytest.param(chat(), PLAIN, id="plain, with the limit that the server demands"),
        pytest.param(
            chat(
                messages=(
                    Message("system", (TextPart("a"),)),
                    *HI,
                    Message("system", (TextPart("b"),)),
                    Message("user", (TextPart("and?"),)),
                )
            ),
            {
                **PLAIN,
                "system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                "messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in ("你好", "and?")]}],
            },
            id="system messages are lifted out, neighbours become one turn",
        ),
        pytest.param(
            chat(
                messages=(
                    *HI,
                    Message(
                        "assistant",
                        (
                            ReasoningPart("unsigned"),
                            ReasoningPart("signed", "c2ln"),
                            ReasoningPart("", "redacted:eHh4"),
                            TextPart(""),
                            ToolUsePart("t1", "look", '{"q": "天气"}'),
                            ToolUsePart("t2", "walk", ""),
                        ),
                    ),
                    Message("tool", (ToolResultPart("t1", (TextPart("晴"),)),)),
                    Message("tool", (ToolResultPart("t2", (TextPart("x"), ImagePart("data:image/png;base64,aGk=")), True),)),
                    Message("user", (TextPart("so?"),)),
                )
            ),
            {
                **PLAIN,
                "messages": [
                    {"role": "user", "content": "你好"},
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "thinking", "thinking": "signed", "signature": "c2ln"},
                            {"type": "redacted_thinking", "data": "eHh4"},
                            {"type": "tool_use", "id": "t1", "name": "look", "input": {"q": "天气"}},
                            {"type": "tool_use", "id": "t2", "name": "walk", "input": {}},
                        ],
                    },
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "t1", "content": "晴"},
                            {
                                "type": "tool_result",
                                "tool_use_id": "t2",
                                "content": [
                                    {"type": "text", "text": "x"},
                                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
                                ],
                                "is_error": True,
                            },
                            {"type": "text", "text": "so?"},
                        ],
                    },
                ],
            },
            id="a turn with tools: results are the user's",
        ),
        pytest.param(
            chat(messages=(Message("user", (TextPart("?"), ImagePart("https://x.test/a.png", "low"))),)),
            {
                **PLAIN,
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "?"},
                            {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
                        ],
                    }
                ],
            },
            id="an image by url",
        ),
        pytest.param(
            chat(tools=(Tool("look", "looks", SCHEMA, True), Tool("walk")), parallel_tool_calls=False),
            {
                **PLAIN,
                "tools": [
                    {"name": "look", "input_schema": SCHEMA, "description": "looks", "strict": True},
                    {"name": "walk", "input_schema": {"type": "object", "properties": {}}},
                ],
                "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            },
            id="tools, one at a time",
        ),
        pytest.param(
            chat(tools=(Tool("walk"),), tool_choice=ToolChoice("named", "walk"), parallel_tool_calls=True),
            {
                **PLAIN,
                "tools": [{"name": "walk", "input_schema": {"type": "object", "properties": {}}}],
                "tool_choice": {"type": "tool", "name": "walk", "disable_parallel_tool_use": False},
            },
            id="a named tool",
        ),
        pytest.param(
            chat(tools=(Tool("walk"),), tool_choice=ToolChoice("required")),
            {
                **PLAIN,
                "tools": [{"name": "walk", "input_schema": {"type": "object", "properties": {}}}],
                "tool_choice": {"type": "any"},
            },
            id="any tool",
        ),
        pytest.param(
            chat(tool_choice=ToolChoice("none"), parallel_tool_calls=False),
            {**PLAIN, "tool_choice": {"type": "none"}},
            id="no tool",
        ),
        pytest.param(
            chat(
                sampling=Sampling(max_tokens=5, temperature=0.0, top_p=0.5, top_k=3, stop=("完",), n=1, frequency_penalty=0.0),
                stream=True,
                user="u",
                extra={"store": True, "logit_bias": {}},
            ),
            {
                **PLAIN,
                "max_tokens": 5,
                "temperature": 0.0,
                "top_p": 0.5,
                "top_k": 3,
                "stop_sequences": ["完"],
                "stream": True,
                "metadata": {"user_id": "u"},
            },
            id="sampling, stream and user; another family's fields stay here",
        ),
        pytest.param(
            chat(output=OutputFormat("json_schema", "n", SCHEMA, True)),
            {**PLAIN, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            id="json schema",
        ),
        pytest.param(
            chat(thinking=Thinking(effort="minimal")),
            {**PLAIN, "thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
            id="an effort",
        ),
        pytest.param(
            chat(thinking=Thinking(budget_tokens=2000)),
            {**PLAIN, "max_tokens": 6096, "thinking": {"type": "enabled", "budget_tokens": 2000}},
            id="a budget, beside which the answer has its room",
        ),
        pytest.param(
            chat(thinking=Thinking(enabled=False, effort="none")), {**PLAIN, "thinking": {"type": "disabled"}}, id="no thinking"
        ),
    ],
)
def test_a_request_is_written(ask: Ask, expected: dict[str, Any]) -> None:
    assert said(ask) == expected


@pytest.mark.parametrize(
    ("ask", "param"),
    [
        pytest.param(chat(sampling=Sampling(n=2)), "n", id="two answers"),
        pytest.param(chat(sampling=Sampling(logprobs=True)), "logprobs", id="logprobs"),
        pytest.param(chat(sampling=Sampling(seed=0)), "seed", id="seed"),
        pytest.param(chat(sampling=Sampling(presence_penalty=0.1)), "presence_penalty", id="penalty"),
        pytest.param(chat(sampling=Sampling(temperature=1.5)), "temperature", id="too hot"),
        pytest.param(chat(output=OutputFormat("json_object")), "response_format", id="json_object"),
        pytest.param(chat(extra={"logit_bias": {"5": -100}}), "logit_bias", id="logit bias"),
        pytest.param(chat(extra={"modalities": ["text", "audio"]}), "modalities", id="audio"),
        pytest.param(Ask("completions", "m", prompts=("x",)), "model", id="completions"),
        pytest.param(Ask("embeddings", "m", inputs=("x",)), "model", id="embeddings"),
    ],
)
def test_what_has_no_form_is_refused(ask: Ask, param: str) -> None:
    with pytest.raises(SitsError) as caught:
        ANTHROPIC.write(ask, "up")
    assert (caught.value.code, caught.value.param) == (Code.UNSUPPORTED, param)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        pytest.param((Message("user", (ImagePart("data:image/png,raw"),)),), "data URL", id="an image that is not base64"),
        pytest.param((Message("assistant", (ToolUsePart("t1", "f", "[1]"),)),), "'t1'", id="arguments that are no object"),
    ],
)
def test_history_that_cannot_be_said_is_the_clients_mistake(messages: tuple[Message, ...], words: str) -> None:
    with pytest.raises(SitsError, match=words) as caught:
        ANTHROPIC.write(chat(messages=messages), "up")
    assert caught.value.code is Code.INVALID_REQUEST


MARK = {"cache_control": {"type": "ephemeral"}}
ROUND = {
    "max_tokens": 9000,
    "system": [{"type": "text", "text": "s", **MARK}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "你好", **MARK}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}, **MARK}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "ok", **MARK}]},
    ],
    "tools": [{"name": "f", "input_schema": SCHEMA, "eager_input_streaming": True, **MARK}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "adaptive", "display": "omitted"},
    "output_config": {"effort": "max", "format": {"type": "json_schema", "schema": SCHEMA}},
    "metadata": {"user_id": "u", "x": 1},
    "service_tier": "auto",
    "temperature": 1.0,
    "stop_sequences": ["a"],
    "stream": True,
}


def test_a_messages_request_comes_out_as_it_went_in() -> None:
    ask = MESSAGES.read(json.dumps({"model": "asked", **ROUND}).encode())
    assert said(ask) == {"model": "up", **ROUND}


def test_a_token_count_is_asked_for_without_what_only_an_answer_needs() -> None:
    ask = Ask("count_tokens", "m", messages=HI, tools=(Tool("f", None, SCHEMA),), sampling=Sampling(max_tokens=3))
    prepared = ANTHROPIC.write(ask, "up")
    assert prepared.path == "/v1/messages/count_tokens"
    assert json.loads(prepared.body) == {
        "model": "up",
        "messages": [{"role": "user", "content": "你好"}],
        "tools": [{"name": "f", "input_schema": SCHEMA}],
    }
    assert ANTHROPIC.whole(ask, b'{"input_tokens": 12}') == [Started(), Finish("stop"), Used(Usage(input=12))]


def test_sealed_reasoning_survives_a_turn_of_the_responses_dialect() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "redacted:eHh4"}
    body = {"model": "m", "input": [{"role": "user", "content": "a"}, item, {"role": "user", "content": "b"}]}
    turns = said(RESPONSES.read(json.dumps(body).encode()))["messages"]
    assert turns[1] == {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "eHh4"}]}


def decode(pieces: list[bytes]) -> list[Event]:
    decoder = ANTHROPIC.decoder(chat(stream=True))
    return [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()


TOOLS = events(
    start({"input_tokens": 1, "output_tokens": 1}),
    block(0, {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}),
    arguments(0, '{"q": 1}'),
    stop(0),
    block(1, {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}),
    stop(1),
    block(2, USE_A),
    arguments(2, '{"q":1}'),
    stop(2),
    block(3, {**USE_B, "input": {"given": "at once"}}),
    stop(3),
    *end("tool_use", {"input_tokens": 5, "output_tokens": 0}),
)
WAYS = {
    "text and pings": (
        events(start(), PING, block(0, {"type": "text", "text": ""}), text(0, "你"), PING, text(0, "好"), stop(0), *end()),
        [
            Started("msg_01", "claude"),
            Used(Usage(input=9)),
            Text("你"),
            Text("好"),
            Finish("stop"),
            Used(Usage(input=9, output=4)),
        ],
    ),
    "thinking, signed and sealed": (
        events(
            start(),
            THINKING,
            delta(0, {"type": "thinking_delta", "thinking": "嗯"}),
            delta(0, {"type": "signature_delta", "signature": "c2ln"}),
            stop(0),
            block(1, {"type": "redacted_thinking", "data": "eHh4"}),
            stop(1),
            *end("max_tokens", {"output_tokens": 0, "output_tokens_details": {"thinking_tokens": 0}}),
        ),
        [
            Started("msg_01", "claude"),
            Used(Usage(input=9)),
            Reasoning("嗯"),
            Reasoning("", signature="c2ln"),
            Reasoning("", signature="redacted:eHh4"),
            Finish("length"),
            Used(Usage(input=9, output=0, reasoning=0)),
        ],
    ),
    "calls are numbered without the server's own": (
        TOOLS,
        [
            Started("msg_01", "claude"),
            Used(Usage(input=1)),
            ToolCall(0, "call_a", "look"),
            ToolCall(0, arguments='{"q":1}'),
            ToolCall(1, "call_b", "walk"),
            ToolCall(1, arguments='{"given":"at once"}'),
            Finish("tool_calls"),
            Used(Usage(input=5, output=0)),
        ],
    ),
    "no usage at all": (
        events(
            {"type": "message_start", "message": {"id": "m"}},
            {"type": "later", "x": 1},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
            {"type": "message_stop"},
        ),
        [Started("m"), Finish("stop")],
    ),
}


@pytest.mark.parametrize(("wire", "expected"), WAYS.values(), ids=WAYS)
def test_a_stream_is_read_whole_and_byte_by_byte(wire: bytes, expected: list[Event]) -> None:
    assert decode([wire]) == expected
    assert decode(bytewise(wire)) == expected
    assert decode(bytewise(wire.replace(b"\n", b"\r\n"))) == expected


@settings(max_examples=50)
@given(cuts=CUTS)
def test_cuts_never_change_events(cuts: list[int]) -> None:
    assert decode(cut(TOOLS, cuts)) == decode([TOOLS])


@pytest.mark.parametrize(
    ("reason", "sequence", "finish"),
    [
        ("end_turn", None, Finish("stop")),
        ("stop_sequence", "完", Finish("stop", stop_sequence="完")),
        ("max_tokens", None, Finish("length")),
        ("model_context_window_exceeded", None, Finish("length")),
        ("tool_use", None, Finish("tool_calls")),
        ("refusal", None, Finish("refusal")),
        ("pause_turn", None, Finish("pause")),
        ("of_later_days", None, Finish("stop")),
    ],
)
def test_every_stop_reason_is_understood(reason: str, sequence: str | None, finish: Finish) -> None:
    assert finish in decode([events(start(), *end(reason, sequence=sequence))])
    whole = {"content": [], "stop_reason": reason, "stop_sequence": sequence}
    assert ANTHROPIC.whole(chat(), json.dumps(whole).encode()) == [Started(), finish]


def test_unreadable_events_are_left_out_and_counted() -> None:
    decoder = ANTHROPIC.decoder(chat(stream=True))
    broken = b"data: {oops\n\n" + events({"type": "content_block_delta"}) + b"data: 3\n\n"
    found = decoder.feed(events(start()) + broken + events(text(0, "x"), *end()))
    assert [event for event in found if isinstance(event, Text)] == [Text("x")]
    assert decoder.skipped == 3


@pytest.mark.parametrize(
    ("kind", "code", "status"),
    [
        ("overloaded_error", Code.UPSTREAM_ERROR, 502),
        ("api_error", Code.UPSTREAM_ERROR, 502),
        ("timeout_error", Code.UPSTREAM_TIMEOUT, 504),
        ("rate_limit_error", Code.UPSTREAM_RATE_LIMITED, 429),
        ("invalid_request_error", Code.UPSTREAM_REJECTED, 400),
        ("authentication_error", Code.UPSTREAM_AUTH, 502),
        ("of_later_days", Code.UPSTREAM_ERROR, 502),
    ],
)
def test_an_error_in_a_stream_is_raised_with_what_came_before(kind: str, code: Code, status: int) -> None:
    error = {"type": "error", "error": {"type": kind, "message": "Overloaded"}}
    with pytest.raises(SitsError) as caught:
        decode([events(start(), text(0, "half"), error)])
    assert (caught.value.code, caught.value.status) == (code, status)
    assert caught.value.args[1] == [Started("msg_01", "claude"), Used(Usage(input=9)), Text("half")]
    with pytest.raises(SitsError) as again:
        ANTHROPIC.whole(chat(), json.dumps(error).encode())
    assert again.value.code is code


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(events(start(), text(0, "x")), id="cut"),
        pytest.param(events(start(), text(0, "x"), {"type": "message_stop"}), id="stopped without a reason"),
        pytest.param(b"", id="empty"),
    ],
)
def test_an_answer_without_a_finish_is_broken(wire: bytes) -> None:
    with pytest.raises(SitsError) as caught:
        decode([wire])
    assert caught.value.code is Code.UPSTREAM_BROKEN


def error(kind: str, message: str) -> bytes:
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}, "request_id": "r"}).encode()


@pytest.mark.parametrize(
    ("status", "body", "code", "sent", "remedy"),
    [
        pytest.param(
            400,
            error("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
            Code.CONTEXT_TOO_LONG,
            400,
            Remedy.FIX_REQUEST,
            id="prompt too long",
        ),
        pytest.param(
            400,
            error("invalid_request_error", "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000"),
            Code.CONTEXT_TOO_LONG,
            400,
            Remedy.FIX_REQUEST,
            id="prompt and answer too long",
        ),
        pytest.param(
            413,
            error("request_too_large", "Request exceeds the maximum size"),
            Code.UPSTREAM_REJECTED,
            413,
            Remedy.FIX_REQUEST,
            id="body too large",
        ),
        pytest.param(
            400,
            error("invalid_request_error", "Your credit balance is too low"),
            Code.UPSTREAM_AUTH,
            502,
            Remedy.TRY_ELSEWHERE,
            id="no credit",
        ),
        pytest.param(
            401,
            error("authentication_error", "invalid x-api-key"),
            Code.UPSTREAM_AUTH,
            502,
            Remedy.TRY_ELSEWHERE,
            id="bad key",
        ),
        pytest.param(
            404, error("not_found_error", "model: x"), Code.UPSTREAM_REJECTED, 404, Remedy.FIX_REQUEST, id="no such model"
        ),
        pytest.param(
            429, error("rate_limit_error", "slow"), Code.UPSTREAM_RATE_LIMITED, 429, Remedy.TRY_ELSEWHERE, id="rate limit"
        ),
        pytest.param(
            529, error("overloaded_error", "Overloaded"), Code.UPSTREAM_ERROR, 502, Remedy.TRY_ELSEWHERE, id="overloaded"
        ),
        pytest.param(502, b"<html>bad gateway</html>", Code.UPSTREAM_ERROR, 502, Remedy.TRY_ELSEWHERE, id="a proxy in between"),
    ],
)
def test_an_error_answer_is_explained(status: int, body: bytes, code: Code, sent: int, remedy: Remedy) -> None:
    found = ANTHROPIC.explain(status, [(b"retry-after", b"3")], body)
    assert (found.code, found.status, found.remedy) == (code, sent, remedy)


def test_an_error_keeps_the_providers_code_and_its_retry_after() -> None:
    found = ANTHROPIC.explain(529, [(b"retry-after", b"3")], error("overloaded_error", "Overloaded"))
    assert (found.retry_after, found.upstream_code) == (3.0, "overloaded_error")
