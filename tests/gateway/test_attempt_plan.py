"""What a route says of its attempts, on a running gateway: hedges, tries of the same target, breakers, streams that go on."""

from __future__ import annotations

import asyncio
import pathlib
from typing import Any

import pytest
from gateway_books import booked
from gateway_client import eventually
from gateway_rig import Gateway, inside_loop, model, route, settings
from gateway_wires import PATHS, WIRES, request, said, streamed

from sits.engines.scripted import AGAIN, READ, RESET, ScriptedServer, answer

STREAMS = [
    ("chat", "openai", "vllm"),
    ("chat", "ollama", "ollama"),
    ("completions", "openai", "vllm"),
    ("responses", "vllm", "vllm"),
    ("messages", "anthropic", "anthropic"),
    ("messages", "openai", "sglang"),
]
"""Endpoint, wire and engine of a server that goes on with an answer."""


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@inside_loop
async def test_a_slow_target_loses_to_the_one_asked_beside_it_and_is_billed(tmp_path: pathlib.Path, streams: bool) -> None:
    wire, never = WIRES["chat", "openai"], asyncio.Event()
    quick = wire.streams("快") if streams else [wire.answers("快")]
    async with (
        ScriptedServer([READ, never]) as slow,
        ScriptedServer([READ, *quick, AGAIN]) as second,
        Gateway(
            tmp_path,
            model("slow", slow.url, "vllm"),
            model("quick", second.url, "vllm"),
            route("r", "slow", fallbacks=("quick",), hedge={"afterMs": 30}),
        ) as gateway,
    ):
        asking = await gateway.ask(PATHS["chat"], request("chat", "r", stream=streams))
        await slow.until(lambda one: one.gone == 1)
        record = gateway.record(asking)
    entries = booked(tmp_path, "model", "outcome", "final", "estimated")
    assert asking.status == 200
    assert (streamed("chat", asking.body) if streams else said("chat", asking.body)) == "快"
    assert [(one.target, one.kind, one.outcome) for one in record.attempts] == [
        ("slow", "first", "outrun"),
        ("quick", "hedge", "ok"),
    ]
    assert asking.headers["x-sits-target"] == "quick"
    assert sorted(entries) == [("quick", "ok", 1, 0), ("slow", "outrun", 0, 1)]


@inside_loop
async def test_a_quick_target_is_not_hedged(tmp_path: pathlib.Path) -> None:
    wire = WIRES["chat", "openai"]
    async with (
        ScriptedServer([READ, wire.answers("好"), AGAIN]) as one,
        ScriptedServer([READ, wire.answers("no"), AGAIN]) as two,
        Gateway(
            tmp_path,
            model("one", one.url, "vllm"),
            model("two", two.url, "vllm"),
            route("r", "one", fallbacks=("two",), hedge={"afterMs": 20_000}),
        ) as gateway,
    ):
        for _ in range(5):
            assert said("chat", (await gateway.ask(PATHS["chat"], request("chat", "r"))).body) == "好"
        assert two.requests == []


@inside_loop
async def test_a_route_learns_when_its_answers_are_late(tmp_path: pathlib.Path) -> None:
    wire, quick = WIRES["chat", "openai"], asyncio.Event()
    quick.set()
    async with (
        ScriptedServer([READ, quick, wire.answers("一"), AGAIN]) as one,
        ScriptedServer([READ, wire.answers("二"), AGAIN]) as two,
        Gateway(
            tmp_path,
            model("one", one.url, "vllm"),
            model("two", two.url, "vllm"),
            route("r", "one", fallbacks=("two",), hedge={"share": 1.0}),
        ) as gateway,
    ):
        for _ in range(15):
            await gateway.ask(PATHS["chat"], request("chat", "r"))
        assert two.requests == []  # Too few answers to know.
        for _ in range(15):
            await gateway.ask(PATHS["chat"], request("chat", "r"))
        quick.clear()
        late = await gateway.ask(PATHS["chat"], request("chat", "r"))
        record = gateway.record(late)
    assert said("chat", late.body) == "二"
    assert [one.kind for one in record.attempts] == ["first", "hedge"]


@inside_loop
async def test_when_both_of_a_race_fail_the_next_is_asked(tmp_path: pathlib.Path) -> None:
    wire, hold = WIRES["chat", "openai"], asyncio.Event()
    async with (
        ScriptedServer([READ, hold, answer(500)]) as one,
        ScriptedServer([READ, RESET]) as two,
        ScriptedServer([READ, wire.answers("三"), AGAIN]) as three,
        Gateway(
            tmp_path,
            *[model(name, server.url, "vllm") for name, server in (("one", one), ("two", two), ("three", three))],
            route("r", "one", fallbacks=("two", "three"), hedge={"afterMs": 20}),
        ) as gateway,
    ):
        asking = await gateway.begin(PATHS["chat"], request("chat", "r"))
        await two.until(lambda server: len(server.requests) == 1)
        hold.set()
        await asking.ended()
        record = gateway.record(asking)
    assert said("chat", asking.body) == "三"
    assert sorted((one.target, one.kind) for one in record.attempts) == [("one", "first"), ("three", "next"), ("two", "hedge")]


@inside_loop
async def test_a_client_that_leaves_ends_both_of_a_race(tmp_path: pathlib.Path) -> None:
    never = asyncio.Event()
    async with (
        ScriptedServer([READ, never]) as one,
        ScriptedServer([READ, never]) as two,
        Gateway(
            tmp_path,
            model("one", one.url, "vllm"),
            model("two", two.url, "vllm"),
            route("r", "one", fallbacks=("two",), hedge={"afterMs": 10}),
        ) as gateway,
    ):
        asking = await gateway.begin(PATHS["chat"], request("chat", "r"))
        await two.until(lambda server: len(server.requests) == 1)
        asking.leave()
        await one.until(lambda server: server.gone == 1)
        await two.until(lambda server: server.gone == 1)
        await eventually(lambda: not gateway.node.service.live, "the exchange ends")
        assert gateway.record().status == 499


@inside_loop
async def test_a_server_that_did_nothing_is_asked_again_by_one_key(tmp_path: pathlib.Path) -> None:
    wire = WIRES["chat", "openai"]
    async with (
        ScriptedServer([READ, answer(503), READ, wire.answers("再"), AGAIN]) as server,
        Gateway(
            tmp_path, model("one", server.url, "vllm"), route("r", "one", retry={"same": 2, "pauseSeconds": 0.01, "floor": 5})
        ) as gateway,
    ):
        asking = await gateway.ask(PATHS["chat"], request("chat", "r"))
        record = gateway.record(asking)
        keys = {one.headers["idempotency-key"] for one in server.requests}
    assert said("chat", asking.body) == "再"
    assert [(one.kind, one.outcome) for one in record.attempts] == [("first", "upstream_error"), ("again", "ok")]
    assert len(keys) == 1


@inside_loop
async def test_failures_in_a_row_take_a_target_out_and_the_others_serve(tmp_path: pathlib.Path) -> None:
    wire = WIRES["chat", "openai"]
    async with (
        ScriptedServer([READ, answer(500), AGAIN]) as bad,
        ScriptedServer([READ, wire.answers("好"), AGAIN]) as good,
        Gateway(
            tmp_path,
            model("bad", bad.url, "vllm", zone="z1", version="v1"),
            model("good", good.url, "vllm"),
            route("r", "bad", fallbacks=("good",)),
            settings(breaker={"row": 3, "openSeconds": 60}),
        ) as gateway,
    ):
        for _ in range(10):
            assert (await gateway.ask(PATHS["chat"], request("chat", "r"))).status == 200
        assert len(bad.requests) == 3
        page = await gateway.ask("/v1/admin/breakers", method="GET")
        record = gateway.record()
    rows = {row["name"]: row for row in page.json["data"]}
    assert (rows["bad"]["state"], rows["bad"]["zone"], rows["bad"]["version"], rows["good"]["state"]) == (
        "open",
        "z1",
        "v1",
        "closed",
    )
    assert record.filtered == [("bad", "is left alone: its breaker is open")]


@inside_loop
async def test_what_the_client_did_opens_no_breaker(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, answer(400, b'{"error":{"message":"bad"}}'), AGAIN]) as one,
        ScriptedServer([READ, answer(400, b'{"error":{"message":"bad"}}'), AGAIN]) as two,
        Gateway(
            tmp_path, model("one", one.url, "vllm"), model("two", two.url, "vllm"), route("r", "one", fallbacks=("two",))
        ) as gateway,
    ):
        for _ in range(30):
            assert (await gateway.ask(PATHS["chat"], request("chat", "r"))).status == 400
        assert (len(one.requests), len(two.requests)) == (30, 0)
        assert not gateway.node.standing.breakers.any_out


@pytest.mark.parametrize(("operation", "wire_name", "engine"), STREAMS)
@inside_loop
async def test_a_stream_that_breaks_off_is_gone_on_with_by_the_next_target(
    tmp_path: pathlib.Path, operation: str, wire_name: str, engine: str
) -> None:
    wire = WIRES[operation, wire_name]
    first = wire.streams("一", "二", end=False)
    more: dict[str, Any] = {"capabilities": ["chat", "completions", "prefill"]} if engine == "anthropic" else {}
    async with (
        ScriptedServer([READ, *first, RESET]) as one,
        ScriptedServer([READ, *wire.streams("三", "四"), AGAIN]) as two,
        Gateway(
            tmp_path,
            model("one", one.url, engine, **more),
            model("two", two.url, engine, **more),
            route("r", "one", fallbacks=("two",), onBrokenStream="continue"),
        ) as gateway,
    ):
        asking = await gateway.ask(PATHS[operation], request(operation, "r", stream=True))
        record = gateway.record(asking)
        asked = two.requests[0].body
    assert streamed(operation, asking.body) == "一二三四"
    assert b": sits-continued two" in asking.body
    assert "一二".encode() in asked or b"\\u4e00\\u4e8c" in asked
    assert [(one.kind, one.outcome) for one in record.attempts] == [("first", "stream_broken"), ("continuation", "ok")]
    assert (record.status, record.code) == (200, "")


@inside_loop
async def test_a_stream_that_nobody_can_go_on_with_ends_in_one_error_event(tmp_path: pathlib.Path) -> None:
    wire = WIRES["chat", "openai"]
    async with (
        ScriptedServer([READ, *wire.streams("一", end=False), RESET]) as one,
        ScriptedServer([READ, answer(500)]) as two,
        Gateway(
            tmp_path,
            model("one", one.url, "vllm"),
            model("two", two.url, "vllm"),
            route("r", "one", fallbacks=("two",), onBrokenStream="continue"),
        ) as gateway,
    ):
        asking = await gateway.ask(PATHS["chat"], request("chat", "r", stream=True))
        record = gateway.record(asking)
    assert asking.body.count(b'"error"') == 1
    assert b"[DONE]" not in asking.body
    assert record.code == "stream_broken"


@inside_loop
async def test_a_request_says_how_long_it_may_take_and_the_rest_travels_on(tmp_path: pathlib.Path) -> None:
    wire, never = WIRES["chat", "openai"], asyncio.Event()
    async with (
        ScriptedServer([READ, wire.answers("好"), READ, never]) as server,
        Gateway(tmp_path, model("one", server.url, "vllm")) as gateway,
    ):
        asking = await gateway.ask(PATHS["chat"], request("chat", "one"), {"x-request-timeout": "40"})
        assert asking.status == 200
        assert 30.0 < float(server.requests[0].headers["x-request-timeout"]) <= 40.0
        late = await gateway.ask(PATHS["chat"], request("chat", "one"), {"x-request-timeout": "300ms"})
        wrong = await gateway.ask(PATHS["chat"], request("chat", "one"), {"x-request-timeout": "soon"})
        assert not gateway.node.standing.breakers.any_out
    assert (late.status, late.code) == (504, "upstream_timeout")
    assert (wrong.status, wrong.code, wrong.json["error"]["param"]) == (400, "invalid_request", "x-request-timeout")


@inside_loop
async def test_colours_pass_on_and_a_route_may_ask_for_one(tmp_path: pathlib.Path) -> None:
    wire = WIRES["chat", "openai"]
    async with (
        ScriptedServer([READ, wire.answers("好"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url, "vllm"), route("r", "one", colour="required")) as gateway,
    ):
        missing = await gateway.ask(PATHS["chat"], request("chat", "r"))
        given = await gateway.ask(PATHS["chat"], request("chat", "r"), {"x-traffic-color": "blue", "x-experiment-id": "e1"})
        seen = server.requests[0].headers
    assert (missing.status, missing.json["error"]["param"]) == (400, "x-traffic-color")
    assert (given.status, given.headers["x-traffic-color"], given.headers["x-experiment-id"]) == (200, "blue", "e1")
    assert (seen["x-traffic-color"], seen["x-experiment-id"]) == ("blue", "e1")
