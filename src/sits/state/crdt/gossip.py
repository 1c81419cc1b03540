"""One replica's side of the conversation: payloads in, payloads out, no I/O and no clock of its own.

Local changes are joined to what is held at once and kept as deltas for the next heartbeat, joined name by name. Nothing hangs on
a message: what was lost shows in the next digest, what comes twice or late changes nothing. A value with a stamp too far in the
future (see `HybridClock`) is refused whole; digests offer it again until its time has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from sits.inner.errors import Code, SitsError
from sits.state.clocks.hybrid import HybridClock, Stamp
from sits.state.crdt.context import check_name
from sits.state.crdt.holding import Holding
from sits.state.crdt.messages import LARGEST_BATCH, Ask, Digest, Name, States, Want, pack, unpack
from sits.state.crdt.wire import LARGEST_WIRE, Crdt, decode, encode, kind_of, latest_stamp, merge

LARGEST_PENDING = 8 * 1024 * 1024
"""About how many bytes of deltas wait for the bus; beyond that they are dropped, and states are exchanged in their place."""
LARGEST_BEAT = 4 * 1024 * 1024
"""About how many bytes one heartbeat sends; the rest waits for the next."""
_SNAPSHOT = 1

V = TypeVar("V", bound=Crdt)


class Waiting(msgspec.Struct, frozen=True):
    """What is to be sent of a name: the joined deltas, or None for the whole state as it then is, if they would be no smaller."""

    delta: Crdt | None
    weight: int = 0


class Batch(msgspec.Struct, frozen=True):
    """Changes on their way out: give them back with `Gossip.put_back` if the bus did not take all of `payloads`."""

    payloads: tuple[bytes, ...]
    changes: dict[Name, Waiting]


class Heard(msgspec.Struct, frozen=True):
    """What became of a message: names whose values changed, and payloads to publish in answer."""

    changed: tuple[Name, ...] = ()
    replies: tuple[bytes, ...] = ()


class Snapshot(msgspec.Struct, array_like=True, frozen=True):
    """All that is held, as it is kept on a disk."""

    last: Stamp | None
    items: tuple[tuple[str, bytes], ...]


class Gossip:
    """Not for several threads. `me` must be an id that no replica ever had before: see `Replica`."""

    def __init__(self, me: str, clock: HybridClock, *, largest_pending: int = LARGEST_PENDING) -> None:
        check_name("node", me)
        self.me = me
        self.clock = clock
        self.behind = True
        """Whether a digest should go out now, rather than when its turn comes."""
        self.refused = 0
        """Messages, values and names from elsewhere that were not taken."""
        self.last_refusal = ""
        self._holding = Holding()
        self._pending: dict[Name, Waiting] = {}
        self._pending_weight = 0
        self._largest_pending = largest_pending
        # What was answered since the last heartbeat. All hear all answers, so that the same one need not go to each who asks.
        self._answered: dict[Name, Crdt] = {}

    def __len__(self) -> int:
        return len(self._holding)

    @property
    def pending(self) -> int:
        """Names with deltas that wait for the bus."""
        return len(self._pending)

    def get(self, name: str, kind: type[V]) -> V:
        """The value of that name and kind; an empty one when there is none."""
        value = self._holding.get((kind_of(kind), name))
        return value if isinstance(value, kind) else kind()

    def value(self, key: Name) -> Crdt:
        """The value of a name that `hear` told of.

        Raises:
            KeyError: it is not held.
        """
        value = self._holding.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def names(self, kind: type[Crdt]) -> list[str]:
        """The names of that kind, sorted."""
        number = kind_of(kind)
        return sorted(name for held, name in self._holding if held == number)

    def change(self, name: str, kind: type[V], step: Callable[[V], V]) -> V:
        """Join the delta that `step` makes of the value; returns the new value.

        Raises:
            SitsError: `invalid_request`; `request_too_large`, the value or the number of names.
        """
        check_name("name", name)
        key = (kind_of(kind), name)
        value = self.get(name, kind)
        delta = step(value)
        merged = merge(value, delta)
        assert isinstance(merged, kind)
        if merged is not value:
            self._holding.change(key, delta, merged)
            self._wait(key, Waiting(delta, delta.weight()))
        return merged

    def take(self) -> Batch:
        """What has changed since the last call, as payloads; for each heartbeat."""
        self._answered.clear()
        taken: dict[Name, Waiting] = {}
        items: list[tuple[str, bytes]] = []
        size = 0
        for key in list(self._pending):
            if size >= LARGEST_BEAT:
                break
            taken[key] = waiting = self._pending.pop(key)
            self._pending_weight -= waiting.weight
            wire = self._packed(key, self.value(key) if waiting.delta is None else waiting.delta)
            if wire is not None:
                items.append((key[1], wire))
                size += len(wire)
        return Batch(tuple(self._states(items)), taken)

    def put_back(self, batch: Batch) -> None:
        """Keep the deltas of a batch that may not have got out; to send some of them twice does no harm."""
        self.behind = True
        for key, waiting in batch.changes.items():
            self._wait(key, waiting)

    def digest(self) -> bytes:
        """The payload that lets others find what they lack, and what we lack."""
        self.behind = False
        return pack(Digest(self.me, self._holding.buckets()))

    def hear(self, payload: bytes, wall: float) -> Heard:
        """Take a message. Never raises for what it holds: what cannot be used is counted in `refused`."""
        try:
            message = unpack(payload)
        except SitsError as error:
            self._refuse(error)
            return Heard()
        if message.sender == self.me:
            return Heard()
        if isinstance(message, States):
            return Heard(tuple(self._absorb(message.items, wall)))
        if isinstance(message, Digest):
            return Heard(replies=tuple(self._ask(message)))
        if message.to != self.me:
            return Heard()
        if isinstance(message, Ask):
            return Heard(replies=tuple(self._answer(message)))
        return Heard(replies=tuple(self._give(message.names)))

    def snapshot(self) -> bytes:
        """All that is held, to be kept; deltas that were not sent are part of it."""
        items = tuple((key[1], encode(value)) for key in self._holding if (value := self._holding.get(key)) is not None)
        return msgspec.msgpack.encode((_SNAPSHOT, Snapshot(self.clock.last, items)))

    def restore(self, kept: bytes) -> None:
        """Join what a snapshot holds, of whatever age and of whichever replica. All of it, or nothing when it raises.

        Raises:
            SitsError: `invalid_request`, it is none, or of another version; `request_too_large`, too many names.
        """
        try:
            version, body = _ENVELOPE.decode(kept)
            if version != _SNAPSHOT:
                raise SitsError(Code.INVALID_REQUEST, f"a snapshot of version {version}; this SITS reads version {_SNAPSHOT}")
            snapshot = _BODY.decode(body)
        except (ValueError, RecursionError) as error:
            raise SitsError(Code.INVALID_REQUEST, f"not a snapshot of a replica: {error}") from error
        for name, _ in snapshot.items:
            check_name("name", name)
        values = [(name, decode(wire, largest=len(kept))) for name, wire in snapshot.items]
        keyed = [((kind_of(type(value)), name), value) for name, value in values]
        self._holding.check_room(key for key, _ in keyed)
        for key, value in keyed:
            self._join(key, value)
        stamps = [stamp for _, value in values if (stamp := latest_stamp(value)) is not None]
        for stamp in stamps if snapshot.last is None else (*stamps, snapshot.last):
            self.clock.resume(stamp)
        self.behind = True

    def _wait(self, key: Name, waiting: Waiting) -> None:
        before = self._pending.pop(key, None)
        if before is not None:
            self._pending_weight -= before.weight
            waiting = self._joined(key, before, waiting)
        self._pending[key] = waiting
        self._pending_weight += waiting.weight
        if self._pending_weight > self._largest_pending:
            self._pending, self._pending_weight, self.behind = {}, 0, True

    def _joined(self, key: Name, before: Waiting, later: Waiting) -> Waiting:
        # Rows that replaced each other leave their dots in the joined deltas, and each join copies them; in the state they are
        # one number. So deltas are joined only as long as all of them together are lighter than the state.
        weight = before.weight + later.weight
        if before.delta is None or later.delta is None or weight > self._holding.bound(key):
            return Waiting(None)
        return Waiting(merge(before.delta, later.delta), weight)

    def _packed(self, key: Name, value: Crdt) -> bytes | None:
        wire = encode(value)
        if len(wire) <= LARGEST_WIRE:
            return wire
        self._refuse(SitsError(Code.TOO_LARGE, f"{key[1]!r} has grown to {len(wire)} bytes and cannot be sent"))
        return None

    def _absorb(self, items: Iterable[tuple[str, bytes]], wall: float) -> Iterator[Name]:
        for name, wire in items:
            try:
                check_name("name", name)
                value = decode(wire)
                stamp = latest_stamp(value)
                if stamp is not None:
                    self.clock.receive(stamp, wall)
                key = (kind_of(type(value)), name)
                if self._join(key, value):
                    yield key
            except SitsError as error:
                self._refuse(error)

    def _join(self, key: Name, value: Crdt) -> bool:
        held = self._holding.get(key)
        merged = value if held is None else merge(held, value)
        if merged is held:
            return False
        self._holding.absorb(key, merged, value.weight())
        return True

    def _ask(self, digest: Digest) -> Iterator[bytes]:
        differ = [
            bucket
            for bucket, (mine, theirs) in enumerate(zip(self._holding.buckets(), digest.buckets, strict=True))
            if mine != theirs
        ]
        asked: list[int] = []
        hashes: list[tuple[int, str, int]] = []
        size = 0
        for bucket in differ:
            asked.append(bucket)
            for (kind, name), value in self._holding.hashes((bucket,)).items():
                hashes.append((kind, name, value))
                size += len(name.encode()) + 16
            if size > LARGEST_BATCH:
                yield pack(Ask(self.me, digest.sender, tuple(asked), tuple(hashes)))
                asked, hashes, size = [], [], 0
        if asked:
            yield pack(Ask(self.me, digest.sender, tuple(asked), tuple(hashes)))

    def _answer(self, ask: Ask) -> Iterator[bytes]:
        theirs = {(kind, name): value for kind, name, value in ask.hashes}
        mine = self._holding.hashes(set(ask.buckets))
        yield from self._give(name for name, value in mine.items() if theirs.get(name) != value)
        want = tuple(name for name, value in theirs.items() if mine.get(name) != value)
        if want:
            yield pack(Want(self.me, ask.sender, want))

    def _give(self, names: Iterable[Name]) -> Iterator[bytes]:
        items: list[tuple[str, bytes]] = []
        for name in names:
            value = self._holding.get(name)
            if value is None or self._answered.get(name) is value:
                continue
            wire = self._packed(name, value)
            if wire is not None:
                self._answered[name] = value
                items.append((name[1], wire))
        yield from self._states(items)

    def _states(self, items: Iterable[tuple[str, bytes]]) -> Iterator[bytes]:
        batch: list[tuple[str, bytes]] = []
        size = 0
        for name, wire in items:
            if batch and size + len(name.encode()) + len(wire) > LARGEST_BATCH:
                yield pack(States(self.me, tuple(batch)))
                batch, size = [], 0
            batch.append((name, wire))
            size += len(name.encode()) + len(wire)
        if batch:
            yield pack(States(self.me, tuple(batch)))

    def _refuse(self, error: SitsError) -> None:
        self.refused += 1
        self.last_refusal = error.message


_ENVELOPE = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])
_BODY = msgspec.msgpack.Decoder(Snapshot)
