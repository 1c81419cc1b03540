"""Several gateways on one bus are one: a real NATS server, and nodes that come, go and disagree."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from gateway_client import eventually
from gateway_rig import Gateway, inside_loop, model, settings, write
from gateway_wires import PATHS, WIRES, request

from sits.engines.scripted import AGAIN, READ, Received, ScriptedServer, answer
from sits.ports.servers import ServerProcess
from sits.ports.servers.nats import NatsServer

REGISTER = "/v1/models/register"
CHAT = WIRES["chat", "openai"]


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    with server:
        yield server


def well(received: Received) -> bytes:
    return answer(200, b"{}") if received.method == "GET" else CHAT.answers("好")


def on(server: NatsServer, name: str, **cluster: Any) -> dict[str, Any]:
    return settings(bus=server.address, stateSeconds=2.0, cluster={"name": name, **cluster})


@contextlib.asynccontextmanager
async def gateways(
    server: NatsServer, folder: pathlib.Path, name: str, count: int, *resources: Any
) -> AsyncIterator[list[Gateway]]:
    async with contextlib.AsyncExitStack() as stack:
        made = []
        for number in range(count):
            place = folder / f"node{number}"
            place.mkdir(exist_ok=True)
            made.append(await stack.enter_async_context(Gateway(place, *resources, on(server, name))))
        yield made


async def names(gateway: Gateway) -> list[str]:
    listed = await gateway.ask("/v1/models")
    return [one["id"] for one in listed.json["data"]]


async def status(gateway: Gateway) -> dict[str, Any]:
    found: dict[str, Any] = (await gateway.ask("/v1/admin/status")).json["cluster"]
    return found


def serves(gateway: Gateway, name: str) -> bool:
    return name in gateway.node.service.table.names


@inside_loop
async def test_a_model_registered_on_one_node_is_on_all_within_a_second_and_goes_from_all(
    nats: NatsServer, tmp_path: pathlib.Path
) -> None:
    async with (
        ScriptedServer([READ, well, AGAIN]) as added,
        gateways(nats, tmp_path, "registered", 3, model("one", "http://127.0.0.1:9")) as (first, second, third),
    ):
        made = await first.ask(REGISTER, {"model_id": "new", "engine": "openai", "endpoint": added.url})
        begun = time.monotonic()
        assert made.status == 201
        await eventually(lambda: serves(second, "new") and serves(third, "new"), "all nodes know it")
        assert time.monotonic() - begun < 1.0
        answered = await third.ask(PATHS["chat"], request("chat", "new"))
        assert answered.status == 200
        again = await second.ask(REGISTER, {"model_id": "new", "engine": "openai", "endpoint": added.url})
        assert (again.status, again.code) == (409, "conflict")
        gone = await second.ask("/v1/models/new", None, None, "DELETE")
        assert gone.status == 200
        await eventually(lambda: not any(serves(one, "new") for one in (first, second, third)), "it is gone everywhere")
        refused = await first.ask(PATHS["chat"], request("chat", "new"))
        assert (refused.status, refused.code) == (404, "model_not_found")


@inside_loop
async def test_a_change_of_one_nodes_files_is_in_force_on_all_and_status_shows_who_has_what(
    nats: NatsServer, tmp_path: pathlib.Path
) -> None:
    one = model("one", "http://127.0.0.1:9")
    async with gateways(nats, tmp_path, "pushed", 3, one) as nodes:
        before = (await status(nodes[0]))["config"]
        assert before["version"] == 1
        assert {(await status(node))["config"]["hash"] for node in nodes} == {before["hash"]}
        write(nodes[1].folder, one, model("二".encode().hex(), "http://127.0.0.1:9"), on(nats, "pushed"))
        await nodes[1].node.reload()
        await eventually(lambda: all(serves(node, "e4ba8c") for node in nodes), "all serve by the change")
        told = await status(nodes[2])
        assert told["config"]["version"] == 2
        assert told["config"]["who"] == (await status(nodes[1]))["node"]

        def agreed() -> bool:
            membership = nodes[2].node.membership
            assert membership is not None
            members = membership.cluster.members()
            return len(members) == 3 and all(there and member.config == 2 for member, there in members)

        await eventually(agreed, "status shows every node's version")


@inside_loop
async def test_a_node_that_was_away_takes_what_is_in_force_and_does_not_bring_back_its_old_files(
    nats: NatsServer, tmp_path: pathlib.Path
) -> None:
    one, two = model("one", "http://127.0.0.1:9"), model("two", "http://127.0.0.1:9")
    async with gateways(nats, tmp_path, "away", 2, one) as nodes:
        await nodes[1].node.aclose()
        write(nodes[0].folder, one, two, on(nats, "away"))
        await nodes[0].node.reload()
        async with Gateway(tmp_path / "node1", one, on(nats, "away")) as back:
            assert serves(back, "two")
            assert await names(back) == ["one", "two"]
            assert serves(nodes[0], "two")
        await nodes[1].node.start()  # for the block's own end


@inside_loop
async def test_what_a_node_cannot_use_leaves_its_old_configuration_and_its_row_says_why(
    nats: NatsServer, tmp_path: pathlib.Path
) -> None:
    one = model("one", "http://127.0.0.1:9")
    async with (
        ScriptedServer([READ, well, AGAIN]) as added,
        gateways(nats, tmp_path, "refused", 2, one) as nodes,
    ):
        made = await nodes[0].ask(REGISTER, {"model_id": "two", "engine": "openai", "endpoint": added.url})
        assert made.status == 201
        await eventually(lambda: serves(nodes[1], "two"), "both know it")
        # Declared under a name that is registered: it compiles nowhere.
        write(nodes[0].folder, one, model("two", "http://127.0.0.1:9"), on(nats, "refused"))
        await nodes[0].node.reload()
        assert (await nodes[0].ask("/v1/admin/status")).json["config"]["problems"]
        assert (await status(nodes[1]))["config"]["version"] == 1
        assert serves(nodes[1], "two")


@inside_loop
async def test_the_bus_may_go_and_come_back_and_nothing_has_to_be_restarted(tmp_path: pathlib.Path) -> None:
    with NatsServer(tmp_path / "nats") as server:
        one = model("one", "http://127.0.0.1:9")
        async with ScriptedServer([READ, well, AGAIN]) as added, gateways(server, tmp_path, "outage", 2, one) as nodes:
            server.kill()
            asked = {"model_id": "new", "engine": "openai", "endpoint": added.url}
            refused = await nodes[0].ask(REGISTER, asked)
            assert (refused.status, refused.code) == (503, "state_unavailable")
            assert await names(nodes[0]) == ["one"]
            await asyncio.to_thread(ServerProcess.start, server)
            for _ in range(50):
                made = await nodes[0].ask(REGISTER, asked)
                if made.status != 503:
                    break
                await asyncio.sleep(0.1)  # another process sends no event
            # The call that failed may have been kept all the same: then the name is taken.
            assert made.status in (201, 409)
            await eventually(lambda: all(serves(node, "new") for node in nodes), "both know it")


@inside_loop
async def test_files_that_changed_while_the_bus_was_away_are_in_force_on_all_when_it_is_back(tmp_path: pathlib.Path) -> None:
    with NatsServer(tmp_path / "nats") as server:
        one = model("one", "http://127.0.0.1:9")
        async with gateways(server, tmp_path, "owed", 2, one) as nodes:
            server.kill()
            write(nodes[1].folder, one, model("late", "http://127.0.0.1:9"), on(server, "owed"))
            await nodes[1].node.reload()
            assert serves(nodes[1], "late")
            membership = nodes[1].node.membership
            assert membership is not None
            await eventually(lambda: membership.tell()[2].startswith("not pushed yet"), "its row would say so", 6.0)
            await asyncio.to_thread(ServerProcess.start, server)
            await eventually(lambda: serves(nodes[0], "late"), "the other serves by the change")
            await eventually(lambda: membership.tell()[2] == "", "nothing is owed any more")


@inside_loop
async def test_a_gateway_starts_without_its_bus_and_joins_when_it_comes(tmp_path: pathlib.Path) -> None:
    server = NatsServer(tmp_path / "nats")
    one = model("one", "http://127.0.0.1:9")
    place = tmp_path / "node0"
    place.mkdir()
    resources = (one, settings(bus=server.address, stateSeconds=0.3, cluster={"name": "late"}))
    async with Gateway(place, *resources) as gateway:
        assert await names(gateway) == ["one"]
        assert (await status(gateway))["trouble"]
        await asyncio.to_thread(server.start)
        try:
            membership = gateway.node.membership
            assert membership is not None
            await eventually(lambda: membership.cluster.config is not None, "it joined and pushed")
        finally:
            await asyncio.to_thread(server.stop)
