from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types.shared import ErrorResponse

from sits.dialects import sse
from sits.dialects.anthropic_client import COUNT_TOKENS, MESSAGES
from sits.dialects.base import Identity
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
from sits.inner.event import Event, Finish, Reasoning, Refusal, Started, Text, ToolCall, Usage, Used

IDENTITY = Identity("abc", "served", 1)
HI = [{"role": "user", "content": "你好"}]
INNER_HI = (Message("user", (TextPart("你好"),)),)
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}


def body(**fields: Any) -> bytes:
    said = {"model": "m", "max_tokens": 9, "messages": HI, **fields}
    return json.dumps({key: value for key, value in said.items() if value is not None}).encode()


def inner(**fields: Any) -> Ask:
    return Ask(
        **{
            "operation": "messages",
            "model": "m",
            "messages": INNER_HI,
            "sampling": Sampling(max_tokens=9),
            "include_usage": True,
            **fields,
        }
    )


def turn(*blocks: dict[str, Any], role: str = "user") -> list[dict[str, Any]]:
    return [{"role": role, "content": list(blocks)}]


@pytest.mark.parametrize(
    ("request_body", "expected"),
    [
        pytest.param(body(), inner(), id="plain"),
        pytest.param(
            body(system="说中文"),
            inner(messages=(Message("system", (TextPart("说中文"),)), *INNER_HI)),
            id="system as a string",
        ),
        pytest.param(
            body(system=[{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]),
            inner(
                messages=(
                    Message("system", (TextPart("a"),), extra={"block_extra": {"0": {"cache_control": {"type": "ephemeral"}}}}),
                    *INNER_HI,
                )
            ),
            id="system as blocks, its cache mark kept beside it",
        ),
        pytest.param(
            body(
                messages=turn(
                    {"type": "text", "text": "what?"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
                    {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
                )
            ),
            inner(
                messages=(
                    Message(
                        "user",
                        (TextPart("what?"), ImagePart("data:image/png;base64,aGk="), ImagePart("https://x.test/a.png")),
                    ),
                )
            ),
            id="images",
        ),
        pytest.param(
            body(
                messages=[
                    *HI,
                    *turn(
                        {"type": "thinking", "thinking": "嗯", "signature": "c2ln"},
                        {"type": "redacted_thinking", "data": "eHh4"},
                        {"type": "text", "text": "let me see"},
                        {"type": "tool_use", "id": "t1", "name": "look", "input": {"q": "天气"}},
                        role="assistant",
                    ),
                    *turn(
                        {"type": "tool_result", "tool_use_id": "t1", "content": "broken", "is_error": True},
                        {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "ok"}]},
                        {"type": "tool_result", "tool_use_id": "t3"},
                        {"type": "text", "text": "and now?"},
                    ),
                ]
            ),
            inner(
                messages=(
                    *INNER_HI,
                    Message(
                        "assistant",
                        (
                            ReasoningPart("嗯", "c2ln"),
                            ReasoningPart("", "redacted:eHh4"),
                            TextPart("let me see"),
                            ToolUsePart("t1", "look", '{"q":"天气"}'),
                        ),
                    ),
                    Message(
                        "user",
                        (
                            ToolResultPart("t1", (TextPart("broken"),), is_error=True),
                            ToolResultPart("t2", (TextPart("ok"),)),
                            ToolResultPart("t3", ()),
                            TextPart("and now?"),
                        ),
                    ),
                )
            ),
            id="reasoning, a tool call and its results",
        ),
        pytest.param(
            body(
                tools=[
                    {"name": "look", "description": "looks", "input_schema": SCHEMA, "strict": True},
                    {"type": "custom", "name": "walk", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}},
                ],
                tool_choice={"type": "tool", "name": "walk", "disable_parallel_tool_use": True},
            ),
            inner(
                tools=(Tool("look", "looks", SCHEMA, True), Tool("walk", None, SCHEMA)),
                tool_choice=ToolChoice("named", "walk"),
                parallel_tool_calls=False,
                extra={"tool_extra": {"1": {"cache_control": {"type": "ephemeral"}}}},
            ),
            id="tools and a named choice, one at a time",
        ),
        pytest.param(
            body(tools=[{"name": "a", "input_schema": {}}], tool_choice={"type": "any"}),
            inner(tools=(Tool("a", None, {}),), tool_choice=ToolChoice("required")),
            id="any tool",
        ),
        pytest.param(
            body(thinking={"type": "enabled", "budget_tokens": 2048}, max_tokens=4096),
            inner(
                sampling=Sampling(max_tokens=4096),
                thinking=Thinking(budget_tokens=2048),
                extra={"thinking": {"type": "enabled", "budget_tokens": 2048}},
            ),
            id="thinking with a budget",
        ),
        pytest.param(body(thinking={"type": "disabled"}), inner(thinking=Thinking(enabled=False)), id="thinking disabled"),
        pytest.param(
            body(thinking={"type": "adaptive"}, output_config={"effort": "high", "later": 1}),
            inner(thinking=Thinking(effort="high"), extra={"thinking": {"type": "adaptive"}, "output_config": {"later": 1}}),
            id="adaptive thinking with an effort",
        ),
        pytest.param(
            body(output_config={"format": {"type": "json_schema", "schema": SCHEMA}}),
            inner(output=OutputFormat("json_schema", schema=SCHEMA)),
            id="json schema",
        ),
        pytest.param(
            body(output_format={"type": "json_schema", "schema": SCHEMA}),
            inner(output=OutputFormat("json_schema", schema=SCHEMA)),
            id="json schema in its older place",
        ),
        pytest.param(
            body(
                temperature=0,
                top_p=0.5,
                top_k=7,
                stop_sequences=["完"],
                metadata={"user_id": "u", "team": "t"},
                stream=True,
                x=1,
            ),
            inner(
                stream=True,
                sampling=Sampling(max_tokens=9, temperature=0.0, top_p=0.5, top_k=7, stop=("完",)),
                user="u",
                extra={"x": 1, "metadata": {"team": "t"}},
            ),
            id="sampling, user and a field we do not know",
        ),
    ],
)
def test_a_request_is_read(request_body: bytes, expected: Ask) -> None:
    assert MESSAGES.read(request_body) == expected


BLOCK = "messages.0.content.0"


@pytest.mark.parametrize(
    ("request_body", "param", "message"),
    [
        pytest.param(body(max_tokens=None), "max_tokens", "max_tokens: Field required", id="no max_tokens"),
        pytest.param(
            body(max_tokens=-1), "max_tokens", "max_tokens: Input should be greater than or equal to 0", id="negative max_tokens"
        ),
        pytest.param(body(model=None), "model", "model: Field required", id="no model"),
        pytest.param(body(messages=[]), "messages", "messages: at least one message is required", id="no messages"),
        pytest.param(
            body(messages=[{"role": "user"}]), "messages.0.content", "messages.0.content: Field required", id="no content"
        ),
        pytest.param(
            body(messages=[{"role": "bot", "content": "x"}]),
            "messages.0.role",
            "messages.0.role: Input should be 'user' or 'assistant'",
            id="role",
        ),
        pytest.param(
            body(messages=turn({"type": "text", "text": 3})),
            f"{BLOCK}.text",
            f"{BLOCK}.text: Input should be a valid string",
            id="text of the wrong type",
        ),
        pytest.param(
            body(messages=turn({"type": "tool_result", "tool_use_id": "a"}, role="assistant")),
            BLOCK,
            f"{BLOCK}: `tool_result` blocks are not allowed in `assistant` messages",
            id="a tool result of the assistant",
        ),
        pytest.param(
            body(thinking={"type": "enabled"}),
            "thinking.budget_tokens",
            "thinking.enabled.budget_tokens: Field required",
            id="no budget",
        ),
        pytest.param(
            body(thinking={"type": "enabled", "budget_tokens": 9}),
            "max_tokens",
            "`max_tokens` must be greater than `thinking.budget_tokens`",
            id="the budget is all there is",
        ),
        pytest.param(
            body(tool_choice={"type": "any"}),
            "tool_choice",
            "tool_choice: Tool choice is only allowed when `tools` are given",
            id="a choice of nothing",
        ),
    ],
)
def test_a_mistake_is_named_as_anthropic_names_it(request_body: bytes, param: str, message: str) -> None:
    with pytest.raises(SitsError) as caught:
        MESSAGES.read(request_body)
    assert (caught.value.code, caught.value.param, caught.value.message) == (Code.INVALID_REQUEST, param, message)


@pytest.mark.parametrize(
    ("request_body", "param"),
    [
        pytest.param(body(messages=turn({"type": "document", "source": {}})), BLOCK, id="document"),
        pytest.param(body(messages=turn({"type": "search_result"})), BLOCK, id="search result"),
        pytest.param(
            body(messages=turn({"type": "image", "source": {"type": "file", "file_id": "f"}})), f"{BLOCK}.source", id="file"
        ),
        pytest.param(body(tools=[{"type": "web_search_20250305", "name": "web_search"}]), "tools.0.type", id="server tool"),
        pytest.param(body(mcp_servers=[{"url": "x"}]), "mcp_servers", id="mcp servers"),
    ],
)
def test_what_only_anthropic_can_serve_is_unsupported(request_body: bytes, param: str) -> None:
    with pytest.raises(SitsError) as caught:
        MESSAGES.read(request_body)
    assert (caught.value.code, caught.value.param) == (Code.UNSUPPORTED, param)


def stream(*said: Event) -> list[Any]:
    encoder = MESSAGES.encoder(inner(stream=True), IDENTITY)
    wire = b"".join([*map(encoder.feed, said), encoder.close()])
    found = sse.EventDecoder().feed(wire)
    assert [event.event for event in found] == [json.loads(event.data)["type"] for event in found]
    return [json.loads(event.data) for event in found]


def whole(*said: Event) -> Any:
    return json.loads(MESSAGES.whole(inner(), said, IDENTITY))


def start(**usage: int) -> dict[str, Any]:
    message = {"id": "msg_abc", "type": "message", "role": "assistant", "model": "served", "content": []}
    usage = {"input_tokens": 0, "output_tokens": 0, **usage}
    return {
        "type": "message_start",
        "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage},
    }


def opened(index: int, block: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def said(index: int, **delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def closed(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def ended(reason: str, sequence: str | None = None, **usage: Any) -> list[dict[str, Any]]:
    delta = {"stop_reason": reason, "stop_sequence": sequence}
    return [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]


UNKNOWN = {"input_tokens": 0, "output_tokens": 0, "sits_estimated": True}
TEXT = {"type": "text", "text": ""}
THINKING = {"type": "thinking", "thinking": "", "signature": ""}


def use(call_id: str, name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}}


def test_text_is_one_block_between_start_and_stop() -> None:
    used = Used(Usage(input=11, output=0, cached=3, reasoning=0, cache_written=2))
    assert stream(Started("up"), Text("你"), Text(""), Text("好"), Finish("stop"), used) == [
        start(),
        opened(0, TEXT),
        said(0, type="text_delta", text="你"),
        said(0, type="text_delta", text="好"),
        closed(0),
        *ended(
            "end_turn",
            input_tokens=6,
            output_tokens=0,
            cache_read_input_tokens=3,
            cache_creation_input_tokens=2,
            output_tokens_details={"thinking_tokens": 0},
        ),
    ]


def test_usage_that_came_before_content_is_in_the_start() -> None:
    assert stream(Started("msg_up"), Used(Usage(input=5)), Text("x"), Finish("stop"), Used(Usage(output=1)))[0] == {
        "type": "message_start",
        "message": {**start(input_tokens=5)["message"], "id": "msg_up"},
    }


def test_reasoning_closes_with_its_signature_and_a_sealed_block_stands_alone() -> None:
    events = (
        Reasoning("嗯"),
        Reasoning("", signature="c2ln"),
        Reasoning("", signature="redacted:eHh4"),
        Reasoning("b"),
        Text("t"),
        Finish("pause"),
    )
    assert stream(*events) == [
        start(),
        opened(0, THINKING),
        said(0, type="thinking_delta", thinking="嗯"),
        said(0, type="signature_delta", signature="c2ln"),
        closed(0),
        opened(1, {"type": "redacted_thinking", "data": "eHh4"}),
        closed(1),
        opened(2, THINKING),
        said(2, type="thinking_delta", thinking="b"),
        closed(2),
        opened(3, TEXT),
        said(3, type="text_delta", text="t"),
        closed(3),
        *ended("pause_turn", **UNKNOWN),
    ]
    assert whole(*events)["content"] == [
        {"type": "thinking", "thinking": "嗯", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "eHh4"},
        {"type": "thinking", "thinking": "b", "signature": ""},
        {"type": "text", "text": "t"},
    ]


def test_interleaved_calls_become_blocks_one_after_another() -> None:
    events = (
        ToolCall(0, "a", "look", '{"q":'),
        ToolCall(1, "b", "walk", "{"),
        Text("meanwhile"),
        ToolCall(0, arguments="1}"),
        ToolCall(1, arguments="}"),
        ToolCall(2, None, "sit"),
        Finish("tool_calls"),
    )
    assert stream(*events) == [
        start(),
        opened(0, use("a", "look")),
        said(0, type="input_json_delta", partial_json='{"q":'),
        said(0, type="input_json_delta", partial_json="1}"),
        closed(0),
        opened(1, use("b", "walk")),
        said(1, type="input_json_delta", partial_json="{"),
        said(1, type="input_json_delta", partial_json="}"),
        closed(1),
        opened(2, TEXT),
        said(2, type="text_delta", text="meanwhile"),
        closed(2),
        opened(3, use("toolu_abc_2", "sit")),
        closed(3),
        *ended("tool_use", **UNKNOWN),
    ]
    assert whole(*events)["content"] == [
        {**use("a", "look"), "input": {"q": 1}},
        use("b", "walk"),
        {"type": "text", "text": "meanwhile"},
        use("toolu_abc_2", "sit"),
    ]


def test_a_block_goes_out_as_its_pieces_arrive() -> None:
    encoder = MESSAGES.encoder(inner(stream=True), IDENTITY)
    assert encoder.feed(Started("x")) == b""
    assert b"input_json_delta" in encoder.feed(ToolCall(0, "a", "look", '{"q":'))
    assert b"1}" in encoder.feed(ToolCall(0, arguments="1}"))


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        (Finish("stop"), "end_turn"),
        (Finish("stop", stop_sequence="完"), "stop_sequence"),
        (Finish("length"), "max_tokens"),
        (Finish("tool_calls"), "tool_use"),
        (Finish("content_filter"), "refusal"),
        (Finish("refusal"), "refusal"),
        (Finish("pause"), "pause_turn"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_every_finish_has_its_stop_reason(finish: Finish, reason: str) -> None:
    assert stream(Text("x"), finish)[-2:] == ended(reason, finish.stop_sequence, **UNKNOWN)
    answer = whole(Text("x"), finish)
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, finish.stop_sequence)


def test_an_empty_answer_is_a_message_without_blocks() -> None:
    assert stream(Started(), Finish("length")) == [start(), *ended("max_tokens", **UNKNOWN)]
    assert whole(Started(), Refusal(""), Finish("length"))["content"] == []


def test_arguments_cut_off_by_the_limit_are_an_empty_input() -> None:
    assert whole(ToolCall(0, "a", "look", '{"q"'), Finish("length"))["content"] == [use("a", "look")]


def test_arguments_that_are_no_object_are_the_models_fault() -> None:
    with pytest.raises(SitsError) as caught:
        whole(ToolCall(0, "a", "look", "[1]"), Finish("tool_calls"))
    assert caught.value.code is Code.UPSTREAM_BROKEN


ERRORS = [
    (SitsError(Code.INVALID_REQUEST, "no", param="messages.0"), "invalid_request_error", anthropic.BadRequestError),
    (SitsError(Code.UNAUTHENTICATED, "no"), "authentication_error", anthropic.AuthenticationError),
    (SitsError(Code.FORBIDDEN, "no"), "permission_error", anthropic.PermissionDeniedError),
    (SitsError(Code.MODEL_NOT_FOUND, "no"), "not_found_error", anthropic.NotFoundError),
    (SitsError(Code.TOO_LARGE, "no"), "request_too_large", anthropic.APIStatusError),
    (SitsError(Code.UNSUPPORTED_MEDIA, "no"), "invalid_request_error", anthropic.APIStatusError),
    (SitsError(Code.RATE_LIMITED, "no"), "rate_limit_error", anthropic.RateLimitError),
    (SitsError(Code.UPSTREAM_ERROR, "no", upstream_code="x"), "api_error", anthropic.APIStatusError),
    (SitsError(Code.OVERLOADED, "no"), "overloaded_error", anthropic.APIStatusError),
    (SitsError(Code.UPSTREAM_ERROR, "no", status=529), "overloaded_error", anthropic.APIStatusError),
    (SitsError(Code.UPSTREAM_TIMEOUT, "no"), "timeout_error", anthropic.APIStatusError),
]


@pytest.mark.parametrize(("error", "kind", "raised"), ERRORS, ids=[f"{e.status} {k}" for e, k, _ in ERRORS])
def test_an_error_is_what_the_sdk_raises(error: SitsError, kind: str, raised: type[Exception]) -> None:
    wire = MESSAGES.error(error, "req-1")
    fields = {"type": kind, "message": "no", "sits_code": error.code.value}
    more = {"param": error.param, "upstream_code": error.upstream_code}
    fields |= {key: value for key, value in more.items() if value is not None}
    assert json.loads(wire) == {"type": "error", "error": fields, "request_id": "req-1"}
    if kind != "request_too_large":  # documented for 413, but not among the SDK's types
        ErrorResponse.model_validate_json(wire)

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(error.status, content=wire, headers={"content-type": "application/json"}, request=request)

    client = httpx2.Client(transport=httpx2.MockTransport(answer))
    sdk = anthropic.Anthropic(api_key="k", base_url="http://sits.test", http_client=client, max_retries=0)
    with pytest.raises(raised):
        sdk.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "x"}])


def test_an_error_in_a_stream_is_raised_by_the_sdk() -> None:
    encoder = MESSAGES.encoder(inner(stream=True), IDENTITY)
    error = SitsError(Code.STREAM_BROKEN, "断了")
    wire = encoder.feed(Text("half")) + MESSAGES.error_event(error, "req-1")

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=wire, headers={"content-type": "text/event-stream"}, request=request)

    client = httpx2.Client(transport=httpx2.MockTransport(answer))
    sdk = anthropic.Anthropic(api_key="k", base_url="http://sits.test", http_client=client, max_retries=0)
    with (
        pytest.raises(anthropic.APIStatusError, match="断了"),
        sdk.messages.stream(model="m", max_tokens=1, messages=[{"role": "user", "content": "x"}]) as found,
    ):
        for _ in found:
            pass


def test_a_count_needs_no_max_tokens_and_streams_nothing() -> None:
    asked = COUNT_TOKENS.read(body(max_tokens=None, stream=True))
    assert asked == inner(operation="count_tokens", sampling=Sampling())
    events = [Started(), Finish("stop"), Used(Usage(input=0))]
    assert json.loads(COUNT_TOKENS.whole(asked, events, IDENTITY)) == {"input_tokens": 0}
    with pytest.raises(SitsError) as caught:
        COUNT_TOKENS.encoder(asked, IDENTITY)
    assert caught.value.code is Code.UNSUPPORTED


def test_a_count_that_nobody_said_is_not_made_up() -> None:
    with pytest.raises(SitsError) as caught:
        COUNT_TOKENS.whole(inner(operation="count_tokens"), [Started(), Finish("stop")], IDENTITY)
    assert caught.value.code is Code.UPSTREAM_BROKEN


@pytest.mark.parametrize("kind", [[], {}, 3, True], ids=repr)
def test_a_block_whose_type_is_no_text_is_refused(kind: Any) -> None:
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [{"type": kind}]}]}
    with pytest.raises(SitsError) as caught:
        MESSAGES.read(json.dumps(body).encode())
    assert (caught.value.code, caught.value.param) == (Code.INVALID_REQUEST, "messages.0.content.0")
