"""How many requests a target has under way: held to the last byte, and given back however a request ends."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from gateway_client import eventually
from gateway_rig import QUICK, Gateway, inside_loop, model, route, settings
from gateway_wires import PATHS, WIRES, request, streamed

from sits.engines.scripted import AGAIN, CLOSE, READ, RESET, Script, ScriptedServer, answer

CHAT = PATHS["chat"]
WIRE = WIRES["chat", "openai"]
HEAD, FIRST, *REST = WIRE.streams("一", "二")
ANSWER = WIRE.answers("好")
Story = Callable[[Gateway, asyncio.Event], Awaitable[None]]


def counts(gateway: Gateway) -> dict[str, int]:
    return {name: state.outstanding for name, state in gateway.node.standing.states.items()}


async def nobody(gateway: Gateway) -> None:
    await eventually(lambda: not any(counts(gateway).values()), f"nothing is under way: {counts(gateway)}")


@pytest.mark.parametrize("scored", [False, True], ids=["plain", "scored"])
@inside_loop
async def test_a_stream_is_under_way_until_its_last_byte(tmp_path: pathlib.Path, scored: bool) -> None:
    go = asyncio.Event()
    spec: dict[str, Any] = {"scores": [{"name": "least-outstanding"}]} if scored else {"policy": "least-connections"}
    async with (
        ScriptedServer([READ, HEAD, FIRST, go, *REST]) as server,
        Gateway(tmp_path, model("a", server.url), model("b", server.url), route("r", "a", "b", **spec)) as gateway,
    ):
        asked = [await gateway.begin(CHAT, request("chat", "r", stream=True)) for _ in range(4)]
        for one in asked:
            await one.until(lambda asking: streamed("chat", asking.body) == "一")
        held = counts(gateway)
        go.set()
        for one in asked:
            await one.ended()
        await nobody(gateway)
    assert held == {"a": 2, "b": 2}


async def ok(gateway: Gateway, go: asyncio.Event) -> None:
    assert (await gateway.ask(CHAT, request("chat", "r"))).status == 200


async def ok_streamed(gateway: Gateway, go: asyncio.Event) -> None:
    asking = await gateway.ask(CHAT, request("chat", "r", stream=True))
    assert (asking.whole, asking.code) == (True, "")


async def error(gateway: Gateway, go: asyncio.Event) -> None:
    assert (await gateway.ask(CHAT, request("chat", "r"))).status >= 400


async def gone_early(gateway: Gateway, go: asyncio.Event) -> None:
    asking = await gateway.begin(CHAT, request("chat", "r", stream=True))
    await eventually(lambda: sum(counts(gateway).values()) > 0)
    asking.leave()


async def gone_midway(gateway: Gateway, go: asyncio.Event) -> None:
    asking = await gateway.begin(CHAT, request("chat", "r", stream=True))
    await asking.until(lambda one: streamed("chat", one.body) == "一")
    assert sum(counts(gateway).values()) > 0
    asking.leave()


async def broken_midway(gateway: Gateway, go: asyncio.Event) -> None:
    asking = await gateway.ask(CHAT, request("chat", "r", stream=True))
    assert asking.code == "stream_broken"


async def drained(gateway: Gateway, go: asyncio.Event) -> None:
    asking = await gateway.begin(CHAT, request("chat", "r", stream=True))
    await asking.until(lambda one: streamed("chat", one.body) == "一")
    await gateway.node.service.drain(0.0)
    assert (await asking.ended()).code == "draining"


FAILS = answer(500, b"{}")
SOON = answer(429, b"{}", ("retry-after", "0"))
GO, LATE = object(), object()
ENDS: dict[str, tuple[Story, list[Any], list[Any], dict[str, Any]]] = {
    "ok": (ok, [READ, ANSWER], [READ], {}),
    "ok, streamed": (ok_streamed, [READ, HEAD, FIRST, *REST], [READ], {}),
    "refused": (error, [READ, answer(400, b"{}")], [READ], {}),
    "both fail": (error, [READ, FAILS], [READ, FAILS], {}),
    "cut off": (ok, [READ, RESET], [READ, ANSWER], {}),
    "nonsense": (ok, [READ, b"nonsense\r\n\r\n", CLOSE], [READ, ANSWER], {}),
    "not in time": (ok, [READ], [READ, ANSWER], {}),
    "nobody in time": (error, [READ], [READ], {"total": 0.2}),
    "the client goes before anything came": (gone_early, [READ], [READ], {}),
    "the client goes midway": (gone_midway, [READ, HEAD, FIRST], [READ], {}),
    "broken midway": (broken_midway, [READ, HEAD, FIRST, RESET], [READ], {}),
    "gone on with": (ok_streamed, [READ, HEAD, FIRST, RESET], [READ, *WIRE.streams("二")], {"onBrokenStream": "continue"}),
    "tried again": (ok, [READ, SOON, READ, ANSWER], [READ], {"retry": {"same": 1, "pauseSeconds": 0.01, "floor": 5}}),
    "the second is first": (ok, [READ, GO], [READ, ANSWER], {"hedge": {"afterMs": 20, "share": 1}}),
    "the first is first after all": (
        ok_streamed, [READ, LATE, HEAD, FIRST, *REST], [READ, GO], {"hedge": {"afterMs": 20, "share": 1}},
    ),
    "drained": (drained, [READ, HEAD, FIRST], [READ], {}),
}  # fmt: skip
CHOSEN = {
    "scores": [{"name": "least-outstanding"}, {"name": "prefix-affinity"}],
    "rules": [{"name": "x", "match": {"qps": {"from": 0}}, "backends": [{"model": "one"}], "while": {"p99BelowMs": 1e9}}],
}
KINDS: dict[str, dict[str, Any]] = {"plain": {}, "chosen": CHOSEN}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ENDS)
@inside_loop
async def test_however_a_request_ends_nothing_stays_under_way(tmp_path: pathlib.Path, what: str, kind: str) -> None:
    story, first, second, spec = ENDS[what]
    engine = "vllm" if "onBrokenStream" in spec else "openai"
    go, late = asyncio.Event(), asyncio.Event()

    def script(steps: list[Any]) -> Script:
        made = [late if step is LATE else go if step is GO else step for step in steps]
        return [*made, AGAIN] if made[-1] is ANSWER else made

    async with (
        ScriptedServer(script(second)) as two,
        ScriptedServer(script(first)) as one,
        Gateway(
            tmp_path,
            model("one", one.url, engine, deadlines={**QUICK, "headers": 0.15} if what == "not in time" else QUICK),
            model("two", two.url, engine),
            route("r", "one", fallbacks=("two",), **KINDS[kind], **spec),
            settings(breaker={"enabled": False}),
        ) as gateway,
    ):
        told = asyncio.ensure_future(story(gateway, go))
        if LATE in first:
            await eventually(lambda: len(two.requests) == 1, "the second one is asked beside the first")
            assert counts(gateway) == {"one": 1, "two": 1}
            late.set()
        await told
        go.set()
        await nobody(gateway)
        assert counts(gateway) == {"one": 0, "two": 0}


@inside_loop
async def test_a_target_is_busy_for_all_routes_that_have_it_and_for_the_next_configuration(tmp_path: pathlib.Path) -> None:
    go = asyncio.Event()
    async with (
        ScriptedServer([READ, HEAD, FIRST, go, *REST]) as slow,
        ScriptedServer([READ, ANSWER, AGAIN]) as quick,
        Gateway(
            tmp_path,
            model("slow", slow.url),
            model("quick", quick.url),
            route("first", "slow"),
            route("second", "slow", "quick", policy="least-connections"),
        ) as gateway,
    ):
        running = await gateway.begin(CHAT, request("chat", "first", stream=True))
        await running.until(lambda one: streamed("chat", one.body) == "一")
        found = {(await gateway.ask(CHAT, request("chat", "second"))).headers["x-sits-target"] for _ in range(20)}
        assert found == {"quick"}
        assert counts(gateway) == {"slow": 1, "quick": 0}
        go.set()
        await running.ended()
        await nobody(gateway)
