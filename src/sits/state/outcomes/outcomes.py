"""Everything that routes learn from outcomes, in one place: decisions, signals, what was learned, and keeping it over a restart.

Where there are other processes of the service each tells the others what came of its decisions, so that all learn from all.
A route that declares no `learning` is not here. Nothing waits but `load` and `save`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final
from zlib import crc32

import msgspec

from sits.inner.errors import SitsError
from sits.ports.store.base import Put, Store
from sits.resources.complexity import ComplexitySpec
from sits.routing.learning.learner import Decision, Learner, LearnerState
from sits.state.outcomes.awaiting import Awaiting, Heard
from sits.state.outcomes.outcome import LABELS, Outcome
from sits.state.outcomes.retries import Retries

PREFIX: Final = "learning/"
MOST_ROUTES: Final = 1000
"""Routes whose state is read at the start."""
MOST_TOLD: Final = 256
"""Outcomes that wait to be told to the others; the oldest go first."""
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

    def __init__(self, declared: Declared) -> None:
        learning = declared.spec.learning
        assert learning is not None
        self.declared = declared
        self.learner = Learner(declared.spec, declared.prices)
        self.terms = crc32(self.learner.terms.encode())
        self.awaiting = Awaiting(learning.wait_seconds, learning.signals)
        self.retries: Retries | None = Retries(min(120.0, learning.wait_seconds)) if learning.signals.retry > 0.0 else None
        self.saved: int = 0


class Outcomes:
    """Of one worker. `name` tells workers that share a store apart; it stays the same over a restart."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._routes: dict[str, _Route] = {}
        self._loaded: dict[str, LearnerState] = {}
        self._told: deque[Learned] = deque(maxlen=MOST_TOLD)
        self.shared = False
        """Whether there are others to tell."""
        self.trouble: str = ""
        """Why what was learned is not kept, or could not be read; empty when all is well."""

    @property
    def any(self) -> bool:
        """Whether a route learns."""
        return bool(self._routes)

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
                there = _Route(declared)
                self._go_on(name, there)
            there.declared = declared
            self._routes[name] = there
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
        """Choose for a request, and wait for what comes of it; as `Learner.decide`."""
        held = self._routes[route]
        decision = held.learner.decide(load, complexity, arms, draw, usual)
        if decision.learns:
            # Those who have no key cannot be told apart, so whether they ask again is not known.
            held.awaiting.add(request_id, key, decision, now, watched=held.retries is not None and key is not None)
        return decision

    def asked(self, route: str, key: str | None, request_id: str, text: str, now: float) -> None:
        """The text of a request, its last user message: is it one that was just asked? After `decide`."""
        held = self._routes.get(route)
        if held is None or held.retries is None or key is None:
            return
        earlier = held.retries.asked(key, request_id, text, now)
        if earlier is not None:
            held.awaiting.heard(Outcome(earlier, "retry", LABELS["retried"], now))

    def forget(self, route: str, request_id: str) -> None:
        """The request failed, or somebody else answered than was chosen: it teaches nothing."""
        held = self._routes.get(route)
        if held is not None:
            held.awaiting.forget(request_id)

    def heard(self, outcome: Outcome, key: str | None = None, admin: bool = True) -> Heard | None:
        """Take in a signal; None when no such request is known, or it was somebody else's and `admin` is not set."""
        for held in self._routes.values():
            pending = held.awaiting.find(outcome.request_id)
            if pending is not None and (admin or pending.key == key):
                return held.awaiting.heard(outcome)
        return None

    def tick(self, now: float) -> int:
        """Learn from what is settled by now; how many decisions. To be called every second or so."""
        count = 0
        for name, held in self._routes.items():
            for settled in held.awaiting.due(now):
                held.learner.learn(settled.decision, settled.score)
                count += 1
                if self.shared and settled.decision.learns:
                    self._told.append(Learned(name, held.terms, settled.decision, settled.score))
        return count

    def told(self) -> bytes:
        """What the others are to learn from, since the last time; empty when there is nothing."""
        if not self._told:
            return b""
        written: bytes = _write(list(self._told))
        self._told.clear()
        return written

    def hear(self, told: bytes) -> None:
        """Learn from what another one was `told`; what cannot be read is said in `trouble`."""
        try:
            for one in _read(told):
                held = self._routes.get(one.route)
                if held is not None and held.terms == one.terms:
                    held.learner.learn(one.decision, one.score)
        except (msgspec.DecodeError, ValueError) as error:
            self.trouble = f"what another gateway learned from cannot be read: {error}"

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
            except msgspec.DecodeError as error:
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

    def _go_on(self, name: str, held: _Route) -> None:
        state = self._loaded.get(name)
        if state is None:
            return
        try:
            held.learner.from_state(state)
        except ValueError as error:
            self.trouble = f"what was learned for {name!r} is damaged: {error}"
