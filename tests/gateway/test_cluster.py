"""Several gateways on one bus are one: a real NATS server, and nodes that come, go and disagree."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import pathlib
import shutil
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from gateway_client import eventually
from gateway_rig import Gateway, inside_loop, model, route, settings, write
from gateway_wires import PATHS, WIRES, request

from granted import Granted
from sits.engines.scripted import AGAIN, READ, Received, ScriptedServer, answer
from sits.ports.servers import ServerProcess
from sits.ports.servers.nats import NatsServer

PLUGIN = """from sits.routing.scheduling.base import Score


class Near(Score):
    name = "near"
    varies = "never"

    def __init__(self, made):
        pass

    def score(self, facts, candidates):
        return [100.0] * len(candidates)
"""
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
        assert made.status == 201
        async with Granted() as waited:
            await eventually(lambda: serves(second, "new") and serves(third, "new"), "all nodes know it")
        assert waited.seconds < 1.0
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


def tokenizer_file() -> pathlib.Path:
    """The tokenizer.json (Llama 2) that lies in wordllama."""
    spec = importlib.util.find_spec("wordllama")
    assert spec is not None
    assert spec.origin is not None
    return pathlib.Path(spec.origin).parent / "tokenizers" / "l2_supercat_tokenizer_config.json"


def placed(folder: pathlib.Path, secret: str) -> None:
    """The files that the resources of the next tests name, each gateway's in its own folder."""
    for name in ("config/plugins", "词"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "config/plugins/near.py").write_text(PLUGIN)
    shutil.copy(tokenizer_file(), folder / "词" / "tok.json")
    (folder / "config/secret").write_text(secret)


def naming(server: NatsServer, url: str, name: str) -> list[dict[str, Any]]:
    """Resources with relative paths of every kind that can be seen from outside."""
    exact = {
        "source": "file:../词/tok.json",
        "normalises": "none",
        "waitMs": 10_000,
        "frame": {"message": "{content}", "answer": ""},
    }
    told = on(server, name)
    told["spec"] |= {"plugins": "plugins", "trace": {"folder": "seen"}}
    scored = route("r", "one", scores=[{"name": "near", "weight": 1}])
    return [model("one", url), model("counted", url, tokenizer=exact), model("keyed", url, apiKey="file:secret"), scored, told]


def row_of(teller: Gateway, told: Gateway) -> tuple[str, str]:
    """Hash and error of a gateway, as another one knows it."""
    ours, theirs = teller.node.membership, told.node.membership
    assert ours is not None
    assert theirs is not None
    return next(((one.hash, one.error) for one, _ in ours.cluster.members() if one.id == theirs.cluster.node), ("", ""))


@inside_loop
async def test_relative_paths_are_each_gateways_own_and_all_tell_the_same_hash(nats: NatsServer, tmp_path: pathlib.Path) -> None:
    for number, secret in enumerate(("of-first", "of-second")):
        placed(tmp_path / f"node{number}", secret)
    async with (
        ScriptedServer([READ, well, AGAIN]) as server,
        gateways(nats, tmp_path, "places", 2, model("one", server.url)) as (first, second),
    ):
        write(first.folder, *naming(nats, server.url, "places"))
        await first.node.reload()
        await eventually(lambda: serves(second, "keyed"), "the second serves by it")
        hashed = first.node.reloader.status.hash
        await eventually(
            lambda: row_of(first, first) == row_of(first, second) == (hashed, ""), "one hash, and nothing is missing"
        )
        plugins = (await second.ask("/v1/admin/plugins")).json
        source = str(second.folder / "config" / "plugins" / "near.py")
        assert [(row["name"], row["source"], row["state"]) for row in plugins["data"]] == [("near", source, "live")]
        assert (plugins["problems"], plugins["missing"]) == ([], [])
        count = await second.ask("/v1/messages/count_tokens", request("messages", "counted"))
        assert (count.status, count.headers.get("x-sits-estimated")) == (200, None)
        for gateway, secret in ((first, "of-first"), (second, "of-second")):
            assert (await gateway.ask(PATHS["chat"], request("chat", "keyed"))).status == 200
            assert server.requests[-1].headers["authorization"] == f"Bearer {secret}"
            await eventually((gateway.folder / "config" / "seen").exists, "each records into its own folder")


@inside_loop
async def test_what_is_not_there_on_another_gateway_is_told_with_its_full_place_and_all_else_serves(
    nats: NatsServer, tmp_path: pathlib.Path
) -> None:
    placed(tmp_path / "node0", "of-first")
    async with (
        ScriptedServer([READ, well, AGAIN]) as server,
        gateways(nats, tmp_path, "gone", 2, model("one", server.url)) as (first, second),
    ):
        write(first.folder, *naming(nats, server.url, "gone"))
        await first.node.reload()
        await eventually(lambda: serves(second, "keyed"), "the second serves by it")
        hashed, membership = first.node.reloader.status.hash, first.node.membership
        assert membership is not None
        config, origin = second.folder / "config", f"(cluster, version 2 by {membership.cluster.node})"
        missing = {"spec.tokenizer.source": "../词/tok.json", "spec.apiKey": "secret", "spec.plugins": "plugins"}
        error = "\n".join(
            f"{origin} {field}: no file or folder at {config / name}; put it there, or name another place"
            for field, name in missing.items()
        )
        await eventually(lambda: row_of(first, second) == (hashed, error), "the first knows what the second has not")
        assert row_of(first, first) == (hashed, "")
        assert error in [one["error"] for one in (await status(first))["nodes"]]
        for name in ("one", "r", "counted"):
            assert (await second.ask(PATHS["chat"], request("chat", name))).status == 200
        refused = await second.ask(PATHS["chat"], request("chat", "keyed"))
        assert (refused.status, refused.code) == (503, "model_unavailable")
        assert f"the file {config / 'secret'} cannot be read: no such file or directory" in refused.json["error"]["message"]
        placed(second.folder, "of-second")
        await eventually(lambda: row_of(first, second) == (hashed, ""), "what is there now is not missed any more")


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
            for _ in range(300):
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
            await eventually(lambda: membership.tell()[2].startswith("not pushed yet"), "its row would say so")
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
