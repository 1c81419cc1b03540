"""Health and memory by queries to Prometheus: verdicts over time, who is left alone, and a Prometheus that falls silent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vitals_rig import World, run

from prometheus_server import SERVERS, Opened, Said, prometheus
from sits.engines.scripted import AGAIN, READ, ScriptedServer, answer
from sits.gateway.vitals import Declared
from sits.gateway.vitals_queries import SILENT_SECONDS, HealthChange, Judge, Question, Verdicts
from sits.resources.vitals import HealthSpec, VitalsSpec

ABOVE = HealthSpec("q", above=10.0, for_seconds=3.0)


@pytest.mark.parametrize(
    ("spec", "answers", "sick"),
    [
        pytest.param(ABOVE, [(0, [11]), (2, [11]), (3, [11])], [False, False, True], id="above for long enough"),
        pytest.param(ABOVE, [(0, [11]), (2, [9]), (3, [11]), (5, [11])], [False] * 4, id="a good answer between begins anew"),
        pytest.param(ABOVE, [(0, [11]), (2, []), (3, [11])], [False] * 3, id="no data between begins anew"),
        pytest.param(
            ABOVE, [(0, [11]), (3, [11]), (4, [1]), (6, [11]), (7, [1]), (10, [1])], [False, True, True, True, True, False],
            id="well again for long enough",
        ),
        pytest.param(HealthSpec("q", below=1.0), [(0, [1]), (1, [1, 0.5]), (2, [2])], [False, True, False], id="any value below"),
        pytest.param(HealthSpec("q", above=1.0), [(0, [0, 2]), (1, [0, 1])], [True, False], id="any value above"),
        pytest.param(HealthSpec("q", above=5.0, below=1.0), [(0, [6]), (1, [0]), (2, [3])], [True, True, False], id="between"),
        pytest.param(HealthSpec("q", above=1.0), [(0, [2]), (1, []), (2, [1]), (3, [])], [True, True, False, False], id="kept"),
        pytest.param(
            HealthSpec("q", above=1.0, on_no_data="healthy"), [(0, [2]), (1, [])], [True, False], id="no data is healthy"
        ),
        pytest.param(
            HealthSpec("q", above=1.0, on_no_data="unhealthy"), [(0, [0]), (1, []), (2, [0])], [False, True, False],
            id="no data is unhealthy",
        ),
    ],
)  # fmt: skip
def test_a_verdict_follows_the_answers(spec: HealthSpec, answers: list[tuple[float, list[float]]], sick: list[bool]) -> None:
    judge = Judge(spec)
    seen, before = [], False
    for now, values in answers:
        changed = judge.look(values, now)
        assert changed == (judge.sick != before)
        assert bool(judge.reason) == judge.sick
        before = judge.sick
        seen.append(judge.sick)
    assert seen == sick


NAMES = ("a", "b", "c", "d", "e")


@settings(max_examples=100, deadline=None)
@given(
    routes=st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5), max_size=4),
    ill=st.lists(st.sampled_from(NAMES), unique=True),
    out=st.sets(st.sampled_from(NAMES)),
)
def test_no_route_loses_more_than_half_of_its_targets(routes: list[list[str]], ill: list[str], out: set[str]) -> None:
    spec = HealthSpec("q", above=0.0)
    questions = {name: Question(name, 5.0, 0.0) for name in NAMES}
    verdicts = Verdicts()
    verdicts.take({name: (spec, question) for name, question in questions.items()}, routes, 0.5, 0.0, 0.0)
    for now, name in enumerate(ill):
        questions[name].values, questions[name].news, questions[name].answered = (1.0,), True, float(now)
        assert verdicts.look(float(now), 0.0) == [HealthChange(name, True, "1 is above 0", name, 0.0)]
    assert verdicts.sick <= set(ill)
    assert verdicts.reasons == dict.fromkeys(verdicts.sick, "1 is above 0")
    for route in routes:
        distinct = set(route)
        if len(distinct) > 1:
            assert len(distinct & verdicts.sick) <= len(distinct) // 2
        already = frozenset(out & distinct)
        left = verdicts.out_of(tuple(route), already)
        assert already <= left <= already | verdicts.sick
        assert len(left) <= max(len(already), len(distinct) // 2)
    if len(ill) == 1:
        assert verdicts.sick == set(ill)


def test_who_is_sick_longest_is_left_alone_first() -> None:
    questions = {name: Question(name, 5.0, 0.0) for name in ("a", "b", "c")}
    verdicts = Verdicts()
    specs = {name: (HealthSpec("q", above=0.0), question) for name, question in questions.items()}
    verdicts.take(specs, [("a", "b", "c"), ("a",)], 0.5, 0.0, 0.0)
    for now, name in enumerate("cab"):
        questions[name].values, questions[name].news, questions[name].answered = (1.0,), True, 0.0
        verdicts.look(float(now), 0.0)
    assert verdicts.sick == {"c"}
    assert verdicts.out_of(("a", "b", "c"), frozenset("a")) == {"a"}
    questions["c"].values, questions["c"].news = (-1.0,), True
    verdicts.look(3.0, 0.0)
    assert verdicts.sick == {"a"}
    assert verdicts.take(specs, [("a", "b")], 0.5, 4.0, 0.0) == []
    assert verdicts.sick == {"a"}
    over = HealthChange("a", False, "it has no health query any more", "a", 9.0)
    assert verdicts.take({"b": specs["b"]}, [], 0.5, 5.0, 9.0) == [over]
    assert verdicts.sick == {"b"}
    anew = HealthChange("b", False, "its health query is another now", "b", 9.0)
    assert verdicts.take({"b": (HealthSpec("q", above=9.0), questions["b"])}, [], 0.5, 5.0, 9.0) == [anew]
    assert verdicts.sick == frozenset()


def test_no_bad_verdict_stands_without_an_answer_that_counts() -> None:
    """Whatever became of its question: it may have been made anew, and not been asked yet."""
    spec, question, verdicts = HealthSpec("q", above=0.0), Question("q", 5.0, 0.0), Verdicts()
    verdicts.take({"a": (spec, question)}, [], 0.5, 0.0, 0.0)
    question.values, question.news, question.answered = (1.0,), True, 0.0
    assert [change.sick for change in verdicts.look(0.0, 0.0)] == [True]
    assert verdicts.take({"a": (spec, Question("q", 5.0, 9.0))}, [], 0.5, 1.0, 0.0) == []
    assert [change.sick for change in verdicts.look(1.0, 0.0)] == [False]


def test_a_model_is_left_alone_while_its_query_says_so_and_everybody_hears_of_it() -> None:
    async def story(world: World) -> None:
        async with prometheus() as server:
            server.values = {'up{m="a", z="eu"}': ["1"], 'up{m="b", z="eu"}': ["1"]}
            health = Declared(health=HealthSpec('up{m="$model", z="$zone"}', below=1.0))
            targets = [world.target(name, "http://127.0.0.1:9", "openai", zone="eu") for name in ("a", "b")]
            world.take(targets, {"a": health, "b": health}, [("a", "b")], server.url)
            await world.at(101.0, lambda: world.health("a")["answers"] == world.health("b")["answers"] == 1)
            await world.at(101.1, lambda: True)
            assert (world.watch.sick, world.changes) == (frozenset(), [])
            server.values['up{m="b", z="eu"}'] = ["1", "0"]
            await world.at(106.0, lambda: bool(world.changes))
            assert (world.watch.sick, world.watch.reasons) == ({"b"}, {"b": "0 is below 1, 1 of 2 are"})
            assert world.changes == [HealthChange("b", True, "0 is below 1, 1 of 2 are", 'up{m="b", z="eu"}', 1.8e9 + 106.0)]
            assert world.watch.out_of(("a", "b"), frozenset()) == {"b"}
            assert world.watch.status()["health"] == [
                {
                    "target": "a", "sick": False, "out": False, "reason": "", "values": (1.0,), "query": 'up{m="a", z="eu"}',
                    "answers": 2, "unknown": False, "since_seconds": 6.0, "trouble": "",
                },
                {
                    "target": "b", "sick": True, "out": True, "reason": "0 is below 1, 1 of 2 are", "values": (1.0, 0.0),
                    "query": 'up{m="b", z="eu"}', "answers": 2, "unknown": False, "since_seconds": 0.0, "trouble": "",
                },
            ]  # fmt: skip
            assert [row["target"] for row in world.watch.status()["changes"]] == ["b"]
            server.values['up{m="b", z="eu"}'] = ["1"]
            await world.at(111.1, lambda: len(world.changes) == 2)
            assert (world.watch.sick, [change.sick for change in world.changes]) == (frozenset(), [True, False])

    run(story)


def test_one_query_of_many_models_is_asked_once() -> None:
    async def story(world: World) -> None:
        async with prometheus(load=["5"]) as server:
            targets = [world.target(name, "http://127.0.0.1:9", "openai") for name in ("a", "b", "c")]
            both = {
                "a": Declared(health=HealthSpec("load", above=4.0)),
                "b": Declared(health=HealthSpec("load", above=9.0, every_seconds=2.0)),
                "gone": Declared(health=HealthSpec("load", above=9.0, every_seconds=1.0)),
            }
            world.take(targets, both, [("a", "b", "c")], server.url)
            await world.at(101.0, lambda: world.health("b")["answers"] == 1)
            await world.at(101.1, lambda: True)
            assert (server.asked, world.watch.sick) == (["load"], {"a"})
            await world.at(103.0, lambda: len(server.asked) == 2)

    run(story)


def test_a_prometheus_that_falls_silent_lets_everybody_in_again() -> None:
    async def story(world: World) -> None:
        async with prometheus(load=["5"]) as server:
            targets = [world.target(name, "http://127.0.0.1:9", "openai") for name in ("a", "b")]
            spec = HealthSpec("load", above=4.0, on_no_data="unhealthy")
            world.take(targets, {"a": Declared(health=spec)}, [("a", "b")], server.url)
            await world.at(101.0, lambda: world.watch.sick == {"a"})
            server.values["load"] = None
            await world.at(101.0 + SILENT_SECONDS, lambda: bool(world.health("a")["trouble"]))
            assert world.watch.sick == {"a"}
            await world.at(101.1 + SILENT_SECONDS, lambda: True)
            assert (world.watch.sick, world.changes[-1].reason) == (frozenset(), "Prometheus has been silent for too long")
            assert world.health("a")["trouble"] == "GET /api/v1/query was answered with 503"
            server.values["load"] = "parse error"
            await world.at(130.0, lambda: "refused" in world.health("a")["trouble"])
            world.take(targets, {"a": Declared(health=spec)}, [("a", "b")], None)
            assert world.health("a")["trouble"] == "Settings name no Prometheus server"
            world.take(targets, {"a": Declared(health=spec)}, [("a", "b")], "ftp://x")
            assert world.health("a")["trouble"].startswith("Prometheus cannot be asked: 'ftp://x' does not begin with http")

    run(story)


@pytest.mark.parametrize(
    ("prometheus_after", "holds", "trouble"),
    [
        pytest.param("http://127.0.0.1:9", SILENT_SECONDS, "127.0.0.1:9", id="another one that is not there"),
        pytest.param("ftp://x", SILENT_SECONDS, "Prometheus cannot be asked", id="an address that is none"),
        pytest.param(None, 0.0, "Settings name no Prometheus server", id="none any more"),
    ],
)
def test_a_verdict_of_a_prometheus_that_is_asked_no_more_ends_as_if_it_were_silent(
    prometheus_after: str | None, holds: float, trouble: str
) -> None:
    async def story(world: World) -> None:
        async with prometheus(load=["5"], used=["0.75"]) as server, prometheus(load=["6"], used=["0.5"]) as third:
            targets = [world.target(name, "http://127.0.0.1:9", "openai") for name in ("a", "b")]
            declared = {"a": Declared(VitalsSpec(memory_query="used"), HealthSpec("load", above=4.0))}
            world.take(targets, declared, [("a", "b")], server.url)
            await world.at(101.0, lambda: world.watch.sick == {"a"} and world.watch.free == {"a": 0.25})
            world.take(targets, declared, [("a", "b")], prometheus_after)
            assert world.watch.sick == {"a"}
            if holds:
                await world.at(101.0 + holds, lambda: trouble in world.health("a")["trouble"])
                assert (world.watch.sick, world.watch.free) == ({"a"}, {"a": 0.25})
            await world.at(101.1 + holds, lambda: not world.watch.sick)
            assert (world.watch.free, [change.sick for change in world.changes]) == ({}, [True, False])
            assert trouble in world.health("a")["trouble"]
            world.take(targets, declared, [("a", "b")], third.url)
            assert world.health("a")["trouble"] == ""
            await world.at(120.0, lambda: world.watch.sick == {"a"})

    run(story)


def test_a_query_that_is_to_be_asked_more_often_is_so_at_once() -> None:
    async def story(world: World) -> None:
        async with prometheus(load=["5"]) as server:
            targets = [world.target("a", "http://127.0.0.1:9", "openai")]
            world.take(targets, {"a": Declared(health=HealthSpec("load", above=9.0, every_seconds=3600.0))}, [], server.url)
            await world.at(101.0, lambda: world.health("a")["answers"] == 1)
            world.take(targets, {"a": Declared(health=HealthSpec("load", above=4.0, every_seconds=2.0))}, [], server.url)
            await world.at(103.0, lambda: world.health("a")["sick"])

    run(story)


def test_free_memory_comes_from_the_best_source_that_there_is() -> None:
    async def story(world: World) -> None:
        triton = (
            b'nv_trt_llm_request_metrics{request_type="waiting"} 0\nnv_gpu_memory_used_bytes 30\nnv_gpu_memory_total_bytes 40\n'
        )
        async with (
            prometheus(fb=["0.5", "0.75"], far=["0.125"], bad=["70"]) as server,
            ScriptedServer([READ, answer(200, b"sglang:token_usage 0.375\n"), AGAIN]) as kv,
            ScriptedServer([READ, answer(200, triton), AGAIN]) as both,
        ):
            targets = [
                world.target("kv", kv.url, "sglang"),
                world.target("query", kv.url, "sglang"),
                world.target("bytes", both.url, "vllm"),
                world.target("far", "http://127.0.0.1:9", "openai"),
                world.target("bad", "http://127.0.0.1:9", "openai"),
                world.target("dumb", "http://127.0.0.1:9", "openai"),
            ]
            declared = {
                name: Declared(VitalsSpec(memory_query=text)) for name, text in (("query", "fb"), ("far", "far"), ("bad", "bad"))
            }
            world.take(targets, declared, prometheus=server.url)
            await world.at(101.0, lambda: len(world.watch.vitals) == 3 and bool(world.row("bad")["trouble"]))
            await world.at(101.1, lambda: "far" in world.watch.free and world.watch.free["query"] == 0.25)
            assert world.watch.free == {"kv": 0.625, "query": 0.25, "bytes": 0.25, "far": 0.875}
            assert (world.row("bad")["state"], world.row("bad")["trouble"]) == ("unasked", "memoryQuery: 70 is no share")

    run(story)


SAID: dict[str, Said] = {
    'label_replace(vector(7), "m", "模型\\"", "", "") > 1': [("7", {"m": '模型"'})],
    'label_replace(vector(7), "m", "x", "", "") unless on(m) vector(1)': ["7"],
    "absent_metric": [],
}
"""What Prometheus 2.42 answers to these queries."""


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.__name__)
def test_queries_are_put_as_prometheus_understands_them(server: Opened, tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with server(tmp_path, SAID) as url:
            targets = [
                world.target("m", "http://127.0.0.1:9", "openai", zone='模型"'),
                world.target("n", "http://127.0.0.1:9", "openai"),
            ]
            declared = {
                "m": Declared(health=HealthSpec('label_replace(vector(7), "m", "$zone", "", "") > 1', above=5.0)),
                "n": Declared(health=HealthSpec("absent_metric", above=5.0, on_no_data="unhealthy", every_seconds=1.0)),
            }
            world.take(targets, declared, [("m", "n")], url)
            while len(world.changes) < 2:
                world.now += 0.5
                world.watch.tick(world.now)
                await asyncio.sleep(0.02)
            assert {change.target: change.reason for change in world.changes} == {
                "m": '7 is above 5 (m="模型\\"")', "n": "its query has no value"
            }  # fmt: skip
            assert len(world.watch.sick) == 1

    run(story)
