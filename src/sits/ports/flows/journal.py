"""What is remembered of flows, on a store: the records, and the few commits that change them.

    flows/box/H      Box: what the flow is, how it stands; counts the signals. Made by the start, kept a while after the end
    flows/live/H     Live: who runs it. There while it has not ended; its version fences the owner's commits
    flows/input/H    the input
    flows/log/H/N    Entry: the N-th thing that is remembered (`replay.py`)
    flows/mail/H/N   Mail: the N-th signal, until it is received
    flows/sent/H/K   a signal with that key (its hash) was sent
    flows/bell/H     something happened to the flow that its owner, or a new one, should look at
    flows/dust/H     it has ended, and there is more of it to take away than fits into one commit
    flows/worker/W   a runner that lives; expires when it is not renewed

H is a hash of the flow's id. An owner's every commit expects the version that its last one gave `live`; when another runner
has taken the flow over, that fails, and what the old owner did since is not remembered (fencing tokens: Kleppmann 2016,
Gray & Cheriton's leases 1989). Senders expect the version of `box`, so signals are numbered one after the other, and none can
be sent to a flow that is just ending.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence

import msgspec

from sits.inner.errors import Code, SitsError
from sits.ports.flows.base import State, Status
from sits.ports.flows.program import check_mail, ended_flow, missing_flow
from sits.ports.flows.replay import Ending, Entry, Mail
from sits.ports.store.base import ABSENT, Change, Delete, Put, Store
from sits.ports.store.base import Entry as Stored

_AT_ONCE = 400
"""Entries, bells or deletions in one commit: with what goes beside them, less than the 1,000 keys that a store takes."""
_PAUSE = 0.05
"""Seconds before a commit is repeated that a store did not answer."""


class Box(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    flow: str
    started: float
    mail: int = 0
    status: Status = "running"
    output: bytes | None = None
    error: str | None = None

    def state(self) -> State:
        return State(self.id, self.flow, self.status, self.output, self.error, self.started)


class Live(msgspec.Struct, frozen=True, omit_defaults=True):
    flow: str
    owner: str = ""
    entries: int = 0


class Lost(Exception):
    """The flow has ended or is another runner's now."""


class Held:
    """A flow that we own: what our next commit expects."""

    __slots__ = ("entries", "flow", "hash", "version")

    def __init__(self, hash: str, flow: str, version: int, entries: int) -> None:
        self.hash = hash
        self.flow = flow
        self.version = version
        self.entries = entries


class Memory(msgspec.Struct, frozen=True):
    """All that is remembered of a flow that runs."""

    box: Box
    input: bytes
    log: tuple[Entry, ...]
    mail: tuple[Mail, ...]


_encode = msgspec.msgpack.Encoder().encode
_box = msgspec.msgpack.Decoder(Box).decode
_live = msgspec.msgpack.Decoder(Live).decode
_entry = msgspec.msgpack.Decoder(Entry).decode
_mail = msgspec.msgpack.Decoder(Mail).decode


def hash_of(id: str) -> str:
    """Ids may be long and hold anything; keys may not."""
    return hashlib.blake2b(id.encode(), digest_size=16).hexdigest()


class Journal:
    """The commits. None of them keeps anything in this process. Ended flows are forgotten after `keep` seconds."""

    def __init__(self, store: Store, *, keep: float, bell: float) -> None:
        self._store = store
        self._keep = keep
        self._bell = bell

    # Asking

    async def state(self, id: str) -> State | None:
        found = await self._store.get(f"flows/box/{hash_of(id)}")
        return _box(found.value).state() if found else None

    async def states(self) -> AsyncIterator[State]:
        """Every flow, without its output and error."""
        async for one in self._all("flows/box/"):
            box = _box(one.value)
            yield State(box.id, box.flow, box.status, started=box.started)

    async def _all(self, prefix: str, after: str = "") -> AsyncIterator[Stored]:
        while page := await self._store.scan(prefix, after=after):
            for one in page:
                yield one
            after = page[-1].key

    # By anybody

    async def start(self, box: Box, input: bytes, owner: str) -> Held | None:
        """Make a flow; None when it was made before. Without `owner` the bell is rung for one."""
        hash = hash_of(box.id)
        known, dust = await self._store.get_many([f"flows/box/{hash}", f"flows/dust/{hash}"])
        if known is not None:
            return None
        if dust is not None:
            await self._sweep(hash)
        changes: list[Change] = [
            Put(f"flows/box/{hash}", _encode(box), expect=ABSENT),
            Put(f"flows/live/{hash}", _encode(Live(box.flow, owner))),
            Put(f"flows/input/{hash}", input),
        ]
        if not owner:
            changes.append(Put(f"flows/bell/{hash}", b"", ttl=self._bell))
        try:
            version = await self._store.commit(changes)
        except SitsError as error:
            if error.code is Code.CONFLICT:
                return None
            raise
        return Held(hash, box.flow, version, 0)

    async def send(self, id: str, name: str, payload: bytes, key: str) -> None:
        """Put a signal into the box of a flow, and ring."""
        hash = hash_of(id)
        while True:
            box, version = await self._open_box(id, hash)
            check_mail(id, box.mail)
            changes: list[Change] = [
                Put(f"flows/box/{hash}", _encode(msgspec.structs.replace(box, mail=box.mail + 1)), expect=version),
                Put(_mail_key(hash, box.mail), _encode(Mail(box.mail, name, payload))),
                Put(f"flows/bell/{hash}", b"", ttl=self._bell),
            ]
            if key:
                sent = f"flows/sent/{hash}/{hash_of(key)}"
                if await self._store.get(sent) is not None:
                    return
                changes.append(Put(sent, b"", expect=ABSENT))
            if await self._committed(changes) is not None:
                return

    async def cancel(self, id: str) -> None:
        hash = hash_of(id)
        while True:
            try:
                box, version = await self._open_box(id, hash)
            except SitsError as error:
                if error.code is Code.NOT_FOUND and await self._store.get(f"flows/box/{hash}") is not None:
                    return
                raise
            live = await self._store.get(f"flows/live/{hash}")
            if live is not None and await self._close(hash, live, box, version, Ending("cancelled")):
                return

    async def _open_box(self, id: str, hash: str) -> tuple[Box, int]:
        found = await self._store.get(f"flows/box/{hash}")
        if found is None:
            raise missing_flow(id)
        box = _box(found.value)
        if box.status != "running":
            raise ended_flow(id)
        return box, found.version

    async def _close(self, hash: str, live: Stored, box: Box, version: int, ending: Ending) -> bool:
        """End a flow and take away what was remembered of its way; False when somebody was faster at something."""
        ended = msgspec.structs.replace(box, status=ending.status, output=ending.output, error=ending.error)
        changes: list[Change] = [
            Put(f"flows/box/{hash}", _encode(ended), ttl=self._keep, expect=version),
            Delete(f"flows/live/{hash}", expect=live.version),
            Delete(f"flows/input/{hash}"),
        ]
        doomed = [_log_key(hash, number) for number in range(_live(live.value).entries)]
        if box.mail:
            doomed += [one.key async for one in self._all(f"flows/mail/{hash}/")]
            doomed += [one.key async for one in self._all(f"flows/sent/{hash}/")]
        changes += [Delete(key) for key in doomed[:_AT_ONCE]]
        if len(doomed) > _AT_ONCE:
            changes.append(Put(f"flows/dust/{hash}", b""))
        if ending.status == "cancelled":
            changes.append(Put(f"flows/bell/{hash}", b"", ttl=self._bell))
        return await self._committed(changes) is not None

    async def sweep(self) -> None:
        """Take away what long flows left."""
        async for dust in self._all("flows/dust/"):
            await self._sweep(dust.key.removeprefix("flows/dust/"))

    async def _sweep(self, hash: str) -> None:
        for part in ("log", "mail", "sent"):
            while page := await self._store.scan(f"flows/{part}/{hash}/", limit=_AT_ONCE):
                await self._store.commit([Delete(one.key) for one in page])
        await self._store.commit([Delete(f"flows/dust/{hash}")])

    async def _committed(self, changes: Sequence[Change]) -> int | None:
        try:
            return await self._store.commit(changes)
        except SitsError as error:
            if error.code is Code.CONFLICT:
                return None
            raise

    # By runners

    async def enlist(self, worker: str, lease: float) -> int:
        """Say that a runner lives."""
        return await self._store.commit([Put(f"flows/worker/{worker}", b"", ttl=lease)])

    async def renew(self, worker: str, lease: float, version: int) -> int | None:
        """Say it again; None when it came too late: others may have what was the runner's."""
        return await self._committed([Put(f"flows/worker/{worker}", b"", ttl=lease, expect=version)])

    async def retire(self, worker: str) -> None:
        await self._store.commit([Delete(f"flows/worker/{worker}")])

    async def orphans(self, me: str) -> list[Held]:
        """Flows whose owner does not live, and those of `me`. Owners are asked for last, else a new one would seem dead."""
        flows = [one async for one in self._all("flows/live/")]
        if not flows:
            return []
        living = {one.key.removeprefix("flows/worker/") async for one in self._all("flows/worker/")} - {me}
        return [held for one in flows if (held := _unowned(one, living)) is not None]

    async def bells(self) -> list[Stored]:
        return [one async for one in self._all("flows/bell/")]

    async def quieten(self, bells: Sequence[Stored]) -> None:
        """Take away bells that were heard; one that rang again stays."""
        for first in range(0, len(bells), _AT_ONCE):
            some = [Delete(one.key, expect=one.version) for one in bells[first : first + _AT_ONCE]]
            if await self._committed(some) is None:
                for one in some:
                    await self._committed([one])

    async def unowned(self, hash: str) -> Held | None:
        """A flow that nobody was ever or is any more; None when it has an owner or has ended."""
        found = await self._store.get(f"flows/live/{hash}")
        return _unowned(found, None) if found else None

    async def claim(self, held: Held, owner: str) -> bool:
        """Make a flow ours; False when another was faster."""
        live = Live(held.flow, owner, held.entries)
        version = await self._committed([Put(f"flows/live/{held.hash}", _encode(live), expect=held.version)])
        held.version = version or held.version
        return version is not None

    async def recall(self, held: Held) -> Memory:
        """What is remembered of a flow that we claimed."""
        box, input = await self._store.get_many([f"flows/box/{held.hash}", f"flows/input/{held.hash}"])
        if box is None or input is None:
            raise Lost
        log = [_entry(one.value) async for one in self._all(f"flows/log/{held.hash}/")]
        return Memory(_box(box.value), input.value, tuple(log), await self.mail(held.hash))

    async def mail(self, hash: str, after: int = -1) -> tuple[Mail, ...]:
        """The signals that were not received yet and have a higher number."""
        last = _mail_key(hash, after) if after >= 0 else ""
        return tuple([_mail(one.value) async for one in self._all(f"flows/mail/{hash}/", last)])

    async def is_live(self, hash: str) -> bool:
        return await self._store.get(f"flows/live/{hash}") is not None

    async def remember(self, held: Held, owner: str, entries: Sequence[Entry]) -> None:
        """Add to the log; waits for a store that does not answer.

        Raises:
            Lost: the flow has ended or is another's.
        """
        for first in range(0, len(entries), _AT_ONCE):
            await self._add(held, owner, entries[first : first + _AT_ONCE])

    async def _add(self, held: Held, owner: str, entries: Sequence[Entry]) -> None:
        live = Live(held.flow, owner, held.entries + len(entries))
        changes: list[Change] = [Put(f"flows/live/{held.hash}", _encode(live), expect=held.version)]
        for number, entry in enumerate(entries, held.entries):
            changes.append(Put(_log_key(held.hash, number), _encode(entry)))
            if entry.mail is not None:
                changes.append(Delete(_mail_key(held.hash, entry.mail)))
        while True:
            try:
                version = await self._committed(changes)
                if version is None:
                    version = await self._was_ours(held, live)
                held.version, held.entries = version, live.entries
                return
            except SitsError as error:
                if error.code is not Code.STATE_UNAVAILABLE:
                    raise
            await asyncio.sleep(_PAUSE)

    async def _was_ours(self, held: Held, live: Live) -> int:
        """The version of a commit that conflicts because it had happened when the store did not answer."""
        found = await self._store.get(f"flows/live/{held.hash}")
        if found is None or _live(found.value) != live:
            raise Lost
        return found.version

    async def end(self, held: Held, ending: Ending) -> None:
        """End a flow that is ours; waits for a store that does not answer.

        Raises:
            Lost: it is another's, or had ended.
        """
        while True:
            try:
                box, live = await self._store.get_many([f"flows/box/{held.hash}", f"flows/live/{held.hash}"])
                if box is None or live is None or live.version != held.version:
                    raise Lost
                if await self._close(held.hash, live, _box(box.value), box.version, ending):
                    return
            except SitsError as error:
                if error.code is not Code.STATE_UNAVAILABLE:
                    raise
                await asyncio.sleep(_PAUSE)

    async def release(self, held: Held) -> None:
        """Give a flow to whoever hears the bell."""
        live = Live(held.flow, "", held.entries)
        changes = [
            Put(f"flows/live/{held.hash}", _encode(live), expect=held.version),
            Put(f"flows/bell/{held.hash}", b"", ttl=self._bell),
        ]
        await self._committed(changes)


def _log_key(hash: str, number: int) -> str:
    return f"flows/log/{hash}/{number:06d}"


def _mail_key(hash: str, number: int) -> str:
    return f"flows/mail/{hash}/{number:06d}"


def _unowned(stored: Stored, living: set[str] | None) -> Held | None:
    live = _live(stored.value)
    if live.owner and (living is None or live.owner in living):
        return None
    return Held(stored.key.removeprefix("flows/live/"), live.flow, stored.version, live.entries)
