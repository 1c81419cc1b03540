"""Routes as their users see them: shares, labels, rules, and who stays where it was."""

from __future__ import annotations

import asyncio
import pathlib
import random
from collections import Counter
from collections.abc import Mapping
from time import perf_counter
from typing import Any

import pytest
from gateway_client import Asking, eventually
from gateway_rig import QUICK, Gateway, inside_loop, model, route, settings, write
from gateway_wires import PATHS, WIRES, request, streamed

from sits.engines.scripted import AGAIN, READ, Received, ScriptedServer, answer
from sits.routing.rule_watch import FEWEST, SECONDS

CHAT = PATHS["chat"]
WIRE = WIRES["chat", "openai"]
ANSWER = WIRE.answers("好")
Resource = Mapping[str, Any]


def well() -> ScriptedServer:
    return ScriptedServer([READ, ANSWER, AGAIN])


def failing() -> ScriptedServer:
    return ScriptedServer([READ, answer(500, b"{}"), AGAIN])


def labelled(name: str, *backends: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"kind": "Route", "metadata": {"name": name}, "spec": {"backends": list(backends), **spec}}


def with_labels(resource: dict[str, Any], **labels: str) -> dict[str, Any]:
    return {**resource, "metadata": {**resource["metadata"], "labels": labels}}


async def target(gateway: Gateway, name: str, headers: Mapping[str, str] | None = None, **more: Any) -> str:
    asking = await gateway.ask(CHAT, request("chat", name, **more), headers)
    assert asking.status == 200, asking
    return asking.headers["x-sits-target"]


async def changed(gateway: Gateway, *resources: Resource) -> None:
    """Put these in the place of all resources, and wait until they are in force."""
    before = gateway.node.service.table.snapshot.version
    write(gateway.folder, *resources, settings(breaker={"enabled": False}))
    await eventually(lambda: gateway.node.service.table.snapshot.version > before, "the change is in force")


def within(count: int, share: float, total: int) -> bool:
    """Four standard deviations of a binomial draw."""
    return bool(abs(count - total * share) <= 4 * (total * share * (1 - share)) ** 0.5)


# Shares


@inside_loop
async def test_weights_are_shares_and_are_changed_live_without_losing_a_request(tmp_path: pathlib.Path) -> None:
    go = asyncio.Event()
    head, first, *rest = WIRE.streams("一", "二")
    async with (
        well() as server,
        ScriptedServer([READ, head, first, go, *rest]) as slow,
        Gateway(
            tmp_path,
            models := model("vllm", server.url, "vllm"),
            tgi := model("tgi", server.url, "tgi"),
            other := model("slow", slow.url),
            route("r", ("vllm", 70), ("tgi", 30)),
            settings(breaker={"enabled": False}),
        ) as gateway,
    ):
        gateway.node.service.random = random.Random(7).random
        running = await gateway.begin(CHAT, request("chat", "slow", stream=True))
        await running.until(lambda one: streamed("chat", one.body) == "一")
        before = Counter([await target(gateway, "r") for _ in range(300)])
        flying = [asyncio.ensure_future(gateway.ask(CHAT, request("chat", "r"))) for _ in range(20)]
        await changed(gateway, models, tgi, other, route("r", ("vllm", 10), ("tgi", 90)))
        flying += [asyncio.ensure_future(gateway.ask(CHAT, request("chat", "r"))) for _ in range(20)]
        assert {one.status for one in await asyncio.gather(*flying)} == {200}
        after = Counter([await target(gateway, "r") for _ in range(300)])
        go.set()
        await running.ended()
    assert within(before["vllm"], 0.7, 300), before
    assert within(after["vllm"], 0.1, 300), after
    assert (running.whole, streamed("chat", running.body)) == (True, "一二")
    assert sum(one.method == "POST" for one in server.requests) == 640


@inside_loop
async def test_a_bad_change_leaves_the_shares_as_they_were(tmp_path: pathlib.Path) -> None:
    async with (
        well() as server,
        Gateway(tmp_path, one := model("a", server.url), route("r", ("a", 1)), settings()) as gateway,
    ):
        version = gateway.node.service.table.snapshot.version
        write(gateway.folder, one, route("r", ("a", 0)), settings())
        await eventually(lambda: bool(gateway.node.reloader.status.last_error), "the change is refused")
        assert "every weight is 0" in gateway.node.reloader.status.last_error[0].message
        assert await target(gateway, "r") == "a"
        assert gateway.node.service.table.snapshot.version == version


# Labels


@inside_loop
async def test_models_join_and_leave_a_route_by_their_labels(tmp_path: pathlib.Path) -> None:
    def serve(received: Received) -> bytes:
        return answer(200, b"{}") if received.method == "GET" else ANSWER

    r = labelled("r", {"select": {"engine": "vllm"}, "weight": 1})
    async with (
        ScriptedServer([READ, serve, AGAIN]) as server,
        Gateway(tmp_path, one := model("one", server.url, "vllm"), tgi := model("t", server.url, "tgi"), r) as gateway,
    ):
        gateway.node.service.random = random.Random(3).random

        async def who() -> set[str]:
            return {await target(gateway, "r") for _ in range(40)}

        assert await who() == {"one"}
        body = {"model_id": "added", "engine": "vllm", "endpoint": server.url, "deadlines": QUICK}
        made = await gateway.ask("/v1/models/register", body)
        assert made.status == 201, made
        assert await who() == {"one", "added"}
        await changed(gateway, one, tgi, r, model("file", server.url, "vllm"))
        assert await who() == {"one", "added", "file"}
        assert (await gateway.ask("/v1/models/added", None, None, "DELETE")).status == 200
        assert await who() == {"one", "file"}
        await changed(gateway, tgi, r, with_labels(model("mine", server.url), engine="vllm"))
        assert await who() == {"mine"}


@inside_loop
async def test_a_weight_is_shared_by_those_that_are_found_and_those_that_are_found_last_are_asked_when_others_fail(
    tmp_path: pathlib.Path,
) -> None:
    async with (
        well() as server,
        failing() as bad,
        Gateway(
            tmp_path,
            *[with_labels(model(name, server.url), tier="gold") for name in ("a", "b")],
            model("c", server.url, "vllm"),
            model("bad", bad.url, region="eu"),
            labelled("r", {"select": {"tier": "gold"}, "weight": 50}, {"model": "c", "weight": 50}),
            labelled("last", {"select": {"region": "eu"}}, {"select": {"engine": "vllm"}, "weight": 0}),
            settings(breaker={"enabled": False}),
        ) as gateway,
    ):
        gateway.node.service.random = random.Random(5).random
        found = Counter([await target(gateway, "r") for _ in range(200)])
        assert await target(gateway, "last") == "c"
        record = gateway.record()
    assert all(within(found[name], share, 200) for name, share in (("a", 0.25), ("b", 0.25), ("c", 0.5))), found
    assert [one.target for one in record.attempts] == ["bad", "c"]


# Rules


RULES = [
    {"name": "shift", "match": {"region": ["us-west", "华东"], "adapter": ["sql"]}, "backends": [{"model": "adapted"}]},
    {"name": "gold", "match": {"headers": {"X-Tier": "gold*"}}, "backends": [{"model": "b"}]},
    {"name": "any", "match": [{"headers": {"x-any": "*"}}, {"headers": {"x-exact": "1"}}], "backends": [{"model": "c"}]},
    {"name": "patient", "match": {"priority": ["P2"]}, "backends": [{"model": "d"}]},
    {"name": "blue", "match": {"colour": ["blue"], "region": ["eu"]}, "backends": [{"model": "e"}]},
]
MATCHED: dict[str, tuple[dict[str, str], str, str]] = {
    "none": ({}, "a", ""),
    "region and adapter": ({"x-sits-region": "us-west", "x-sits-adapter": "sql"}, "adapted", "shift"),
    "another of the regions": ({"x-sits-region": "华东", "x-sits-adapter": "sql"}, "adapted", "shift"),
    "the region alone": ({"x-sits-region": "us-west"}, "a", ""),
    "a beginning": ({"x-tier": "golden"}, "b", "gold"),
    "another beginning": ({"x-tier": "silver"}, "a", ""),
    "any value": ({"x-any": ""}, "c", "any"),
    "one of two matches": ({"x-exact": "1"}, "c", "any"),
    "nearly the value": ({"x-exact": "12"}, "a", ""),
    "the first rule of two": ({"x-any": "x", "x-tier": "gold"}, "b", "gold"),
    "a class": ({"x-sits-priority": "P2"}, "d", "patient"),
    "another class": ({"x-sits-priority": "P1"}, "a", ""),
    "a colour": ({"x-traffic-color": "blue", "x-sits-region": "eu"}, "e", "blue"),
    "no colour": ({"x-sits-region": "eu"}, "a", ""),
}


@inside_loop
async def test_the_first_rule_that_matches_counts(tmp_path: pathlib.Path) -> None:
    async with (
        well() as server,
        Gateway(
            tmp_path,
            *[model(name, server.url) for name in "abcde"],
            model("adapted", server.url, adapters=["sql"]),
            route("r", "a", rules=RULES),
            settings(auth="off"),
        ) as gateway,
    ):
        for what, (headers, expected, rule) in MATCHED.items():
            for streams in (False, True):
                asking = await gateway.ask(CHAT, request("chat", "r", stream=streams), headers)
                assert (what, asking.status, asking.headers.get("x-sits-target")) == (what, 200, expected)
                assert (what, gateway.record(asking).rule) == (what, rule)


@inside_loop
async def test_a_rule_for_a_team_goes_by_the_key(tmp_path: pathlib.Path) -> None:
    key = {
        "kind": "Key", "metadata": {"name": "k"},
        "spec": {"sha256": "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b", "team": "search"},
    }  # fmt: skip
    other = {"kind": "Key", "metadata": {"name": "o"}, "spec": {"sha256": "a" * 64}}
    async with (
        well() as server,
        Gateway(
            tmp_path,
            model("a", server.url),
            model("b", server.url),
            route("r", "a", rules=[{"name": "t", "match": {"team": ["search"]}, "backends": [{"model": "b"}]}]),
            key,
            other,
        ) as gateway,
    ):
        assert await target(gateway, "r", {"authorization": "Bearer secret"}) == "b"


@inside_loop
async def test_a_rule_for_a_band_of_requests_a_second_counts_while_it_is_in_the_band(tmp_path: pathlib.Path) -> None:
    rule = {"name": "busy", "match": {"qps": {"from": 1}}, "backends": [{"model": "b"}]}
    async with (
        well() as server,
        Gateway(tmp_path, model("a", server.url), model("b", server.url), route("r", "a", rules=[rule])) as gateway,
    ):
        found = [await target(gateway, "r") for _ in range(8)]
    assert found == ["a"] * 4 + ["b"] * 4


@inside_loop
async def test_after_the_backends_of_a_rule_come_those_of_the_route_and_then_its_fallbacks(tmp_path: pathlib.Path) -> None:
    rule = {"name": "eu", "match": {"region": ["eu"]}, "backends": [{"model": "x"}, {"model": "y", "weight": 0}]}
    async with (
        failing() as bad,
        Gateway(
            tmp_path,
            *[model(name, bad.url) for name in ("a", "spare", "f", "x", "y")],
            route("r", ("a", 1), ("spare", 0), fallbacks=("f",), rules=[rule]),
            settings(breaker={"enabled": False}),
        ) as gateway,
    ):
        asking = await gateway.ask(CHAT, request("chat", "r"), {"x-sits-region": "eu"})
        ruled = [one.target for one in gateway.record(asking).attempts]
        asking = await gateway.ask(CHAT, request("chat", "r"))
        plain = [one.target for one in gateway.record(asking).attempts]
    assert ruled == ["x", "y", "a", "spare", "f"]
    assert plain == ["a", "spare", "f"]


SHIFT = {
    "name": "shift",
    "match": {"region": ["us-west"], "adapter": ["sql"]},
    "backends": [{"model": "west", "weight": 85}, {"model": "asia", "weight": 15}],
    "while": {"p99BelowMs": 1200, "adapterLoadsAbove": 0.9995},
}
SHIFTED = {"x-sits-region": "us-west", "x-sits-adapter": "sql"}


@inside_loop
async def test_a_region_and_adapter_are_shifted_by_weight_only_while_that_goes_well(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = 0.0
    monkeypatch.setattr("sits.gateway.facts.perf_counter", lambda: perf_counter() + later)
    async with (
        well() as server,
        Gateway(
            tmp_path,
            *[model(name, server.url, "vllm", adapters=["sql"]) for name in ("home", "west", "asia")],
            home := route("r", "home", rules=[SHIFT]),
        ) as gateway,
    ):
        gateway.node.service.random = random.Random(11).random
        found = Counter([await target(gateway, "r", SHIFTED) for _ in range(200)])
        assert found["home"] == 0
        assert within(found["west"], 0.85, 200), found
        watch = gateway.node.standing.rules["r", "shift"]
        for _ in range(10):
            watch.note(1.5, perf_counter())
        assert await target(gateway, "r", SHIFTED) == "home"
        assert "not below 1200 ms" in watch.failing
        # Another configuration changes nothing of that, for what was seen is the same.
        models = [model(name, server.url, "vllm", adapters=["sql"]) for name in ("home", "west", "asia")]
        await changed(gateway, *models, home, model("new", server.url))
        assert gateway.node.standing.rules["r", "shift"] is watch
        assert await target(gateway, "r", SHIFTED) == "home"
        later = SECONDS + 1.0
        again = [await target(gateway, "r", SHIFTED) for _ in range(FEWEST)]
        assert set(again) <= {"west", "asia"}
        watch.note_load(False, perf_counter() + later)
        later += 0.5
        assert await target(gateway, "r", SHIFTED) == "home"
        assert "adapter loads" in watch.failing


# Who stays where it was


@inside_loop
async def test_a_session_moves_once_when_its_server_fails_at_every_try_and_when_its_breaker_is_open(
    tmp_path: pathlib.Path,
) -> None:
    names = ("a", "b", "c", "d")
    async with well() as server, ScriptedServer([READ, answer(503, b"{}"), AGAIN]) as ill:
        found: dict[str, set[tuple[str, str]]] = {}
        async with Gateway(tmp_path, *[model(name, server.url) for name in names], route("r", *names, policy="hash")) as gateway:
            home = {f"s{key}": await target(gateway, "r", {"x-sits-session": f"s{key}"}) for key in range(24)}
            away = home["s0"]
            resources = [model(name, ill.url if name == away else server.url) for name in names]
            write(tmp_path, *resources, route("r", *names, policy="hash"), settings(breaker={"row": 3, "openSeconds": 60}))
            await gateway.node.reload()
            for _ in range(2):
                for session in home:
                    asking = await gateway.ask(CHAT, request("chat", "r"), {"x-sits-session": session})
                    found.setdefault(session, set()).add((asking.headers["x-sits-target"], asking.headers["x-sits-attempts"]))
    for session, was in home.items():
        if was != away:
            assert found[session] == {(was, "1")}
        else:
            assert len({name for name, _ in found[session]}) == 1
    assert {tries for session, was in home.items() if was == away for _, tries in found[session]} == {"1", "2"}


STAYS: dict[str, tuple[dict[str, Any], dict[str, str], dict[str, Any]]] = {
    "session": ({"by": "session"}, {"x-sits-session": "会话-{}"}, {}),
    "header": ({"by": "header", "header": "X-User"}, {"x-user": "u{}"}, {}),
    "prefix": ({"by": "prefix"}, {}, {"messages": [{"role": "system", "content": "你是{}。" + "规则。" * 200}]}),
}


@pytest.mark.parametrize("by", STAYS)
@inside_loop
async def test_the_same_stays_with_the_same_backend_and_others_are_spread(tmp_path: pathlib.Path, by: str) -> None:
    spec, headers, more = STAYS[by]
    names = ("a", "b", "c", "d")
    async with (
        well() as server,
        Gateway(
            tmp_path,
            *(models := [model(name, server.url) for name in names]),
            route("r", *names, policy="hash", hash=spec),
            settings(breaker={"enabled": False}),
        ) as gateway,
    ):

        async def where() -> list[str]:
            found = []
            for key in range(40):
                said = {name: value.format(key) for name, value in headers.items()}
                if "messages" in more:
                    body = {"messages": [{"role": "system", "content": more["messages"][0]["content"].format(key)}]}
                else:
                    body = {}
                found.append(await target(gateway, "r", said, **body))
            return found

        first = await where()
        assert await where() == first
        assert len(set(first)) == 4
        await changed(gateway, *models, route("r", "a", "b", "d", policy="hash", hash=spec))
        fewer = await where()
    assert [was for was, now in zip(first, fewer, strict=True) if was != now] == [was for was in first if was == "c"]


@inside_loop
async def test_a_hot_session_goes_on_to_the_next_backend_when_its_own_has_more_than_its_part(tmp_path: pathlib.Path) -> None:
    go = asyncio.Event()
    async with (
        ScriptedServer([READ, go, ANSWER]) as server,
        Gateway(
            tmp_path,
            *[model(name, server.url) for name in ("a", "b", "c")],
            route("r", "a", "b", "c", policy="hash"),
        ) as gateway,
    ):
        asked = [await gateway.begin(CHAT, request("chat", "r"), {"x-sits-session": "hot"}) for _ in range(9)]
        states = gateway.node.standing.states
        await eventually(lambda: sum(one.outstanding for one in states.values()) == 9)
        most = max(one.outstanding for one in states.values())
        go.set()
        done: list[Asking] = [await one.ended() for one in asked]
    assert most == 4, "1.25 times the fair part of 9"
    assert {one.status for one in done} == {200}
    assert {name: one.outstanding for name, one in states.items()} == {"a": 0, "b": 0, "c": 0}
