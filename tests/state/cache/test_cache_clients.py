"""The streams that are made of kept answers, read by the clients that people use."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import httpx2
import openai

from sits import dialects
from sits.inner.ask import Operation
from sits.state.cache import replay
from sits.state.cache.answer import Answer

MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m-1",
    "content": [
        {"type": "thinking", "thinking": "想", "signature": "sig"},
        {"type": "text", "text": "巴黎"},
        {"type": "tool_use", "id": "toolu_1", "name": "天气", "input": {"城市": "巴黎"}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 2},
}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 5,
    "status": "completed",
    "model": "m-1",
    "output": [
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "巴黎", "annotations": []}],
        },
        {"id": "fc_1", "type": "function_call", "status": "completed", "call_id": "c", "name": "f", "arguments": '{"a":1}'},
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "天气", "arguments": '{"城市":"巴黎"}'}}
CHAT: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 5,
    "model": "m-1",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "看看", "refusal": None, "tool_calls": [CALL]},
            "logprobs": None,
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}


def server(http: Any, operation: Operation, body: dict[str, Any]) -> Any:
    """A server that answers each request from a cache; `http` is the flavour of httpx that the client is built on."""

    def handle(request: Any) -> Any:
        answer = Answer(operation, json.dumps(body).encode(), 0.0, 1.0)
        stream = replay.streamed(answer, dialects.client(operation).read(request.content), request.content)
        return http.Response(200, headers={"content-type": "text/event-stream"}, content=stream)

    return http.Client(transport=http.MockTransport(handle))


def test_anthropics_client_reads_a_kept_message() -> None:
    client = anthropic.Anthropic(api_key="k", base_url="http://cache", http_client=server(httpx2, "messages", MESSAGE))
    with client.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}]) as stream:
        found = stream.get_final_message()
    said = found.model_dump(mode="json", exclude_unset=True)
    assert {name: said[name] for name in MESSAGE} == MESSAGE


def test_openais_client_reads_a_kept_response() -> None:
    client = openai.OpenAI(api_key="k", base_url="http://cache/v1", http_client=server(httpx, "responses", RESPONSE))
    with client.responses.stream(model="m", input="x") as stream:
        kinds = [event.type for event in stream]
        found = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert found.output_text == "巴黎"
    assert [item.type for item in found.output] == ["message", "function_call"]


def test_openais_client_reads_a_kept_chat() -> None:
    client = openai.OpenAI(api_key="k", base_url="http://cache/v1", http_client=server(httpx, "chat", CHAT))
    with client.chat.completions.stream(
        model="m", messages=[{"role": "user", "content": "x"}], stream_options={"include_usage": True}
    ) as stream:
        found = stream.get_final_completion()
    said = found.choices[0].message
    assert (found.id, said.content, found.choices[0].finish_reason) == ("chatcmpl-1", "看看", "tool_calls")
    assert said.tool_calls is not None
    assert [(call.id, call.function.name, call.function.arguments) for call in said.tool_calls] == [
        ("call_1", "天气", '{"城市":"巴黎"}')
    ]
    assert found.usage is not None
    assert found.usage.total_tokens == 5
