"""A network of in-process buses that misbehaves on demand, under a seed and a virtual clock.

Each node of a test gets a `FaultyBus`. Without faults it keeps the contract of a bus: a node that is cut off gets
`state_unavailable` and later everything that it missed, in order. What breaks the contract happens only when asked for:

- `split`: nodes on different sides go on publishing and hear only their own side until `heal`; then they get the rest, late. So
  the order of a subject differs between nodes, as with servers that store and forward.
- `Faults`: late, doubled and overtaking deliveries, and calls that happened though their caller was told that they failed.

Time passes in `advance` and `quiet` only. The same seed and the same calls give the same deliveries.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Collection

import msgspec

from sits.inner.errors import Code, SitsError
from sits.ports.bus.base import KEPT, Message, Pair
from sits.ports.bus.bell import Bell
from sits.ports.bus.limits import check_id, check_name, check_payload, check_prefix
from sits.ports.bus.log import Channel, Log
from sits.ports.bus.rows import Nothing, RowWatch

_EPOCH = 1_700_000_000.0
_GRACE = 100


class Faults(msgspec.Struct, frozen=True):
    """What may go wrong with a delivery or a call.

    `delay`: seconds that each delivery takes, drawn evenly between the two; the order is kept. `twice`: how often a delivery is
    made twice. `overtaken`: how often one is held back by up to `late` seconds more while later ones pass. `unsure`: how often
    `publish`, `put` and `remove` raise `state_unavailable` although they happened.
    """

    delay: tuple[float, float] = (0.0, 0.0)
    twice: float = 0.0
    overtaken: float = 0.0
    late: float = 1.0
    unsure: float = 0.0


class FaultyNetwork:
    """The nodes, what lies between them, and their clock. `faults` may be set anew at any time."""

    def __init__(self, *, seed: int = 0, faults: Faults | None = None, start: float = _EPOCH, kept: int = KEPT) -> None:
        self.faults = Faults() if faults is None else faults
        self.now = start
        self.log = Log(wall=self.wall, kept=kept)
        self.random = random.Random(seed)  # noqa: S311 - faults to order, not secrets
        self.open: list[FaultySubscription | FaultyWatch] = []
        self._origins: dict[str, dict[int, str]] = {}
        self._sides: dict[str, int] = {}
        self._away: set[str] = set()

    def wall(self) -> float:
        """The virtual clock, in unix seconds."""
        return self.now

    def bus(self, node: str) -> FaultyBus:
        """A handle for a node; one node may have several."""
        return FaultyBus(self, node)

    def split(self, *sides: Collection[str]) -> None:
        """Let nodes hear only their own side. The table, and every node that is not named, is with the first side."""
        self._sides = {node: number for number, side in enumerate(sides) for node in side}

    def cut(self, *nodes: str) -> None:
        """Take nodes off the bus: their calls raise `state_unavailable`, nothing reaches them."""
        self._away.update(nodes)

    def heal(self) -> None:
        """Mend every split and cut; what was held back is on its way."""
        self._sides = {}
        self._away.clear()
        for one in self.open:
            one.release()

    def reaches(self, origin: str, node: str) -> bool:
        """Whether what `origin` publishes gets to `node` now."""
        return node not in self._away and self._sides.get(origin, 0) == self._sides.get(node, 0)

    def has_table(self, node: str) -> bool:
        return node not in self._away and self._sides.get(node, 0) == 0

    def is_away(self, node: str) -> bool:
        return node in self._away

    def advance(self, seconds: float) -> None:
        """Let time pass; deliveries that are due by then wake their readers."""
        self.now += seconds
        for one in self.open:
            one.bell.ring()

    async def quiet(self, *, rounds: int = 100_000) -> None:
        """Let time pass and readers read until nothing is on its way; what a split or cut holds back stays where it is.

        A reader that does not come back for more gets `_GRACE` turns of the loop for what it does with the last one.

        Raises:
            TimeoutError: after `rounds` turns of the loop something still was: a subscription that nobody reads, or nodes that
                answer each other for ever.
        """
        still = 0
        for _ in range(rounds):
            await asyncio.sleep(0)
            due = min((at for one in self.open if (at := one.next_due()) is not None), default=None)
            still = still + 1 if due is None or due > self.now else 0
            if still <= _GRACE and not (still and all(one.is_waiting for one in self.open)):
                continue
            if due is None:
                return
            self.advance(due - self.now)
            still = 0
        raise TimeoutError(f"still not quiet after {rounds} rounds")

    def publish(self, node: str, subject: str, payload: bytes, id: str) -> int:
        before = self.log.channel(subject).next
        offset = self.log.publish(subject, payload, id)
        if offset >= before:
            origins = self._origins.setdefault(subject, {})
            origins[offset] = node
            while (oldest := next(iter(origins))) < self.log.channel(subject).first:
                del origins[oldest]
            for one in self.open:
                if isinstance(one, FaultySubscription) and one.subject == subject:
                    one.send(offset)
        return offset

    def origin(self, subject: str, offset: int) -> str:
        """Who published a message; "" when it is not kept any more."""
        return self._origins.get(subject, {}).get(offset, "")

    def maybe_unsure(self, what: str) -> None:
        if self.random.random() < self.faults.unsure:
            raise SitsError(Code.STATE_UNAVAILABLE, f"{what}: no answer came; whether it happened is not known")


class FaultySubscription:
    """Deliveries on their way to one reader: offsets with the moment at which each arrives."""

    def __init__(self, bus: FaultyBus, subject: str, channel: Channel, start: int) -> None:
        self.subject = subject
        self.bell = Bell()
        self.is_waiting = False
        self._bus = bus
        self._network = bus.network
        self._channel = channel
        self._coming: list[tuple[float, int, int]] = []
        self._held: list[int] = []
        self._sent = 0
        self._last_due = 0.0
        self._lost = max(0, channel.first - start)
        self._closed = False
        for offset in range(max(start, channel.first), channel.next):
            self.send(offset)

    def send(self, offset: int) -> None:
        """Put a message on its way, or hold it while its origin and we are apart."""
        network = self._network
        if not network.reaches(network.origin(self.subject, offset), self._bus.node):
            self._held.append(offset)
            return
        faults, draw = network.faults, network.random
        due = max(self._last_due, network.now + draw.uniform(*faults.delay))
        if draw.random() < faults.overtaken:
            self._push(due + draw.uniform(0.0, faults.late), offset)
        else:
            self._last_due = due
            self._push(due, offset)
        if draw.random() < faults.twice:
            self._push(due + draw.uniform(0.0, faults.late), offset)
        self.bell.ring()

    def release(self) -> None:
        """Send what was held, as far as it gets through now."""
        held, self._held = self._held, []
        for offset in held:
            self.send(offset)
        self.bell.ring()

    def next_due(self) -> float | None:
        """When the next delivery arrives, None when none is on its way to us."""
        return self._coming[0][0] if self._coming and not self._network.is_away(self._bus.node) else None

    def __aiter__(self) -> FaultySubscription:
        return self

    async def __anext__(self) -> Message:
        while not self._closed:
            message = self._take()
            if message is not None:
                return message
            self.is_waiting = True
            try:
                await self.bell.wait()
            finally:
                self.is_waiting = False
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._closed = True
        self._coming.clear()
        self._held.clear()
        if self in self._network.open:
            self._network.open.remove(self)
        self.bell.ring()

    def _push(self, due: float, offset: int) -> None:
        self._sent += 1
        heapq.heappush(self._coming, (due, self._sent, offset))

    def _take(self) -> Message | None:
        while (due := self.next_due()) is not None and due <= self._network.now:
            _, _, offset = heapq.heappop(self._coming)
            if offset < self._channel.first:
                self._lost += 1
                continue
            message = self._channel.messages[offset]
            if self._lost:
                message, self._lost = msgspec.structs.replace(message, lost=self._lost), 0
            return message
        return None


class FaultyWatch:
    """Rows of the table, shown while the node has the table."""

    def __init__(self, bus: FaultyBus, watch: RowWatch) -> None:
        self.bell = watch.bell
        self.is_waiting = False
        self._bus = bus
        self._watch = watch
        self._closed = False

    def release(self) -> None:
        self.bell.ring()

    def next_due(self) -> float | None:
        network = self._bus.network
        return network.now if self._watch.has_news and network.has_table(self._bus.node) else None

    def __aiter__(self) -> FaultyWatch:
        return self

    async def __anext__(self) -> Pair | None:
        while not self._closed:
            if self._bus.network.has_table(self._bus.node):
                taken = self._watch.take()
                if not isinstance(taken, Nothing):
                    return taken
            self.is_waiting = True
            try:
                await self.bell.wait()
            finally:
                self.is_waiting = False
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._closed = True
        if self in self._bus.network.open:
            self._bus.network.open.remove(self)
        self._watch.close()


class FaultyBus:
    """The bus as one node of a `FaultyNetwork` has it."""

    name = "local"

    def __init__(self, network: FaultyNetwork, node: str) -> None:
        self.network = network
        self.node = node
        self._mine: list[FaultySubscription | FaultyWatch] = []
        self._closed = False

    async def publish(self, subject: str, payload: bytes, *, id: str = "") -> int:
        check_name("subject", subject)
        check_payload("payload", payload)
        check_id(id)
        self._reach(self.network.is_away(self.node))
        offset = self.network.publish(self.node, subject, payload, id)
        self.network.maybe_unsure("publish")
        return offset

    async def subscribe(self, subject: str, *, after: int | None = None) -> FaultySubscription:
        check_name("subject", subject)
        self._reach(self.network.is_away(self.node))
        channel = self.network.log.channel(subject)
        subscription = FaultySubscription(self, subject, channel, channel.start(after))
        self._keep(subscription)
        return subscription

    async def put(self, key: str, value: bytes, *, expect: int | None = None) -> int:
        check_name("key", key)
        check_payload("value", value)
        self._reach(not self.network.has_table(self.node))
        revision = self.network.log.change(key, value, expect)
        self.network.maybe_unsure("put")
        return revision

    async def get(self, key: str) -> Pair | None:
        check_name("key", key)
        self._reach(not self.network.has_table(self.node))
        return self.network.log.rows.get(key)

    async def remove(self, key: str, *, expect: int | None = None) -> None:
        check_name("key", key)
        self._reach(not self.network.has_table(self.node))
        self.network.log.change(key, None, expect)
        self.network.maybe_unsure("remove")

    async def watch(self, prefix: str) -> FaultyWatch:
        check_prefix(prefix)
        self._reach(not self.network.has_table(self.node))
        watch = FaultyWatch(self, self.network.log.rows.watch(prefix))
        self._keep(watch)
        return watch

    async def aclose(self) -> None:
        self._closed = True
        mine, self._mine = self._mine, []
        for one in mine:
            await one.aclose()

    def _keep(self, one: FaultySubscription | FaultyWatch) -> None:
        self.network.open.append(one)
        # Those that were closed meanwhile are let go of here.
        self._mine = [*(old for old in self._mine if old in self.network.open), one]

    def _reach(self, is_out_of_reach: bool) -> None:
        if self._closed:
            raise SitsError(Code.STATE_UNAVAILABLE, "the bus is closed")
        if is_out_of_reach:
            raise SitsError(Code.STATE_UNAVAILABLE, f"{self.node} is cut off from the bus")
