"""Flows in this process and for its life, with a clock that only its owner moves: for tests of what is built on flows.

flows = MemoryFlows()
flows.flow("remind", remind)
flows.action("mail", mail)
await flows.run()
await flows.start("remind", "r1")
await flows.advance(86_400)          # a day, at once
await flows.crash()                  # all that ran is gone; the journal is not
await flows.run()                    # and goes on from there
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from sits.inner.errors import Code, SitsError
from sits.ports.flows.base import Action, Body, State, Status
from sits.ports.flows.program import Program, check_mail, check_size, ended_flow, missing_flow, still_running
from sits.ports.flows.replay import Ending, Entry, Mail, Run, Timers

CONSISTENCY = {
    "start": "once for an id",
    "step": "once, and again after a crash that a test plays before its result was remembered",
    "send": "received once for a key, in order",
    "sleep": "by the virtual clock of the test",
    "state": "at once",
    "durability": "none: everything ends with the process",
    "outage": "none",
}

MOST_FLOWS = 10_000
"""Flows that are kept; beyond it the oldest ended one is forgotten, and with none ended a start is refused."""

_REST = 100


class _Clock:
    """Virtual time."""

    def __init__(self, now: float) -> None:
        self.time = now
        self.timers = Timers()

    def now(self) -> float:
        return self.time

    async def until(self, when: float) -> None:
        if when > self.time:
            await self.timers.add(when)


class _Record:
    """What is remembered of one flow."""

    def __init__(self, state: State, input: bytes) -> None:
        self.state = state
        self.input = input
        self.log: list[Entry] = []
        self.mail: list[Mail] = []
        self.keys: set[str] = set()
        self.ended = asyncio.Event()


class MemoryFlows:
    """The fake. `now` is virtual; `result` waits in real time, since what it waits for is real."""

    name = "memory"

    def __init__(self, *, now: float = 1_800_000_000.0) -> None:
        self._program = Program()
        self._clock = _Clock(now)
        self._records: dict[str, _Record] = {}
        self._runs: dict[str, Run] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running = False

    # For tests

    def successor(self) -> MemoryFlows:
        """What another process would be that finds this one dead: the same journal and clock, and nothing declared yet."""
        other = MemoryFlows()
        other._clock, other._records = self._clock, self._records
        return other

    @property
    def now(self) -> float:
        """Virtual unix seconds."""
        return self._clock.time

    async def advance(self, seconds: float) -> None:
        """Let virtual time pass; everything that falls due happens in order, each when it is due."""
        end = self._clock.time + seconds
        await self._settle()
        while (due := self._clock.timers.due()) is not None and due <= end:
            self._clock.time = max(self._clock.time, due)
            self._clock.timers.fire(self._clock.time)
            await self._settle()
        self._clock.time = end

    async def _settle(self) -> None:
        """Let everything go on that needs neither time nor the world."""
        before: list[int] = []
        while (now := [run.progress for run in self._runs.values()]) != before:
            before = now
            await rest(_REST)

    async def crash(self) -> None:
        """Stop in the middle of everything, as a kill -9 would; `run` goes on from the journal."""
        self._running = False
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._runs.clear()
        self._tasks.clear()

    def journal(self, id: str) -> tuple[Entry, ...]:
        """What is remembered of a flow, in order."""
        return tuple(self._record(id).log)

    # The contract

    def flow(self, name: str, body: Body) -> None:
        self._program.flow(name, body)

    def action(self, name: str, action: Action) -> None:
        self._program.action(name, action)

    async def run(self) -> None:
        self._program.begin()
        if self._running:
            return
        self._running = True
        for id, record in self._records.items():
            if record.state.status == "running":
                self._run(id, record)

    async def start(self, flow: str, id: str, input: bytes = b"") -> None:
        self._program.check_start(flow, id, input)
        if id in self._records:
            return
        self._make_room()
        record = _Record(State(id, flow, "running", started=self._clock.time), input)
        self._records[id] = record
        if self._running:
            self._run(id, record)

    async def send(self, id: str, signal: str, payload: bytes = b"", *, key: str = "") -> None:
        check_size("payload", payload)
        record = self._record(id)
        if record.state.status != "running":
            raise ended_flow(id)
        if key and key in record.keys:
            return
        check_mail(id, len(record.mail))
        record.keys.add(key)
        mail = Mail(len(record.mail), signal, payload)
        record.mail.append(mail)
        if id in self._runs:
            self._runs[id].post(mail)

    async def state(self, id: str) -> State | None:
        record = self._records.get(id)
        return record.state if record else None

    async def states(self, *, status: Status | None = None, limit: int = 100) -> Sequence[State]:
        found = [one.state for one in self._records.values() if status is None or one.state.status == status]
        found.sort(key=lambda one: (one.status != "running", -one.started))
        return [State(one.id, one.flow, one.status, started=one.started) for one in found[:limit]]

    async def result(self, id: str, *, timeout: float) -> State:  # noqa: ASYNC109 - see the contract
        record = self._record(id)
        try:
            async with asyncio.timeout(timeout):
                await record.ended.wait()
        except TimeoutError as late:
            raise still_running(id, timeout) from late
        return record.state

    async def cancel(self, id: str) -> None:
        record = self._record(id)
        if record.state.status != "running":
            return
        _end(record, Ending("cancelled"))
        task = self._tasks.pop(id, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def aclose(self) -> None:
        await self.crash()

    # Running

    def _record(self, id: str) -> _Record:
        record = self._records.get(id)
        if record is None:
            raise missing_flow(id)
        return record

    def _make_room(self) -> None:
        if len(self._records) < MOST_FLOWS:
            return
        oldest = next((id for id, one in self._records.items() if one.state.status != "running"), None)
        if oldest is None:
            raise SitsError(Code.STATE_UNAVAILABLE, f"{MOST_FLOWS} flows are running")
        del self._records[oldest]

    def _run(self, id: str, record: _Record) -> None:
        async def remember(entries: Sequence[Entry]) -> None:
            record.log.extend(entries)

        run = Run(
            id,
            self._program.flows[record.state.flow],
            record.input,
            started=record.state.started,
            log=record.log,
            mail=record.mail,
            actions=self._program.actions,
            clock=self._clock,
            remember=remember,
        )
        self._runs[id] = run
        self._tasks[id] = asyncio.create_task(self._see_through(id, record, run))

    async def _see_through(self, id: str, record: _Record, run: Run) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # cancelled or crashed: the record says which
            _end(record, await run.main())
        self._runs.pop(id, None)
        self._tasks.pop(id, None)


def _end(record: _Record, ending: Ending) -> None:
    if record.state.status == "running":
        old = record.state
        record.state = State(old.id, old.flow, ending.status, ending.output, ending.error, old.started)
        record.log.clear()
        record.mail.clear()
        record.ended.set()


async def rest(passes: int) -> None:
    """Let others go on for so many passes of the loop."""
    for _ in range(passes):
        await asyncio.sleep(0)
