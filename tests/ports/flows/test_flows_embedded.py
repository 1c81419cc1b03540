"""Flows on a store."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from sits.bench.storm_world import Virtual
from sits.inner.errors import Code, SitsError
from sits.ports.flows import open_flows
from sits.ports.flows.base import Context, Flows, State, Step
from sits.ports.flows.checks import CHECKS, Check, Ticks
from sits.ports.flows.embedded import EmbeddedFlows
from sits.ports.flows.killing import CHECKS as KILLING
from sits.ports.flows.killing import Place
from sits.ports.store.base import Change, Entry
from sits.ports.store.memory import Away, MemoryStore, Shelf


class EmbeddedRig:
    """Flows on a store in a folder; their wall clock runs as ours does and jumps when the checks want it to."""

    prefix = "e-"
    long = 3600.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ahead = 0.0
        self._opened: list[Flows] = []

    async def open(self) -> Flows:
        flows = await open_flows("embedded?lease=30", self._folder, wall=lambda: time.time() + self._ahead)
        self._opened.append(flows)
        return flows

    async def fall(self, flows: Flows) -> None:
        await flows.aclose()

    async def advance(self, seconds: float) -> None:
        self._ahead += seconds

    async def aclose(self) -> None:
        for flows in self._opened:
            await flows.aclose()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_embedded_conforms(check: Check, tmp_path: Path) -> None:
    async def run() -> None:
        rig = EmbeddedRig(tmp_path)
        try:
            await check(rig)
        finally:
            await rig.aclose()

    asyncio.run(run())


def test_processes_on_one_folder(tmp_path: Path) -> None:
    """All at once, each in a folder of its own: most of their time is waiting for leases to end."""

    async def run() -> None:
        async with asyncio.TaskGroup() as together:
            for check in KILLING:
                folder = tmp_path / check.__name__
                folder.mkdir()
                together.create_task(check(Place("embedded?lease=4", folder)), name=check.__name__)

    asyncio.run(run())


class Clock:
    """Real time that can be set ahead."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


async def _steps(context: Context, input: bytes) -> bytes:
    return b" ".join([await context.step("tick", b"%d" % number) for number in range(int(input))])


async def _words(context: Context, input: bytes) -> bytes:
    return b" ".join([await context.signal("word") or b"" for _ in range(int(input))])


@contextlib.asynccontextmanager
async def _runner(
    store: MemoryStore, wall: Callable[[], float], tick: Ticks, *, lease: float = 30.0
) -> AsyncIterator[EmbeddedFlows]:
    flows = EmbeddedFlows(store, wall=wall, lease=lease, tick=0.01)
    flows.flow("steps", _steps)
    flows.flow("words", _words)
    flows.action("tick", tick)
    await flows.run()
    try:
        yield flows
    finally:
        await flows.aclose()


async def _until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(30.0):
        while not met():  # noqa: ASYNC110 - what is waited for has no event: it is inside the runner
            await asyncio.sleep(0.005)


# Who runs a flow


def test_a_runner_that_closes_hands_its_flows_over_at_once() -> None:
    async def run() -> tuple[list[bytes], State]:
        shelf, wall, first, second = Shelf(), Clock(), Ticks(), Ticks()
        first.hold = {b"1"}
        async with _runner(MemoryStore(wall, shelf=shelf), wall, second) as other:
            async with _runner(MemoryStore(wall, shelf=shelf), wall, first) as one:
                await one.start("steps", "1", b"3")
                await first.until(2)
            state = await other.result("1", timeout=10.0)  # far less than the lease
            return second.inputs, state

    inputs, state = asyncio.run(run())
    assert inputs == [b"1", b"2"]
    assert (state.status, state.output) == ("done", b"did 0 did 1 did 2")


def test_what_an_owner_does_after_its_lease_is_not_remembered() -> None:
    """The clock of the store jumps: one runner is dead for the others and has not noticed it yet."""

    async def run() -> tuple[list[bytes], list[bytes], State]:
        shelf, wall, first, second = Shelf(), Clock(), Ticks(), Ticks()
        release = asyncio.Event()

        async def late(step: Step) -> bytes:
            first.seen.append(step)
            await release.wait()
            return b"too late"

        one = EmbeddedFlows(MemoryStore(wall, shelf=shelf), wall=wall, lease=30.0, tick=0.01)
        one.flow("steps", _steps)
        one.action("tick", late)
        await one.run()
        await one.start("steps", "1", b"2")
        await _until(lambda: len(first.seen) == 1)
        wall.ahead = 31.0
        second.hold = {b"1"}
        async with _runner(MemoryStore(wall, shelf=shelf), wall, second) as other:
            await second.until(2)  # taken up, and the first step is done again
            release.set()
            await _until(lambda: not one._jobs)  # it came with its result and was refused
            second.hold = set()
            await one.aclose()
            assert await other.state("1") == State("1", "steps", "running", started=(await other.states())[0].started)
        async with _runner(MemoryStore(wall, shelf=shelf), wall, second) as other:
            state = await other.result("1", timeout=30.0)
            return first.inputs, second.inputs, state

    first, second, state = asyncio.run(run())
    assert (first, second) == ([b"0"], [b"0", b"1", b"1"])
    assert (state.status, state.output) == ("done", b"did 0 did 1")


def test_a_runner_whose_lease_ran_out_stops_and_begins_anew() -> None:
    async def run() -> tuple[list[bytes], State]:
        wall, tick = Clock(), Ticks()
        tick.hold = {b"1"}
        async with _runner(MemoryStore(wall), wall, tick, lease=3.0) as flows:  # no machine stands still for so long
            await flows.start("steps", "1", b"2")
            await tick.until(2)
            wall.ahead = 10.0
            await tick.until(3)  # stopped in the middle of the second step, and run again from the log
            tick.hold = set()
            wall.ahead = 20.0
            state = await flows.result("1", timeout=30.0)
            return tick.inputs, state

    inputs, state = asyncio.run(run())
    assert inputs == [b"0", b"1", b"1", b"1"]
    assert (state.status, state.output) == ("done", b"did 0 did 1")


def test_flows_that_a_runner_does_not_know_wait_for_one_that_does() -> None:
    async def run() -> State:
        shelf, wall = Shelf(), Clock()
        stranger = EmbeddedFlows(MemoryStore(wall, shelf=shelf), wall=wall, tick=0.01)
        await stranger.run()
        client = EmbeddedFlows(MemoryStore(wall, shelf=shelf), wall=wall, tick=0.01)
        client.flow("steps", _steps)
        await client.start("steps", "1", b"1")
        async with _runner(MemoryStore(wall, shelf=shelf), wall, Ticks()):
            state = await client.result("1", timeout=30.0)
        await client.aclose()
        await stranger.aclose()
        return state

    assert asyncio.run(run()).output == b"did 0"


class Slow(MemoryStore):
    """A store that takes its time to read a flow."""

    async def get_many(self, keys: Sequence[str]) -> list[Entry | None]:
        await asyncio.sleep(0.06)
        return await super().get_many(keys)


def test_taking_up_many_flows_may_last_longer_than_a_lease(caplog: pytest.LogCaptureFixture) -> None:
    async def run(wall: Callable[[], float]) -> list[str]:
        shelf, tick = Shelf(), Ticks()
        client = EmbeddedFlows(MemoryStore(wall, shelf=shelf), wall=wall, tick=0.01)
        client.flow("steps", _steps)
        ids = [str(number) for number in range(30)]
        for id in ids:
            await client.start("steps", id, b"1")
        async with _runner(Slow(wall, shelf=shelf), wall, tick, lease=1.5):
            for id in ids:
                assert (await client.result(id, timeout=30.0)).status == "done"
        await client.aclose()
        return sorted(step.key for step in tick.seen)

    # In time of its own: a process that stood still for longer than its lease has lost it.
    with asyncio.Runner(loop_factory=Virtual) as runner:
        seconds = runner.get_loop().time
        found = runner.run(run(lambda: 1.7e9 + seconds()))
        assert seconds() > 1.5
    assert found == sorted(f"{number}/0" for number in range(30))
    assert caplog.messages == []


# What is kept


def test_of_an_ended_flow_only_its_record_is_kept_and_not_for_ever() -> None:
    async def run() -> tuple[list[str], list[str], list[str], State | None]:
        wall = Clock()
        store = MemoryStore(wall)
        async with _runner(store, wall, Ticks()) as flows:
            await flows.start("words", "waiting", b"3")
            await flows.send("waiting", "word", b"a", key="k1")
            await flows.send("waiting", "other", b"unheard", key="k2")
            await _until(lambda: "flows/log/" in str([*store.shelf.scan("flows/log/", "", 10, wall())]))
            await _until(lambda: not store.shelf.scan("flows/bell/", "", 10, wall()))
            waiting = [entry.key.split("/")[1] for entry in await store.scan("flows/")]
            await flows.send("waiting", "word", b"b")
            await flows.send("waiting", "word", b"c")
            await flows.result("waiting", timeout=30.0)
            # Long enough that its log does not fit into the commit that ends it.
            await flows.start("steps", "long", b"1200")
            await flows.result("long", timeout=60.0)
            ended = [entry.key.split("/")[1] for entry in await store.scan("flows/")]
            await flows._journal.sweep()
            await _until(lambda: not store.shelf.scan("flows/bell/", "", 10, wall()))
            swept = [entry.key.split("/")[1] for entry in await store.scan("flows/")]
            wall.ahead = 8 * 86_400.0
            return waiting, sorted(set(ended)), swept, await flows.state("long")

    waiting, ended, swept, forgotten = asyncio.run(run())
    assert waiting == ["box", "input", "live", "log", "mail", "sent", "sent", "worker"]
    assert {"box", "dust", "log"} <= set(ended)
    assert swept == ["box", "box", "worker"]
    assert forgotten is None


# Outages


class Unsteady(MemoryStore):
    """A store that often does not answer, and often has done what it was asked for all the same."""

    def __init__(self, wall: Callable[[], float], shelf: Shelf, chance: random.Random) -> None:
        super().__init__(wall, shelf=shelf)
        self._chance = chance

    async def commit(self, changes: Sequence[Change]) -> int:
        self.away = self._chance.choice((None, None, None, Away.BEFORE, Away.AFTER))
        try:
            return await super().commit(changes)
        finally:
            self.away = None


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_answers_that_are_lost_lose_nothing(seed: int) -> None:
    async def again(call: Callable[[], object]) -> None:
        for _ in itertools.count():
            try:
                await call()  # type: ignore[misc]
                return
            except Exception:
                await asyncio.sleep(0)

    async def run() -> tuple[bytes | None, bytes | None, list[bytes]]:
        wall, tick = Clock(), Ticks()
        shelf = Shelf()
        store = Unsteady(wall, shelf, random.Random(seed))
        flows = EmbeddedFlows(store, wall=wall, lease=0.5, tick=0.01)
        flows.flow("steps", _steps)
        flows.flow("words", _words)
        flows.action("tick", tick)
        await again(flows.run)
        await again(lambda: flows.start("steps", "s", b"8"))
        await again(lambda: flows.start("words", "w", b"5"))
        for word in (b"a", b"b", b"c", b"d", b"e"):
            await again(lambda word=word: flows.send("w", "word", word, key=word.decode()))  # type: ignore[misc]
        steps = await flows.result("s", timeout=60.0)
        words = await flows.result("w", timeout=60.0)
        await flows.aclose()
        return steps.output, words.output, tick.inputs

    steps, words, inputs = asyncio.run(run())
    assert steps == b" ".join(b"did %d" % number for number in range(8))
    assert words == b"a b c d e"
    assert sorted(set(inputs)) == [b"%d" % number for number in range(8)]


def test_a_store_that_is_away_is_waited_for_and_said_so() -> None:
    async def run() -> tuple[list[Code], State]:
        wall, tick = Clock(), Ticks()
        store = MemoryStore(wall)
        codes: list[Code] = []
        async with _runner(store, wall, tick, lease=0.4) as flows:
            await flows.start("words", "w", b"2")
            await flows.send("w", "word", b"a")
            store.away = Away.BEFORE
            for call in (
                flows.start("words", "x", b"1"),
                flows.send("w", "word", b"b"),
                flows.state("w"),
                flows.states(),
                flows.cancel("w"),
                flows.result("w", timeout=0.1),
            ):
                with pytest.raises(SitsError) as refused:
                    await call
                codes.append(refused.value.code)
            # Away for longer than the lease: others may be at its flows now, so they are stopped.
            await _until(lambda: flows._identity is None and not flows._jobs)
            store.away = None
            await flows.send("w", "word", b"b")
            return codes, await flows.result("w", timeout=30.0)

    codes, state = asyncio.run(run())
    assert codes == [Code.STATE_UNAVAILABLE] * 6
    assert (state.status, state.output) == ("done", b"a b")
