from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.dialects.tgi import TGI
from sits.inner.ask import Ask, Message, OutputFormat, Sampling, TextPart, Thinking, Tool
from sits.inner.errors import Code, Remedy, SitsError
from sits.inner.event import Event, Finish, Started, Text, Usage, Used

from .cuts import CUTS, bytewise, cut

SCHEMA = {"type": "object"}


def complete(**fields: Any) -> Ask:
    return Ask(**{"operation": "completions", "model": "m", "prompts": ("从前",), **fields})


def chat(**fields: Any) -> Ask:
    return Ask(**{"operation": "chat", "model": "m", "messages": (Message("user", (TextPart("你好"),)),), **fields})


@pytest.mark.parametrize(
    ("ask", "path", "parameters"),
    [
        pytest.param(complete(), "/generate", {"details": True}, id="plain"),
        pytest.param(complete(stream=True), "/generate_stream", {"details": True}, id="streamed"),
        pytest.param(
            complete(
                sampling=Sampling(
                    max_tokens=9, temperature=0.7, top_p=0.9, top_k=5, stop=("完",), seed=0, frequency_penalty=0.5, n=1
                )
            ),
            "/generate",
            {
                "max_new_tokens": 9,
                "do_sample": True,
                "temperature": 0.7,
                "top_p": 0.9,
                "top_k": 5,
                "frequency_penalty": 0.5,
                "seed": 0,
                "stop": ["完"],
                "details": True,
            },
            id="sampling",
        ),
        pytest.param(
            complete(sampling=Sampling(temperature=0.0, top_p=0.9)),
            "/generate",
            {"do_sample": False, "details": True},
            id="a temperature of 0 is greedy",
        ),
        pytest.param(
            complete(sampling=Sampling(temperature=1.0, top_p=1.0, top_k=-1)),
            "/generate",
            {"do_sample": True, "temperature": 1.0, "details": True},
            id="no limit is no parameter",
        ),
        pytest.param(
            complete(sampling=Sampling(logprobs=True, top_logprobs=2)),
            "/generate",
            {"details": True, "top_n_tokens": 2},
            id="logprobs",
        ),
        pytest.param(
            complete(output=OutputFormat("json_schema", schema=SCHEMA)),
            "/generate",
            {"details": True, "grammar": {"type": "json", "value": SCHEMA}},
            id="json schema",
        ),
        pytest.param(complete(extra={"echo": True}), "/generate", {"details": True, "return_full_text": True}, id="echo"),
    ],
)
def test_a_completion_is_written_for_its_own_api(ask: Ask, path: str, parameters: dict[str, Any]) -> None:
    prepared = TGI.write(ask, "up")
    assert prepared.path == path
    assert json.loads(prepared.body) == {"inputs": "从前", "parameters": parameters}


def test_a_conversation_is_written_for_the_openai_compatible_one() -> None:
    prepared = TGI.write(chat(stream=True, tools=(Tool("f", None, SCHEMA),), sampling=Sampling(max_tokens=3, seed=1)), "up")
    assert prepared.path == "/v1/chat/completions"
    assert json.loads(prepared.body) == {
        "model": "up",
        "messages": [{"role": "user", "content": "你好"}],
        "max_tokens": 3,
        "seed": 1,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    ("ask", "param"),
    [
        pytest.param(complete(prompts=("a", "b")), "prompt", id="two prompts"),
        pytest.param(complete(prompts=((1, 2),)), "prompt", id="token ids"),
        pytest.param(complete(sampling=Sampling(n=2)), "n", id="two answers"),
        pytest.param(complete(sampling=Sampling(presence_penalty=1.0)), "presence_penalty", id="presence penalty"),
        pytest.param(complete(output=OutputFormat("json_object")), "response_format", id="json object"),
        pytest.param(complete(extra={"suffix": "x"}), "suffix", id="suffix"),
        pytest.param(complete(extra={"best_of": 3}), "best_of", id="best of"),
        pytest.param(complete(extra={"echo": True}, stream=True), "echo", id="a streamed echo"),
        pytest.param(chat(sampling=Sampling(n=2)), "n", id="two answers of a chat"),
        pytest.param(chat(output=OutputFormat("json_object")), "response_format", id="json object of a chat"),
        pytest.param(chat(tools=(Tool("f"),), parallel_tool_calls=False), "parallel_tool_calls", id="one call at a time"),
        pytest.param(chat(sampling=Sampling(top_k=5)), "top_k", id="top_k of a chat"),
        pytest.param(Ask("embeddings", "m", inputs=("x",)), "model", id="embeddings"),
        pytest.param(chat(operation="count_tokens"), "model", id="a token count"),
    ],
)
def test_what_has_no_form_is_refused(ask: Ask, param: str) -> None:
    with pytest.raises(SitsError) as caught:
        TGI.write(ask, "up")
    assert (caught.value.code, caught.value.param) == (Code.UNSUPPORTED, param)


def test_thinking_may_be_asked_for() -> None:
    assert json.loads(TGI.write(chat(thinking=Thinking(effort="low")), "up").body)["reasoning_effort"] == "low"


def token(text: str, *, special: bool = False, **fields: Any) -> dict[str, Any]:
    said = {"id": 5, "text": text, "logprob": -0.5, "special": special}
    return {"index": 1, "token": said, "generated_text": None, "details": None, **fields}


def last(reason: str, text: str = "", **fields: Any) -> dict[str, Any]:
    details = {"finish_reason": reason, "generated_tokens": 3, "input_length": 0, "seed": None}
    return token(text, special=not text, generated_text="whatever", details={**details, **fields})


def wire(*values: dict[str, Any]) -> bytes:
    """As the server writes it: no blank after the colon."""
    return "".join(f"data:{json.dumps(value, ensure_ascii=False)}\n\n" for value in values).encode()


def decode(ask: Ask, pieces: list[bytes]) -> list[Event]:
    decoder = TGI.decoder(ask)
    return [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()


USED = Used(Usage(input=0, output=3))
STOPPED = complete(sampling=Sampling(stop=("###", "完了")))
WAYS = {
    "end of sequence": (
        complete(),
        wire(token("你"), token("好"), last("eos_token")),
        [Started(), Text("你"), Text("好"), Finish("stop"), USED],
    ),
    "length": (complete(), wire(token("a"), last("length", "b")), [Started(), Text("a"), Text("b"), Finish("length"), USED]),
    "a stop sequence is cut off": (
        STOPPED,
        wire(token("a#"), token("b##"), last("stop_sequence", "#")),
        [Started(), Text("a"), Text("#b"), Finish("stop", stop_sequence="###"), USED],
    ),
    "what only looked like one is not": (
        STOPPED,
        wire(token("a##"), last("eos_token")),
        [Started(), Text("a"), Text("##"), Finish("stop"), USED],
    ),
    "log probabilities": (
        complete(sampling=Sampling(logprobs=True, top_logprobs=1)),
        wire(token("你", top_tokens=[{"id": 5, "text": "你", "logprob": -0.5}]), token("b"), last("eos_token")),
        [
            Started(),
            Text("你", logprobs={"tokens": ["你"], "token_logprobs": [-0.5], "top_logprobs": [{"你": -0.5}], "text_offset": [0]}),
            Text("b", logprobs={"tokens": ["b"], "token_logprobs": [-0.5], "top_logprobs": [None], "text_offset": [1]}),
            Finish("stop"),
            USED,
        ],
    ),
    "no details": (complete(), wire(token("x", generated_text="x")), [Started(), Text("x"), Finish("stop")]),
}


@pytest.mark.parametrize(("ask", "stream", "expected"), WAYS.values(), ids=WAYS)
def test_a_stream_is_read_whole_and_byte_by_byte(ask: Ask, stream: bytes, expected: list[Event]) -> None:
    assert decode(ask, [stream]) == expected
    assert decode(ask, bytewise(stream)) == expected


@settings(max_examples=60)
@given(cuts=CUTS, texts=st.lists(st.text("ab#完了", min_size=1, max_size=4), max_size=6))
def test_held_text_loses_nothing_but_the_stop_sequence(cuts: list[int], texts: list[str]) -> None:
    stream = wire(*map(token, texts), last("stop_sequence", "###"))
    events = decode(STOPPED, cut(stream, cuts))
    assert "".join(event.text for event in events if isinstance(event, Text)) == "".join(texts)


@pytest.mark.parametrize(
    ("ask", "body", "expected"),
    [
        pytest.param(
            complete(),
            {
                "generated_text": "你好",
                "details": {"finish_reason": "length", "generated_tokens": 0, "prefill": [], "tokens": []},
            },
            [Started(), Text("你好"), Finish("length"), Used(Usage(output=0))],
            id="the prompt's length is not said",
        ),
        pytest.param(
            complete(),
            [
                {
                    "generated_text": "x",
                    "details": {"finish_reason": "eos_token", "generated_tokens": 1, "prefill": [{}, {}]},
                }
            ],
            [Started(), Text("x"), Finish("stop"), Used(Usage(input=2, output=1))],
            id="a list of one, with the prompt's tokens",
        ),
        pytest.param(
            STOPPED,
            {"generated_text": "a完了", "details": {"finish_reason": "stop_sequence"}},
            [Started(), Text("a"), Finish("stop", stop_sequence="完了")],
            id="a stop sequence is cut off",
        ),
        pytest.param(
            complete(sampling=Sampling(logprobs=True)),
            {
                "generated_text": "ab",
                "details": {
                    "finish_reason": "eos_token",
                    "tokens": [token("a")["token"], token("b")["token"], token("", special=True)["token"]],
                    "top_tokens": [[{"text": "a", "logprob": -0.1}]],
                },
            },
            [
                Started(),
                Text(
                    "ab",
                    logprobs={
                        "tokens": ["a", "b"],
                        "token_logprobs": [-0.5, -0.5],
                        "top_logprobs": [{"a": -0.1}, None],
                        "text_offset": [0, 1],
                    },
                ),
                Finish("stop"),
            ],
            id="log probabilities",
        ),
    ],
)
def test_a_whole_answer_is_read(ask: Ask, body: Any, expected: list[Event]) -> None:
    assert TGI.whole(ask, json.dumps(body).encode()) == expected


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("generation", Code.UPSTREAM_ERROR),
        ("overloaded", Code.UPSTREAM_RATE_LIMITED),
        ("validation", Code.UPSTREAM_REJECTED),
    ],
)
def test_an_error_in_a_stream_is_raised_with_what_came_before(kind: str, code: Code) -> None:
    error = {"error": "Request failed", "error_type": kind}
    with pytest.raises(SitsError) as caught:
        decode(complete(), [wire(token("half"), error)])
    assert (caught.value.code, caught.value.upstream_code, caught.value.args[1]) == (code, kind, [Started(), Text("half")])
    with pytest.raises(SitsError) as again:
        TGI.whole(complete(), json.dumps(error).encode())
    assert again.value.code is code


def test_unreadable_events_are_left_out_and_a_cut_stream_is_broken() -> None:
    decoder = TGI.decoder(complete())
    assert decoder.feed(b"data:{oops\n\ndata:{}\n\n" + wire(token("x"))) == [Started(), Text("x")]
    assert decoder.skipped == 2
    with pytest.raises(SitsError) as caught:
        decoder.close()
    assert caught.value.code is Code.UPSTREAM_BROKEN


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b"3", b'{"generated_text": 3}'], ids=lambda body: body.decode() or "empty"
)
def test_what_is_no_answer_is_broken(body: bytes) -> None:
    with pytest.raises(SitsError) as caught:
        TGI.whole(complete(), body)
    assert caught.value.code is Code.UPSTREAM_BROKEN


TOO_LONG = "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 20"


@pytest.mark.parametrize(
    ("status", "message", "kind", "code", "remedy"),
    [
        (422, "Input validation error: `temperature` must be strictly positive", "validation", Code.UPSTREAM_REJECTED, "fix"),
        (422, TOO_LONG, "validation", Code.CONTEXT_TOO_LONG, "fix"),
        (424, "Request failed during generation", "generation", Code.UPSTREAM_ERROR, "else"),
        (429, "Model is overloaded", "overloaded", Code.UPSTREAM_RATE_LIMITED, "else"),
        (500, "Incomplete generation", "incomplete_generation", Code.UPSTREAM_ERROR, "else"),
    ],
)
def test_an_error_answer_is_explained(status: int, message: str, kind: str, code: Code, remedy: str) -> None:
    body = json.dumps({"error": message, "error_type": kind}).encode()
    found = TGI.explain(status, [], body)
    assert (found.code, found.upstream_code) == (code, kind)
    assert found.remedy is (Remedy.FIX_REQUEST if remedy == "fix" else Remedy.TRY_ELSEWHERE)


def test_a_failed_generation_without_its_type_is_the_servers_fault() -> None:
    assert TGI.explain(424, [], b'{"message": "x"}').remedy is Remedy.TRY_ELSEWHERE
