"""Where the load of a unit spends its time, and what a spare process that is half-way there would hold.

A process does what the one of a unit does, and says after each phase how much processor time went by (which others that want the
cores hardly change) and how much time on the wall.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sits.bench import BenchError
from sits.bench.units_rig import LOCAL
from sits.engines.local.fetch import fetch, located
from sits.engines.local.hosting import HostSpec
from sits.engines.local.plans import Plan, plan
from sits.resources.local import LocalSpec

_SECONDS = 60.0
_CHILD = """
import sys, time
began = float(sys.argv[1])
said = [("Python", time.process_time(), time.time() - began)]
from sits.engines.local import host, llama_host, memory
said.append(("our modules", time.process_time(), time.time() - began))
import xllamacpp
said.append(("llama.cpp's library", time.process_time(), time.time() - began))
import os, msgspec
from sits.engines.local.hosting import HostSpec
held = memory.private()
served = llama_host.serve(msgspec.json.decode(sys.argv[2], type=HostSpec))
said.append(("the model", time.process_time(), time.time() - began))
sys.stdout.write(msgspec.json.encode({"said": said, "held": held}).decode())
sys.stdout.flush()
os._exit(0)
"""


class Phase(msgspec.Struct, frozen=True):
    """Milliseconds, the median of several loads."""

    name: str
    cpu: float
    wall: float


class Loads(msgspec.Struct, frozen=True):
    """What loads take."""

    phases: list[Phase]
    spare: float
    """MiB that no file can give back, of a process that has imported everything and read no model."""
    count: int


class _Said(msgspec.Struct):
    said: list[tuple[str, float, float]]
    held: int


def unit_plan(name: str) -> Plan:
    """How a unit of the bench is run."""
    return plan(name, msgspec.convert(LOCAL, LocalSpec))


def had(models: Path) -> Path:
    """The weights, fetched if they are not there.

    Raises:
        SitsError: they cannot be had.
    """
    models.mkdir(parents=True, exist_ok=True)
    wanted = unit_plan("unit").wanted
    found = located(wanted[0], models) or fetch(wanted, models, lambda *_: None)[0]
    return found[0]


def loads(weights: Path, folder: Path, count: int) -> Loads:
    """Load it so many times, one after the other.

    Raises:
        BenchError: it cannot be loaded.
    """
    one = unit_plan("unit")
    spec = HostSpec(
        "local", one.name, str(weights.resolve()), str(folder / "lease"), "key", context=one.context, slots=one.slots,
        prefixes_mib=one.prefixes_mib, threads=one.threads,
    )  # fmt: skip
    return folded([_once(spec) for _ in range(count)])


def _once(spec: HostSpec) -> _Said:
    command = [sys.executable, "-P", "-c", _CHILD, repr(time.time()), msgspec.json.encode(spec).decode()]
    env = os.environ | {"PYTHONMALLOC": "malloc"}
    done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False, env=env)  # noqa: S603 - our own words
    if done.returncode:
        raise BenchError(f"the model cannot be loaded: {done.stderr.decode('utf-8', 'replace')[-500:]}")
    return msgspec.json.decode(done.stdout, type=_Said)


def folded(said: Sequence[_Said]) -> Loads:
    """The medians, each phase without those before it."""
    phases = []
    for at, (name, _, _) in enumerate(said[0].said):
        spent = []
        for one in said:
            (_, cpu, wall), before = one.said[at], one.said[at - 1] if at else ("", 0.0, 0.0)
            spent.append((1e3 * (cpu - before[1]), 1e3 * (wall - before[2])))
        phases.append(Phase(name, statistics.median(cpu for cpu, _ in spent), statistics.median(wall for _, wall in spent)))
    return Loads(phases, statistics.median(one.held for one in said) / (1 << 20), len(said))
