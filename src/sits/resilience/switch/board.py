"""Where the facts of all switches are: in memory, over the bus to other gateways, and in the store.

The store is what a process comes back by, and how the workers of one machine hear of each other where there is no bus. All is
joined, so that it does not matter which way a fact comes, or that it comes by both:

    switches/KEY                     the facts of a switch, by compare and set
    switches/KEY/PROCESS             what a process tells of itself; it expires
    switches.audit/KEY/GEN/FACT      what was noted, for people; it expires

While one of the two is away the other one and the memory go on; what the store has missed is written when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import msgspec

from sits.inner.errors import Code, SitsError
from sits.ports.bus.base import Bus
from sits.ports.store.base import ABSENT, Put, Store
from sits.resilience.switch.state import Course, Event, Note
from sits.resilience.switch.watching import MOST_ROWS
from sits.state.crdt import Crdt, Replica, Round, decode, encode

_log = logging.getLogger("sits.switch")

PREFIX = "switches/"
AUDIT = "switches.audit/"
EVENTS = "switches.events"
"""The subject on the bus; what is noted by several at once is published once."""
ROW_SECONDS = 600.0
AUDIT_SECONDS = 90 * 86400.0
CONNECT_SECONDS = 1.0
SYNC_SECONDS = 0.5
"""How long others have to tell a process that comes what it has missed: a digest, and the answers to it."""
MOST_AUDITED = 300
_SEEN = ".seen"


class Board:
    """The facts of switches by key. `heard(key, events)` is called when something came from elsewhere: what was new in it."""

    def __init__(
        self,
        store: Store | None,
        connect: Callable[[], Awaitable[Bus]] | None,
        *,
        node: str,
        incarnation: str,
        wall: Callable[[], float],
        heard: Callable[[str, list[Event]], None],
    ) -> None:
        self.me = f"{node}~{incarnation}"
        self._store = store
        self._connect = connect
        self._node = node
        self._incarnation = incarnation
        self._wall = wall
        self._heard = heard
        self._facts: dict[str, Round] = {}
        self._rows: dict[str, Round] = {}
        self._kept: dict[str, Round] = {}
        """What the store has of the facts, as far as is known here."""
        self._versions: dict[str, int] = {}
        self._row: dict[str, bytes] = {}
        """What the store has of this process."""
        self._untold: list[tuple[str, Event]] = []
        self._unannounced: list[tuple[str, Event]] = []
        self._replica: Replica | None = None
        self._bus: Bus | None = None
        self._stop = asyncio.Event()
        self._shared = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.trouble = ""
        """Why the store does not have all facts."""

    # What is known

    def course(self, key: str) -> Course:
        """What is known of a switch."""
        return Course(self._facts.get(key, Round()))

    def rows(self, key: str) -> dict[str, bytes]:
        """What the processes tell of themselves in this generation."""
        rows = self._rows.get(key)
        return rows.facts if rows is not None and rows.number == self._facts.get(key, Round()).number else {}

    # What is noted here

    def note(self, key: str, delta: Round) -> list[Event]:
        """Note facts here and now; the others hear of it soon. Returns what is new."""
        events = self._join(key, delta)
        if events:
            self._unannounced = [*self._unannounced, *((key, event) for event in events)][-MOST_AUDITED:]
            if self._replica is not None:
                self._replica.change(key, Round, lambda _: delta)
        return events

    def tell(self, key: str, row: bytes) -> None:
        """Tell of this process, in the generation that is under way."""
        number = self._facts.get(key, Round()).number
        before = self._rows.get(key, Round())
        if number < 1 or (before.number == number and self.me not in before.facts and len(before.facts) >= MOST_ROWS):
            return
        delta = Round(number, {self.me: row})
        self._rows[key] = before.merge(delta)
        if self._replica is not None:
            try:
                self._replica.change(key + _SEEN, Round, lambda _: delta)
            except SitsError as error:
                _log.warning("the others do not hear of this gateway's part in a switch: %s", error.message)

    # The bus

    def start(self) -> None:
        """Begin to take part over the bus, as soon as it can be had."""
        if self._connect is not None:
            self._task = asyncio.get_running_loop().create_task(self._take_part(self._connect))

    async def joined(self, patience: float) -> None:
        """Wait until what the others know is most likely known here too, at most so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._shared.wait()
                await asyncio.sleep(SYNC_SECONDS)

    async def hurry(self) -> None:
        """Send what was noted now rather than with the next heartbeat."""
        if self._replica is not None:
            await self._replica.beat()

    async def announce(self) -> None:
        """Publish what was noted here as events, for whoever listens; those that the bus does not take stay for the next call."""
        bus = self._bus
        if bus is None:
            self._unannounced.clear()
            return
        while self._unannounced:
            key, event = self._unannounced[0]
            try:
                await bus.publish(EVENTS, msgspec.json.encode((key, event)), id=f"{key}-{event.generation}-{event.fact}"[-200:])
            except SitsError as error:
                _log.info("an event of a switch waits for the bus: %s", error.message)
                return
            self._unannounced.pop(0)

    async def aclose(self) -> None:
        """Send what is left, and leave. Safe to repeat."""
        self._stop.set()
        task, self._task = self._task, None
        if task is not None:
            done, _ = await asyncio.wait([task], timeout=CONNECT_SECONDS)
            while not done:
                task.cancel()
                done, _ = await asyncio.wait([task], timeout=CONNECT_SECONDS)
        bus, self._bus = self._bus, None
        if bus is not None:
            await bus.aclose()

    async def _take_part(self, connect: Callable[[], Awaitable[Bus]]) -> None:
        while not self._stop.is_set():
            try:
                self._bus = await connect()
                break
            except SitsError as error:
                _log.warning("switches are not shared yet: %s", error.message)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CONNECT_SECONDS):
                        await self._stop.wait()
        if self._bus is None:
            return
        replica = Replica(self._bus, "switches", node=self._node, incarnation=self._incarnation, wall=self._wall)
        for key, facts in self._facts.items():
            replica.change(key, Round, lambda _, facts=facts: facts)  # type: ignore[misc]
        for key, rows in self._rows.items():
            replica.change(key + _SEEN, Round, lambda _, rows=rows: rows)  # type: ignore[misc]
        replica.on_change(self._hear)
        self._replica = replica
        self._shared.set()
        try:
            await replica.run(self._stop)
        except* SitsError as trouble:
            self._replica = None
            _log.error("switches are not shared any more: %s", trouble.exceptions[0])

    def _hear(self, name: str, value: Crdt) -> None:
        if isinstance(value, Round):
            self._take(name, value)

    def _take(self, name: str, value: Round) -> None:
        """Join what came from elsewhere."""
        if not name.endswith(_SEEN):
            events = self._join(name, value)
            if events:
                self._heard(name, events)
            return
        key = name.removesuffix(_SEEN)
        before = self._rows.get(key, Round())
        after = before.merge(value)
        if after is not before:
            self._rows[key] = after

    def _join(self, key: str, value: Round) -> list[Event]:
        """What is new in it."""
        before = self._facts.get(key, Round())
        after = before.merge(value)
        if after is before:
            return []
        self._facts[key] = after
        known = before.facts if before.number == after.number else {}
        events = [event for event in Course(after).events() if event.fact not in known]
        self._untold = [*self._untold, *((key, event) for event in events)][-MOST_AUDITED:]
        return events

    # The store

    async def load(self, *, rows: bool = True) -> None:
        """Join what the store has. What cannot be read is left as it is.

        Raises:
            SitsError: `state_unavailable`.
        """
        if self._store is None:
            return
        after = ""
        while entries := await self._store.scan(PREFIX, after=after):
            after = entries[-1].key
            for entry in entries:
                if self._versions.get(entry.key) == entry.version:
                    continue
                self._versions[entry.key] = entry.version
                key, _, process = entry.key.removeprefix(PREFIX).partition("/")
                if process and not rows:
                    continue
                self._read(key, process, entry.value)
        if len(self._versions) > 10 * MOST_ROWS:
            self._versions.clear()

    async def save(self, *, rows: bool) -> None:
        """Write what the store has not got: facts, their audit and, with `rows`, what this process tells of itself.

        Raises:
            SitsError: `state_unavailable`; what was not written is written by the next call.
        """
        if self._store is None:
            self._untold.clear()
            return
        for key, facts in list(self._facts.items()):
            if self._kept.get(key) is not facts:
                await self._save(self._store, key)
        if rows:
            await self._save_rows(self._store)
        await self._save_audit(self._store)

    async def audit(self, key: str) -> list[Event]:
        """What was noted of a switch, of earlier generations too, oldest first."""
        found: list[Event] = []
        if self._store is not None:
            after = ""
            while entries := await self._store.scan(f"{AUDIT}{key}/", after=after):
                after = entries[-1].key
                found += [event for entry in entries if (event := _event(entry.value)) is not None]
        known = {(event.generation, event.fact) for event in found}
        found += [event for event in self.course(key).events() if (event.generation, event.fact) not in known]
        found.sort(key=lambda event: event.order)
        return found[-MOST_AUDITED:]

    def _read(self, key: str, process: str, value: bytes) -> None:
        try:
            if not process:
                read = decode(value)
                if isinstance(read, Round):
                    self._kept[key] = read
                    self._take(key, read)
                    if self._facts[key] == read:
                        self._kept[key] = self._facts[key]
                return
            number, row = _STORED_ROW.decode(value)
            if process != self.me and number > 0:
                self._take(key + _SEEN, Round(number, {process: row}))
        except (SitsError, msgspec.MsgspecError, RecursionError) as error:
            _log.error("what the store has of switch %s cannot be read here: %s", key, error)

    async def _save(self, store: Store, key: str) -> None:
        """Join what is here into what is there; another process may do so at the same time."""
        while True:
            entry = await store.get(PREFIX + key)
            if entry is not None:
                self._read(key, "", entry.value)
            facts = self._facts[key]
            if self._kept.get(key) is facts:
                return
            try:
                version = await store.commit(
                    [Put(PREFIX + key, encode(facts), expect=ABSENT if entry is None else entry.version)]
                )
            except SitsError as error:
                if error.code is Code.CONFLICT:
                    continue
                raise
            self._kept[key], self._versions[PREFIX + key] = facts, version
            return

    async def _save_rows(self, store: Store) -> None:
        changes: list[Put] = []
        told: dict[str, bytes] = {}
        for key, rows in self._rows.items():
            mine = rows.facts.get(self.me)
            if mine is not None and self._row.get(key) is not mine and self.course(key).live:
                changes.append(Put(f"{PREFIX}{key}/{self.me}", msgspec.msgpack.encode((rows.number, mine)), ttl=ROW_SECONDS))
                told[key] = mine
        if changes:
            await store.commit(changes)
            self._row.update(told)

    async def _save_audit(self, store: Store) -> None:
        while self._untold:
            batch = self._untold[:100]
            changes: dict[str, Put] = {}
            for key, event in batch:
                place = f"{AUDIT}{key}/{event.generation:08d}/{event.fact}"
                changes[place] = Put(place, msgspec.json.encode(event), ttl=AUDIT_SECONDS)
            await store.commit(list(changes.values()))
            del self._untold[: len(batch)]


def _event(value: bytes) -> Event | None:
    try:
        return msgspec.json.decode(value, type=Event)
    except (msgspec.MsgspecError, RecursionError):
        return None


def noted_by(who: str, why: str, wall: float) -> Note:
    """A note of this moment."""
    return Note(int(wall * 1000), who, why)


_STORED_ROW = msgspec.msgpack.Decoder(tuple[int, bytes])
