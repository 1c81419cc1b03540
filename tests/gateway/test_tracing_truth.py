"""What a running gateway recorded of choices that no file can work out: plugins, secrets, long headers, bodies."""

from __future__ import annotations

import asyncio
import pathlib
from typing import Any

import msgspec
from gateway_client import eventually
from gateway_rig import Gateway, inside_loop, model, route, settings, write
from gateway_wires import OPENAI_CHAT, PATHS, request

from sits.engines.scripted import AGAIN, READ, ScriptedServer
from sits.observe.trace_row import Row, read
from sits.replay.replay import replay
from sits.replay.report import Report
from sits.resources.kinds import Model, Route
from sits.resources.snapshot import Snapshot, compile

PLUGIN = '''
from sits.routing.scheduling.base import Filter, Score


class Turns(Score):
    """In turns, which it alone knows."""

    name = "turns"
    varies = "request"

    def __init__(self, made):
        self.count = 0

    def score(self, facts, candidates):
        self.count += 1
        return [100.0 if one.index == self.count % len(candidates) else 0.0 for one in candidates]


class Every(Filter):
    """Leaves out the first one, for every third request."""

    name = "every"

    def __init__(self, made):
        self.count = 0

    def asks(self, facts):
        self.count += 1
        return self.count % 3 == 0

    def keep(self, facts, candidate):
        return "is tired" if candidate.index == 0 else ""
'''
CHAT = PATHS["chat"]


def rows_of(folder: pathlib.Path) -> list[Row]:
    return [line for line in read(folder) if isinstance(line, Row)]


def only(folder: pathlib.Path, other: Snapshot | None = None) -> Report:
    ((_, report),) = replay(folder, other)
    return report


def other(url: str, *routes: dict[str, Any]) -> Snapshot:
    models = (msgspec.convert(model(name, url), Model) for name in "abc")
    return compile([*models, *(msgspec.convert(one, Route) for one in routes)], 1)


@inside_loop
async def test_what_plugins_said_is_said_again_by_whoever_stands_for_them(tmp_path: pathlib.Path) -> None:
    traces, plugins = tmp_path / "traces", tmp_path / "plugins"
    plugins.mkdir(mode=0o700)
    (plugins / "own.py").write_text(PLUGIN)
    scores: list[dict[str, Any]] = [{"name": "cost", "weight": 1}, {"name": "turns", "weight": 3}]
    scored = {"scores": scores, "filters": [{"name": "every"}]}
    async with (
        ScriptedServer([READ, OPENAI_CHAT.answers("好"), AGAIN]) as server,
        Gateway(
            tmp_path,
            *(model(name, server.url) for name in "abc"),
            route("own", "a", "b", fallbacks=("c",), **scored),
            route("plain", "a", "b"),
            settings(plugins=str(plugins), trace={"folder": str(traces)}),
        ) as it,
    ):
        for number in range(24):
            answer = await it.ask(CHAT, request("chat", "plain" if number % 4 == 3 else "own"))
            assert answer.status == 200
    rows = [row for row in rows_of(traces) if row.record.requested == "own"]
    assert {row.first for row in rows} == {"a", "b"}
    assert {name for row in rows for name, _ in row.record.filtered} == {"a"}
    assert (only(traces).reproduced, only(traces).behind) == (24, 0)

    # By the points that were recorded it is clear what more of the other score would do: they cost the same.
    dearer = [{**scores[0], "weight": 9}, scores[1]]
    again = only(
        traces,
        other(server.url, route("own", "a", "b", fallbacks=("c",), **{**scored, "scores": dearer}), route("plain", "a", "b")),
    )
    assert (again.reproduced, again.undecidable) == (24, {})

    # Where they were not asked, nobody knows what they would have said.
    asked = only(traces, other(server.url, route("own", "a", "b", "c", **scored), route("plain", "a", "b", **scored)))
    assert asked.undecidable == {"what filter every of a plugin would say was not recorded": 24}
    assert (asked.moved, asked.reproduced) == (0, 0)
    unweighed = only(traces, other(server.url, route("own", "a", "b"), route("plain", "a", "b", scores=scores)))
    assert unweighed.undecidable == {"what score turns of a plugin would say was not recorded": 6}


@inside_loop
async def test_how_long_an_answer_may_be_counts_and_is_recorded_also_where_nobody_looks(tmp_path: pathlib.Path) -> None:
    traces = tmp_path / "traces"
    fitting: dict[str, Any] = {"scores": [{"name": "memory-fit"}]}

    def sized(name: str, url: str, tokens: int) -> dict[str, Any]:
        made = model(name, url)
        return {**made, "metadata": {**made["metadata"], "labels": {"kv-tokens": str(tokens)}}}

    async with ScriptedServer([READ, OPENAI_CHAT.answers("好"), AGAIN]) as server:
        models = [sized("a", server.url, 2000), sized("b", server.url, 100_000)]
        routes = [
            route("fit", "a", "b", **fitting),
            route("thinks", "a", "b", explore=0.1),
            route("plain", "a", fallbacks=("b",)),
        ]
        async with Gateway(tmp_path, *models, *routes, settings(trace={"folder": str(traces)})) as it:
            for name in ("fit", "thinks", "plain"):
                for limit in (50_000, 100, None):
                    assert (await it.ask(CHAT, {**request("chat", name), "max_tokens": limit})).status == 200
            choices = it.node.service.table.names
            assert {name: choices[name].limits for name in ("fit", "thinks", "plain")} == {
                "fit": True,
                "thinks": False,
                "plain": False,
            }
    rows = rows_of(traces)
    assert [row.asked.wanted_output for row in rows] == [50_000, 100, 0] * 3
    assert [row.first for row in rows[:3]] == ["b", "a", "a"]
    assert (only(traces).reproduced, only(traces).behind) == (9, 0)
    # What the others would do by it is told, too.
    every = [msgspec.convert(one, Model) for one in models]
    changed = [msgspec.convert(route(name, "a", "b", **fitting), Route) for name in ("fit", "thinks", "plain")]
    again = only(traces, compile([*every, *changed], 1))
    due = ["b" if row.asked.wanted_output == 50_000 else "a" for row in rows]
    assert (again.moved, again.undecidable) == (sum(row.first != one for row, one in zip(rows, due, strict=True)), {})
    assert (rows[6].first, due[6]) == ("a", "b")


@inside_loop
async def test_what_is_never_or_not_wholly_recorded_counts_as_it_did_and_is_undecidable_elsewhere(tmp_path: pathlib.Path) -> None:
    traces = tmp_path / "traces"

    def ruled(name: str, header: str, value: str) -> dict[str, Any]:
        rule = {"name": "beta", "match": {"headers": {header: value}}, "backends": [{"model": "b"}]}
        return route(name, "a", rules=[rule])

    grounded = model("c", "http://127.0.0.1:9", semantics={"grounding": {"scopes": ["ok"]}})
    long, scopes = "l" * 6000, "x-sits-grounding-scope"
    said: list[tuple[str, dict[str, str], str]] = [
        ("secret", {"cookie": "beta=1"}, "b"),
        ("secret", {"cookie": "beta=2"}, "a"),
        ("secret", {}, "a"),
        ("long", {"x-long": long}, "b"),
        ("long", {"x-long": long + "l"}, "a"),
        ("long", {"x-long": "l"}, "a"),
        ("masked", {"x-plan": "sk-abcdefghijkl"}, "b"),
        ("masked", {"x-plan": "sk-abcdefghijkm"}, "a"),
        ("scoped", {scopes: "ok," * 300 + "ok"}, "c"),
        ("scoped", {scopes: "ok," * 300 + "bad"}, ""),
        ("scoped", {scopes: "ok," * 2000}, ""),
    ]
    async with (
        ScriptedServer([READ, OPENAI_CHAT.answers("好"), AGAIN]) as server,
        Gateway(
            tmp_path,
            *(model(name, server.url) for name in "ab"),
            {**grounded, "spec": {**grounded["spec"], "endpoint": server.url}},
            ruled("secret", "cookie", "beta=1"),
            ruled("long", "x-long", long),
            ruled("masked", "x-plan", "sk-abcdefghijkl"),
            route("scoped", "c"),
            settings(trace={"folder": str(traces)}),
        ) as it,
    ):
        for name, headers, target in said:
            answer = await it.ask(CHAT, request("chat", name), headers)
            assert answer.headers.get("x-sits-target", "") == target
    assert "beta=1" not in str([row.asked for row in rows_of(traces)])
    assert (only(traces).reproduced, only(traces).undecidable) == (11, {})

    moved = [
        ruled("secret", "cookie", "beta=2"),
        ruled("long", "x-long", "l" * 5000),
        ruled("masked", "x-plan", "other"),
        route("scoped", "a"),
    ]
    again = only(traces, other("http://127.0.0.1:9", *moved))
    assert again.undecidable == {
        "rule beta asks for header cookie, which was not recorded": 3,
        "rule beta asks for header x-long, of which only the beginning was recorded": 2,
        "rule beta asks for header x-plan, which was masked in the record": 2,
    }


@inside_loop
async def test_the_dimensions_that_were_asked_for_are_recorded_without_the_body(tmp_path: pathlib.Path) -> None:
    traces = tmp_path / "traces"
    said = [({}, "a"), ({"dimensions": 8}, "a"), ({"dimensions": 16}, "")]
    answer = (
        b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5]}],"model":"m","usage":{"prompt_tokens":1}}'
    )
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(answer)

    def embeds(size: int) -> dict[str, Any]:
        return model("a", server.url, capabilities=["embeddings"], semantics={"embedding": {"model": "m", "dimension": size}})

    async with ScriptedServer([READ, head + answer, AGAIN]) as server:
        async with Gateway(tmp_path, embeds(8), route("r", "a"), settings(trace={"folder": str(traces)})) as it:
            for more, target in said:
                asked = await it.ask(PATHS["embeddings"], {"model": "r", "input": "x", **more})
                assert asked.headers.get("x-sits-target", "") == target
        wider = compile([msgspec.convert(embeds(16), Model), msgspec.convert(route("r", "a"), Route)], 1)
    assert [row.asked.dimensions for row in rows_of(traces)] == [0, 8, 16]
    assert only(traces).reproduced == 3
    found = only(traces, wider)
    assert (found.reproduced, found.answered, found.refused, found.undecidable) == (1, 1, 1, {})


@inside_loop
async def test_a_request_under_way_when_bodies_are_switched_off_is_written_without_its_own(tmp_path: pathlib.Path) -> None:
    traces, go = tmp_path / "traces", asyncio.Event()

    def configured(bodies: str) -> tuple[dict[str, Any], ...]:
        return model("a", server.url), settings(trace={"folder": str(traces), "bodies": bodies})

    async with ScriptedServer([READ, go, OPENAI_CHAT.answers("好"), AGAIN]) as server:
        async with Gateway(tmp_path, *configured("redacted")) as it:
            asking = await it.begin(CHAT, request("chat", "a"))
            await eventually(lambda: bool(server.requests), "the model is asked")
            write(tmp_path, *configured("none"))
            await it.node.reload()
            go.set()
            await asking.ended()
        assert [row.body for row in rows_of(traces)] == [None]


@inside_loop
async def test_a_target_of_a_rule_that_is_one_of_the_route_too_is_left_out_once(tmp_path: pathlib.Path) -> None:
    rule = {"name": "eu", "match": {"region": ["eu"]}, "backends": [{"model": "a"}, {"model": "b"}]}
    async with (
        ScriptedServer([READ, OPENAI_CHAT.answers("好"), AGAIN]) as server,
        Gateway(
            tmp_path,
            model("a", server.url),
            model("b", server.url, capabilities=["embeddings"]),
            route("r", "b", "a", rules=[rule]),
        ) as it,
    ):
        answer = await it.ask(CHAT, request("chat", "r"), {"x-sits-region": "eu"})
        assert it.record(answer).filtered == [("b", "cannot do chat")]
