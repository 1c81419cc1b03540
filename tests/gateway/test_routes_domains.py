"""Rules that go by what a request wants, and by how long its prompt is."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from gateway_rig import Gateway, inside_loop, model, route
from gateway_wires import PATHS, WIRES, request

from sits.engines.scripted import AGAIN, READ, ScriptedServer

CHAT = PATHS["chat"]
ANSWER = WIRES["chat", "openai"].answers("好")
DOMAINS: list[dict[str, Any]] = [
    {"kind": "Domain", "metadata": {"name": name}, "spec": {"examples": examples}}
    for name, examples in {
        "legal": ["合同怎么解除", "起诉要多久", "draft a contract", "what is a tort"],
        "code": ["写一个快速排序", "修复这个错误", "fix this bug", "write a parser"],
    }.items()
]


async def answers(gateway: Gateway, headers: Mapping[str, str], name: str = "r", **more: Any) -> tuple[str, str]:
    asking = await gateway.ask(CHAT, request("chat", name, **more), headers)
    assert asking.status == 200, asking
    return asking.headers["x-sits-target"], gateway.record(asking).rule


@inside_loop
async def test_a_client_may_say_the_domain_that_rules_and_contracts_go_by(tmp_path: pathlib.Path) -> None:
    rules = [
        {"name": "law", "match": {"domain": ["legal"]}, "backends": [{"model": "lawyer"}]},
        {"name": "rest", "match": {"domain": ["unknown"]}, "backends": [{"model": "other"}]},
    ]
    async with (
        ScriptedServer([READ, ANSWER, AGAIN]) as server,
        Gateway(
            tmp_path,
            *DOMAINS,
            *[model(name, server.url) for name in ("a", "lawyer", "other")],
            model("bound", server.url, semantics={"intents": ["legal"]}),
            route("r", "a", rules=rules),
            route("both", ("bound", 1000), ("a", 1)),
        ) as gateway,
    ):
        assert await answers(gateway, {"x-sits-domain": "legal"}) == ("lawyer", "law")
        assert await answers(gateway, {"x-sits-domain": "code"}) == ("a", "")
        assert await answers(gateway, {"x-sits-domain": "unknown"}) == ("other", "rest")
        assert await answers(gateway, {"x-sits-domain": "code"}, "both") == ("a", "")
        assert gateway.record().filtered == [("bound", "breaks its contract: intents: it answers for legal, not for code")]
        wrong = await gateway.ask(CHAT, request("chat", "r"), {"x-sits-domain": "legl"})
        alone = await gateway.ask(CHAT, request("chat", "bound"), {"x-sits-domain": "code"})
        kept = await gateway.ask(CHAT, request("chat", "bound"), {"x-sits-domain": "legal"})
    assert (wrong.status, wrong.code, wrong.json["error"]["param"]) == (400, "invalid_request", "x-sits-domain")
    assert (alone.status, alone.code) == (400, "unsupported")
    assert "intents: it answers for legal, not for code" in alone.json["error"]["message"]
    assert kept.status == 200


@inside_loop
async def test_a_rule_for_long_prompts_goes_by_their_tokens(tmp_path: pathlib.Path) -> None:
    rules = [{"name": "long", "match": {"promptTokens": {"from": 500}}, "backends": [{"model": "b"}]}]
    async with (
        ScriptedServer([READ, ANSWER, AGAIN]) as server,
        Gateway(tmp_path, model("a", server.url), model("b", server.url), route("r", "a", rules=rules)) as gateway,
    ):
        long = [{"role": "user", "content": "人工智能 " * 2000}]
        assert await answers(gateway, {}) == ("a", "")
        assert await answers(gateway, {}, messages=long) == ("b", "long")
