"""Streams and answers as Anthropic's, TGI's and Ollama's servers write them: one answer of reasoning, text and two calls."""

from __future__ import annotations

import json
from typing import Any

from .wires import chunk, sse


def events(*values: dict[str, Any]) -> bytes:
    """Anthropic's events: each names its type twice."""
    return "".join(f"event: {v['type']}\ndata: {json.dumps(v, ensure_ascii=False)}\n\n" for v in values).encode()


def lines(*values: dict[str, Any]) -> bytes:
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values).encode()


def start(usage: dict[str, Any] | None = None) -> dict[str, Any]:
    message = {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }
    return {"type": "message_start", "message": {**message, "usage": usage or {"input_tokens": 9, "output_tokens": 1}}}


def block(index: int, head: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": head}


def delta(index: int, said: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": said}


def text(index: int, said: str) -> dict[str, Any]:
    return delta(index, {"type": "text_delta", "text": said})


def arguments(index: int, said: str) -> dict[str, Any]:
    return delta(index, {"type": "input_json_delta", "partial_json": said})


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def end(reason: str = "end_turn", usage: dict[str, Any] | None = None, sequence: str | None = None) -> list[dict[str, Any]]:
    said = {"stop_reason": reason, "stop_sequence": sequence}
    return [{"type": "message_delta", "delta": said, "usage": usage or {"output_tokens": 4}}, {"type": "message_stop"}]


PING = {"type": "ping"}
THINKING = block(0, {"type": "thinking", "thinking": "", "signature": ""})
USE_A = {"type": "tool_use", "id": "call_a", "name": "look", "input": {}}
USE_B = {"type": "tool_use", "id": "call_b", "name": "walk", "input": {}}

ANTHROPIC_STREAM = events(
    start({"input_tokens": 6, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 0, "output_tokens": 1}),
    PING,
    THINKING,
    delta(0, {"type": "thinking_delta", "thinking": "想一想"}),
    stop(0),
    block(1, {"type": "text", "text": ""}),
    text(1, "Hello "),
    text(1, "世界"),
    stop(1),
    block(2, USE_A),
    arguments(2, ""),
    arguments(2, '{"q":'),
    arguments(2, '"x"}'),
    stop(2),
    block(3, USE_B),
    stop(3),
    *end("tool_use", {"output_tokens": 7}),
)
ANTHROPIC_WHOLE = json.dumps(
    {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [
            {"type": "thinking", "thinking": "想一想", "signature": ""},
            {"type": "text", "text": "Hello 世界"},
            {**USE_A, "input": {"q": "x"}},
            USE_B,
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 6,
            "cache_read_input_tokens": 3,
            "cache_creation_input_tokens": 0,
            "output_tokens": 7,
        },
    }
).encode()


def call(index: int, call_id: str, name: str, said: str) -> dict[str, Any]:
    return {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": said}}


_OPENAI_USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
}
OPENAI_STREAM = sse(
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": "想一想"}),
    chunk({"content": "Hello "}),
    chunk({"content": "世界"}),
    chunk({"tool_calls": [call(0, "call_a", "look", '{"q":')]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"x"}'}}]}),
    chunk({"tool_calls": [call(1, "call_b", "walk", "{}")]}),
    chunk({}, "tool_calls"),
    {"id": "c1", "object": "chat.completion.chunk", "created": 1700000000, "model": "up", "choices": [], "usage": _OPENAI_USAGE},
)


def line(message: dict[str, Any], **fields: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": "", **message}
    return {"model": "llama3", "created_at": "2026-01-01T00:00:00.1Z", "message": said, "done": False, **fields}


_CALLS = [
    {"id": "call_a", "function": {"index": 0, "name": "look", "arguments": {"q": "x"}}},
    {"id": "call_b", "function": {"index": 1, "name": "walk", "arguments": {}}},
]
_FIGURES = {"total_duration": 5, "prompt_eval_count": 9, "eval_count": 7}
OLLAMA_STREAM = lines(
    line({"thinking": "想一想"}),
    line({"content": "Hello "}),
    line({"content": "世界"}),
    line({"tool_calls": _CALLS[:1]}),
    line({"tool_calls": _CALLS[1:]}),
    line({}, done=True, done_reason="stop", **_FIGURES),
)
OLLAMA_WHOLE = json.dumps(
    line({"content": "Hello 世界", "thinking": "想一想", "tool_calls": _CALLS}, done=True, done_reason="stop", **_FIGURES)
).encode()
