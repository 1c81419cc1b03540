"""The watch over the vital signs of servers: who is asked, how often, what is told to routing and when it is withdrawn."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from vitals_rig import World, run, until

from sits.engines.scripted import AGAIN, READ, Received, ScriptedServer, Step, answer
from sits.engines.vitals import Vitals
from sits.gateway.vitals import Declared
from sits.gateway.vitals_servers import AWAY_SECONDS, NONE_SECONDS, STALE_SECONDS
from sits.resources.vitals import VitalsSpec

VLLM = b"""\
vllm:num_requests_running{model_name="a"} 3
vllm:num_requests_waiting{model_name="a"} 2
vllm:kv_cache_usage_perc{model_name="a"} 0.25
vllm:num_requests_running{model_name="b"} 1
"""
SGLANG = b"sglang:num_running_reqs 4\nsglang:num_queue_reqs 0\nsglang:token_usage 0.5\n"
TGI = b"tgi_batch_current_size 6\ntgi_queue_size 1\n"
NOT = "GET /metrics was answered with"
LLAMACPP = b"llamacpp:requests_processing 2\nllamacpp:requests_deferred 9\n"


@contextlib.asynccontextmanager
async def saying(*bodies: bytes, status: int = 200) -> AsyncIterator[ScriptedServer]:
    """A server that gives these bodies in turn, the last one for ever; on one connection or on many."""
    left = list(bodies)

    def say(request: Received) -> bytes:
        return answer(status, left.pop(0) if len(left) > 1 else left[0])

    async with ScriptedServer([READ, say, AGAIN]) as server:
        yield server


def declared(**fields: VitalsSpec) -> dict[str, Declared]:
    return {name: Declared(spec) for name, spec in fields.items()}


def test_every_kind_of_server_is_asked_with_its_credential_and_told_to_routing() -> None:
    async def story(world: World) -> None:
        async with saying(VLLM) as one, saying(SGLANG) as two, saying(TGI) as three, saying(LLAMACPP) as four:
            world.take(
                [
                    world.target("a", one.url + "/prefix", key="secret"),
                    world.target("s", two.url, "sglang"),
                    world.target("t", three.url, "tgi"),
                    world.target("l", four.url, "llamacpp"),
                    world.target("far", one.url, "openai"),
                ]
            )
            assert world.watch.vitals == {}
            await world.at(101.0, lambda: len(world.watch.vitals) == 4)
            assert {name: world.load(name) for name in world.states} == {
                "a": (5, 0.25), "s": (4, 0.5), "t": (7, -1.0), "l": (11, -1.0), "far": (0, -1.0),
            }  # fmt: skip
            assert world.watch.vitals["a"] == Vitals("vllm", 101.0, 3, 2, 0.25)
            assert world.watch.free == {"a": 0.75, "s": 0.5}
            assert [(asked.path, asked.headers.get("authorization")) for asked in one.requests] == [
                ("/prefix/metrics", "Bearer secret")
            ]
            assert [asked.headers["accept"] for asked in two.requests] == ["*/*"]

    run(story)


def test_what_we_sent_ourselves_is_not_counted_twice() -> None:
    async def story(world: World) -> None:
        async with saying(TGI) as server:
            world.take([world.target("t", server.url, "tgi")])
            for _ in range(3):
                world.states["t"].started(100.0)
            await world.at(101.0, lambda: "t" in world.watch.vitals)
            assert world.load("t") == (4, -1.0)

    run(story)


def test_models_at_one_place_are_asked_once_and_each_told_its_own() -> None:
    async def story(world: World) -> None:
        async with saying(VLLM) as server:
            world.take(
                [
                    world.target("one", server.url, upstream="a"),
                    world.target("two", server.url + "/", upstream="b", key="other"),
                    world.target("three", server.url, upstream="c"),
                ],
                declared(two=VitalsSpec(every_seconds=0.5)),
            )
            await world.at(101.0, lambda: len(world.watch.vitals) == 2)
            assert [world.load(name) for name in ("one", "two", "three")] == [(5, 0.25), (1, -1.0), (0, -1.0)]
            assert len(server.requests) == 1
            assert world.row("three") == {
                "target": "three", "state": "told", "asked_at": f"{server.url}/metrics", "every_seconds": 0.5, "asked": 1,
                "failed": 0, "vitals": None, "age_seconds": None, "page_bytes": len(VLLM), "memory_free": None,
                "trouble": "it tells of a, b, and not of 'c'",
            }  # fmt: skip
            assert world.row("two")["vitals"] == {
                "server": "vllm", "running": 1, "waiting": None, "kv": None, "prefix_hit": None, "memory_used": None,
                "memory_total": None, "adapters_loaded": (),
            }  # fmt: skip
            assert world.row("two")["trouble"] == ""

    run(story)


def test_a_server_is_asked_at_its_pace_and_one_question_at_a_time() -> None:
    async def story(world: World) -> None:
        held = asyncio.Event()
        script: Sequence[Step] = [READ, held, answer(200, TGI), AGAIN]
        async with ScriptedServer(script) as slow, saying(TGI) as quick:
            world.take([world.target("slow", slow.url, "tgi"), world.target("quick", quick.url, "tgi")])
            for count in range(5):
                await world.at(100.5 + count, lambda count=count: len(quick.requests) == count + 1)  # type: ignore[misc]
                await until(lambda: world.row("quick")["age_seconds"] == 0.0)
                await world.at(100.9 + count, lambda: True)
            assert (len(slow.requests), len(quick.requests)) == (1, 5)
            held.set()
            await until(lambda: "slow" in world.watch.vitals)
            await world.at(105.5, lambda: len(slow.requests) == 2)

    run(story)


@pytest.mark.parametrize(
    ("status", "body", "state", "trouble"),
    [
        pytest.param(404, b"", "none", f"{NOT} 404: it has no metrics", id="SGLang without --enable-metrics"),
        pytest.param(501, b"{}", "none", f"{NOT} 501: it has no metrics", id="llama.cpp without --metrics"),
        pytest.param(401, b"", "refused", f"{NOT} 401", id="another credential"),
        pytest.param(
            200, b"go_goroutines 7\n", "none",
            "GET /metrics: nothing there is known of vllm, sglang, tgi, llamacpp, tensorrt-llm, triton",
            id="metrics of something else",
        ),
    ],
)  # fmt: skip
def test_a_server_without_metrics_is_left_for_a_minute_and_said_once(
    status: int, body: bytes, state: str, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: World) -> None:
        async with saying(body, status=status) as server:
            world.take([world.target("m", server.url, "sglang")])
            await world.at(101.0, lambda: world.row("m")["failed"] == 1)
            assert (world.row("m")["state"], world.row("m")["trouble"]) == (state, trouble)
            await world.at(101.0 + NONE_SECONDS, lambda: True)
            assert len(server.requests) == 1
            await world.at(101.0 + NONE_SECONDS * 1.1, lambda: world.row("m")["failed"] == 2)
            assert world.load("m") == (0, -1.0)
            said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
            assert said == [f"{server.url}/metrics tells nothing of its load: {trouble}"]

    run(story)


def test_a_server_that_is_away_is_asked_ever_more_seldom_and_at_once_trusted_again() -> None:
    async def story(world: World) -> None:
        answers = [answer(503)] * 5 + [answer(200, TGI)]
        async with ScriptedServer([READ, lambda _: answers.pop(0) if len(answers) > 1 else answers[0], AGAIN]) as server:
            world.take([world.target("t", server.url, "tgi")])
            asked = []
            now = 100.5
            while not world.watch.vitals:
                await world.at(now, lambda: world.row("t")["asked"] == answered(world.row("t")))
                if len(server.requests) > len(asked):
                    asked.append(now)
                now = round(now + 0.05, 2)
            pauses = [round(b - a, 2) for a, b in itertools.pairwise(asked)]
            assert pauses == pytest.approx([2.1, 4.2, 8.4, AWAY_SECONDS * 1.05, AWAY_SECONDS * 1.05], abs=0.06)
            assert (world.row("t")["state"], world.row("t")["trouble"], world.load("t")) == ("told", "", (7, -1.0))

    run(story)


def test_what_is_too_old_is_withdrawn() -> None:
    async def story(world: World) -> None:
        async with ScriptedServer([READ, answer(200, SGLANG), READ]) as server:
            slow = declared(slow=VitalsSpec(every_seconds=30.0))
            async with saying(SGLANG) as other:
                world.take([world.target("s", server.url, "sglang"), world.target("slow", other.url, "sglang")], slow)
                await world.at(101.0, lambda: len(world.watch.vitals) == 2)
                await world.at(101.0 + STALE_SECONDS, lambda: True)
                assert world.load("s") == (4, 0.5)
                await world.at(101.1 + STALE_SECONDS, lambda: True)
                assert (world.load("s"), world.load("slow")) == ((0, -1.0), (4, 0.5))
                assert (list(world.watch.vitals), world.watch.free) == (["slow"], {"slow": 0.5})
                assert world.row("s")["vitals"] is None

    run(story)


def test_only_what_is_declared_or_known_is_asked_and_a_strange_place_gets_no_credential() -> None:
    async def story(world: World) -> None:
        trtllm = b"trtllm_num_requests_running 2\n"
        ps = b'{"models": [{"name": "q", "size_vram": 7}]}'
        async with saying(trtllm) as one, saying(ps) as two, saying(TGI) as three:
            world.take(
                [
                    world.target("trt", "http://127.0.0.1:9", "openai", key="secret"),
                    world.target("o", two.url, "ollama"),
                    world.target("silent", two.url, "ollama"),
                    world.target("off", three.url, "tgi"),
                    world.target("broken", three.url, "tgi"),
                ],
                declared(
                    trt=VitalsSpec(endpoint=one.url, path="/prometheus/metrics"),
                    o=VitalsSpec(),
                    off=VitalsSpec(off=True),
                    broken=VitalsSpec(endpoint="http://user:pass@h"),
                ),
            )
            await world.at(101.0, lambda: len(world.watch.vitals) == 2)
            assert world.watch.vitals == {
                "trt": Vitals("tensorrt-llm", 101.0, 2),
                "o": Vitals("ollama", 101.0, memory_used=7, adapters_loaded=("q",)),
            }
            assert [(asked.path, asked.headers.get("authorization")) for asked in one.requests] == [("/prometheus/metrics", None)]
            assert [asked.path for asked in two.requests] == ["/api/ps"]
            assert three.requests == []

    run(story)


def test_a_new_table_keeps_who_stays_and_withdraws_who_goes() -> None:
    async def story(world: World) -> None:
        async with saying(TGI) as server, saying(SGLANG) as other:
            stays, goes = world.target("stays", server.url, "tgi"), world.target("goes", other.url, "sglang")
            world.take([stays, goes])
            await world.at(101.0, lambda: len(world.watch.vitals) == 2)
            world.take([stays])
            assert (world.load("stays"), world.load("goes")) == ((7, -1.0), (0, -1.0))
            assert [row["target"] for row in world.watch.status()["data"]] == ["stays"]
            await world.at(101.5, lambda: True)
            assert (len(server.requests), world.row("stays")["asked"]) == (1, 1)
            world.take([world.target("stays", server.url, "tgi", key="new")])
            await world.at(102.5, lambda: len(server.requests) == 2)
            await until(lambda: world.row("stays")["failed"] == 0 and world.row("stays")["age_seconds"] == 0.0)
            assert [asked.headers.get("authorization") for asked in server.requests] == [None, "Bearer new"]

    run(story)


def test_a_question_under_way_is_ended_with_its_target_and_with_the_watch() -> None:
    async def story(world: World) -> None:
        held = asyncio.Event()
        async with ScriptedServer([READ, held]) as one, ScriptedServer([READ, held]) as two:
            stays = world.target("stays", two.url, "tgi")
            world.take([world.target("goes", one.url, "tgi"), stays])
            await world.at(101.0, lambda: len(one.requests) == len(two.requests) == 1)
            world.take([stays])
            await until(lambda: world.engine(one.url).connections == 0)
            await world.watch.aclose()
            await until(lambda: world.engine(two.url).connections == 0)

    run(story)


def answered(row: dict[str, Any]) -> int:
    """Questions that are over, of a server whose first good answer is the last one."""
    return int(row["failed"]) + (row["state"] == "told")


class Inside:
    """An engine that knows its own load."""

    def __init__(self) -> None:
        self.running = 5

    def vitals(self, at: float) -> Vitals:
        return Vitals("inside", at, self.running, 1, memory_used=30, memory_total=40)

    async def aclose(self) -> None:
        """Nothing to close."""


def test_an_engine_that_knows_its_own_load_is_not_asked_over_the_network() -> None:
    async def story(world: World) -> None:
        engine = Inside()
        world.take([world.target("own", family="local", engine=engine)])  # type: ignore[arg-type]
        await world.at(100.0, lambda: True)
        assert (world.load("own"), world.watch.free) == ((6, -1.0), {"own": 0.25})
        engine.running = 0
        await world.at(101.1, lambda: True)
        assert (world.load("own"), world.row("own")["state"]) == ((1, -1.0), "inside")

    run(story)


@pytest.mark.parametrize("change", ["address", "model", "nothing"])
def test_what_another_server_said_or_of_another_model_counts_no_more(change: str) -> None:
    async def story(world: World) -> None:
        async with saying(VLLM) as one:
            world.take([world.target("m", one.url, upstream="a")])
            await world.at(101.0, lambda: "m" in world.watch.vitals)
            assert world.load("m") == (5, 0.25)
            url = "http://127.0.0.1:9" if change == "address" else one.url
            world.take([world.target("m", url, upstream="b" if change == "model" else "a")])
            assert world.load("m") == ((5, 0.25) if change == "nothing" else (0, -1.0))
            assert ("m" in world.watch.vitals) == (change == "nothing")

    run(story)


def test_a_server_that_is_to_be_asked_more_often_is_so_at_once() -> None:
    async def story(world: World) -> None:
        async with saying(VLLM) as one:
            target = world.target("m", one.url, upstream="a")
            world.take([target], declared(m=VitalsSpec(every_seconds=3600.0)))
            await world.at(101.0, lambda: "m" in world.watch.vitals)
            world.take([target], declared(m=VitalsSpec(every_seconds=1.0)))
            await world.at(102.0, lambda: world.row("m")["asked"] == 2)

    run(story)
