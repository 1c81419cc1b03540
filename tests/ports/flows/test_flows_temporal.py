"""Flows on a real Temporal server.

Its timers tick once a second and its processes start slowly, so checks run side by side; the one that fails is in the trace.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from sits.inner.errors import Code, SitsError
from sits.ports.flows import open_flows
from sits.ports.flows.base import Context, Flows, State
from sits.ports.flows.checks import CHECKS, Check, Ticks
from sits.ports.flows.killing import CHECKS as KILLING
from sits.ports.flows.killing import Place
from sits.ports.flows.temporal import TemporalFlows
from sits.ports.servers.temporal import NAMESPACE, TemporalServer

_NUMBERS = itertools.count()
_PARTS = 4
_TIMEOUT = 2.0
"""Of the port, where an outage is tested."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    server = TemporalServer(tmp_path_factory.mktemp("temporal"))
    with server:
        yield server
        server.kill()  # nothing in it is wanted any more, and its own way out takes seconds


class TemporalRig:
    """Each rig has a queue of its own, so checks keep apart on one server."""

    long = 0.8

    def __init__(self, server: TemporalServer) -> None:
        self.prefix = f"t{next(_NUMBERS)}-"
        self._server = server
        self._opened: list[TemporalFlows] = []

    async def open(self) -> Flows:
        flows = TemporalFlows(f"127.0.0.1:{self._server.port}", NAMESPACE, queue=self.prefix, lease=2.0, timeout=10.0)
        self._opened.append(flows)
        return flows

    async def fall(self, flows: Flows) -> None:
        await flows.aclose()

    async def advance(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # the server's time is real

    async def aclose(self) -> None:
        for flows in self._opened:
            await flows.aclose()


@pytest.mark.parametrize("part", range(_PARTS))
def test_temporal_conforms(part: int, server: TemporalServer) -> None:
    async def one(check: Check) -> None:
        rig = TemporalRig(server)
        try:
            await check(rig)
        finally:
            await rig.aclose()

    async def run() -> None:
        async with asyncio.TaskGroup() as together:
            for check in CHECKS[part::_PARTS]:
                together.create_task(one(check), name=check.__name__)

    asyncio.run(run())


def test_processes_on_one_server(server: TemporalServer, tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.TaskGroup() as together:
            for check in KILLING:
                prefix = f"k{next(_NUMBERS)}-"
                place = Place(f"{server.address}?lease=2&queue={prefix}", tmp_path, prefix)
                together.create_task(check(place), name=check.__name__)

    asyncio.run(run())


def test_a_namespace_that_is_not_there_is_said_so(server: TemporalServer, tmp_path: Path) -> None:
    async def run() -> SitsError:
        flows = await open_flows(f"temporal://127.0.0.1:{server.port}/nowhere", tmp_path)
        with pytest.raises(SitsError) as refused:
            await flows.run()
        await flows.aclose()
        return refused.value

    error = asyncio.run(run())
    advice = "temporal operator namespace create --namespace nowhere"
    assert (error.code, error.message) == (Code.INVALID_REQUEST, f"temporal has no namespace 'nowhere'; make it: {advice}")


def test_a_server_that_never_was_there_is_unavailable_in_time(tmp_path: Path) -> None:
    async def run() -> list[Code]:
        address = TemporalServer(tmp_path).address
        return await _codes(await open_flows(address, tmp_path, timeout=_TIMEOUT), lambda flows: [flows.run, flows.states])

    assert asyncio.run(run()) == [Code.STATE_UNAVAILABLE] * 2


Calls = Callable[[Flows], Sequence[Callable[[], Awaitable[object]]]]


async def _codes(flows: Flows, calls: Calls) -> list[Code]:
    """What each call raises, all asked at once, and none of them late."""

    async def one(call: Callable[[], Awaitable[object]]) -> Code:
        with pytest.raises(SitsError) as refused:
            await call()
        return refused.value.code

    async with asyncio.timeout(2 * _TIMEOUT):
        return await asyncio.gather(*(one(call) for call in calls(flows)))


async def _two_words(context: Context, input: bytes) -> bytes:
    got = [await context.signal("word") or b"" for _ in range(2)]
    return await context.step("tick", b" ".join(got))


def test_flows_wait_for_a_server_that_stands_still_or_dies_and_go_on(tmp_path: Path) -> None:
    def calls(flows: Flows) -> Sequence[Callable[[], Awaitable[object]]]:
        return [
            lambda: flows.start("words", "2"),
            lambda: flows.send("1", "word", b"lost", key="k2"),
            lambda: flows.state("1"),
            flows.states,
            lambda: flows.cancel("1"),
            lambda: flows.result("1", timeout=0.3),
        ]

    async def run(server: TemporalServer) -> tuple[list[Code], list[Code], State]:
        flows = await open_flows(f"{server.address}?lease=1", tmp_path, timeout=_TIMEOUT)
        flows.flow("words", _two_words)
        flows.action("tick", Ticks())
        await flows.run()
        await flows.start("words", "1")
        await flows.send("1", "word", b"before", key="k1")

        server.pause()
        await asyncio.to_thread(_until_stopped, server.pid)
        paused = await _codes(flows, lambda flows: calls(flows)[2:4])
        server.resume()
        async with asyncio.timeout(30.0):
            assert (await _patient(lambda: flows.state("1"))).status == "running"

        await asyncio.to_thread(server.kill)
        dead = await _codes(flows, calls)
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(30.0):
            await _patient(lambda: flows.send("1", "word", b"after", key="k3"))
        state = await flows.result("1", timeout=20.0)
        await flows.aclose()
        return paused, dead, state

    server = TemporalServer(tmp_path)
    with server:
        paused, dead, state = asyncio.run(run(server))
        server.kill()
    assert paused == [Code.STATE_UNAVAILABLE] * 2
    assert dead == [Code.STATE_UNAVAILABLE] * 6
    assert (state.status, state.output) == ("done", b"did before after")


def _until_stopped(pid: int) -> None:
    """A signal to stop is acted on when the kernel gets to it, thread by thread."""
    give_up = time.monotonic() + 30.0
    while any(b") T " not in stat.read_bytes() for stat in Path(f"/proc/{pid}/task").glob("*/stat")):
        assert time.monotonic() < give_up, "the server does not stand still"
        time.sleep(0.01)


async def _patient(call: Callable[[], Awaitable[State | None]]) -> State:
    """Repeat a call until it is answered, as the contract says."""
    while True:
        try:
            return await call()  # type: ignore[return-value]
        except SitsError as error:
            if error.code is not Code.STATE_UNAVAILABLE:
                raise
