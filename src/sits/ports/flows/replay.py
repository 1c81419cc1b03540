"""A body run against its log: the part of durable execution that the fake and the embedded adapter share.

Every `step`, `sleep` and `signal` that a body asks for is a call with the next number. When a call has ended, an `Entry` is
written to the log first and given to the body then. A run after a crash gives the body the entries of its log again, in
their order, and starts only calls that have none. The method is that of the event histories of Cadence and Temporal and of
"Debugging operating systems with time-traveling virtual machines" (King, Dunlap, Chen 2005): log what comes from outside,
run the rest again.

Bodies may ask for several calls at once. What they do next then depends on which ended first, and on what their branches had
done until then. So results are given one at a time, each when the body has come to rest, the first time as well as later: that
is when no task of it can go on, in a loop of its own (`stage.py`). The numbers of calls are then a function of the log alone.
They are numbers of the flow, not paths of its branches: branches see each other's results (a list that they share, a lock), so
a path would say where a call comes from and not which one it is.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from sits.inner.errors import SitsError
from sits.ports.flows.base import DEFAULT_RETRY, Action, Body, Retry, Status, Step, StepFailed
from sits.ports.flows.program import check_size, describe
from sits.ports.flows.stage import Restless, Stage

MOST_CALLS = 10_000
"""Calls of one flow; also keeps the commit that ends it, which deletes its log, of a bearable size."""

LARGEST_LOG = 64 * 1024 * 1024
"""Bytes of all results of one flow: they are all read when it is taken up."""

_DYING = 5.0
"""Seconds that an action gets to end when it is cancelled."""

Kind = Literal["step", "sleep", "signal", "try"]


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a call ended. A `try` is a failed try of a step that is tried again; the body does not see it."""

    call: int
    kind: Kind
    name: str
    at: float
    output: bytes | None = None
    error: str | None = None
    mail: int | None = None
    attempt: int = 0


class Mail(msgspec.Struct, frozen=True, omit_defaults=True):
    """A signal that was sent; numbers rise in the order of sending."""

    number: int
    name: str
    payload: bytes = b""


class Ending(msgspec.Struct, frozen=True):
    """What became of a flow."""

    status: Status
    output: bytes | None = None
    error: str | None = None


class Clock(Protocol):
    """Time as a runner has it."""

    def now(self) -> float: ...

    async def until(self, when: float) -> None: ...


class Timers:
    """Who waits until when: set free by `fire`. Called timers cost nothing while they wait."""

    __slots__ = ("_heap", "_numbers")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    def add(self, when: float) -> asyncio.Future[None]:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._heap, (when, next(self._numbers), waiter))
        return waiter

    def due(self) -> float | None:
        """When the next one is to be set free."""
        while self._heap and self._heap[0][2].done():
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def fire(self, now: float) -> None:
        while (due := self.due()) is not None and due <= now:
            heapq.heappop(self._heap)[2].set_result(None)


class _Call:
    __slots__ = ("input", "kind", "name", "number", "result", "retry", "task", "until")

    def __init__(self, number: int, kind: Kind, name: str, result: asyncio.Future[bytes | None]) -> None:
        self.number = number
        self.kind = kind
        self.name = name
        self.result = result
        self.input = b""
        self.retry = DEFAULT_RETRY
        self.until: float | None = None
        self.task: asyncio.Task[None] | None = None


class Run:
    """One run of one flow; the `Context` of its body. `remember` makes entries durable before the body sees them."""

    def __init__(
        self,
        id: str,
        body: Body,
        input: bytes,
        *,
        started: float,
        log: Sequence[Entry],
        mail: Iterable[Mail],
        actions: Mapping[str, Action],
        clock: Clock,
        remember: Callable[[Sequence[Entry]], Awaitable[None]],
    ) -> None:
        self.id = id
        self._body = body
        self._input = input
        self._log = [entry for entry in log if entry.kind != "try"]
        self._known = {entry.call: entry for entry in self._log}
        self._tries = {entry.call: entry for entry in log if entry.kind == "try"}
        self._given = 0
        self._now = started
        self._actions = actions
        self._clock = clock
        self._remember = remember
        self._calls = 0
        self._size = 0
        self._open: dict[int, _Call] = {}
        self._ended: list[Entry] = []
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._stage = Stage(id, self.now)
        self._tasks: set[asyncio.Task[None]] = set()
        self._fault: str | None = None
        self._over = False
        self._holders = {entry.mail: entry.call for entry in self._log if entry.mail is not None}
        self._mail: dict[str, list[Mail]] = {}
        self.newest_mail = max(self._holders, default=-1)
        self._waiting: dict[str, list[_Call]] = {}
        self._late: list[_Call] = []
        self._unsorted = True
        for one in sorted(mail, key=lambda one: one.number):
            self.newest_mail = max(self.newest_mail, one.number)
            if one.number not in self._holders:
                self._mail.setdefault(one.name, []).append(one)

    # What the runner sees

    async def main(self) -> Ending:
        """Run the body to its end. Cancelling this stops all of it; what `remember` raises comes out here."""
        body = self._stage.create_task(self._perform())
        try:
            await self._drive(body)
            return _ending(body) if self._fault is None else Ending("failed", error=self._fault)
        finally:
            self._over = True
            doomed = list(self._tasks)
            for task in doomed:
                task.cancel()
            await self._stage.aclose()
            if doomed:
                await asyncio.wait(doomed, timeout=_DYING)
            if body.done() and not body.cancelled():
                body.exception()  # seen: asyncio need not complain

    @property
    def progress(self) -> int:
        """Rises with everything that happens."""
        return self._calls + self._given + self._stage.turns

    def post(self, mail: Mail) -> None:
        """Give it a signal; one that it has is dropped."""
        if mail.number <= self.newest_mail:
            return
        self.newest_mail = mail.number
        self._mail.setdefault(mail.name, []).append(mail)
        self._unsorted = True
        self._news.set()

    # What the body sees

    async def step(self, name: str, input: bytes = b"", *, retry: Retry = DEFAULT_RETRY) -> bytes:
        call = self._ask("step", name)
        call.input, call.retry = input, retry
        self._begin(call, self._act)
        output = await call.result
        assert output is not None
        return output

    async def sleep(self, seconds: float) -> None:
        call = self._ask("sleep", "")
        call.until = self._now + seconds
        self._begin(call, self._sleep)
        await call.result

    async def signal(self, name: str, *, timeout: float | None = None) -> bytes | None:  # noqa: ASYNC109 - see the contract
        call = self._ask("signal", name)
        if call.number not in self._known:
            self._waiting.setdefault(name, []).append(call)
            self._unsorted = True
        if timeout is not None:
            call.until = self._now + timeout
            self._begin(call, self._give_up)
        try:
            return await call.result
        finally:
            if call in self._waiting.get(name, ()):
                self._leave(call)

    def now(self) -> float:
        return self._now

    # Asking

    async def _perform(self) -> bytes:
        return await self._body(self, self._input)

    def _ask(self, kind: Kind, name: str) -> _Call:
        if self._over:
            raise asyncio.CancelledError
        number = self._calls
        self._calls += 1
        call = _Call(number, kind, name, self._stage.create_future())
        self._open[number] = call
        known = self._known.get(number)
        if known is not None and (known.kind, known.name) != (kind, name):
            self._break(_not_deterministic(f"call {number} asks for {_words(kind, name)}", known))
        elif number >= MOST_CALLS:
            self._break(f"the flow asked for more than {MOST_CALLS} steps, sleeps and signals")
        return call

    def _break(self, message: str) -> None:
        self._fault = self._fault or message
        self._stage.halted = True
        self._news.set()

    def _begin(self, call: _Call, work: Callable[[_Call], Coroutine[Any, Any, None]]) -> None:
        if call.number in self._known or self._fault is not None:
            return
        # The body asks in its own loop; what it asks for is done in that of the process.
        call.task = self._loop.create_task(work(call))
        self._tasks.add(call.task)
        call.task.add_done_callback(self._has_worked)

    def _has_worked(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(describe(error))

    def _leave(self, call: _Call) -> None:
        """A branch that waited for a signal was cancelled: the signal is for another."""
        self._stop_waiting(call)
        del self._open[call.number]
        if call.task is not None:
            call.task.cancel()

    # Doing what was asked

    async def _act(self, call: _Call) -> None:
        last = self._tries.get(call.number)
        attempt = 0
        if last is not None:
            attempt = last.attempt
            await self._clock.until(last.at + call.retry.wait(attempt))
        action = self._actions.get(call.name)
        if action is None:
            self._end(call, error=f"no step {call.name!r} is declared")
            return
        while True:
            attempt += 1
            try:
                check_size("input", call.input)
                output = await action(Step(f"{self.id}/{call.number}", call.input, attempt))
                check_size("result", output)
            except Exception as error:
                if attempt >= call.retry.attempts:
                    self._end(call, error=describe(error))
                    return
                now = self._clock.now()
                self._note(Entry(call.number, "try", call.name, now, error=describe(error), attempt=attempt))
                await self._clock.until(now + call.retry.wait(attempt))
            else:
                self._end(call, output=output)
                return

    async def _sleep(self, call: _Call) -> None:
        assert call.until is not None
        await self._clock.until(call.until)
        self._end(call)

    async def _give_up(self, call: _Call) -> None:
        assert call.until is not None
        await self._clock.until(call.until)
        self._late.append(call)
        self._news.set()

    def _end(self, call: _Call, *, output: bytes | None = None, error: str | None = None) -> None:
        self._note(Entry(call.number, call.kind, call.name, self._clock.now(), output=output, error=error))

    def _note(self, entry: Entry) -> None:
        self._ended.append(entry)
        self._news.set()

    # Giving results: the one place that does, so that there is one order

    async def _drive(self, body: asyncio.Task[bytes]) -> None:
        """Run the body until it has ended, or there is a fault."""
        await self._rest()
        for entry in self._log:
            if self._fault is not None:
                return
            if entry.call not in self._open:
                # Nothing else will ever make it ask.
                way = "ended" if body.done() else "waits"
                self._break(_not_deterministic(f"it {way} without call {entry.call}", entry))
                return
            # What had ended beside the last result is remembered also when the body ends with that.
            if not body.done():
                await self._give(entry)
            else:
                del self._open[entry.call]
        while self._fault is None and not body.done():
            batch = await self._next()
            if batch:
                await self._remember(batch)
            for entry in batch:
                if entry.kind != "try" and self._fault is None and not body.done():
                    await self._give(entry)

    async def _next(self) -> list[Entry]:
        """What has ended since it was last asked; nothing when there is a fault."""
        while True:
            self._news.clear()
            handed = self._hand_out()
            batch, self._ended = [*handed, *self._ended], []
            if self._fault is not None:
                return []
            if batch:
                return batch
            if not self._open:
                self._break("the flow waits for something that is no step, sleep or signal")
                return []
            await self._news.wait()

    def _hand_out(self) -> list[Entry]:
        """Mail for those who wait for it: of each name the oldest for who asked first; who waited long enough gets nothing.

        Only when the body rests and one of a name at a time, so that who gets it is still there, and it comes in order.
        """
        names = [name for name in self._waiting if name in self._mail] if self._unsorted else []
        entries = [self._receive(name) for name in names]
        self._unsorted = bool(entries)
        late, self._late = self._late, []
        for call in late:
            if call not in self._waiting.get(call.name, ()):
                continue
            if call.name in self._mail:
                self._late.append(call)  # what came in time may be for this one
            else:
                self._stop_waiting(call)
                self._end(call)
        return entries

    def _receive(self, name: str) -> Entry:
        call, mail = self._waiting[name][0], self._mail[name].pop(0)
        if not self._mail[name]:
            del self._mail[name]
        self._stop_waiting(call)
        self._holders[mail.number] = call.number
        return Entry(call.number, "signal", name, self._clock.now(), output=mail.payload, mail=mail.number)

    def _stop_waiting(self, call: _Call) -> None:
        waiting = self._waiting[call.name]
        waiting.remove(call)
        if not waiting:
            del self._waiting[call.name]

    async def _give(self, entry: Entry) -> None:
        self._given += 1
        self._size += len(entry.output or b"")
        if self._size > LARGEST_LOG:
            self._break(f"the results of the flow's steps are more than {LARGEST_LOG} bytes together")
        self._now = max(self._now, entry.at)
        call = self._open.pop(entry.call)
        if call.task is not None and entry.kind == "signal":
            call.task.cancel()
        if call.result.done():
            self._take_back(entry)
        elif entry.error is not None:
            call.result.set_exception(StepFailed(entry.error))
            call.result.exception()  # seen: a body need not look at every result
        else:
            call.result.set_result(entry.output)
        await self._rest()

    def _take_back(self, entry: Entry) -> None:
        """Whose result this is was cancelled meanwhile. A signal is for the next, unless the log says who that was."""
        if entry.mail is not None and self._holders[entry.mail] == entry.call:
            mail = self._mail.setdefault(entry.name, [])
            mail.append(Mail(entry.mail, entry.name, entry.output or b""))
            mail.sort(key=lambda one: one.number)
            self._unsorted = True

    async def _rest(self) -> None:
        try:
            await self._stage.rest()
        except Restless:
            self._break("the flow goes on and on without a step, a sleep or a signal")


def _ending(body: asyncio.Task[bytes]) -> Ending:
    if body.cancelled():
        return Ending("failed", error="the body cancelled itself")
    error = body.exception()
    if error is None:
        output = body.result()
        try:
            check_size("result", output)
        except (SitsError, TypeError) as unfit:
            return Ending("failed", error=describe(unfit))
        return Ending("done", output=output)
    if not isinstance(error, Exception):
        raise error
    return Ending("failed", error=describe(error))


def _words(kind: Kind, name: str) -> str:
    return f"{kind} {name!r}" if name else f"a {kind}"


def _not_deterministic(what: str, known: Entry) -> str:
    return f"the flow is not deterministic: {what}, but {_words(known.kind, known.name)} is remembered there"
