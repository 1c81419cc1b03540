"""Watch the files and reload: a good change is swapped in whole, a bad one leaves the old snapshot and says why.

`Reloader` decides and holds; `watch` wakes it. Events of the file system only say "look now": whether anything changed is
found by comparing names, sizes and times, so lost events, atomic renames by editors and the link swaps of Kubernetes
ConfigMaps are all one case.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pathlib
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

import msgspec

from sits.resources.kinds import Resource
from sits.resources.problem import ConfigError, Problem
from sits.resources.reading import Declared, Reading, fingerprint, read
from sits.resources.snapshot import Judge, Snapshot, compile_reading

Changed = Callable[[Snapshot | None, Snapshot], None]
LONGEST_DEFECT = 500
"""Characters of what a defect says of itself."""
STEP_MS = 50
"""Between two looks at the events, and at whether to stop: every end waits for one."""
_log = logging.getLogger("sits.resources")


class Status(msgspec.Struct, frozen=True):
    """Where the configuration stands, as an operator wants to see it."""

    version: int
    hash: str
    loaded_at: float
    """Unix seconds at which the snapshot in force was taken."""
    rejected: int
    """Changes that were refused since the start."""
    last_error: tuple[Problem, ...] = ()
    """Why the files as they are now are not in force; empty when they are."""
    last_error_at: float | None = None


class Reloader:
    """Holds the snapshot in force. Not for several threads, except `prepare`, which only reads.

    `registered` gives the resources that were registered through the API; it is asked each time. `base` is what the paths of
    these and of adopted ones are relative to, which come from no file: the folder of the configuration when not given.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        registered: Callable[[], Iterable[Resource | Declared]] = tuple,
        secrets: bool = False,
        judge: Judge | None = None,
        base: pathlib.Path | None = None,
    ) -> None:
        self.path = pathlib.Path(path)
        self.judge = judge
        """Says what is wrong with a snapshot as a whole, beside what the kinds themselves say."""
        self.number: Callable[[str], int] | None = None
        """Gives a snapshot its version, by its hash; without it, they are counted."""
        self._registered = registered
        self._secrets = secrets
        self._base = base.absolute() if base is not None else None
        self._reading = Reading((), ())
        self._seen: str | None = None
        self._snapshot: Snapshot | None = None
        self._status = Status(0, "", 0.0, 0)
        self._subscribers: list[Changed] = []
        self._turn = asyncio.Lock()

    @property
    def current(self) -> Snapshot:
        """The snapshot in force.

        Raises:
            RuntimeError: `start` has not succeeded yet.
        """
        if self._snapshot is None:
            raise RuntimeError("no snapshot is in force yet: call start() first")
        return self._snapshot

    @property
    def status(self) -> Status:
        return self._status

    @property
    def seen(self) -> str:
        """The files as they were when they were last read: alike for all who look at the same ones."""
        return self._seen or ""

    def on_change(self, subscriber: Changed) -> None:
        """Call `subscriber(old, new)` after each swap. It must not raise; an error stops the swap's caller, not the swap, and is
        a defect in the status where the files were looked at."""
        self._subscribers.append(subscriber)

    def start(self, now: float) -> Snapshot:
        """Read the files for the first time.

        Raises:
            ConfigError: they cannot be used.
        """
        reading = self.prepare()
        self._seen = reading.fingerprint
        self._take(reading, now)
        return self.current

    def stale(self) -> bool:
        """Whether a file was touched since the last look."""
        return fingerprint(self.path) != self._seen

    def prepare(self) -> Reading:
        """Read the files; changes nothing. This is the slow part and may run in a thread."""
        reading = read(self.path)
        return reading if self._base is None else msgspec.structs.replace(reading, base=self._base)

    def apply(self, reading: Reading, now: float) -> Status:
        """Swap to what was read, or keep the old and record why. Never raises: a defect of whoever judges what the files hold is
        one more reason to keep the old."""
        before, self._seen = self._seen, reading.fingerprint
        try:
            if self._reading.declared and not reading.declared and not reading.problems:
                raise ConfigError([_empty(self.path)])
            self._take(reading, now)
        except ConfigError as error:
            self._refuse(error.problems, now, same=before == reading.fingerprint)
        except Exception as error:
            self._defect(error, now, same=before == reading.fingerprint)
        return self._status

    def _refuse(self, problems: tuple[Problem, ...], now: float, *, same: bool) -> bool:
        """Record why the files are not in force; whether that is news. The `same` files refused for the same reasons are one
        change, however often they are looked at."""
        old = self._status
        news = not same or old.last_error != problems
        self._status = msgspec.structs.replace(old, rejected=old.rejected + news, last_error=problems, last_error_at=now)
        return news

    def _defect(self, error: Exception, now: float, *, same: bool) -> None:
        """What came of the files is nobody's fault but ours, or a plugin's: whoever watches must outlive it."""
        said = f"a defect: {type(error).__name__}: {error}"[:LONGEST_DEFECT]
        problem = Problem(str(self.path), 0, 0, "", said, "what is in force stays; the log has the details")
        if self._refuse((problem,), now, same=same):
            _log.error("the files cannot be taken, the old configuration stays: %s", said, exc_info=error)

    async def look(self, clock: Callable[[], float], *, if_stale: bool = False) -> Status | None:
        """`prepare` in a thread and `apply`, one such look after the other, so that an older one never undoes a newer one.

        None when `if_stale` is set and no file was touched. Never raises; files that cannot even be read are looked at again
        the next time.
        """
        async with self._turn:
            try:
                if if_stale and not await asyncio.to_thread(self.stale):
                    return None
                reading = await asyncio.to_thread(self.prepare)
            except Exception as error:
                self._defect(error, clock(), same=True)
                return self._status
            return self.apply(reading, clock())

    def reload(self, now: float) -> Status:
        """`prepare` and `apply` in one."""
        return self.apply(self.prepare(), now)

    def adopt(self, declared: Sequence[Resource], origin: str, now: float) -> Snapshot:
        """Serve by these resources instead of the files, until a file changes; `origin` says in messages where they come from.
        Their relative paths are relative to our own base, not to where they were declared.

        Raises:
            ConfigError: they cannot be used here; the old snapshot stays.
        """
        base = self._reading.base
        adopted = tuple(Declared(resource, origin, base=base) for resource in declared)
        reading = Reading(adopted, (), self._seen or "", base)
        self._take(reading, now)
        return self.current

    @property
    def declared(self) -> tuple[Declared, ...]:
        """What is in force by declaration, without what is registered."""
        return self._reading.declared

    def refresh(self, now: float) -> Snapshot:
        """Compile again with what is registered now, without a look at the files; for the API, which wants the error.

        Raises:
            ConfigError: the registered resources do not go with the declared ones; the old snapshot stays.
        """
        snapshot = self._compiled(self._reading, None)
        self._swap(snapshot, now)
        return self.current

    def preview(self, registered: Sequence[Resource | Declared]) -> Snapshot:
        """The snapshot that these registered resources would give; nothing is changed.

        Raises:
            ConfigError: they cannot be used.
        """
        return self._compiled(self._reading, registered)

    def _compiled(self, reading: Reading, registered: Iterable[Resource | Declared] | None) -> Snapshot:
        added = self._registered() if registered is None else registered
        return compile_reading(reading, self._status.version + 1, registered=added, secrets=self._secrets, judge=self.judge)

    def _take(self, reading: Reading, now: float) -> None:
        snapshot = self._compiled(reading, None)
        self._reading = reading
        self._status = msgspec.structs.replace(self._status, last_error=(), last_error_at=None)
        self._swap(snapshot, now)

    def _swap(self, snapshot: Snapshot, now: float) -> None:
        old = self._snapshot
        if old is not None and old.hash == snapshot.hash:
            return
        if self.number is not None:
            snapshot = msgspec.structs.replace(snapshot, version=self.number(snapshot.hash))
        self._snapshot = snapshot
        self._status = msgspec.structs.replace(self._status, version=snapshot.version, hash=snapshot.hash, loaded_at=now)
        for subscriber in self._subscribers:
            subscriber(old, snapshot)


def _empty(path: pathlib.Path) -> Problem:
    return Problem(str(path), 0, 0, "", "no resource is left here", "the last good ones stay in force; restart to serve none")


async def watch(
    reloader: Reloader,
    stop: asyncio.Event,
    *,
    seen: Callable[[Status], None] | None = None,
    clock: Callable[[], float] = time.time,
    poll: float = 2.0,
) -> None:
    """Reload on changes until `stop` is set; `seen` hears the status after each look that found a change.

    Where the file system sends no events (network mounts), the files are looked at every `poll` seconds.
    """
    async for _ in wakes(reloader.path, stop, poll):
        status = await reloader.look(clock, if_stale=True)
        if status is not None and seen is not None:
            seen(status)


async def wakes(path: pathlib.Path, stop: asyncio.Event, poll: float) -> AsyncGenerator[None]:
    """Whenever it is time to look: after events, and every `poll` seconds."""
    # 34 ms to import, which a process that only validates need not pay.
    from watchfiles import awatch

    # It tells of every change that it sees; what became of it is told by whoever looks.
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    while not stop.is_set():
        folder = _folder(path)
        before = _identity(folder)
        yield
        if before is None:
            await _pause(stop, poll)
            continue
        events = awatch(
            folder,
            watch_filter=None,
            debounce=200,
            step=STEP_MS,
            stop_event=stop,
            rust_timeout=int(poll * 1000),
            yield_on_timeout=True,
            recursive=folder == path,
        )
        try:
            async with contextlib.aclosing(events):
                async for _ in events:
                    yield
                    # A folder that was removed and made again is another one: its events need another watch.
                    if _identity(folder) != before:
                        break
        except (OSError, RuntimeError):  # It is gone, or the system watches no more files for us: then we look ourselves.
            await _pause(stop, poll)


def _folder(path: pathlib.Path) -> pathlib.Path:
    return path.parent if path.is_file() else path


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return


def _identity(folder: pathlib.Path) -> tuple[int, int] | None:
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
