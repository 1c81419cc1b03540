"""Flows on a store: the adapter that needs no server, one process or many on the same store.

A runner has an identity that lives in the store for `lease` seconds and is renewed every third of them. Flows belong to an
identity. One that could not be renewed in time is never used again: the runner lets go of everything, takes another identity
and claims what nobody has. So a runner that stood still, or was cut off from its store, cannot go on with a flow that
another took up; what its steps had done meanwhile is done again by the new owner, under the same keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec

from sits.inner.errors import Code, SitsError
from sits.ports.flows.base import Action, Body, State, Status
from sits.ports.flows.journal import Box, Held, Journal, Lost, Memory, hash_of
from sits.ports.flows.program import Program, check_size, describe, missing_flow, still_running
from sits.ports.flows.replay import Ending, Entry, Run, Timers
from sits.ports.store.base import Entry as Stored
from sits.ports.store.base import Store

CONSISTENCY = {
    "start": "once for an id, over the processes of the machine; on the disk when it returns",
    "step": "at least once, its result remembered once; the owner's commits are fenced",
    "send": "received once for a key, in order; on the disk when it returns",
    "sleep": "by the wall clock, and goes on while nobody runs",
    "state": "the newest",
    "durability": "the store's: SQLite with synchronous=FULL, so a kill and a loss of power",
    "outage": "calls raise state_unavailable within the timeout; flows wait for the store and go on. "
    "Another process takes up what a dead one left after the lease",
}

MOST_RUNS = 10_000
"""Flows that one runner has in memory; more wait for another runner, or for room."""

_LOG = logging.getLogger("sits.flows")
_LONGEST_NAP = 1.0


class _Clock:
    """The wall clock; waits in slices, so that a clock that is set has effect."""

    def __init__(self, wall: Callable[[], float], tick: float) -> None:
        self._wall = wall
        self._tick = tick
        self._timers = Timers()
        self._changed = asyncio.Event()

    def now(self) -> float:
        return self._wall()

    async def until(self, when: float) -> None:
        if when > self._wall():
            waiter = self._timers.add(when)
            self._changed.set()
            await waiter

    async def ring(self) -> None:
        """Set free who waits, when it is time; runs until it is cancelled."""
        while True:
            self._changed.clear()
            now = self._wall()
            self._timers.fire(now)
            due = self._timers.due()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else min(max(due - now, 0.0), self._tick)):
                    await self._changed.wait()


class _Identity:
    """Who a runner is for one lease after the other."""

    def __init__(self, name: str, version: int, renewed: float) -> None:
        self.name = name
        self.version = version
        self.renewed = renewed


class _Job:
    """A flow that this runner runs."""

    def __init__(self, held: Held, run: Run) -> None:
        self.held = held
        self.run = run
        self.task: asyncio.Task[None] | None = None


class EmbeddedFlows:
    """A runner on a store, which it closes when it is closed.

    `tick` seconds is how late it may notice what another process did; `keep` seconds is how long ended flows are remembered.
    """

    name = "embedded"

    def __init__(
        self,
        store: Store,
        *,
        wall: Callable[[], float],
        lease: float = 10.0,
        tick: float = 0.1,
        keep: float = 7 * 86_400.0,
        timeout: float = 5.0,
        new_name: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._store = store
        self._wall = wall
        self._lease = lease
        self._tick = tick
        self._timeout = timeout
        self._new_name = new_name
        self._journal = Journal(store, keep=keep, bell=max(60.0, 10 * lease))
        self._program = Program()
        self._clock = _Clock(wall, tick)
        self._identity: _Identity | None = None
        self._jobs: dict[str, _Job] = {}
        self._starting: set[str] = set()
        self._heard: dict[str, int] = {}
        self._looked = float("-inf")
        self._ended = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    def flow(self, name: str, body: Body) -> None:
        self._program.flow(name, body)

    def action(self, name: str, action: Action) -> None:
        self._program.action(name, action)

    async def run(self) -> None:
        self._program.begin()
        if self._tasks:
            return
        async with self._bounded():
            if self._identity is None:
                await self._become_someone()
        # Being alive has a task of its own: taking up what a dead runner left may last longer than a lease.
        works = (self._clock.ring(), self._forever(self._stay_alive), self._forever(self._watch))
        self._tasks = [asyncio.create_task(work) for work in works]

    async def start(self, flow: str, id: str, input: bytes = b"") -> None:
        self._program.check_start(flow, id, input)
        box = Box(id, flow, self._wall())
        me = self._identity if len(self._jobs) < MOST_RUNS else None
        hash = hash_of(id)
        self._starting.add(hash)
        try:
            async with self._bounded():
                held = await self._journal.start(box, input, me.name if me else "")
            # While it was committed we may have become somebody else; then it is found as an orphan.
            if held is not None and me is not None and me is self._identity:
                self._begin(held, Memory(box, input, (), ()))
        finally:
            self._starting.discard(hash)

    async def send(self, id: str, signal: str, payload: bytes = b"", *, key: str = "") -> None:
        check_size("payload", payload)
        async with self._bounded():
            await self._journal.send(id, signal, payload, key)
        job = self._jobs.get(hash_of(id))
        if job is not None:
            # It is sent; what fails now is made good when the bell is heard.
            with contextlib.suppress(SitsError):
                async with self._bounded():
                    await self._read_mail(job)

    async def state(self, id: str) -> State | None:
        async with self._bounded():
            return await self._journal.state(id)

    async def states(self, *, status: Status | None = None, limit: int = 100) -> Sequence[State]:
        async with self._bounded():
            found = [one async for one in self._journal.states() if status is None or one.status == status]
        found.sort(key=lambda one: (one.status != "running", -one.started))
        return found[:limit]

    async def result(self, id: str, *, timeout: float) -> State:  # noqa: ASYNC109 - see the contract
        try:
            async with asyncio.timeout(timeout):
                while True:
                    state = await self._state_in_time(id)
                    if state is not None and state.status != "running":
                        return state
                    await self._news(id)
        except TimeoutError as late:
            raise still_running(id, timeout) from late

    async def cancel(self, id: str) -> None:
        async with self._bounded():
            await self._journal.cancel(id)
        job = self._jobs.get(hash_of(id))
        if job is not None:
            await self._stop([job])

    async def aclose(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        identity, self._identity = self._identity, None
        jobs = list(self._jobs.values())
        await self._stop(jobs)
        if identity is not None:
            # What cannot be given back now is taken up by others when the lease is over.
            with contextlib.suppress(SitsError):
                async with self._bounded():
                    for job in jobs:
                        await self._journal.release(job.held)
                    await self._journal.retire(identity.name)
        await self._store.aclose()

    # Waiting

    @contextlib.asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout):
                yield
        except TimeoutError as error:
            raise SitsError(Code.STATE_UNAVAILABLE, f"the store of the flows took more than {self._timeout:g} s") from error

    async def _state_in_time(self, id: str) -> State | None:
        """How it stands; None when the store does not say."""
        try:
            state = await self._journal.state(id)
        except SitsError as error:
            if error.code is Code.STATE_UNAVAILABLE:
                return None
            raise
        if state is None:
            raise missing_flow(id)
        return state

    async def _news(self, id: str) -> None:
        """Wait until a flow of ours has ended; another's is asked for every tick."""
        mine = hash_of(id) in self._jobs
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_NAP if mine else self._tick), self._ended:
                await self._ended.wait_for(lambda: mine and hash_of(id) not in self._jobs)

    # Keeping watch: being alive, hearing bells, taking up what nobody runs

    async def _forever(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do it every tick, whatever becomes of it."""
        away = False
        while True:
            try:
                await work()
                away = False
            except SitsError as error:
                if not away:
                    _LOG.warning("flows wait for their store: %s", error.message)
                away = True
            except Exception:
                _LOG.exception("a defect in the runner of flows; it goes on")
            await asyncio.sleep(self._tick)

    async def _watch(self) -> None:
        if self._identity is None:
            return
        await self._hear_bells()
        if asyncio.get_running_loop().time() - self._looked > self._lease / 3:
            await self._take_up_orphans()

    async def _become_someone(self) -> None:
        name, now = self._new_name(), asyncio.get_running_loop().time()
        self._identity = _Identity(name, await self._journal.enlist(name, self._lease), now)

    async def _stay_alive(self) -> None:
        me, now = self._identity, asyncio.get_running_loop().time()
        if me is None:
            await self._become_someone()
            self._looked = float("-inf")
            return
        if now - me.renewed < self._lease / 3:
            return
        try:
            async with asyncio.timeout(max(0.0, me.renewed + self._lease - now)):
                version = await self._journal.renew(me.name, self._lease, me.version)
        except TimeoutError:
            version = None
        except SitsError:
            if now - me.renewed < self._lease:
                raise
            version = None
        if version is not None:
            me.version, me.renewed = version, now
            return
        _LOG.warning("the lease of runner %s has run out; its flows are stopped and claimed again", me.name)
        self._identity = None
        await self._stop(list(self._jobs.values()))

    async def _hear_bells(self) -> None:
        bells = await self._journal.bells()
        heard: list[Stored] = []
        others: dict[str, int] = {}
        for bell in bells:
            hash = bell.key.removeprefix("flows/bell/")
            if self._heard.get(hash) != bell.version and await self._answer(hash):
                heard.append(bell)
            else:
                others[hash] = bell.version
        self._heard = others
        await self._journal.quieten(heard)

    async def _answer(self, hash: str) -> bool:
        """Do what a bell is rung for; False when it is for somebody else."""
        job = self._jobs.get(hash)
        if job is None:
            held = await self._journal.unowned(hash)
            return await self._take_up(held) if held else not await self._journal.is_live(hash)
        if not await self._journal.is_live(hash):
            await self._stop([job])
            return True
        await self._read_mail(job)
        return True

    async def _read_mail(self, job: _Job) -> None:
        for mail in await self._journal.mail(job.held.hash, job.run.newest_mail):
            job.run.post(mail)

    async def _take_up_orphans(self) -> None:
        me = self._identity
        if me is None:
            return
        self._looked = asyncio.get_running_loop().time()
        # One that is ours and that we do not run: the commit that made it ours was not answered.
        for held in await self._journal.orphans(me.name):
            if held.hash not in self._jobs and held.hash not in self._starting:
                await self._take_up(held)
        await self._journal.sweep()

    async def _take_up(self, held: Held) -> bool:
        me = self._identity
        if me is None or held.flow not in self._program.flows or len(self._jobs) >= MOST_RUNS:
            return False
        if not await self._journal.claim(held, me.name):
            return False
        try:
            memory = await self._journal.recall(held)
        except Lost:
            return True
        except msgspec.DecodeError as error:
            _LOG.error("flow %s cannot be read and is left: %s", held.hash, error)
            return True
        if me is self._identity:
            self._begin(held, memory)
        return True

    # Running

    def _begin(self, held: Held, memory: Memory) -> None:
        identity = self._identity
        assert identity is not None
        owner = identity.name

        async def remember(entries: Sequence[Entry]) -> None:
            await self._journal.remember(held, owner, entries)

        run = Run(
            memory.box.id,
            self._program.flows[held.flow],
            memory.input,
            started=memory.box.started,
            log=memory.log,
            mail=memory.mail,
            actions=self._program.actions,
            clock=self._clock,
            remember=remember,
        )
        job = self._jobs[held.hash] = _Job(held, run)
        job.task = asyncio.create_task(self._see_through(job))

    async def _see_through(self, job: _Job) -> None:
        try:
            ending = await _ending_of(job.run.main())
            await self._journal.end(job.held, ending)
        except Lost:
            _LOG.info("flow %s was ended or taken up by another", job.run.id)
        except SitsError as error:
            _LOG.warning("flow %s could not be ended and is run again: %s", job.run.id, error.message)
        finally:
            if self._jobs.get(job.held.hash) is job:
                del self._jobs[job.held.hash]
            async with self._ended:
                self._ended.notify_all()

    async def _stop(self, jobs: Sequence[_Job]) -> None:
        tasks = [job.task for job in jobs if job.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ending_of(main: Awaitable[Ending]) -> Ending:
    """How a flow ended; a defect of ours, or a store that refuses an entry, ends it too rather than leaving it to hang."""
    try:
        return await main
    except Lost:
        raise
    except Exception as error:
        _LOG.exception("a flow could not be run on")
        return Ending("failed", error=describe(error))
