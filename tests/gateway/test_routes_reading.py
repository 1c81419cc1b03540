"""A conversation stays where it has been read, and the record says so."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from gateway_rig import Gateway, bearer, inside_loop, key, model, route
from gateway_wires import PATHS, WIRES

from sits.engines.scripted import AGAIN, READ, ScriptedServer
from sits.observe.explain import explain

CHAT = PATHS["chat"]
WIRE = WIRES["chat", "openai"]
TOLD = "你是一个有用的助手，请始终用简体中文回答。" * 40


def turn(*said: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(said)]
    return {"model": "r", **more, "messages": [{"role": "system", "content": TOLD}, *messages]}


def slow_readers(gateway: Gateway) -> None:
    """Both read at a millisecond a byte, as if that had been learned."""
    for state in gateway.node.standing.states.values():
        state.read = 1e-3


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@inside_loop
async def test_later_turns_go_where_the_first_was_read(tmp_path: pathlib.Path, stream: bool) -> None:
    answer = WIRE.streams("好") if stream else [WIRE.answers("好")]
    async with (
        ScriptedServer([READ, *answer, AGAIN]) as server,
        Gateway(tmp_path, model("a", server.url), model("b", server.url), {**route("r", "a", "b"), "spec": OPEN}) as gateway,
    ):
        asked = []
        for number in range(7):
            said = [f"问题 {number}: " + "请详细说明。" * 30, "好", "继续"]
            turns = []
            for step in range(2):
                slow_readers(gateway)
                turns.append(await gateway.ask(CHAT, turn(*said[: 2 * step + 1], stream=stream)))
            asked.append(turns)
        record = gateway.record(asked[-1][1])
    # The first two requests try who was never asked.
    targets = [[one.headers["x-sits-target"] for one in turns] for turns in asked[1:]]
    assert [first for first, _ in targets] == [second for _, second in targets]
    assert record.draw is not None
    assert max(record.draw.warm) > 0.8 * record.draw.size
    share = max(record.draw.warm) / record.draw.size
    assert f"{targets[-1][0]} {share:.0%}" in explain(record, 1000).partition("of the prompt had been read before: ")[2]


@inside_loop
async def test_nobody_can_tell_by_who_answers_what_another_team_has_sent(tmp_path: pathlib.Path) -> None:
    keys = [key("red", team="red"), key("blue", team="blue"), key("more", team="red")]
    async with (
        ScriptedServer([READ, WIRE.answers("好"), AGAIN]) as server,
        Gateway(
            tmp_path, model("a", server.url), model("b", server.url), {**route("r", "a", "b"), "spec": OPEN}, *keys
        ) as gateway,
    ):
        for number in range(4):  # the first ones try who was never asked
            await gateway.ask(CHAT, turn(f"起头 {number}"), bearer("red"))
        body = turn("只有红队知道的问题。" * 30)
        warm = {}
        for who in ("red", "blue", "more", "blue"):
            slow_readers(gateway)
            asked = await gateway.ask(CHAT, body, bearer(who))
            draw = gateway.record(asked).draw
            assert draw is not None
            warm.setdefault(who, max(draw.warm, default=0.0) / max(1.0, draw.size))
    assert warm["red"] > 0.5, "the instructions that all begin with"
    assert warm["blue"] == 0.0
    assert warm["more"] > warm["red"], "teams know what their keys have sent"


OPEN = {"backends": [{"model": "a"}, {"model": "b"}]}


@inside_loop
async def test_short_prompts_and_other_policies_remember_nothing(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, WIRE.answers("好"), AGAIN]) as server,
        Gateway(
            tmp_path,
            model("a", server.url),
            model("b", server.url),
            {**route("r", "a", "b"), "spec": OPEN},
            route("turns", "a", "b", policy="round-robin"),
        ) as gateway,
    ):
        short = {"model": "r", "messages": [{"role": "user", "content": "你好"}]}
        assert (await gateway.ask(CHAT, short)).status == 200
        assert (await gateway.ask(CHAT, {**turn("长"), "model": "turns"})).status == 200
        record = gateway.record()
        held = len(gateway.node.standing.beginnings)
    assert held == 0
    assert record.draw is not None
    assert record.draw.warm == ()
