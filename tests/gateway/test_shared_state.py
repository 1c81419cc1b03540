"""Gateways that share a Redis share answers, quotas and conversations; without it each goes on by itself."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest
from gateway_client import eventually
from gateway_rig import Gateway, inside_loop, model, route, settings
from gateway_wires import PATHS, WIRES, request, said

from sits.engines.scripted import AGAIN, READ, ScriptedServer
from sits.ports.servers import ServerProcess
from sits.ports.servers.redis import RedisServer

CHAT = WIRES["chat", "openai"]


@pytest.fixture
def redis(tmp_path: pathlib.Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        yield server


def on(server: RedisServer, **spec: Any) -> dict[str, Any]:
    return settings(store=server.address, vectors=server.address, **{"stateSeconds": 1.0, **spec})


def folder(tmp_path: pathlib.Path, name: str) -> pathlib.Path:
    place = tmp_path / name
    place.mkdir()
    return place


def question(words: str) -> dict[str, Any]:
    return {"model": "asked", "messages": [{"role": "user", "content": words}]}


@inside_loop
async def test_an_answer_kept_by_one_is_given_by_the_other_also_to_other_words(
    redis: RedisServer, tmp_path: pathlib.Path
) -> None:
    async with ScriptedServer([READ, CHAT.answers("一"), AGAIN]) as server:
        resources = (model("one", server.url), route("asked", "one", cache={"semantic": {}}), on(redis, stateSeconds=20.0))
        async with (
            Gateway(folder(tmp_path, "a"), *resources) as first,
            Gateway(folder(tmp_path, "b"), *resources) as second,
        ):
            for gateway in (first, second):
                assert gateway.node.caches.shared is not None
                # A store that is slow since the machine is busy is not away.
                gateway.node.caches.shared._patience = 20.0
            asked = await first.ask(PATHS["chat"], question("How do I reset my password?"))
            assert asked.headers["x-sits-cache"] == "miss"
            await eventually(lambda: not first.node.caches._behind, "it is on its way no more")

            async def given(words: str, expected: str) -> None:
                # What it asked a model for itself it would keep for these very words.
                kept = {"cache-control": "only-if-cached"}
                for _ in range(600):
                    found = await second.ask(PATHS["chat"], question(words), kept)
                    if found.headers.get("x-sits-cache") == expected:
                        return
                    await second.ask("/v1/admin/cache/purge", {"model": "nobody"})
                    await asyncio.sleep(0.05)  # another process, Redis, sends no event
                raise AssertionError(f"never {expected}: {words}")

            await given("How do I reset my password?", "hit")
            await given("how can i reset my password", "semantic")
            audit = (await first.ask("/v1/admin/state/audit")).json["data"]
            assert [one["sound"] for one in audit] == [True]
            purged = await first.ask("/v1/admin/cache/purge", {"model": "one"})
            assert purged.status == 200
            again = await second.ask(PATHS["chat"], question("How do I reset my password?"))
            assert again.headers["x-sits-cache"] in ("miss", "hit")  # its own copy goes with its next look
            await second.node.caches.shared.refresh()  # type: ignore[union-attr]


@inside_loop
async def test_two_gateways_admit_a_quota_once(redis: RedisServer, tmp_path: pathlib.Path) -> None:
    key = {
        "apiVersion": "sits/v1",
        "kind": "Key",
        "metadata": {"name": "a"},
        "spec": {"sha256": sha256(b"sits-a").hexdigest(), "quota": {"requestsPerMinute": 9}},
    }
    async with ScriptedServer([READ, CHAT.answers("好"), AGAIN]) as server:
        resources = (model("one", server.url), key, on(redis))
        async with (
            Gateway(folder(tmp_path, "a"), *resources) as first,
            Gateway(folder(tmp_path, "b"), *resources) as second,
        ):
            for gateway in (first, second):
                gateway.node.service.wall = lambda: 1_700_000_000.0
            asked = [
                await gateway.begin(PATHS["chat"], request("chat", "one"), {"authorization": "Bearer sits-a"})
                for _ in range(10)
                for gateway in (first, second)
            ]
            statuses = [(await one.ended(10.0)).status for one in asked]
            assert (statuses.count(200), statuses.count(429)) == (9, 11)


@inside_loop
async def test_a_conversation_begun_at_one_goes_on_at_the_other(redis: RedisServer, tmp_path: pathlib.Path) -> None:
    wire = WIRES["messages", "anthropic"]
    async with ScriptedServer([READ, wire.answers("好"), AGAIN]) as server:
        resources = (model("one", server.url, "anthropic"), on(redis))
        async with (
            Gateway(folder(tmp_path, "a"), *resources) as first,
            Gateway(folder(tmp_path, "b"), *resources) as second,
        ):
            begun = await first.ask(PATHS["responses"], request("responses", "one"))
            gone_on = await second.ask(PATHS["responses"], request("responses", "one", previous_response_id=begun.json["id"]))
            assert (gone_on.status, said("responses", gone_on.body)) == (200, "好")


@inside_loop
async def test_while_the_store_is_away_requests_are_served_and_afterwards_all_is_as_before(
    redis: RedisServer, tmp_path: pathlib.Path
) -> None:
    async with ScriptedServer([READ, CHAT.answers("一"), AGAIN]) as server:
        resources = (model("one", server.url), route("asked", "one", cache={}, quota={"concurrent": 100}), on(redis))
        async with Gateway(folder(tmp_path, "a"), *resources) as gateway:
            assert (await gateway.ask(PATHS["chat"], question("a"))).status == 200
            redis.kill()
            for words in ("b", "c"):
                asked = await (await gateway.begin(PATHS["chat"], question(words))).ended(10.0)
                assert (asked.status, asked.headers["x-sits-cache"]) == (200, "miss")
            await asyncio.to_thread(ServerProcess.start, redis)
            asked = await (await gateway.begin(PATHS["chat"], question("d"))).ended(10.0)
            assert asked.status == 200
