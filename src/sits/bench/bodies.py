"""What goes over the wire in `sits bench gateway`: the requests, the answers, and how an answer is known to be whole."""

from __future__ import annotations

from typing import Any

import msgspec

MODEL = "bench"
"""The name that every gateway is asked for, and the upstream's own."""
CHUNKS = 50
CHUNK_BYTES = 256
"""Of each event of the stream. nginx is told to read its file by as much, so that an event is a chunk and a write."""
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PATH = "/v1/chat/completions"

_TEXT = "It gives every team one address, one key and one bill, and keeps on answering when a model behind it fails."
_WORDS = "The quick brown fox jumps over the lazy dog near the bank of the river, and 然后 it sleeps. "


def plain_request() -> bytes:
    """About 400 bytes: a short system text and a question."""
    return _request(
        "Say in one sentence what a gateway in front of several language models is good for, and who gains the most from it.",
        stream=False,
    )


def long_request() -> bytes:
    """33 kB: a prompt with a document in it."""
    filler = (_WORDS * (33_000 // len(_WORDS.encode()) + 1)).encode()[:32_640].decode(errors="ignore")
    return _request(filler, stream=False)


def stream_request() -> bytes:
    return _request("Count to fifty.", stream=True)


def answer() -> bytes:
    """A chat completion of about 400 bytes."""
    return msgspec.json.encode(
        {
            "id": "chatcmpl-bench",
            "object": "chat.completion",
            "created": 1700000000,
            "model": MODEL,
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": _TEXT,
                    },
                    "logprobs": None,
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 42, "completion_tokens": 24, "total_tokens": 66},
        }
    )


def events() -> list[bytes]:
    """The events of a streamed answer: fifty of one size, then the end mark."""
    return [*(_event(index) for index in range(CHUNKS)), b"data: [DONE]\n\n"]


def whole_answer(body: bytes) -> str | None:
    """What is wrong with a plain answer; None when it says what the upstream said."""
    try:
        got = msgspec.json.decode(body)["choices"][0]["message"]["content"]
    except (msgspec.DecodeError, LookupError, TypeError) as error:
        return f"not a chat completion ({error}): {body[:200]!r}"
    expected = msgspec.json.decode(answer())["choices"][0]["message"]["content"]
    return None if got == expected else f"another text than the upstream's: {got!r}"


def whole_stream(body: bytes) -> str | None:
    """What is wrong with a streamed answer; None when all fifty deltas and the end mark are there."""
    text = body.decode(errors="replace")
    deltas = sum(_has_content(line[5:]) for line in text.splitlines() if line.startswith("data:"))
    if deltas != CHUNKS:
        return f"{deltas} of {CHUNKS} deltas: {body[:200]!r}"
    return None if "[DONE]" in text else "no end mark"


def _has_content(data: str) -> bool:
    """Whether the event carries text; a gateway may add events without any, and those do not count."""
    try:
        chunk = msgspec.json.decode(data, type=_Chunk)
    except msgspec.DecodeError:
        return False
    return any(choice.delta.content for choice in chunk.choices)


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


def _request(text: str, *, stream: bool) -> bytes:
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [
            {
                "role": "system",
                "content": "You are a careful assistant. Answer briefly, in plain words, and say so when you do not know.",
            },
            {"role": "user", "content": text},
        ],
        "temperature": 0.7,
        "max_tokens": 256,
        "stream": stream,
        "user": "bench-user-0001",
    }
    return msgspec.json.encode(body)


def _event(index: int) -> bytes:
    """One chunk event of exactly CHUNK_BYTES."""
    delta: dict[str, Any] = {"content": ""}
    if index == 0:
        delta["role"] = "assistant"
    chunk = {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": MODEL,
        "choices": [{"index": 0, "delta": delta, "finish_reason": "stop" if index == CHUNKS - 1 else None}],
    }
    frame = len(b"data: " + msgspec.json.encode(chunk) + b"\n\n")
    delta["content"] = f" {index} ".ljust(CHUNK_BYTES - frame, "x")
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"
