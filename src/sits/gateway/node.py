"""One gateway process, put together: configuration, state, engines, service, pages; started in order, ended in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
import random
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial

from sits.engines.base import Engine
from sits.engines.remote.address import parse_address
from sits.engines.remote.engine import RemoteEngine
from sits.gateway.admin import Admin
from sits.gateway.cache_pages import CachePages
from sits.gateway.cluster import Cluster, node_id, node_name
from sits.gateway.conversations import Conversations, ResponsePages
from sits.gateway.crew import Figures, Versions
from sits.gateway.embedding import BuiltIn, Declared, Embedder
from sits.gateway.ending import end
from sits.gateway.fleet import Fleet
from sits.gateway.listing import Listing
from sits.gateway.meaning import Meaning
from sits.gateway.membership import Membership
from sits.gateway.opening import address_of, bus_of, ledger_of, sessions_of, shared_bus, store_of, vectors_of
from sits.gateway.pages import Pages
from sits.gateway.plugging import Plugging
from sits.gateway.recall import Caches
from sits.gateway.registration import Registry as Registrar
from sits.gateway.registry import ServiceRegistry, counted
from sits.gateway.registry_pages import RegistryPages
from sits.gateway.reliability import Reliability
from sits.gateway.routing import Routing
from sits.gateway.service import OPERATIONS, Service
from sits.gateway.sessions import SessionPages
from sits.gateway.siblings import Siblings
from sits.gateway.standing import Standing
from sits.gateway.state_pages import StatePages
from sits.gateway.substituting import Substituting, embedding_model
from sits.gateway.table import Table
from sits.gateway.units_doing import Units
from sits.gateway.wire import Request
from sits.inner.errors import Code, SitsError
from sits.inner.sweep import Sweep
from sits.inner.turn import Turn
from sits.observe.log import LineWriter, log_to
from sits.observe.metrics import Registry
from sits.observe.redact import Redactor
from sits.observe.trace import request_id
from sits.ports.bus import Bus
from sits.resources.defaults import base_of
from sits.resources.keys import Key
from sits.resources.kinds import Model, SettingsSpec
from sits.resources.problem import ConfigError, Fault
from sits.resources.snapshot import Snapshot
from sits.resources.watch import Reloader, Status, watch
from sits.routing.scheduling.judging import use_faults
from sits.security.keys import Authenticator, KeyIdentity
from sits.state.database import Database
from sits.state.limits import open_limits
from sits.state.registrations import LocalModels, ModelShelf, Registrations
from sits.state.stored_keys import StoredKeys

_log = logging.getLogger("sits.gateway")

TICK_SECONDS = 0.1
"""How often deadlines are looked at; none is later than that."""
STATE_SECONDS = 0.5
"""How often the data folder is asked whether another process registered a model or made a key."""


class Node:
    """A gateway process. `start` makes it ready to take requests; `aclose` gives everything back."""

    def __init__(self, config: pathlib.Path, data: pathlib.Path, *, warm: bool = True, worker: int = 0) -> None:
        self.wall = time.time
        self.started_at = time.time()
        self.swap_error: str | None = None
        self.redactor = Redactor()
        self.registry = Registry()
        self.lines = LineWriter(_to_stderr, self.redactor, self.registry.records_dropped)
        self.sweep = Sweep()
        self.standing = Standing(self.registry, wall=self.wall, clock=time.perf_counter)
        self.plugging = Plugging(self.standing, self._recompile, self.redactor, lambda: self.reloader.declared)
        self.reloader = Reloader(config, registered=lambda: self._stored, judge=self._judge, base=base_of(config, data))
        self.reloader.number = Versions()
        self.figures: Figures | None = None
        self._data = data
        self._warm = warm
        self._worker = worker
        self._name = node_name(socket.gethostname(), data, worker)
        self._news: Bus | None = None
        self._chance = random.Random()  # noqa: S311 - ids and draws, no secrets
        self._stored: Sequence[Model | Key] = ()
        self.membership: Membership | None = None
        self._rows_changed = asyncio.Event()
        self._files_touched = False
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._old: list[Table] = []
        """Not in force any more, but requests are still served by them."""
        self._probing: list[Table] = []

    def share(self, gateway: int) -> None:
        """Be one of several workers of a gateway, before `start`: what they tell stays true when one dies."""
        run = self._data / "run"
        self.figures = Figures(run, gateway, self._worker)
        self.reloader.number = Versions(run / f"versions-{gateway}")

    async def start(self) -> None:
        """Read the configuration, open what is needed, begin to watch.

        Raises:
            ConfigError: the configuration is not valid.
            SitsError: the data folder cannot be used.
        """
        self.loop = asyncio.get_running_loop()
        self._undo_logging = log_to(self.lines, "info")
        snapshot = await self._configure()
        if self.figures is not None:
            self.figures.resume(self.registry, {*snapshot.names, *snapshot.models})
        self.turn = Turn(self.loop.call_soon)
        self.fleet = Fleet(self.loop, self.sweep, self._data, self.turn)
        self.plugging.follow(snapshot.settings)
        table = self._table(snapshot)
        await self._open_state(table)
        self._put_together(table)
        self.redactor.learn(table.secrets)
        self._levels(snapshot)
        self.reloader.on_change(self._swap)
        await self._open_pages()
        await self._begin(snapshot)

    async def _configure(self) -> Snapshot:
        """What is declared and registered; of the cluster, where there is one."""
        self.database = await asyncio.to_thread(Database, self._data)
        self._registrations: ModelShelf = LocalModels(Registrations(self.database))
        self._keys = StoredKeys(self.database)
        self._seen = self.database.changes()
        self._stored = await self._read_stored()
        self.plugging.start()
        snapshot = self.reloader.start(self.wall())
        if shared_bus(snapshot.settings):
            snapshot = await self._join(snapshot.settings)
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
        await self._mean(table)
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
            process=node_id(socket.gethostname(), self.started_at, self._chance.getrandbits),
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
            unload=Units(self.service).unload,
            clock=time.perf_counter,
            vectors=vectors_of(settings, pathlib.Path()) if address_of(settings.vectors) != "embedded" else None,
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
            going_on.append(self._follow_cluster(self.membership))
        if self._warm:
            going_on.append(self.fleet.warm(snapshot.models.values(), snapshot.settings))
        self._tasks += [self.loop.create_task(one) for one in going_on]

    async def _open_pages(self) -> None:
        """Answer what is not for the data plane, also what sibling workers ask."""
        admin = Admin(self)
        cache_pages = CachePages(self)
        self.siblings = Siblings(
            self._data / "run",
            {**admin.topics, **self.reliability.topics, **self.routing.topics, "purge": cache_pages.purge_here},
            self.routing.streams,
        )
        await self.siblings.start()
        self._fill(admin)
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
            self._swap(None, self.reloader.current)
        self._looked(self.reloader.status)
        return self.reloader.status

    def _fill(self, admin: Admin) -> None:
        listing = Listing(lambda: self.service.table, self.started_at)
        registrar = Registrar(
            self._registrations,
            lambda: [one for one in self._stored if isinstance(one, Key)],
            self.reloader.preview,
            self._probe,
            self._take_stored,
            self.wall,
        )
        admin.add_to(self._pages)
        self._pages.add("GET", "/v1/models", listing.all)
        self._pages.add("POST", "/v1/models/register", registrar.register, "admin")
        self._pages.add("GET", "/v1/models/registered", registrar.ls, "admin")
        self._pages.add("GET", "/v1/models/{name}", listing.one)
        self._pages.add("DELETE", "/v1/models/{name}", registrar.remove, "admin")

    # The cluster

    async def _join(self, settings: SettingsSpec) -> Snapshot:
        """Become one of several gateways: from here on the cluster keeps the registered models, and its configuration counts."""

        local = self._registrations
        node = node_id(socket.gethostname(), self.started_at, self._chance.getrandbits)
        cluster = Cluster(
            partial(bus_of, settings),
            node,
            wall=self.wall,
            changed=self._rows_changed.set,
            tell=lambda: membership.tell(),
        )
        membership = self.membership = Membership(cluster, self.reloader, push=settings.cluster.push, wall=self.wall)
        await cluster.start(settings.state_seconds)
        self._registrations = cluster
        await _move(local, cluster)
        self._stored = await self._read_stored()
        await membership.begin()
        return self.reloader.refresh(self.wall())

    async def _follow_cluster(self, membership: Membership) -> None:
        """Take what comes over the bus: configurations that others push, models that others register."""
        while True:
            await self._rows_changed.wait()
            self._rows_changed.clear()
            if self._files_touched:
                self._files_touched = False
                await membership.files_changed()
            await membership.settle()
            await membership.catch_up()
            try:
                await self._take_stored()
            except ConfigError as error:
                _log.error("what is registered in the cluster cannot be served here, the old stays: %s", error)
            await self._tell(membership)

    async def _tell(self, membership: Membership) -> None:
        """Let the others see at once what we serve by; the next regular word says it too."""
        with contextlib.suppress(SitsError):
            await membership.cluster.tell()

    def _looked(self, status: Status) -> None:
        """The files were looked at, and something in them had changed."""
        self._note(status)
        if not status.last_error:
            self._files_touched = True
            self._rows_changed.set()

    # Configuration

    def _table(self, snapshot: Snapshot) -> Table:
        authenticator = Authenticator(snapshot.keys.values(), snapshot.settings.auth)
        return Table(
            snapshot,
            authenticator,
            lambda model, headers: self.fleet.engine(model, headers, snapshot.settings),
            self.loop,
            self.standing,
        )

    def _recompile(self) -> None:
        """The plugins are others now: compile the routes again, as they are declared."""
        try:
            self._swap(None, self.reloader.current)
        except Exception:
            _log.exception("a defect while taking plugins; what was in force stays")

    def _judge(self, snapshot: Snapshot) -> Iterator[tuple[str, str, Fault]]:
        """What routes say of filters and scores, by those that are there."""
        offered = self.standing.plugins
        return use_faults(snapshot, offered.filters, offered.scores)

    def _swap(self, old: Snapshot | None, new: Snapshot) -> None:
        """The reloader has a new snapshot: serve by it. What cannot be made into a table leaves the old one serving."""
        try:
            self.plugging.follow(new.settings)
            table = self._table(new)
        except SitsError as error:
            self.swap_error = error.message
            _log.error("configuration %d cannot be served, the old one stays: %s", new.version, error.message)
            return
        except Exception as error:  # Whoever watches the files must not end by it.
            self.swap_error = f"a defect: {type(error).__name__}: {error}"
            _log.exception("a defect while taking configuration %d, the old one stays", new.version)
            return
        self.swap_error = None
        self._old.append(self.service.table)
        self.service.take(table)
        self.reliability.take(table)
        self.routing.take(table)
        self.caches.behind(self._mean(table))
        self.caches.behind(self.substituting.want(new), must=True)
        self.caches.behind(self.services.want(new, new.settings.registry), must=True)
        self._levels(new)
        _log.info("configuration %d (%s) is in force", new.version, new.hash[:12])

    async def _mean(self, table: Table) -> None:
        """Have a semantic cache if a route of the table wants one."""
        wanted = [
            one for one in table.snapshot.routes.values() if one.spec.cache is not None and one.spec.cache.semantic is not None
        ]
        if wanted and self.caches.semantic is None:
            entries = max(one.spec.cache.semantic.entries for one in wanted if one.spec.cache and one.spec.cache.semantic)
            settings = table.snapshot.settings
            await self.meaning.want(settings, entries, address_of(settings.vectors))

    def _levels(self, snapshot: Snapshot) -> None:
        logging.getLogger().setLevel(snapshot.settings.log_level.upper())

    def _note(self, status: Status) -> None:
        """Tell log and metrics how the last look at the files went."""
        registry = self.registry
        rejected = status.rejected - int(registry.config_rejected.value)
        registry.config_version.value = status.version
        registry.config_rejected.value = status.rejected
        registry.config_last_reload_success.value = 0 if status.last_error else 1
        if rejected > 0:
            for problem in status.last_error:
                _log.error("the configuration was refused, version %d stays: %s", status.version, problem)

    async def _probe(self, snapshot: Snapshot, model: Model) -> None:
        """Ask a model of a snapshot that is not in force whether it is well; its engine is let go with the next release."""
        table = self._table(snapshot)
        self.redactor.learn(table.secrets)
        target = table.targets[model.metadata.name]
        self._probing.append(table)
        try:
            await target.engine.probe(model.spec.health_check_path, target.deadlines)
        finally:
            self._probing.remove(table)

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

    # What other processes on the data folder do

    async def _read_stored(self) -> list[Model | Key]:
        models: list[Model | Key] = [kept.resource for kept in await self._registrations.all()]
        return models + [kept.resource for kept in await asyncio.to_thread(self._keys.all)]

    async def _take_stored(self) -> Snapshot:
        """Serve by what is stored now.

        Raises:
            ConfigError: it does not go with what is declared.
        """
        self._stored = await self._read_stored()
        snapshot = self.reloader.refresh(self.wall())
        self._note(self.reloader.status)
        return snapshot

    async def _watch_state(self) -> None:
        while True:
            await asyncio.sleep(STATE_SECONDS)
            try:
                await self._release()
                await self.limits.sweep(self.wall())
                seen = await asyncio.to_thread(self.database.changes)
                if seen != self._seen:
                    await self._take_stored()
                    self._seen = seen
            except ConfigError as error:
                self._seen = seen
                _log.error("what is stored cannot be served, version %d stays: %s", self.reloader.status.version, error)
            except SitsError as error:
                _log.error("the data folder cannot be read: %s", error.message)

    async def _release(self) -> None:
        """Close the engines that only tables without requests use; forget the metrics of names that are gone."""
        ended = [table for table in self._old if table.live == 0]
        self._old = [table for table in self._old if table.live > 0]
        needed = (self.service.table, *self._old, *self._probing)
        ours = [*self.routing.understanding.engines(), *self.services.engines()]
        await self.fleet.keep([*(engine for table in needed for engine in table.engines), *ours])
        if ended and not self._old:
            snapshot = self.service.table.snapshot
            self.registry.retire({*snapshot.names, *snapshot.models})

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


async def _move(local: ModelShelf, cluster: Cluster) -> None:
    """What was registered here before the gateway joined goes to all; what the cluster has by that name already wins."""
    for kept in await local.all():
        try:
            await cluster.add(kept.resource, by=kept.by, at=kept.at)
        except SitsError as error:
            if error.code is not Code.CONFLICT:
                return
        await local.remove(kept.name)


def _to_stderr(lines: bytes) -> None:
    sys.stderr.buffer.write(lines)
    sys.stderr.buffer.flush()
