"""Answers that are made later: a request is kept, made when there is room, and its answer waits for whoever asked.

A job is in the store before its id is given away, so nothing that was promised dies with a process. Its parts:

    later/open/ID    what is still to be done and who does it; gone when nothing is
    later/ask/ID     the request
    later/done/ID    what came of it
    later/owner/O    that a process lives: it expires unless it is written again

A process that ends in any way lets its owner row expire, and any other (its successor too) takes over what it left: by a write
that expects the row's version, so one of them gets it, and so that what the first one may still bring is refused. A model may
be asked twice for one job then; its answer is kept once. Callbacks are made at least once, always with the same id.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal, TypeVar

import msgspec

from sits.inner.ask import Operation
from sits.inner.errors import Code, SitsError
from sits.ports.store import ABSENT, Change, Delete, Entry, Put, Store, every

_log = logging.getLogger("sits.later")

MOST = 1024
"""Jobs that a process has taken on and not done."""
MOST_OF_ONE = 256
"""Of one key: it leaves room for the others."""
MOST_BYTES = 256 * 1024 * 1024
"""Of requests in the store that a process has taken on."""
LARGEST_REQUEST = 4 * 1024 * 1024
LARGEST_ANSWER = 7 * 1024 * 1024
LANE = 4
"""Jobs of one route under way at once: when there is room again, it is not gone with the first look."""
TRIES = 3
"""How often the models are asked, where another time may help."""
CALLS = 6
"""How often a callback is made: 1, 2, 4 ... seconds apart."""
LONGEST_PAUSE = 60.0
LEASE_SECONDS = 15.0
AGAIN = frozenset(("overloaded", "rate_limited", "draining", "state_unavailable"))
"""Nothing was asked yet: this counts as no try, and is gone on with as long as the job is kept."""
_ID = re.compile(r"[A-Za-z0-9_-]{16,64}")


class Wanted(msgspec.Struct, frozen=True, array_like=True):
    """A request that is to be made later. `key` is the name of who asks; credentials are not kept."""

    operation: Operation
    path: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    key: str | None
    route: str
    keep: float
    """Seconds for which the answer is kept, and in which it must be made."""
    callback: str | None = None

    @property
    def tenant(self) -> str:
        return _tenant(self.key)


class Made(msgspec.Struct, frozen=True, array_like=True):
    """What came of it, as the client would have been answered. `code` is the error's, empty for a good answer."""

    status: int
    content_type: bytes
    body: bytes
    headers: list[tuple[bytes, bytes]] = []
    code: str = ""
    retry_after: float | None = None

    @property
    def good(self) -> bool:
        return not self.code and 200 <= self.status < 300


class Pending(msgspec.Struct, frozen=True):
    """It is not made yet."""

    id: str


class _Open(msgspec.Struct, frozen=True, array_like=True):
    owner: str
    tenant: str
    route: str
    size: int
    keep: float
    phase: Literal["asking", "calling"] = "asking"
    callback: str | None = None


class _Done(msgspec.Struct, frozen=True, array_like=True):
    tenant: str
    made: Made


class Tally(msgspec.Struct):
    """What happened so far in this process."""

    accepted: int = 0
    refused: int = 0
    """There was no room for it even later."""
    adopted: int = 0
    """Taken over from a process that is gone."""
    made: int = 0
    failed: int = 0
    lost: int = 0
    """Another process took it over, or its time was over."""
    called: int = 0
    uncalled: int = 0
    """The callback was given up."""


Ask = Callable[[Wanted], Awaitable[Made]]
"""Makes the answer. Raises nothing but `CancelledError`."""
Call = Callable[[str, str, Made], Awaitable[bool]]
"""Sends an answer: URL, id, answer; whether it was taken. Raises nothing but `CancelledError`."""
Room = Callable[[str], Awaitable[None]]
"""Waits until a route has room for what can wait."""

_T = TypeVar("_T")
_encode = msgspec.msgpack.Encoder().encode
_open = msgspec.msgpack.Decoder(_Open).decode
_wanted = msgspec.msgpack.Decoder(Wanted).decode
_done = msgspec.msgpack.Decoder(_Done).decode


async def no_wait(route: str) -> None:
    """For a gateway without classes of service: there is always room."""


class _Job:
    """A job that this process has taken on."""

    __slots__ = ("open", "version")

    def __init__(self, opened: _Open, version: int) -> None:
        self.open = opened
        self.version = version


class Later:
    """The jobs of one process. `owner` is no other process's, ever; `token` makes ids that nobody guesses."""

    def __init__(
        self,
        store: Store,
        ask: Ask,
        call: Call,
        *,
        owner: str,
        token: Callable[[], str],
        room: Room = no_wait,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        lease: float = LEASE_SECONDS,
    ) -> None:
        self._store = store
        self._ask = ask
        self._call = call
        self._owner = owner
        self._token = token
        self._room = room
        self._sleep = sleep
        self._lease = lease
        self._mine: dict[str, _Job] = {}
        self._of: Counter[str] = Counter()
        self._bytes = 0
        self._lanes: dict[str, deque[str]] = {}
        self._running: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watcher: asyncio.Task[None] | None = None
        self.tally = Tally()
        self.closed = False

    def __len__(self) -> int:
        return len(self._mine)

    async def start(self) -> None:
        """Begin to look for what others have left.

        A store that is away is no reason not to start: it is looked at again.
        """
        await self._look()
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def aclose(self) -> None:
        """Take on nothing more and leave what is not done to others, now. Safe to repeat."""
        self.closed = True
        undone = bool(self._mine)
        tasks = [*self._tasks, *([self._watcher] if self._watcher is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if undone:
            try:
                await self._store.commit([Delete(_owner(self._owner))])
            except SitsError as error:
                _log.info("what is not done here is left to others in %g s: %s", self._lease, error.message)

    async def accept(self, wanted: Wanted) -> str:
        """Take a request on; returns the id under which its answer can be asked for. It is in the store then.

        Raises:
            SitsError: `overloaded`, too much is waiting, or it is too large to wait; `draining`; `state_unavailable`.
        """
        size = len(wanted.body)
        self._check(wanted.tenant, size)
        id = self._token()
        opened = _Open(self._owner, wanted.tenant, wanted.route, size, wanted.keep, "asking", wanted.callback)
        job = _Job(opened, 0)
        self._take(id, job)
        changes: list[Change] = [
            Put(f"later/open/{id}", _encode(opened), wanted.keep, ABSENT),
            Put(f"later/ask/{id}", _encode(wanted), wanted.keep),
            Put(_owner(self._owner), b"", self._lease),
        ]
        try:
            job.version = await self._store.commit(changes)
        except BaseException:
            self._drop(id)
            raise
        self.tally.accepted += 1
        self._queue(id, wanted.route)
        return id

    async def find(self, id: str, key: str | None) -> Pending | Made | None:
        """How a job of this key stands; None for one that there is not, or is another's.

        Raises:
            SitsError: `state_unavailable`.
        """
        if _ID.fullmatch(id) is None:
            return None
        done, opened = await self._store.get_many([f"later/done/{id}", f"later/open/{id}"])
        if done is not None:
            kept = _done(done.value)
            return kept.made if kept.tenant == _tenant(key) else None
        if opened is None or _open(opened.value).tenant != _tenant(key):
            return None
        return Pending(id)

    # What there is to do

    def _check(self, tenant: str, size: int) -> None:
        if self.closed:
            raise SitsError(Code.DRAINING, "the gateway is shutting down", retry_after=1)
        if size > LARGEST_REQUEST:
            self.tally.refused += 1
            message = f"a request of {size} bytes cannot wait for its answer: {LARGEST_REQUEST} can"
            raise SitsError(Code.OVERLOADED, message, retry_after=5)
        if len(self._mine) >= MOST or self._of[tenant] >= MOST_OF_ONE or self._bytes + size > MOST_BYTES:
            self.tally.refused += 1
            raise SitsError(Code.OVERLOADED, "too many requests wait for their answers already", retry_after=5)

    def _take(self, id: str, job: _Job) -> None:
        self._mine[id] = job
        self._of[job.open.tenant] += 1
        self._bytes += job.open.size

    def _drop(self, id: str) -> None:
        job = self._mine.pop(id, None)
        if job is None:
            return
        self._bytes -= job.open.size
        self._of[job.open.tenant] -= 1
        if not self._of[job.open.tenant]:
            del self._of[job.open.tenant]

    def _queue(self, id: str, route: str) -> None:
        self._lanes.setdefault(route, deque()).append(id)
        if self._running[route] < LANE:
            self._running[route] += 1
            task = asyncio.get_running_loop().create_task(self._run(route))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, route: str) -> None:
        """One of those who work off a route's jobs; it ends when there is none."""
        lane = self._lanes[route]
        try:
            while lane:
                id = lane.popleft()
                try:
                    await self._work(id, self._mine[id])
                except SitsError as error:
                    _log.error("an answer that was to be made later is left to others: %s", error.message)
                finally:
                    self._drop(id)
        finally:
            self._running[route] -= 1
            if not self._running[route]:
                del self._running[route]
                if not lane:
                    self._lanes.pop(route, None)

    async def _work(self, id: str, job: _Job) -> None:
        if job.open.phase == "asking":
            made = await self._make(id, job.open.route)
            if made is None or not await self._finish(id, job, made):
                self.tally.lost += 1
                return
            if made.good:
                self.tally.made += 1
            else:
                self.tally.failed += 1
        else:
            entry = await self._patiently(lambda: self._store.get(f"later/done/{id}"))
            if entry is None:
                return
            made = _done(entry.value).made
        if job.open.callback is not None:
            await self._deliver(id, job, job.open.callback, made)

    async def _make(self, id: str, route: str) -> Made | None:
        """The answer, or the error that is its end; None when the request is gone."""
        tries = 0
        while True:
            await self._room(route)
            entry = await self._patiently(lambda: self._store.get(f"later/ask/{id}"))
            if entry is None:
                return None
            made = await self._ask(_wanted(entry.value))
            if made.code in AGAIN:
                await self._sleep(min(LONGEST_PAUSE, max(1.0, made.retry_after or 5.0)))
                continue
            tries += 1
            if tries >= TRIES or not (made.status >= 500 or made.status in (408, 429)):
                return _fitting(made)
            await self._sleep(min(LONGEST_PAUSE, max(2.0**tries, made.retry_after or 0.0)))

    async def _finish(self, id: str, job: _Job, made: Made) -> bool:
        """Put the answer where it is asked for; False when the job is another's by now, or its time is over."""
        opened = job.open
        changes: list[Change] = [
            Put(f"later/done/{id}", _encode(_Done(opened.tenant, made)), opened.keep),
            Delete(f"later/ask/{id}"),
        ]
        if opened.callback is None:
            changes.append(Delete(f"later/open/{id}", job.version))
        else:
            calling = msgspec.structs.replace(opened, phase="calling")
            changes.append(Put(f"later/open/{id}", _encode(calling), opened.keep, job.version))
        try:
            job.version = await self._patiently(lambda: self._store.commit(changes))
        except SitsError as error:
            if error.code is not Code.CONFLICT:
                raise
            return await self._finished_before(id, job)
        return True

    async def _finished_before(self, id: str, job: _Job) -> bool:
        """A commit whose answer was lost is repeated, and conflicts with itself: whether that is what happened."""
        entry = await self._patiently(lambda: self._store.get(f"later/open/{id}"))
        if entry is None:
            return job.open.callback is None and await self._patiently(lambda: self._store.get(f"later/done/{id}")) is not None
        job.version = entry.version
        found = _open(entry.value)
        return found.owner == self._owner and found.phase == "calling"

    async def _deliver(self, id: str, job: _Job, url: str, made: Made) -> None:
        taken = False
        for number in range(CALLS):
            if number:
                await self._sleep(min(LONGEST_PAUSE, 2.0 ** (number - 1)))
            taken = await self._call(url, id, made)
            if taken:
                break
        if taken:
            self.tally.called += 1
        else:
            self.tally.uncalled += 1
            _log.warning("a callback is given up after %d calls; the answer can be asked for", CALLS)
        try:
            await self._patiently(lambda: self._store.commit([Delete(f"later/open/{id}", job.version)]))
        except SitsError as error:
            if error.code is not Code.CONFLICT:
                raise

    async def _patiently(self, step: Callable[[], Awaitable[_T]]) -> _T:
        """What the store says, as soon as it is there again."""
        pause = 0.5
        while True:
            try:
                return await step()
            except SitsError as error:
                if error.code is not Code.STATE_UNAVAILABLE:
                    raise
            await self._sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 2)

    # Who does it

    async def _watch(self) -> None:
        while True:
            await self._sleep(self._lease / 3)
            await self._look()

    async def _look(self) -> None:
        """Say that we live, as long as there is a reason to, and take over what the dead have left."""
        try:
            if self._mine:
                await self._store.commit([Put(_owner(self._owner), b"", self._lease)])
            others = [entry async for entry in self._others()]
            for entry in others:
                if _open(entry.value).owner == self._owner:
                    await self._forget(entry)
            orphans = [entry for entry in others if _open(entry.value).owner != self._owner]
            owners = {_open(entry.value).owner for entry in orphans}
            alive = await self._alive(sorted(owners))
            for entry in orphans:
                if _open(entry.value).owner not in alive and len(self._mine) < MOST:
                    await self._adopt(entry)
        except SitsError as error:
            _log.warning("answers that are to be made later cannot be looked for: %s", error.message)

    async def _others(self) -> AsyncIterator[Entry]:
        async for entry in every(self._store, "later/open/"):
            if entry.key.removeprefix("later/open/") not in self._mine:
                yield entry

    async def _alive(self, owners: list[str]) -> set[str]:
        alive: set[str] = set()
        for at in range(0, len(owners), 1000):
            some = owners[at : at + 1000]
            found = await self._store.get_many([_owner(owner) for owner in some])
            alive.update(owner for owner, entry in zip(some, found, strict=True) if entry is not None)
        return alive

    async def _forget(self, entry: Entry) -> None:
        """It came into the store although the store said that it could not be reached: nobody was given its id."""
        id = entry.key.removeprefix("later/open/")
        try:
            await self._store.commit([Delete(entry.key, entry.version), Delete(f"later/ask/{id}")])
        except SitsError as error:
            if error.code is not Code.CONFLICT:
                raise

    async def _adopt(self, entry: Entry) -> None:
        id = entry.key.removeprefix("later/open/")
        opened = msgspec.structs.replace(_open(entry.value), owner=self._owner)
        changes: list[Change] = [
            Put(entry.key, _encode(opened), opened.keep, entry.version),
            Put(_owner(self._owner), b"", self._lease),
        ]
        try:
            version = await self._store.commit(changes)
        except SitsError as error:
            if error.code is not Code.CONFLICT:
                raise
            return  # Another was quicker.
        self._take(id, _Job(opened, version))
        self.tally.adopted += 1
        self._queue(id, opened.route)


def _tenant(key: str | None) -> str:
    """Whose job: a key of any name is another than none."""
    return "" if key is None else f"key:{key}"


def _owner(owner: str) -> str:
    return f"later/owner/{owner}"


def _fitting(made: Made) -> Made:
    if len(made.body) <= LARGEST_ANSWER:
        return made
    message = f"the answer of {len(made.body)} bytes is larger than the {LARGEST_ANSWER} that are kept"
    body = msgspec.json.encode({"error": {"message": message, "type": "invalid_request_error", "code": Code.TOO_LARGE.value}})
    return Made(413, b"application/json", body, [], Code.TOO_LARGE.value)
