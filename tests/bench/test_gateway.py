"""The harness over a real gateway (our own bare proxy), with our own model server and load: no nginx, no wrk, no peers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sits.bench import BenchError, bodies
from sits.bench.account import Memory
from sits.bench.child import Child
from sits.bench.figure import exit_code
from sits.bench.gateway import PACED, PLAIN, SCENARIOS
from sits.bench.load import Load
from sits.bench.paced_client import PacedClient
from sits.bench.page import render
from sits.bench.peers import GATEWAYS, Running, Spot, chosen, start
from sits.bench.rounds import Course, Found, Phase, Sample, Scenario, ask, drive, summary, take
from sits.bench.upstream import Paced
from sits.bench.verdict import Ready, figures, page
from sits.ports.servers.process import free_port

PACE = 0.2
CORE = max(os.sched_getaffinity(0))
QUICK_STREAM = Scenario("paced128", PACED.title, PACED.body, 8, "stream", True)
QUICK_PLAIN = Scenario("plain", PLAIN.title, PLAIN.body, 4)


def test_the_harness_measures_a_real_gateway_from_start_to_page(tmp_path: Path) -> None:
    # The peer's environment is this one: a program of the right name that is our own interpreter.
    program = tmp_path / "cache/aiohttp/bin/python"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    said: list[str] = []
    gateways = chosen(("aiohttp",))
    course = Course(gateways, tmp_path, tmp_path / "cache", CORE, rounds=2, seconds=1.0, say=said.append)
    found = Found()
    upstream = Paced(tmp_path, CORE, seconds=PACE)
    with upstream.child:
        upstream.await_ready()
        source = PacedClient(tmp_path, CORE, pace=PACE)
        drive(course, Phase("plain", upstream.url, source, [QUICK_PLAIN, QUICK_STREAM]), found)

    assert [(sample.gateway, sample.scenario, sample.void) for sample in found.samples] == [
        ("aiohttp", "plain", None), ("aiohttp", "paced128", None), ("aiohttp", "plain", None), ("aiohttp", "paced128", None),
    ]  # fmt: skip
    loads = [sample.load for sample in found.samples if sample.load is not None]
    assert loads[0].requests > 20
    assert loads[1].requests >= 16
    assert loads[1].p50 >= PACE * 1e3 * 0.95
    assert loads[1].first_p50 is not None
    assert loads[1].first_p50 + PACE * 1e3 / 2 < loads[1].p50, "the first event comes long before the last"
    assert loads[0].jitter_p99 is None
    assert loads[1].jitter_p99 is not None
    assert sum(sample.cpu for sample in found.samples) > 0
    assert found.memory["plain", "aiohttp"].rss > 10
    assert len([line for line in said if "round" in line]) == 4

    results = figures(found, SCENARIOS, gateways, None)
    assert exit_code(results) == 1, "SITS was not measured, so no bound can hold"
    files = render(page(found, SCENARIOS, gateways, [("CPU", "x")], quick=True), results)
    assert "performance/plain-cpu.svg" in files
    assert "| aiohttp |" in files["performance.md"]


def test_a_gateway_that_answers_wrongly_has_a_void_round_that_says_so(tmp_path: Path) -> None:
    port = free_port()
    server = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(tmp_path)]
    with Child("files", server, core=CORE, log=tmp_path / "log") as child:
        one = Running(GATEWAYS["aiohttp"], child, f"http://127.0.0.1:{port}", {}, None)
        refused = Sample("aiohttp", "plain", None, 0.0, "no answer: [Errno 111] Connection refused")
        child.await_ready(lambda: take(one, QUICK_PLAIN, _never, 1.0) != refused, seconds=20)
        sample = take(one, QUICK_PLAIN, _never, 1.0)
    assert sample.load is None
    assert (sample.void or "").startswith("status 501")


def _never(_: object) -> Load:
    raise AssertionError("no load is sent to a gateway whose answer is wrong")


def test_the_load_client_counts_what_is_refused_and_what_breaks(tmp_path: Path) -> None:
    closed = Running(GATEWAYS["aiohttp"], None, f"http://127.0.0.1:{free_port()}", {}, None)  # type: ignore[arg-type]
    load = PacedClient(tmp_path, CORE, pace=PACE)(ask(closed, QUICK_STREAM, 0.1))
    assert (load.requests, load.broken) == (0, 8)
    upstream = Paced(tmp_path, CORE, seconds=PACE)
    with upstream.child:
        upstream.await_ready()
        # A plain answer to who expects a stream has no end mark.
        one = Running(GATEWAYS["aiohttp"], upstream.child, upstream.url, {}, None)
        mixed = Scenario("mixed", "", bodies.plain_request(), 2, "stream", True)
        load = PacedClient(tmp_path, CORE, pace=PACE)(ask(one, mixed, 0.05))
    assert load.requests == 0
    assert load.broken >= 2


def test_a_peer_that_is_not_installed_names_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"vllm-router is not installed .*sits bench gateway --setup"):
        start(GATEWAYS["vllm-router"], Spot(tmp_path, tmp_path, CORE, "http://127.0.0.1:1"))


def test_an_unknown_gateway_is_refused_with_those_that_exist() -> None:
    names = r"sits, sits-declared, sits-python, vllm-router, .*, litellm, aiohttp"
    with pytest.raises(BenchError, match=rf"'nginx'; there are: {names}"):
        chosen(("sits", "nginx"))


def _sample(gateway: str, scenario: str, rate: float, cpu: float, void: str | None = None) -> Sample:
    """A second of load: `rate` answers, `cpu` microseconds each."""
    return Sample(gateway, scenario, Load(int(rate), 1.0, 1.0, 2.0, 1), rate * cpu / 1e6, void)


def test_void_rounds_are_left_out_of_the_medians() -> None:
    rounds = [_sample("sits", "plain", rate, 50.0) for rate in (100.0, 300.0, 200.0)]
    seen = summary([*rounds, _sample("sits", "plain", 9000.0, 1.0, "1 answers not 2xx, 0 connections broken")])
    assert seen is not None
    assert seen.cpu_range == (pytest.approx(50.0), pytest.approx(50.0))
    assert (seen.rps, seen.cpu, seen.rounds, len(seen.voids)) == (200.0, pytest.approx(50.0), 3, 1)
    assert summary([_sample("sits", "plain", 1.0, 1.0, "void")]) is None


def _found(sits_cpu: float) -> Found:
    found = Found()
    for scenario in ("plain", "prompt33k", "sse50", "paced128", "single"):
        found.samples += [_sample("sits", scenario, 12_000, sits_cpu), _sample("vllm-router", scenario, 10_000, 100.0)]
        found.samples.append(_sample("sits-declared", scenario, 10_000, sits_cpu + 5.0))
        found.samples.append(_sample("litellm", scenario, 100, 10_000.0))
    found.memory["plain", "sits"] = Memory(70.0, 75.0)
    return found


GATEWAYS_HERE = chosen(("sits", "sits-declared", "vllm-router", "litellm"))
STABLE = [
    "cpu_plain_vs_vllm_router", "rps_plain_vs_litellm", "cpu_sse_vs_vllm_router", "cpu_paced_vs_vllm_router",
    "cpu_prompt33k_vs_vllm_router", "cpu_plain_sits", "cpu_plain_sits_declared", "rss_mb", "ready_seconds", "void_rounds",
]  # fmt: skip


def test_every_bound_holds_for_a_gateway_that_keeps_all_of_them() -> None:
    results = figures(_found(60.0), SCENARIOS, GATEWAYS_HERE, Ready([0.9, 1.0, 1.9], Memory(50.0, 50.0)))
    bounds = {figure.name: (figure.value, figure.bound, figure.ok) for figure in results if figure.bound}
    assert bounds == {
        "cpu_plain_vs_vllm_router": (0.6, "<= 1.0", True),
        "rps_plain_vs_litellm": (120.0, ">= 100", True),
        "cpu_sse_vs_vllm_router": (0.6, "<= 0.6", True),
        "cpu_paced_vs_vllm_router": (0.6, "<= 0.6", True),
        "cpu_prompt33k_vs_vllm_router": (0.6, "<= 0.75", True),
        "cpu_plain_sits": (60.0, "<= 75", True),
        "cpu_plain_sits_declared": (65.0, "<= 75", True),
        "rss_mb": (70.0, "<= 80", True),
        "ready_seconds": (1.0, "< 1.5", True),
        "void_rounds": (0.0, "<= 0", True),
    }
    assert list(bounds) == STABLE
    assert exit_code(results) == 0


def test_a_slower_gateway_misses_the_bounds_it_misses_and_no_other() -> None:
    found = _found(80.0)
    found.samples.append(_sample("sits", "single", 1.0, 1.0, "the gateway died"))
    results = figures(found, SCENARIOS, GATEWAYS_HERE, Ready([1.5], Memory(50.0, 50.0)))
    missed = [figure.name for figure in results if figure.ok is False]
    assert missed == [
        "cpu_sse_vs_vllm_router", "cpu_paced_vs_vllm_router", "cpu_prompt33k_vs_vllm_router", "cpu_plain_sits",
        "cpu_plain_sits_declared", "ready_seconds", "void_rounds",
    ]  # fmt: skip
    assert exit_code(results) == 1


def test_a_peer_without_a_round_that_counts_leaves_the_bound_open_and_missed() -> None:
    found = _found(60.0)
    found.samples = [sample for sample in found.samples if sample.gateway != "litellm"]
    found.samples.append(_sample("litellm", "plain", 1.0, 1.0, "status 500: b''"))
    results = {figure.name: figure for figure in figures(found, SCENARIOS, GATEWAYS_HERE, Ready([1.0], Memory(50.0, 50.0)))}
    bound = results["rps_plain_vs_litellm"]
    assert (bound.value, bound.ok, bound.detail) == (None, False, "litellm has no round that counts in plain")
    assert results["plain_litellm_rps"].detail == "void: status 500: b''"
    text = render(page(found, SCENARIOS, GATEWAYS_HERE, [], quick=False), list(results.values()))["performance.md"]
    assert "| litellm | – | – | – | – | – | – | – | all |" in text
    assert "quick run" not in text
