"""Answers that were cut by their length: when they are gone on with, and that the client sees one answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sits import dialects
from sits.dialects.base import Identity
from sits.dialects.continued import Continued
from sits.inner.ask import Ask, Message, TextPart
from sits.inner.errors import Code
from sits.resources.context import ServiceSpec
from sits.routing.context import Cut, Uncut, answer_room

CODE, SUMMARY = ServiceSpec(6000, resume=True), ServiceSpec(3000)
ASK = Ask("chat", "m", stream=True, include_usage=True, messages=(Message("user", (TextPart("Write code."),)),))


@pytest.mark.parametrize(
    ("cut", "service", "room"),
    [
        pytest.param(Cut("length", 500, 2000), CODE, 5692, id="what the window has left"),
        pytest.param(Cut("length", 500, 2000), SUMMARY, 0, id="not for a service without the flag"),
        pytest.param(Cut("stop", 500, 2000), CODE, 0, id="not what is complete"),
        pytest.param(Cut("length", 500, 100, 100), CODE, 0, id="not what is as long as the client said"),
        pytest.param(Cut("length", 500, 100, 1000), CODE, 900, id="to where the client said"),
        pytest.param(Cut("length", 500, 7680), CODE, 0, id="not for a few tokens more"),
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
    first = Uncut(upstream.decoder(ASK))
    leg = answer.leg(first, Identity("i", "m", 1), onset, target="m")
    for piece in (chunk("def f(x):\n"), chunk("    return"), chunk("", "length"), usage(9, 2), ended):
        told += leg.feed(piece)
    told += leg.close()
    assert first.cut
    assert leg.fault is not None
    assert leg.fault.code is Code.STREAM_BROKEN
    assert not answer.finished
    assert leg.usage is not None
    assert leg.usage.output == 2, "what came after the finish is still read"

    prepared, onset = answer.write(upstream, "m", prefill=True)
    assert json.loads(prepared.body)["messages"][-1] == {"role": "assistant", "content": "def f(x):\n    return"}
    leg = answer.leg(Uncut(upstream.decoder(ASK)), Identity("i", "m", 1), onset, target="m")
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


def test_what_is_not_cut_passes_as_it_is() -> None:
    decoder = Uncut(dialects.upstream("vllm").decoder(ASK))
    plain = dialects.upstream("vllm").decoder(ASK)
    for piece in (chunk("hello"), chunk("", "stop"), usage(1, 2), DONE):
        assert decoder.feed(piece) == plain.feed(piece)
    assert decoder.close() == plain.close()
    assert (decoder.cut, decoder.done, decoder.skipped) == (False, True, 0)
