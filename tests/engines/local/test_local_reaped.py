"""Processes of models are waited for by whoever started them: in a container, its first process waits for nobody."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from local_kit import Answer, alive, ask, e5_plan, house, outgoing, run, until

from sits.engines.base import Deadlines
from sits.engines.local.engine import LocalEngine
from sits.engines.local.lease import living

BUSY = {"model": "multilingual-e5-small", "input": ["the quick brown fox jumps over lazy dogs " * 16] * 2048}
INIT = """
import ctypes, json, os, pathlib, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans become ours, and stay, for we wait for one process only
served = subprocess.Popen(sys.argv[1:])
print(served.pid, flush=True)
served.wait()
print(json.dumps(pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))
"""


def there(pid: int) -> bool:
    """Whether there is such a process; a zombie is."""
    return Path(f"/proc/{pid}").exists()


async def sight_is_lost(engine: LocalEngine) -> None:
    """As when a host did not take a connection: it is given up, found again by its lease, and is still ours."""
    resident = engine._resident
    pid = engine.status.pid
    assert resident.remote is not None
    resident.lose(resident.remote)
    assert engine.status.state == "cold"
    await ask(engine, "/v1/embeddings", {"input": "hi"})
    assert (engine.status.pid, resident._child is not None and resident._child.ours) == (pid, True)
    resident.lose(resident.remote)


async def the_end_is_cut_off(engine: LocalEngine) -> None:
    """As when who closes it is cancelled, while the host has a request of another worker in hand."""
    resident = engine._resident
    assert resident.remote is not None
    asked = outgoing("/v1/embeddings", BUSY)
    fields = [*asked.headers, (b"authorization", resident.key)]
    call = resident.remote.send(msgspec.structs.replace(asked, headers=fields), Answer(), Deadlines(total=60.0))
    await until(lambda: call.started)
    closing = asyncio.create_task(engine.aclose())
    await asyncio.sleep(0.05)
    closing.cancel()
    assert isinstance((await asyncio.gather(closing, return_exceptions=True))[0], asyncio.CancelledError)


@pytest.mark.parametrize("what", [sight_is_lost, the_end_is_cut_off])
def test_a_model_s_process_is_ended_and_reaped_though(what: Callable[[LocalEngine], Awaitable[None]], data: Path) -> None:
    async def story() -> tuple[int, bool]:
        async with house(data) as models:
            engine = LocalEngine(e5_plan(), models)
            await engine.warm()
            pid = engine.status.pid
            assert pid is not None
            await what(engine)
            assert alive(pid)
        return pid, there(pid)

    pid, still = run(story())
    assert not still, f"{pid} runs, or is a zombie of ours"


class Served:
    """`sits serve` under a first process that waits for nobody else."""

    def __init__(self, data: Path, workers: int) -> None:
        self.data = data
        serve = ("-c", "from sits.cli.sits import main; main()", "serve", "--data", str(data), "--port", "0", "--workers")
        self.init = subprocess.Popen(
            [sys.executable, "-c", INIT, sys.executable, *serve, str(workers)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self.init.stdout is not None
        self.pid = int(self.init.stdout.readline())
        found = re.search(r":(\d+) ", self.init.stdout.readline())
        assert found
        self.port = int(found[1])

    def begin(self, body: object) -> http.client.HTTPConnection:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        client.request("POST", "/v1/embeddings", json.dumps(body), {"content-type": "application/json"})
        return client

    def hi(self) -> int:
        with contextlib.closing(self.begin({"model": BUSY["model"], "input": "hi"})) as client, client.getresponse() as answer:
            return answer.status

    def host(self) -> int:
        (path,) = (self.data / "run").glob("*.json")
        lease = living(path)
        assert lease is not None
        return lease.pid

    def left(self) -> list[str]:
        """Who was orphaned by its end."""
        os.kill(self.pid, signal.SIGTERM)
        said, _ = self.init.communicate(timeout=60)
        left: list[str] = json.loads(said.splitlines()[-1])
        return left


@pytest.fixture
def served(data: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    there = Served(data, request.param)
    yield there
    if there.init.poll() is None:
        os.killpg(there.init.pid, signal.SIGKILL)
    there.init.communicate()


@pytest.mark.parametrize("served", [1, 2], indirect=True, ids=["one process", "two workers, one killed"])
def test_a_gateway_whose_model_was_busy_leaves_no_process_behind(served: Served) -> None:
    assert served.hi() == 200
    long = served.begin(BUSY)
    assert served.hi() == 200
    host = served.host()
    long.close()
    owner = int(Path(f"/proc/{host}/stat").read_text().rpartition(")")[2].split()[1])
    if owner != served.pid:
        os.kill(owner, signal.SIGKILL)
    assert served.left() == []
    assert not there(host)
