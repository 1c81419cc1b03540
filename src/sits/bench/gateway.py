"""`sits bench gateway`: SITS beside the other gateways of its field, one run, one machine, taken in turns.

Every gateway is pinned to one core; the model server and the load share another. CPU is read from /proc for the gateway's
whole process tree, so it tells what a request costs even where the other core is the narrow place.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from sits.bench import Outcome, Plan, bodies, wrk
from sits.bench import setup as peers_setup
from sits.bench.environment import environment, load_before
from sits.bench.paced_client import PacedClient
from sits.bench.peers import Gateway, chosen, version
from sits.bench.rounds import Course, Found, Phase, Scenario, drive, ready_seconds
from sits.bench.upstream import Nginx, Paced, nginx_version
from sits.bench.verdict import Ready, figures, page

PLAIN = Scenario("plain", "Plain request, 32 connections", bodies.plain_request(), 32)
PROMPT = Scenario("prompt33k", "33 kB prompt, 32 connections", bodies.long_request(), 32)
SINGLE = Scenario("single", "Plain request, one connection", bodies.plain_request(), 1)
SSE = Scenario("sse50", "Stream of 50 chunks, 32 connections", bodies.stream_request(), 32, "stream", True)
PACED = Scenario("paced128", "128 streams of 50 chunks over one second", bodies.stream_request(), 128, "stream", True)
SCENARIOS = [PLAIN, PROMPT, SSE, PACED, SINGLE]


def setup(plan: Plan) -> None:
    """Install the peers; may be repeated."""
    peers_setup.install(plan)


def run(plan: Plan) -> Outcome:
    """Measure all chosen gateways in all scenarios."""
    gateways = chosen(plan.only)
    busy = load_before()
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sits-bench-")))
        course = Course(
            gateways=gateways,
            folder=folder,
            cache=plan.cache.resolve(),
            core=cores[0],
            rounds=1 if plan.quick else 3,
            # A CPU tick is 10 ms, so five seconds are good to 0.2 %.
            seconds=2.0 if plan.quick else 5.0,
            say=plan.say,
        )
        nginx, paced = Nginx(folder, cores[-1]), Paced(folder, cores[-1])
        stack.enter_context(nginx.child)
        stack.enter_context(paced.child)
        nginx.await_ready()
        paced.await_ready()
        found = Found()
        by_wrk = wrk.Wrk(folder, cores[-1])
        for phase in (
            Phase("plain", nginx.plain, by_wrk, [PLAIN, PROMPT, SINGLE]),
            Phase("sse", nginx.sse, by_wrk, [SSE]),
            Phase("paced", paced.url, PacedClient(folder, cores[-1]), [PACED]),
        ):
            drive(course, phase, found)
        ready = None
        for gateway in gateways:
            if gateway.name == "sits":
                plan.say("sits: from start to ready")
                ready = Ready(*ready_seconds(gateway, course, nginx.plain))
    shared = "" if len(cores) > 1 else " (the only one there is: rates are far below what two would show)"
    told = environment(
        _versions(gateways, course.cache),
        ("Pinned", f"gateways to core {cores[0]}, model server and load to core {cores[-1]}{shared}"),
        busy,
        ("Rounds", f"{course.rounds} of {course.seconds:.0f} s each, gateways in turns; medians"),
    )
    return Outcome(figures(found, SCENARIOS, gateways, ready), page(found, SCENARIOS, gateways, told, quick=plan.quick))


def _versions(gateways: list[Gateway], cache: Path) -> dict[str, str]:
    peers = {gateway.name: version(gateway, cache) for gateway in gateways if gateway.package}
    return {**peers, "nginx": nginx_version(), "wrk": wrk.version()}
