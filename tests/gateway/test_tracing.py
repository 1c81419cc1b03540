"""Traffic that is recorded by a running gateway, and decided again from the file."""

from __future__ import annotations

import pathlib
import random
from datetime import UTC, datetime, timedelta

import msgspec
from gateway_rig import Gateway, inside_loop, model, route, settings
from gateway_wires import OPENAI_CHAT, PATHS, request

from sits.engines.scripted import AGAIN, READ, ScriptedServer
from sits.observe.trace_row import Row, read
from sits.replay.replay import replay
from sits.resources.kinds import Model, Route
from sits.resources.reading import read as read_resources
from sits.resources.snapshot import compile


@inside_loop
async def test_what_was_recorded_is_decided_again_alike_and_by_other_weights_otherwise(tmp_path: pathlib.Path) -> None:
    traces = tmp_path / "traces"
    async with (
        ScriptedServer([READ, OPENAI_CHAT.answers("好"), AGAIN]) as server,
        Gateway(
            tmp_path,
            *(model(name, server.url) for name in "abc"),
            route("drawn", ("a", 3), ("b", 1)),
            {**route("busy", "a"), "spec": {"backends": [{"model": "a"}, {"model": "b"}, {"model": "c"}]}},
            {
                **route("scored", "a"),
                "spec": {
                    "backends": [{"model": "a"}, {"model": "b"}],
                    "scores": [{"name": "load"}, {"name": "session", "weight": 0.5}],
                    "explore": 0.1,
                },
            },
            settings(trace={"folder": str(traces)}),
        ) as it,
    ):
        it.node.service.random = random.Random(5).random
        for number in range(120):
            name = ("drawn", "busy", "scored")[number % 3]
            headers = {
                "x-sits-session": f"会话-{number % 7}",
                "authorization": "Bearer secret-in-a-header",
            }
            answer = await it.ask(PATHS["chat"], request("chat", name), headers)
            assert answer.status == 200
    [file] = traces.glob("*.jsonl")
    text = file.read_text()
    assert "secret-in-a-header" not in text
    assert sum(isinstance(row, Row) for row in read(file)) == 120
    [(_, again)] = replay(file)
    assert (again.rows, again.reproduced, again.behind) == (120, 120, 0)

    other = compile(
        [
            *(msgspec.convert(model(name, server.url), Model) for name in "abc"),
            msgspec.convert(route("drawn", ("a", 1), ("b", 3)), Route),
            *(one.resource for one in read_resources(tmp_path / "config").declared if one.name in ("busy", "scored")),
        ],
        1,
    )
    [(_, moved)] = replay(file, other)
    # Of the draws below 3/4, those from 1/4 on go over; `drawn` had every third of 120.
    draws = [
        row.record.draw.number for row in read(file) if isinstance(row, Row) and row.record.route == "drawn" and row.record.draw
    ]
    assert moved.moved == sum(0.25 <= number < 0.75 for number in draws)


@inside_loop
async def test_what_a_contract_refused_is_refused_again_and_by_another_contract_is_not(tmp_path: pathlib.Path) -> None:
    traces = tmp_path / "traces"
    grounded = {"grounding": {"scopes": ["员工手册"], "maxAgeHours": 24}}
    said = [
        ({"x-sits-grounding-scope": "员工手册", "x-sits-grounding-time": hours_ago(1)}, 200),
        ({"x-sits-grounding-scope": "员工手册", "x-sits-grounding-time": hours_ago(30)}, 400),
        ({"x-sits-grounding-scope": "价格", "x-sits-grounding-time": hours_ago(1)}, 400),
        ({"x-sits-grounding-scope": "员工手册", "x-sits-grounding-time": "昨天"}, 400),
        ({}, 400),
    ]
    async with (
        ScriptedServer([READ, OPENAI_CHAT.answers("好"), AGAIN]) as server,
        Gateway(
            tmp_path,
            model("bound", server.url, semantics=grounded),
            route("r", "bound"),
            settings(trace={"folder": str(traces)}),
        ) as it,
    ):
        for headers, status in said:
            assert (await it.ask(PATHS["chat"], request("chat", "r"), headers)).status == status
    [(_, again)] = replay(traces)
    assert (again.rows, again.reproduced) == (5, 5)

    longer = {"grounding": {"scopes": ["员工手册"], "maxAgeHours": 48}}
    other = [
        msgspec.convert(model("bound", "http://127.0.0.1:9", semantics=longer), Model),
        msgspec.convert(route("r", "bound"), Route),
    ]
    [(_, moved)] = replay(traces, compile(other, 1))
    assert (moved.moved, moved.answered, moved.refused) == (1, 1, 0)


def hours_ago(hours: float) -> str:
    return (datetime.now(UTC) - timedelta(hours=hours)).isoformat()
