"""The official clients read an answer that went on at another target as one answer."""

from __future__ import annotations

import json
from collections.abc import Callable

import anthropic
import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from sits import dialects
from sits.inner.ask import Operation

from .continued_kit import Exchange, Story, ask, event_ends, served

STORY = Story(("w1", " w2", " 三", "、", "four"), ("let me ", "think 想"))
CALLING = Story(("I look. ",), calls=2)
STREAM = {"content-type": "text/event-stream"}
ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "count"}]


def wire(operation: Operation, story: Story, after: int) -> bytes:
    """The stream that a client gets whose target breaks off after so many events."""
    exchange = Exchange(ask(operation))
    whole = served("vllm", dialects.upstream("vllm").write(exchange.ask, "m"), story)
    exchange.run("vllm", story, until=event_ends(whole)[after])
    exchange.run("anthropic" if operation != "completions" else "sglang", story)
    assert exchange.out.count(b": sits-continued") == 1
    return exchange.out


def http(body: bytes) -> httpx2.Client:
    """Gets this stream, whatever it asks for."""
    return httpx2.Client(transport=httpx2.MockTransport(lambda _: httpx2.Response(200, headers=STREAM, content=body)))


def openai_client(body: bytes) -> openai.OpenAI:
    return openai.OpenAI(api_key="k", base_url="http://gateway/v1", http_client=http(body))


def chat(body: bytes, story: Story) -> tuple[str, str, list[str], int | None]:
    tools: list[openai.types.chat.ChatCompletionToolParam] = [
        {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    ]
    with openai_client(body) as client, client.chat.completions.stream(model="m", messages=ASKED, tools=tools) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    message = final.choices[0].message
    assert "".join(deltas) == (message.content or "")
    assert final.choices[0].finish_reason == ("tool_calls" if story.calls else "stop")
    calls = [call.function.arguments for call in message.tool_calls or ()]
    reasoning = getattr(message, "reasoning_content", "")
    return message.content or "", reasoning, calls, final.usage.completion_tokens if final.usage else None


def responses(body: bytes, story: Story) -> tuple[str, str, list[str], int | None]:
    with openai_client(body) as client, client.responses.stream(model="m", input="count") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert ("".join(deltas), final.status) == (final.output_text, "completed")
    reasoning = [part.text for item in final.output if item.type == "reasoning" for part in item.content or ()]
    calls = [item.arguments for item in final.output if item.type == "function_call"]
    return final.output_text, "".join(reasoning), calls, final.usage.output_tokens if final.usage else None


def messages(body: bytes, story: Story) -> tuple[str, str, list[str], int | None]:
    client = anthropic.Anthropic(api_key="k", base_url="http://gateway", http_client=http(body))
    with client, client.messages.stream(model="m", max_tokens=99, messages=[{"role": "user", "content": "count"}]) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    text = "".join(part.text for part in final.content if part.type == "text")
    assert ("".join(texts), final.stop_reason) == (text, "tool_use" if story.calls else "end_turn")
    reasoning = "".join(part.thinking for part in final.content if part.type == "thinking")
    calls = [json.dumps(part.input, ensure_ascii=False) for part in final.content if part.type == "tool_use"]
    return text, reasoning, calls, final.usage.output_tokens


Reader = Callable[[bytes, Story], tuple[str, str, list[str], int | None]]
READERS: dict[Operation, Reader] = {"chat": chat, "responses": responses, "messages": messages}


@pytest.mark.parametrize("operation", READERS)
@pytest.mark.parametrize("after", range(3, 8))
def test_text_after_reasoning_is_read_whole(operation: Operation, after: int) -> None:
    text, reasoning, calls, output = READERS[operation](wire(operation, STORY, after), STORY)
    assert (text, reasoning, calls, output) == (STORY.text, "let me think 想", [], 7)


@pytest.mark.parametrize("operation", READERS)
def test_calls_after_a_seam_are_read_whole(operation: Operation) -> None:
    text, _, calls, _ = READERS[operation](wire(operation, CALLING, 3), CALLING)
    assert (text, calls) == (CALLING.text, ['{"q": "天气"}'] * 2)


def test_a_completion_is_read_whole() -> None:
    story = Story(("w1", " w2", " 三"))
    with openai_client(wire("completions", story, 1)) as client:
        chunks = list(client.completions.create(model="m", prompt="count", stream=True))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == story.text
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "stop"
