"""A body run against its log: the part of durable execution that the fake and the embedded adapter share.

Every `step`, `sleep` and `signal` that a body asks for is a call with the next number. When a call has ended, an `Entry` is
written to the log first and given to the body then. A run after a crash gives the body the entries of its log again, in
their order, and starts only calls that have none. The method is that of the event histories of Cadence and Temporal and of
"Debugging operating systems with time-traveling virtual machines" (King, Dunlap, Chen 2005): log what comes from outside,
run the rest again.

Bodies may ask for several calls at once. What they do next then depends on which ended first, so results are given one at a
time, each after the body has come to rest, the first time as well as later.
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

MOST_CALLS = 10_000
"""Calls of one flow; also keeps the commit that ends it, which deletes its log, of a bearable size."""

LARGEST_LOG = 64 * 1024 * 1024
"""Bytes of all results of one flow: they are all read when it is taken up."""

_REST = 25
"""Passes of the loop in which a body comes to rest after a result. A nested task costs two, so twelve deep."""
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
        self._news = asyncio.Event()
        self._ended: asyncio.Queue[Entry] = asyncio.Queue()
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._fault: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._over = False
        received = {entry.mail for entry in self._log if entry.mail is not None}
        self._mail: list[Mail] = []
        self.newest_mail = max(received, default=-1)
        self._waiting: list[_Call] = []
        for one in sorted(mail, key=lambda one: one.number):
            self.newest_mail = max(self.newest_mail, one.number)
            if one.number not in received:
                self._mail.append(one)

    # What the runner sees

    async def main(self) -> Ending:
        """Run the body to its end. Cancelling this stops all of it; what `remember` raises comes out here."""
        body: asyncio.Future[bytes] = asyncio.ensure_future(self._body(self, self._input))
        driver = asyncio.create_task(self._drive())
        try:
            watched: set[asyncio.Future[Any]] = {body, driver, self._fault}
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if driver.done():
                driver.result()
            if self._fault.done():
                return Ending("failed", error=self._fault.result())
            if self._given < len(self._log):
                missed = self._log[self._given]
                return Ending("failed", error=_not_deterministic(f"it ended without call {missed.call}", missed))
            async with self._writing:
                return _ending(body)
        finally:
            self._over = True
            self._fault.cancel()
            doomed: set[asyncio.Future[Any]] = {body, driver, *self._tasks}
            for task in doomed:
                task.cancel()
            ended, _ = await asyncio.wait(doomed, timeout=_DYING)
            for task in ended:
                _ = task.cancelled() or task.exception()  # seen: asyncio need not complain

    @property
    def progress(self) -> int:
        """Rises with everything that is asked for and given."""
        return self._calls + self._given

    def post(self, mail: Mail) -> None:
        """Give it a signal; one that it has is dropped."""
        if mail.number <= self.newest_mail:
            return
        self.newest_mail = mail.number
        self._mail.append(mail)
        self._sort_mail()

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
            self._waiting.append(call)
            self._sort_mail()
        if timeout is not None and call in self._waiting:
            call.until = self._now + timeout
            self._begin(call, self._give_up)
        return await call.result

    def now(self) -> float:
        return self._now

    # Asking

    def _ask(self, kind: Kind, name: str) -> _Call:
        if self._over:
            raise asyncio.CancelledError
        number = self._calls
        self._calls += 1
        call = _Call(number, kind, name, asyncio.get_running_loop().create_future())
        self._open[number] = call
        known = self._known.get(number)
        if known is not None and (known.kind, known.name) != (kind, name):
            self._break(_not_deterministic(f"call {number} asks for {_words(kind, name)}", known))
        elif number >= MOST_CALLS:
            self._break(f"the flow asked for more than {MOST_CALLS} steps, sleeps and signals")
        self._news.set()
        return call

    def _break(self, message: str) -> None:
        if not self._fault.done():
            self._fault.set_result(message)

    def _begin(self, call: _Call, work: Callable[[_Call], Coroutine[Any, Any, None]]) -> None:
        if call.number in self._known or self._fault.done():
            return
        call.task = asyncio.create_task(work(call))
        self._tasks.add(call.task)
        call.task.add_done_callback(self._has_worked)

    def _has_worked(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(describe(error))

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
                self._ended.put_nowait(Entry(call.number, "try", call.name, now, error=describe(error), attempt=attempt))
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
        if call in self._waiting:
            self._waiting.remove(call)
            self._end(call)

    def _sort_mail(self) -> None:
        """Hand mail to those who wait for it: the oldest to who asked first."""
        for call in list(self._waiting):
            mail = next((one for one in self._mail if one.name == call.name), None)
            if mail is not None:
                self._mail.remove(mail)
                self._waiting.remove(call)
                self._end(call, output=mail.payload, mail=mail.number)

    def _end(self, call: _Call, *, output: bytes | None = None, error: str | None = None, mail: int | None = None) -> None:
        entry = Entry(call.number, call.kind, call.name, self._clock.now(), output=output, error=error, mail=mail)
        self._ended.put_nowait(entry)
        self._news.set()

    # Giving results: the one place that does, so that there is one order

    async def _drive(self) -> None:
        for entry in self._log:
            await self._asked(entry)
            await self._give(entry)
        while True:
            batch = [await self._ended.get()]
            while not self._ended.empty():
                batch.append(self._ended.get_nowait())
            async with self._writing:
                await self._remember(batch)
            for entry in batch:
                if entry.kind != "try":
                    await self._give(entry)

    async def _asked(self, entry: Entry) -> None:
        """Wait until the body has asked for what this entry ends."""
        while entry.call not in self._open:
            self._news.clear()
            await self._news.wait()
            if not self._ended.empty():
                # Something has ended that had not when the body first came here, and it did not wait for it then.
                await rest()
                if entry.call not in self._open:
                    self._break(_not_deterministic(f"it waits without call {entry.call}", entry))

    async def _give(self, entry: Entry) -> None:
        self._given += 1
        self._size += len(entry.output or b"")
        if self._size > LARGEST_LOG:
            self._break(f"the results of the flow's steps are more than {LARGEST_LOG} bytes together")
        self._now = max(self._now, entry.at)
        call = self._open.pop(entry.call)
        if call.task is not None and entry.kind == "signal":
            call.task.cancel()
        if not call.result.done():
            if entry.error is not None:
                call.result.set_exception(StepFailed(entry.error))
                call.result.exception()  # seen: a body need not look at every result
            else:
                call.result.set_result(entry.output)
        # Who asked for one thing at a time cannot see an order.
        if self._open:
            await rest()


async def rest(passes: int = _REST) -> None:
    """Let everything that can go on without time or I/O do so."""
    for _ in range(passes):
        await asyncio.sleep(0)


def _ending(body: asyncio.Future[bytes]) -> Ending:
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
