"""A kept answer can be given whole or as a stream, however it came."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits import dialects
from sits.dialects import sse
from sits.inner.ask import Ask, Operation
from sits.inner.event import Usage
from sits.state.cache import replay
from sits.state.cache.answer import Answer
from sits.state.cache.rules import fault


def kept(operation: Operation, body: Any) -> Answer:
    return Answer(operation, json.dumps(body, ensure_ascii=False).encode(), 0.0, 100.0)


def request(operation: Operation, **more: Any) -> bytes:
    asked: dict[str, Any] = {"model": "m"}
    if operation == "completions":
        asked["prompt"] = "x"
    elif operation == "responses":
        asked["input"] = "x"
    else:
        asked["messages"] = [{"role": "user", "content": "x"}]
    if operation == "messages":
        asked["max_tokens"] = 9
    return json.dumps(asked | more).encode()


def ask(operation: Operation, **more: Any) -> Ask:
    return dialects.client(operation).read(request(operation, **more))


def stream(operation: Operation, body: Any, **more: Any) -> bytes | None:
    return replay.streamed(kept(operation, body), ask(operation, stream=True, **more), request(operation, **more))


def chunks(*deltas: dict[str, Any], done: bool = True, **more: Any) -> bytes:
    """A chat stream as a server writes it."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 5, "model": "m-1"}
    out = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    out.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], **more})
    return b"".join(sse.encode(json.dumps(chunk).encode()) for chunk in out) + (b"data: [DONE]\n\n" if done else b"")


USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "天气", "arguments": '{"城市": "巴黎"}'}},
    {"id": "call_2", "type": "function", "function": {"name": "time", "arguments": "{}"}},
]


def chat(*messages: dict[str, Any], finish: str = "stop") -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 5,
        "model": "m-1",
        "choices": [
            {
                "index": index,
                "message": {"role": "assistant", "content": None, "refusal": None, **message},
                "logprobs": None,
                "finish_reason": finish,
            }
            for index, message in enumerate(messages)
        ],
        "usage": USAGE,
    }


def message(*blocks: dict[str, Any], stop: str = "end_turn") -> dict[str, Any]:
    usage = {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 0}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m-1"}
    return {**head, "content": list(blocks), "stop_reason": stop, "stop_sequence": None, "usage": usage}


def response(*items: dict[str, Any], **more: Any) -> dict[str, Any]:
    head = {"id": "resp_1", "object": "response", "created_at": 5, "status": "completed", "model": "m-1"}
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    return {**head, "error": None, "incomplete_details": None, "output": list(items), "usage": usage, **more}


NOTE = {"type": "url_citation", "url": "https://example.org", "start_index": 0, "end_index": 1}
SPOKEN = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "巴黎", "annotations": [NOTE], "logprobs": []}],
}
THOUGHT = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "想"}], "encrypted_content": "e"}
OPEN_THOUGHT = {"id": "rs_2", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "想"}]}
CALLED = {
    "id": "fc_1",
    "type": "function_call",
    "status": "completed",
    "call_id": "call_1",
    "name": "天气",
    "arguments": '{"城市":"巴黎"}',
}
SEARCHED = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}}
CITED = {"type": "text", "text": "巴黎", "citations": [{"type": "char_location", "cited_text": "巴黎", "document_index": 0}]}

WHOLE: dict[str, tuple[Operation, dict[str, Any]]] = {
    "chat": ("chat", chat({"content": "你好"})),
    "chat of two choices": ("chat", chat({"content": "one"}, {"content": "two"})),
    "chat that reasons": ("chat", chat({"content": "42", "reasoning_content": "想一想"})),
    "chat that calls": ("chat", chat({"tool_calls": CALLS}, finish="tool_calls")),
    "messages": ("messages", message({"type": "text", "text": "你好"})),
    "messages of many kinds": (
        "messages",
        message(
            {"type": "thinking", "thinking": "想", "signature": "sig"},
            {"type": "redacted_thinking", "data": "zzz"},
            CITED,
            {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
            {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"type": "web_search_result", "url": "u"}]},
            {"type": "tool_use", "id": "toolu_1", "name": "天气", "input": {"城市": "巴黎", "n": [1, 2]}},
            {"type": "tool_use", "id": "toolu_2", "name": "time", "input": {}},
            stop="tool_use",
        ),
    ),
    "responses": ("responses", response(SPOKEN)),
    "responses of many kinds": (
        "responses",
        response(THOUGHT, OPEN_THOUGHT, SEARCHED, SPOKEN, CALLED, metadata={}, user=None, completed_at=7),
    ),
}
every_answer = pytest.mark.parametrize(("operation", "body"), WHOLE.values(), ids=WHOLE)


@every_answer
def test_what_is_streamed_and_put_together_again_is_what_it_was(operation: Operation, body: dict[str, Any]) -> None:
    wire = stream(operation, body, **({"stream_options": {"include_usage": True}} if operation == "chat" else {}))
    assert wire is not None
    again = replay.whole(operation, wire, ask(operation))
    assert again is not None
    assert json.loads(again) == body


@every_answer
def test_the_stream_of_a_kept_answer_is_complete_for_whoever_watches_such_streams(
    operation: Operation, body: dict[str, Any]
) -> None:
    wire = stream(operation, body)
    assert wire is not None
    watcher = dialects.relay(operation, hide_usage=False)
    passed = b"".join(watcher.feed(wire[at : at + 7]) for at in range(0, len(wire), 7)) + watcher.close()
    assert passed == wire
    assert (watcher.finished, watcher.committed, watcher.fault, watcher.skipped) == (True, True, None, 0)


def test_a_completions_answer_is_streamed_to_its_end() -> None:
    body = {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 5,
        "model": "m-1",
        "choices": [{"index": 0, "text": "巴黎", "logprobs": None, "finish_reason": "stop"}],
        "usage": USAGE,
    }
    wire = stream("completions", body, stream_options={"include_usage": True})
    assert wire is not None
    assert wire.endswith(b"data: [DONE]\n\n")
    again = replay.whole("completions", wire, ask("completions"))
    assert again is not None
    assert json.loads(again) == body


@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=6))
def test_a_streamed_chat_answer_is_kept_with_every_character(pieces: list[str]) -> None:
    wire = chunks({"role": "assistant", "content": ""}, *({"content": piece} for piece in pieces), usage=USAGE)
    found = replay.whole("chat", wire, ask("chat"))
    assert found is not None
    assert json.loads(found) == chat({"content": "".join(pieces)})
    assert fault("chat", found) is None


def test_usage_that_the_client_was_not_told_is_kept_all_the_same() -> None:
    found = replay.whole("chat", chunks({"content": "x"}), ask("chat"), Usage(input=3, output=2))
    assert found is not None
    assert json.loads(found)["usage"] == USAGE


def test_only_who_asks_for_usage_is_streamed_it() -> None:
    with_usage = stream("chat", chat({"content": "x"}), stream_options={"include_usage": True})
    without = stream("chat", chat({"content": "x"}))
    assert with_usage is not None
    assert without is not None
    assert (b'"prompt_tokens":3' in with_usage, b"prompt_tokens" in without) == (True, False)


BROKEN: dict[str, tuple[Operation, bytes]] = {
    "nothing": ("chat", b""),
    "cut before its end": ("chat", chunks({"content": "x"}, done=False)),
    "cut in an event": ("chat", chunks({"content": "x"})[:-30]),
    "an event that is no JSON": ("chat", b"data: {\n\n" + chunks({"content": "x"})),
    "an error in-band": ("chat", b'data: {"error": {"message": "x"}}\n\n' + chunks({"content": "x"})),
    "sound, which has no words here": ("chat", chunks({"audio": {"data": "AAAA"}})),
    "an image, which has none either": ("chat", chunks({"images": [{"url": "x"}]})),
    "sources beside the choices": ("chat", chunks({"content": "x"}, citations=["https://example.org"])),
    "a message cut before its end": ("messages", b'event: message_start\ndata: {"type":"message_start","message":{}}\n\n'),
    "a delta without a block": (
        "messages",
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}\n\n',
    ),
    "an event of later days": ("messages", b'data: {"type":"message_start","message":{}}\n\ndata: {"type":"novelty"}\n\n'),
    "an event without a type": ("messages", b"data: {}\n\n"),
    "an event that is a list": ("messages", b"data: []\n\n"),
    "a response that is not complete": ("responses", b'data: {"type":"response.incomplete","response":{"id":"r"}}\n\n'),
    "a response that is not there": ("responses", b'data: {"type":"response.completed"}\n\n'),
    "vectors, which are never streamed": ("embeddings", b"data: {}\n\n"),
}


@pytest.mark.parametrize(("operation", "wire"), BROKEN.values(), ids=BROKEN)
def test_a_stream_is_not_kept_when_it_is(operation: Operation, wire: bytes) -> None:
    assert replay.whole(operation, wire, ask("chat")) is None


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("chat", chat({"content": "x", "audio": {"data": "AAAA"}})),
        ("chat", {"choices": []}),
        ("messages", {"type": "message"}),
        ("messages", {"content": [{"type": "text"}]}),
        ("responses", {"output": [{}]}),
        ("responses", {"output": ["x"]}),
        ("embeddings", {"data": []}),
    ],
    ids=["sound", "no choices", "no content", "no text", "no type", "no item", "vectors"],
)
def test_what_cannot_be_streamed_without_loss_is_not(operation: Operation, body: Any) -> None:
    assert replay.streamed(kept(operation, body), ask("chat"), request("chat")) is None


def test_a_response_that_is_kept_knows_nothing_of_who_asked_and_is_given_with_the_words_of_who_asks_now() -> None:
    mine = {"metadata": {"run": "7"}, "user": "alice", "safety_identifier": "s-1", "prompt_cache_key": "k"}
    body = response(SPOKEN, **mine, prompt_cache_retention=None)
    stored = replay.kept("responses", json.dumps(body).encode())
    nobody = {"metadata": {}, "user": None, "safety_identifier": None, "prompt_cache_key": None}
    assert json.loads(stored) == {**body, **nobody}

    answer = Answer("responses", stored, 0.0, 100.0)
    theirs = {"metadata": {"run": "8"}, "user": "bob"}
    expected = {**body, **nobody, **theirs}
    assert json.loads(replay.given(answer, request("responses", **theirs))) == expected
    wire = replay.streamed(answer, ask("responses", stream=True), request("responses", **theirs))
    assert wire is not None
    assert json.loads(sse.EventDecoder().feed(wire)[-1].data)["response"] == expected
    assert b"alice" not in wire


@pytest.mark.parametrize("operation", ["chat", "completions", "messages", "embeddings"])
def test_other_answers_are_kept_and_given_byte_for_byte(operation: Operation) -> None:
    body = b'{ "id": "x",  "n": 1.0 }'
    assert replay.kept(operation, body) == body
    assert replay.given(Answer(operation, body, 0.0, 1.0), b'{"user": "bob"}') == body
