"""`sits bench soak`: ten minutes of everything at once, after which the process must be as it was.

A real `sits serve` with a model server of ours behind it. Clients of every kind ask; models come and go; files change and are
reloaded; `/metrics` is scraped. After a first tenth the load rests and threads, tasks and open files are counted; at the end they
are counted again, at rest. Memory is read every second from /proc, and its slope is that of a line through the last two thirds:
of all that is resident, and of what is the process's own. The rest are pages of files, such as the ledger's journal, which is
mapped 4 MiB at a time; those the kernel may take away. The variable `SITS_SOAK_SECONDS` makes it longer or shorter.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from sits.bench import BenchError, Outcome, Plan
from sits.bench.environment import environment
from sits.bench.figure import Figure, bounded, measured
from sits.bench.page import Page, Section, Table
from sits.bench.soak_load import ADMIN, CACHED, PLAIN, USER, Line, Load
from sits.bench.state_gateway import GatewayProcess, openai_model, registration
from sits.bench.upstream import Paced

SECONDS, QUICK_SECONDS = 600.0, 30.0
SECONDS_VARIABLE = "SITS_SOAK_SECONDS"
SLOPE_BOUND, OWN_SLOPE_BOUND = "< 1", "< 0.5"
"""MiB a minute."""
_CLIENTS = 12
_PAUSE = 0.05
"""Seconds between two errands of a client, on average: a load that is steady, not one that fills the machine."""
_STREAM_SECONDS = 0.2
_IDLE_SECONDS = 1.0
"""How long the gateway keeps unused connections to the model server: at rest there are none."""
_REST_SECONDS = 10.0
_WARM_SECONDS = 10.0
"""The least warm-up: pools of threads have grown to their caps by then."""
_MIB = 1024.0


class Counts(msgspec.Struct, frozen=True):
    """What a process holds besides memory."""

    threads: int
    tasks: int
    files: int


class Soaked(msgspec.Struct):
    """What the soak showed. `memory` is (seconds since the start of the load, MiB resident, MiB of them that are no file's)."""

    memory: list[tuple[float, float, float]] = []
    before: Counts = Counts(0, 0, 0)
    after: Counts = Counts(0, 0, 0)
    sent: dict[str, int] = {}
    failed: dict[str, int] = {}
    why: str = ""
    reloads: int = 0
    registrations: int = 0
    seconds: float = 0.0


def run(plan: Plan) -> Outcome:
    """Soak a gateway.

    Raises:
        BenchError: it does not start, or ends.
    """
    seconds = _seconds(quick=plan.quick)
    with tempfile.TemporaryDirectory(prefix="sits-bench-") as name:
        folder = Path(name)
        upstream = Paced(folder, max(os.sched_getaffinity(0)), seconds=_STREAM_SECONDS)
        with upstream.child:
            upstream.await_ready()
            gateway = _gateway(folder, upstream.url)
            with gateway:
                soaked = asyncio.run(Soak(gateway, upstream.url, seconds, plan).story())
    figures = soak_figures(soaked, quick=plan.quick)
    return Outcome(figures, _page(soaked, quick=plan.quick))


def _seconds(*, quick: bool) -> float:
    if quick:
        return QUICK_SECONDS
    said = os.environ.get(SECONDS_VARIABLE, str(SECONDS))
    try:
        seconds = float(said)
    except ValueError:
        seconds = 0.0
    if seconds < QUICK_SECONDS:
        raise BenchError(f"{SECONDS_VARIABLE}={said!r}: wanted a number of seconds, {QUICK_SECONDS:g} at the least")
    return seconds


def _gateway(folder: Path, upstream: str) -> GatewayProcess:
    gateway = GatewayProcess(folder)
    # Small enough that what has a cap has reached it before memory is looked at.
    settings = {"auth": "required", "cacheMib": 4, "records": 256, "pool": {"idleSeconds": _IDLE_SECONDS}}
    gateway.declare("settings", "Settings", settings)
    gateway.declare("one", "Model", openai_model(upstream))
    gateway.declare("two", "Model", openai_model(upstream))
    gateway.declare(PLAIN, "Route", {"backends": [{"model": "one"}, {"model": "two"}]})
    gateway.declare(CACHED, "Route", {"backends": [{"model": "one"}], "cache": {"ttlSeconds": 20}})
    gateway.declare("admin", "Key", {"sha256": hashlib.sha256(ADMIN.encode()).hexdigest(), "admin": True})
    quota = {"requestsPerMinute": 10**6, "tokensPerDay": 10**9}
    gateway.declare("user", "Key", {"sha256": hashlib.sha256(USER.encode()).hexdigest(), "quota": quota})
    return gateway


class Soak:
    """One soak of one gateway."""

    def __init__(self, gateway: GatewayProcess, upstream: str, seconds: float, plan: Plan) -> None:
        self._gateway = gateway
        self._upstream = upstream
        self._length = seconds
        self._plan = plan
        self._load = Load(gateway.port, random.Random(11))  # noqa: S311 - errands, no secrets
        self._soaked = Soaked(seconds=seconds)
        self._changes = 0

    async def story(self) -> Soaked:
        """Warm up, count, soak, count again."""
        soaked, load = self._soaked, self._load
        self._plan.say("warming up")
        await self._work(max(_WARM_SECONDS, self._length / 10), None)
        soaked.before = await self._rested()
        self._plan.say(f"at rest: {soaked.before}")
        await self._work(self._length, soaked.memory)
        soaked.after = await self._rested()
        self._plan.say(f"at rest: {soaked.after}")
        soaked.sent, soaked.failed, soaked.why = dict(load.sent), dict(load.failed), load.why
        return soaked

    async def _work(self, seconds: float, memory: list[tuple[float, float, float]] | None) -> None:
        """All of it at once, for so long."""
        stop = asyncio.Event()
        tasks = [asyncio.create_task(self._load.client(stop, _PAUSE)) for _ in range(_CLIENTS)]
        tasks += [
            asyncio.create_task(self._repeat(stop, every, name, errand))
            for every, name, errand in (
                (1.0, "metrics", self._scrape),
                (2.0, "a model comes and goes", self._come_and_go),
                (4.0, "a change of the files", self._change_files),
            )
        ]
        began, said = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds:
            if memory is not None:
                memory.append((passed, self._status("VmRSS") / _MIB, self._status("RssAnon") / _MIB))
            if int(passed // 60) > said:
                said = int(passed // 60)
                self._plan.say(f"{said} min: {self._status('VmRSS') / _MIB:.1f} MiB, {sum(self._load.sent.values())} requests")
            await asyncio.sleep(1.0)
        stop.set()
        await asyncio.gather(*tasks)

    async def _repeat(self, stop: asyncio.Event, every: float, name: str, errand: Any) -> None:
        line = Line(self._gateway.port)
        while not stop.is_set():
            await self._load.run(name, errand(line))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), every)
        await line.close()

    async def _scrape(self, line: Line) -> str:
        reply = await line.ask("GET", "/metrics")
        return "" if reply.status == 200 and b"sits_" in reply.body else f"status {reply.status}"

    async def _come_and_go(self, line: Line) -> str:
        self._soaked.registrations += 1
        name = f"guest-{self._soaked.registrations}"
        made = await line.ask("POST", "/v1/models/register", registration(name, self._upstream), ADMIN)
        if made.status != 201:
            return f"registered: status {made.status}: {made.body[:200]!r}"
        body = {"model": name, "messages": [{"role": "user", "content": "?"}]}
        answered = await line.ask("POST", "/v1/chat/completions", body)
        gone = await line.ask("DELETE", f"/v1/models/{name}", None, ADMIN)
        return "" if (answered.status, gone.status) == (200, 200) else f"asked: {answered.status}, removed: {gone.status}"

    async def _change_files(self, line: Line) -> str:
        """Another model on each odd change, gone on each even one; now and then a file that is not valid."""
        self._changes += 1
        extra = self._gateway.config / "extra.json"
        wanted = 200
        if self._changes % 10 == 9:
            await asyncio.to_thread(self._gateway.declare, "extra", "Model", {"engine": "no-such-engine"})
            wanted = 409
        elif self._changes % 2:
            spec = openai_model(self._upstream) | {"upstreamModel": f"bench-{self._changes}"}
            await asyncio.to_thread(self._gateway.declare, "extra", "Model", spec)
        else:
            await asyncio.to_thread(extra.unlink, missing_ok=True)
        reply = await line.ask("POST", "/v1/admin/reload", None, ADMIN)
        self._soaked.reloads += 1
        return "" if reply.status == wanted else f"status {reply.status}, not {wanted}: {reply.body[:200]!r}"

    async def _rested(self) -> Counts:
        """The counts at rest: when they have not changed for three looks, a second apart.

        Raises:
            BenchError: they do not come to rest.
        """
        seen: list[Counts] = []
        for _ in range(int(_REST_SECONDS * 3)):
            await asyncio.sleep(_IDLE_SECONDS)
            seen.append(await self._counts())
            if len(seen) >= 3 and seen[-1] == seen[-2] == seen[-3]:
                return seen[-1]
        raise BenchError(f"the gateway does not come to rest: {seen[-5:]}")

    async def _counts(self) -> Counts:
        line = Line(self._gateway.port)
        status = await line.ask("GET", "/v1/admin/status", None, ADMIN)
        # The connection that asks, and the task that answers, are there each time alike.
        files = len(os.listdir(f"/proc/{self._gateway.pid}/fd"))
        await line.close()
        return Counts(int(self._status("Threads")), msgspec.json.decode(status.body)["tasks"], files)

    def _status(self, name: str) -> float:
        """A figure of /proc/PID/status; memory is in KiB there.

        Raises:
            BenchError: the gateway has ended.
        """
        try:
            text = Path(f"/proc/{self._gateway.pid}/status").read_text()
        except OSError as error:
            raise BenchError(f"the gateway ended:\n{self._gateway.log.read_text()[-2000:]}") from error
        found = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
        return float(found[1]) if found else 0.0


def slope(points: list[tuple[float, float]]) -> float | None:
    """How steep the line through the last two thirds is (least squares), in units of the values for each unit of time."""
    last = points[len(points) // 3 :]
    if len(last) < 2:
        return None
    middle = sum(x for x, _ in last) / len(last), sum(y for _, y in last) / len(last)
    across = sum((x - middle[0]) ** 2 for x, _ in last)
    return sum((x - middle[0]) * (y - middle[1]) for x, y in last) / across if across else None


def soak_figures(soaked: Soaked, *, quick: bool) -> list[Figure]:
    """The figures with their bounds. Half a minute says nothing about a slope, so in a quick run it only informs."""
    detail = f"over the last two thirds of {soaked.seconds:.0f} s"
    found = []
    for name, bound, points in (
        ("rss_slope_mib_per_minute", SLOPE_BOUND, [(at, rss) for at, rss, _ in soaked.memory]),
        ("own_memory_slope_mib_per_minute", OWN_SLOPE_BOUND, [(at, own) for at, _, own in soaked.memory]),
    ):
        steep = slope(points)
        growth = None if steep is None else 60.0 * steep
        found.append(measured(name, growth, "MiB/min", detail) if quick else bounded(name, growth, "MiB/min", bound, detail))
    for name in Counts.__struct_fields__:
        before, after = getattr(soaked.before, name), getattr(soaked.after, name)
        found.append(bounded(f"{name}_grown", after - before, "", "<= 0", f"{before} before, {after} after, at rest"))
    failed = sum(soaked.failed.values())
    asked = sum(soaked.sent.values())
    found.append(bounded("failed_requests", failed, "", "<= 0", soaked.why or f"of {asked}"))
    found.append(measured("requests", asked, ""))
    found.append(measured("reloads", soaked.reloads, "", "of which one in ten of files that are not valid"))
    found.append(measured("registrations", soaked.registrations, ""))
    memory = [rss for _, rss, _ in soaked.memory]
    found.append(measured("rss_mib_first", memory[0] if memory else None, "MiB"))
    found.append(measured("rss_mib_last", memory[-1] if memory else None, "MiB"))
    return found


def _page(soaked: Soaked, *, quick: bool) -> Page:
    intro = "Whether a gateway that runs for long stays as it is: memory, threads, tasks, open files, and no request that fails."
    if quick:
        intro += "\n\nThis is a quick run, which proves the harness: not for quoting."
    rows = [[name, str(count), str(soaked.failed.get(name, 0))] for name, count in sorted(soaked.sent.items())]
    sent = Section(
        "What was sent",
        f"{_CLIENTS} clients for {soaked.seconds:.0f} s after a warm-up of a tenth of that; the unknown must be refused.",
        [Table(["errand", "sent", "failed"], rows)],
    )
    step = max(1, len(soaked.memory) // 20)
    curve = [[f"{at:.0f}", f"{rss:.1f}", f"{own:.1f}"] for at, rss, own in soaked.memory[::step]]
    memory = Section("Memory", "", [Table(["s", "resident, MiB", "its own, MiB"], curve)])
    command = "sits bench soak --json --out docs"
    return Page("performance-soak", "Soak", intro, command, environment(), [sent, memory])
