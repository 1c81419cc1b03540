"""What routes say when nobody is there, and what lasts from one configuration to the next."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from gateway_client import eventually
from gateway_rig import QUICK, Gateway, inside_loop, model, route, settings, write
from gateway_wires import PATHS, WIRES, request

from sits.engines.scripted import AGAIN, READ, ScriptedServer, answer

CHAT = PATHS["chat"]
ANSWER = WIRES["chat", "openai"].answers("好")


def labelled(name: str, *select: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {"kind": "Route", "metadata": {"name": name}, "spec": {"backends": [{"select": one} for one in select], **spec}}


RULE = {"name": "eu", "match": {"region": ["eu"]}, "backends": [{"model": "a"}]}
NOBODY: dict[str, dict[str, Any]] = {
    "plain": {},
    "rules": {"rules": [RULE]},
    "scores": {"scores": [{"name": "load"}]},
    "hash": {"policy": "hash"},
    "cache, hedge and shadow": {"cache": {}, "hedge": {}, "shadow": {"model": "a"}},
}


@pytest.mark.parametrize("spec", NOBODY.values(), ids=NOBODY)
@inside_loop
async def test_where_no_model_has_the_labels_these_are_named(tmp_path: pathlib.Path, spec: dict[str, Any]) -> None:
    async with (
        ScriptedServer([READ, ANSWER, AGAIN]) as server,
        Gateway(
            tmp_path,
            model("a", server.url),
            labelled("r", {"engine": "vllm", "tier": "金"}, {"engine": "tgi"}, **spec),
            labelled("saved", {"engine": "vllm"}, fallbacks=["a"], **spec),
        ) as gateway,
    ):
        for streams in (False, True):
            asking = await gateway.ask(CHAT, request("chat", "r", stream=streams))
            assert (asking.status, asking.code) == (503, "model_unavailable")
            assert asking.json["error"]["message"] == (
                "no model has the labels that 'r' asks for: engine=vllm, tier=金 or engine=tgi"
            )
        saved = await gateway.ask(CHAT, request("chat", "saved"))
        assert (await gateway.ask("/v1/models")).status == 200
    assert (saved.status, saved.headers["x-sits-target"]) == (200, "a")


@inside_loop
async def test_the_rate_of_a_route_goes_on_when_the_configuration_changes(tmp_path: pathlib.Path) -> None:
    busy = route("r", "a", rules=[{"name": "busy", "match": {"qps": {"from": 1}}, "backends": [{"model": "b"}]}])
    async with (
        ScriptedServer([READ, ANSWER, AGAIN]) as server,
        Gateway(tmp_path, model("a", server.url), model("b", server.url), busy) as gateway,
    ):
        for _ in range(8):
            last = await gateway.ask(CHAT, request("chat", "r"))
        version = gateway.node.service.table.snapshot.version
        write(tmp_path, model("a", server.url, region="eu"), model("b", server.url), busy, settings())
        await eventually(lambda: gateway.node.service.table.snapshot.version > version)
        next_one = await gateway.ask(CHAT, request("chat", "r"))
    assert (last.headers["x-sits-target"], next_one.headers["x-sits-target"]) == ("b", "b")


@inside_loop
async def test_by_model_all_requests_for_a_name_and_an_adapter_go_to_one_backend(tmp_path: pathlib.Path) -> None:
    names = ("a", "b", "c", "d")
    aliases = [f"alias-{number}" for number in range(8)]
    adapters = ["sql", "法律"]
    async with (
        ScriptedServer([READ, ANSWER, AGAIN]) as server,
        Gateway(
            tmp_path,
            *[model(name, server.url, adapters=adapters) for name in names],
            route("r", *names, policy="hash", hash={"by": "model"}, aliases=aliases),
        ) as gateway,
    ):
        found: dict[tuple[str, str], set[str]] = {}
        for _ in range(3):
            for name in ("r", *aliases):
                for adapter in ("", *adapters):
                    headers = {"x-sits-adapter": adapter} if adapter else {}
                    asking = await gateway.ask(CHAT, request("chat", name), headers)
                    found.setdefault((name, adapter), set()).add(asking.headers["x-sits-target"])
    assert {len(one) for one in found.values()} == {1}
    assert set().union(*found.values()) == set(names)


@inside_loop
async def test_answers_that_do_not_come_in_time_count_as_slow(tmp_path: pathlib.Path) -> None:
    rule = {"name": "eu", "match": {"region": ["eu"]}, "backends": [{"model": "silent"}], "while": {"p99BelowMs": 20}}
    async with (
        ScriptedServer([READ]) as silent,
        ScriptedServer([READ, ANSWER, AGAIN]) as server,
        Gateway(
            tmp_path,
            model("silent", silent.url, deadlines={**QUICK, "headers": 0.05}),
            model("a", server.url),
            route("r", "a", rules=[rule]),
            settings(breaker={"enabled": False}),
        ) as gateway,
    ):
        asked = [await gateway.begin(CHAT, request("chat", "r"), {"x-sits-region": "eu"}) for _ in range(20)]
        attempts = [(await one.ended()).headers["x-sits-attempts"] for one in asked]
        after = await gateway.ask(CHAT, request("chat", "r"), {"x-sits-region": "eu"})
    assert attempts == ["2"] * 20
    assert (after.status, after.headers["x-sits-attempts"]) == (200, "1")


@inside_loop
async def test_what_is_the_clients_fault_makes_no_target_dearer(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, answer(400, b'{"error": {"message": "bad temperature"}}'), AGAIN]) as server,
        Gateway(tmp_path, model("a", server.url)) as gateway,
    ):
        for _ in range(10):
            assert (await gateway.ask(CHAT, request("chat", "a"))).status == 400
        state = gateway.node.standing.states["a"]
    assert (state.errors, state.outstanding) == (0.0, 0)
