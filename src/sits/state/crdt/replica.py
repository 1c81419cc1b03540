"""A replicated map of named CRDTs over a bus: no leader, local changes at once, the others a heartbeat later.

    replica = Replica(bus, "limits", node="gw-1", incarnation="6f2c9a", wall=time.time)
    task = group.create_task(replica.run(stop))
    replica.change("requests", GCounter, lambda counter: counter.increment(replica.id))
    replica.get("requests", GCounter).value

While the bus is away local changes go on; what they changed is sent afterwards. What a process had changed and not yet published
when it was killed is lost, at most a heartbeat's worth, unless a snapshot has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from sits.inner.errors import Code, SitsError
from sits.ports.bus.base import Bus, Message, Subscription
from sits.ports.ending import together
from sits.state.clocks.hybrid import DRIFT, HybridClock, Stamp
from sits.state.crdt.gossip import LARGEST_PENDING, Gossip
from sits.state.crdt.messages import Name
from sits.state.crdt.wire import Crdt

HEARTBEAT = 0.1
"""Seconds between batches of deltas."""
DIGEST_EVERY = 10
"""Heartbeats between digests."""
RETRY_EVERY = 5
"""Heartbeats between attempts while the bus is away: each packs all that waits."""

V = TypeVar("V", bound=Crdt)
Changed = Callable[[str, Crdt], None]


class Status(msgspec.Struct, frozen=True):
    """Where a replica stands, as an operator wants to see it."""

    id: str
    names: int
    pending: int
    """Names with changes that the bus has not taken yet."""
    is_away: bool
    """Whether the last call to the bus failed."""
    refused: int
    """Messages, values and names from elsewhere that were not taken, since the start."""
    last_refusal: str


class Replica:
    """One node's part of a replicated map. Belongs to the loop that `run` runs in.

    `incarnation` must be new at each start of the process, also of one that restores a snapshot: a snapshot may be older than
    what was published, and a count or dot that is used twice would be taken for one. Draw it at random, or from the time.
    """

    def __init__(
        self,
        bus: Bus,
        space: str,
        *,
        node: str,
        incarnation: str,
        wall: Callable[[], float],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        heartbeat: float = HEARTBEAT,
        digest_every: int = DIGEST_EVERY,
        drift: float = DRIFT,
        largest_pending: int = LARGEST_PENDING,
    ) -> None:
        self.id = f"{node}~{incarnation}"
        self.subject = f"crdt.{space}"
        self._bus = bus
        self._wall = wall
        self._pause = pause
        self._heartbeat = heartbeat
        self._digest_every = digest_every
        self._beats = 0
        self._is_away = False
        self._subscribers: list[Changed] = []
        self._gossip = Gossip(self.id, HybridClock(self.id, drift=drift), largest_pending=largest_pending)

    @property
    def status(self) -> Status:
        gossip = self._gossip
        return Status(self.id, len(gossip), gossip.pending, self._is_away, gossip.refused, gossip.last_refusal)

    def get(self, name: str, kind: type[V]) -> V:
        """The value of that name and kind as it is known here; an empty one when there is none."""
        return self._gossip.get(name, kind)

    def names(self, kind: type[Crdt]) -> list[str]:
        """The names of that kind, sorted."""
        return self._gossip.names(kind)

    def change(self, name: str, kind: type[V], step: Callable[[V], V]) -> V:
        """Change a value here and now: `step` gets it and returns the delta of a mutator. Returns the new value.

        Raises:
            SitsError: `invalid_request`; `request_too_large`, the value or the number of names would be.
        """
        return self._gossip.change(name, kind, step)

    def stamp(self) -> Stamp:
        """A stamp for a write to a register: later than all that was seen here."""
        return self._gossip.clock.tick(self._wall())

    def on_change(self, subscriber: Changed) -> None:
        """Call `subscriber(name, value)` whenever something from elsewhere has changed a value. It must not raise."""
        self._subscribers.append(subscriber)

    def snapshot(self) -> bytes:
        """All that is held, for a later `restore`."""
        return self._gossip.snapshot()

    def restore(self, kept: bytes) -> None:
        """Join what a snapshot holds; all of it, or nothing when it raises. Best before `run`.

        Raises:
            SitsError: `invalid_request`, `request_too_large`.
        """
        self._gossip.restore(kept)

    async def run(self, stop: asyncio.Event) -> None:
        """Take part until `stop` is set; then what waits is published once more. Outages of the bus are waited out."""
        await together(self._listen(), self._beats_on(stop))

    async def _beats_on(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._pause(self._heartbeat * (RETRY_EVERY if self._is_away else 1))
            await self.beat()
        await self.beat()

    async def beat(self) -> None:
        """Publish what waits, and a digest when it is its turn. For `run`; safe to call at any time."""
        batch = self._gossip.take()
        self._beats += 1
        is_turn = self._beats % self._digest_every == 0
        try:
            for payload in batch.payloads:
                await self._bus.publish(self.subject, payload)
        except SitsError as error:
            self._gossip.put_back(batch)
            self._outage(error)
            return
        if batch.payloads:
            self._is_away = False
        if is_turn or self._gossip.behind:
            await self._publish((self._gossip.digest(),))

    async def _listen(self) -> None:
        while True:
            subscription = await self._subscribed()
            self._is_away = False
            # What was said before is not heard any more; the answers to a digest bring it.
            self._gossip.behind = True
            try:
                async for message in subscription:
                    await self._hear(message)
            finally:
                await subscription.aclose()
            await self._pause(self._heartbeat)

    async def _subscribed(self) -> Subscription:
        while True:
            try:
                return await self._bus.subscribe(self.subject)
            except SitsError as error:
                self._outage(error)
                await self._pause(self._heartbeat * RETRY_EVERY)

    async def _hear(self, message: Message) -> None:
        heard = self._gossip.hear(message.payload, self._wall())
        if message.lost:
            self._gossip.behind = True
        for key in heard.changed:
            self._tell(key)
        await self._publish(heard.replies)

    def _tell(self, key: Name) -> None:
        value = self._gossip.value(key)
        for subscriber in self._subscribers:
            subscriber(key[1], value)

    async def _publish(self, payloads: tuple[bytes, ...]) -> None:
        """Publish what nobody needs to keep: if the bus is away, the next digest leads to it again."""
        try:
            for payload in payloads:
                await self._bus.publish(self.subject, payload)
                self._is_away = False
        except SitsError as error:
            self._gossip.behind = True
            self._outage(error)

    def _outage(self, error: SitsError) -> None:
        if error.code is not Code.STATE_UNAVAILABLE:
            raise error
        self._is_away = True
