"""Model servers that call a tool: asked about the weather they call it for two cities at once, and tell what it answered.

One speaks as OpenAI's API does, one as Anthropic's. What they tell is put together from the results in the order of their own
calls, so that a result under a wrong id, a lost call or lost arguments cannot go unseen.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from serving import as_json
from sits.engines.scripted import Received, chunked

CITIES = ("Paris", "北京")
CELSIUS = {"Paris": "21 °C", "北京": "18 °C"}
TOLD = "Paris: 21 °C. 北京: 18 °C."
QUESTION = "How warm is it in Paris and in 北京?"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def told(results: dict[str, str], ids: Sequence[str]) -> str:
    return " ".join(f"{city}: {results[id_]}." for city, id_ in zip(CITIES, ids, strict=True))


def openai_server(request: Received) -> bytes:
    """Answers `/v1/chat/completions`."""
    assert request.path == "/v1/chat/completions"
    body = json.loads(request.body)
    (tool,) = body["tools"]
    assert (tool["type"], tool["function"]["name"], tool["function"]["parameters"]) == ("function", "weather", SCHEMA)
    ids = ["call_paris", "call_beijing"]
    results = {message["tool_call_id"]: message["content"] for message in body["messages"] if message["role"] == "tool"}
    usage = {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42}
    head = {"id": "chatcmpl-1", "created": 1, "model": body["model"]}
    if results:
        called = [call for message in body["messages"] for call in message.get("tool_calls") or ()]
        assert [(call["id"], json.loads(call["function"]["arguments"])["city"]) for call in called] == [
            *zip(ids, CITIES, strict=True)
        ]
        text, finish = told(results, ids), "stop"
        message: dict[str, Any] = {"role": "assistant", "content": text}
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": text[:7]}, {"content": text[7:]}]
    else:
        finish = "tool_calls"
        calls = [(id_, json.dumps({"city": city}, ensure_ascii=False)) for id_, city in zip(ids, CITIES, strict=True)]
        made = [{"id": id_, "type": "function", "function": {"name": "weather", "arguments": text}} for id_, text in calls]
        message = {"role": "assistant", "content": None, "tool_calls": made}
        opened = [{"index": i, **one, "function": {"name": "weather", "arguments": ""}} for i, one in enumerate(made)]
        # The arguments of both come by turns, in pieces: servers that decode calls together do that.
        halves = [(i, half) for cut in (slice(0, 9), slice(9, None)) for i, (_, text) in enumerate(calls) for half in [text[cut]]]
        pieces = [{"tool_calls": [{"index": i, "function": {"arguments": half}}]} for i, half in halves]
        deltas = [{"role": "assistant", "content": None}, *({"tool_calls": [one]} for one in opened), *pieces]
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return as_json({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
    head["object"] = "chat.completion.chunk"
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks += [{**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}, {**head, "choices": [], "usage": usage}]
    return _streamed([*(f"data: {json.dumps(one, ensure_ascii=False)}\n\n" for one in chunks), "data: [DONE]\n\n"])


def anthropic_server(request: Received) -> bytes:
    """Answers `/v1/messages`."""
    assert request.path == "/v1/messages"
    body = json.loads(request.body)
    (tool,) = body["tools"]
    assert (tool["name"], tool["input_schema"]) == ("weather", SCHEMA)
    ids = ["toolu_paris", "toolu_beijing"]
    blocks = [part for message in body["messages"] if isinstance(message["content"], list) for part in message["content"]]
    results = {part["tool_use_id"]: _text(part["content"]) for part in blocks if part["type"] == "tool_result"}
    if results:
        called = [(part["id"], part["input"]["city"]) for part in blocks if part["type"] == "tool_use"]
        assert called == [*zip(ids, CITIES, strict=True)]
        content: list[dict[str, Any]] = [{"type": "text", "text": told(results, ids)}]
        reason = "end_turn"
    else:
        calls = zip(ids, CITIES, strict=True)
        content = [{"type": "tool_use", "id": id_, "name": "weather", "input": {"city": city}} for id_, city in calls]
        reason = "tool_use"
    usage = {"input_tokens": 30, "output_tokens": 12}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "stop_sequence": None}
    if not body.get("stream"):
        return as_json({**head, "content": content, "stop_reason": reason, "usage": usage})
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**head, "content": [], "stop_reason": None, "usage": usage}}
    ]
    for index, block in enumerate(content):
        events += _block(index, block)
    events.append(
        {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": {"output_tokens": 12}}
    )
    events.append({"type": "message_stop"})
    return _streamed([f"event: {one['type']}\ndata: {json.dumps(one, ensure_ascii=False)}\n\n" for one in events])


def _block(index: int, block: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of one content block, its text or its input cut in two."""
    if block["type"] == "text":
        empty, text, kind, field = {**block, "text": ""}, block["text"], "text_delta", "text"
    else:
        empty, text, kind, field = (
            {**block, "input": {}},
            json.dumps(block["input"], ensure_ascii=False),
            "input_json_delta",
            "partial_json",
        )
    deltas = [{"type": kind, field: piece} for piece in (text[:9], text[9:])]
    return [
        {"type": "content_block_start", "index": index, "content_block": empty},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _streamed(events: list[str]) -> bytes:
    return chunked(200, *(event.encode() for event in events), fields=[("content-type", "text/event-stream")])
