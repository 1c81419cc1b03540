"""One local model in one configuration: fetched and loaded by the first request that needs it, once, however many wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from sits.engines.base import Engine
from sits.engines.local import memory
from sits.engines.local.aside import aside
from sits.engines.local.child import Child, start
from sits.engines.local.fetch import fetch, located
from sits.engines.local.hosting import REST, WAKE, HostSpec
from sits.engines.local.lease import Lease, enter, living, read
from sits.engines.local.machine import LEAVE_SECONDS, Machine
from sits.engines.local.plans import Plan, estimate
from sits.inner.errors import Code, SitsError

log = logging.getLogger("sits.local")

BACK_OFF_SECONDS = 10.0
"""How long after a failed load the next one is refused with the same answer."""
FALL_SECONDS = 60.0
"""How long falling asleep or waking may take: then the process is ended, and the model loaded anew."""
END_SECONDS = 2.0
"""How long the end of a process may take whose socket is closed: a killed one gives back its memory first."""
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


class Resident:
    """One local model: fetched, loaded, used, lost and loaded again.

    `close_soon` lets go of what `make_remote` gave, beside whatever else goes on.
    """

    def __init__(
        self,
        wanted: Plan,
        machine: Machine,
        make_remote: MakeRemote,
        close_soon: Callable[[Engine], None],
        *,
        asleep_seconds: float,
    ) -> None:
        self.plan = wanted
        self.holders = 0
        self.in_flight = 0
        self.remote: Engine | None = None
        """Answers requests while the model is hot."""
        self.key = b""
        self.lease = machine.run / f"{wanted.id}.json"
        self._machine = machine
        self._make_remote = make_remote
        self._close_soon = close_soon
        self._asleep_seconds = asleep_seconds
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
            self.remote = self._make_remote(lease.address)

    def _drop_remote(self) -> None:
        remote, self.remote = self.remote, None
        if remote is not None:
            self._close_soon(remote)

    def lose(self, remote: Engine) -> None:
        """`remote` does not answer any more."""
        child = self._child
        if self.remote is not remote or child is None:
            return
        if child.gone or self.left_by_itself():
            child.on_gone = None
            self._on_gone(child)
            return
        # Its socket is closed a moment before anybody can know how it ended.
        child.on_gone = self._tell_end
        asyncio.get_running_loop().call_later(END_SECONDS, self._tell_silent, child)
        self._forget()

    async def unload(self) -> bool:
        """End the model's process unless it has requests in hand; whether it is gone."""
        child = self._child
        return child is None or (self.in_flight == 0 and await child.leave(LEAVE_SECONDS))

    async def rest(self) -> bool:
        """Have the model fall asleep unless it has requests in hand; whether it is asleep, or gone where it cannot be.

        One that is asleep sleeps on: the time after which it leaves begins anew.
        """
        self.look()
        child = self._child
        if child is None:
            return True
        if _asleep(child):
            child.send(REST)
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
        found = [located(wanted, self._machine.models) for wanted in self.plan.wanted if wanted.in_place]
        return [path for paths in found if paths is not None for path in paths]

    def _here(self) -> bool:
        return all(located(wanted, self._machine.models) is not None for wanted in self.plan.wanted)

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
        found = self._found()
        goes_on = found is not None and not found.gone and found.lease.state == "hot"
        child, loads = await self._roused(), 0
        while child is None:
            if loads == LOADS:
                raise SitsError(Code.MODEL_UNAVAILABLE, f"{self.plan.name} ends as soon as it is loaded")
            loads += 1
            files = await self._fetch(self._machine.models)
            async with self._machine.turn():
                self._adopt(self._machine.attach(self.lease) or self._machine.started(await self._load(*files)))
            child = await self._roused()
        if self.remote is None:
            self._heed(child, child.lease)
        seconds = time.monotonic() - begun
        if loads:
            self._load_seconds = seconds
        taken = memory.size(child.lease.needs)
        if goes_on and child is found:
            log.info("%s goes on in its process (pid %d, about %s)", self.plan.name, child.lease.pid, taken)
        else:
            log.info("%s is ready after %.3f s (pid %d, about %s)", self.plan.name, seconds, child.lease.pid, taken)

    def _adopt(self, child: Child) -> None:
        self._child = child
        child.on_gone = self._on_gone
        self.key = b"Bearer " + child.lease.key.encode()

    def _found(self) -> Child | None:
        """The process that there is, of whatever state."""
        if self._child is None and (found := self._machine.attach(self.lease)) is not None:
            self._adopt(found)
        return self._child

    async def _roused(self) -> Child | None:
        """The process that there is, hot; None when there is none, or it has ended instead.

        Raises:
            SitsError: `model_does_not_fit`: it stays asleep.
        """
        child = self._found()
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
        async with self._machine.turn():
            self.look()
            if child.gone or child.lease.state != "asleep":  # another worker was quicker
                return True
            full = child.lease.full
            await self._machine.make_room(self.plan.name, full, f"{memory.size(full)} awake", self.lease)
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
        await self._machine.make_room(wanted.name, needs.total, str(needs))
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
            self._asleep_seconds,
        )
        # A cold disk reads 100 MiB/s or more; twice that time, and a minute for everything else.
        return await start(spec, 60.0 + needs.weights / (50 * memory.MIB))

    def _on_gone(self, child: Child) -> None:
        if self._child is not child:
            return
        self._forget()
        self._tell_end(child)

    def _forget(self) -> None:
        self._child = None
        self._drop_remote()

    def _tell_end(self, child: Child) -> None:
        if self.left_by_itself():
            log.info("%s is unloaded", self.plan.name)
        elif not self._ended:
            log.warning("the process of %s ended: %s", self.plan.name, child.ending)

    def _tell_silent(self, child: Child) -> None:
        if not child.gone:
            child.on_gone = None
            log.warning("%s does not answer any more, though its process (pid %d) still runs", self.plan.name, child.lease.pid)


def _asleep(child: Child) -> bool:
    return child.lease.state == "asleep"
