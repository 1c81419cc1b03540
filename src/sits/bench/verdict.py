"""What the rounds of `sits bench gateway` say: the figures with their bounds, and the page."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec

from sits.bench import account
from sits.bench.figure import Figure, bounded, measured
from sits.bench.page import QUICK_RUN, Bars, Page, Section, Table, number
from sits.bench.peers import Gateway
from sits.bench.rounds import Found, Scenario, Summary, summary

OURS, ROUTER, ROUTER_DEFAULT, LITELLM = "sits", "vllm-router", "vllm-router-default", "litellm"
DECLARED = "sits-declared"


class Ready(msgspec.Struct, frozen=True):
    """How SITS starts."""

    seconds: list[float]
    memory: account.Memory


class Bound(msgspec.Struct, frozen=True):
    """Our figure over a peer's, in one scenario, held against a bound."""

    name: str
    scenario: str
    peer: str
    of: Callable[[Summary], float]
    unit: str
    bound: str


def _cpu(one: Summary) -> float:
    return one.cpu


def _rps(one: Summary) -> float:
    return one.rps


BOUNDS = (
    Bound("cpu_plain_vs_vllm_router", "plain", ROUTER, _cpu, "x", "<= 1.0"),
    Bound("rps_plain_vs_litellm", "plain", LITELLM, _rps, "x", ">= 100"),
    Bound("cpu_sse_vs_vllm_router", "sse50", ROUTER, _cpu, "x", "<= 0.6"),
    Bound("cpu_paced_vs_vllm_router", "paced128", ROUTER, _cpu, "x", "<= 0.6"),
    Bound("cpu_prompt33k_vs_vllm_router", "prompt33k", ROUTER, _cpu, "x", "<= 0.75"),
)
BESIDE = (("cpu_plain", "plain"), ("cpu_sse", "sse50"), ("cpu_paced", "paced128"), ("cpu_prompt33k", "prompt33k"))
"""What is shown against the same router with its default policy as well, without a bound."""
"""The names are stable."""

Board = dict[tuple[str, str], Summary | None]
"""(gateway, scenario) -> what it showed."""


def board(found: Found, scenarios: Sequence[Scenario], gateways: Sequence[Gateway]) -> Board:
    """The medians of every gateway in every scenario."""
    return {
        (gateway.name, scenario.name): summary(
            sample for sample in found.samples if (sample.gateway, sample.scenario) == (gateway.name, scenario.name)
        )
        for gateway in gateways
        for scenario in scenarios
    }


def figures(found: Found, scenarios: Sequence[Scenario], gateways: Sequence[Gateway], ready: Ready | None) -> list[Figure]:
    """Bounded ones first; what could not be compared has no value and does not hold."""
    seen = board(found, scenarios, gateways)
    out = [_compare(bound, seen) for bound in BOUNDS]
    out += [_budget(seen, OURS), _budget(seen, DECLARED), _memory(found, ready), _ready(ready), _voids(found)]
    for name, scenario in BESIDE:
        ours, theirs = seen.get((OURS, scenario)), seen.get((ROUTER_DEFAULT, scenario))
        if ours is not None and theirs is not None:
            told = f"sits {number(ours.cpu)}, {ROUTER_DEFAULT} {number(theirs.cpu)}"
            out.append(measured(f"{name}_vs_vllm_router_default", ours.cpu / theirs.cpu, "x", told))
    for (gateway, scenario), one in seen.items():
        name = f"{scenario}_{gateway.replace('-', '_')}"
        if one is None:
            reasons = {sample.void for sample in found.samples if (sample.gateway, sample.scenario) == (gateway, scenario)}
            out.append(measured(f"{name}_rps", None, "1/s", f"void: {'; '.join(sorted(str(reason) for reason in reasons))}"))
            continue
        detail = f"{len(one.voids)} rounds void: {one.voids[0]}" if one.voids else ""
        out += [
            measured(f"{name}_rps", one.rps, "1/s", detail),
            measured(f"{name}_cpu_us", one.cpu, "us", f"{number(one.cpu_range[0])} to {number(one.cpu_range[1])}"),
            measured(f"{name}_p50_ms", one.p50, "ms", detail),
            measured(f"{name}_p99_ms", one.p99, "ms", detail),
        ]
    for (phase, gateway), held in found.memory.items():
        out.append(measured(f"{phase}_{gateway.replace('-', '_')}_rss_mb", held.rss, "MiB", f"peak {held.peak:.0f}"))
    return out


def _budget(seen: Board, gateway: str) -> Figure:
    """The CPU of a plain request, against what all of it may cost."""
    one = seen.get((gateway, "plain"))
    name = f"cpu_plain_{gateway.replace('-', '_')}"
    return bounded(name, one.cpu if one is not None else None, "us", "<= 75", "user and system time of a plain request")


def page(
    found: Found, scenarios: Sequence[Scenario], gateways: Sequence[Gateway], told: list[tuple[str, str]], *, quick: bool
) -> Page:
    """docs/performance.md."""
    seen = board(found, scenarios, gateways)
    intro = (
        "SITS beside the other gateways of its field: one run, one machine, each gateway pinned to one core, the model "
        "server and the load on another, rounds in turns. CPU is user and system time of the gateway's whole process tree. "
        "A round with a single answer that is not 2xx, or a single broken connection, is void; before each round one answer "
        "is read and must be the upstream's, whole."
    )
    if quick:
        intro += QUICK_RUN
    fairness = (
        "One rule: a peer runs as a person who wants it fast would run it in production, SITS as it comes out of the box, "
        "and what each does on a request is said here. So SITS writes a log line a request, and the peers do not."
    )
    switched = Table(["gateway", "switched on"], [[gateway.name, gateway.switched_on] for gateway in gateways])
    sections = [_scenario(scenario, seen, gateways) for scenario in scenarios]
    sections += [
        Section(
            "Memory", "After the plain requests, the long prompts and the single connection.", [_memory_table(found, gateways)]
        ),
        Section("What each had switched on", fairness, [switched]),
        Section("How the load is made", _METHOD),
    ]
    return Page("performance", "Performance", intro, "make bench", told, sections)


_METHOD = (
    "Every request carries an API key and a traceparent. Plain requests, long prompts and unpaced streams come from wrk "
    "(one thread) and go to nginx. nginx answers a plain request with a fixed chat completion of about 400 bytes. It "
    "answers a stream with a file of fifty events and the end mark as `text/event-stream`, in chunked coding (no "
    "content-length), one chunk and one write an event, with no pause between them. nginx cannot pace, so the 128 streams "
    "that take a second each come from a small server of ours and are read by a small client of ours, which also checks "
    "that each stream comes to its end mark; their rate is set by the pace, so what is compared there is the "
    "CPU.\n\nRequests still under way when wrk stops are not counted while their CPU is: with 32 connections this weighs "
    "against a gateway of 100 requests a second by some percent, and against the fast ones not at all."
)


def _compare(bound: Bound, seen: Board) -> Figure:
    ours, peer = seen.get((OURS, bound.scenario)), seen.get((bound.peer, bound.scenario))
    if ours is None or peer is None:
        missing = OURS if ours is None else bound.peer
        return bounded(bound.name, None, bound.unit, bound.bound, f"{missing} has no round that counts in {bound.scenario}")
    detail = f"{OURS} {number(bound.of(ours))}, {bound.peer} {number(bound.of(peer))}"
    return bounded(bound.name, bound.of(ours) / bound.of(peer), bound.unit, bound.bound, detail)


def _memory(found: Found, ready: Ready | None) -> Figure:
    held = found.memory.get(("plain", OURS))
    if held is None or ready is None:
        return bounded("rss_mb", None, "MiB", "<= 80", f"{OURS} was not measured")
    detail = f"after load; {ready.memory.rss:.0f} when just ready, {held.peak:.0f} at its peak"
    return bounded("rss_mb", held.rss, "MiB", "<= 80", detail)


def _ready(ready: Ready | None) -> Figure:
    if ready is None:
        return bounded("ready_seconds", None, "s", "< 1.5", f"{OURS} was not measured")
    each = ", ".join(f"{seconds:.2f}" for seconds in ready.seconds)
    return bounded(
        "ready_seconds", statistics.median(ready.seconds), "s", "< 1.5", f"process start to /readyz 200, median of {each}"
    )


def _voids(found: Found) -> Figure:
    ours = [sample for sample in found.samples if sample.gateway == OURS]
    if not ours:
        return bounded("void_rounds", None, "rounds", "<= 0", f"{OURS} was not measured")
    voids = [f"{sample.scenario}: {sample.void}" for sample in ours if sample.void is not None]
    return bounded("void_rounds", len(voids), "rounds", "<= 0", "; ".join(voids) or f"none of {len(ours)} of {OURS}")


def _scenario(scenario: Scenario, seen: Board, gateways: Sequence[Gateway]) -> Section:
    """A table and a drawing of one scenario; a gateway without a round that counts has dashes."""
    router = seen.get((ROUTER, scenario.name))
    paced = any(one is not None and one.jitter_p99 is not None for (_, name), one in seen.items() if name == scenario.name)
    head = [
        "gateway",
        f"{scenario.per}s/s",
        f"CPU us a {scenario.per}",
        "least",
        "most",
        "CPU x vllm-router",
        "p50 ms",
        "p99 ms",
        "rounds void",
    ]
    head += ["first byte p99 ms", "gap off by, p99 ms"] if paced else []
    rows = []
    bars = []
    for gateway in gateways:
        one = seen[gateway.name, scenario.name]
        if one is None:
            rows.append([gateway.name, *["–"] * 7, "all", *(["–"] * 2 if paced else [])])
            continue
        ratio = one.cpu / router.cpu if router is not None and router.cpu else None
        cells = [one.rps, one.cpu, *one.cpu_range, ratio, one.p50, one.p99]
        tail = [number(one.first_p99), number(one.jitter_p99)] if paced else []
        rows.append([gateway.name, *(number(cell) for cell in cells), str(len(one.voids)), *tail])
        bars.append((gateway.name, one.cpu))
    drawing = Bars(f"{scenario.name}-cpu", f"CPU a {scenario.per}: {scenario.title}", "us, less is better", bars)
    return Section(scenario.title, "", [Table(head, rows), *([drawing] if bars else [])])


def _memory_table(found: Found, gateways: Sequence[Gateway]) -> Table:
    rows = []
    for gateway in gateways:
        held = found.memory.get(("plain", gateway.name))
        rows.append([gateway.name, *([number(held.rss), number(held.peak)] if held else ["–", "–"])])
    return Table(["gateway", "RSS MiB", "peak MiB"], rows)
