"""`sits bench switch`: a family of models replaced under load, by two gateways of which one is killed in the middle.

Three model servers whose tokens have numbers, two real gateways on one real NATS server, 200 clients that stream without a
break. `sitsctl switch` replaces A by B, and B by C; one gateway is killed while half of the requests have moved. Then C is to
be replaced by A again, and is rolled back by hand, several times.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from sits.bench import BenchError, Outcome, Plan
from sits.bench.environment import environment
from sits.bench.figure import Figure, bounded, measured
from sits.bench.page import Page, Section, Table, number
from sits.bench.state_gateway import GatewayProcess
from sits.bench.switch_client import Counts, Stage
from sits.bench.switch_upstream import Arrivals
from sits.inner.errors import SitsError
from sits.ports.servers import ServerProcess, free_port
from sits.ports.servers.nats import NatsServer
from sits.ports.servers.process import answers

ROUTE = "family"
FAMILY = ("a", "b", "c")
_PATIENCE = 90.0
_LOOK = 0.05


class Scale(msgspec.Struct, frozen=True):
    """How much of everything."""

    streams: int
    short: int
    """Words of most answers."""
    long: int
    """Words of every tenth: longer than a step, so that a drain meets some."""
    gap: float
    steps: list[float]
    step_seconds: float
    drain_seconds: float
    rollbacks: int


FULL = Scale(200, 40, 400, 0.06, [0.1, 0.5, 1.0], 3.0, 1.0, 6)
QUICK = Scale(30, 20, 300, 0.03, [0.5, 1.0], 0.5, 0.2, 2)


class Told(msgspec.Struct):
    """What one `sitsctl switch start --wait` said."""

    name: str
    code: int
    status: dict[str, Any]


class Rollback(msgspec.Struct):
    """One roll back by hand."""

    by: str
    """Whether the gateway that was told is the one that had begun."""
    command: float
    """Seconds from the start of the command until the last request that the new model got; 0 when that was earlier."""
    answer: float
    """The same from its end."""
    before: int
    """Requests that the new model got in the second before."""


class Story(msgspec.Struct):
    """What happened."""

    counts: Counts
    told: list[Told]
    rollbacks: list[Rollback]
    arrivals: dict[str, Arrivals]
    seconds: float = 0.0


def run(plan: Plan) -> Outcome:
    """Measure.

    Raises:
        BenchError: a server does not start, or a command is refused.
    """
    scale = QUICK if plan.quick else FULL
    with tempfile.TemporaryDirectory(prefix="sits-bench-") as name:
        try:
            story = uvloop.run(_run(plan.say, Path(name), scale))
        except SitsError as error:
            raise BenchError(error.message) from error
    return Outcome(figures(story), page(story, scale, quick=plan.quick))


async def _run(say: Callable[[str], None], folder: Path, scale: Scale) -> Story:
    with _setting(folder, scale) as (gateways, ports):
        stage = Stage([gateway.port for gateway in gateways], ROUTE)
        stop = asyncio.Event()
        clients = [
            asyncio.create_task(stage.client(one, scale.long if one % 10 == 0 else scale.short, stop))
            for one in range(scale.streams)
        ]
        try:
            return await _play(say, gateways, ports, stage, stop, clients, scale.rollbacks)
        finally:
            stop.set()
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)


async def _play(
    say: Callable[[str], None],
    gateways: list[GatewayProcess],
    ports: dict[str, int],
    stage: Stage,
    stop: asyncio.Event,
    clients: list[asyncio.Task[None]],
    rounds: int,
) -> Story:
    """The whole story, on a stage that is set."""
    first, second = gateways
    begun = time.monotonic()
    await _until(lambda: stage.live >= len(clients) * 0.9, "all clients stream")
    say(f"{stage.live} streams under way; a -> b, and a gateway is killed in the middle")
    starting = asyncio.create_task(_sitsctl(first, "start", "a-b", "--wait"))
    await _at_half(first, "a-b")
    stage.killed.add(second.port)
    await asyncio.to_thread(second.kill)
    told = [await starting]
    await asyncio.to_thread(second.start)
    stage.killed.discard(second.port)
    await _until_async(lambda: _looked(second, "a-b", "over"), 1, "the gateway that is back knows of the switch")
    say("b -> c, told to the gateway that is back")
    told.append(await _sitsctl(second, "start", "b-c", "--wait"))
    rollbacks = []
    for round in range(rounds):
        say(f"c -> a, rolled back by hand ({round + 1})")
        rollbacks.append(await _roll_back(gateways, round, ports["a"]))
    stop.set()
    await asyncio.wait(clients, timeout=_PATIENCE)
    arrivals = {name: await _arrivals(port) for name, port in ports.items()}
    return Story(stage.counts, told, rollbacks, arrivals, time.monotonic() - begun)


async def _roll_back(gateways: list[GatewayProcess], round: int, port: int) -> Rollback:
    """Begin to move requests to the first model again; when some have come there, abort at one gateway or the other."""
    beginner, aborter = gateways[0], gateways[round % 2]
    await _sitsctl(beginner, "start", "c-a")
    await _until_async(lambda: _recent(port, 1.0), 5, "requests move to the new model")
    await asyncio.sleep(1.0)
    before = await _recent(port, 1.0)
    began = time.time()
    await _sitsctl(aborter, "abort", "c-a", "--why", "bench")
    answered = time.time()
    await asyncio.sleep(2.0)
    last = max((await _arrivals(port)).streams, default=0.0)
    by = "the same gateway" if beginner is aborter else "the other gateway"
    return Rollback(by, max(0.0, last - began), max(0.0, last - answered), before)


@contextlib.contextmanager
def _setting(folder: Path, scale: Scale) -> Iterator[tuple[list[GatewayProcess], dict[str, int]]]:
    """Model servers, a bus and two gateways, all running."""
    with contextlib.ExitStack() as stack:
        bus = stack.enter_context(NatsServer(folder / "nats"))
        assert isinstance(bus, NatsServer)
        ports = {}
        for name in FAMILY:
            ports[name] = free_port()
            stack.enter_context(_upstream(folder, name, ports[name], scale))
        gateways = []
        for place in ("one", "two"):
            (folder / place).mkdir()
            gateway = GatewayProcess(folder / place)
            _declare(gateway, bus.address, ports, scale)
            stack.enter_context(gateway)
            gateways.append(gateway)
        yield gateways, ports


def _upstream(folder: Path, name: str, port: int, scale: Scale) -> ServerProcess:
    command = [sys.executable, "-m", "sits.bench.switch_upstream", "--port", str(port), "--name", name]
    command += ["--gap", str(scale.gap)]
    question = b"GET /arrivals HTTP/1.1\r\nhost: bench\r\n\r\n"
    return ServerProcess(f"model server {name}", command, answers(port, question, b" 200 "), log=folder / f"{name}.log")


def _declare(gateway: GatewayProcess, bus: str, ports: dict[str, int], scale: Scale) -> None:
    # The three servers are equal; what differs from one moment to the next is a machine that is full.
    settings = {"bus": bus, "accessLog": False, "ledger": {"enabled": False}, "breaker": {"p99Ms": None}}
    gateway.declare("settings", "Settings", settings)
    for name, port in ports.items():
        gateway.declare(name, "Model", {"engine": "vllm", "endpoint": f"http://127.0.0.1:{port}"})
    gateway.declare(ROUTE, "Route", {"backends": [{"model": "a"}], "onBrokenStream": "continue"})
    pace = {"steps": scale.steps, "stepSeconds": scale.step_seconds, "drainSeconds": scale.drain_seconds}
    held = {"steps": [0.5, 1.0], "stepSeconds": 600.0}
    gates = {"latency": 10.0, "volume": 20}
    for old, new, how in (("a", "b", pace), ("b", "c", pace), ("c", "a", held)):
        gateway.declare(f"{old}-{new}", "Switch", {"from": old, "to": new, "pace": how, "gates": gates})


# What is asked of the gateways and servers


async def _sitsctl(gateway: GatewayProcess, action: str, name: str, *options: str) -> Told:
    """Run the command as its users do.

    Raises:
        BenchError: it was refused.
    """
    program = str(Path(sys.executable).parent / "sitsctl")
    words = ["switch", action, name, "--json", "--url", f"http://127.0.0.1:{gateway.port}", *options]
    process = await asyncio.create_subprocess_exec(
        program, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=dict(os.environ)
    )
    try:
        async with asyncio.timeout(_PATIENCE):
            out, said = await process.communicate()
    except TimeoutError as error:
        process.kill()
        raise BenchError(f"sitsctl switch {action} {name} took more than {_PATIENCE:.0f} s") from error
    try:
        return Told(name, process.returncode or 0, msgspec.json.decode(out))
    except msgspec.DecodeError as error:
        raise BenchError(f"sitsctl switch {action} {name}: {said.decode('utf-8', 'replace')}") from error


async def _at_half(gateway: GatewayProcess, name: str) -> None:
    """Wait until half of the requests move."""

    await _until_async(lambda: _looked(gateway, name, "share"), 0.5, f"switch {name} comes to half")


async def _looked(gateway: GatewayProcess, name: str, what: str) -> float:
    _, found = await asyncio.to_thread(gateway.ask, "GET", f"/v1/admin/switches/{name}")
    return float(found["switch"][what])


async def _arrivals(port: int) -> Arrivals:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    try:
        writer.write(b"GET /arrivals HTTP/1.1\r\nhost: bench\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        return msgspec.json.decode(await reader.readexactly(size), type=Arrivals)
    finally:
        writer.close()


async def _recent(port: int, seconds: float) -> int:
    since = time.time() - seconds
    return sum(at >= since for at in (await _arrivals(port)).streams)


async def _until(met: Callable[[], bool], what: str) -> None:
    await _until_async(lambda: _now(met), 1, what)


async def _now(met: Callable[[], bool]) -> int:
    return int(met())


async def _until_async(look: Callable[[], Any], least: float, what: str) -> None:
    """Look again and again until it is so much.

    Raises:
        BenchError: it takes too long.
    """
    end = time.monotonic() + _PATIENCE
    while await look() < least:
        if time.monotonic() > end:
            raise BenchError(f"not within {_PATIENCE:.0f} s: {what}")
        await asyncio.sleep(_LOOK)


# What it showed


def figures(story: Story) -> list[Figure]:
    """The figures, those of the issue with their bounds."""
    counts = story.counts
    retired = sum(one.code == 0 and one.status["state"] == "retired" for one in story.told)
    moved = sum(one.continued for one in story.arrivals.values())
    worst = max((one.command for one in story.rollbacks), default=None)
    found = [
        bounded("switch_retired", retired, "", "== 2", "; ".join(one.status["why"] for one in story.told)),
        bounded("switch_failed", counts.failed, "", "<= 0", "; ".join(counts.reasons[:3])),
        bounded("switch_tokens_lost", counts.lost, "", "<= 0", f"of {counts.tokens}"),
        bounded("switch_tokens_doubled", counts.doubled, "", "<= 0", f"of {counts.tokens}"),
        bounded("switch_streams_moved", moved, "", ">= 1", "begun by one model and gone on with by the next"),
        bounded("switch_rollback_seconds", worst, "s", "< 1", f"longest of {len(story.rollbacks)}, `sitsctl` included"),
        measured("switch_streams", counts.complete, "", "complete answers"),
        measured("switch_broken_by_kill", counts.broken_by_kill, "", "died with the killed gateway; asked again of the other"),
        measured("switch_elsewhere", counts.elsewhere, "", "requests whose own gateway took no connections"),
        measured("switch_silence_seconds", counts.silence, "s", "longest silence between two words of an answer"),
    ]
    for one in story.told:
        history = one.status["history"]
        found.append(measured(f"switch_{one.name.replace('-', '_')}_seconds", history[-1]["at"] - history[0]["at"], "s"))
    return found


def page(story: Story, scale: Scale, *, quick: bool) -> Page:
    """The page `docs/switching.md`."""
    counts = story.counts
    ran = (
        f"{scale.streams} clients stream without a break for {story.seconds:.0f} s: answers of about {scale.short} numbered "
        f"words, every tenth client's of about {scale.long}, a word in {scale.gap * 1000:.0f} ms. A client sees every number "
        "once and in order, or something was lost or doubled; answers that were cut are checked as far as they came."
    )
    killed = (
        "One of the two gateways is killed (SIGKILL) while half of the requests have moved. What it had under way nobody can "
        f"finish: {counts.broken_by_kill} clients saw their connection die, asked the other gateway, as behind a load balancer, "
        f"and got a whole answer; {counts.elsewhere} requests met a closed port and went to the other one. None of these counts "
        "as failed; an answer cut by a gateway that lives would. The gateway that comes back takes up both switches where they "
        "are by then."
    )
    rows = [[one.by, str(one.before), number(one.command), number(one.answer)] for one in story.rollbacks]
    back = "Seconds until the last request that the new model got, from the start of `sitsctl switch abort` and from its end."
    return Page(
        "switching",
        "Replacing models under load",
        "A -> B -> C under streams, two gateways without a leader, one killed in the middle; roll back by hand. How it works is "
        "told in [hot-switch.md](hot-switch.md).",
        "sits bench switch --out docs" + (" --quick" if quick else ""),
        environment(),
        [
            Section("What ran", ran),
            Section("The killed gateway", killed),
            Section("The phases", "Seconds since the start, and why it went on.", [_phases(story)]),
            Section("Roll back", back, [Table(["told to", "requests in the second before", "command", "answer"], rows)]),
            Section("Who was asked", "", [_by_model(story)]),
        ],
    )


def _phases(story: Story) -> Table:
    rows = []
    for one in story.told:
        begun = one.status["history"][0]["at"]
        for event in one.status["history"]:
            rows.append([one.name, f"{event['at'] - begun:.2f}", event["event"], event["why"]])
    return Table(["switch", "s", "came to", "why"], rows)


def _by_model(story: Story) -> Table:
    rows = [[name, str(len(one.streams)), str(one.continued)] for name, one in story.arrivals.items()]
    return Table(["model", "requests for streams", "of them gone on with"], rows)
