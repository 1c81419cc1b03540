"""What a client gets when all goes well, over every endpoint and every kind of server, and what each side sees of the other."""

from __future__ import annotations

import json
import pathlib
import re
from time import perf_counter
from typing import Any

import pytest
from gateway_rig import Gateway, inside_loop, model, route
from gateway_wires import EMBEDDING, PATHS, RELAYS, STREAMS, TERMINATORS, WIRES, request, said, streamed, texts

from sits.engines.scripted import AGAIN, READ, ScriptedServer, answer, chunk
from sits.inner.event import Usage

HEADERS = {"x-sits-requested": "name", "x-sits-served": "one-upstream", "x-sits-target": "one", "x-sits-attempts": "1"}


@pytest.mark.parametrize(("operation", "engine"), WIRES)
@inside_loop
async def test_a_whole_answer_comes_with_its_text_its_headers_and_a_record(
    tmp_path: pathlib.Path, operation: str, engine: str
) -> None:
    wire = WIRES[operation, engine]
    async with (
        ScriptedServer([READ, wire.answers("你好 😀"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url, engine), route("name", "one")) as gateway,
    ):
        begun = perf_counter()
        asking = await gateway.ask(PATHS[operation], request(operation, "name"))
        took = perf_counter() - begun
        record = gateway.record(asking)
    assert asking.status == 200
    assert said(operation, asking.body) == ("你好 😀" if operation != "embeddings" else "[0.5, -0.25]")
    assert HEADERS.items() <= asking.headers.items()
    assert asking.headers["content-type"] == "application/json"
    assert 0 < float(asking.headers["x-sits-overhead"]) <= 1000 * took, "milliseconds, and a part of what the client waited"
    assert asking.headers["server-timing"].startswith("gateway;dur=")
    if (operation, engine) in {*RELAYS, ("embeddings", "openai")}:
        assert asking.body == wire.body("你好 😀")
    sent = json.loads(server.requests[0].body)
    assert sent.get("model", "one-upstream") == "one-upstream"
    assert "你好，世界" in server.requests[0].body.decode()
    assert (record.requested, record.route, record.served, record.target) == ("name", "name", "one-upstream", "one")
    assert (record.status, record.code, record.stream, record.operation) == (200, "", False, operation)
    assert [(one.target, one.outcome, one.status) for one in record.attempts] == [("one", "ok", 200)]
    assert record.usage == Usage(input=5, output=None if operation == "embeddings" else 7)
    assert record.finish == (None if operation == "embeddings" else "stop")


@pytest.mark.parametrize(("operation", "engine"), STREAMS)
@inside_loop
async def test_a_streamed_answer_comes_piece_by_piece_and_ends_as_its_dialect_says(
    tmp_path: pathlib.Path, operation: str, engine: str
) -> None:
    wire = WIRES[operation, engine]
    async with (
        ScriptedServer([READ, *wire.streams(*texts(3)), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url, engine), route("name", "one")) as gateway,
    ):
        asking = await gateway.ask(PATHS[operation], request(operation, "name", stream=True))
        record = gateway.record(asking)
    assert (asking.status, asking.whole, asking.code) == (200, True, "")
    assert asking.headers["content-type"].startswith("text/event-stream")
    assert HEADERS.items() <= asking.headers.items()
    assert streamed(operation, asking.body) == "".join(texts(3))
    assert asking.body.count(TERMINATORS[operation]) in (1, 2)  # a responses event names itself twice
    assert (record.status, record.code, record.finish, record.stream) == (200, "", "stop", True)
    assert record.usage == Usage(input=5, output=7)
    assert record.attempts[0].pieces == 3


USAGE_SAID = re.compile(rb'"(?:usage|prompt_tokens)"\s*:\s*\{')


@pytest.mark.parametrize(("operation", "engine"), [pair for pair in STREAMS if pair[0] in ("chat", "completions")])
@pytest.mark.parametrize("wanted", [True, False], ids=["asked", "not asked"])
@inside_loop
async def test_usage_is_asked_of_the_server_and_shown_only_to_a_client_that_asked(
    tmp_path: pathlib.Path, operation: str, engine: str, wanted: bool
) -> None:
    wire = WIRES[operation, engine]
    more: dict[str, Any] = {"stream_options": {"include_usage": True}} if wanted else {}
    async with (
        ScriptedServer([READ, *wire.streams("好")]) as server,
        Gateway(tmp_path, model("one", server.url, engine)) as gateway,
    ):
        asking = await gateway.ask(PATHS[operation], request(operation, "one", stream=True, **more))
        record = gateway.record(asking)
    assert bool(USAGE_SAID.search(asking.body)) is wanted
    assert record.usage == Usage(input=5, output=7)
    if wire.path.startswith("/v1/") and engine != "anthropic":
        assert json.loads(server.requests[0].body)["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("usage", "kept"),
    [
        pytest.param(None, Usage(output=2, estimated=True), id="absent is estimated, and marked so"),
        pytest.param({"prompt_tokens": 0, "completion_tokens": 0}, Usage(input=0, output=0), id="an explicit zero stays zero"),
        pytest.param({"prompt_tokens": 9}, Usage(input=9, output=2, estimated=True), id="half is estimated"),
    ],
)
@inside_loop
async def test_usage_is_what_the_server_said(tmp_path: pathlib.Path, usage: Any, kept: Usage) -> None:
    wire = WIRES["chat", "openai"]
    said_usage = b'data: {"choices": [], "usage": %b}\n\n' % json.dumps(usage).encode() if usage is not None else b""
    closing = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n' + said_usage + b"data: [DONE]\n\n"
    steps = [wire.head(), chunk(wire.text("一")), chunk(wire.text("二")), chunk(closing), b"0\r\n\r\n"]
    async with (
        ScriptedServer([READ, *steps]) as server,
        Gateway(tmp_path, model("one", server.url)) as gateway,
    ):
        asking = await gateway.ask(PATHS["chat"], request("chat", "one", stream=True))
        assert gateway.record(asking).usage == kept


@pytest.mark.parametrize("operation", ["embeddings", "count_tokens"])
@inside_loop
async def test_what_has_no_stream_is_refused_when_one_is_asked_for(tmp_path: pathlib.Path, operation: str) -> None:
    path = {"embeddings": "/v1/embeddings", "count_tokens": "/v1/messages/count_tokens"}[operation]
    async with (
        ScriptedServer([READ, answer(200, json.dumps(EMBEDDING).encode())]) as server,
        Gateway(tmp_path, model("one", server.url)) as gateway,
    ):
        asking = await gateway.ask(path, {"model": "one", "input": "x", "messages": [], "stream": True})
        assert (asking.status, asking.code, server.requests) == (400, "unsupported", [])


@pytest.mark.parametrize(("operation", "engine"), STREAMS)
@inside_loop
async def test_a_whole_answer_where_a_stream_was_asked_becomes_a_stream(
    tmp_path: pathlib.Path, operation: str, engine: str
) -> None:
    async with (
        ScriptedServer([READ, WIRES[operation, engine].answers("完整")]) as server,
        Gateway(tmp_path, model("one", server.url, engine)) as gateway,
    ):
        asking = await gateway.ask(PATHS[operation], request(operation, "one", stream=True))
        record = gateway.record(asking)
    assert (asking.status, asking.whole, asking.headers["content-type"]) == (200, True, "text/event-stream")
    assert streamed(operation, asking.body) == "完整"
    assert TERMINATORS[operation] in asking.body
    assert (record.status, record.code, record.usage, record.finish) == (200, "", Usage(input=5, output=7), "stop")


CREDENTIALS = {
    "authorization": "Bearer client-secret",
    "cookie": "session=client-secret",
    "x-api-key": "client-secret",
    "proxy-authorization": "Basic client-secret",
    "x-forwarded-for": "client-secret",
    "openai-organization": "client-secret",
}
OURS = {"host", "content-length", "content-type", "user-agent", "traceparent", "x-request-id", "anthropic-version"}


@pytest.mark.parametrize(("operation", "engine"), WIRES)
@inside_loop
async def test_outbound_headers_are_the_allow_list_on_every_attempt(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, operation: str, engine: str
) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", "upstream-key")
    wire = WIRES[operation, engine]
    name = "x-api-key" if engine == "anthropic" else "authorization"
    value = "upstream-key" if engine == "anthropic" else "Bearer upstream-key"
    async with (
        ScriptedServer([READ, answer(500)]) as first,
        ScriptedServer([READ, wire.answers("好")]) as second,
        Gateway(
            tmp_path,
            model("one", first.url, engine, apiKey="env:UPSTREAM_KEY", headers={"x-team": "blue"}),
            model("two", second.url, engine),
            route("name", "one", fallbacks=("two",)),
        ) as gateway,
    ):
        asking = await gateway.ask(PATHS[operation], request(operation, "name"), CREDENTIALS)
        assert (asking.status, asking.headers["x-sits-target"], asking.headers["x-sits-attempts"]) == (200, "two", "2")
    one, two = first.requests[0].headers, second.requests[0].headers
    assert set(one) <= OURS | {name, "x-team"}
    assert set(two) <= OURS
    assert (one[name], one["x-team"]) == (value, "blue")
    assert ("anthropic-version" in one) is (engine == "anthropic")
    assert json.loads(first.requests[0].body).get("model", "one-upstream") == "one-upstream"
    assert json.loads(second.requests[0].body).get("model", "two-upstream") == "two-upstream"


@inside_loop
async def test_the_callers_trace_goes_through_our_span_to_the_server(tmp_path: pathlib.Path) -> None:
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    fields = {"traceparent": f"00-{trace}-{parent}-01", "tracestate": "vendor=1", "x-request-id": "my-id-1"}
    wire = WIRES["chat", "openai"]
    async with (
        ScriptedServer([READ, wire.answers("好"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url)) as gateway,
    ):
        asking = await gateway.ask(PATHS["chat"], request("chat", "one"), fields)
        record = gateway.record(asking)
        await gateway.ask(PATHS["chat"], request("chat", "one"), {"traceparent": "nonsense"})
        other = gateway.record()
    sent = server.requests[0].headers
    assert asking.headers["x-request-id"] == record.request_id == sent["x-request-id"] == "my-id-1"
    assert (record.trace_id, record.parent_id) == (trace, parent)
    assert sent["traceparent"] == f"00-{trace}-{record.span_id}-01"
    assert sent["tracestate"] == "vendor=1"
    assert record.span_id != parent
    assert (other.parent_id, other.trace_id == trace) == (None, False)
    assert server.requests[1].headers["traceparent"].split("-")[1:3] == [other.trace_id, other.span_id]


@inside_loop
async def test_a_made_up_name_gets_the_nearest_one_and_never_becomes_a_header_or_a_label(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ]) as server,
        Gateway(tmp_path, model("smollm", server.url)) as gateway,
    ):
        near = await gateway.ask(PATHS["chat"], request("chat", "smolm"))
        evil = await gateway.ask(PATHS["chat"], request("chat", "x\r\nset-cookie: a=b\r\n\r\n"))
        chinese = await gateway.ask(PATHS["messages"], request("messages", "模型"))
        long = await gateway.ask(PATHS["chat"], request("chat", "x" * 100_000))
        kept = gateway.record(long).requested
        page = await gateway.ask("/metrics")
    assert (near.status, near.code) == (404, "model_not_found")
    assert "did you mean 'smollm'?" in near.json["error"]["message"]
    for asking in (evil, chinese, long):
        assert (asking.status, asking.code, asking.whole) == (404, "model_not_found", True)
        assert "set-cookie" not in asking.headers
        assert "x-sits-requested" not in asking.headers
    assert chinese.json["type"] == "error"
    assert "模型" in chinese.json["error"]["message"]
    assert len(kept) == 200
    assert b'route="_unknown"' in page.body
    assert b"set-cookie" not in page.body
