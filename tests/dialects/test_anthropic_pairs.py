"""Every client dialect over every upstream dialect, read by the official SDKs: nothing is lost on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from sits import dialects
from sits.dialects import sse
from sits.dialects.base import Identity
from sits.dialects.bridge import Bridge, whole_bridge
from sits.inner.ask import Ask, Operation, TextPart
from sits.inner.ask import Message as InnerMessage
from sits.inner.event import Usage

from .anthropic_wires import ANTHROPIC_STREAM, ANTHROPIC_WHOLE, OLLAMA_STREAM, OLLAMA_WHOLE, OPENAI_STREAM
from .cuts import CUTS, bytewise, cut
from .test_openai_conformance import SAMPLE

IDENTITY = Identity("abc", "served", 1_700_000_000)
STREAMS = {"vllm": OPENAI_STREAM, "anthropic": ANTHROPIC_STREAM, "ollama": OLLAMA_STREAM, "tgi": OPENAI_STREAM}
CLIENTS: tuple[Operation, ...] = ("chat", "messages", "responses")
SAID = {
    "reasoning": "想一想",
    "text": "Hello 世界",
    "calls": [("call_a", "look", {"q": "x"}), ("call_b", "walk", {})],
}
CACHED = {"vllm": (3, 0), "tgi": (3, 0), "anthropic": (3, 0), "ollama": (None, None)}
"""What each upstream says of its cache, tokens read and written: Ollama says nothing."""


def ask(operation: Operation, **fields: Any) -> Ask:
    messages = (InnerMessage("user", (TextPart("go"),)),)
    return Ask(operation=operation, model="m", stream=True, include_usage=True, messages=messages, **fields)


def bridge(operation: Operation, engine: str) -> Bridge:
    asked = ask(operation)
    return Bridge(dialects.upstream(engine).decoder(asked), dialects.client(operation).encoder(asked, IDENTITY))


def run(operation: Operation, engine: str, pieces: list[bytes]) -> bytes:
    translation = bridge(operation, engine)
    wire = b"".join([*map(translation.feed, pieces), translation.close()])
    assert (translation.committed, translation.finished, translation.fault, translation.skipped) == (True, True, None, 0)
    cached, written = CACHED[engine]
    assert translation.usage == Usage(input=9, output=7, cached=cached, cache_written=written)
    assert translation.finish == "tool_calls"
    return wire


def transport(wire: bytes) -> httpx2.Client:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=wire, request=request)

    return httpx2.Client(transport=httpx2.MockTransport(answer))


def anthropic_sdk(wire: bytes) -> anthropic.Anthropic:
    return anthropic.Anthropic(api_key="k", base_url="http://sits.test", http_client=transport(wire), max_retries=0)


def openai_sdk(wire: bytes) -> openai.OpenAI:
    return openai.OpenAI(api_key="k", base_url="http://sits.test/v1", http_client=transport(wire), max_retries=0)


def data(wire: bytes) -> list[Any]:
    return [json.loads(event.data) for event in sse.EventDecoder().feed(wire) if event.data != b"[DONE]"]


def strictly(form: Any, values: list[Any]) -> None:
    """Every value is one of the SDK's own types, without a conversion."""
    adapter: TypeAdapter[Any] = TypeAdapter(form)
    for value in values:
        adapter.validate_json(json.dumps(value), strict=True)


def read_chat(wire: bytes) -> tuple[dict[str, Any], tuple[int, int]]:
    strictly(ChatCompletionChunk, data(wire))
    reasoning, usage = "", None
    with openai_sdk(wire).chat.completions.stream(model="m", messages=[{"role": "user", "content": "go"}]) as stream:
        for event in stream:
            if event.type == "chunk":
                usage = event.chunk.usage or usage
                reasoning += "".join(getattr(c.delta, "reasoning_content", None) or "" for c in event.chunk.choices)
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls"
    assert usage is not None
    calls = [(call.id, call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or ()]
    said = {"reasoning": reasoning, "text": choice.message.content, "calls": calls}
    return said, (usage.prompt_tokens, usage.completion_tokens)


def read_messages(wire: bytes) -> tuple[dict[str, Any], tuple[int, int]]:
    values = data(wire)
    strictly(RawMessageStreamEvent, values)
    well_nested(values)
    with anthropic_sdk(wire).messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "go"}]) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use"
    return of_message(message)


def of_message(message: Any) -> tuple[dict[str, Any], tuple[int, int]]:
    said: dict[str, Any] = {"reasoning": "", "text": "", "calls": []}
    for block in message.content:
        if block.type == "thinking":
            said["reasoning"] += block.thinking
        elif block.type == "text":
            said["text"] += block.text
        else:
            said["calls"].append((block.id, block.name, block.input))
    usage = message.usage
    cache = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return said, (usage.input_tokens + cache, usage.output_tokens)


def well_nested(values: list[Any]) -> None:
    """One start, blocks one after another with numbers without a gap, one delta, one stop."""
    kinds = [value["type"] for value in values]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    number, is_open = -1, False
    for value in values[1:-2]:
        if value["type"] == "content_block_start":
            assert not is_open
            number, is_open = number + 1, True
        else:
            assert is_open
        is_open = value["type"] != "content_block_stop"
        assert value["index"] == number
    assert not is_open


def read_responses(wire: bytes) -> tuple[dict[str, Any], tuple[int, int]]:
    values = data(wire)
    strictly(ResponseStreamEvent, values)
    assert [value["sequence_number"] for value in values] == list(range(len(values)))
    with openai_sdk(wire).responses.stream(model="m", input="go") as stream:
        for _ in stream:
            pass
        response = stream.get_final_response()
    assert response.status == "completed"
    added = [value["item"]["id"] for value in values if value["type"] == "response.output_item.added"]
    done = [value["item"] for value in values if value["type"] == "response.output_item.done"]
    assert added == [item["id"] for item in done] == [item.id for item in response.output]
    assert done == values[-1]["response"]["output"]
    return of_response(response)


def of_response(response: Any) -> tuple[dict[str, Any], tuple[int, int]]:
    said: dict[str, Any] = {"reasoning": "", "text": response.output_text, "calls": []}
    for item in response.output:
        if item.type == "reasoning":
            said["reasoning"] += "".join(part.text for part in item.content or item.summary)
        elif item.type == "function_call":
            said["calls"].append((item.call_id, item.name, json.loads(item.arguments)))
    assert response.usage is not None
    return said, (response.usage.input_tokens, response.usage.output_tokens)


READERS: dict[str, Callable[[bytes], tuple[dict[str, Any], tuple[int, int]]]] = {
    "chat": read_chat,
    "messages": read_messages,
    "responses": read_responses,
}


@pytest.mark.parametrize("engine", sorted(STREAMS))
@pytest.mark.parametrize("operation", CLIENTS)
def test_a_streamed_answer_arrives_whole_at_the_official_sdk(operation: Operation, engine: str) -> None:
    assert READERS[operation](run(operation, engine, [STREAMS[engine]])) == (SAID, (9, 7))


@pytest.mark.parametrize("engine", sorted(STREAMS))
@pytest.mark.parametrize("operation", CLIENTS)
def test_a_stream_is_the_same_byte_by_byte(operation: Operation, engine: str) -> None:
    wire = STREAMS[engine]
    assert run(operation, engine, bytewise(wire)) == run(operation, engine, [wire])


@pytest.mark.parametrize("engine", sorted(STREAMS))
@settings(max_examples=25)
@given(cuts=CUTS)
def test_cuts_never_change_what_an_anthropic_client_gets(engine: str, cuts: list[int]) -> None:
    wire = STREAMS[engine]
    assert run("messages", engine, cut(wire, cuts)) == run("messages", engine, [wire])


WHOLES = {"anthropic": ANTHROPIC_WHOLE, "ollama": OLLAMA_WHOLE, "vllm": SAMPLE.whole}
FORMS = {"chat": ChatCompletion, "messages": Message, "responses": Response}


@pytest.mark.parametrize("engine", sorted(WHOLES))
@pytest.mark.parametrize("operation", CLIENTS)
def test_a_whole_answer_has_the_sdks_own_type(operation: Operation, engine: str) -> None:
    wire, reading = whole_bridge(dialects.upstream(engine), dialects.client(operation), ask(operation), WHOLES[engine], IDENTITY)
    assert reading.fault is None
    strictly(FORMS[operation], [json.loads(wire)])
    assert json.loads(wire)["model"] == "served"


@pytest.mark.parametrize("engine", ["anthropic", "ollama"])
def test_a_whole_answer_says_the_same_as_a_streamed_one(engine: str) -> None:
    for operation, form, read in (("messages", Message, of_message), ("responses", Response, of_response)):
        wire, _ = whole_bridge(dialects.upstream(engine), dialects.client(operation), ask(operation), WHOLES[engine], IDENTITY)
        assert read(form.model_validate_json(wire)) == (SAID, (9, 7))
