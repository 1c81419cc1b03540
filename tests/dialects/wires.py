"""Streams and answers as servers of the OpenAI family write them."""

from __future__ import annotations

import json
from typing import Any


def sse(*values: Any, done: bool = True) -> bytes:
    body = "".join(f"data: {json.dumps(value, ensure_ascii=False)}\n\n" for value in values)
    return (body + ("data: [DONE]\n\n" if done else "")).encode()


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, *, index: int = 0, **fields: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta or {}, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1700000000, "model": "up", "choices": [choice], **fields}


USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 4,
    "total_tokens": 13,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 0},
}
USAGE_CHUNK = {"id": "c1", "object": "chat.completion.chunk", "created": 1700000000, "model": "up", "choices": [], "usage": USAGE}
ROLE = chunk({"role": "assistant", "content": ""})
HELLO = chunk({"content": "你好"})
WORLD = chunk({"content": " world"})
STOP = chunk({}, "stop")


def text_chunk(text: str, finish: str | None = None, index: int = 0, **fields: Any) -> dict[str, Any]:
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
    return {"id": "t1", "object": "text_completion", "created": 1700000000, "model": "up", "choices": [choice], **fields}
