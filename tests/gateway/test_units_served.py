"""A route with units, served: who is asked while they are merged, when the one that stays is down, and after the split."""

from __future__ import annotations

import json
import pathlib
from contextlib import AsyncExitStack
from typing import Any

from gateway_client import eventually
from gateway_rig import Gateway, inside_loop, model, route
from gateway_wires import PATHS, WIRES, request

from sits.engines.scripted import AGAIN, READ, ScriptedServer
from sits.routing.units import Traffic

CHAT = WIRES["chat", "openai"]
UNITS = {
    "merge": {"promptTokens": 100, "qps": 2},
    "split": {"promptTokens": 50, "qps": 1},
    "into": "two",
    "holdSeconds": 0.05,
    "freshMs": 2000,
}
LONG = "看" * 200


def asked(text: str = LONG) -> dict[str, Any]:
    return {**request("chat", "pair"), "messages": [{"role": "user", "content": text}]}


@inside_loop
async def test_all_requests_go_to_the_unit_that_stays_and_to_the_other_when_it_fails(tmp_path: pathlib.Path) -> None:
    stack = AsyncExitStack()
    two = await stack.enter_async_context(ScriptedServer([READ, CHAT.answers("two"), AGAIN]))
    async with (
        ScriptedServer([READ, CHAT.answers("one"), AGAIN]) as one,
        Gateway(
            tmp_path,
            model("one", one.url),
            model("two", two.url),
            route("pair", "one", "two", units=UNITS),
        ) as gateway,
    ):
        merging = gateway.node.service.merging
        assert merging is not None
        lane = merging.of("pair")
        assert lane is not None
        for _ in range(12):
            assert (await gateway.ask(PATHS["chat"], asked())).status == 200
        await eventually(lambda: lane.away == {"one"}, "they are merged")
        before = len(one.requests)
        for _ in range(8):
            found = await gateway.ask(PATHS["chat"], asked())
            assert found.headers["x-sits-target"] == "two"
        assert len(one.requests) == before
        page = json.loads((await gateway.ask("/v1/admin/units", method="GET")).body)["data"]
        assert [(row["route"], row["state"], row["stays"], row["away"]) for row in page] == [("pair", "merged", "two", ["one"])]
        await stack.aclose()
        found = await gateway.ask(PATHS["chat"], asked())
        assert (found.status, found.headers["x-sits-target"], found.headers["x-sits-attempts"]) == (200, "one", "2")
        lane.traffic = Traffic()  # As it is when five seconds have passed.
        await eventually(lambda: not lane.away, "they are split")
        found = [(await gateway.ask(PATHS["chat"], asked("Hi"))).headers["x-sits-target"] for _ in range(2)]
        assert "one" in found
