"""Figures that are asked for over the network: what servers expose, what Prometheus says, what counts while they are silent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from pressure_rig import Running, target

from prometheus_server import SERVERS, Opened, Said
from sits.engines.scripted import AGAIN, READ, ScriptedServer, answer
from sits.inner.errors import Code, SitsError
from sits.resilience.pressure.asking import ASK_SECONDS, LONGEST, Asked, get
from sits.resilience.pressure.exposition import figures_of, query_value
from sits.resilience.pressure.readings import Readings
from sits.routing.target import Target

VLLM = """\
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="通义/Qwen{72B} \\"x\\""} 4.0
vllm:num_requests_waiting{engine="1",model_name="q"} 3.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="q"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="q"} 0.9375
vllm:num_requests_running{engine="0",model_name="q"} 99.0
"""


@pytest.mark.parametrize(
    ("engine", "text", "figures"),
    [
        pytest.param("vllm", VLLM, {"kv_cache": 0.9375, "model_queue": 7.0}, id="vLLM: the fullest part, all that wait"),
        pytest.param(
            "vllm", 'vllm:gpu_cache_usage_perc{model_name="q"} 0.5 1700000000000\n', {"kv_cache": 0.5},
            id="an older vLLM, with a time",
        ),
        pytest.param(
            "sglang", 'sglang:token_usage{model_name="m"} 0.28\nsglang:num_queue_reqs{model_name="m"} 2\n',
            {"kv_cache": 0.28, "model_queue": 2.0}, id="SGLang",
        ),
        pytest.param("tgi", "tgi_queue_size 12\ntgi_batch_current_size 3\n", {"model_queue": 12.0}, id="TGI"),
        pytest.param(
            "llamacpp", "llamacpp:requests_deferred 1\nllamacpp:kv_cache_usage_ratio 0.1\n",
            {"kv_cache": 0.1, "model_queue": 1.0},
            id="llama.cpp",
        ),
        pytest.param("vllm", "vllm:kv_cache_usage_perc NaN\nvllm:num_requests_waiting +Inf\n", {}, id="no numbers"),
        pytest.param("vllm", "vllm:kv_cache_usage_perc_extra 1\n x vllm:num_requests_waiting 1\n", {}, id="other names"),
        pytest.param("sglang", VLLM, {}, id="another server's"),
        pytest.param("vllm", "<html>", {}, id="no exposition at all"),
    ],
)  # fmt: skip
def test_the_figures_of_a_server_are_found(engine: str, text: str, figures: dict[str, float]) -> None:
    assert figures_of(engine, text) == figures


def result(kind: str, found: Any) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": found}}).encode()


@pytest.mark.parametrize(
    ("body", "value"),
    [
        pytest.param(result("vector", [{"metric": {}, "value": [1, "0.5"]}]), 0.5, id="one series"),
        pytest.param(result("vector", [{"metric": {}, "value": [1, v]} for v in ("1", "NaN", "3", "2")]), 3.0, id="the largest"),
        pytest.param(result("vector", []), None, id="no series"),
        pytest.param(result("scalar", [1, "7"]), 7.0, id="a scalar"),
    ],
)
def test_a_query_has_the_largest_of_its_values(body: bytes, value: float | None) -> None:
    assert query_value(body) == value


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"status": "error", "errorType": "bad_data", "error": "parse error"}', Code.UPSTREAM_ERROR),
        (b"{}", Code.UPSTREAM_BROKEN),
        (b"<html>", Code.UPSTREAM_BROKEN),
        (result("matrix", [{"metric": {}, "values": [[1, "1"]]}]), Code.UPSTREAM_BROKEN),
        (result("string", ["a", "b"]), Code.UPSTREAM_BROKEN),
    ],
)
def test_what_is_no_answer_to_a_query_is_said(body: bytes, code: Code) -> None:
    with pytest.raises(SitsError) as told:
        query_value(body)
    assert told.value.code is code


def run(story: Callable[[Running], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        async with Running() as running, asyncio.timeout(60):
            await story(running)

    uvloop.run(go())


async def until(met: Callable[[], bool]) -> None:
    while not met():  # noqa: ASYNC110 - answers of another process set no event of ours
        await asyncio.sleep(0.005)


def readings(running: Running, clock: Callable[[], float], **gauges: Callable[[], float | None]) -> Readings:
    return Readings(clock=clock, gauges=gauges, ask_prometheus=running.engine)


def test_servers_of_models_are_asked_with_their_credential_and_their_figures_used() -> None:
    async def story(running: Running) -> None:
        async with (
            ScriptedServer([READ, answer(200, VLLM.encode()), AGAIN]) as one,
            ScriptedServer([READ, answer(200, b"sglang:token_usage 0.5\nsglang:num_queue_reqs 1\n"), AGAIN]) as two,
        ):
            targets: dict[str, Target] = {
                "one": target("one", running.engine(one.url + "/prefix"), fixed=b"authorization: Bearer secret\r\n"),
                "two": target("two", running.engine(two.url), family="sglang"),
                "far": target("far", None, family="openai"),
            }
            source = readings(running, lambda: 100.0)
            source.want({"kv_cache", "model_queue", "kv_cache:two", "gpu_memory_usage"}, targets, None, None)
            assert source.read("kv_cache", 100.0) == (None, "no model server tells")
            source.begin(100.0)
            await until(lambda: source.read("kv_cache:two", 100.0)[0] is not None)
            await until(lambda: source.read("model_queue", 100.0)[0] == 8.0)
            assert source.read("kv_cache", 100.0) == (0.9375, "")
            assert source.read("gpu_memory_usage", 100.0) == (0.9375, "")
            assert source.read("kv_cache:two", 100.0) == (0.5, "")
            assert source.read("kv_cache:far", 100.0) == (None, "the server of far does not tell")
            assert [(asked.path, asked.headers.get("authorization")) for asked in one.requests] == [
                ("/prefix/metrics", "Bearer secret")
            ]
            assert [asked.path for asked in two.requests] == ["/metrics"]
            await source.aclose()

    run(story)


def test_what_a_server_said_last_counts_for_three_rounds_and_its_silence_is_told() -> None:
    async def story(running: Running) -> None:
        now = 0.0
        script = [READ, answer(200, VLLM.encode()), READ, answer(503, b"busy"), AGAIN]
        async with ScriptedServer(script) as server:
            source = readings(running, lambda: now)
            source.want({"kv_cache"}, {"one": target("one", running.engine(server.url))}, None, None)
            source.begin(now)
            await until(lambda: source.read("kv_cache", now)[0] is not None)
            now = ASK_SECONDS
            source.begin(now)
            await until(lambda: source.read("kv_cache", now)[1] != "")
            trouble = "one: GET /metrics was answered with 503"
            assert source.read("kv_cache", now) == (0.9375, trouble)
            assert source.read("kv_cache", 3 * ASK_SECONDS) == (0.9375, trouble)
            assert source.read("kv_cache", 3 * ASK_SECONDS + 0.1) == (None, trouble)
            await source.aclose()

    run(story)


def test_a_server_that_exposes_something_else_is_told() -> None:
    async def story(running: Running) -> None:
        async with ScriptedServer([READ, answer(200, b"python_info 1\n"), AGAIN]) as server:
            source = readings(running, lambda: 0.0)
            source.want({"model_queue"}, {"m": target("m", running.engine(server.url), family="tgi")}, None, None)
            source.begin(0.0)
            await until(lambda: source.read("model_queue", 0.0)[1] != "no model server tells")
            assert source.read("model_queue", 0.0) == (None, "m: its /metrics has none of tgi_queue_size")
            await source.aclose()

    run(story)


def test_a_reload_keeps_asking_whom_it_asked_and_forgets_whom_nobody_looks_at() -> None:
    async def story(running: Running) -> None:
        async with ScriptedServer([READ, answer(200, VLLM.encode()), AGAIN]) as server:
            engine = running.engine(server.url)
            source = readings(running, lambda: 0.0)
            source.want({"kv_cache"}, {"m": target("m", engine)}, None, None)
            source.begin(0.0)
            await until(lambda: source.read("kv_cache", 0.0)[0] is not None)
            source.want({"kv_cache"}, {"m": target("m", engine), "n": target("n", None, family="openai")}, None, None)
            assert source.read("kv_cache", 0.0) == (0.9375, "")
            source.want({"queue"}, {"m": target("m", engine)}, None, None)
            assert source.read("kv_cache", 0.0) == (None, "no model server tells")
            source.begin(50.0)
            await source.aclose()
            assert len(server.requests) == 1

    run(story)


def test_an_answer_without_end_is_given_up() -> None:
    async def story(running: Running) -> None:
        async with ScriptedServer([READ, answer(200, b"x" * (LONGEST + 1))]) as server:
            with pytest.raises(SitsError) as told:
                await get(running.engine(server.url), "/metrics")
            assert told.value.code is Code.UPSTREAM_BROKEN

    run(story)


def test_only_one_question_is_under_way_and_closing_ends_it() -> None:
    async def story() -> None:
        asked = 0
        never: asyncio.Future[dict[str, float]] = asyncio.get_running_loop().create_future()

        async def ask() -> dict[str, float]:
            nonlocal asked
            asked += 1
            return await never

        source = Asked(ask)
        for now in (0.0, 1.0, 2.0):
            assert source.look(now, lambda: 0.0) == {}
            await asyncio.sleep(0)
        assert asked == 1
        await source.aclose()
        assert never.cancelled()
        await source.aclose()

    asyncio.run(story())


def test_what_the_gateway_and_the_machine_know_is_read_once_a_round(tmp_path: Path) -> None:
    async def story(running: Running) -> None:
        count = 0

        def queue() -> float:
            nonlocal count
            count += 1
            return float(count)

        source = Readings(clock=lambda: 0.0, gauges={"queue": queue}, ask_prometheus=running.engine, root=tmp_path)
        source.want({"queue", "host_cpu", "accelerator_memory", "tea", "loop_lag_ms"}, {}, None, None)
        source.begin(0.0)
        assert [source.read("queue", 0.0), source.read("queue_length", 0.0)] == [(1.0, ""), (1.0, "")]
        source.begin(0.5)
        assert source.read("queue", 0.5) == (2.0, "")
        assert source.read("inflight", 0.5) == (None, "this machine does not tell")
        assert source.read("host_cpu", 0.5) == (None, "this machine does not tell")
        assert source.read("accelerator_memory", 0.5) == (None, "no model server tells")
        assert source.read("prometheus:up", 0.5) == (None, "Settings name no Prometheus server")
        assert source.read("tea", 0.5) == (None, "nothing that is watched")
        lag, trouble = source.read("loop_lag_ms", 0.5)
        assert lag is not None
        assert (lag >= 0, trouble) == (True, "")
        source.want({"queue"}, {}, None, None)
        source.begin(1.0)
        assert source.read("loop_lag_ms", 1.0)[0] is None
        await source.aclose()

    run(story)


# Prometheus: a server that answers as a real one did, and the real one where it is installed.

REFUSED = 'invalid parameter "query": 1:8: parse error: expected type scalar in call to function "vector", got instant vector'
RECORDED: dict[str, Said] = {"vector(set)": REFUSED, "vector(0.97)": ["0.97"], "nothing_of_that_name": []}
"""What Prometheus 2.42 answers to these queries."""


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.__name__)
def test_prometheus_is_asked_and_what_it_says_is_read(server: Opened, tmp_path: Path) -> None:
    async def story(running: Running) -> None:
        now = 0.0
        async with server(tmp_path, RECORDED) as url:
            source = readings(running, lambda: now)
            good, empty, wrong = "prometheus:vector(0.97)", "prometheus: nothing_of_that_name", "prometheus:vector(set)"
            source.want({good, empty, wrong}, {}, url, None)
            while any(source.read(metric, now) != (None, said) for metric, said in ((empty, ABSENT), (wrong, TOLD))) or (
                source.read(good, now) != (0.97, "")
            ):
                source.begin(now)
                await asyncio.sleep(0.02)
                now += 0.1
            source.want({good}, {}, None, None)
            assert source.read(good, now) == (None, "Settings name no Prometheus server")
            await source.aclose()

    run(story)


ABSENT = "the query has no result"
TOLD = f"the query was refused: {REFUSED}"
