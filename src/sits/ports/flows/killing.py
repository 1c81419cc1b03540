"""What every runner of flows must do when real processes die, stand still or work side by side, as checks.

Each check starts processes of `python -m sits.ports.flows.killing ADDRESS FOLDER`, which run the flows below and say on
their standard output what their steps do: `begin KEY` and `end KEY`.

    await a_killed_process_is_followed_by_another(Place("embedded?lease=1", folder))
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from sits.ports.flows import open_flows
from sits.ports.flows.base import Action, Body, Context, Flows, State, Step

_WAIT = 60.0
_STEPS = 12
_TAKEN = 10.0
"""Seconds in which a flow is surely taken up, unless the process that has stopped holds up its store."""


class Place(NamedTuple):
    """Where the runners of one check meet. The address names a short lease: a second or so."""

    address: str
    data: Path
    prefix: str = ""
    """What ids begin with."""


# What the processes run


async def _work(context: Context, input: bytes) -> bytes:
    """Steps one after the other; the result is what they gave."""
    return b" ".join([await context.step("mark", b"%d" % number) for number in range(int(input))])


async def _ask(context: Context, input: bytes) -> bytes:
    """Every signal up to `input` of them, each followed by a step."""
    got = []
    for _ in range(int(input)):
        got.append(await context.signal("word") or b"")
        await context.step("mark", got[-1])
    return b" ".join(got)


async def _drag(context: Context, input: bytes) -> bytes:
    """The same with steps that last long."""
    return b" ".join([await context.step("drag", b"%d" % number) for number in range(int(input))])


def _lasting(seconds: float) -> Action:
    async def mark(step: Step) -> bytes:
        print(f"begin {step.key}", flush=True)
        await asyncio.sleep(seconds)  # so that a kill hits the middle of something
        print(f"end {step.key}", flush=True)
        return step.input

    return mark


FLOWS: dict[str, Body] = {"work": _work, "ask": _ask, "drag": _drag}


async def _main(address: str, data: str) -> None:
    flows = await open_flows(address, Path(data))
    for name, body in FLOWS.items():
        flows.flow(name, body)
    flows.action("mark", _lasting(0.03))
    flows.action("drag", _lasting(0.25))
    await flows.run()
    print("ready", flush=True)
    try:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    finally:
        await flows.aclose()


# Watching them


class Worker:
    """A process that runs the flows; `lines` is what it has said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.lines: list[str] = []
        self._process = process
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.lines.append(line.decode().strip())
            self._news.set()

    async def until(self, met: Callable[[list[str]], bool]) -> None:
        async with asyncio.timeout(_WAIT):
            while not met(self.lines):
                self._news.clear()
                await self._news.wait()

    async def next_begin(self) -> None:
        """Until another step has begun."""
        begun = len(self.marks("begin"))
        await self.until(lambda lines: len(self.marks("begin")) > begun)

    def marks(self, what: str) -> list[str]:
        """The keys of the steps that began, or ended, here."""
        return [line.partition(" ")[2] for line in self.lines if line.startswith(what + " ")]

    async def kill(self) -> None:
        """SIGKILL; all that it had said is read after this."""
        self._process.kill()
        await self._process.wait()
        await self._reading

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def stop(self) -> None:
        """Let it end by itself; killed when it stays."""
        with contextlib.suppress(ProcessLookupError):
            self.resume()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_WAIT):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
        await self._process.wait()
        await self._reading


@contextlib.asynccontextmanager
async def worker(place: Place) -> AsyncIterator[Worker]:
    """A process that works, from when it is ready until the block ends."""
    command = (sys.executable, "-m", "sits.ports.flows.killing", place.address, str(place.data))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    one = Worker(process)
    try:
        await one.until(lambda lines: "ready" in lines)
        yield one
    finally:
        await one.stop()


@contextlib.asynccontextmanager
async def _client(place: Place) -> AsyncIterator[Flows]:
    """A runner that only starts and asks."""
    flows = await open_flows(place.address, place.data)
    for name, body in FLOWS.items():
        flows.flow(name, body)
    try:
        yield flows
    finally:
        await flows.aclose()


async def _done(flows: Flows, id: str) -> State:
    state = await flows.result(id, timeout=_WAIT)
    assert state.status == "done", f"{state!r}"
    return state


def _keys(id: str, count: int) -> list[str]:
    return [f"{id}/{number}" for number in range(count)]


# The checks


async def a_killed_process_is_followed_by_another(place: Place) -> None:
    """Killed in the middle: what had ended is not done again, what was under way is, and no more than that."""
    id = place.prefix + "killed"
    async with _client(place) as flows, worker(place) as first:
        await flows.start("work", id, b"%d" % _STEPS)
        await first.until(lambda lines: len(first.marks("begin")) == _STEPS // 2)
        await first.kill()
        async with worker(place) as second:
            assert (await _done(flows, id)).output == b" ".join(b"%d" % number for number in range(_STEPS))
            await second.stop()
            began = Counter(first.marks("begin") + second.marks("begin"))
            assert sorted(began) == sorted(_keys(id, _STEPS))
            again = [key for key, times in began.items() if times > 1]
            assert len(again) <= 1, f"done again: {again}"
            assert set(again) <= {first.marks("begin")[-1]}


async def signals_reach_a_flow_whose_process_was_killed(place: Place) -> None:
    """Sent before the kill, while nobody runs, and after it; each is received once, in order."""
    id = place.prefix + "signalled"
    async with _client(place) as flows:
        async with worker(place) as first:
            await flows.start("ask", id, b"6")
            for word in (b"a", b"b", b"c"):
                await flows.send(id, "word", word, key=word.decode())
            await first.until(lambda lines: len(first.marks("end")) >= 1)
            await first.kill()
        await flows.send(id, "word", b"d", key="d")
        await flows.send(id, "word", b"b", key="b")
        async with worker(place) as second:
            await second.until(lambda lines: f"end {id}/7" in lines)
            await flows.send(id, "word", b"e")
            await second.until(lambda lines: f"end {id}/9" in lines)
            await flows.send(id, "word", b"f", key="f")
            assert (await _done(flows, id)).output == b"a b c d e f"
            assert sorted({*first.marks("begin"), *second.marks("begin")}) == [f"{id}/{number}" for number in (1, 11, 3, 5, 7, 9)]


async def processes_share_the_work_and_never_a_flow(place: Place) -> None:
    """Two that live, for longer than a lease: every step is done once."""
    ids = [f"{place.prefix}shared-{number}" for number in range(6)]
    async with _client(place) as flows, worker(place) as one, worker(place) as two:
        for id in ids:
            await flows.start("work", id, b"25")
        for id in ids:
            assert (await _done(flows, id)).output == b" ".join(b"%d" % number for number in range(25))
        await one.stop()
        await two.stop()
        assert sorted(one.marks("begin") + two.marks("begin")) == sorted(key for id in ids for key in _keys(id, 25))


async def a_process_that_stood_still_cannot_go_on_with_what_was_taken_over(place: Place) -> None:
    """Stopped past its lease, then continued: the other's results stand."""
    id, count = place.prefix + "stopped", 6
    async with _client(place) as flows, worker(place) as first:
        await flows.start("drag", id, b"%d" % count)
        await first.until(lambda lines: len(first.marks("begin")) == 2)
        first.pause()
        async with worker(place) as second:
            stops = await _taken(first, second)
            first.resume()
            assert (await _done(flows, id)).output == b" ".join(b"%d" % number for number in range(count))
            await first.stop()
            await second.stop()
            began = Counter(first.marks("begin") + second.marks("begin"))
            assert sorted(began) == sorted(_keys(id, count))
            # The step under way at each stop is done again, more than once where a busy machine lets a worker miss its lease; the
            # one after it may begin before the first notices. All others are done once.
            assert sum(times > 1 for times in began.values()) <= 1 + stops, f"{began}"


async def _taken(first: Worker, second: Worker) -> int:
    """Wait until the second has the work of the first, which is stopped; how often it had to be.

    A process that stops inside a write to SQLite keeps everybody from writing: then it goes on for a moment and stops elsewhere.
    """
    stops = 1
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TAKEN):
                await second.until(lambda lines: len(second.marks("end")) >= 1)
                return stops
        stops += 1
        first.resume()
        await first.next_begin()
        first.pause()


KillingCheck = Callable[[Place], Awaitable[None]]

CHECKS: tuple[KillingCheck, ...] = (
    a_killed_process_is_followed_by_another,
    signals_reach_a_flow_whose_process_was_killed,
    processes_share_the_work_and_never_a_flow,
    a_process_that_stood_still_cannot_go_on_with_what_was_taken_over,
)

if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
