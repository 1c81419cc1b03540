"""Drives the switches of a process: looks a few times a second at what is known, does this gateway's own part, notes what is
next.

What is decided is `sits.resilience.switch`'s to say; here is what takes a loop: asking the new model, counting the answers of the
old one, sharing what is known, and telling people. What requests meet (`Switches`) is set as soon as a fact is noted or heard.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from time import perf_counter

from blake3 import blake3

from sits.gateway.exchange import Exchange
from sits.gateway.service import Service
from sits.gateway.switch_proving import prepare, verify, warm
from sits.gateway.switch_status import SwitchEvent, SwitchStatus, event_of, status_of
from sits.inner.errors import Code, SitsError
from sits.ports.bus.base import Bus
from sits.ports.ending import end
from sits.ports.store.base import Store
from sits.resilience.switch.board import Board, noted_by
from sits.resilience.switch.divert import Move, Switches
from sits.resilience.switch.gates import judge
from sits.resilience.switch.machine import Abort, Decision, Gateway, Now, Reach, Start, Wait, decide, share_of
from sits.resilience.switch.state import Course, Event, Phase, key_of
from sits.resilience.switch.watching import Row, place_of, rows_of, seen
from sits.resources.reliability import Switch
from sits.state.crdt import Round

_log = logging.getLogger("sits.switch")

TURN_SECONDS = 0.2
"""How often it is looked at what is next; a command or news from elsewhere is acted on at once."""
IDLE_SECONDS = 1.0
"""The same while nothing is under way."""
BEAT_SECONDS = 0.5
"""How often a process tells of itself while something is under way."""
SETTLE_SECONDS = 1.5
"""How long the others have to hear that a switch was begun, before it goes on: the slowest of them looks once in a second."""
JOIN_SECONDS = 2.0
"""How long a gateway that begins waits for what the others know, before it takes requests."""
AWAY_SECONDS = 5.0
"""A process that has told nothing for so long is not there."""
KEPT_EVENTS = 512

Compared = Callable[[str], tuple[int, int]]
"""The new model of a switch -> how many of its answers, asked for behind those that clients got, were compared here of late, and
how many of them differ."""


class Under:
    """What this process knows and does of one switch."""

    def __init__(self, name: str, switch: Switch) -> None:
        self.name = name
        self.switch = switch
        self.key = key_of(name, switch.spec.from_, switch.spec.to)
        self.at = (0, 0)
        """Generation and place where it was last seen."""
        self.since = 0.0
        self.row = Row(0)
        self.beat = 0
        self.told = float("-inf")
        self.finished_at = float("-inf")
        """Since when the old model is not asked any more."""
        self.fault = ""
        self.work: asyncio.Task[None] | None = None
        self.heard: dict[str, tuple[int, float]] = {}
        """Process -> the number of its last telling, and when that came."""
        self.decision: Decision = Wait("")

    def gateways(self, rows: dict[str, tuple[int, Row]], me: str, now: float) -> list[Gateway]:
        """Who takes part. Whether one is there is told by when it was heard, by our own clock."""
        for name, (number, _) in rows.items():
            if name not in self.heard or self.heard[name][0] != number:
                self.heard[name] = (number, now)
        self.heard = {name: heard for name, heard in self.heard.items() if name in rows}
        return [
            Gateway(name, name == me or (now - self.heard[name][1] < AWAY_SECONDS and not row.gone), row.ready)
            for name, (_, row) in sorted(rows.items())
            if not row.gone
        ]


class Switching:
    """The switches of a process. `start` before requests are taken, `aclose` at the end; commands in between."""

    def __init__(
        self,
        service: Service,
        switches: Switches,
        store: Store | None,
        connect: Callable[[], Awaitable[Bus]] | None,
        *,
        node: str,
        incarnation: str,
        compared: Compared | None = None,
        now: Callable[[], float] = perf_counter,
    ) -> None:
        """`connect` opens the bus that is shared with other gateways; None where there is none, and the workers of a machine
        hear of each other through the store. `incarnation` is new at each start."""
        self._service = service
        self._switches = switches
        self._shares_bus = connect is not None
        self._wall = service.wall
        self._now = now
        self._compared = compared
        self._board = Board(store, connect, node=node, incarnation=incarnation, wall=service.wall, heard=self._heard)
        self._under: dict[str, Under] = {}
        self._began = False
        self._looked = float("-inf")
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.settle = SETTLE_SECONDS
        self.events: deque[SwitchEvent] = deque(maxlen=KEPT_EVENTS)
        """What was noted of late, oldest first."""

    @property
    def me(self) -> str:
        """This process, as the others know it."""
        return self._board.me

    async def start(self) -> None:
        """Take up every switch where it was left; requests that come from now on meet it so."""
        try:
            await self._board.load()
        except SitsError as error:
            _log.error("the store does not say where the switches are, other gateways may: %s", error.message)
        self._board.start()
        if self._shares_bus and self._service.table.snapshot.switches:
            # What was retired while we were away must not be asked, not even by our first request.
            await self._board.joined(JOIN_SECONDS)
        self._apply()
        self._began = True
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def aclose(self) -> None:
        """Say that we leave, and end. Safe to repeat."""
        task, self._task = self._task, None
        await end(task, *(under.work for under in self._under.values()))
        for under in self._under.values():
            if self._board.course(under.key).live:
                under.row.gone = True
                self._tell(under)
        try:
            await self._board.save(rows=not self._shares_bus)
        except SitsError as error:
            _log.error("what was noted of the switches is not in the store: %s", error.message)
        await self._board.aclose()

    def take(self) -> None:
        """The configuration has changed."""
        self._apply()
        self._wake.set()

    # Commands

    def all(self) -> list[SwitchStatus]:
        """How every declared switch is."""
        return [self._status(under) for under in self._declared()]

    def status(self, name: str) -> SwitchStatus:
        """How one is.

        Raises:
            SitsError: `not_found`.
        """
        return self._status(self._find(name))

    async def history(self, name: str) -> list[SwitchEvent]:
        """What was noted of it, of earlier generations too, oldest first.

        Raises:
            SitsError: `not_found`, `state_unavailable`.
        """
        under = self._find(name)
        return [event_of(name, event) for event in await self._board.audit(under.key)]

    async def command(self, name: str, action: str, who: str, why: str) -> SwitchStatus:
        """`start`, `pause`, `resume`, `abort` or `promote` a switch, here and now; the others hear of it at once.

        Raises:
            SitsError: `not_found`; `conflict`, it cannot be done where the switch is.
        """
        under = self._find(name)
        course = self._board.course(under.key)
        note = noted_by(who, why, self._wall())
        if action == "start":
            self._check_free(under)
            delta = course.start(note)
        elif action == "pause":
            delta = course.pause(note, f"{self.me}-{note.at}"[-100:])
        else:
            delta = {"resume": course.resume, "abort": course.abort, "promote": course.promote}[action](note)
        self._note(under, delta)
        await self._share()
        self._wake.set()
        return self._status(under)

    # The turn

    async def _run(self) -> None:
        while True:
            try:
                await self._turn()
            except Exception:
                _log.exception("a defect while driving the switches")
            busy = any(self._board.course(under.key).live for under in self._under.values())
            try:
                async with asyncio.timeout(TURN_SECONDS if busy else IDLE_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _turn(self) -> None:
        """Look at every switch once."""
        if not self._service.table.snapshot.switches and not self._under:
            return
        try:
            await self._board.load(rows=not self._shares_bus)
        except SitsError as error:
            self._board.trouble = error.message
        self._apply()
        for under in self._declared():
            self._look(under)
        try:
            await self._board.save(rows=not self._shares_bus)
            self._board.trouble = ""
        except SitsError as error:
            if not self._board.trouble:
                _log.warning("the store has not got what was noted of the switches yet: %s", error.message)
            self._board.trouble = error.message
        await self._board.announce()

    def _look(self, under: Under) -> None:
        """Do this gateway's part of one switch, and note what is next."""
        course = self._board.course(under.key)
        if course.live:
            self._own_part(under, course)
        under.decision = decision = decide(course, under.switch.spec, self._moment(under, course))
        note = noted_by(self.me, getattr(decision, "why", ""), self._wall())
        if isinstance(decision, Start):
            self._note(under, course.start(note))
        elif isinstance(decision, Reach):
            self._note(under, course.reach(decision.phase, decision.step, note))
        elif isinstance(decision, Abort):
            self._note(under, course.abort(note))
        else:
            return
        # What comes next need not wait for the next turn: phases without a pace take none.
        self._wake.set()

    def _moment(self, under: Under, course: Course) -> Now:
        rows = rows_of(self._board.rows(under.key)) if course.live else {}
        if course.live:
            rows[self.me] = (under.beat, under.row)
        summed = seen((row for _, row in rows.values()), place_of(course))
        now = self._now()
        return Now(
            wall=self._wall(),
            here=now - under.since,
            requests=summed.new.requests,
            verdicts=judge(under.switch.spec, summed) if course.live else (),
            gateways=under.gateways(rows, self.me, now) if course.live else (),
            fault=under.fault,
            patience=2 * AWAY_SECONDS,
            settle=self.settle,
        )

    def _own_part(self, under: Under, course: Course) -> None:
        """What this gateway does itself in a phase, and telling of it."""
        before = under.row.ready
        if course.phase is Phase.DRAIN:
            self._let_go(under)
        elif under.row.ready < min(course.phase, Phase.VERIFY) and not under.fault and under.work is None:
            under.work = self._service.loop.create_task(self._prove(under, under.at[0]))
        if self._compared is not None:
            under.row.compared, under.row.differed = self._compared(under.switch.spec.to)
        if under.row.ready != before or self._now() - under.told >= BEAT_SECONDS:
            self._tell(under)

    async def _prove(self, under: Under, generation: int) -> None:
        """Find, warm and verify the new model, as far as the switch has come and from where we are."""
        steps = {Phase.PREPARE: prepare, Phase.WARM: warm, Phase.VERIFY: verify}
        try:
            while under.at[0] == generation:
                wanted = min(self._board.course(under.key).phase, Phase.VERIFY)
                if under.row.ready >= wanted:
                    return
                await steps[Phase(under.row.ready + 1)](self._service, under.switch.spec)
                if under.at[0] == generation:
                    under.row.ready += 1
        except SitsError as error:
            if under.at[0] == generation:
                under.fault = error.message
        finally:
            under.work = None
            self._apply()
            self._wake.set()

    def _let_go(self, under: Under) -> None:
        """See the last answers of the old model to their end; when their time is over, those that can go on elsewhere do."""
        old, spec = under.switch.spec.from_, under.switch.spec
        last = [x for x in self._service.live if _is_on(x, old) and (not spec.routes or _route(x) in spec.routes)]
        if self._now() - under.since >= spec.pace.drain_seconds:
            for x in last:
                if _can_go_on(x, spec.to):
                    _move_on(x, old, f"{old} is retired by switch {under.name}")
            last = [x for x in last if _is_on(x, old)]
        under.row.busy = len(last)
        if not last:
            under.row.ready = max(under.row.ready, int(Phase.DRAIN))

    # Facts

    def _note(self, under: Under, delta: Round) -> None:
        events = self._board.note(under.key, delta)
        if events:
            self._say(under.name, events)
            self._apply()

    def _heard(self, key: str, events: list[Event]) -> None:
        """Something came from another gateway, or from the store."""
        under = next((one for one in self._under.values() if one.key == key), None)
        if under is not None:
            if self._began:
                self._say(under.name, events)
            self._apply()
            self._wake.set()

    def _say(self, name: str, events: list[Event]) -> None:
        for event in events:
            self.events.append(event_of(name, event))
            why = f": {event.note.why}" if event.note.why else ""
            _log.info("switch %s (%d): %s by %s%s", name, event.generation, event.what, event.note.who, why)

    async def _share(self) -> None:
        """Let the others have what was noted, now. What cannot be told or kept is so at the next turn."""
        try:
            await self._board.hurry()
            await self._board.save(rows=not self._shares_bus)
        except SitsError as error:
            _log.warning("the store has not got what was noted of the switches yet: %s", error.message)

    def _tell(self, under: Under) -> None:
        under.beat += 1
        under.told = self._now()
        self._board.tell(under.key, under.row.packed(under.beat))

    # What requests meet

    def _apply(self) -> None:
        """Let requests meet every switch as it is known now."""
        moves: list[tuple[int, str, Move]] = []
        for under in self._declared():
            course = self._board.course(under.key)
            self._arrive(under, course)
            if course.idle or course.rolled_back:
                continue
            spec = under.switch.spec
            finished = course.phase >= Phase.DRAIN
            # A gateway that comes late asks the new model when it has seen for itself that it answers.
            share = share_of(course, spec) if finished or under.row.ready >= Phase.VERIFY else 0.0
            salt = blake3(f"{under.key} {course.generation}".encode()).digest()
            watch = under if course.live else None
            begun = course.started.at if course.started is not None else 0
            routes = frozenset(spec.routes)
            move = Move(under.name, spec.from_, spec.to, routes, share, finished, salt, watch, under.finished_at)
            moves.append((begun, under.name, move))
        self._switches.set([move for _, _, move in sorted(moves, key=lambda one: one[:2])])

    def _arrive(self, under: Under, course: Course) -> None:
        """Count anew where the switch is elsewhere than before."""
        at = (course.generation, place_of(course))
        if at == under.at:
            return
        if at[0] != under.at[0]:
            under.row, under.fault, under.heard = Row(at[1]), "", {}
        else:
            under.row.move(at[1])
        if course.phase is Phase.DRAIN or at[0] != under.at[0]:
            under.finished_at = self._now()
        under.at = at
        under.since = self._now()
        if not self._began:
            # It was here before this process was: its time goes on, by the same wall clock.
            under.since -= max(0.0, self._wall() - max((note.at for note in course.notes.values()), default=0) / 1000)
        under.told = float("-inf")

    def _declared(self) -> list[Under]:
        """The switches of the configuration in force. One that was declared anew for other models is another one."""
        declared = self._service.table.snapshot.switches
        for name, switch in declared.items():
            under = self._under.get(name)
            if under is None or under.key != key_of(name, switch.spec.from_, switch.spec.to):
                self._drop(name)
                self._under[name] = Under(name, switch)
            else:
                under.switch = switch
        for name in self._under.keys() - declared.keys():
            self._drop(name)
        return list(self._under.values())

    def _drop(self, name: str) -> None:
        under = self._under.pop(name, None)
        if under is not None and under.work is not None:
            under.work.cancel()

    # Small things

    def _find(self, name: str) -> Under:
        for under in self._declared():
            if under.name == name:
                return under
        raise SitsError(Code.NOT_FOUND, f"no switch {name[:200]!r} is declared; GET /v1/admin/switches lists them")

    def _check_free(self, under: Under) -> None:
        """Raise `conflict` while another switch of one of the two models is under way."""
        mine = {under.switch.spec.from_, under.switch.spec.to}
        for other in self._declared():
            spec = other.switch.spec
            if other is not under and mine & {spec.from_, spec.to} and self._board.course(other.key).live:
                raise SitsError(Code.CONFLICT, f"switch {other.name} of {spec.from_} to {spec.to} is under way")

    def _status(self, under: Under) -> SwitchStatus:
        course = self._board.course(under.key)
        return status_of(under.name, under.switch.spec, course, self._moment(under, course), under.decision, self._rows(under))

    def _rows(self, under: Under) -> dict[str, tuple[int, Row]]:
        rows = rows_of(self._board.rows(under.key))
        if self._board.course(under.key).live:
            rows[self.me] = (under.beat, under.row)
        return rows


def _route(x: Exchange) -> str:
    return x.choice.name if x.choice is not None else ""


def _is_on(x: Exchange, model: str) -> bool:
    """Whether a model is being asked for this exchange."""
    return any(attempt.target.name == model and not attempt.over.happened for attempt in x.attempts)


def _can_go_on(x: Exchange, new: str) -> bool:
    """Whether a stream can go on at the new model from where it is. One that would have to be said anew stays where it is."""
    target = x.table.targets.get(new)
    if target is None or x.conduct is None or not x.conduct.continues or not x.stream:
        return False
    if x.continued is None:
        return not x.content
    try:
        _, onset = x.continued.write(target.dialect, target.upstream_model, prefill="prefill" in target.capabilities)
    except SitsError:
        return False
    return onset.mode != "replay"


def _move_on(x: Exchange, model: str, why: str) -> None:
    """End the attempts of a model that is given up, so that another one goes on with the answer."""
    for attempt in list(x.attempts):
        if attempt.target.name == model:
            attempt.stop(SitsError(Code.UPSTREAM_BROKEN, why))
