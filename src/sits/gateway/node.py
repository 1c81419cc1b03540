"""One gateway process, put together: configuration, state, engines, service, pages; started in order, ended in reverse."""

from __future__ import annotations

import asyncio
import logging
import os
import pathlib
import random
import socket
import sys
import time
from collections.abc import Iterator
from functools import partial

from sits.engines.base import Engine
from sits.engines.remote.address import parse_address
from sits.engines.remote.engine import RemoteEngine
from sits.gateway.admin import Admin
from sits.gateway.cache_pages import CachePages
from sits.gateway.cluster import node_id, node_name, process_id
from sits.gateway.conversations import Conversations, ResponsePages
from sits.gateway.crew import Figures, Told, Versions
from sits.gateway.embedding import BuiltIn, Declared, Embedder
from sits.gateway.fleet import Fleet
from sits.gateway.listing import Listing
from sits.gateway.meaning import Meaning
from sits.gateway.membership import Membership, join
from sits.gateway.opening import address_of, bus_of, ledger_of, sessions_of, shared_bus, store_of, vectors_of
from sits.gateway.pages import Pages
from sits.gateway.plugging import Plugging
from sits.gateway.recall import Caches
from sits.gateway.record_pages import RecordPages
from sits.gateway.registration import Registry as Registrar
from sits.gateway.registry import TOPIC, ServiceRegistry, counted, unloaded
from sits.gateway.registry_pages import RegistryPages
from sits.gateway.reliability import Reliability
from sits.gateway.routing import Routing
from sits.gateway.service import OPERATIONS, Service
from sits.gateway.sessions import SessionPages
from sits.gateway.siblings import Siblings
from sits.gateway.standing import Standing
from sits.gateway.state_pages import StatePages
from sits.gateway.storage import Storage
from sits.gateway.stored import Stored
from sits.gateway.substituting import Substituting, embedding_model
from sits.gateway.table import Table
from sits.gateway.tables import Tables
from sits.gateway.wire import Request
from sits.inner.errors import SitsError
from sits.inner.seldom import Seldom
from sits.inner.sweep import Sweep
from sits.inner.turn import Turn
from sits.observe.log import LineWriter, log_to
from sits.observe.metrics import Registry
from sits.observe.redact import Redactor
from sits.observe.trace import request_id
from sits.ports.bus import Bus
from sits.ports.ending import end
from sits.resources.defaults import base_of
from sits.resources.problem import ConfigError, Fault
from sits.resources.snapshot import Snapshot
from sits.resources.watch import Reloader, Status, watch
from sits.routing.scheduling.judging import use_faults
from sits.security.keys import KeyIdentity
from sits.state.database import Database
from sits.state.limits import open_limits

_log = logging.getLogger("sits.gateway")

TICK_SECONDS = 0.1
"""How often deadlines are looked at; none is later than that."""
STATE_SECONDS = 0.5
"""How often the data folder is asked whether another process registered a model or made a key."""
TROUBLE_SECONDS = 30.0
"""How often it is said that this cannot be done just now."""


class Node:
    """A gateway process. `start` makes it ready to take requests; `aclose` gives everything back."""

    def __init__(self, config: pathlib.Path, data: pathlib.Path, *, warm: bool = True, worker: int = 0) -> None:
        self.wall = time.time
        self.started_at = time.time()
        self.redactor = Redactor()
        self.registry = Registry()
        self.lines = LineWriter(_to_stderr, self.redactor, self.registry.records_dropped)
        self.sweep = Sweep()
        self.standing = Standing(self.registry, wall=self.wall, clock=time.perf_counter)
        self.plugging = Plugging(self.standing, self._recompile, self.redactor, lambda: self.reloader.declared)
        self.reloader = Reloader(config, registered=lambda: self.stored.resources, judge=self._judge, base=base_of(config, data))
        self.reloader.number = Versions()
        self._refusals = Told()
        self.figures: Figures | None = None
        self._data = data
        self._warm = warm
        self._worker = worker
        self._name = node_name(socket.gethostname(), data, worker)
        self._news: Bus | None = None
        self._chance = random.Random()  # noqa: S311 - ids and draws, no secrets
        self.membership: Membership | None = None
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.storage = Storage(
            {
                "ledger": lambda: self.ledger.stuck if self.ledger is not None else None,
                "trace": lambda: self.routing.recorder.stuck,
                "vectors": lambda: self.meaning.stuck,
                "figures": lambda: self.figures.stuck if self.figures is not None else None,
            },
            lambda: self.siblings,
            worker,
        )

    @property
    def swap_error(self) -> str | None:
        """Why the newest configuration is not in force, though it could be read."""
        return self.tables.error

    def share(self, gateway: int) -> None:
        """Be one of several workers of a gateway, before `start`: what they tell stays true when one dies."""
        run = self._data / "run"
        self.figures = Figures(run, gateway, self._worker)
        self.reloader.number = Versions(run / f"versions-{gateway}")
        self._refusals = Told(run / f"told-{gateway}")

    async def start(self) -> None:
        """Read the configuration, open what is needed, begin to watch.

        Raises:
            ConfigError: the configuration is not valid.
            SitsError: the data folder cannot be used.
        """
        self.loop = asyncio.get_running_loop()
        self._undo_logging = log_to(self.lines, "info", self.registry.log_held)
        snapshot = await self._configure()
        if self.figures is not None:
            self.figures.resume(self.registry, {*snapshot.names, *snapshot.models})
        self.turn = Turn(self.loop.call_soon)
        self.fleet = self._make_fleet()
        self.tables = Tables(
            self.loop,
            self.fleet,
            self.standing,
            self.plugging,
            self.redactor,
            self.registry,
            current=lambda: self.service.table,
            take=self._take,
        )
        table = self.tables.first(snapshot)
        await self._open_state(table)
        self._put_together(table)
        self.redactor.learn(table.secrets)
        self._levels(snapshot)
        self.reloader.on_change(self.tables.swap)
        await self._open_pages()
        await self._begin(snapshot)

    def _make_fleet(self) -> Fleet:
        """Who makes the engines."""
        return Fleet(self.loop, self.sweep, self._data, self.turn)

    async def _configure(self) -> Snapshot:
        """What is declared and registered; of the cluster, where there is one."""
        self.database = await asyncio.to_thread(Database, self._data)
        self.stored = Stored(self.database, self._refresh)
        await self.stored.read()
        self.plugging.start()
        snapshot = self.reloader.start(self.wall())
        if shared_bus(snapshot.settings):
            node = node_id(socket.gethostname(), self.started_at, self._chance.getrandbits)
            self.membership = await join(snapshot.settings, node, self.reloader, self.stored, self.wall)
            snapshot = self.reloader.refresh(self.wall())
        return snapshot

    async def _open_state(self, table: Table) -> None:
        """Everything that outlives a request."""
        snapshot = table.snapshot
        settings = snapshot.settings
        self.store = await store_of(settings, self._data)
        shared = self.store if self.store.name not in ("sqlite", "memory") else None
        self.caches = Caches(self.loop, self.sweep, self.wall, mib=settings.cache_mib, store=shared, chance=self._chance.random)
        self.limits = open_limits(self._data, shared, away=settings.outage.limits)
        self.ledger = await ledger_of(settings, self._data)
        self.sessions, self._news = await sessions_of(
            settings, self._data, self.store, self._name, self.wall, alone=self.membership is None
        )
        self.conversations = Conversations(self.sessions, self.store)
        self.meaning = Meaning(self.caches, self.store, self._name, self._data)
        await self.meaning.take(table)
        self.substituting = Substituting(self._data, self._embedding)
        self.caches.behind(self.substituting.want(snapshot), must=True)

    def _put_together(self, table: Table) -> None:
        """The service, and what goes on beside its requests."""
        settings = table.snapshot.settings
        self._pages = Pages(self._check, self._request_id, self.redactor, OPERATIONS)
        self.service = Service(
            table,
            self.sweep,
            self.redactor,
            self.registry,
            self.lines,
            self._pages.handle,
            self.caches,
            self.limits,
            self.ledger,
            self.conversations,
            self.standing,
            self.substituting,
            loop=self.loop,
            chance=self._chance,
            wall=self.wall,
        )
        self.reliability = Reliability(
            self.service,
            self.store,
            self.registry,
            self._data,
            self._engine_for,
            partial(bus_of, settings) if self.membership is not None else None,
            name=self._name,
            worker=self._worker,
        )
        self.routing = Routing(
            self.service,
            self.store,
            self._data,
            self._engine_for,
            self._embedder,
            vectors_of(settings, self._data),
            partial(bus_of, settings) if self.membership is not None else None,
            process=process_id(socket.gethostname(), self._worker, os.getpid(), self._chance.getrandbits),
            name=self._name,
            chance=self._chance.random,
            tell=self.reliability.events.tell,
            plugging=self.plugging,
        )
        self.services = ServiceRegistry(
            self._data,
            self._embedder,
            self.store,
            counts=lambda: counted(self.registry.attempts.children),
            told=self.reliability.events.tell,
            unload=self._unload,
            clock=time.perf_counter,
            vectors=vectors_of(settings, pathlib.Path()) if address_of(settings.vectors) != "embedded" else None,
            others=lambda: self.siblings.ask(TOPIC),
        )
        self.caches.behind(self.services.want(table.snapshot, settings.registry), must=True)

    async def _begin(self, snapshot: Snapshot) -> None:
        """Everything that goes on by itself."""
        self._note(self.reloader.status)
        self.lines.start()
        self.caches.start()
        await self.reliability.start()
        await self.routing.start()
        self._tick()
        going_on = [watch(self.reloader, self._stop, seen=self._looked), self._watch_state(), self.plugging.watch(self._stop)]
        if self.membership is not None:
            going_on.append(self.membership.follow())
        if self._warm:
            going_on.append(self.fleet.warm(snapshot.models.values(), snapshot.settings))
        self._tasks += [self.loop.create_task(one) for one in going_on]

    async def _open_pages(self) -> None:
        """Answer what is not for the data plane, also what sibling workers ask."""
        admin = Admin(self)
        cache_pages = CachePages(self)
        around = self.routing.around
        records = RecordPages(lambda: self.service.books.ring, lambda: self.siblings, self.redactor, around)
        if around is not None:
            self.routing.beside(records.run)
        topics = {**admin.topics, **self.storage.topics, **records.topics, **self.reliability.topics, **self.routing.topics}
        self.siblings = Siblings(
            self._data / "run", {**topics, "purge": cache_pages.purge_here, TOPIC: self.services.heard}, self.routing.streams
        )
        await self.siblings.start()
        self._fill(admin)
        records.add_to(self._pages)
        cache_pages.add_to(self._pages)
        StatePages(self.meaning).add_to(self._pages)
        self.reliability.add_to(self._pages, self.siblings)
        self.routing.add_to(self._pages, self.siblings)
        SessionPages(self.sessions, self.wall).add_to(self._pages)
        ResponsePages(self.conversations).add_to(self._pages)
        RegistryPages(self.services).add_to(self._pages)

    async def aclose(self) -> None:
        """End everything that was started, in reverse order."""
        self._stop.set()
        await end(*self._tasks[1:])
        await asyncio.gather(*self._tasks[:1], return_exceptions=True)
        self._timer.cancel()
        self.plugging.close()
        await self._pages.aclose()
        await self.routing.aclose()
        await self.reliability.aclose()
        await self.sessions.aclose()
        if self._news is not None:
            await self._news.aclose()
        await self.services.aclose()
        await self.meaning.aclose()
        await self.caches.aclose()
        await self.limits.aclose()
        if self.ledger is not None:
            await asyncio.to_thread(self.ledger.close)
        await self.store.aclose()
        if self.membership is not None:
            await self.membership.cluster.aclose()
        await self.siblings.aclose()
        await self.fleet.aclose()
        self.database.close()
        self.service.books.settle()
        if self.figures is not None:
            self.figures.keep(self.registry.dump())
        await asyncio.to_thread(self.routing.recorder.stop)
        self._undo_logging()
        self.lines.stop()

    async def reload(self) -> Status:
        """Look at the files now, and read the secrets and certificates that they name again, changed or not."""
        before = self.service.table
        await self.reloader.look(self.wall)
        if self.service.table is before:
            self.tables.swap(None, self.reloader.current)
        self._looked(self.reloader.status)
        return self.reloader.status

    def _fill(self, admin: Admin) -> None:
        listing = Listing(lambda: self.service.table, self.started_at)
        registrar = Registrar(
            self.stored.models,
            lambda: self.stored.keys,
            self.reloader.preview,
            self.tables.probe,
            self.stored.take,
            self.wall,
        )
        admin.add_to(self._pages)
        self._pages.add("GET", "/v1/models", listing.all)
        self._pages.add("POST", "/v1/models/register", registrar.register, "admin")
        self._pages.add("GET", "/v1/models/registered", registrar.ls, "admin")
        self._pages.add("GET", "/v1/models/{name}", listing.one)
        self._pages.add("DELETE", "/v1/models/{name}", registrar.remove, "admin")

    # Configuration

    def _recompile(self) -> None:
        """The plugins are others now: compile the routes again, as they are declared."""
        try:
            self.tables.swap(None, self.reloader.current)
        except Exception:
            _log.exception("a defect while taking plugins; what was in force stays")

    def _judge(self, snapshot: Snapshot) -> Iterator[tuple[str, str, Fault]]:
        """What routes say of filters and scores, by those that are there."""
        offered = self.standing.plugins
        return use_faults(snapshot, offered.filters, offered.scores)

    def _take(self, table: Table) -> None:
        """This table is in force from here on."""
        snapshot = table.snapshot
        self.service.take(table)
        self.reliability.take(table)
        self.routing.take(table)
        self.caches.behind(self.meaning.take(table))
        self.caches.behind(self.substituting.want(snapshot), must=True)
        self.caches.behind(self.services.want(snapshot, snapshot.settings.registry), must=True)
        self._levels(snapshot)

    def _levels(self, snapshot: Snapshot) -> None:
        logging.getLogger().setLevel(snapshot.settings.log_level.upper())

    def _looked(self, status: Status) -> None:
        """The files were looked at, and something in them had changed."""
        self._note(status)
        if self.membership is not None and not status.last_error:
            self.membership.touch()

    def _refresh(self) -> Snapshot:
        """What is declared and stored now, in force.

        Raises:
            ConfigError: it does not go together.
        """
        snapshot = self.reloader.refresh(self.wall())
        self._note(self.reloader.status)
        return snapshot

    def _note(self, status: Status) -> None:
        """Tell log and metrics how the last look at the files went."""
        registry = self.registry
        rejected = status.rejected - int(registry.config_rejected.value)
        registry.config_version.value = status.version
        registry.config_rejected.value = status.rejected
        refused_before = registry.config_last_reload_success.value == 0
        registry.config_last_reload_success.value = 0 if status.last_error else 1
        if not status.last_error and refused_before:
            self._refusals.first("")  # The same files may be refused again, and that is told again.
        elif rejected > 0 and self._refusals.first("\n".join([self.reloader.seen, *map(str, status.last_error)])):
            for problem in status.last_error:
                _log.error("the configuration was refused, version %d stays: %s", status.version, problem)

    # Engines that are no target's

    def _embedding(self) -> Engine:
        """Asks the model that makes the gateway's own embeddings."""
        return self.fleet.engine(embedding_model(), [], self.reloader.current.settings)

    def _embedder(self) -> Embedder:
        """Who makes the embeddings of domains and services, by the configuration in force."""
        table = self.service.table
        spec = table.snapshot.settings.embedder
        return BuiltIn(self._embedding) if spec is None else Declared(table.targets[spec.model], spec)

    def _engine_for(self, url: str) -> Engine:
        """Asks a server that is no model's: Prometheus."""
        return RemoteEngine(parse_address(url), sweep=self.sweep, loop=self.loop, clock=time.perf_counter)

    async def _unload(self, name: str) -> bool:
        """Unload a model of this machine that is loaded; whether that was done."""
        target = self.service.table.targets.get(name)
        return target is not None and await unloaded(target.engine)

    # What other processes on the data folder do

    async def _watch_state(self) -> None:
        told = Seldom(TROUBLE_SECONDS)
        while True:
            await asyncio.sleep(STATE_SECONDS)
            # Limits may be in a store that is away: what is in the data folder is looked at all the same.
            for what, look in (
                ("quotas are not swept", self._sweep_limits),
                ("the data folder cannot be read", self._look_again),
            ):
                try:
                    await look()
                except ConfigError as error:
                    _log.error("what is stored cannot be served, version %d stays: %s", self.reloader.status.version, error)
                except SitsError as error:
                    if told.due(what, time.perf_counter()) is not None:
                        _log.error("%s: %s", what, error.message)

    async def _look_again(self) -> None:
        await self._release()
        await self.stored.look()

    async def _sweep_limits(self) -> None:
        await self.limits.sweep(self.wall())

    async def _release(self) -> None:
        """Close the engines that nobody needs any more."""
        beside = (self.routing.intent, self.services, self.substituting)
        await self.tables.release([engine for one in beside for engine in one.engines()])

    # Small things

    def _check(self, request: Request) -> KeyIdentity | None:
        headers = request.headers
        return self.service.table.authenticator.check(headers.get(b"authorization"), headers.get(b"x-api-key"), self.wall())

    def _request_id(self, headers: dict[bytes, bytes]) -> str:
        return request_id(headers.get(b"x-request-id"), self.wall(), self._chance.getrandbits)

    def _tick(self) -> None:
        now = time.perf_counter()
        self.standing.tick(now)
        self.routing.tick(now)
        self.sweep.run(now)
        self._timer = self.loop.call_later(TICK_SECONDS, self._tick)


def _to_stderr(lines: bytes) -> None:
    sys.stderr.buffer.write(lines)
    sys.stderr.buffer.flush()
