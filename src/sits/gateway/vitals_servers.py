"""The servers of models, asked for their vital signs: each place once, however many models are behind it, one question at a time.

A target is asked by its own engine, so that credential, TLS and pool are those of its requests. What a server said is written
into the `TargetState` of its targets and is withdrawn when it is too old. A question that fails is no failure of the target:
breakers hear nothing of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from sits.engines.base import Engine
from sits.engines.vitals import Telling, Vitals, default_path, vitals_of
from sits.inner.errors import SitsError
from sits.ports.ending import end
from sits.resilience.pressure.asking import get
from sits.resources.vitals import VitalsSpec
from sits.routing.policies.state import TargetState
from sits.routing.target import Target

_log = logging.getLogger("sits.gateway")

STALE_SECONDS = 5.0
STALE_TIMES = 2.5
"""What was said counts so long, or so many times the pace where that is longer."""
NONE_SECONDS = 60.0
"""When a server that has no metrics, or refuses them, is asked again: it may have been replaced by one that has."""
AWAY_SECONDS = 10.0
"""The longest pause before one that did not answer is asked again."""
_JITTER = 0.1
"""Of the pace, up or down: gateways that started together do not ask together."""
_NO_METRICS = frozenset((404, 405, 501))
"""llama.cpp without --metrics says 501, SGLang without --enable-metrics 404."""
_REFUSED = frozenset((401, 403))

State = Literal["new", "told", "away", "none", "refused", "inside", "unasked"]


class VitalsRow(msgspec.Struct, frozen=True):
    """How a target is, for people and machines."""

    target: str
    state: State
    """`told`, or why it is not: `new` (not answered yet), `away` (does not answer), `none` (has no metrics), `refused` (asks for
    another credential), `unasked`; `inside`: an engine of this gateway."""
    asked_at: str = ""
    """Where, without credentials."""
    every_seconds: float = 0.0
    asked: int = 0
    failed: int = 0
    vitals: Vitals | None = None
    """What counts now; None when it is too old."""
    age_seconds: float | None = None
    page_bytes: int = 0
    trouble: str = ""


class _Place:
    """One page of one server, and the targets that it tells of."""

    __slots__ = ("asked", "due", "engine", "every", "failed", "failures", "fixed", "like", "members", "name", "page_bytes",
                 "path", "said", "state", "task", "telling", "trouble", "troubles")  # fmt: skip

    def __init__(self, name: str, engine: Engine, fixed: bytes, path: str, like: str, due: float) -> None:
        self.name = name
        self.engine = engine
        self.fixed = fixed
        self.path = path
        self.like = like
        self.members: dict[str, str] = {}
        """Target -> the server's own id of its model."""
        self.every = float("inf")
        self.due = due
        self.task: asyncio.Task[None] | None = None
        self.state: State = "new"
        self.said = ""
        """The state that the log has had last."""
        self.trouble = ""
        self.troubles: dict[str, str] = {}
        """Of single models of a server that tells of others."""
        self.asked = self.failed = self.failures = self.page_bytes = 0
        self.telling = engine if isinstance(engine, Telling) else None
        """An engine of this gateway, which is not asked over the network."""

    @property
    def stale(self) -> float:
        return max(STALE_SECONDS, STALE_TIMES * self.every)


class Servers:
    """`states` is looked at whenever there is news, so it may change; `engine_of` makes an engine for metrics at another place
    than a model's, which is closed here; `chance` gives numbers from 0 to 1."""

    def __init__(
        self,
        states: Mapping[str, TargetState],
        engine_of: Callable[[str], Engine],
        *,
        clock: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        self.vitals: dict[str, Vitals] = {}
        """By target, what counts now."""
        self._states = states
        self._engine_of = engine_of
        self._clock = clock
        self._chance = chance
        self._places: dict[tuple[str, str], _Place] = {}
        self._by_target: dict[str, _Place] = {}
        self._own: dict[str, Engine] = {}
        """Engines for metrics at another place, by URL."""
        self._leaving: set[asyncio.Task[None]] = set()

    def take(self, targets: Mapping[str, Target], declared: Mapping[str, VitalsSpec]) -> None:
        """From now on these are the targets. A place that stays keeps its pace and what it said of those that are still there."""
        now = self._clock()
        asked = {name: (place.name, place.members[name]) for name, place in self._by_target.items()}
        before, self._places, self._by_target = self._places, {}, {}
        for name, target in targets.items():
            spec = declared.get(name) or VitalsSpec()
            if not spec.off:
                self._add(name, target, spec, name in declared, before, now)
        wanted = {place.engine for place in self._places.values()}
        for url in [url for url, engine in self._own.items() if engine not in wanted]:
            self._aside(self._own.pop(url))
        kept = {id(place) for place in self._places.values()}
        for place in before.values():
            if id(place) not in kept and place.task is not None:
                place.task.cancel()
                self._leave(place.task)
        for name in list(self.vitals):
            now_at = self._by_target.get(name)
            if now_at is None or asked[name] != (now_at.name, now_at.members[name]):
                self._withdraw(name)  # It was said by another server, or of another model.

    def _add(
        self, name: str, target: Target, spec: VitalsSpec, declared: bool, before: Mapping[tuple[str, str], _Place], now: float
    ) -> None:
        inside = isinstance(target.engine, Telling)
        # A memory query alone says nothing of how the server is to be asked.
        asked = declared and (spec.endpoint is not None or spec.memory_query is None)
        path = spec.path or default_path(target.provider) or (_declared_path(target.provider) if asked else None)
        if path is None and not inside:
            return
        where = name if inside else (spec.endpoint or target.model.spec.endpoint or "").rstrip("/")
        key = (where, path or "")
        place = self._places.get(key)
        if place is None:
            place = self._place(key, target, spec, inside, before.get(key), now)
            if place is None:
                return
            self._places[key] = place
        place.members[name] = target.upstream_model
        place.every = min(place.every, spec.every_seconds)
        if place.state != "none" and place.state != "refused":
            place.due = min(place.due, now + place.every)  # It may have been asked seldom before.
        self._by_target[name] = place

    def _place(
        self, key: tuple[str, str], target: Target, spec: VitalsSpec, inside: bool, before: _Place | None, now: float
    ) -> _Place | None:
        where, path = key
        engine, fixed = target.engine, target.fixed
        if spec.endpoint is not None and not inside:
            try:
                engine = self._own.get(where) or self._engine_of(where)
            except (ValueError, SitsError) as error:
                _log.error("%s cannot be asked for its vital signs: %s", target.name, error)
                return None
            self._own[where] = engine
            fixed = b""
        if before is not None and before.engine is engine and before.fixed == fixed:
            before.members, before.every = {}, float("inf")
            return before
        # The first questions of many places are spread over a second.
        place = _Place(f"{where}{path}", engine, fixed, path, target.provider, now + self._chance())
        if place.telling is not None:
            place.state, place.due = "inside", now
        return place

    # Time

    def tick(self, now: float) -> None:
        """Call this a few times a second: ask whom it is time to ask, withdraw what is too old."""
        for place in self._places.values():
            if place.due > now or place.task is not None:
                continue
            place.due = now + place.every * (1.0 + _JITTER * (2.0 * self._chance() - 1.0))
            place.asked += 1
            if place.telling is not None:
                for name in place.members:
                    self._told(name, place.telling.vitals(now))
            else:
                place.task = asyncio.get_running_loop().create_task(self._ask(place))
        old = [name for name, one in self.vitals.items() if now - one.at > self._by_target[name].stale]
        for name in old:
            self._withdraw(name)

    async def aclose(self) -> None:
        """End what is under way and withdraw everything."""
        await end(*(place.task for place in self._places.values()))
        self.take({}, {})
        await asyncio.gather(*self._leaving, return_exceptions=True)

    async def _ask(self, place: _Place) -> None:
        try:
            status, page = await get(place.engine, place.path, place.fixed)
            now = self._clock()
            place.page_bytes = len(page)
            if status == 200:
                self._read(place, page, now)
            elif status in _NO_METRICS:
                self._put_off(place, "none", f"GET {place.path} was answered with {status}: it has no metrics", NONE_SECONDS)
            elif status in _REFUSED:
                self._put_off(place, "refused", f"GET {place.path} was answered with {status}", NONE_SECONDS)
            else:
                self._away(place, f"GET {place.path} was answered with {status}")
        except SitsError as error:
            self._away(place, error.message)
        finally:
            place.task = None

    def _read(self, place: _Place, page: bytes, now: float) -> None:
        """A page came. It may tell of some of the targets only."""
        read: dict[str, Vitals] = {}
        place.troubles = {}
        for model in dict.fromkeys(place.members.values()):
            try:
                read[model] = vitals_of(page, model, now, place.like)
            except SitsError as error:
                place.troubles[model] = error.message
        if not read:
            said = "; ".join(dict.fromkeys(place.troubles.values()))
            self._put_off(place, "none", f"GET {place.path}: {said}", NONE_SECONDS)
            return
        place.failures, place.state, place.trouble = 0, "told", ""
        place.like = next(iter(read.values())).server
        self._say(place)
        for name, model in place.members.items():
            if model in read and self._by_target.get(name) is place:
                self._told(name, read[model])

    def _away(self, place: _Place, trouble: str) -> None:
        place.failures += 1
        pause = min(AWAY_SECONDS, place.every * 2.0 ** min(place.failures, 10))
        self._put_off(place, "away", trouble, max(pause, place.every))

    def _put_off(self, place: _Place, state: State, trouble: str, seconds: float) -> None:
        place.failed += 1
        place.state, place.trouble = state, trouble
        place.due = max(place.due, self._clock() + seconds * (1.0 + _JITTER * self._chance()))
        self._say(place)

    def _say(self, place: _Place) -> None:
        """Log what has changed, once. That a server is away is the breakers' to shout."""
        if place.state == place.said:
            return
        first, place.said = not place.said, place.state
        if place.state in ("none", "refused"):
            _log.warning("%s tells nothing of its load: %s", place.name, place.trouble)
        elif not first or place.state == "away":
            _log.info("%s: %s", place.name, place.trouble or "tells of its load again")

    # States

    def _told(self, name: str, vitals: Vitals) -> None:
        self.vitals[name] = vitals
        state = self._states.get(name)
        if state is not None:
            state.told(vitals.running or 0, vitals.waiting or 0, -1.0 if vitals.kv is None else vitals.kv)

    def _withdraw(self, name: str) -> None:
        del self.vitals[name]
        state = self._states.get(name)
        if state is not None:
            state.untold()

    def _aside(self, engine: Engine) -> None:
        async def go() -> None:
            await engine.aclose()

        self._leave(asyncio.get_running_loop().create_task(go()))

    def _leave(self, task: asyncio.Task[None]) -> None:
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    # Pages

    def rows(self, now: float) -> list[VitalsRow]:
        """All targets that are asked, by name."""
        rows = []
        for name, place in sorted(self._by_target.items()):
            known = self.vitals.get(name)
            rows.append(
                VitalsRow(
                    target=name,
                    state=place.state,
                    asked_at=place.name,
                    every_seconds=place.every,
                    asked=place.asked,
                    failed=place.failed,
                    vitals=known,
                    age_seconds=None if known is None else round(now - known.at, 3),
                    page_bytes=place.page_bytes,
                    trouble=place.trouble or place.troubles.get(place.members[name], ""),
                )
            )
        return rows


def _declared_path(provider: str) -> str:
    """Where a server is asked that is not asked without being declared."""
    return "/api/ps" if provider == "ollama" else "/metrics"
