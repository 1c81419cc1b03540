"""Everything that routes learn from outcomes, in one place: decisions, signals, what was learned, and keeping it over a restart.

Where there are other processes of the service each tells the others what came of its decisions, so that all learn from all.
A route that declares no `learning` is not here. Nothing waits but `load` and `save`, and nothing takes long: learning from an
outcome is some 60 us, so `tick` does as much as fits into `SPENT` and goes on the next time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from time import perf_counter
from typing import Any, Final
from zlib import crc32

import msgspec

from sits.inner.errors import SitsError
from sits.ports.store.base import Put, Store
from sits.resources.complexity import ComplexitySpec
from sits.routing.learning.learner import Decision, Learner, LearnerState
from sits.state.outcomes.awaiting import MOST, Awaiting, Heard, Pending, Room
from sits.state.outcomes.outcome import LABELS, Outcome
from sits.state.outcomes.retries import WINDOW, Retries

PREFIX: Final = "learning/"
MOST_ROUTES: Final = 1000
"""Routes whose state is read at the start."""
MOST_TOLD: Final = 256
"""Outcomes that wait to be told to the others; the oldest go first."""
MOST_HEARD: Final = 4096
"""Outcomes of others that are not learned from yet; the oldest go first."""
SPENT: Final = 0.002
"""Seconds that one `tick` may take."""
GIVEN_WAY: Final = 32
"""Decisions that give way at once where there is no room: who has most of it is looked for only so often."""
_STATE = msgspec.json.Decoder(LearnerState)


class Declared(msgspec.Struct, frozen=True):
    """What a route declares: its spec, and what each arm costs where arms are not tiers."""

    spec: ComplexitySpec
    prices: Mapping[str, float] | None = None


class Learned(msgspec.Struct, frozen=True, array_like=True):
    """What came of a decision, for the other processes of this service."""

    route: str
    terms: int
    """Checksum of the learner's."""
    decision: Decision
    score: float


_write = msgspec.msgpack.Encoder().encode
_read = msgspec.msgpack.Decoder(list[Learned]).decode


class _Route:
    __slots__ = ("awaiting", "declared", "learner", "retries", "saved", "terms")

    def __init__(self, declared: Declared, room: Room) -> None:
        learning = declared.spec.learning
        assert learning is not None
        self.declared = declared
        self.learner = Learner(declared.spec, declared.prices)
        self.terms = crc32(self.learner.terms.encode())
        window = min(WINDOW, learning.wait_seconds)
        self.awaiting = Awaiting(learning.wait_seconds, learning.signals, room, window)
        self.retries: Retries | None = Retries(window) if learning.signals.retry > 0.0 else None
        self.saved: int = 0

    def follow(self, earlier: _Route) -> bool:
        """Take over what waits, where rewards are by the same terms and learning goes on."""
        learning = self.declared.spec.learning
        assert learning is not None
        if learning.freeze or earlier.terms != self.terms:
            return False
        self.awaiting, self.retries = earlier.awaiting, earlier.retries
        self.awaiting.wait = learning.wait_seconds
        self.awaiting.window = min(WINDOW, learning.wait_seconds)
        if self.retries is not None:
            self.retries.window = self.awaiting.window
        return True


class Outcomes:
    """Of one worker. `name` tells workers that share a store apart; it stays the same over a restart. `clock` tells how long
    learning takes; `most` decisions are known of at a time."""

    def __init__(self, name: str, clock: Callable[[], float] = perf_counter, most: int = MOST) -> None:
        self._name = name
        self._clock = clock
        self._room = Room(most)
        self._routes: dict[str, _Route] = {}
        self._loaded: dict[str, LearnerState] = {}
        self._told: deque[Learned] = deque(maxlen=MOST_TOLD)
        self._heard: deque[Learned] = deque(maxlen=MOST_HEARD)
        self._turn = 0
        self.lost = 0
        """Outcomes that others were not told, or that came from them too fast."""
        self.shared = False
        """Whether there are others to tell."""
        self.trouble: str = ""
        """Why what was learned is not kept, or could not be read; empty when all is well."""

    @property
    def any(self) -> bool:
        """Whether a route learns."""
        return bool(self._routes)

    @property
    def unsaved(self) -> bool:
        """Whether something was learned that is not kept."""
        return any(held.learner.outcomes != held.saved for held in self._routes.values())

    def declare(self, routes: Mapping[str, Declared]) -> None:
        """The routes that learn, by name, now. One that is declared as before goes on; another one starts with what was kept."""
        before, self._routes = self._routes, {}
        for name, declared in routes.items():
            if declared.spec.learning is None:
                continue
            there = before.get(name)
            if there is not None:
                self._loaded[name] = there.learner.to_state()
            if there is None or there.declared != declared:
                earlier, there = there, _Route(declared, self._room)
                self._go_on(name, there)
                if earlier is not None and there.follow(earlier):
                    del before[name]
            else:
                del before[name]
            there.declared = declared
            self._routes[name] = there
        for gone in before.values():
            gone.awaiting.clear()
        self._loaded = {name: state for name, state in self._loaded.items() if name in self._routes}

    def goes_by(self, route: str, spec: ComplexitySpec) -> bool:
        """Whether a route learns, and by this."""
        held = self._routes.get(route)
        return held is not None and (held.declared.spec is spec or held.declared.spec == spec)

    def tier(self, route: str, load: float, complexity: float) -> str:
        """The tier by the rule of a route as it is now."""
        return self._routes[route].learner.tier(load, complexity)

    def decide(
        self,
        route: str,
        request_id: str,
        key: str | None,
        load: float,
        complexity: float,
        arms: Sequence[str],
        draw: float,
        now: float,
        usual: str | None = None,
    ) -> Decision:
        """Choose for a request, and wait for what comes of it; as `Learner.decide`. Say when it is over: `ended`."""
        held = self._routes[route]
        decision = held.learner.decide(load, complexity, arms, draw, usual)
        if decision.learns:
            if self._room.held >= self._room.most:
                self._make_room(now)
            held.awaiting.add(request_id, key, decision, now)
        return decision

    def asked(self, route: str, decision: Decision, text: str, now: float) -> None:
        """The text of a request, its last user message: is it one that was just asked? After `decide`."""
        held = self._routes.get(route)
        if held is None or held.retries is None:
            return
        pending = held.awaiting.under_way(decision)
        # Those who have no key cannot be told apart, so whether they ask again is not known.
        if pending is None or pending.key is None:
            return
        earlier = held.retries.asked(pending.key, pending, text, now)
        if earlier is not None:
            held.awaiting.heard(earlier, "retry", LABELS["retried"])

    def ended(self, route: str, decision: Decision, answered: bool, now: float) -> None:
        """The request is over, and outcomes are waited for from now on. Unless it was `answered`, by whom was chosen: then it
        teaches nothing."""
        held = self._routes.get(route)
        if held is not None:
            held.awaiting.ended(decision, answered, now)

    def heard(self, outcome: Outcome, key: str | None, *, admin: bool = False, decision: Decision | None = None) -> Heard | None:
        """Take in a signal about the last request of this id by this key, perhaps of an administrator (`admin`); None when there
        is none, or it is not that of this `decision`."""
        found: tuple[Awaiting, Pending] | None = None
        for held in self._routes.values():
            pending = held.awaiting.find(outcome.request_id, key)
            if pending is None or (decision is not None and pending.decision is not decision):
                continue
            if found is None or pending.number > found[1].number:
                found = held.awaiting, pending
        if found is None:
            return None
        return found[0].heard(found[1], outcome.kind, outcome.score, admin=admin)

    def keys(self, request_id: str) -> set[str | None]:
        """Who asked under this id, of those who are known still."""
        return {key for held in self._routes.values() for key in held.awaiting.keys(request_id)}

    def due(self, now: float) -> bool:
        """Whether there is something to learn from."""
        return bool(self._heard) or any(held.awaiting.due(now) for held in self._routes.values())

    def tick(self, now: float) -> int:
        """Learn from what is settled by now, as far as time allows; how many decisions. To be called ten times a second or so.

        Decisions of a route are learned from in the order in which their answers were over. Each time another route comes first.
        """
        until = self._clock() + SPENT
        sources: list[str | None] = [*self._routes, None]
        self._turn = turn = (self._turn + 1) % len(sources)
        count = 0
        for name in [*sources[turn:], *sources[:turn]]:
            while self._heard if name is None else self._routes[name].awaiting.due(now):
                count += self._take_in() if name is None else self._learn(name, now)
                if self._clock() >= until:
                    return count
        return count

    def told(self) -> bytes:
        """What the others are to learn from, since the last time; empty when there is nothing."""
        if not self._told:
            return b""
        written: bytes = _write(list(self._told))
        self._told.clear()
        return written

    def hear(self, told: bytes) -> None:
        """Learn, at the next `tick`s, from what another one was `told`; what cannot be read is said in `trouble`."""
        try:
            found = _read(told)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            self.trouble = f"what another gateway learned from cannot be read: {error}"
            return
        for one in found:
            if not _sound(one):
                self.trouble = "what another gateway learned from cannot be: a number is out of range"
                continue
            self.lost += len(self._heard) == MOST_HEARD
            self._heard.append(one)

    async def load(self, store: Store) -> None:
        """Go on from what this worker kept, or else another one that shares the store. What cannot be read is left alone and said
        in `trouble`; nothing is raised."""
        own = f"{PREFIX}{self._name}/"
        try:
            entries = [*await store.scan(own, limit=MOST_ROUTES)]
            others = await store.scan(PREFIX, limit=MOST_ROUTES)
        except SitsError as error:
            self.trouble = error.message
            return
        # Ours last: it counts. Of the others whoever has learned most.
        for entry in [*(one for one in others if not one.key.startswith(own)), *entries]:
            name = entry.key.removeprefix(PREFIX).partition("/")[2]
            try:
                state = _STATE.decode(entry.value)
            except (msgspec.DecodeError, RecursionError) as error:
                self.trouble = f"what was learned for {name!r} cannot be read: {error}"
                continue
            known = self._loaded.get(name)
            if known is None or entry.key.startswith(own) or state.bandit.step > known.bandit.step:
                self._loaded[name] = state
        for name, held in self._routes.items():
            if held.learner.outcomes == 0:
                self._go_on(name, held)

    async def save(self, store: Store) -> bool:
        """Keep what was learned since the last time; whether it is kept. A kill loses what came after."""
        changed = {name: held for name, held in self._routes.items() if held.learner.outcomes != held.saved}
        marks = {name: held.learner.outcomes for name, held in changed.items()}
        puts = [Put(f"{PREFIX}{self._name}/{name}", msgspec.json.encode(h.learner.to_state())) for name, h in changed.items()]
        try:
            for start in range(0, len(puts), 100):
                await store.commit(puts[start : start + 100])
        except SitsError as error:
            self.trouble = error.message
            return False
        for name, held in changed.items():
            held.saved = marks[name]
        self.trouble = ""
        return True

    def status(self) -> dict[str, Any]:
        """For people: what each route has learned."""
        return {
            "trouble": self.trouble,
            "room": {"held": self._room.held, "most": self._room.most},
            "lost": self.lost,
            "routes": {
                name: {
                    **held.learner.status(),
                    "waiting": len(held.awaiting),
                    "retries": held.retries.found if held.retries is not None else 0,
                    "tally": msgspec.to_builtins(held.awaiting.tally),
                }
                for name, held in self._routes.items()
            },
        }

    def _learn(self, name: str, now: float) -> bool:
        """One piece of what is due for a route; whether it was a decision to learn from."""
        held = self._routes[name]
        settled = held.awaiting.next(now)
        if settled is None:
            return False
        held.learner.learn(settled.decision, settled.score)
        if self.shared:
            self.lost += len(self._told) == MOST_TOLD
            self._told.append(Learned(name, held.terms, settled.decision, settled.score))
        return True

    def _take_in(self) -> bool:
        """Learn from what came of a decision of another process, where it is by the terms of here."""
        one = self._heard.popleft()
        held = self._routes.get(one.route)
        if held is not None and held.terms == one.terms:
            held.learner.learn(one.decision, one.score)
        return False

    def _make_room(self, now: float) -> None:
        """Who has most gives way."""
        largest = max((held.awaiting for held in self._routes.values()), key=lambda awaiting: awaiting.kept)
        for _ in range(GIVEN_WAY):
            if not largest.give_way(now):
                return

    def _go_on(self, name: str, held: _Route) -> None:
        state = self._loaded.get(name)
        if state is None:
            return
        try:
            held.learner.from_state(state)
        except ValueError as error:
            self.trouble = f"what was learned for {name!r} is damaged: {error}"


def _sound(one: Learned) -> bool:
    """Whether its numbers can be those of a decision: what is learned from others would stay wrong for good."""
    decision, choice = one.decision, one.decision.choice
    if len(decision.arms) != len(choice.propensities) or choice.arm not in decision.arms or not -1.0 <= one.score <= 1.0:
        return False
    return (
        isfinite(decision.load)
        and isfinite(decision.complexity)
        and 0.0 < choice.propensity <= 1.0
        and all(0.0 < chance <= 1.0 for chance in choice.propensities)
    )
