"""Adapters: asked for by `x-sits-adapter`, answered by who has them, and said to have been."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import pytest
from gateway_client import Asking
from gateway_rig import Gateway, inside_loop, model, route
from gateway_wires import PATHS, WIRES, request, said, streamed

from sits.engines.scripted import AGAIN, READ, RESET, ScriptedServer, answer
from sits.resources.yaml_text import read_yaml

CHAT = PATHS["chat"]
WIRE = WIRES["chat", "openai"]
ANSWER = WIRE.answers("好")
SQL, LAW = {"x-sits-adapter": "sql"}, {"x-sits-adapter": "法律"}
UNKNOWN = answer(
    404,
    json.dumps({"object": "error", "message": "The model `sql` does not exist.", "type": "NotFoundError", "code": 404}).encode(),
    ("content-type", "application/json"),
)


def told(asking: Asking) -> dict[str, str]:
    return {name: asking.headers.get(f"x-sits-{name}", "") for name in ("requested", "served", "target")}


# (operation, engine) -> where the name of the adapter is in what the server is sent.
ASKED: dict[tuple[str, str], str] = {
    ("chat", "openai"): "model",
    ("chat", "vllm"): "model",
    ("chat", "tgi"): "model",
    ("chat", "anthropic"): "model",
    ("completions", "vllm"): "model",
    ("completions", "tgi"): "adapter_id",
    ("responses", "vllm"): "model",
    ("messages", "vllm"): "model",
    ("messages", "anthropic"): "model",
    ("messages", "tgi"): "model",
}
SPEAKS = {"vllm": "openai"}


def name_in(body: Mapping[str, Any], place: str) -> Any:
    return body["model"] if place == "model" else body["parameters"]["adapter_id"]


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("operation", "engine"), ASKED, ids=[" ".join(pair) for pair in ASKED])
@inside_loop
async def test_the_server_is_asked_for_the_adapter_in_its_own_words(
    tmp_path: pathlib.Path, operation: str, engine: str, streams: bool
) -> None:
    wire = (
        WIRES.get((operation, engine)) or WIRES[operation if operation == "completions" else "chat", SPEAKS.get(engine, engine)]
    )
    steps = wire.streams("好") if streams else [wire.answers("好")]
    async with (
        ScriptedServer([READ, *steps, AGAIN]) as server,
        Gateway(
            tmp_path,
            model("plain", server.url, engine),
            model("adapted", server.url, engine, adapters=["sql", "法律"]),
            route("r", ("plain", 1000), ("adapted", 1), onBrokenStream="error"),
        ) as gateway,
    ):
        seen = []
        for name in ("adapted", "r"):
            asking = await gateway.ask(PATHS[operation], request(operation, name, stream=streams), LAW)
            assert asking.status == 200, asking
            assert (streamed if streams else said)(operation, asking.body) == "好"
            assert told(asking) == {"requested": name, "served": "法律", "target": "adapted"}
            record = gateway.record(asking)
            assert (record.served, record.target) == ("法律", "adapted")
            posted = [one for one in server.requests if one.method == "POST"]
            seen.append(name_in(json.loads(posted[-1].body), ASKED[operation, engine]))
        plain = await gateway.ask(PATHS[operation], request(operation, "adapted", stream=streams))
        assert told(plain)["served"] == "adapted-upstream"
    assert seen == ["法律", "法律"]
    assert record.filtered == [("plain", 'has no adapter "法律"')]


@inside_loop
async def test_an_answer_that_may_be_gone_on_with_is_asked_of_the_adapter_too(tmp_path: pathlib.Path) -> None:
    head, first, *_ = WIRE.streams("一", "二")
    async with (
        ScriptedServer([READ, head, first, RESET]) as one,
        ScriptedServer([READ, *WIRE.streams("二")]) as two,
        Gateway(
            tmp_path,
            model("one", one.url, "vllm", adapters=["sql"]),
            model("two", two.url, "vllm", adapters=["sql"]),
            model("three", two.url, "vllm"),
            route("r", "one", fallbacks=("three", "two"), onBrokenStream="continue"),
        ) as gateway,
    ):
        asking = await gateway.ask(CHAT, request("chat", "r", stream=True), SQL)
    assert streamed("chat", asking.body) == "一二"
    assert [json.loads(asked.body)["model"] for each in (one, two) for asked in each.requests if asked.method == "POST"] == [
        "sql",
        "sql",
    ]


@inside_loop
async def test_where_nobody_has_the_adapter_that_is_said_and_nobody_is_asked(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, ANSWER, AGAIN]) as server,
        Gateway(
            tmp_path,
            model("a", server.url, adapters=["other"]),
            model("b", server.url),
            route("some", "a", fallbacks=("b",)),
            route("none", "b"),
        ) as gateway,
    ):
        for name in ("a", "b", "some", "none"):
            for streams in (False, True):
                asking = await gateway.ask(CHAT, request("chat", name, stream=streams), SQL)
                assert (name, asking.status, asking.code) == (name, 400, "unsupported")
                assert "adapter" in asking.json["error"]["message"]
        assert (await gateway.ask(CHAT, request("chat", "none"), {"x-sits-adapter": ""})).status == 200
    assert len(server.requests) == 1


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@inside_loop
async def test_a_server_that_has_lost_the_adapter_is_passed_over_and_noted(tmp_path: pathlib.Path, streams: bool) -> None:
    rule = {
        "name": "sql", "match": {"adapter": ["sql"]}, "backends": [{"model": "lost", "weight": 1}],
        "while": {"adapterLoadsAbove": 0.9995},
    }  # fmt: skip
    good = WIRE.streams("好") if streams else [ANSWER]
    async with (
        ScriptedServer([READ, UNKNOWN, AGAIN]) as lost,
        ScriptedServer([READ, *good, AGAIN]) as has,
        Gateway(
            tmp_path,
            model("lost", lost.url, adapters=["sql"]),
            model("has", has.url, adapters=["sql"]),
            route("r", "has", rules=[rule]),
        ) as gateway,
    ):
        body = request("chat", "r", stream=streams)
        first = await gateway.ask(CHAT, body, SQL)
        ruled = gateway.record(first).rule
        second = await gateway.ask(CHAT, body, SQL)
        watch = gateway.node.standing.rules["r", "sql"]
        alone = await gateway.ask(CHAT, request("chat", "lost", stream=streams), SQL)
        base = await gateway.ask(CHAT, request("chat", "lost", stream=streams))
        state = gateway.node.standing.states["lost"]
    assert (first.status, first.headers["x-sits-target"], first.headers["x-sits-attempts"], ruled) == (200, "has", "2", "sql")
    assert (second.status, second.headers["x-sits-attempts"], gateway.record(second).rule) == (200, "1", "")
    assert watch.failing == "0.00% of adapter loads went well, not above 99.95%"
    assert (alone.status, alone.code) == (404, "upstream_rejected")
    assert (base.status, base.code) == (404, "upstream_rejected")
    assert state.outstanding == 0


@inside_loop
async def test_the_rule_that_the_page_shows_goes_elsewhere_while_it_is_passed_over(tmp_path: pathlib.Path) -> None:
    page = (pathlib.Path(__file__).parents[2] / "docs" / "routes.md").read_text(encoding="utf-8")
    models, *others = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (rules,) = [one for one in others if "sql-in-the-west" in one]
    async with ScriptedServer([READ, UNKNOWN, AGAIN]) as lost, ScriptedServer([READ, ANSWER, AGAIN]) as has:
        where = {"http://10.0.0.7:8000": lost.url, "http://10.0.0.8:8080": lost.url, "http://10.8.0.7:8000": has.url}
        for written, url in where.items():
            models = models.replace(written, url)
        resources = [document.value for document in (*read_yaml(models), *read_yaml(rules))]
        async with Gateway(tmp_path, *resources) as gateway:
            west = {**SQL, "x-sits-region": "us-west"}
            asked = [await gateway.ask(CHAT, request("chat", "assistant"), west) for _ in range(12)]
            found = [(one.status, one.headers["x-sits-target"]) for one in asked]
            rules_counted = [gateway.record(one).rule for one in asked]
            again = [await gateway.ask(CHAT, request("chat", "assistant"), west) for _ in range(5)]
    assert found == [(200, "llama-asia")] * 12
    assert (rules_counted[0], rules_counted[-1]) == ("sql-in-the-west", "")
    assert [(one.headers["x-sits-target"], one.headers["x-sits-attempts"]) for one in again] == [("llama-asia", "1")] * 5


@inside_loop
async def test_what_an_adapter_or_a_rule_answered_is_kept_apart(tmp_path: pathlib.Path) -> None:
    rule = {"name": "eu", "match": {"region": ["eu"]}, "backends": [{"model": "b"}]}
    async with (
        ScriptedServer([READ, ANSWER, AGAIN]) as server,
        Gateway(
            tmp_path,
            model("a", server.url, adapters=["sql", "法律"]),
            model("b", server.url),
            route("r", "a", rules=[rule], cache={"sampled": "always"}),
        ) as gateway,
    ):
        found = []
        for headers in ({}, SQL, LAW, {"x-sits-region": "eu"}) * 2:
            asking = await gateway.ask(CHAT, request("chat", "r"), headers)
            found.append((asking.headers["x-sits-cache"], asking.headers["x-sits-served"]))
    served = ["a-upstream", "sql", "法律", "b-upstream"]
    assert found == [*[("miss", one) for one in served], *[("hit", one) for one in served]]
