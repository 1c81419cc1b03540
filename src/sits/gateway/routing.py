"""What goes on beside the requests so that the right model is asked: reading what is wanted, learning from outcomes, watching how
models are.

Put together here, started after the service stands and ended before what it uses goes.
"""

from __future__ import annotations

import asyncio
import logging
import pathlib
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from sits.dialects.intake import unreadable
from sits.engines.base import Engine
from sits.gateway.afar import Afar, Around
from sits.gateway.embedding import Embedder
from sits.gateway.feedback_pages import FEEDBACK as AFAR
from sits.gateway.feedback_pages import TALLIES, FeedbackPages, Given
from sits.gateway.feedback_pages import TOPIC as FEEDBACK
from sits.gateway.fitting import Chunks, fit_in
from sits.gateway.following import TOPIC, Beside, OverBus, Workers
from sits.gateway.intent_training import IntentTraining
from sits.gateway.judging import Judging
from sits.gateway.pages import Answer, Pages, Visit, json_answer
from sits.gateway.plugging import Plugging
from sits.gateway.reporting import Reporting
from sits.gateway.siblings import Siblings, Stream, Topic
from sits.gateway.tracing import Recorder
from sits.gateway.vitals import Declared as Telling
from sits.gateway.vitals import VitalsWatch
from sits.gateway.vitals_queries import HealthChange
from sits.inner.errors import Code, SitsError
from sits.ports.bus import Bus
from sits.ports.store import Store
from sits.ports.vectors import Vectors
from sits.state.outcomes import Declared, Outcomes
from sits.state.tokens import Tokens

if TYPE_CHECKING:
    from sits.gateway.counting import Fitness
    from sits.gateway.exchange import Exchange
    from sits.gateway.service import Service
    from sits.gateway.table import Table

_log = logging.getLogger("sits.gateway")
SAVE_SECONDS = 5.0
"""What was learned is kept as soon as there is something new, and not more often than so: a kill loses no more. It takes 10 us a
route to write down."""
READ_SECONDS = 5.0


class _Said(msgspec.Struct, forbid_unknown_fields=True):
    text: str


_said = msgspec.json.Decoder(_Said).decode


class Routing:
    """Of one process. `name` is the node's, `engine_for` makes an engine for a base URL, `embedder` says whose embeddings tell
    domains apart, `vectors` opens the index, `tell` puts events on the bus. `connect` opens the bus that is shared with other
    gateways (None where there is none), `process` names this process among them."""

    def __init__(
        self,
        service: Service,
        store: Store,
        data: pathlib.Path,
        engine_for: Callable[[str], Engine],
        embedder: Callable[[], Embedder],
        vectors: Callable[[], Awaitable[Vectors]],
        connect: Callable[[], Awaitable[Bus]] | None,
        *,
        process: str,
        name: str,
        chance: Callable[[], float],
        tell: Callable[[str, dict[str, Any]], None],
        plugging: Plugging,
    ) -> None:
        self._service = service
        self._store = store
        self.intent = IntentTraining(data, embedder, vectors)
        self.outcomes = Outcomes(name)
        self._tell = tell
        self.recorder = Recorder(data, service.redactor, service.loop)
        self._plugging = plugging
        self.vitals = VitalsWatch(
            service.standing.states,
            engine_for,
            clock=perf_counter,
            wall=service.wall,
            chance=chance,
            told=self._health,
            redact=service.redactor.text,
        )
        self.tokens = Tokens()
        service.fits, service.tokens = self._fit, self.tokens
        self._siblings: Siblings | None = None
        self.judging = Judging(
            service, self.outcomes, busy=lambda: any(gate.overloaded for gate in service.standing.gates.values())
        )
        service.judging = self.judging
        service.before_drain.append(self.judging.aclose)
        self._feedback = FeedbackPages(
            self.outcomes, self._brothers, noted=self._noted, judges=self.judging.status, worker=process
        )
        self.topics: dict[str, Topic] = {FEEDBACK: self._feedback.here, TALLIES: self._feedback.tallies}
        self._join(connect, process)
        self.streams: dict[str, Stream] = {TOPIC: self._workers.follow}
        self._save_at = 0.0
        self._saving = asyncio.Lock()
        service.classifier, service.outcomes = self.intent.classifier, self.outcomes
        service.standing.vitals = self.vitals

    def _join(self, connect: Callable[[], Awaitable[Bus]] | None, process: str) -> None:
        """Be one of several processes: the workers of this machine, and where there is a bus all gateways on it."""
        service = self._service
        self._workers = Workers()
        self._bus = OverBus(connect, service.wall) if connect is not None else None
        self.reporting = Reporting(
            service.standing, self.outcomes, self._bus or self._workers, process, loop=service.loop, clock=perf_counter
        )
        self.around: Around | None = None
        """The other gateways, where there can be some; the other workers of this machine are among them."""
        if self._bus is not None:
            self.around = Around(process, self.reporting.present, self.reporting.fresh, self._bus.steady, service.wall)
            self._feedback.others = Afar(AFAR, self.around, self._feedback.answer)
            self.beside(self._feedback.others.run)

    def add_to(self, pages: Pages, siblings: Siblings) -> None:
        """Have the pages answered."""
        self._siblings = self._workers.siblings = siblings
        self._feedback.add_to(pages)
        pages.add("GET", "/v1/admin/intent", self._intent, "admin")
        pages.add("POST", "/v1/admin/intent", self._read, "admin")
        pages.add("GET", "/v1/admin/vitals", self._vitals, "admin")
        pages.add("GET", "/v1/admin/plugins", self._plugins, "admin")

    def beside(self, run: Beside) -> None:
        """Have this go over the connection to the other gateways, too, from the start on."""
        assert self._bus is not None
        self._bus.beside.append(run)

    async def start(self) -> None:
        """Begin."""
        await self.outcomes.load(self._store)
        self.take(self._service.table)
        self.reporting.start()

    def take(self, table: Table) -> None:
        """This table is in force."""
        snapshot = table.snapshot
        self.intent.apply(snapshot)
        self._service.tracing = self.recorder.take(snapshot.settings.trace)
        learning: dict[str, Declared] = {}
        for name, route in snapshot.routes.items():
            spec = route.spec.complexity
            if spec is not None and spec.learning is not None:
                learning[name] = Declared(spec, prices_of(table, name) if spec.learning.over == "target" else None)
        self.outcomes.declare(learning)
        self.judging.retain(frozenset(learning))
        self.reporting.take(table)
        telling: Mapping[str, Telling] = {
            name: Telling(model.spec.vitals, model.spec.health) for name, model in snapshot.models.items()
        }
        self.vitals.take(
            table.targets,
            telling,
            [choice.order for choice in table.names.values()],
            prometheus=snapshot.settings.prometheus,
            most_out=snapshot.settings.outliers.most_out,
        )
        self._plugging.take(snapshot)
        fitted = (conduct.fitness for conduct in table.conducts.values() if conduct.fitness is not None)
        self.tokens.begin(row.target for fitness in fitted for row in fitness.rows.values())

    def tick(self, now: float) -> None:
        """Ten times a second: what time alone brings."""
        self.vitals.tick(now)
        self.intent.tick()
        self.reporting.tick(now)
        self.outcomes.tick(now)
        if now >= self._save_at and self.outcomes.unsaved and not self._saving.locked():
            self._save_at = now + SAVE_SECONDS
            self._service.caches.behind(self._save(), must=True)

    async def _fit(self, x: Exchange, fitness: Fitness) -> Chunks | None:
        domain = x.facts.domain if x.facts is not None else ""
        return await fit_in(x, fitness, self.tokens, domain or None)

    def measure(self) -> None:
        """Bring the metrics up to date."""
        registry = self._service.registry
        self._plugging.measure(registry)
        registry.estimates.value = self.tokens.estimates
        registry.intent_unwell.value = int(bool(self.intent.unwell()))
        registry.trace_rows_dropped.value = self.recorder.dropped
        self.reporting.measure(registry)
        targets, health = self.vitals.rows()
        # A level that nobody tells any more is none: it would stand for ever.
        for level in (registry.target_running, registry.target_waiting, registry.target_kv, registry.target_memory_free):
            level.children.clear()
        registry.target_sick.children.clear()
        registry.target_health_unknown.children.clear()
        for outcome, count in self.vitals.answers.items():
            registry.prometheus_answers.series(outcome).value = count
        for row in targets:
            registry.target_asked.series(row.target, "ok").value = row.asked - row.failed
            registry.target_asked.series(row.target, "failed").value = row.failed
            signs = row.vitals
            if signs is not None:
                registry.target_running.series(row.target).value = signs.running or 0
                registry.target_waiting.series(row.target).value = signs.waiting or 0
                registry.target_kv.series(row.target).value = signs.kv or 0.0
        for name, free in self.vitals.free.items():
            registry.target_memory_free.series(name).value = free
        for verdict in health:
            registry.target_sick.series(verdict.target).value = int(verdict.sick)
            registry.target_health_unknown.series(verdict.target).value = int(verdict.unknown)

    async def aclose(self) -> None:
        """End all of it; what was learned is kept."""
        await self.judging.aclose()
        await self.reporting.aclose()
        if self.outcomes.any:
            await self._save()
        await self.vitals.aclose()
        await self.tokens.aclose()
        await self.intent.aclose()

    async def _save(self) -> None:
        async with self._saving:  # Nothing older may be written over it.
            await self.outcomes.save(self._store)

    def _health(self, change: HealthChange) -> None:
        self._tell("health", {"target": change.target, "sick": change.sick, "why": change.reason})

    def _noted(self, given: Given, known: bool) -> bool:
        """Record feedback with the traffic, if its request is recorded."""
        service = self._service
        tracing = service.tracing
        if tracing is None or given.score is None or not tracing.wanted(given.request_id):
            return False
        # Its record may not have been made yet, and is to come before it.
        ring = service.books.ring
        record = ring.get(given.request_id)
        if not known:
            if record is not None and record.key != given.key and not given.anyone:
                # Another key has used this id since.
                record = next((one for one in ring if one.request_id == given.request_id and one.key == given.key), None)
            if record is None or record.status != 200:
                return False
        key = record.key if record is not None and given.anyone else given.key
        tracing.feedback(given.request_id, 0.5 + 0.5 * given.score, key)
        return True

    # Pages

    async def _intent(self, visit: Visit) -> Answer:
        """GET /v1/admin/intent: by what requests are read, and how that goes."""
        return json_answer(self.intent.status())

    async def _read(self, visit: Visit) -> Answer:
        """POST /v1/admin/intent: how a text would be read, and the examples that are nearest to it."""
        try:
            text = _said(visit.request.body).text.strip()
        except msgspec.DecodeError as error:
            raise unreadable(error, visit.request.body) from error
        if not text:
            raise SitsError(Code.INVALID_REQUEST, "`text` is empty", param="text")
        body = msgspec.json.encode({"messages": [{"role": "user", "content": text}]})
        verdict = await self.intent.classifier.read(body, "chat", READ_SECONDS)
        try:
            near = await self.intent.classifier.nearest(text)
        except SitsError as error:
            if error.code is Code.INTERNAL:
                raise
            near = []  # The examples are not in the index yet, or the model is away; the verdict stands, and the status says why.
        return json_answer({**msgspec.to_builtins(verdict), "near": msgspec.to_builtins(near)})

    async def _plugins(self, visit: Visit) -> Answer:
        """GET /v1/admin/plugins: every plugin of this worker, and what routes use that is not there."""
        return json_answer(self._plugging.status(self._service.table.snapshot))

    async def _vitals(self, visit: Visit) -> Answer:
        """GET /v1/admin/vitals: what servers and Prometheus tell of targets."""
        return json_answer(self.vitals.status())

    def _brothers(self) -> Siblings:
        assert self._siblings is not None
        return self._siblings


def prices_of(table: Table, route: str) -> dict[str, float]:
    """What each backend costs, 0 to 1, the dearest 0.15: by its declared prices, half prompt and half answer."""
    targets = table.names[route].pool.backends
    costs = {
        target.name: target.model.spec.cost.input_per_million + target.model.spec.cost.output_per_million for target in targets
    }
    dearest = max(costs.values(), default=0.0)
    return {name: 0.15 * cost / dearest if dearest > 0.0 else 0.0 for name, cost in costs.items()}
