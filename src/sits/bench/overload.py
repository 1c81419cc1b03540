"""`sits bench overload`: four times as many requests as the model can take, with classes of service and without.

A real `sits serve`, before it a load that waits for nobody, behind it a model server with so many places and a line. First half
of what the model can do, then four times as much for half a minute, then half again. The same load, request by request, is sent
to a gateway without classes, where everybody is let in and waits in the model's line: first come, first served.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from sits.bench import BenchError, Outcome, Plan, bodies, overload_found, overload_limits
from sits.bench.child import Child, answers
from sits.bench.overload_client import Order, Phase, Row, Running
from sits.bench.overload_found import Found
from sits.bench.state_gateway import GatewayProcess, openai_model
from sits.inner.errors import SitsError
from sits.ports.servers.process import free_port

PLACES, FIXED, MORE = 32, 0.1, 0.06
"""The model: places, seconds that each request takes, seconds that it takes more on average."""
MIX = (0.1, 0.3, 0.6)
"""Shares of P0, P1 and P2."""
KEYS = ("sk-overload-one", "sk-overload-two", "sk-overload-three")
CALM, TIMES = 0.5, 4.0
"""Of what the model can do: before and after, and meanwhile."""
SEED = 20_261_129
_MIB = 1024.0


class Shape(msgspec.Struct, frozen=True):
    """How long each part is, in seconds."""

    measure: float = 6.0
    warm: float = 6.0
    overload: float = 30.0
    after: float = 10.0
    patience: float = 5.0
    """After which a client goes away. Without it the line of the gateway that lets everybody in would not end."""


QUICK = Shape(1.2, 0.6, 1.5, 0.6, 1.0)


def run(plan: Plan) -> Outcome:
    """Overload a gateway, twice.

    Raises:
        BenchError: something does not start, or ends.
    """
    shape = QUICK if plan.quick else Shape()
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sits-overload-")))
        capacity = _capacity(folder, cores[-1], shape)
        plan.say(f"the model gives {capacity:.0f} answers a second")
        found = {}
        for name in ("qos", "fifo"):
            plan.say(f"{name}: {shape.warm + shape.overload + shape.after:.0f} s")
            try:
                found[name] = _one(name, folder, cores, shape, capacity)
            except SitsError as error:
                raise BenchError(error.message) from error
    plan.say("the limit and the lines, simulated")
    simulated = [overload_limits.section(quick=plan.quick), overload_limits.lines(quick=plan.quick)]
    return overload_found.outcome(found["qos"], found["fifo"], simulated, quick=plan.quick)


def _upstream(folder: Path, core: int) -> tuple[Child, int]:
    port = free_port()
    command = [sys.executable, "-m", "sits.bench.overload_upstream", "--port", str(port), "--places", str(PLACES)]
    command += ["--fixed", str(FIXED), "--more", str(MORE)]
    return Child("the model server", command, core=core, log=folder / f"upstream-{port}.log"), port


def _capacity(folder: Path, core: int, shape: Shape) -> float:
    """Answers a second of the model when there is always somebody in line, after the first second."""
    child, port = _upstream(folder, core)
    with child:
        child.await_ready(answers(f"http://127.0.0.1:{port}/v1/models"), seconds=10.0)
        rate = 1.5 * PLACES / (FIXED + MORE)
        order = Order(port, [Phase(rate, shape.measure)], MIX, [], shape.patience, SEED)
        rows = _send(Running(order, folder, core, "capacity"), [])
    ends = [row.at + row.late + row.took for row in rows if row.status == 200]
    return sum(1.0 < end <= shape.measure for end in ends) / (shape.measure - 1.0)


def _one(name: str, folder: Path, cores: Sequence[int], shape: Shape, capacity: float) -> Found:
    """One gateway, from calm to calm."""
    place = folder / name
    place.mkdir()
    child, port = _upstream(place, cores[-1])
    with child:
        child.await_ready(answers(f"http://127.0.0.1:{port}/v1/models"), seconds=10.0)
        gateway = _gateway(place, f"http://127.0.0.1:{port}", qos=name == "qos")
        with gateway:
            os.sched_setaffinity(gateway.pid, {cores[0]})
            phases = [
                Phase(CALM * capacity, shape.warm),
                Phase(TIMES * capacity, shape.overload),
                Phase(CALM * capacity, shape.after),
            ]
            memory: list[tuple[float, float]] = []
            order = Order(gateway.port, phases, MIX, list(KEYS), shape.patience, SEED)
            rows = _send(Running(order, place, cores[-1], "load"), memory, gateway.pid)
    return Found(rows, memory, capacity, shape.warm, shape.warm + shape.overload, shape.warm + shape.overload + shape.after)


def _gateway(folder: Path, upstream: str, *, qos: bool) -> GatewayProcess:
    gateway = GatewayProcess(folder)
    settings = {"auth": "required", "pool": {"connections": 10_000}}
    gateway.declare("settings", "Settings", settings | ({"qos": {}} if qos else {}))
    gateway.declare("model", "Model", openai_model(upstream))
    gateway.declare(bodies.MODEL, "Route", {"backends": [{"model": "model"}]})
    for number, key in enumerate(KEYS):
        spec = {"sha256": hashlib.sha256(key.encode()).hexdigest(), "priority": "P0"}
        gateway.declare(f"key-{number}", "Key", spec)
    return gateway


def _send(load: Running, memory: list[tuple[float, float]], pid: int = 0) -> list[Row]:
    """Wait until it is over; note meanwhile what the process `pid` has of memory."""
    with load.child:
        while load.child.alive:
            if pid:
                memory.append((time.monotonic() - load.began, _resident(pid)))
            time.sleep(0.2)
        try:
            return load.rows()
        except (OSError, msgspec.DecodeError) as error:
            raise BenchError(f"the load failed:\n{load.child.tail()}") from error


def _resident(pid: int) -> float:
    """MiB."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError as error:
        raise BenchError("the gateway ended") from error
    found = re.search(r"^VmRSS:\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) / _MIB if found else 0.0
