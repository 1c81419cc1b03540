from __future__ import annotations

import json
from typing import Any

import pytest

from sits import dialects
from sits.dialects.base import Identity, Reading
from sits.dialects.responses_client import RESPONSES
from sits.dialects.responses_watch import read_whole, watch_responses
from sits.dialects.watch import Mark
from sits.inner.ask import Ask
from sits.inner.errors import Code
from sits.inner.event import Finish, Reasoning, Started, Text, ToolCall, Usage, Used

from .cuts import bytewise

NOTHING, CONTENT = Mark(), Mark(content=True)
USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 9,
}
INNER = Usage(input=9, output=0, cached=3, reasoning=0, cache_written=0)


def response(status: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{status}", "response": {"id": "r", "status": status, "error": None, "output": [], **fields}}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        pytest.param(response("created", usage=None), NOTHING, id="created"),
        pytest.param({"type": "response.output_item.added", "item": {"type": "message"}}, NOTHING, id="a message begins"),
        pytest.param({"type": "response.output_item.added", "item": {"type": "function_call"}}, CONTENT, id="a call begins"),
        pytest.param({"type": "response.output_item.added", "item": {"type": "web_search_call"}}, CONTENT, id="a hosted call"),
        pytest.param({"type": "response.content_part.added", "part": {}}, NOTHING, id="a part begins"),
        pytest.param({"type": "response.output_text.delta", "delta": "你"}, CONTENT, id="text"),
        pytest.param({"type": "response.output_text.delta", "delta": ""}, NOTHING, id="empty text"),
        pytest.param({"type": "response.reasoning_text.delta", "delta": "h"}, CONTENT, id="reasoning"),
        pytest.param({"type": "response.reasoning_summary_text.delta", "delta": "h"}, CONTENT, id="summary"),
        pytest.param({"type": "response.refusal.delta", "delta": "h"}, CONTENT, id="refusal"),
        pytest.param({"type": "response.function_call_arguments.delta", "delta": "{"}, CONTENT, id="arguments"),
        pytest.param({"type": "response.of_later_days.delta", "delta": {"x": 1}}, CONTENT, id="a delta of later days"),
        pytest.param({"type": "response.output_text.done", "text": "x"}, NOTHING, id="text done"),
        pytest.param(response("completed", usage=USAGE), Mark(finish="stop", usage=INNER, done=True), id="completed"),
        pytest.param(
            response("completed", output=[{"type": "function_call"}]), Mark(finish="tool_calls", done=True), id="with a call"
        ),
        pytest.param(
            response("incomplete", incomplete_details={"reason": "max_output_tokens"}),
            Mark(finish="length", done=True),
            id="too long",
        ),
        pytest.param(
            response("incomplete", incomplete_details={"reason": "content_filter"}),
            Mark(finish="content_filter", done=True),
            id="filtered",
        ),
        pytest.param({"type": "response.completed"}, Mark(broken=True), id="an end that is none"),
        pytest.param([], Mark(broken=True), id="no object"),
        pytest.param({}, Mark(broken=True), id="no type"),
    ],
)
def test_an_event_is_marked(event: Any, expected: Mark) -> None:
    assert watch_responses("message", json.dumps(event).encode()) == expected


def test_what_is_no_json_is_broken() -> None:
    assert watch_responses("response.output_text.delta", b"{oops") == Mark(broken=True)


@pytest.mark.parametrize(
    ("event", "code"),
    [
        pytest.param({"type": "error", "code": "rate_limit_exceeded", "message": "slow"}, Code.UPSTREAM_RATE_LIMITED, id="flat"),
        pytest.param({"type": "error", "error": {"code": "server_error", "message": "x"}}, Code.UPSTREAM_ERROR, id="nested"),
        pytest.param(
            response("failed", error={"code": "server_error", "message": "x"}), Code.UPSTREAM_ERROR, id="a failed response"
        ),
        pytest.param(response("failed"), Code.UPSTREAM_ERROR, id="a failure without a reason"),
    ],
)
def test_an_error_is_a_fault(event: Any, code: Code) -> None:
    mark = watch_responses("message", json.dumps(event).encode())
    assert mark.fault is not None
    assert mark == Mark(fault=mark.fault)
    assert mark.fault.code is code


ANSWER = (
    Started("up"),
    Reasoning("想"),
    Text("Hello 世界"),
    ToolCall(0, "a", "f", "{}"),
    Finish("tool_calls"),
    Used(Usage(input=9, output=0, cached=3)),
)


def wire() -> bytes:
    ask = Ask(operation="responses", model="m", stream=True)
    encoder = RESPONSES.encoder(ask, Identity("abc", "served", 1))
    return b"".join([*map(encoder.feed, ANSWER), encoder.close()])


@pytest.mark.parametrize("split", [lambda whole: [whole], bytewise], ids=["whole", "byte by byte"])
def test_a_stream_of_our_own_is_relayed_as_it_came(split: Any) -> None:
    relay = dialects.relay("responses", True)
    assert b"".join([*map(relay.feed, split(wire())), relay.close()]) == wire()
    assert (relay.committed, relay.finished, relay.fault, relay.finish) == (True, True, None, "tool_calls")
    assert relay.usage == INNER


def test_a_whole_answer_is_read() -> None:
    body = RESPONSES.whole(Ask(operation="responses", model="m"), ANSWER, Identity("abc", "served", 1))
    assert read_whole("responses", body) == Reading(INNER, "tool_calls")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", Code.UPSTREAM_BROKEN),
        (b"[]", Code.UPSTREAM_BROKEN),
        (b"{}", Code.UPSTREAM_BROKEN),
        (b'{"status":"failed","output":[],"error":{"code":"server_error","message":"x"}}', Code.UPSTREAM_ERROR),
    ],
)
def test_what_is_no_answer_is_a_fault(body: bytes, code: Code) -> None:
    fault = read_whole("responses", body).fault
    assert fault is not None
    assert fault.code is code
