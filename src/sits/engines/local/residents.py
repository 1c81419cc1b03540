"""The models of this process that live on this machine, and the memory that they may take together.

A `Resident` is one model in one configuration. It is fetched and loaded by the first request that needs it, once, however many
wait. Which process serves it is decided under a lock that all workers on the data folder share, so that they end up with one
child between them, and so that two loads cannot both take the last free memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import IO, Literal

import msgspec

from sits.engines.base import Engine
from sits.engines.local import memory
from sits.engines.local.aside import aside
from sits.engines.local.child import Child, attach, start
from sits.engines.local.fetch import fetch, located
from sits.engines.local.hosting import ASLEEP_SECONDS, REST, WAKE, HostSpec
from sits.engines.local.lease import Lease, enter, idle_since, living, read
from sits.engines.local.plans import Plan, estimate
from sits.inner.errors import Code, SitsError

log = logging.getLogger("sits.local")

BACK_OFF_SECONDS = 10.0
"""How long after a failed load the next one is refused with the same answer."""
LEAVE_SECONDS = 2.0
"""How long a model that was asked to make room, or whose configuration is gone, may take to end by itself."""
FALL_SECONDS = 60.0
"""How long falling asleep or waking may take: then the process is ended, and the model loaded anew."""
LOADS = 3
"""How often a model is loaded that is gone again before it could be asked."""
_POLL_SECONDS = 0.05
_LOOK_SECONDS = 0.001
"""Between two looks at the lease of a model that is being woken."""

State = Literal["absent", "fetching", "cold", "loading", "hot", "asleep", "failed"]
MakeRemote = Callable[[str], Engine]


class Status(msgspec.Struct, frozen=True):
    """How a local model is, for people and machines."""

    state: State
    doing: str = ""
    """What is being fetched."""
    done_bytes: int = 0
    total_bytes: int | None = None
    needs_bytes: int | None = None
    """The estimate of the memory it takes; None before the first load."""
    resident_bytes: int = 0
    load_seconds: float | None = None
    pid: int | None = None
    error: str | None = None


class LocalModels:
    """All local models of this process. Used from one event loop.

    `make_remote` gives an `Engine` for the server at an address. `memory_mib` bounds what the models of all processes on the data
    folder take together; four fifths of what is free without it.
    """

    def __init__(
        self, data: Path, make_remote: MakeRemote, *, memory_mib: int | None = None, asleep_seconds: float = ASLEEP_SECONDS
    ) -> None:
        self.make_remote = make_remote
        self.models = data / "models"
        self.run = data / "run"
        self.asleep_seconds = asleep_seconds
        self.limit = None if memory_mib is None else memory_mib * memory.MIB
        self._members: dict[str, Resident] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._started: set[Child] = set()
        """The processes that this one started. Whoever loses sight of one, they are ended and reaped by us."""
        for folder in (data, self.models, self.run):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def take(self, wanted: Plan) -> Resident:
        """The resident of a plan, made when there is none. Every `take` needs a `give_back`."""
        resident = self._members.get(wanted.id)
        if resident is None:
            resident = self._members[wanted.id] = Resident(wanted, self)
        resident.holders += 1
        return resident

    async def give_back(self, resident: Resident) -> None:
        """Undo one `take`. The last one ends the model: now, or when its last request is done."""
        resident.holders -= 1
        if resident.holders == 0 and resident.in_flight == 0:
            # Who waits may be cancelled; the end of the process is not left half-way for that.
            await asyncio.shield(self._aside(self.retire(resident)))

    def finished(self, resident: Resident) -> None:
        """The last request of a resident that nobody holds any more is done."""
        self._aside(self.retire(resident))

    def close_soon(self, remote: Engine) -> None:
        self._aside(remote.aclose())

    def _aside(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task

    def started(self, child: Child) -> Child:
        """Note a process that is to end with this one."""
        self._started = {child, *(one for one in self._started if not one.gone)}
        return child

    def attach(self, lease: Path) -> Child | None:
        """The process that holds a lease, when one does and is ready: as we started it, if we did."""
        found = attach(lease)
        ours = next(
            (one for one in self._started if found is not None and not one.gone and one.lease.pid == found.lease.pid), None
        )
        if ours is None or found is None:
            return found
        ours.lease = found.lease
        found.let_go()
        return ours

    async def retire(self, resident: Resident) -> None:
        if resident.holders == 0 and self._members.get(resident.plan.id) is resident:
            del self._members[resident.plan.id]
            await resident.end()

    async def aclose(self) -> None:
        """End every model that this process started, at once; none of their processes is left to be reaped by another."""
        members, self._members = list(self._members.values()), {}
        try:
            await asyncio.gather(*(resident.end() for resident in members))
            while self._leaving:
                await asyncio.gather(*self._leaving)
        finally:
            await asyncio.gather(*(child.stop() for child in self._started))

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The right to load or wake, of which there is one over all processes."""
        with (self.run / "loading.lock").open("ab") as file:
            while not _locked(file):  # noqa: ASYNC110 - other processes set no event of ours
                await asyncio.sleep(_POLL_SECONDS)
            yield

    async def make_room(self, name: str, total: int, needs: str, own: Path | None = None) -> None:
        """Return when `total` bytes fit, in words `needs`. Idle models are unloaded for it: those that are asleep before others,
        the longest idle ones first. `own` is the lease of a model that is to be woken: what it holds is part of what it needs.
        Call it within a `turn`.

        Raises:
            SitsError: `model_does_not_fit`, with the figures; nothing is unloaded in vain.
        """
        busy: set[Path] = set()
        while True:
            others = {path: lease for path in self.run.glob("*.json") if (lease := living(path)) is not None}
            waking = others.pop(own, None) if own is not None else None
            used = sum(lease.needs for lease in others.values())
            free = await aside(memory.available, "memory") + (waking.needs if waking is not None else 0)
            limit = self.limit if self.limit is not None else (free + used) * 4 // 5
            room = min(free, limit - used)
            if total <= room:
                return
            idle = sorted(
                (path for path in others if path not in busy), key=lambda path: (others[path].state != "asleep", idle_since(path))
            )
            if not idle or total > room + sum(others[path].needs for path in idle):
                raise SitsError(Code.MODEL_DOES_NOT_FIT, f"{name} needs {needs}, {_free(room, used, self.limit)}")
            victim = attach(idle[0])
            if victim is not None:
                log.info("%s is unloaded to make room for %s", victim.lease.name, name)
                if not await victim.leave(LEAVE_SECONDS):
                    busy.add(idle[0])
                    victim.let_go()


def _asleep(child: Child) -> bool:
    return child.lease.state == "asleep"


def _locked(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _free(room: int, used: int, limit: int | None) -> str:
    text = f"{memory.size(max(0, room))} free"
    if limit is not None:
        text += f" of localMemoryMib {limit // memory.MIB}"
    return text + (f" ({memory.size(used)} taken by other models)" if used else "")


class Resident:
    """One local model: fetched, loaded, used, lost and loaded again."""

    def __init__(self, wanted: Plan, models: LocalModels) -> None:
        self.plan = wanted
        self.holders = 0
        self.in_flight = 0
        self.remote: Engine | None = None
        """Answers requests while the model is hot."""
        self.key = b""
        self.lease = models.run / f"{wanted.id}.json"
        self._models = models
        self._child: Child | None = None
        self._bringing: asyncio.Task[None] | None = None
        self._error: SitsError | None = None
        self._failed_at = 0.0
        self._fetching: tuple[str, int, int | None] | None = None
        self._needs: memory.Needs | None = None
        self._load_seconds: float | None = None
        self._held = 0
        self._gate = -1
        self._ended = False

    @property
    def status(self) -> Status:
        needs = None if self._needs is None else self._needs.total
        error = None if self._error is None else self._error.message
        self.look()
        if self._child is not None:
            lease = self._child.lease
            away: State = "loading" if lease.state == "hot" else "asleep"
            return Status(
                away if self.remote is None else "hot",
                needs_bytes=lease.needs,
                resident_bytes=self._child.resident(),
                load_seconds=self._load_seconds,
                pid=lease.pid,
                error=error,
            )
        if self._bringing is not None:
            if self._fetching is not None:
                doing, done, total = self._fetching
                return Status("fetching", doing, done, total, needs)
            return Status("loading", needs_bytes=needs)
        if self._error is not None:
            return Status("failed", needs_bytes=needs, error=error)
        return Status("cold" if self._here() else "absent", needs_bytes=needs)

    def hot(self) -> asyncio.Task[None]:
        """The one task that brings the model up; when it is done without error, `remote` answers.

        Raises:
            SitsError: the last try failed a moment ago, or the model is closed.
        """
        if self._ended:
            raise SitsError(Code.MODEL_UNAVAILABLE, f"{self.plan.name} is closed")
        if self._bringing is None:
            left = self._failed_at + BACK_OFF_SECONDS - time.monotonic()
            if self._error is not None and left > 0:
                raise SitsError(self._error.code, self._error.message, retry_after=left)
            self._bringing = asyncio.get_running_loop().create_task(self._bring())
            self._bringing.add_done_callback(self._brought)
        return self._bringing

    def left_by_itself(self) -> bool:
        """Whether the last child ended for want of requests: one that met its end was not begun."""
        found = read(self.lease)
        return found is not None and found.left

    def hold(self) -> bool:
        """Take a request on its way; False when the model is falling asleep or leaving, and must be made `hot` again.

        While there are any on their way, the model's process does neither. Every one that was taken needs a `let`.

        Raises:
            SitsError: its gate cannot be opened, as by a process that has too many files open.
        """
        if self._held == 0:
            try:
                gate = enter(self.lease)
            except OSError as error:
                raise SitsError(Code.MODEL_UNAVAILABLE, f"{self.plan.name} cannot be asked: {error}") from error
            if gate is None:
                return False
            self._gate = gate
        self._held += 1
        return True

    def let(self) -> None:
        self._held -= 1
        if self._held == 0:
            os.close(self._gate)

    def look(self) -> None:
        """Take in what the model says of itself: it falls asleep by itself too, and other workers have it do so and wake it."""
        child = self._child
        if child is None:
            return
        lease = living(self.lease)
        if lease is not None and lease.pid == child.lease.pid and lease != child.lease:
            self._heed(child, lease)

    def _heed(self, child: Child, lease: Lease) -> None:
        child.lease = lease
        self._drop_remote()
        if lease.state == "asleep":
            log.info("%s is asleep (pid %d, %s)", self.plan.name, lease.pid, memory.size(lease.needs))
        elif lease.state == "hot":
            self.remote = self._models.make_remote(lease.address)

    def _drop_remote(self) -> None:
        remote, self.remote = self.remote, None
        if remote is not None:
            self._models.close_soon(remote)

    def lose(self, remote: Engine) -> None:
        """`remote` does not answer any more."""
        if self.remote is remote and self._child is not None:
            self._child.on_gone = None
            self._on_gone(self._child)

    async def unload(self) -> bool:
        """End the model's process unless it has requests in hand; whether it is gone."""
        child = self._child
        return child is None or (self.in_flight == 0 and await child.leave(LEAVE_SECONDS))

    async def rest(self) -> bool:
        """Have the model fall asleep unless it has requests in hand; whether it is asleep, or gone where it cannot be."""
        self.look()
        child = self._child
        if child is None or _asleep(child):
            return True
        if self.in_flight:
            return False
        child.send(REST)
        if not await self._until(child, lambda lease: lease.state != "hot", LEAVE_SECONDS, _POLL_SECONDS):
            return False
        if not await self._until(child, lambda lease: lease.state != "falling", FALL_SECONDS, _POLL_SECONDS):
            await child.stop()
        return child.gone or _asleep(child)

    async def _until(self, child: Child, holds: Callable[[Lease], bool], seconds: float, pace: float = _LOOK_SECONDS) -> bool:
        """Look until the model says so of itself, or is gone; False when that took too long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not child.gone and not holds(child.lease):
                    await asyncio.sleep(pace)
                    self.look()
                return True
        return False

    async def end(self) -> None:
        """Give the model up for good."""
        self._ended = True
        if self._bringing is not None:
            self._bringing.cancel()
            await asyncio.gather(self._bringing, return_exceptions=True)
        child = self._child
        if child is None:
            return
        if not child.ours:
            child.let_go()
        # Another worker may be using it: it may finish what it has in hand.
        elif not await child.leave(LEAVE_SECONDS):
            await child.stop()

    def in_place(self) -> list[Path]:
        """The files that are used where they lie."""
        found = [located(wanted, self._models.models) for wanted in self.plan.wanted if wanted.in_place]
        return [path for paths in found if paths is not None for path in paths]

    def _here(self) -> bool:
        return all(located(wanted, self._models.models) is not None for wanted in self.plan.wanted)

    def _brought(self, task: asyncio.Task[None]) -> None:
        self._bringing = None
        self._fetching = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._error = (
                error if isinstance(error, SitsError) else SitsError(Code.MODEL_UNAVAILABLE, f"{self.plan.name}: {error!r}")
            )
            self._failed_at = time.monotonic()
            log.error("%s", self._error.message, exc_info=None if isinstance(error, SitsError) else error)

    async def _bring(self) -> None:
        begun = time.monotonic()
        self._error = None
        self._drop_remote()
        child, loads = await self._roused(), 0
        while child is None:
            if loads == LOADS:
                raise SitsError(Code.MODEL_UNAVAILABLE, f"{self.plan.name} ends as soon as it is loaded")
            loads += 1
            files = await self._fetch(self._models.models)
            async with self._models.turn():
                self._adopt(self._models.attach(self.lease) or self._models.started(await self._load(*files)))
            child = await self._roused()
        if self.remote is None:
            self._heed(child, child.lease)
        seconds = time.monotonic() - begun
        if loads:
            self._load_seconds = seconds
        taken = memory.size(child.lease.needs)
        log.info("%s is ready after %.3f s (pid %d, about %s)", self.plan.name, seconds, child.lease.pid, taken)

    def _adopt(self, child: Child) -> None:
        self._child = child
        child.on_gone = self._on_gone
        self.key = b"Bearer " + child.lease.key.encode()

    async def _roused(self) -> Child | None:
        """The process that there is, hot; None when there is none, or it has ended instead.

        Raises:
            SitsError: `model_does_not_fit`: it stays asleep.
        """
        if self._child is None and (found := self._models.attach(self.lease)) is not None:
            self._adopt(found)
        child = self._child
        if child is None:
            return None
        self.look()
        while not child.gone:
            if child.lease.state == "hot" and self._open():
                return child
            asleep = child.lease.state == "asleep"
            if not await (self._wake(child) if asleep else self._until(child, self._decided, FALL_SECONDS)):
                log.error("the process of %s neither wakes nor ends: it is killed", self.plan.name)
                await child.stop()
                break
        return None

    def _decided(self, lease: Lease) -> bool:
        """Whether it is asleep, or did not fall asleep after all."""
        return lease.state == "asleep" or (lease.state == "hot" and self._open())

    def _open(self) -> bool:
        """Whether requests may be sent."""
        if not self.hold():
            return False
        self.let()
        return True

    async def _wake(self, child: Child) -> bool:
        """False when it does not wake."""
        async with self._models.turn():
            self.look()
            if child.gone or child.lease.state != "asleep":  # another worker was quicker
                return True
            full = child.lease.full
            await self._models.make_room(self.plan.name, full, f"{memory.size(full)} awake", self.lease)
            child.send(WAKE)
            return await self._until(child, lambda lease: lease.state != "asleep", FALL_SECONDS)

    async def _fetch(self, models: Path) -> list[tuple[Path, ...]]:
        found = [located(wanted, models) for wanted in self.plan.wanted]
        pinned = any(wanted.in_place and wanted.sha256 is not None for wanted in self.plan.wanted)
        ready = [paths for paths in found if paths is not None]
        if len(ready) == len(found) and not pinned:
            return ready
        log.info("%s is being fetched", self.plan.name)
        self._fetching = ("", 0, None)
        files = await aside(lambda: fetch(self.plan.wanted, models, self._note), f"fetch {self.plan.name}")
        self._fetching = None
        return files

    def _note(self, done: int, total: int | None, what: str) -> None:
        """Progress, told from the fetching thread."""
        if self._ended:
            raise SitsError(Code.MODEL_UNAVAILABLE, f"{self.plan.name} was given up while it was being fetched")
        if done >= 0:
            self._fetching = (what, done, total)

    async def _load(self, weights: tuple[Path, ...], library: tuple[Path, ...] = ()) -> Child:
        wanted = self.plan
        self._needs = needs = await aside(lambda: estimate(wanted, weights[0]), "estimate")
        await self._models.make_room(wanted.name, needs.total, str(needs))
        spec = HostSpec(
            wanted.engine,
            wanted.name,
            str(weights[0].resolve()),
            str(self.lease.resolve()),
            secrets.token_urlsafe(32),
            needs.total,
            tuple(str(path.resolve()) for path in library),
            (wanted.library.sha256 or "") if wanted.library is not None else "",
            wanted.context,
            wanted.slots,
            wanted.prefixes_mib,
            wanted.threads,
            wanted.embedding,
            wanted.pooling,
            wanted.unload_after,
            self._models.asleep_seconds,
        )
        # A cold disk reads 100 MiB/s or more; twice that time, and a minute for everything else.
        return await start(spec, 60.0 + needs.weights / (50 * memory.MIB))

    def _on_gone(self, child: Child) -> None:
        if self._child is not child:
            return
        remote, self.remote, self._child = self.remote, None, None
        if self.left_by_itself():
            log.info("%s is unloaded", self.plan.name)
        elif not self._ended:
            log.warning("the process of %s ended: %s", self.plan.name, child.ending)
        if remote is not None:
            self._models.close_soon(remote)
