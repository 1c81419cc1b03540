"""Who may not answer a request does not answer it in anybody's place either: not because its prompt is long, a model is down,
busy or replaced, or units are merged."""

from __future__ import annotations

import asyncio
import json
import pathlib
from types import SimpleNamespace
from typing import Any

import pytest
from gateway_client import Asking
from gateway_rig import Gateway, bearer, inside_loop, key, llama2, model, route, settings
from gateway_wires import PATHS, WIRES

from sits.engines.scripted import AGAIN, READ, ScriptedServer
from sits.observe.explain import explain
from sits.resilience.substitutes import Substitutes
from sits.resilience.substitutes.choice import Substitute
from sits.resilience.switch.divert import Move

CHAT = PATHS["chat"]
WIRE = WIRES["chat", "openai"]
NOWHERE = "http://127.0.0.1:9"
UNCOUNTED = {"source": "file:nowhere.json", "normalises": "none", "longest": 4}
IN_EU = [{"name": "label", "settings": {"required": {"region": "eu"}}}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
MERGING = {"merge": {"promptTokens": 100, "qps": 2}, "split": {"promptTokens": 50, "qps": 1}, "into": "two", "freshMs": 2000}


def chat(text: str, name: str, **more: Any) -> dict[str, Any]:
    return {"model": name, "messages": [{"role": "user", "content": text}], **more}


def labelled(made: dict[str, Any], **labels: str) -> dict[str, Any]:
    made["metadata"]["labels"] = labels
    return made


def room(name: str, url: str, window: int, **spec: Any) -> dict[str, Any]:
    return model(name, url, contextWindow=window, tokenizer=UNCOUNTED, **spec)


def of_rooms(url: str) -> list[dict[str, Any]]:
    """In each route a small one that may answer, and a roomy one that may not."""
    gold = {"name": "gold", "match": {"team": ["gold"]}, "backends": [{"model": "big"}]}
    return [
        labelled(room("eu", url, 300), region="eu"),
        labelled(room("us", url, 100_000), region="us"),
        room("small", url, 300),
        room("big", url, 100_000),
        room("adapted", url, 300, adapters=["sql"]),
        room("contract", url, 100_000, semantics={"grounding": {"scopes": ["hr"]}}),
        room("toolless", url, 100_000, capabilities=["chat"]),
        route("filtered", "eu", "us", filters=IN_EU),
        route("ruled", "small", rules=[gold]),
        route("adapters", "adapted", "big"),
        route("contracts", "small", "contract"),
        route("tools", "small", "toolless"),
    ]


ROOMS: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    "filtered": ({}, {}, "eu"),
    "ruled": ({}, {}, "small"),
    "adapters": ({"x-sits-adapter": "sql"}, {}, "adapted"),
    "contracts": ({"x-sits-grounding-scope": "finance"}, {}, "small"),
    "tools": ({}, {"tools": TOOLS}, "small"),
}


@pytest.mark.parametrize("name", ROOMS)
@inside_loop
async def test_a_long_prompt_opens_no_door(tmp_path: pathlib.Path, name: str) -> None:
    headers, more, allowed = ROOMS[name]
    async with ScriptedServer([READ, WIRE.answers("好"), AGAIN]) as server, Gateway(tmp_path, *of_rooms(server.url)) as gateway:
        short = await gateway.ask(CHAT, chat("好" * 20, name, **more), headers)
        asked = len(server.requests)
        long = await gateway.ask(CHAT, chat("好" * 2000, name, **more), headers)
        assert (short.status, short.headers["x-sits-target"]) == (200, allowed)
        # An estimate is no proof that there is no room: whoever may answer may be asked.
        assert long.status in (200, 400)
        assert long.headers.get("x-sits-target", allowed) == allowed
        assert long.status == 200 or (long.code == "context_length_exceeded" and len(server.requests) == asked)


@inside_loop
async def test_beyond_those_that_a_route_tries_there_may_be_more_room(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, WIRE.answers("好"), AGAIN]) as server,
        Gateway(
            tmp_path,
            room("small", server.url, 300),
            room("big", server.url, 9000),
            route("r", "small", fallbacks=("big",), attempts=1),
        ) as gateway,
    ):
        short, long = await gateway.ask(CHAT, chat("好", "r")), await gateway.ask(CHAT, chat("好" * 2000, "r"))
    assert [one.headers["x-sits-target"] for one in (short, long)] == ["small", "big"]


@inside_loop
async def test_who_was_replaced_is_not_asked_for_having_more_room(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, WIRE.answers("好"), AGAIN]) as server,
        Gateway(
            tmp_path,
            *(room(name, server.url, window) for name, window in (("small", 300), ("old", 9000), ("new", 9000))),
            route("r", "small", fallbacks=("old",), attempts=1),
        ) as gateway,
    ):
        gateway.node.service.switches.set([Move("s", "old", "new", frozenset(), 1.0, True, b"0" * 32, None)])
        long = await gateway.ask(CHAT, chat("好" * 2000, "r"))
    assert long.headers["x-sits-target"] == "new"


def strangers(url: str, **more: Any) -> list[dict[str, Any]]:
    """Three routes whose only backend is away or to be replaced, and a model that could stand in for it."""
    return [
        labelled(model("eu", NOWHERE, adapters=["sql"]), region="eu"),
        labelled(model("other", url), region="us"),
        labelled(model("contract", url, semantics={"grounding": {"scopes": ["hr"]}}), region="eu"),
        route("plain", "eu", **more),
        route("filtered", "eu", filters=IN_EU, **more),
    ]


ASKED: dict[str, tuple[str, str, dict[str, str], str]] = {
    "nothing against it": ("plain", "other", {}, ""),
    "a strict filter": ("filtered", "other", {}, "region=eu"),
    "an adapter that it has not": ("plain", "other", {"x-sits-adapter": "sql"}, "adapter"),
    "a scope that its contract has not": ("plain", "contract", {"x-sits-grounding-scope": "finance"}, "finance"),
    "a scope that its contract has": ("plain", "contract", {"x-sits-grounding-scope": "hr"}, ""),
}


@pytest.mark.parametrize("what", ASKED)
@inside_loop
async def test_a_substitute_is_who_may_answer(tmp_path: pathlib.Path, what: str) -> None:
    name, stand_in, headers, barred = ASKED[what]
    async with (
        ScriptedServer([READ, WIRE.answers("好"), AGAIN]) as server,
        Gateway(tmp_path, *strangers(server.url, substitutes={})) as gateway,
    ):
        gateway.node.service.substituting.current = Substitutes({name: (Substitute(stand_in, 0.9),)})
        asked = await gateway.ask(CHAT, chat("好", name), headers)
        assert asked.status == (502 if barred else 200)
        assert len(server.requests) == (0 if barred else 1)


@pytest.mark.parametrize("finished", [False, True], ids=["while it moves", "from the drain on"])
@pytest.mark.parametrize("what", ASKED)
@inside_loop
async def test_what_a_switch_brings_is_who_may_answer(tmp_path: pathlib.Path, what: str, finished: bool) -> None:
    name, new, headers, barred = ASKED[what]
    async with (
        ScriptedServer([READ, WIRE.answers("好"), AGAIN]) as server,
        Gateway(tmp_path, *strangers(server.url)) as gateway,
    ):
        gateway.node.service.switches.set([Move("s", "eu", new, frozenset(), 1.0, finished, b"0" * 32, None)])
        asked = await gateway.ask(CHAT, chat("好", name), headers)
        assert len(server.requests) == (0 if barred else 1)
        if not barred:
            assert (asked.status, asked.headers["x-sits-target"]) == (200, new)
        elif finished:
            assert (asked.status, asked.code) == (400, "unsupported")
            assert f"eu was replaced by {new}, which" in asked.body.decode()
            assert barred in asked.body.decode()
        else:
            assert (asked.status, asked.code) == (502, "upstream_unreachable"), "the old one is asked still"


@pytest.mark.parametrize("what", ASKED)
@inside_loop
async def test_a_smaller_model_under_pressure_is_one_that_may_answer(tmp_path: pathlib.Path, what: str) -> None:
    name, smaller, headers, barred = ASKED[what]
    async with (
        ScriptedServer([READ, WIRE.answers("好"), AGAIN]) as server,
        Gateway(tmp_path, *strangers(server.url)) as gateway,
    ):
        relief = SimpleNamespace(shed_from=9, downscale={"eu": smaller}, max_tokens=None, policies=[], retry_after=1)
        gateway.node.service.pressures = SimpleNamespace(any=True, of=lambda _: relief)  # type: ignore[assignment]
        asked = await gateway.ask(CHAT, chat("好", name), headers)
        gateway.node.service.pressures = None
        assert asked.status == (502 if barred else 200)
        assert len(server.requests) == (0 if barred else 1)


@inside_loop
async def test_a_unit_that_is_merged_away_and_may_not_answer_does_not(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ, WIRE.answers("好"), AGAIN]) as server:
        one, two = labelled(model("one", server.url), region="us"), labelled(model("two", NOWHERE), region="eu")
        resources = [
            one,
            two,
            route("pair", "one", "two", units=MERGING, filters=IN_EU),
            route("open", "one", "two", units=MERGING),
        ]
        async with Gateway(tmp_path, *resources) as gateway:
            merging = gateway.node.service.merging
            assert merging is not None
            found: dict[str, Asking] = {}
            for name in ("pair", "open"):
                lane = merging.of(name)
                assert lane is not None
                lane.away = frozenset({"one"})
                found[name] = await gateway.ask(CHAT, chat("好", name))
                lane.away = frozenset()
    assert {name: asked.status for name, asked in found.items()} == {"pair": 502, "open": 200}


@pytest.mark.parametrize("more", [{}, {"scores": [{"name": "load"}]}, {"filters": IN_EU}], ids=["plain", "scores", "filters"])
@inside_loop
async def test_while_all_backends_are_down_the_fallbacks_are_asked_and_not_those(
    tmp_path: pathlib.Path, more: dict[str, Any]
) -> None:
    async with ScriptedServer([READ, WIRE.answers("好"), AGAIN]) as server:
        models = [
            labelled(model(name, url), region="eu")
            for name, url in (("a", NOWHERE), ("b", NOWHERE), ("c", server.url), ("d", server.url))
        ]
        async with Gateway(tmp_path, *models, route("r", "a", "b", fallbacks=("c", "d"), attempts=2, **more)) as gateway:
            asked = [await gateway.ask(CHAT, chat("好", "r")) for _ in range(40)]
            record = gateway.record(asked[-1])
    assert {one.status for one in asked[-5:]} == {200}
    assert [one.target for one in record.attempts] == ["c"]
    assert {name for name, why in record.filtered if "its breaker is open" in why} == {"a", "b"}


@inside_loop
async def test_a_lost_adapter_that_one_asks_for_pushes_nobody_else_away(tmp_path: pathlib.Path) -> None:
    said = b'{"error":{"message":"The model `sql` does not exist.","type":"NotFoundError","code":404}}'
    lost = b"HTTP/1.1 404 X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(said), said)

    def answers(received: Any) -> bytes:
        return lost if b'"sql"' in received.body else WIRE.answers("好")

    async with ScriptedServer([READ, answers, AGAIN]) as server:
        models = [model("m", server.url, adapters=["sql"]), model("o", server.url)]
        keys = [key("mallory"), key("alice"), settings()]
        async with Gateway(tmp_path, *models, route("r", "m", "o", scores=[{"name": "quality"}]), *keys) as gateway:
            for _ in range(10):
                await gateway.ask(CHAT, chat("好", "r"), bearer("mallory", **{"x-sits-adapter": "sql"}))
            assert gateway.node.standing.states["m"].errors == 0.0
            assert gateway.node.standing.states["m"].of_service() == 0


@inside_loop
async def test_a_cap_on_answers_binds_what_is_asked_in_another_dialect(tmp_path: pathlib.Path) -> None:
    """Also where a rule had the request read before the cap."""
    rules = [{"name": "long", "match": {"promptTokens": {"from": 100_000}}, "backends": [{"model": "m"}]}]
    async with ScriptedServer([READ, WIRES["chat", "anthropic"].answers("好"), AGAIN]) as server:
        resources = [model("m", server.url, "anthropic"), route("plain", "m"), route("ruled", "m", rules=rules)]
        async with Gateway(tmp_path, *resources) as gateway:
            relief = SimpleNamespace(shed_from=9, downscale={}, max_tokens=7, policies=[], retry_after=1)
            gateway.node.service.pressures = SimpleNamespace(any=True, of=lambda _: relief)  # type: ignore[assignment]
            for name in ("plain", "ruled"):
                assert (await gateway.ask(CHAT, chat("好", name, max_tokens=5000))).status == 200
            gateway.node.service.pressures = None
        assert [body["max_tokens"] for one in server.requests if "max_tokens" in (body := json.loads(one.body))] == [7, 7]


@inside_loop
async def test_why_nobody_may_answer_is_in_the_record(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, WIRE.answers("好"), AGAIN]) as server,
        Gateway(
            tmp_path,
            labelled(model("us", server.url), region="us"),
            model("hr", server.url, semantics={"grounding": {"scopes": ["hr"]}}),
            route("filtered", "us", filters=IN_EU),
            route("contract", "hr"),
        ) as gateway,
    ):
        barred = await gateway.ask(CHAT, chat("好", "filtered"))
        scoped = await gateway.ask(CHAT, chat("好", "contract"), {"x-sits-grounding-scope": "finance"})
        records = [gateway.record(one) for one in (barred, scoped)]
    assert [(one.status, one.code) for one in (barred, scoped)] == [(400, "unsupported")] * 2
    assert [[name for name, _ in record.filtered] for record in records] == [["us"], ["hr"]]
    assert "region=eu" in records[0].filtered[0][1]
    assert "finance" in records[1].filtered[0][1]
    assert "region=eu" in explain(records[0], 1000)


@inside_loop
async def test_a_prompt_in_pieces_is_read_by_the_adapter_and_takes_no_time_of_our_own(
    tmp_path: pathlib.Path,
) -> None:
    counted = {"source": llama2(), "normalises": "none", "longest": 4, "waitMs": 30_000}
    context = {"most": 900, "notes": 64, "services": {}, "stages": [{"kind": "reason"}], "oversize": "split"}
    slow = asyncio.Event()
    async with ScriptedServer([READ, slow, WIRE.answers("笔记"), AGAIN]) as server:
        reader = model("m", server.url, "vllm", adapters=["sql"], contextWindow=900, tokenizer=counted)
        async with Gateway(tmp_path, reader, route("r", "m", context=context)) as gateway:
            body = chat("Summarise this:\n\n" + "word number one. " * 500, "r", max_tokens=50)
            call = await gateway.begin(CHAT, body, {"x-sits-adapter": "sql"})
            await server.until(lambda one: len(one.requests) > 0)
            await asyncio.sleep(0.3)  # what the model takes for its pieces
            slow.set()
            asked = await call.ended()
            record = gateway.record(asked)
    assert (asked.status, asked.headers["x-sits-served"]) == (200, "sql")
    assert {json.loads(one.body)["model"] for one in server.requests} == {"sql"}
    assert len(server.requests) > 1
    assert record.anatomy is not None
    assert record.anatomy.aside >= 0.3
    assert record.anatomy.gateway < record.anatomy.aside
    assert float(asked.headers["x-sits-overhead"]) < 1e3 * record.anatomy.aside
    assert "aside;dur=" in asked.headers["server-timing"]
