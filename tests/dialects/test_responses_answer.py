"""A whole response where a stream was asked for becomes one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sits.dialects.base import Identity
from sits.dialects.openai_upstream import OPENAI, VLLM
from sits.dialects.responses_client import RESPONSES
from sits.inner.errors import Code, SitsError
from sits.inner.event import Event, Finish, Reasoning, Refusal, Started, Text, ToolCall, Usage, Used

ASK = RESPONSES.read(b'{"model":"m","input":"hi","stream":true}')
STARTED = Started("resp_1", "m", 7)


def response(*output: Any, status: str = "completed", **more: Any) -> bytes:
    value = {"id": "resp_1", "object": "response", "created_at": 7, "model": "m", "status": status, "output": output}
    return json.dumps({**value, **more}).encode()


def message(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "status": "completed", "content": parts}


CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": '{"a":1}'}
THOUGHT = {
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "想"}],
    "content": [],
    "encrypted_content": "sealed",
}
USAGE = {"input_tokens": 5, "output_tokens": 7, "output_tokens_details": {"reasoning_tokens": 3}}


@pytest.mark.parametrize(
    ("body", "events"),
    [
        pytest.param(
            response(message({"type": "output_text", "text": "你好"}), usage=USAGE),
            [STARTED, Text("你好"), Finish("stop"), Used(Usage(5, 7, None, 3))],
            id="text and usage",
        ),
        pytest.param(
            response(THOUGHT, CALL, {**CALL, "call_id": "call_2"}),
            [
                STARTED,
                Reasoning("想"),
                Reasoning("", signature="sealed"),
                ToolCall(0, "call_1", "f", '{"a":1}'),
                ToolCall(1, "call_2", "f", '{"a":1}'),
                Finish("tool_calls"),
            ],
            id="reasoning and calls",
        ),
        pytest.param(
            response(message({"type": "refusal", "refusal": "no"}), {"type": "web_search_call", "id": "ws"}, "odd"),
            [STARTED, Refusal("no"), Finish("stop")],
            id="a refusal beside what has no word",
        ),
        pytest.param(
            response(
                message({"type": "output_text", "text": "a"}),
                status="incomplete",
                incomplete_details={"reason": "max_output_tokens"},
            ),
            [STARTED, Text("a"), Finish("length")],
            id="cut by its limit",
        ),
    ],
)
def test_a_whole_response_becomes_events(body: bytes, events: list[Event]) -> None:
    assert OPENAI.whole(ASK, body) == events


def test_the_events_make_a_stream_with_the_same_text() -> None:
    encoder = RESPONSES.encoder(ASK, Identity("1", "m", 7))
    events = OPENAI.whole(ASK, response(message({"type": "output_text", "text": "你好"})))
    stream = b"".join([*map(encoder.feed, events), encoder.close()]).decode()
    assert '"delta":"你好"' in stream
    assert stream.rstrip().split("\n\n")[-1].startswith("event: response.completed\n")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(response(error={"message": "no", "code": "server_error"}), Code.UPSTREAM_ERROR, id="an error with a 200"),
        pytest.param(response(error={"message": "slow", "code": "rate_limit_exceeded"}), Code.UPSTREAM_RATE_LIMITED, id="quota"),
        pytest.param(response(status="failed"), Code.UPSTREAM_ERROR, id="failed"),
        pytest.param(b'{"object":"response"}', Code.UPSTREAM_BROKEN, id="no output"),
        pytest.param(b"<html>", Code.UPSTREAM_BROKEN, id="not JSON"),
    ],
)
def test_what_is_no_answer_is_an_error(body: bytes, code: Code) -> None:
    with pytest.raises(SitsError) as found:
        OPENAI.whole(ASK, body)
    assert found.value.code is code


def test_a_server_of_chat_is_read_as_one() -> None:
    body = {"id": "c", "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}]}
    for dialect in (OPENAI, VLLM):
        assert dialect.whole(ASK, json.dumps(body).encode()) == [Started("c"), Text("a"), Finish("stop")]
