"""What model servers send and what clients send and see, each in its own words: one row a dialect and operation."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from sits.engines.scripted import LAST_CHUNK, READ, Script, Step, answer, chunk, chunked

SSE, LINES, JSON = "text/event-stream", "application/x-ndjson", "application/json"


def sse(value: Any, event: str = "") -> bytes:
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


def line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


class Wire(msgspec.Struct, frozen=True):
    """How one kind of server answers one operation: frames that open a stream, one piece of text, the frames that close it."""

    path: str
    whole: dict[str, Any]
    opening: bytes
    piece: bytes
    closing: bytes
    broken: bytes
    """An event that cannot be read."""
    fault: bytes
    """A quota error inside the stream."""
    stream_type: str = SSE

    def text(self, text: str) -> bytes:
        return self.piece.replace(b"TEXT", json.dumps(text, ensure_ascii=False)[1:-1].encode())

    def body(self, text: str) -> bytes:
        return json.dumps(self.whole, ensure_ascii=False).replace("TEXT", text).encode()

    def answers(self, text: str) -> bytes:
        """A whole answer."""
        return answer(200, self.body(text), ("content-type", JSON))

    def streams(self, *texts: str, end: bool = True) -> list[Step]:
        """A streamed answer, step by step."""
        pieces = [chunk(self.text(text)) for text in texts]
        closing = self.closing.replace(b"WHOLE", json.dumps("".join(texts), ensure_ascii=False)[1:-1].encode())
        return [self.head(), *pieces, *([chunk(closing), LAST_CHUNK] if end else [])]

    def head(self) -> bytes:
        opening = [self.opening] if self.opening else []
        return chunked(200, *opening, fields=[("content-type", self.stream_type)], end=False)


_QUOTA = {"message": "You exceeded your current quota", "type": "insufficient_quota", "code": "insufficient_quota"}
_USED = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


def _chat(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return sse({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


def _text(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": None}
    return sse({"id": "c1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]})


_USAGE = sse({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": _USED})
_DONE = b"data: [DONE]\n\n"
OPENAI_CHAT = Wire(
    "/v1/chat/completions",
    {
        "id": "c1", "object": "chat.completion", "created": 1, "model": "m", "usage": _USED,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "TEXT"}, "finish_reason": "stop"}],
    },
    _chat({"role": "assistant", "content": ""}),
    _chat({"content": "TEXT"}),
    _chat({}, "stop") + _USAGE + _DONE,
    b'data: {"choices": [{"index"\n\n',
    sse({"error": _QUOTA}),
)  # fmt: skip
OPENAI_TEXT = Wire(
    "/v1/completions",
    {
        "id": "c1", "object": "text_completion", "created": 1, "model": "m", "usage": _USED,
        "choices": [{"index": 0, "text": "TEXT", "finish_reason": "stop", "logprobs": None}],
    },
    _text(""),
    _text("TEXT"),
    _text("", "stop") + _USAGE + _DONE,
    b'data: {"choices": [{"index"\n\n',
    sse({"error": _QUOTA}),
)  # fmt: skip


def _response(status: str, text: str | None = None) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
    response: dict[str, Any] = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": status}
    response |= {"output": [] if text is None else [item], "error": None, "incomplete_details": None}
    if text is not None:
        response["usage"] = {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12}
    return response


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, "sequence_number": 1, **fields}, kind)


OPENAI_RESPONSES = Wire(
    "/v1/responses",
    _response("completed", "TEXT"),
    _event("response.created", response=_response("in_progress"))
    + _event("response.output_item.added", output_index=0, item={"type": "message", "id": "msg_1", "content": []}),
    _event("response.output_text.delta", item_id="msg_1", output_index=0, content_index=0, delta="TEXT"),
    _event("response.completed", response=_response("completed", "WHOLE")),
    b'event: response.output_text.delta\ndata: {"type"\n\n',
    _event("error", error=_QUOTA, **{k: v for k, v in _QUOTA.items() if k != "type"}),
)

_MESSAGE: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
ANTHROPIC = Wire(
    "/v1/messages",
    {
        **_MESSAGE, "content": [{"type": "text", "text": "TEXT"}], "stop_reason": "end_turn",
        "usage": {"input_tokens": 5, "output_tokens": 7},
    },
    sse({"type": "message_start", "message": {
        **_MESSAGE, "content": [], "stop_reason": None, "usage": {"input_tokens": 5, "output_tokens": 1}}}, "message_start")
    + sse({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}, "content_block_start")
    + sse({"type": "ping"}, "ping"),
    sse({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "TEXT"}}, "content_block_delta"),
    sse({"type": "content_block_stop", "index": 0}, "content_block_stop")
    + sse({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 7}},
          "message_delta")
    + sse({"type": "message_stop"}, "message_stop"),
    b'event: content_block_delta\ndata: {"type"\n\n',
    sse({"type": "error", "error": {"type": "rate_limit_error", "message": "You exceeded your current quota"}}, "error"),
)  # fmt: skip

_OLLAMA = {"model": "m", "created_at": "2026-01-01T00:00:00Z"}
_OLLAMA_END = {"done": True, "done_reason": "stop", "prompt_eval_count": 5, "eval_count": 7}
OLLAMA_CHAT = Wire(
    "/api/chat",
    {**_OLLAMA, "message": {"role": "assistant", "content": "TEXT"}, **_OLLAMA_END},
    line({**_OLLAMA, "message": {"role": "assistant", "content": ""}, "done": False}),
    line({**_OLLAMA, "message": {"role": "assistant", "content": "TEXT"}, "done": False}),
    line({**_OLLAMA, "message": {"role": "assistant", "content": ""}, **_OLLAMA_END}),
    b'{"message": {"role"\n',
    line({"error": "quota: rate limit reached"}),
    LINES,
)
OLLAMA_TEXT = Wire(
    "/api/generate",
    {**_OLLAMA, "response": "TEXT", **_OLLAMA_END},
    line({**_OLLAMA, "response": "", "done": False}),
    line({**_OLLAMA, "response": "TEXT", "done": False}),
    line({**_OLLAMA, "response": "", **_OLLAMA_END}),
    b'{"response"\n',
    line({"error": "quota: rate limit reached"}),
    LINES,
)


def _token(text: str, **more: Any) -> bytes:
    token = {"id": 1, "text": text, "logprob": -0.1, "special": False}
    return sse({"index": 1, "token": token, "generated_text": None, "details": None, **more})


TGI_TEXT = Wire(
    "/generate_stream",
    {
        "generated_text": "TEXT",
        "details": {"finish_reason": "eos_token", "generated_tokens": 7, "prefill": [{"id": 1}] * 5, "tokens": []},
    },
    b"",
    _token("TEXT"),
    _token("", generated_text="", details={"finish_reason": "eos_token", "generated_tokens": 7, "input_length": 5}),
    b'data: {"token"\n\n',
    sse({"error": "rate limit reached", "error_type": "overloaded"}),
)

EMBEDDING = {
    "object": "list", "model": "m", "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}],
    "usage": {"prompt_tokens": 5, "total_tokens": 5},
}  # fmt: skip
OPENAI_VECTORS = Wire("/v1/embeddings", EMBEDDING, b"", b"", b"", b"", b"")
OLLAMA_VECTORS = Wire("/api/embed", {"model": "m", "embeddings": [[0.5, -0.25]], "prompt_eval_count": 5}, b"", b"", b"", b"", b"")

WIRES: dict[tuple[str, str], Wire] = {
    ("chat", "openai"): OPENAI_CHAT,
    ("chat", "anthropic"): ANTHROPIC,
    ("chat", "ollama"): OLLAMA_CHAT,
    ("chat", "tgi"): OPENAI_CHAT,
    ("completions", "openai"): OPENAI_TEXT,
    ("completions", "ollama"): OLLAMA_TEXT,
    ("completions", "tgi"): TGI_TEXT,
    ("responses", "openai"): OPENAI_RESPONSES,
    ("responses", "vllm"): OPENAI_CHAT,
    ("responses", "anthropic"): ANTHROPIC,
    ("responses", "ollama"): OLLAMA_CHAT,
    ("messages", "anthropic"): ANTHROPIC,
    ("messages", "openai"): OPENAI_CHAT,
    ("messages", "ollama"): OLLAMA_CHAT,
    ("messages", "tgi"): OPENAI_CHAT,
    ("embeddings", "openai"): OPENAI_VECTORS,
    ("embeddings", "ollama"): OLLAMA_VECTORS,
}
"""(client operation, engine) -> what that server sends."""
STREAMS = [pair for pair in WIRES if pair[0] != "embeddings"]
RELAYS = {("chat", "openai"), ("chat", "tgi"), ("completions", "openai"), ("responses", "openai"), ("messages", "anthropic")}

PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "embeddings": "/v1/embeddings",
}
TERMINATORS = {
    "chat": b"data: [DONE]\n\n",
    "completions": b"data: [DONE]\n\n",
    "responses": b"response.completed",
    "messages": b"event: message_stop\n",
}
ANSWERS = [(operation, stream) for operation in ("chat", "completions", "responses", "messages") for stream in (False, True)]
EVERY_ANSWER = pytest.mark.parametrize(
    ("operation", "stream"), ANSWERS, ids=[f"{operation}-{'stream' if stream else 'whole'}" for operation, stream in ANSWERS]
)
"""All kinds of answers that a client may ask for."""
PROMPT = "你好，世界"


def request(operation: str, name: str, *, stream: bool = False, **more: Any) -> dict[str, Any]:
    """The smallest usual request of an operation."""
    turns = [{"role": "user", "content": PROMPT}]
    body: dict[str, Any] = {
        "chat": {"messages": turns},
        "completions": {"prompt": PROMPT},
        "responses": {"input": PROMPT},
        "messages": {"messages": turns, "max_tokens": 64},
        "embeddings": {"input": PROMPT},
    }[operation]
    return {"model": name, **body, **({"stream": True} if stream else {}), **more}


def said(operation: str, body: bytes) -> str:
    """The text of a whole answer."""
    value = json.loads(body)
    if operation == "chat":
        return str(value["choices"][0]["message"]["content"])
    if operation == "completions":
        return str(value["choices"][0]["text"])
    if operation == "responses":
        return "".join(part["text"] for item in value["output"] if item["type"] == "message" for part in item["content"])
    if operation == "messages":
        return "".join(block["text"] for block in value["content"] if block["type"] == "text")
    return json.dumps(value["data"][0]["embedding"])


def streamed(operation: str, body: bytes) -> str:
    """The text of a streamed answer, as far as it came."""
    out = ""
    for raw in re.findall(rb"^data: (\{.*)$", body, re.MULTILINE):
        value = json.loads(raw)
        if operation in ("chat", "completions"):
            for choice in value.get("choices", ()):
                out += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        elif value.get("type") == "response.output_text.delta":
            out += value["delta"]
        elif value.get("type") == "content_block_delta":
            out += value["delta"].get("text", "")
    return out


def serving(*steps: Step) -> Script:
    """A script that reads one request, plays the steps and then leaves the connection as it is."""
    return [READ, *steps]


def texts(count: int) -> Sequence[str]:
    return [f"第{number}段 " for number in range(count)]
