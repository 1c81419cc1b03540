"""Whole conversations with tools: call, result, answer, by every client and through every dialect of upstream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr
from weather import CELSIUS, CITIES, QUESTION, SCHEMA, TOLD, anthropic_server, openai_server

from serving import Served, Upstream, says

SERVERS = {"vllm": openai_server, "anthropic": anthropic_server}


@pytest.fixture(scope="module", params=SERVERS)
def name(request: pytest.FixtureRequest, gateway: Served) -> Iterator[str]:
    """A model that calls tools, registered while the gateway runs."""
    engine = request.param
    with (
        Upstream(says(SERVERS[engine])) as upstream,
        gateway.model(f"weather-{engine}", upstream.url, engine=engine, upstream_model="forecaster") as name,
    ):
        yield name
        assert {body["model"] for body in upstream.bodies} == {"forecaster"}


streamed = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@streamed
def test_the_openai_client_runs_the_whole_loop(openai_client: openai.OpenAI, name: str, stream: bool) -> None:
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]

    def ask() -> Any:
        if not stream:
            return openai_client.chat.completions.create(model=name, messages=messages, tools=tools).choices[0]
        with openai_client.chat.completions.stream(model=name, messages=messages, tools=tools) as events:
            return events.get_final_completion().choices[0]

    first = ask()
    assert first.finish_reason == "tool_calls"
    assert [json.loads(call.function.arguments) for call in first.message.tool_calls] == [{"city": city} for city in CITIES]
    messages.append(first.message.to_dict())
    for call in reversed(first.message.tool_calls):
        celsius = CELSIUS[json.loads(call.function.arguments)["city"]]
        messages.append({"role": "tool", "tool_call_id": call.id, "content": celsius})
    last = ask()
    assert (last.message.content, last.finish_reason) == (TOLD, "stop")


@streamed
def test_the_anthropic_client_runs_the_whole_loop(anthropic_client: anthropic.Anthropic, name: str, stream: bool) -> None:
    tools: Any = [{"name": "weather", "input_schema": SCHEMA}]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]

    def ask() -> anthropic.types.Message:
        if not stream:
            return anthropic_client.messages.create(model=name, max_tokens=64, messages=messages, tools=tools)
        with anthropic_client.messages.stream(model=name, max_tokens=64, messages=messages, tools=tools) as events:
            return events.get_final_message()

    first = ask()
    calls = [block for block in first.content if block.type == "tool_use"]
    assert first.stop_reason == "tool_use"
    assert [(call.name, call.input) for call in calls] == [("weather", {"city": city}) for city in CITIES]
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": CELSIUS[str(call.input["city"])]} for call in reversed(calls)
    ]
    messages += [{"role": "assistant", "content": [call.to_dict() for call in calls]}, {"role": "user", "content": results}]
    last = ask()
    assert last.stop_reason == "end_turn"
    assert [block.text for block in last.content if block.type == "text"] == [TOLD]


@streamed
def test_responses_run_the_whole_loop(openai_client: openai.OpenAI, name: str, stream: bool) -> None:
    tools: Any = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}]
    items: list[Any] = [{"role": "user", "content": QUESTION}]

    def ask() -> Any:
        if not stream:
            return openai_client.responses.create(model=name, input=items, tools=tools)
        with openai_client.responses.stream(model=name, input=items, tools=tools) as events:
            return events.get_final_response()

    calls = [item for item in ask().output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [{"city": city} for city in CITIES]
    items += [{"type": "function_call", "call_id": c.call_id, "name": c.name, "arguments": c.arguments} for c in calls]
    for call in reversed(calls):
        celsius = CELSIUS[json.loads(call.arguments)["city"]]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": celsius})
    assert ask().output_text == TOLD


@tool
def weather(city: str) -> str:
    """How warm it is in a city."""
    return CELSIUS[city]


@streamed
def test_langchain_runs_the_whole_loop(gateway: Served, name: str, stream: bool) -> None:
    plain: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
    model = ChatOpenAI(base_url=f"{gateway.url}/v1", api_key=SecretStr("none-yet"), model=name, max_retries=0).bind_tools([plain])
    messages: list[BaseMessage] = [HumanMessage(QUESTION)]

    def ask() -> AIMessage:
        if not stream:
            return model.invoke(messages)
        first, *rest = model.stream(messages)
        assert isinstance(first, AIMessageChunk)
        return sum(rest, first)

    called = ask()
    assert [call["args"] for call in called.tool_calls] == [{"city": city} for city in CITIES]
    results: list[ToolMessage] = [weather.invoke(dict(call)) for call in reversed(called.tool_calls)]
    messages += [called, *results]
    assert ask().text == TOLD
