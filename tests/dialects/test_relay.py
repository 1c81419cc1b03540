from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits import dialects
from sits.dialects import sse as events
from sits.dialects import sse_relay
from sits.dialects.openai_watch import read_whole, watch_openai
from sits.dialects.sse_relay import SseRelay
from sits.inner.errors import Code, Remedy
from sits.inner.event import Usage

from .cuts import CUTS, bytewise, cut
from .wires import HELLO, ROLE, STOP, USAGE, USAGE_CHUNK, WORLD, chunk, sse, text_chunk

USED = Usage(input=9, output=4, cached=2, reasoning=0)
ENDING = b"data: [DONE]\n\n"


def relay(hide_usage: bool = False) -> SseRelay:
    return SseRelay(watch_openai, ENDING, hide_usage=hide_usage)


def run(pieces: list[bytes], hide_usage: bool = False) -> tuple[bytes, SseRelay]:
    translation = relay(hide_usage)
    out = b"".join([*(translation.feed(piece) for piece in pieces), translation.close()])
    return out, translation


def state(translation: SseRelay) -> tuple[Any, ...]:
    fault = None if translation.fault is None else translation.fault.code
    return (
        translation.committed,
        translation.finished,
        fault,
        translation.usage,
        translation.finish,
        translation.skipped,
        translation.pieces,
    )


BROKEN = b'data: {"id": "c1", "choi\n\n'
ERROR = sse({"error": {"message": "engine died", "type": "server_error", "code": "engine_dead"}}, done=False)


@pytest.mark.parametrize(
    ("wire", "out", "expected"),
    [
        pytest.param(
            sse(ROLE, HELLO, WORLD, STOP, USAGE_CHUNK), None, (True, True, None, USED, "stop", 0, 2), id="complete, usage shown"
        ),
        pytest.param(
            sse(ROLE, HELLO, done=False) + b": ping\n\n" + sse(STOP),
            None,
            (True, True, None, None, "stop", 0, 1),
            id="comment after content goes through",
        ),
        pytest.param(
            b": ping\n\n" + sse(HELLO, STOP),
            sse(HELLO, STOP),
            (True, True, None, None, "stop", 0, 1),
            id="comment before it does not",
        ),
        pytest.param(
            sse(ROLE, HELLO, done=False) + BROKEN + sse(WORLD, STOP),
            sse(ROLE, HELLO, WORLD, STOP),
            (True, True, None, None, "stop", 1, 2),
            id="one broken event is left out and counted",
        ),
        pytest.param(
            sse(ROLE, HELLO, STOP, done=False),
            sse(ROLE, HELLO, STOP),
            (True, True, None, None, "stop", 0, 1),
            id="[DONE] is added",
        ),
        pytest.param(
            sse(HELLO, STOP) + sse(WORLD), sse(HELLO, STOP), (True, True, None, None, "stop", 0, 1), id="nothing after [DONE]"
        ),
        pytest.param(
            sse(ROLE, chunk({}, "length")), None, (False, True, None, None, "length", 0, 0), id="an empty answer is an answer"
        ),
        pytest.param(
            sse(ROLE, HELLO, done=False), None, (True, False, Code.UPSTREAM_BROKEN, None, None, 0, 1), id="cut after content"
        ),
        pytest.param(
            sse(ROLE, HELLO), sse(ROLE, HELLO, done=False), (True, False, Code.UPSTREAM_BROKEN, None, None, 0, 1), id="no finish"
        ),
        pytest.param(sse(ROLE, done=False), b"", (False, False, Code.UPSTREAM_BROKEN, None, None, 0, 0), id="cut before content"),
        pytest.param(b"", b"", (False, False, Code.UPSTREAM_BROKEN, None, None, 0, 0), id="empty"),
        pytest.param(
            b"<html>\n\nIt works!</html>\n\n", b"", (False, False, Code.UPSTREAM_BROKEN, None, None, 0, 0), id="not events at all"
        ),
        pytest.param(
            sse(ROLE, done=False) + ERROR + sse(HELLO),
            b"",
            (False, False, Code.UPSTREAM_ERROR, None, None, 0, 0),
            id="error before content leaves no trace",
        ),
        pytest.param(
            sse(ROLE, HELLO, done=False) + ERROR + sse(WORLD),
            sse(ROLE, HELLO, done=False),
            (True, False, Code.UPSTREAM_ERROR, None, None, 0, 1),
            id="error after content",
        ),
        pytest.param(
            sse(HELLO, chunk({}, "abort")),
            sse(HELLO, done=False),
            (True, False, Code.UPSTREAM_ERROR, None, None, 0, 1),
            id="a finish that is a failure",
        ),
        pytest.param(
            b'{"error": {"message": "slow down", "type": "rate_limit_error"}}',
            b"",
            (False, False, Code.UPSTREAM_RATE_LIMITED, None, None, 0, 0),
            id="a plain JSON error instead of events",
        ),
        pytest.param(
            b"event: error\n" + ERROR, b"", (False, False, Code.UPSTREAM_ERROR, None, None, 0, 0), id="named error event"
        ),
        pytest.param(
            sse(text_chunk("a"), text_chunk("b", index=1), text_chunk("", "stop", 1), text_chunk("", "length")),
            None,
            (True, True, None, None, "length", 0, 2),
            id="completions, the first choice's finish counts",
        ),
        pytest.param(sse(HELLO, STOP).replace(b"\n", b"\r\n"), None, (True, True, None, None, "stop", 0, 1), id="CRLF"),
        pytest.param(
            b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83c"}}]}\n\n' + sse(STOP),
            None,
            (True, True, None, None, "stop", 0, 1),
            id="half a surrogate pair is the server's affair",
        ),
    ],
)
def test_a_stream_is_passed_on_as_it_came_whole_and_byte_by_byte(
    wire: bytes, out: bytes | None, expected: tuple[Any, ...]
) -> None:
    whole = run([wire])
    assert (whole[0], state(whole[1])) == (wire if out is None else out, expected)
    pieces = run(bytewise(wire))
    assert (pieces[0], state(pieces[1])) == (whole[0], expected)
    blocks = run(wire.split(b"\n\n") and [block + b"\n\n" for block in wire.split(b"\n\n")[:-1]] + [wire.split(b"\n\n")[-1]])
    assert (blocks[0], state(blocks[1])) == (whole[0], expected)


EVENT = st.sampled_from(
    [
        *(sse(value, done=False) for value in (ROLE, HELLO, WORLD, STOP, USAGE_CHUNK, text_chunk("x"))),
        b": ping\n\n",
        BROKEN,
        ERROR,
        ENDING,
        sse(HELLO, done=False).replace(b"\n", b"\r\n"),
        b"garbage\n\n",
        b"\n",
    ]
)


@given(wire=st.lists(EVENT, max_size=10).map(b"".join), cuts=CUTS, hide=st.booleans())
def test_cuts_never_change_what_goes_out(wire: bytes, cuts: list[int], hide: bool) -> None:
    whole, pieces = run([wire], hide), run(cut(wire, cuts), hide)
    assert (pieces[0], state(pieces[1])) == (whole[0], state(whole[1]))


@given(wire=st.lists(EVENT, max_size=10).map(b"".join), cuts=CUTS)
def test_nothing_goes_out_before_content_or_the_end(wire: bytes, cuts: list[int]) -> None:
    translation = relay()
    for piece in cut(wire, cuts):
        out = translation.feed(piece)
        assert not out or translation.committed or translation.finished


@given(pieces=st.lists(st.binary(max_size=40) | EVENT, max_size=8))
def test_a_relay_never_raises(pieces: list[bytes]) -> None:
    _, translation = run(pieces)
    assert translation.finished is (translation.fault is None)


def test_an_ordinary_piece_comes_back_as_the_same_object() -> None:
    translation = relay()
    translation.feed(sse(ROLE, HELLO, done=False))
    for piece in (sse(WORLD, done=False), sse(WORLD, WORLD, done=False), sse(chunk({}), done=False)):
        assert translation.feed(piece) is piece


def test_the_usage_that_we_asked_for_is_read_and_hidden() -> None:
    with_null = chunk({"content": "x"}, usage=None)
    out, translation = run([sse(ROLE, with_null, STOP, USAGE_CHUNK)], hide_usage=True)
    assert (out, translation.usage) == (sse(ROLE, with_null, STOP), USED)


def test_usage_beside_content_is_read_and_the_last_one_wins() -> None:
    first = chunk({"content": "x"}, usage={"prompt_tokens": 9, "completion_tokens": 1})
    last = chunk({}, "stop", usage={"prompt_tokens": 9, "completion_tokens": 0, "prompt_cache_hit_tokens": 5})
    wire = sse(first, last)
    out, translation = run([wire], hide_usage=True)
    assert (out, translation.usage) == (wire, Usage(input=9, output=0, cached=5))


@pytest.mark.parametrize(
    ("delta", "commits"),
    [
        pytest.param({"content": "x"}, True, id="text"),
        pytest.param({"content": ""}, False, id="empty text"),
        pytest.param({"content": None}, False, id="null text"),
        pytest.param({"content": None, "reasoning_content": "x"}, True, id="reasoning_content"),
        pytest.param({"reasoning": "x"}, True, id="reasoning"),
        pytest.param({"reasoning_content": ""}, False, id="empty reasoning"),
        pytest.param({"refusal": "no"}, True, id="refusal"),
        pytest.param({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]}, True, id="tool call"),
        pytest.param({"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}, False, id="empty tool call"),
        pytest.param({"tool_calls": []}, False, id="no tool calls"),
        pytest.param({"function_call": {"name": "f"}}, True, id="function call"),
        pytest.param({"audio": {"data": "AA=="}}, True, id="audio"),
        pytest.param({"audio": None}, False, id="no audio"),
        pytest.param({"content": [{"type": "text", "text": "x"}]}, True, id="list of parts"),
        pytest.param({"role": "assistant"}, False, id="role"),
    ],
)
def test_only_content_commits(delta: dict[str, Any], commits: bool) -> None:
    translation = relay()
    wire = sse(chunk(delta), done=False)
    assert translation.feed(wire) == (wire if commits else b"")
    assert (translation.committed, translation.pieces, translation.skipped) == (commits, int(commits), 0)


def test_a_stream_without_an_event_end_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_EVENT", 500)
    out, translation = run([sse(HELLO, done=False), b"data: " + b"x" * 600, sse(WORLD, STOP)])
    assert (out, state(translation)) == (sse(HELLO, done=False), (True, False, Code.UPSTREAM_BROKEN, None, None, 0, 1))


def test_frames_without_content_are_not_held_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse_relay.sse, "MAX_EVENT", 2000)
    translation = relay()
    for _ in range(20):
        translation.feed(sse(ROLE, done=False))
    assert translation.fault is not None
    assert translation.fault.remedy is Remedy.TRY_ELSEWHERE


def test_a_prompt_that_is_too_long_is_the_requests_fault_even_in_band() -> None:
    message = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."
    _, translation = run([sse({"error": {"object": "error", "message": message, "type": "BadRequestError", "code": 400}})])
    assert translation.fault is not None
    assert (translation.fault.code, translation.fault.remedy) == (Code.CONTEXT_TOO_LONG, Remedy.FIX_REQUEST)


def answer(**changes: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
    return json.dumps({"id": "c1", "choices": [choice], "usage": USAGE, **changes}).encode()


@pytest.mark.parametrize(
    ("operation", "body", "usage", "finish", "fault"),
    [
        pytest.param("chat", answer(), USED, "stop", None, id="chat"),
        pytest.param("chat", answer(usage=None), None, "stop", None, id="no usage stays absent"),
        pytest.param(
            "chat", answer(usage={"prompt_tokens": 0, "completion_tokens": 0}), Usage(0, 0), "stop", None, id="zero stays zero"
        ),
        pytest.param("chat", answer(usage={"prompt_tokens": "9"}), Usage(), "stop", None, id="usage that is not numbers"),
        pytest.param(
            "chat", answer(error={"message": "no", "code": 503}), None, None, Code.UPSTREAM_ERROR, id="error with a 200"
        ),
        pytest.param("chat", answer(error=None), USED, "stop", None, id="null error"),
        pytest.param(
            "chat", b'{"object":"error","message":"bad","code":400}', None, None, Code.UPSTREAM_REJECTED, id="vLLM's error"
        ),
        pytest.param("chat", answer(choices=[]), None, None, Code.UPSTREAM_BROKEN, id="no choices"),
        pytest.param("chat", b"<html>", None, None, Code.UPSTREAM_BROKEN, id="not JSON"),
        pytest.param("chat", b"[]", None, None, Code.UPSTREAM_BROKEN, id="an array"),
        pytest.param("completions", json.dumps(text_chunk("x", "length")).encode(), None, "length", None, id="completions"),
        pytest.param(
            "embeddings",
            b'{"data":[{"embedding":[1.0]}],"usage":{"prompt_tokens":3,"total_tokens":3}}',
            Usage(3),
            None,
            None,
            id="embeddings",
        ),
        pytest.param("embeddings", b'{"data":[]}', None, None, Code.UPSTREAM_BROKEN, id="no vectors"),
    ],
)
def test_a_whole_answer_is_read_without_being_rebuilt(
    operation: Any, body: bytes, usage: Usage | None, finish: str | None, fault: Code | None
) -> None:
    reading = read_whole(operation, body)
    assert (reading.usage, reading.finish, reading.fault and reading.fault.code) == (usage, finish, fault)
    assert dialects.read_whole(operation, body).finish == finish
