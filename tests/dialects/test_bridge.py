from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from sits.dialects.base import Identity, Reading
from sits.dialects.bridge import Bridge, whole_bridge
from sits.dialects.openai_chat import CHAT
from sits.dialects.openai_upstream import VLLM
from sits.inner.ask import Ask
from sits.inner.errors import Code
from sits.inner.event import Usage

from .cuts import CUTS, bytewise, cut
from .wires import HELLO, ROLE, STOP, USAGE_CHUNK, WORLD, chunk, sse

IDENTITY = Identity("abc", "served", 1)
CALLS = [
    chunk({"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}]}),
    chunk({"tool_calls": [{"index": 0, "id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}}]}),
    chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"arguments": "}"}}]}),
]


def bridge(include_usage: bool = False) -> Bridge:
    ask = Ask(operation="chat", model="m", stream=True, include_usage=include_usage)
    return Bridge(VLLM.decoder(ask), CHAT.encoder(ask, IDENTITY))


def run(pieces: list[bytes], include_usage: bool = False) -> tuple[bytes, Bridge]:
    translation = bridge(include_usage)
    return b"".join([*(translation.feed(piece) for piece in pieces), translation.close()]), translation


def out(delta: dict[str, Any], finish: str | None = None, **fields: Any) -> dict[str, Any]:
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1700000000, "model": "served"}
    return {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}], **fields}


def read(wire: bytes) -> list[Any]:
    return [json.loads(line[6:]) if line != b"data: [DONE]" else "[DONE]" for line in wire.split(b"\n\n") if line]


START = out({"role": "assistant", "content": ""})


@pytest.mark.parametrize(
    ("wire", "include_usage", "expected"),
    [
        pytest.param(
            sse(ROLE, HELLO, WORLD, STOP, USAGE_CHUNK),
            False,
            [START, out({"content": "你好"}), out({"content": " world"}), out({}, "stop"), "[DONE]"],
            id="text, usage not asked for",
        ),
        pytest.param(
            sse(HELLO, STOP, USAGE_CHUNK, done=False),
            True,
            [
                {**START, "usage": None},
                out({"content": "你好"}, usage=None),
                out({}, "stop", usage=None),
                {
                    **out({}),
                    "choices": [],
                    "usage": {
                        "prompt_tokens": 9,
                        "completion_tokens": 4,
                        "total_tokens": 13,
                        "prompt_tokens_details": {"cached_tokens": 2},
                        "completion_tokens_details": {"reasoning_tokens": 0},
                    },
                },
                "[DONE]",
            ],
            id="usage asked for, no [DONE] from the server",
        ),
        pytest.param(
            sse(*CALLS, STOP),
            False,
            [
                START,
                out({"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}]}),
                out({"tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}}]}),
                out({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}),
                out({}, "tool_calls"),
                "[DONE]",
            ],
            id="tool calls are numbered densely and end with tool_calls",
        ),
    ],
)
def test_a_stream_is_written_anew_whole_and_byte_by_byte(wire: bytes, include_usage: bool, expected: list[Any]) -> None:
    whole, translation = run([wire], include_usage)
    assert read(whole) == expected
    assert (translation.committed, translation.finished, translation.fault) == (True, True, None)
    assert run(bytewise(wire), include_usage)[0] == whole


@given(cuts=CUTS)
def test_cuts_never_change_what_goes_out(cuts: list[int]) -> None:
    wire = sse(ROLE, HELLO, *CALLS, STOP, USAGE_CHUNK)
    assert run(cut(wire, cuts))[0] == run([wire])[0]


def test_nothing_goes_out_before_content() -> None:
    translation = bridge()
    assert translation.feed(sse(ROLE, done=False)) == b""
    assert read(translation.feed(sse(HELLO, done=False))) == [START, out({"content": "你好"})]


def test_what_came_before_an_error_in_the_same_piece_goes_out() -> None:
    error = {"error": {"message": "engine died", "code": 500}}
    wire, translation = run([sse(ROLE, HELLO, error, WORLD)])
    assert read(wire) == [START, out({"content": "你好"})]
    assert translation.fault is not None
    assert (translation.fault.code, translation.committed, translation.finished) == (Code.UPSTREAM_ERROR, True, False)
    assert translation.feed(sse(WORLD)) == b""


@pytest.mark.parametrize(
    ("wire", "committed"),
    [
        pytest.param(sse(ROLE, done=False), False, id="before content"),
        pytest.param(sse(HELLO, done=False), True, id="after content"),
    ],
)
def test_a_cut_stream_has_a_fault_and_no_terminator(wire: bytes, committed: bool) -> None:
    whole, translation = run([wire])
    assert b"[DONE]" not in whole
    assert bool(whole) is committed
    assert translation.fault is not None
    assert (translation.fault.code, translation.committed, translation.finished) == (Code.UPSTREAM_BROKEN, committed, False)


def test_an_empty_answer_is_an_answer() -> None:
    whole, translation = run([sse(ROLE, chunk({}, "length"))])
    assert read(whole) == [START, out({}, "length"), "[DONE]"]
    assert (translation.committed, translation.finished, translation.finish) == (False, True, "length")


def test_a_broken_event_is_counted_and_the_rest_flows() -> None:
    whole, translation = run([sse(HELLO, done=False) + b"data: {oops\n\n" + sse(STOP)])
    assert (translation.skipped, translation.pieces) == (1, 1)
    assert read(whole) == [START, out({"content": "你好"}), out({}, "stop"), "[DONE]"]


def test_a_bridge_is_finished_at_the_servers_own_terminator() -> None:
    translation = bridge()
    translation.feed(sse(HELLO, STOP))
    assert translation.finished
    assert translation.close() == b"data: [DONE]\n\n"


def test_a_whole_answer_is_written_anew() -> None:
    body = {
        "id": "c1",
        "created": 5,
        "choices": [{"index": 0, "message": {"content": "你好", "reasoning": "hm"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 1},
    }
    ask = Ask(operation="chat", model="m")
    wire, reading = whole_bridge(VLLM, CHAT, ask, json.dumps(body).encode(), IDENTITY)
    assert reading == Reading(Usage(input=2, output=1), "stop")
    assert json.loads(wire) == {
        "id": "c1",
        "object": "chat.completion",
        "created": 5,
        "model": "served",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "你好", "refusal": None, "reasoning_content": "hm"},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3},
    }


def test_an_error_that_came_with_a_200_is_the_readings_fault() -> None:
    wire, reading = whole_bridge(VLLM, CHAT, Ask(operation="chat", model="m"), b'{"error":{"message":"no","code":429}}', IDENTITY)
    assert wire == b""
    assert reading.fault is not None
    assert reading.fault.code is Code.UPSTREAM_RATE_LIMITED
