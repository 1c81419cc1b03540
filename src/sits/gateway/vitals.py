"""The vital signs of all targets, in one hand: what their servers say, what Prometheus knows, what follows for routing.

Nothing here is waited for by a request: it reads `sick` and `free`, and the policies read what was written into their states.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from sits.engines.base import Engine
from sits.engines.vitals import Vitals
from sits.gateway.vitals_queries import HealthChange, HealthRow, Questions, Verdicts
from sits.gateway.vitals_servers import Servers, VitalsRow
from sits.gateway.vitals_troubles import Outcome
from sits.gateway.vitals_words import Redact, figure
from sits.resources.vitals import HealthSpec, VitalsSpec, filled, variables
from sits.routing.policies.state import TargetState
from sits.routing.target import Target

_log = logging.getLogger("sits.gateway")

MEMORY_QUERY_SECONDS = 5.0
"""How often a `memoryQuery` is asked."""
CHANGES = 256
"""Changes of health that are kept."""


class Declared(msgspec.Struct, frozen=True):
    """What a model declares of its vital signs."""

    vitals: VitalsSpec | None = None
    health: HealthSpec | None = None


class VitalsWatch:
    """Of one process. `tick` is called by its owner several times a second; `aclose` ends everything that is under way.

    `states` is looked into whenever a server tells something; `engine_of` makes an engine for a base URL; `told` hears of every
    model that Prometheus says is sick, or well again; `chance` gives numbers from 0 to 1; `redact` masks what no label may
    show.
    """

    def __init__(
        self,
        states: Mapping[str, TargetState],
        engine_of: Callable[[str], Engine],
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        chance: Callable[[], float],
        told: Callable[[HealthChange], None] | None = None,
        redact: Redact = str,
    ) -> None:
        self.free: dict[str, float] = {}
        """By target, the share of accelerator memory that is free; who is not in it does not say."""
        self.changes: deque[HealthChange] = deque(maxlen=CHANGES)
        """Of health, oldest first."""
        self.sick: frozenset[str] = frozenset()
        """Targets to be left alone by what Prometheus says: of a route never more than breakers may leave out. One that is alone
        in its route may be among them, and is asked in any case."""
        self._wall = wall
        self._clock = clock
        self._told = told
        self._servers = Servers(states, engine_of, clock=clock, chance=chance)
        self._questions = Questions(engine_of, clock=clock, chance=chance)
        self._verdicts = Verdicts(redact)
        self._memory: dict[str, str] = {}
        """Target -> its memory query."""
        self._memory_trouble: dict[str, str] = {}

    @property
    def vitals(self) -> Mapping[str, Vitals]:
        """By target, what its server said last; nothing that is too old."""
        return self._servers.vitals

    @property
    def answers(self) -> Mapping[Outcome, int]:
        """Questions to Prometheus since the start, by what came of them."""
        return self._questions.troubles.counts

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why, for each name in `sick`."""
        return self._verdicts.reasons

    def take(
        self,
        targets: Mapping[str, Target],
        declared: Mapping[str, Declared],
        routes: Iterable[Sequence[str]],
        *,
        prometheus: str | None,
        most_out: float,
    ) -> None:
        """This is in force now: all targets, what they declare if anything, and the names behind each route. What they declare
        has no faults (`vitals_faults`)."""
        self._servers.take(targets, {name: one.vitals for name, one in declared.items() if one.vitals is not None})
        wanted: dict[str, float] = {}
        health: dict[str, tuple[HealthSpec, str]] = {}
        self._memory = {}
        for name, one in declared.items():
            if name not in targets:
                continue
            if one.health is not None:
                text = self._text(one.health.query, targets[name])
                health[name] = (one.health, text)
                wanted[text] = min(one.health.every_seconds, wanted.get(text, float("inf")))
            if one.vitals is not None and one.vitals.memory_query is not None and not one.vitals.off:
                self._memory[name] = text = self._text(one.vitals.memory_query, targets[name])
                wanted[text] = min(MEMORY_QUERY_SECONDS, wanted.get(text, float("inf")))
        self._questions.take(wanted, prometheus)
        asked = self._questions.asked
        specs = {name: (spec, asked[text]) for name, (spec, text) in health.items()}
        changes = self._verdicts.take(specs, routes, most_out, self._clock(), self._wall())
        self.sick = self._verdicts.sick
        self._say(changes)
        self._measure_memory()

    @staticmethod
    def _text(query: str, target: Target) -> str:
        spec = target.model.spec
        return filled(query, variables(target.name, target.upstream_model, spec.endpoint, spec.zone, spec.version))

    def tick(self, now: float) -> None:
        """Ten times a second: ask whom it is time to ask, judge what came."""
        self._servers.tick(now)
        self._questions.tick(now)
        self._measure_memory()
        changes = self._verdicts.look(now, self._wall())
        if changes:
            self.sick = self._verdicts.sick
            self._say(changes)

    def _say(self, changes: Sequence[HealthChange]) -> None:
        for change in changes:
            self.changes.append(change)
            level = logging.WARNING if change.sick else logging.INFO
            word = "sick" if change.sick else "well again"
            _log.log(level, "%s is %s by its health query: %s", change.target, word, change.reason or "its values are good")
            if self._told is not None:
                self._told(change)

    def out_of(self, names: tuple[str, ...], out: frozenset[str]) -> frozenset[str]:
        """Who of a route is left out, when `out` are already: together no more than breakers may leave out. Ask while `sick`."""
        return self._verdicts.out_of(names, out)

    async def aclose(self) -> None:
        """End what is under way; what was told is withdrawn."""
        await self._servers.aclose()
        await self._questions.aclose()

    # Memory

    def _measure_memory(self) -> None:
        """What is free, from the best source that there is: a query, what the server says in bytes, its KV cache (which it sets
        aside at the start, so that its share in use is what matters of that memory)."""
        free: dict[str, float] = {}
        for name, vitals in self._servers.vitals.items():
            if vitals.memory_total and vitals.memory_used is not None:
                free[name] = max(0.0, 1.0 - vitals.memory_used / vitals.memory_total)
            elif vitals.kv is not None:
                free[name] = 1.0 - vitals.kv
        self._memory_trouble = {}
        for name, text in self._memory.items():
            values = self._questions.asked[text].values
            if values and 0.0 <= max(values) <= 1.0:
                free[name] = 1.0 - max(values)
            elif values:
                self._memory_trouble[name] = f"memoryQuery: {figure(max(values))} is no share"
        self.free = free

    # Pages

    def rows(self) -> tuple[list[VitalsRow], list[HealthRow]]:
        """All targets that are asked, and all that have a health query."""
        now = self._clock()
        return self._servers.rows(now), self._verdicts.rows(now)

    def status(self) -> dict[str, Any]:
        """For `/v1/admin/vitals`: every target, every verdict, and what changed of late, newest first."""
        targets, health = self.rows()
        asked = {row.target for row in targets}
        targets += [VitalsRow(name, "unasked") for name in self._memory if name not in asked]
        listed = []
        for row in sorted(targets, key=lambda row: row.target):
            told = msgspec.to_builtins(row)
            if told["vitals"] is not None:
                del told["vitals"]["at"]  # of a clock that nobody outside has; the age says it
            trouble = "; ".join(filter(None, (row.trouble, self._memory_trouble.get(row.target, ""))))
            listed.append({**told, "trouble": trouble, "memory_free": self.free.get(row.target)})
        return {
            "data": listed,
            "health": msgspec.to_builtins(health),
            "changes": msgspec.to_builtins(list(reversed(self.changes))),
        }
