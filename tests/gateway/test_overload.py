"""Requests of each class while their route has more than it can take, on a running gateway."""

from __future__ import annotations

import asyncio
import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from gateway_client import eventually
from gateway_rig import Gateway, inside_loop, model, route, settings, write
from gateway_wires import PATHS, WIRES, request, said

from sits.engines.scripted import AGAIN, READ, Received, ScriptedServer, answer

CHAT = WIRES["chat", "openai"]
ONE = {"start": 1, "least": 1, "most": 1}
"""A limit of one, so that two are too many; P0 may be one more."""


def key(name: str, **spec: Any) -> dict[str, Any]:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return {"apiVersion": "sits/v1", "kind": "Key", "metadata": {"name": name}, "spec": {"sha256": digest, **spec}}


def by(name: str, **more: str) -> Mapping[str, str]:
    return {"authorization": f"Bearer {name}", **more}


class Busy:
    """A route `r` whose only place is taken, and which has somebody waiting for it for long enough to be overloaded."""

    def __init__(self, gateway: Gateway, **headers: str) -> None:
        self.gateway = gateway
        self.headers = headers

    async def __aenter__(self) -> Busy:
        self.inside = await self.gateway.begin(PATHS["chat"], request("chat", "r"), self.headers)
        gate = self.gateway.node.standing.gates["r"]
        await eventually(lambda: gate.inside == 1, "one is inside")
        turns = [{"role": "user", "content": "another question, or it would wait for the answer to the first"}]
        self.waiting = await self.gateway.begin(PATHS["chat"], request("chat", "r", messages=turns), self.headers)
        await eventually(lambda: gate.overloaded, "it is overloaded")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.inside.leave()
        self.waiting.leave()


@inside_loop
async def test_whoever_waits_goes_in_when_its_turn_comes_and_the_record_says_how_long(tmp_path: pathlib.Path) -> None:
    hold = asyncio.Event()
    async with (
        ScriptedServer([READ, hold, CHAT.answers("一"), AGAIN], [READ, CHAT.answers("二"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), route("r", "one"), settings(qos=ONE)) as gateway,
    ):
        first = await gateway.begin(PATHS["chat"], request("chat", "r"))
        await server.until(lambda one: len(one.requests) == 1)
        second = await gateway.begin(PATHS["chat"], request("chat", "r"))
        gate = gateway.node.standing.gates["r"]
        await eventually(lambda: gate.waiting == 1, "the second waits")
        assert len(server.requests) == 1
        hold.set()
        await first.ended()
        await second.ended()
        await eventually(lambda: gate.inside == 0, "both are out")
        record = gateway.record(second)
    assert (first.status, second.status) == (200, 200)
    assert record.priority == 1
    assert record.queued_ms > 0


@inside_loop
async def test_a_request_that_cannot_be_served_in_time_is_refused_with_a_time_to_come_again(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, asyncio.Event()]) as server,
        Gateway(tmp_path, model("one", server.url), route("r", "one"), settings(qos={**ONE, "p1": {"firstMs": 50}})) as gateway,
    ):
        inside = await gateway.begin(PATHS["chat"], request("chat", "r"))
        await server.until(lambda one: len(one.requests) == 1)
        refused = await gateway.ask(PATHS["chat"], request("chat", "r"))
        inside.leave()
        await eventually(lambda: not gateway.node.service.live, "nobody is left")
        assert gateway.node.standing.gates["r"].inside == 0
        assert not gateway.node.standing.breakers.any_out
    assert (refused.status, refused.code) == (503, "overloaded")
    assert int(refused.headers["retry-after"]) >= 1


@inside_loop
async def test_a_client_that_leaves_while_it_waits_gives_its_place_in_line_back(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, asyncio.Event()]) as server,
        Gateway(tmp_path, model("one", server.url), route("r", "one"), settings(qos=ONE)) as gateway,
    ):
        await gateway.begin(PATHS["chat"], request("chat", "r"))
        await server.until(lambda one: len(one.requests) == 1)
        waiting = await gateway.begin(PATHS["chat"], request("chat", "r"))
        gate = gateway.node.standing.gates["r"]
        await eventually(lambda: gate.waiting == 1, "it waits")
        waiting.leave()
        await eventually(lambda: gate.waiting == 0 and len(gateway.node.service.live) == 1, "it is out")
        record = gateway.record()
    assert (record.status, record.attempts) == (499, [])


@inside_loop
async def test_whoever_waits_goes_in_when_a_reload_takes_the_classes_away(tmp_path: pathlib.Path) -> None:
    hold = asyncio.Event()
    resources = (route("r", "one"),)
    async with (
        ScriptedServer([READ, hold, CHAT.answers("一"), AGAIN], [READ, CHAT.answers("二"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), *resources, settings(qos=ONE)) as gateway,
    ):
        first = await gateway.begin(PATHS["chat"], request("chat", "r"))
        await server.until(lambda one: len(one.requests) == 1)
        second = await gateway.begin(PATHS["chat"], request("chat", "r"))
        gate = gateway.node.standing.gates["r"]
        await eventually(lambda: gate.waiting == 1, "the second waits")
        write(tmp_path, model("one", server.url), *resources, settings())
        await gateway.node.reload()
        await second.ended()
        hold.set()
        await first.ended()
    assert (first.status, second.status) == (200, 200)


@inside_loop
async def test_a_client_may_ask_for_less_than_its_key_has_and_never_for_more(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, CHAT.answers("好"), AGAIN]) as server,
        Gateway(
            tmp_path,
            model("one", server.url),
            route("r", "one"),
            key("low", priority="P2"),
            key("high", priority="P0"),
            settings(qos={}),
        ) as gateway,
    ):
        seen = []
        for name, asked in (("low", "P0"), ("high", "P1"), ("high", "")):
            more = {"x-sits-priority": asked} if asked else {}
            asking = await gateway.ask(PATHS["chat"], request("chat", "r"), by(name, **more))
            seen.append(gateway.record(asking).priority)
        wrong = await gateway.ask(PATHS["chat"], request("chat", "r"), by("high", **{"x-sits-priority": "urgent"}))
    assert seen == [2, 1, 0]
    assert (wrong.status, wrong.json["error"]["param"]) == (400, "x-sits-priority")


@inside_loop
async def test_under_overload_p1_is_answered_by_the_replacement_and_shorter(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, asyncio.Event()], [READ, CHAT.answers("全"), AGAIN]) as server,
        ScriptedServer([READ, CHAT.answers("短"), AGAIN]) as small,
        Gateway(
            tmp_path,
            model("one", server.url),
            model("small", small.url),
            route("r", "one", qos={"replacement": "small", "shortenTokens": 7}),
            settings(qos=ONE),
        ) as gateway,
        Busy(gateway),
    ):
        lesser = await gateway.ask(PATHS["chat"], request("chat", "r"))
        assert json.loads(small.requests[0].body)["max_tokens"] == 7
        assert gateway.record(lesser).target == "small"
    assert said("chat", lesser.body) == "短"
    assert (lesser.headers["x-sits-replacement"], lesser.headers["x-sits-shortened"]) == ("small", "7")


@inside_loop
async def test_under_overload_p0_is_served_as_ever(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, asyncio.Event()], [READ, CHAT.answers("先"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), route("r", "one", qos={"priority": "P0"}), settings(qos=ONE)) as gateway,
        Busy(gateway, **{"x-sits-priority": "P1"}),
    ):
        top = await gateway.ask(PATHS["chat"], request("chat", "r", max_tokens=500))
        assert json.loads(server.requests[-1].body)["max_tokens"] == 500
    assert said("chat", top.body) == "先"


@inside_loop
async def test_what_provably_did_not_start_is_tried_once_more_for_p0_alone(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, answer(503), READ, CHAT.answers("再"), READ, answer(503), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), route("r", "one", qos={"priority": "P0"}), settings(qos={})) as gateway,
    ):
        top = await gateway.ask(PATHS["chat"], request("chat", "r"))
        usual = await gateway.ask(PATHS["chat"], request("chat", "r"), {"x-sits-priority": "P1"})
        kinds = [one.kind for one in gateway.record(top).attempts]
    assert (top.status, usual.status, kinds) == (200, 502, ["first", "again"])


@inside_loop
async def test_under_overload_p2_gets_what_is_kept_now_and_the_models_own_later(tmp_path: pathlib.Path) -> None:
    state = {"text": "旧"}

    def answers(_: Received) -> bytes:
        return CHAT.answers(state["text"])

    hold = asyncio.Event()
    async with (
        ScriptedServer([READ, answers, READ, hold, answers, AGAIN], [READ, answers, AGAIN]) as server,
        Gateway(
            tmp_path,
            model("one", server.url),
            route("r", "one", qos={"priority": "P2"}, cache={"ttlSeconds": 0.01}, ladder={"cacheSeconds": 3600}),
            settings(qos=ONE),
        ) as gateway,
    ):
        question = request("chat", "r", messages=[{"role": "user", "content": "同一个问题"}])
        kept = await gateway.ask(PATHS["chat"], question)
        async with Busy(gateway):
            state["text"] = "新"
            now = await gateway.ask(PATHS["chat"], question)
            promised = await gateway.ask(
                PATHS["chat"], request("chat", "r", messages=[{"role": "user", "content": "别的"}]), {"prefer": "respond-async"}
            )
            where = now.headers["x-sits-later"]
            pending = await gateway.ask(where, method="GET")
        hold.set()

        async def made() -> bool:
            return (await gateway.ask(where, method="GET")).status == 200

        async with asyncio.timeout(30):
            while not await made():  # noqa: ASYNC110 - the page is all that tells
                await asyncio.sleep(0.05)
        later = await gateway.ask(where, method="GET")
        other = await gateway.ask("/v1/later/nonsense", method="GET")
    assert (said("chat", kept.body), said("chat", now.body), said("chat", later.body)) == ("旧", "旧", "新")
    assert now.headers["x-sits-rung"] == "cache"
    assert (promised.status, pending.status, other.status) == (202, 202, 404)
    assert promised.headers["retry-after"]
