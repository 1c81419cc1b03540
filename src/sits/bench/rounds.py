"""Rounds of load over several gateways, taken in turns so that whatever the machine does hits all of them alike."""

from __future__ import annotations

import http.client
import statistics
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from sits.bench import BenchError, account, bodies
from sits.bench.child import answers
from sits.bench.load import Ask, Load
from sits.bench.peers import Gateway, Running, Spot, start

Source = Callable[[Ask], Load]


class Scenario(msgspec.Struct, frozen=True):
    """One kind of load."""

    name: str
    title: str
    body: bytes
    connections: int
    per: str = "request"
    stream: bool = False


class Phase(msgspec.Struct, frozen=True):
    """Scenarios that share an upstream and a source of load; the gateways are started afresh for it."""

    name: str
    upstream: str
    source: Source
    scenarios: list[Scenario]


class Sample(msgspec.Struct, frozen=True):
    """One round of one scenario on one gateway."""

    gateway: str
    scenario: str
    load: Load | None
    cpu: float
    """Seconds of the whole process tree, from before the first request until after the last."""
    void: str | None
    """Why the round does not count."""


class Summary(msgspec.Struct, frozen=True):
    """Medians over the rounds that count; times in milliseconds, CPU in microseconds."""

    rps: float
    p50: float
    p99: float
    cpu: float
    cpu_range: tuple[float, float]
    """Least and most of any round: how quiet the machine was."""
    first_p99: float | None
    jitter_p99: float | None
    rounds: int
    voids: tuple[str, ...]


class Found(msgspec.Struct):
    """Everything that the rounds found."""

    samples: list[Sample] = []
    memory: dict[tuple[str, str], account.Memory] = {}
    """(phase, gateway) -> after the last round."""


class Course(msgspec.Struct, frozen=True):
    """What all phases have in common."""

    gateways: list[Gateway]
    folder: Path
    cache: Path
    core: int
    rounds: int
    seconds: float
    say: Callable[[str], None]


def drive(course: Course, phase: Phase, found: Found) -> None:
    """Start the gateways, run every round, and add what was found.

    Raises:
        BenchError: a gateway does not start.
    """
    with ExitStack() as stack:
        running = []
        for gateway in course.gateways:
            course.say(f"{phase.name}: starting {gateway.name}")
            folder = course.folder / phase.name / gateway.name
            folder.mkdir(parents=True)
            one = start(gateway, Spot(folder, course.cache, course.core, phase.upstream))
            stack.enter_context(one.child)
            one.child.await_ready(lambda one=one: _wrong(one, phase.scenarios[0]) is None, seconds=120.0, every=0.1)  # type: ignore[misc]
            _warm(one, phase)
            running.append(one)
        for turn in range(course.rounds):
            for scenario in phase.scenarios:
                # Another one leads in each round, so that none always follows the same neighbour.
                lead = turn % len(running)
                for one in [*running[lead:], *running[:lead]]:
                    sample = take(one, scenario, phase.source, course.seconds)
                    found.samples.append(sample)
                    course.say(f"{phase.name}: round {turn + 1}/{course.rounds}, {scenario.name}, {said(sample)}")
        for one in running:
            found.memory[phase.name, one.gateway.name] = account.memory(one.child.pid)


def take(one: Running, scenario: Scenario, source: Source, seconds: float) -> Sample:
    """One round: an answer is looked at first, since a fast wrong one would win."""
    wrong = _wrong(one, scenario)
    if wrong is not None:
        return Sample(one.gateway.name, scenario.name, None, 0.0, wrong)
    before = account.cpu_seconds(one.child.pid)
    load = source(ask(one, scenario, seconds))
    cpu = account.cpu_seconds(one.child.pid) - before
    void = load.void if one.child.alive else "the gateway died"
    return Sample(one.gateway.name, scenario.name, load, cpu, void)


def ask(one: Running, scenario: Scenario, seconds: float) -> Ask:
    return Ask(one.url, bodies.PATH, scenario.body, one.headers, scenario.connections, seconds, scenario.stream)


def summary(samples: Iterable[Sample]) -> Summary | None:
    """Medians over the rounds that count; None when none does."""
    seen = list(samples)
    good = [(sample.load, sample.cpu) for sample in seen if sample.void is None and sample.load is not None]
    if not good:
        return None
    cpus = [cpu / load.requests * 1e6 for load, cpu in good]
    firsts = [load.first_p99 for load, _ in good if load.first_p99 is not None]
    jitters = [load.jitter_p99 for load, _ in good if load.jitter_p99 is not None]
    return Summary(
        rps=statistics.median(load.requests / load.seconds for load, _ in good),
        p50=statistics.median(load.p50 for load, _ in good),
        p99=statistics.median(load.p99 for load, _ in good),
        cpu=statistics.median(cpus),
        cpu_range=(min(cpus), max(cpus)),
        first_p99=statistics.median(firsts) if firsts else None,
        jitter_p99=statistics.median(jitters) if jitters else None,
        rounds=len(good),
        voids=tuple(sample.void for sample in seen if sample.void is not None),
    )


def said(sample: Sample) -> str:
    """One line of progress."""
    if sample.void is not None or sample.load is None:
        return f"{sample.gateway}: void, {sample.void}"
    load = sample.load
    cpu = sample.cpu / load.requests * 1e6
    rate = f"{load.requests / load.seconds:,.0f}/s, {cpu:,.1f} us CPU"
    return f"{sample.gateway}: {rate}, p50 {load.p50:.2f} ms, p99 {load.p99:.2f} ms"


def _warm(one: Running, phase: Phase) -> None:
    """A second of load, so that imports, pools and lazy parts are behind it."""
    phase.source(ask(one, phase.scenarios[0], 1.0))


def _wrong(one: Running, scenario: Scenario) -> str | None:
    """What is wrong with one answer; None when it is the upstream's, whole."""
    target = urlsplit(one.url)
    connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=30.0)
    try:
        connection.request("POST", bodies.PATH, scenario.body, {"content-type": "application/json", **one.headers})
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        return f"no answer: {error}"
    finally:
        connection.close()
    if answer.status != 200:
        return f"status {answer.status}: {body[:200]!r}"
    return bodies.whole_stream(body) if scenario.stream else bodies.whole_answer(body)


def ready_seconds(gateway: Gateway, course: Course, upstream: str) -> tuple[list[float], account.Memory]:
    """Seconds from the start of the process to ready, several times over, and the memory of the last one.

    Raises:
        BenchError: it does not become ready, or has no path that says so.
    """
    times: list[float] = []
    held = account.Memory(0.0, 0.0)
    for turn in range(3):
        folder = course.folder / "ready" / str(turn)
        folder.mkdir(parents=True)
        one = start(gateway, Spot(folder, course.cache, course.core, upstream))
        with one.child:
            if one.ready is None:
                raise BenchError(f"{gateway.name} has no path that says when it is ready")
            times.append(one.child.await_ready(answers(one.url + one.ready), seconds=60.0))
            held = account.memory(one.child.pid)
    return times, held
