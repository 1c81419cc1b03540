"""Answers that were cut by their length: when they are gone on with, and that the client sees one answer."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from sits import dialects
from sits.dialects.base import Identity
from sits.dialects.continued import Continued
from sits.inner.ask import Ask, Message, Sampling, TextPart
from sits.resources.context import ServiceSpec
from sits.routing.context import Cut, answer_room, room_left

CODE, SUMMARY = ServiceSpec(6000, resume=True), ServiceSpec(3000)
ASK = Ask("chat", "m", stream=True, include_usage=True, messages=(Message("user", (TextPart("Write code."),)),))


@pytest.mark.parametrize(
    ("cut", "service", "room"),
    [
        pytest.param(Cut("length", 500, 2000), CODE, 5676, id="what the window has left"),
        pytest.param(Cut("length", 500, 2000), SUMMARY, 0, id="not for a service without the flag"),
        pytest.param(Cut("stop", 500, 2000), CODE, 0, id="not what is complete"),
        pytest.param(Cut("length", 500, 100, 100), CODE, 0, id="not what is as long as the client said"),
        pytest.param(Cut("length", 500, 100, 1000), CODE, 900, id="to where the client said"),
        pytest.param(Cut("length", 500, 7661), CODE, 0, id="not for a few tokens more"),
        pytest.param(Cut("length", 500, 0), CODE, 0, id="not what has not begun"),
    ],
)
def test_an_answer_is_gone_on_with_only_where_the_server_cut_it(cut: Cut, service: ServiceSpec, room: int) -> None:
    assert answer_room(cut, service, 8192) == room


def chunk(text: str, finish: str | None = None, **fields: Any) -> bytes:
    delta = {"content": text} if text else {}
    said = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", **fields}
    return f"data: {json.dumps({**said, 'choices': [{'index': 0, 'delta': delta, 'finish_reason': finish}]})}\n\n".encode()


def usage(prompt: int, output: int) -> bytes:
    said = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
    return f"data: {json.dumps({**said, 'usage': {'prompt_tokens': prompt, 'completion_tokens': output}})}\n\n".encode()


DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("ended", [DONE, b""], ids=["with a terminator", "by the end of the body"])
def test_a_stream_cut_by_its_length_goes_on_as_one_answer(ended: bytes) -> None:
    upstream, answer = dialects.upstream("vllm"), Continued(ASK, dialects.client("chat"))
    told = b""

    _, onset = answer.write(upstream, "m", prefill=True)
    answer.resumes = True
    leg = answer.leg(upstream.decoder(ASK), Identity("i", "m", 1), onset, target="m")
    for piece in (chunk("def f(x):\n"), chunk("    return"), chunk("", "length"), usage(9, 2), ended):
        told += leg.feed(piece)
    told += leg.close()
    assert (leg.cut, leg.fault, leg.finish, leg.finished) == (True, None, "length", True)
    assert (answer.held, answer.finished) == (True, False)
    assert leg.usage is not None
    assert leg.usage.output == 2, "what came after the finish is still read"
    left = room_left(answer, ASK, CODE, 8192)
    assert left == 8192 - 9 - 2 - 16

    prepared, onset = answer.write(upstream, "m", prefill=True, most=left)
    assert json.loads(prepared.body)["max_tokens"] == left
    assert json.loads(prepared.body)["messages"][-1] == {"role": "assistant", "content": "def f(x):\n    return"}
    leg = answer.leg(upstream.decoder(ASK), Identity("i", "m", 1), onset, target="m")
    for piece in (chunk(" x ** 2\n"), chunk("", "stop"), usage(12, 3), DONE):
        told += leg.feed(piece)
    told += leg.close()
    assert leg.fault is None

    events = [json.loads(line[6:]) for line in told.split(b"\n") if line.startswith(b"data: {")]
    choices = [event["choices"][0] for event in events if event["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == "def f(x):\n    return x ** 2\n"
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]
    assert events[-1]["usage"]["prompt_tokens"] == 9
    assert events[-1]["usage"]["completion_tokens"] == 5
    assert told.endswith(DONE)


@pytest.mark.parametrize("ended", [DONE, b""], ids=["with a terminator", "by the end of the body"])
def test_an_answer_that_nobody_goes_on_with_has_the_finish_that_it_would_have_had(ended: bytes) -> None:
    def told(*, resumes: bool) -> bytes:
        upstream, answer = dialects.upstream("vllm"), Continued(ASK, dialects.client("chat"))
        answer.resumes = resumes
        _, onset = answer.write(upstream, "m", prefill=True)
        leg = answer.leg(upstream.decoder(ASK), Identity("i", "m", 1), onset, target="m")
        out = b"".join(map(leg.feed, (chunk("def f(x):"), chunk("", "length"), usage(9, 2), ended))) + leg.close()
        assert answer.held is resumes
        return out + answer.cut_off() if resumes else out

    assert told(resumes=True) == told(resumes=False)


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        pytest.param(None, 8192 - 7 - 1 - 16, id="by its pieces, where the client asked for no length"),
        pytest.param(500, 0, id="not where it did: a piece may be several tokens"),
    ],
)
def test_room_where_the_server_tells_no_figures(asked: int | None, left: int) -> None:
    wanted = msgspec.structs.replace(ASK, sampling=Sampling(max_tokens=asked))
    upstream, answer = dialects.upstream("vllm"), Continued(wanted, dialects.client("chat"))
    answer.resumes = True
    _, onset = answer.write(upstream, "m", prefill=True)
    leg = answer.leg(upstream.decoder(wanted), Identity("i", "m", 1), onset, target="m")
    for piece in (chunk("def f(x):"), chunk("", "length"), DONE):
        leg.feed(piece)
    assert answer.held
    assert room_left(answer, wanted, CODE, 8192) == left
