"""`sits serve --workers N` on one machine: one gateway to its clients, whichever worker the kernel gives a connection to.

Registrations must be live on every worker, and limits must be exact over all of them: as many processes as we like, asking as
fast as they can, are together let in exactly as often as the limit says.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sits.bench import BenchError, bodies
from sits.bench.state_gateway import GatewayProcess, model_server, openai_model, registration
from sits.inner.errors import Code, SitsError
from sits.state.limits.base import Limit, Reservation
from sits.state.limits.mapped import mapped_limits

_PATIENCE = 10.0
_MOMENT = 1_764_417_600.0
"""Passed to the limits: time is not what is measured, and a window that ends meanwhile would let in more."""
_CONNECTIONS = 16
_MINUTE_LEFT = 40.0
"""Second of the minute after which the next one is waited for."""
T = TypeVar("T")


class Live(msgspec.Struct, frozen=True):
    """Seconds from the answer of a registration, and of a removal, until every worker goes by it."""

    registered: list[float]
    removed: list[float]


def live(folder: Path, workers: int, rounds: int) -> Live:
    """Register and remove models on a gateway with several workers.

    Raises:
        BenchError: a worker does not come to know.
    """
    gateway = GatewayProcess(folder, workers=workers)
    gateway.declare("settings", "Settings", {"accessLog": False, "ledger": {"enabled": False}})
    gateway.declare("declared", "Model", openai_model("http://127.0.0.1:9"))
    registered, removed = [], []
    with model_server() as endpoint, gateway:
        crew = _crew(gateway, workers)
        for number in range(rounds):
            name = f"model-{number}"
            status, answer = gateway.ask("POST", "/v1/models/register", registration(name, endpoint))
            if status != 201:
                raise BenchError(f"a registration was refused: {status} {answer}")
            registered.append(_all_say(gateway, crew, name, True))
            gateway.ask("DELETE", f"/v1/models/{name}")
            removed.append(_all_say(gateway, crew, name, False))
    return Live(registered, removed)


def _crew(gateway: GatewayProcess, workers: int) -> int:
    """How many workers serve, once all do.

    Raises:
        BenchError: not all come.
    """
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        serving = len(list((gateway.data / "run").glob("worker-*.sock")))
        if serving == workers:
            return serving
        time.sleep(0.02)
    raise BenchError(f"not all of {workers} workers came to serve")


def _all_say(gateway: GatewayProcess, workers: int, name: str, is_there: bool) -> float:
    """Seconds until every worker says so; which one answers is the kernel's choice, so it is asked until none says otherwise for
    so often that none was left out but once in a million.

    Raises:
        BenchError: one does not.
    """
    began = time.monotonic()
    enough = 14 * workers
    agreed, since = 0, began
    while agreed < enough:
        if (name in gateway.names()) is is_there:
            since = time.monotonic() if agreed == 0 else since
            agreed += 1
        else:
            agreed = 0
        if time.monotonic() - began > _PATIENCE:
            raise BenchError(f"after {_PATIENCE:.0f} s not every worker {'has' if is_there else 'has let go of'} {name}")
    return since - began


def served(folder: Path, workers: int, asked: int, cap: int) -> Admitted:
    """The same through the front door: a route with a quota of requests a minute, asked over many connections at once.

    Raises:
        BenchError: an answer is neither 200 nor 429.
    """
    gateway = GatewayProcess(folder, workers=workers)
    gateway.declare("settings", "Settings", {"accessLog": False, "ledger": {"enabled": False}})
    with model_server() as endpoint:
        gateway.declare("one", "Model", openai_model(endpoint))
        gateway.declare("narrow", "Route", {"backends": [{"model": "one"}], "quota": {"requestsPerMinute": cap}})
        with gateway, ThreadPoolExecutor(_CONNECTIONS) as threads:
            _crew(gateway, workers)
            # Quotas count by the minute of the clock: all that is asked has to fall into one.
            if time.time() % 60.0 > _MINUTE_LEFT:
                time.sleep(60.0 - time.time() % 60.0)
            began = time.monotonic()
            body = {"model": "narrow", "messages": [{"role": "user", "content": "好"}]}
            answers = list(threads.map(lambda _: gateway.ask("POST", bodies.PATH, body)[0], range(asked)))
            seconds = time.monotonic() - began
    others = sorted(set(answers) - {200, 429})
    if others:
        raise BenchError(f"a route with a quota answered {others}")
    return Admitted(workers, asked, cap, answers.count(200), seconds)


class Admitted(msgspec.Struct, frozen=True):
    """What several processes were let in together, against one limit."""

    processes: int
    asked: int
    cap: int
    admitted: int
    seconds: float
    starved: int = 0
    """How often a process did not get its turn in time, and asked again."""


def admitted(folder: Path, processes: int, attempts: int, cap: int) -> Admitted:
    """Let processes ask for one place each, `attempts` times, all at once.

    Raises:
        BenchError: one of them broke.
    """
    command = [sys.executable, "-m", "sits.bench.state_workers", str(folder), str(attempts), str(cap)]
    began = time.monotonic()
    crowd = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603
        for _ in range(processes)
    ]
    try:
        for one in crowd:
            assert one.stdout is not None
            one.stdout.readline()  # it has the limits open
        began = time.monotonic()
        for one in crowd:
            assert one.stdin is not None
            one.stdin.close()
        told = [one.stdout.read().split() for one in crowd if one.stdout is not None]
        if any(len(words) != 2 for words in told):
            raise BenchError("a process that asked for places ended before it had told how many it got")
        counts, starved = (sum(int(words[at]) for words in told) for at in (0, 1))
        return Admitted(processes, processes * attempts, cap, counts, time.monotonic() - began, starved)
    finally:
        for one in crowd:
            one.kill()
            one.wait()
            if one.stdout is not None:
                one.stdout.close()


def _ask_for_places(folder: Path, attempts: int, cap: int) -> None:
    """What each of the processes does: every reservation is settled as used."""
    limits = mapped_limits(folder)
    limit = Limit("bench/places", cap, "forever")
    count = starved = 0
    print("ready", flush=True)
    os.read(0, 1)  # until all are there
    for _ in range(attempts):
        answer, tries = _insist(lambda: limits.reserve((limit,), (1,), now=_MOMENT, ttl=60.0))
        starved += tries
        if isinstance(answer, Reservation):
            held = answer
            starved += _insist(lambda: limits.settle(held, (1,), now=_MOMENT))[1]  # noqa: B023 - done before the next round
            count += 1
    _drive(limits.aclose())
    print(count, starved, flush=True)


def _insist(call: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, int]:
    """What the call gives, and how often it had to be made again: who does not get the turn in time has changed nothing."""
    again = 0
    while True:
        try:
            return _drive(call()), again
        except SitsError as error:
            if error.code is not Code.STATE_UNAVAILABLE:
                raise
            again += 1


def _drive(call: Coroutine[Any, Any, T]) -> T:
    """Run what never waits: limits of one machine do not."""
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waited")


if __name__ == "__main__":
    _ask_for_places(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
