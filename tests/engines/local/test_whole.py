"""Whole answers put together from streams: what the server itself would have sent, however the stream was cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.engines.local.whole import Quiet, Whole, asked

CHAT, TEXT, RESPONSES = (b"/v1/chat/completions", b"/v1/completions", b"/v1/responses")


def sse(*events: Any, done: bool = True) -> bytes:
    wire = b"".join(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n" for event in events)
    return wire + (b"data: [DONE]\n\n" if done else b"")


def chunk(index: int = 0, finish: str | None = None, logprobs: Any = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "choices": [choice | ({"logprobs": logprobs} if logprobs else {})]}


def call(index: int, arguments: str, **more: Any) -> dict[str, Any]:
    name = {"name": more.pop("name")} if "name" in more else {}
    return {"index": index, **more, "function": {**name, "arguments": arguments}}


USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
STREAMS: dict[str, tuple[bytes, bytes, Any]] = {
    "text": (
        CHAT,
        sse(chunk(role="assistant", content=None), chunk(content="你"), chunk(content="好"), chunk(finish="stop"),
            {"id": "c", "choices": [], "usage": USAGE}),
        {"id": "c", "object": "chat.completion", "usage": USAGE, "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "你好"}, "finish_reason": "stop"}]},
    ),
    "two choices and logprobs": (
        CHAT,
        sse(chunk(1, content="b", logprobs={"content": [{"token": "b"}]}), chunk(0, content="a"), chunk(1, "length"),
            chunk(1, content="", logprobs={"content": [{"token": ""}]}), chunk(0, "stop")),
        {"id": "c", "object": "chat.completion", "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"},
            {"index": 1, "message": {"role": "assistant", "content": "b"}, "finish_reason": "length",
             "logprobs": {"content": [{"token": "b"}, {"token": ""}]}}]},
    ),
    "reasoning and tools": (
        CHAT,
        sse(chunk(role="assistant", content=None), chunk(reasoning_content="so"),
            chunk(tool_calls=[call(0, "", id="x", type="function", name="f")]), chunk(tool_calls=[call(0, '{"a"')]),
            chunk(tool_calls=[call(1, "{}", id="y", type="function", name="g"), call(0, ":1}")]), chunk(finish="tool_calls")),
        {"id": "c", "object": "chat.completion", "choices": [
            {"index": 0, "finish_reason": "tool_calls", "message": {
             "role": "assistant", "content": None, "reasoning_content": "so", "tool_calls": [
                 {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
                 {"id": "y", "type": "function", "function": {"name": "g", "arguments": "{}"}}]}}]},
    ),
    "completions with a null event": (
        TEXT,
        sse(None, {"id": "t", "choices": [{"index": 0, "text": "a", "finish_reason": None}]},
            {"id": "t", "choices": [{"index": 0, "text": "b", "finish_reason": "stop", "logprobs": None}], "usage": USAGE}),
        {"id": "t", "object": "text_completion", "usage": USAGE, "choices": [
            {"index": 0, "text": "ab", "logprobs": None, "finish_reason": "stop"}]},
    ),
    "a response": (
        RESPONSES,
        sse({"type": "response.created", "response": {"id": "r"}},
            {"type": "response.completed", "response": {"id": "r", "status": "completed"}}, done=False),
        {"id": "r", "status": "completed"},
    ),
}  # fmt: skip


def put_together(path: bytes, pieces: list[bytes]) -> tuple[int, Any] | None:
    found = asked(path, b'{"model":"m"}')
    assert found is not None
    whole = found[1]
    assert isinstance(whole, Whole)
    for piece in pieces:
        whole.feed(piece)
    closed = whole.close()
    return None if closed is None else (closed[0], json.loads(closed[1]))


@pytest.mark.parametrize(("path", "wire", "answer"), STREAMS.values(), ids=STREAMS)
def test_a_stream_becomes_the_whole_answer_whole_or_byte_by_byte(path: bytes, wire: bytes, answer: Any) -> None:
    assert put_together(path, [wire]) == (200, answer)
    assert put_together(path, [wire[at : at + 1] for at in range(len(wire))]) == (200, answer)


@settings(max_examples=100)
@given(name=st.sampled_from(sorted(STREAMS)), cuts=st.lists(st.integers(0, 2000), max_size=8))
def test_cuts_never_change_the_answer(name: str, cuts: list[int]) -> None:
    path, wire, answer = STREAMS[name]
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    assert put_together(path, [wire[a:b] for a, b in pairwise(edges)]) == (200, answer)


@pytest.mark.parametrize(("path", "wire", "answer"), STREAMS.values(), ids=STREAMS)
def test_a_stream_without_its_end_is_no_answer(path: bytes, wire: bytes, answer: Any) -> None:
    assert put_together(path, [b"\n\n".join(wire.split(b"\n\n")[:-2]) + b"\n\n"]) is None


def test_an_error_in_the_stream_is_an_error_answer() -> None:
    error = {"error": {"code": 503, "message": "busy", "type": "unavailable_error"}}
    assert put_together(CHAT, [sse(chunk(content="a"), error)]) == (503, error)
    assert put_together(CHAT, [sse({"error": {"message": "?"}})]) == (500, {"error": {"message": "?"}})


def test_garbage_is_said_to_be_garbage() -> None:
    with pytest.raises(ValueError):
        put_together(CHAT, [b"data: {\n\n"])


LEFT_ALONE = {
    "a stream that wants progress": (CHAT, b'{"stream":true,"return_progress":false}'),
    "a message": (b"/v1/messages", b"{}"),
    "an embedding": (b"/v1/embeddings", b"{}"),
    "no JSON": (CHAT, b"{"),
    "no UTF-8": (CHAT, b'{"x":"\xff"}'),
    "very deep": (CHAT, b"[" * 100_000),
    "no object": (CHAT, b"[]"),
    "a wrong type": (CHAT, b'{"stream":"yes"}'),
}


@pytest.mark.parametrize(("path", "body"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_other_requests_are_left_alone(path: bytes, body: bytes) -> None:
    assert asked(path, body) is None


def test_nothing_else_in_the_request_changes() -> None:
    found = asked(CHAT, '{"stream":false,"model":"模","x":1.0}'.encode())
    assert found is not None
    assert json.loads(found[0]) == {
        "stream": True,
        "model": "模",
        "x": 1.0,
        "return_progress": True,
        "stream_options": {"include_usage": True},
    }


@settings(max_examples=100)
@given(cuts=st.lists(st.integers(0, 600), max_size=8))
def test_a_stream_passes_unchanged_but_for_reports_of_progress(cuts: list[int]) -> None:
    found = asked(CHAT, b'{"stream":true,"x":1}')
    assert found is not None
    quiet = found[1]
    assert isinstance(quiet, Quiet)
    assert json.loads(found[0]) == {"stream": True, "x": 1, "return_progress": True}
    said = chunk(content='he said "prompt_progress": 你')
    progress = {"choices": [], "prompt_progress": {"total": 2}}
    wire = sse(progress, chunk(content=None), progress, said, said) + b"left over"
    wire = wire.replace(b'"prompt_progress": {', b'"prompt_progress":{')
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    passed = b"".join(quiet.feed(wire[a:b]) for a, b in pairwise(edges)) + quiet.close()
    assert passed == sse(chunk(content=None), said, said) + b"left over"
