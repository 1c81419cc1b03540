"""Killed the moment after an answer, the service has forgotten nothing that a client has seen."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
from hashlib import sha256
from typing import Any

import pytest
from gateway_process import Sits
from gateway_rig import inside_loop, model
from gateway_wires import PATHS, WIRES, request, said

from sits.engines.scripted import AGAIN, READ, ScriptedServer
from sits.state.ledger import open_table
from sits.state.ledger.sql import Query

CHAT = WIRES["chat", "openai"]


async def killed(sits: Sits) -> None:
    os.killpg(sits.pid, signal.SIGKILL)
    await sits.exit_code()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@inside_loop
async def test_what_clients_have_seen_is_in_the_ledger(stream: bool, tmp_path: pathlib.Path) -> None:
    steps = CHAT.streams("好", "的") if stream else [CHAT.answers("好的")]
    async with ScriptedServer([READ, *steps, AGAIN]) as server, Sits(tmp_path, model("one", server.url)) as sits:
        seen = set()
        for _ in range(3):
            asked = [await sits.begin(PATHS["chat"], request("chat", "one", stream=stream)) for _ in range(20)]
            # The last answer is hardly there when the kill comes.
            seen |= {(await one.ended()).headers["x-request-id"] for one in asked}
            await killed(sits)
            await sits.start()
        sits.signal(signal.SIGTERM)
        assert await sits.exit_code() == 0
    table = await asyncio.to_thread(open_table, tmp_path / "data")
    rows = (await asyncio.to_thread(table.entries, Query(), limit=1000)).rows
    found = [str(value) for row in rows for value in row if str(value) in seen]
    await asyncio.to_thread(table.close)
    assert (len(seen), sorted(found)) == (60, sorted(seen))


@inside_loop
async def test_a_conversation_goes_on_after_the_kill(tmp_path: pathlib.Path) -> None:
    wire = WIRES["messages", "anthropic"]
    async with (
        ScriptedServer([READ, wire.answers("好"), AGAIN]) as server,
        Sits(tmp_path, model("one", server.url, "anthropic")) as sits,
    ):
        first = await sits.ask(PATHS["responses"], request("responses", "one"))
        await killed(sits)
        await sits.start()
        second = await sits.ask(PATHS["responses"], request("responses", "one", previous_response_id=first.json["id"]))
        assert (second.status, said("responses", second.body)) == (200, "好")


@inside_loop
async def test_quotas_hold_over_a_kill_and_over_workers(tmp_path: pathlib.Path) -> None:
    key: dict[str, Any] = {
        "apiVersion": "sits/v1",
        "kind": "Key",
        "metadata": {"name": "a"},
        "spec": {"sha256": sha256(b"sits-a").hexdigest(), "quota": {"dollarsPerMonth": 0.001}},
    }
    # 5 tokens in, 7 out: 12 micro-dollars each; 1,000 are allowed.
    priced = {"cost": {"inputPerMillion": 1.0, "outputPerMillion": 1.0}}
    async with (
        ScriptedServer([READ, CHAT.answers("好"), AGAIN]) as server,
        Sits(tmp_path, model("one", server.url, **priced), key, workers=2) as sits,
    ):
        served = 0
        bearer = {"authorization": "Bearer sits-a"}
        for _ in range(3):
            asked = [await sits.begin(PATHS["chat"], request("chat", "one", max_tokens=7), bearer) for _ in range(40)]
            served += [(await one.ended()).status for one in asked].count(200)
            await killed(sits)
            await sits.start()
        # What was reserved and never settled stays held until its time is over: fewer may be served, more never.
        assert 15 <= served <= 1000 // 12
