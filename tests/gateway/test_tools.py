"""Tool calls on their way through: nothing dropped, nothing mixed up, indices dense from 0."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pytest
from gateway_rig import Gateway, inside_loop, model, route
from gateway_wires import ANTHROPIC, OPENAI_CHAT, PATHS, TERMINATORS, request, sse

from sits.engines.scripted import LAST_CHUNK, READ, ScriptedServer, Step, answer, chunk, chunked

TOOLS = [
    {"type": "function", "function": {"name": name, "description": "查询", "parameters": {"type": "object"}}}
    for name in ("weather", "time")
]  # fmt: skip
CALLS = [("weather", {"城市": "北京"}), ("time", {"zone": "Asia/Shanghai"})]


def _chat(index: int, **call: Any) -> bytes:
    delta = {"tool_calls": [{"index": index, **call}]}
    return sse({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def openai() -> list[bytes]:
    """Two calls whose indices have a gap, the second one begun before the first has ended."""
    first, second = (json.dumps(arguments, ensure_ascii=False) for _, arguments in CALLS)
    return [
        _chat(1, id="call_a", type="function", function={"name": "weather", "arguments": ""}),
        _chat(1, function={"arguments": first[:5]}),
        _chat(7, id="call_b", type="function", function={"name": "time", "arguments": second}),
        _chat(1, function={"arguments": first[5:]}),
        sse({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
        b"data: [DONE]\n\n",
    ]


def anthropic() -> list[bytes]:
    """A sentence, then two calls: blocks 1 and 2."""
    out = [ANTHROPIC.text("我来查。"), sse({"type": "content_block_stop", "index": 0}, "content_block_stop")]
    for number, (name, arguments) in enumerate(CALLS, 1):
        block = {"type": "tool_use", "id": f"toolu_{name}", "name": name, "input": {}}
        written = json.dumps(arguments, ensure_ascii=False)
        out.append(sse({"type": "content_block_start", "index": number, "content_block": block}, "content_block_start"))
        for part in (written[:4], written[4:]):
            delta = {"type": "input_json_delta", "partial_json": part}
            out.append(sse({"type": "content_block_delta", "index": number, "delta": delta}, "content_block_delta"))
        out.append(sse({"type": "content_block_stop", "index": number}, "content_block_stop"))
    end = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 7}}
    return [*out, sse(end, "message_delta"), sse({"type": "message_stop"}, "message_stop")]


def called(operation: str, body: bytes) -> list[tuple[int, str, Any]]:
    """(index, name, arguments) of each call in a stream; a responses stream names its calls in its last event."""
    events = [json.loads(raw) for raw in re.findall(rb"^data: (\{.*)$", body, re.MULTILINE)]
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    if operation == "responses":
        items = [item for item in events[-1]["response"]["output"] if item["type"] == "function_call"]
        return [(number, item["name"], json.loads(item["arguments"])) for number, item in enumerate(items)]
    for event in events:
        if operation == "chat":
            for choice in event.get("choices", ()):
                for call in choice["delta"].get("tool_calls", ()):
                    names.setdefault(call["index"], call["function"].get("name"))
                    arguments[call["index"]] = arguments.get(call["index"], "") + call["function"].get("arguments", "")
        elif event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            names[event["index"]] = event["content_block"]["name"]
        elif event["type"] == "content_block_delta" and event["delta"]["type"] == "input_json_delta":
            arguments[event["index"]] = arguments.get(event["index"], "") + event["delta"]["partial_json"]
    first = min(names)
    return [(index - first, name, json.loads(arguments[index])) for index, name in names.items()]


@pytest.mark.parametrize(
    ("operation", "engine"), [("chat", "anthropic"), ("responses", "vllm"), ("responses", "anthropic"), ("messages", "openai")]
)
@inside_loop
async def test_streamed_tool_calls_are_the_clients_own_dense_and_whole(
    tmp_path: pathlib.Path, operation: str, engine: str
) -> None:
    pieces = anthropic() if engine == "anthropic" else openai()
    wire = ANTHROPIC if engine == "anthropic" else OPENAI_CHAT
    tools: Any = TOOLS
    if operation == "messages":
        tools = [{"name": one["function"]["name"], "input_schema": {"type": "object"}} for one in TOOLS]  # type: ignore[index]
    elif operation == "responses":
        tools = [{"type": "function", **one["function"]} for one in TOOLS]  # type: ignore[dict-item]
    steps: list[Step] = [wire.head(), *map(chunk, pieces), LAST_CHUNK]
    async with (
        ScriptedServer([READ, *steps]) as server,
        Gateway(tmp_path, model("one", server.url, engine)) as gateway,
    ):
        asking = await gateway.ask(PATHS[operation], request(operation, "one", stream=True, tools=tools))
        record = gateway.record(asking)
    assert (asking.status, asking.whole, asking.code) == (200, True, "")
    assert called(operation, asking.body) == [(number, name, arguments) for number, (name, arguments) in enumerate(CALLS)]
    assert TERMINATORS[operation] in asking.body
    assert record.finish == "tool_calls"
    sent = json.loads(server.requests[0].body)["tools"]
    assert [one.get("name") or one["function"]["name"] for one in sent] == ["weather", "time"]


@inside_loop
async def test_a_tool_call_is_content_and_commits(tmp_path: pathlib.Path) -> None:
    head = chunked(200, OPENAI_CHAT.opening, fields=[("content-type", "text/event-stream")], end=False)
    begun = [READ, head, chunk(openai()[0]), LAST_CHUNK]
    async with (
        ScriptedServer(begun) as dying,
        ScriptedServer([READ, answer(500)]) as second,
        Gateway(tmp_path, model("one", dying.url), model("two", second.url), route("r", "one", fallbacks=("two",))) as gateway,
    ):
        asking = await gateway.ask(PATHS["chat"], request("chat", "r", stream=True, tools=TOOLS))
    assert (asking.status, asking.code, second.requests) == (200, "stream_broken", [])
    assert b'"weather"' in asking.body
