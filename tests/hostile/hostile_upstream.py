"""A model server of every family, that answers each honest question in the right shape."""

from __future__ import annotations

import json
from typing import Any

from sits.engines.scripted import AGAIN, LAST_CHUNK, READ, Received, ScriptedServer, answer, chunked

JSON = ("content-type", "application/json")
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
CLAUDE = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "x",
    "content": [],
    "stop_reason": None,
    "usage": {"input_tokens": 3},
}


def server() -> ScriptedServer:
    return ScriptedServer([READ, reply, AGAIN])


def reply(request: Received) -> bytes:
    try:
        asked = json.loads(request.body or b"{}")
    except ValueError:
        asked = {}
    path = request.path.partition("?")[0]
    stream = isinstance(asked, dict) and asked.get("stream") is True
    if path == "/v1/chat/completions":
        return _openai("chat.completion", {"delta": {"role": "assistant", "content": "你好"}}, stream)
    if path == "/v1/completions":
        return _openai("text_completion", {"text": "hi"}, stream)
    if path == "/v1/embeddings":
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
        return _whole({"object": "list", "model": "m", "data": data, "usage": {"prompt_tokens": 3, "total_tokens": 3}})
    if path == "/v1/messages":
        return _claude(stream)
    if path == "/v1/messages/count_tokens":
        return _whole({"input_tokens": 3})
    if path == "/api/embed":
        return _whole({"model": "m", "embeddings": [[0.5, 0.25]], "prompt_eval_count": 3})
    if path in ("/api/chat", "/api/generate"):
        said = {"message": {"role": "assistant", "content": "hi"}} if path == "/api/chat" else {"response": "hi"}
        last = {"model": "m", **said, "done": True, "done_reason": "stop", "prompt_eval_count": 3, "eval_count": 2}
        if not stream:
            return _whole(last)
        lines = [json.dumps(one).encode() + b"\n" for one in ({**last, "done": False}, last)]
        return chunked(200, *lines, fields=[("content-type", "application/x-ndjson")])
    if path in ("/generate", "/generate_stream"):
        details = {"finish_reason": "length", "generated_tokens": 2}
        if path == "/generate":
            return _whole({"generated_text": "hi", "details": details})
        token = {"index": 1, "token": {"id": 1, "text": "hi", "logprob": -0.5, "special": False}}
        last = {**token, "generated_text": "hi", "details": details}
        return _events({**token, "generated_text": None, "details": None}, last)
    if path in ("/health", "/v1/models"):
        return _whole({"object": "list", "data": []})
    return answer(404, b'{"error":{"message":"not here"}}', JSON)


def _whole(value: Any) -> bytes:
    return answer(200, json.dumps(value).encode(), JSON)


def _events(*values: Any, end: bytes = b"") -> bytes:
    pieces = [b"data: %b\n\n" % json.dumps(value).encode() for value in values]
    return chunked(200, *pieces, *([end] if end else []), fields=[("content-type", "text/event-stream")], end=False) + LAST_CHUNK


def _openai(kind: str, choice: dict[str, Any], stream: bool) -> bytes:
    base = {"id": "x", "created": 1, "model": "m"}
    choice = {"index": 0, "finish_reason": None, **choice}
    if stream:
        base["object"] = f"{kind}.chunk" if kind.startswith("chat") else kind
        empty = {"delta": {}} if "delta" in choice else {"text": ""}
        last = {**choice, **empty, "finish_reason": "stop"}
        return _events(
            {**base, "choices": [choice]},
            {**base, "choices": [last]},
            {**base, "choices": [], "usage": USAGE},
            end=b"data: [DONE]\n\n",
        )
    if "delta" in choice:
        choice["message"] = choice.pop("delta")
    return _whole({**base, "object": kind, "choices": [{**choice, "finish_reason": "stop"}], "usage": USAGE})


def _claude(stream: bool) -> bytes:
    block = {"type": "text", "text": "你好"}
    if not stream:
        return _whole({**CLAUDE, "content": [block], "stop_reason": "end_turn", "usage": {"input_tokens": 3, "output_tokens": 2}})
    return _events(
        {"type": "message_start", "message": CLAUDE},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "你好"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    )
