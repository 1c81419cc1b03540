"""Workers and gateways choose as one: real processes, a real NATS server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pathlib
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from gateway_client import eventually
from gateway_process import Sits
from gateway_rig import Gateway, inside_loop, model, route, settings
from gateway_wires import PATHS, WIRES, request

from sits.engines.scripted import AGAIN, READ, ScriptedServer
from sits.ports.servers.nats import NatsServer
from sits.routing.reports import PATIENCE

CHAT = PATHS["chat"]
WIRE = WIRES["chat", "openai"]
LONG = "你是一个有用的助手，请始终用简体中文回答。" * 40


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    with server:
        yield server


@contextlib.asynccontextmanager
async def two(nats: NatsServer, folder: pathlib.Path, name: str, *resources: Any) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """Two gateways that have heard of each other."""
    shared = settings(bus=nats.address, stateSeconds=2.0, cluster={"name": name})
    async with contextlib.AsyncExitStack() as stack:
        made = []
        for number in range(2):
            place = folder / f"node{number}"
            place.mkdir()
            made.append(await stack.enter_async_context(Gateway(place, *resources, shared)))
        await eventually(lambda: all(len(peers(one)) == 1 for one in made), "both have heard of the other")
        yield made[0], made[1]


def peers(gateway: Gateway) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = gateway.node.routing.reporting.status()["peers"]
    return found


def long(text: str) -> dict[str, Any]:
    return {"model": "r", "messages": [{"role": "system", "content": LONG + text}, {"role": "user", "content": "你好"}]}


@inside_loop
async def test_what_one_gateway_has_under_way_the_other_counts_until_the_last_byte(
    nats: NatsServer, tmp_path: pathlib.Path
) -> None:
    held = asyncio.Event()

    async with ScriptedServer([READ, held, WIRE.answers("好"), AGAIN]) as server:
        both = [model("a", server.url), model("b", server.url), route("r", "a", "b", policy="least-connections")]
        async with two(nats, tmp_path, "counting", *both) as (one, other):
            asked = [await one.begin(CHAT, request("chat", "r")) for _ in range(4)]
            states = other.node.standing.states
            await eventually(lambda: [states[name].of_service() for name in "ab"] == [2, 2], "the other counts them")
            assert [states[name].outstanding for name in "ab"] == [0, 0]
            assert sum(row["under_way"] for row in peers(other)) == 4
            # It goes by what both have, so that its own two are one for each.
            asked += [await other.begin(CHAT, request("chat", "r")) for _ in range(2)]
            await eventually(lambda: [states[name].of_service() for name in "ab"] == [3, 3], "one more each")
            held.set()
            assert [(await call.ended()).status for call in asked] == [200] * 6
            counted = [*one.node.standing.states.values(), *states.values()]
            await eventually(lambda: all(state.of_service() == 0 for state in counted), "nothing is under way")
            await eventually(lambda: all(state.seen == 3 for state in counted), "both have learned from all")


@inside_loop
async def test_a_conversation_that_came_to_one_gateway_is_known_to_the_other(nats: NatsServer, tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ, WIRE.answers("好"), AGAIN]) as server:
        both = [model("a", server.url), model("b", server.url), route("r", "a", "b", policy="least-added")]
        async with two(nats, tmp_path, "reading", *both) as (one, other):
            for number in range(4):  # the first ones try who was never asked
                await one.ask(CHAT, long(f"起头 {number}"))
            first = await one.ask(CHAT, long("甲"))
            memory = other.node.standing.beginnings
            await eventually(lambda: len(memory) == len(one.node.standing.beginnings) > 0, "the other knows who has read it")
            for gateway in (one, other):
                for state in gateway.node.standing.states.values():
                    state.read = 1e-3  # slow readers, as if that had been learned
            again = await other.ask(CHAT, long("甲"))
            record = other.record(again)
    assert again.headers["x-sits-target"] == first.headers["x-sits-target"]
    assert record.draw is not None
    assert max(record.draw.warm) > 0.5 * record.draw.size


@inside_loop
async def test_a_gateway_that_is_gone_is_forgotten_with_what_it_had(nats: NatsServer, tmp_path: pathlib.Path) -> None:
    held = asyncio.Event()

    async with ScriptedServer([READ, held, WIRE.answers("好"), AGAIN]) as server:
        both = [model("a", server.url), model("b", server.url), route("r", "a", "b")]
        async with two(nats, tmp_path, "gone", *both) as (one, other):
            call = await one.begin(CHAT, request("chat", "r"))
            states = other.node.standing.states
            await eventually(lambda: sum(state.peers for state in states.values()) == 1, "the other counts it")
            await one.node.routing.reporting._carrier.aclose()  # it says nothing any more, as if it were killed
            reporting = other.node.routing.reporting
            reporting.tick(other.node.loop.time() + 1e6 + PATIENCE)
            assert (peers(other), sum(state.of_service() for state in states.values())) == ([], 0)
            assert all(state.journal is None for state in states.values()), "who is alone writes nothing down"
            held.set()
            assert (await call.ended()).status == 200


@inside_loop
async def test_a_gateway_that_ends_says_so_and_is_forgotten_at_once_and_quietly(
    nats: NatsServer, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    both = [model("a", "http://127.0.0.1:9"), model("b", "http://127.0.0.1:9"), route("r", "a", "b")]
    async with two(nats, tmp_path, "ending", *both) as (one, other):
        await one.node.routing.aclose()
        await eventually(lambda: peers(other) == [], "it is forgotten", 2.0)
        other.node.routing.reporting.tick(other.node.loop.time() + 1e6 + PATIENCE)
    assert [said for said in caplog.messages if "has said nothing" in said] == []


@inside_loop
async def test_nobody_is_told_of_targets_without_a_choice(nats: NatsServer, tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ, WIRE.answers("好"), AGAIN]) as server:
        models = [model(name, server.url) for name in ("a", "b", "alone")]
        async with two(nats, tmp_path, "choice", *models, route("r", "a", "b")) as (one, other):
            journals = {name: state.journal is not None for name, state in one.node.standing.states.items()}
            assert journals == {"a": True, "b": True, "alone": False}
            assert (await one.ask(CHAT, request("chat", "alone"))).status == 200
            assert other.node.standing.states["alone"].seen == 0


@inside_loop
async def test_what_cannot_be_read_is_counted_and_said_once(nats: NatsServer, tmp_path: pathlib.Path) -> None:
    async with two(nats, tmp_path, "unread", model("a", "http://127.0.0.1:9")) as (one, _):
        reporting = one.node.routing.reporting
        lost = reporting.status()["lost"]
        for data in (b"", b"\xc1", b"[1]", b"\x91\x01"):
            reporting._hear(data, 0.0)
        assert reporting.status()["lost"] == lost + 4


@inside_loop
async def test_workers_of_one_gateway_tell_each_other_and_a_killed_one_is_forgotten(tmp_path: pathlib.Path) -> None:
    """Two processes on one port; which of them answers, the kernel says."""

    async def reports(sits: Sits) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for _ in range(12):  # each time a connection of its own
            asked = await sits.ask("/v1/admin/status")
            if asked.status != 200:  # it was on its way to the one that was killed
                continue
            status = asked.json
            found[status["reports"]["who"]] = status["reports"]
        return found

    async def met(sits: Sits) -> dict[str, dict[str, Any]]:
        async with asyncio.timeout(60.0):
            while True:
                found = await reports(sits)
                if len(found) == 2 and all(
                    {peer["who"] for peer in one["peers"]} == found.keys() - {who} for who, one in found.items()
                ):
                    return found

    async with ScriptedServer([READ, WIRE.answers("好"), AGAIN]) as server:
        resources = [model("a", server.url), model("b", server.url), route("r", "a", "b")]
        async with Sits(tmp_path, *resources, workers=2) as sits:
            before = await met(sits)
            assert {one["by"] for one in before.values()} == {"workers"}
            asked = [await sits.ask(CHAT, long(str(number))) for number in range(20)]
            assert {one.status for one in asked} == {200}
            metrics = (await sits.ask("/metrics")).body.decode()
            assert "sits_peers 1" in metrics
            (killed, _) = sits.crew()
            os.kill(killed, signal.SIGKILL)
            after = await met(sits)
            assert len(after.keys() & before.keys()) == 1, "one is new"
            assert json.dumps(after).count('"under_way": 0') == 2
