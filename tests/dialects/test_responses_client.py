from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from sits.dialects import sse
from sits.dialects.base import Identity
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
from sits.inner.errors import Code, SitsError
from sits.inner.event import Event, Finish, Reasoning, Refusal, Started, Text, ToolCall, Usage, Used

IDENTITY = Identity("abc", "served", 1_700_000_000)
HI = (Message("user", (TextPart("你好"),)),)
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
FUNCTION = {"type": "function", "name": "look", "description": "looks", "parameters": SCHEMA, "strict": True}
STRICT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def body(**fields: Any) -> bytes:
    said = {"model": "m", "input": "你好", **fields}
    return json.dumps({key: value for key, value in said.items() if value is not None}).encode()


def inner(**fields: Any) -> Ask:
    return Ask(**{"operation": "responses", "model": "m", "messages": HI, "include_usage": True, **fields})


def item(*parts: dict[str, Any], role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": list(parts), **fields}


CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": '{"q": "天气"}'}


@pytest.mark.parametrize(
    ("request_body", "expected"),
    [
        pytest.param(body(), inner(), id="a string"),
        pytest.param(
            body(instructions="说中文", store=False, x=[1]),
            inner(
                messages=(Message("system", (TextPart("说中文"),)), *HI),
                extra={"instructions": "说中文", "store": False, "x": [1]},
            ),
            id="instructions, store and a field we do not know",
        ),
        pytest.param(
            body(
                input=[
                    {"role": "developer", "content": "rules"},
                    item(
                        {"type": "input_text", "text": "what?"},
                        {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "low"},
                    ),
                ]
            ),
            inner(
                messages=(
                    Message("system", (TextPart("rules"),), extra={"role": "developer"}),
                    Message("user", (TextPart("what?"), ImagePart("data:image/png;base64,aGk=", "low"))),
                )
            ),
            id="items with an image",
        ),
        pytest.param(
            body(
                input=[
                    {"role": "user", "content": "你好"},
                    {
                        "type": "reasoning",
                        "id": "rs",
                        "summary": [{"type": "summary_text", "text": "嗯"}],
                        "encrypted_content": "c2ln",
                    },
                    item({"type": "output_text", "text": "see", "annotations": []}, role="assistant", id="msg"),
                    CALL,
                    item({"type": "output_text", "text": "more"}, role="assistant"),
                    {**CALL, "call_id": "c2", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c1", "output": "晴"},
                    {
                        "type": "function_call_output",
                        "call_id": "c2",
                        "output": [
                            {"type": "input_text", "text": "x"},
                            {"type": "input_image", "image_url": "https://x.test/a.png"},
                        ],
                    },
                    item({"type": "refusal", "refusal": "no"}, role="assistant"),
                    item({"type": "output_text", "text": "yes"}, role="assistant"),
                ]
            ),
            inner(
                messages=(
                    *HI,
                    Message(
                        "assistant",
                        (
                            ReasoningPart("嗯", "c2ln"),
                            TextPart("see"),
                            ToolUsePart("c1", "look", '{"q": "天气"}'),
                            TextPart("more"),
                            ToolUsePart("c2", "look", "{}"),
                        ),
                    ),
                    Message("tool", (ToolResultPart("c1", (TextPart("晴"),)),)),
                    Message("tool", (ToolResultPart("c2", (TextPart("x"), ImagePart("https://x.test/a.png"))),)),
                    Message("assistant", (TextPart("no"),)),
                    Message("assistant", (TextPart("yes"),)),
                )
            ),
            id="the items of a turn become one message",
        ),
        pytest.param(
            body(tools=[FUNCTION], tool_choice={"type": "function", "name": "look"}, parallel_tool_calls=False),
            inner(
                tools=(Tool("look", "looks", SCHEMA, True),),
                tool_choice=ToolChoice("named", "look"),
                parallel_tool_calls=False,
            ),
            id="tools",
        ),
        pytest.param(
            body(text={"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}),
            inner(
                output=OutputFormat("json_schema", "n", SCHEMA, True),
                extra={"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}},
            ),
            id="json schema",
        ),
        pytest.param(
            body(text={"format": {"type": "text"}, "verbosity": "low"}),
            inner(extra={"text": {"format": {"type": "text"}, "verbosity": "low"}}),
            id="text",
        ),
        pytest.param(
            body(text={"format": {"type": "json_object"}}),
            inner(output=OutputFormat("json_object"), extra={"text": {"format": {"type": "json_object"}}}),
            id="json object",
        ),
        pytest.param(
            body(reasoning={"effort": "high", "summary": "auto"}),
            inner(thinking=Thinking(effort="high"), extra={"reasoning": {"effort": "high", "summary": "auto"}}),
            id="effort",
        ),
        pytest.param(
            body(reasoning={"effort": "none"}),
            inner(thinking=Thinking(enabled=False, effort="none"), extra={"reasoning": {"effort": "none"}}),
            id="no effort",
        ),
        pytest.param(
            body(max_output_tokens=9, temperature=0, top_p=0.5, top_logprobs=2, user="u", stream=True),
            inner(
                sampling=Sampling(max_tokens=9, temperature=0.0, top_p=0.5, logprobs=True, top_logprobs=2), user="u", stream=True
            ),
            id="sampling",
        ),
    ],
)
def test_a_request_is_read(request_body: bytes, expected: Ask) -> None:
    assert RESPONSES.read(request_body) == expected


@pytest.mark.parametrize(
    ("request_body", "code", "param"),
    [
        pytest.param(body(previous_response_id={}), Code.INVALID_REQUEST, "previous_response_id", id="an id that is no text"),
        pytest.param(body(store="no"), Code.INVALID_REQUEST, "store", id="store that is no boolean"),
        pytest.param(body(previous_response_id="resp_1"), Code.UNSUPPORTED, "previous_response_id", id="an earlier response"),
        pytest.param(body(conversation="c"), Code.UNSUPPORTED, "conversation", id="a conversation"),
        pytest.param(body(background=True), Code.UNSUPPORTED, "background", id="background"),
        pytest.param(body(prompt={"id": "p"}), Code.UNSUPPORTED, "prompt", id="a prompt template"),
        pytest.param(body(tools=[{"type": "web_search"}]), Code.UNSUPPORTED, "tools[0].type", id="a hosted tool"),
        pytest.param(
            body(input=[{"type": "item_reference", "id": "x"}]), Code.UNSUPPORTED, "input[0].type", id="an item by reference"
        ),
        pytest.param(body(input=[{"type": "computer_call"}]), Code.UNSUPPORTED, "input[0].type", id="a hosted tool's call"),
        pytest.param(
            body(input=[item({"type": "input_file", "file_id": "f"})]), Code.UNSUPPORTED, "input[0].content[0].type", id="a file"
        ),
        pytest.param(
            body(input=[item({"type": "input_image", "file_id": "f"})]),
            Code.UNSUPPORTED,
            "input[0].content[0].file_id",
            id="an image by file id",
        ),
        pytest.param(
            body(tools=[FUNCTION], tool_choice={"type": "allowed_tools"}),
            Code.UNSUPPORTED,
            "tool_choice.type",
            id="a choice among tools",
        ),
        pytest.param(body(input=None), Code.INVALID_REQUEST, "input", id="no input"),
        pytest.param(body(input=[]), Code.INVALID_REQUEST, "input", id="empty input"),
        pytest.param(body(input=[{"role": "bot", "content": "x"}]), Code.INVALID_REQUEST, "input[0].role", id="role"),
        pytest.param(
            body(input=[{"type": "function_call", "call_id": "a"}]), Code.INVALID_REQUEST, "input[0].name", id="a nameless call"
        ),
        pytest.param(body(tool_choice="required"), Code.INVALID_REQUEST, "tool_choice", id="a choice of nothing"),
        pytest.param(body(max_output_tokens=0), Code.INVALID_REQUEST, "max_output_tokens", id="no room"),
        pytest.param(
            body(text={"format": {"type": "json_schema", "name": "n"}}),
            Code.INVALID_REQUEST,
            "text.format.schema",
            id="no schema",
        ),
    ],
)
def test_what_is_wrong_or_not_served_is_named(request_body: bytes, code: Code, param: str) -> None:
    with pytest.raises(SitsError) as caught:
        RESPONSES.read(request_body)
    assert (caught.value.code, caught.value.param) == (code, param)


def stream(ask: Ask, *said: Event) -> list[Any]:
    encoder = RESPONSES.encoder(ask, IDENTITY)
    wire = b"".join([*map(encoder.feed, said), encoder.close()])
    found = [(event.event, json.loads(event.data)) for event in sse.EventDecoder().feed(wire)]
    assert [name for name, _ in found] == [value["type"] for _, value in found]
    assert [value["sequence_number"] for _, value in found] == list(range(len(found)))
    for _, value in found:
        STRICT.validate_json(json.dumps(value), strict=True)
    return [value for _, value in found]


def brief(values: list[Any]) -> list[Any]:
    """The events between the opening two and the last: their type, where they belong, and what they say."""
    kept = ("output_index", "content_index", "summary_index", "delta", "text", "refusal", "arguments")
    return [(value["type"].removeprefix("response."), *(value[key] for key in kept if key in value)) for value in values[2:-1]]


def test_text_has_the_whole_sequence_of_events() -> None:
    used = Used(Usage(input=0, output=2, cached=0, reasoning=1))
    values = stream(inner(stream=True), Started("up"), Text("你"), Text("好"), Finish("stop"), used)
    message = {"type": "message", "id": "msg_abc_0", "role": "assistant"}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    full = {**part, "text": "你好"}
    about = {"item_id": "msg_abc_0", "output_index": 0}
    assert [{key: value for key, value in each.items() if key != "sequence_number"} for each in values[2:-1]] == [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**message, "content": [], "status": "in_progress"},
        },
        {"type": "response.content_part.added", **about, "content_index": 0, "part": part},
        {"type": "response.output_text.delta", **about, "content_index": 0, "delta": "你", "logprobs": []},
        {"type": "response.output_text.delta", **about, "content_index": 0, "delta": "好", "logprobs": []},
        {"type": "response.output_text.done", **about, "content_index": 0, "text": "你好", "logprobs": []},
        {"type": "response.content_part.done", **about, "content_index": 0, "part": full},
        {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": {**message, "content": [full], "status": "completed"},
        },
    ]
    assert [value["type"] for value in values[:2]] == ["response.created", "response.in_progress"]
    assert values[-1]["type"] == "response.completed"
    assert values[-1]["response"]["usage"] == {
        "input_tokens": 0,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 2,
    }


def test_reasoning_comes_as_text_and_closes_with_its_signature() -> None:
    values = stream(inner(stream=True), Reasoning("嗯"), Reasoning("", signature="c2ln"), Reasoning("b"), Finish("stop"))
    assert brief(values) == [
        ("output_item.added", 0),
        ("content_part.added", 0, 0),
        ("reasoning_text.delta", 0, 0, "嗯"),
        ("reasoning_text.done", 0, 0, "嗯"),
        ("content_part.done", 0, 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("content_part.added", 1, 0),
        ("reasoning_text.delta", 1, 0, "b"),
        ("reasoning_text.done", 1, 0, "b"),
        ("content_part.done", 1, 0),
        ("output_item.done", 1),
    ]
    first = values[-1]["response"]["output"][0]
    assert (first["encrypted_content"], first["content"], first["summary"]) == (
        "c2ln",
        [{"type": "reasoning_text", "text": "嗯"}],
        [],
    )


def test_reasoning_comes_as_a_summary_to_a_client_that_asked_for_one() -> None:
    ask = inner(stream=True, extra={"reasoning": {"summary": "auto"}})
    values = stream(ask, Reasoning("嗯"), Text("x"), Finish("stop"))
    assert brief(values)[:6] == [
        ("output_item.added", 0),
        ("reasoning_summary_part.added", 0, 0),
        ("reasoning_summary_text.delta", 0, 0, "嗯"),
        ("reasoning_summary_text.done", 0, 0, "嗯"),
        ("reasoning_summary_part.done", 0, 0),
        ("output_item.done", 0),
    ]
    assert values[-1]["response"]["output"][0]["summary"] == [{"type": "summary_text", "text": "嗯"}]


def test_interleaved_calls_stay_open_side_by_side() -> None:
    values = stream(
        inner(stream=True),
        ToolCall(0, "a", "look", '{"q":'),
        ToolCall(1, None, "walk"),
        ToolCall(0, arguments="1}"),
        Finish("tool_calls"),
    )
    assert brief(values) == [
        ("output_item.added", 0),
        ("function_call_arguments.delta", 0, '{"q":'),
        ("output_item.added", 1),
        ("function_call_arguments.delta", 0, "1}"),
        ("function_call_arguments.done", 0, '{"q":1}'),
        ("output_item.done", 0),
        ("function_call_arguments.delta", 1, "{}"),
        ("function_call_arguments.done", 1, "{}"),
        ("output_item.done", 1),
    ]
    call = {"type": "function_call", "status": "completed"}
    assert values[-1]["response"]["output"] == [
        {**call, "id": "fc_abc_0", "call_id": "a", "name": "look", "arguments": '{"q":1}'},
        {**call, "id": "fc_abc_1", "call_id": "call_abc_1", "name": "walk", "arguments": "{}"},
    ]


def test_a_refusal_is_a_part_of_the_message() -> None:
    values = stream(inner(stream=True), Text("well"), Refusal("no"), Finish("refusal"))
    assert brief(values)[3:-1] == [
        ("output_text.done", 0, 0, "well"),
        ("content_part.done", 0, 0),
        ("content_part.added", 0, 1),
        ("refusal.delta", 0, 1, "no"),
        ("refusal.done", 0, 1, "no"),
        ("content_part.done", 0, 1),
    ]
    assert values[-1]["response"]["status"] == "completed"


def test_log_probabilities_are_in_the_deltas_and_in_the_part() -> None:
    top = {"token": "你", "logprob": -0.5, "bytes": [228, 189, 160]}
    entry = {**top, "top_logprobs": [top]}
    values = stream(inner(stream=True), Text("你", logprobs={"content": [entry]}), Finish("stop"))
    assert values[4]["logprobs"] == values[-1]["response"]["output"][0]["content"][0]["logprobs"] == [entry]


@pytest.mark.parametrize(
    ("finish", "status", "reason"),
    [
        (Finish("stop"), "completed", None),
        (Finish("tool_calls"), "completed", None),
        (Finish("refusal"), "completed", None),
        (Finish("pause"), "completed", None),
        (Finish("length"), "incomplete", "max_output_tokens"),
        (Finish("content_filter"), "incomplete", "content_filter"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_every_finish_has_its_last_event(finish: Finish, status: str, reason: str | None) -> None:
    values = stream(inner(stream=True), Text("x"), finish)
    assert values[-1]["type"] == f"response.{status}"
    response = values[-1]["response"]
    assert response["incomplete_details"] == ({"reason": reason} if reason else None)
    assert (response["status"], response["output"][0]["status"], response["usage"]) == (status, status, None)
    assert json.loads(RESPONSES.whole(inner(), [Text("x"), finish], IDENTITY)) == response


def test_a_figure_that_is_missing_beside_another_is_marked() -> None:
    usage = stream(inner(stream=True), Text("x"), Finish("stop"), Used(Usage(output=0)))[-1]["response"]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["sits_estimated"]) == (0, 0, True)


def test_the_answer_repeats_what_was_asked() -> None:
    ask = RESPONSES.read(
        body(
            instructions="i",
            metadata={"k": "v"},
            tools=[FUNCTION],
            tool_choice={"type": "function", "name": "look"},
            parallel_tool_calls=False,
            temperature=0.5,
            max_output_tokens=20,
            reasoning={"effort": "low"},
            text={"format": {"type": "text"}},
            store=False,
            truncation="disabled",
            user="u",
        )
    )
    answer = json.loads(RESPONSES.whole(ask, [Started(), Text("x"), Finish("stop")], IDENTITY))
    Response.model_validate_json(json.dumps(answer), strict=True)
    assert {key: value for key, value in answer.items() if key != "output"} == {
        "id": "resp_abc",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": "i",
        "metadata": {"k": "v"},
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "text"}},
        "truncation": "disabled",
        "store": False,
        "max_output_tokens": 20,
        "model": "served",
        "parallel_tool_calls": False,
        "previous_response_id": None,
        "temperature": 0.5,
        "tool_choice": {"type": "function", "name": "look"},
        "tools": [FUNCTION],
        "top_logprobs": None,
        "top_p": None,
        "usage": None,
        "user": "u",
    }


def test_an_error_in_a_stream_is_raised_by_the_sdk() -> None:
    encoder = RESPONSES.encoder(inner(stream=True), IDENTITY)
    error = RESPONSES.error_event(SitsError(Code.STREAM_BROKEN, "断了", param="p"), "req-1")
    value = json.loads(sse.EventDecoder().feed(error)[0].data)
    STRICT.validate_json(json.dumps(value), strict=True)
    assert (value["type"], value["code"], value["message"], value["param"]) == ("error", "stream_broken", "断了", "p")
    wire = encoder.feed(Text("half")) + error

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=wire, headers={"content-type": "text/event-stream"}, request=request)

    client = httpx2.Client(transport=httpx2.MockTransport(answer))
    sdk = openai.OpenAI(api_key="k", base_url="http://sits.test/v1", http_client=client, max_retries=0)
    with (
        pytest.raises(openai.APIError, match="断了"),
        sdk.responses.stream(model="m", input="x") as found,
    ):
        for _ in found:
            pass
